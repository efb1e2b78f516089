"""What commands cost: the start of the command line, an automatic training, and the checks of files that are read back.

    python -m benchmarks.commands --name after
    python -m benchmarks.commands --name before --package ../another-checkout
    python -m benchmarks.commands --checks

--name measures a version of the package, in this or another checkout, and adds it to benchmarks/results/commands.json.
The pictures are 1,500 of the embedded images as JPEG files of 64 x 64 pixels in class folders, 30% of the labels moved
to the next class. Times of `--help` and `import labelsieve` are medians of five after one that is not counted. Measure
two versions one after the other on a machine that does nothing else.

--checks trains two small runs on the embedded photographs, one on the features of lite0 (model of 14 MB) and one of
ResNet-18 (45 MB), runs the commands that read them, and writes benchmarks/results/checks.json. The checks are the
digests of files, those of features in the cache included, the reading of seals and the search for links. Commands may
check files in several threads, so the time of a check is the CPU time of its thread.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.record import ROOT, commit_of
from labelsieve.data import load_data
from labelsieve.noise import corrupt, pair

RECORD = ROOT / "benchmarks" / "results" / "commands.json"
CHECKS = RECORD.with_name("checks.json")
PICTURES, SIDE, RATE, REPEATS = 1500, 64, 0.3, 5
CHECKED_RUNS = {
    "lite0": ("--noise", "symmetry", "--rate", "0.2", "--noise-rate", "auto"),
    "resnet-18": ("--model", "resnet-18", "--size", "32", "--epochs", "1", "--warmup", "0", "--noise-rate", "0.1"),
}
TIMED_CHECKS = """
import sys, threading, time
from labelsieve import cli, files
from labelsieve.runs import read
from labelsieve.features import store
spent, lock, here = 0, threading.Lock(), threading.local()
def timed(function):
    def call(*given):
        global spent
        outermost, here.inside = not getattr(here, "inside", False), True
        began = time.thread_time()
        try:
            return function(*given)
        finally:
            here.inside = not outermost
            with lock:
                spent += time.thread_time() - began if outermost else 0
    return call
files._file_digest = timed(files._file_digest)
files._parse_seal = timed(files._parse_seal)
read.refuse_links = timed(files.refuse_links)
store.faults = timed(files.faults)
store.write_seal = timed(files.write_seal)
code = cli.execute(sys.argv[1:])
print(f"\\n{code} {spent} {time.process_time()}")
"""


def write_pictures(folder: Path) -> None:
    """Write the pictures into one folder per noisy label."""
    train = load_data("fashion").train
    labels = corrupt(train.labels, pair(train.num_classes, RATE), seed=0)
    for index in range(PICTURES):
        place = folder / train.classes[labels[index]].replace("/", "-")
        place.mkdir(parents=True, exist_ok=True)
        gray = Image.fromarray(np.asarray(train.images[index, 0]))
        gray.convert("RGB").resize((SIDE, SIDE)).save(place / f"{index:04}.jpg", quality=90)


def measure(words: list[str], package: Path, folder: Path) -> dict[str, float]:
    """Run Python with these arguments; return wall and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(package)}
    subprocess.run([sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"wall_s": round(wall, 3), "cpu_s": round(cpu, 2)}


def median_of(words: list[str], package: Path, folder: Path) -> float:
    """Return the median wall time; the first run is not counted."""
    times = [measure(words, package, folder)["wall_s"] for _ in range(REPEATS + 1)]
    return statistics.median(times[1:])


def measure_package(package: Path) -> dict[str, object]:
    """Measure one version of the package."""
    found: dict[str, object] = {"commit": commit_of(package)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_pictures(folder / "pictures")
        train = ["-m", "labelsieve", "train", "pictures", "--out", "run"]
        found["--help, s"] = median_of(["-m", "labelsieve", "--help"], package, folder)
        found["train --help, s"] = median_of(["-m", "labelsieve", "train", "--help"], package, folder)
        found["import labelsieve, s"] = median_of(["-c", "import labelsieve"], package, folder)
        found["train"] = measure(train, package, folder)
        found["train, again when finished"] = measure(train, package, folder)
    return found


def time_checks(argv: list[str], cache: str) -> dict[str, float]:
    """Run a command; return its CPU seconds and those of the checks."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LABELSIEVE_CACHE": cache}
    done = subprocess.run([sys.executable, "-c", TIMED_CHECKS, *argv], capture_output=True, text=True, env=environment)
    code, spent, total = done.stdout.splitlines()[-1].split()
    assert code == "0", done.stderr
    share = 100 * float(spent) / float(total)
    return {"cpu_s": round(float(total), 2), "checks_s": round(float(spent), 4), "percent": round(share, 2)}


def measure_checks() -> None:
    """Measure the checks in several commands, and write the record."""
    found: dict[str, object] = {"python": platform.python_version(), "processor": platform.machine()}
    found["commit"] = commit_of()
    with tempfile.TemporaryDirectory() as folder:
        for name, options in CHECKED_RUNS.items():
            run = str(Path(folder) / name)
            train = ["train", "photos", *options, "--threads", "1", "--out"]
            commands = {
                "train": [*train, run],
                "train, again when finished": [*train, run],
                "train, features in the cache": [*train, f"{run}-again"],
                "audit": ["audit", run],
                "report": ["report", run],
                "predict": ["predict", run, "photos", "--out", f"{run}.csv"],
            }
            found[name] = {words: time_checks(argv, f"{folder}/cache") for words, argv in commands.items()}
    CHECKS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", help="name of the version in the record")
    parser.add_argument("--package", type=Path, default=ROOT, help="checkout to measure")
    parser.add_argument("--checks", action="store_true", help="only measure the checks of files")
    options = parser.parse_args()
    if options.checks:
        measure_checks()
        return
    if not options.name:
        parser.error("give --name or --checks")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record["machine"] = f"{os.cpu_count()} cores, {platform.machine()}"
    record["versions"] = {"python": platform.python_version(), "torch": torch.__version__}
    record["pictures"] = PICTURES
    record[options.name] = measure_package(options.package.resolve())
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record[options.name], indent=1))


if __name__ == "__main__":
    main()
