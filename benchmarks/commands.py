"""What commands cost: the start of the command line, and an automatic training on 1,500 small pictures.

    python -m benchmarks.commands --name after
    python -m benchmarks.commands --name before --package ../another-checkout

measures a version of the package, in this or in another checkout, and adds it to benchmarks/results/commands.json.
The pictures are 1,500 of the embedded images as JPEG files of 64 x 64 pixels in class folders, 30% of the labels moved
to the next class. Times of `--help` and `import labelsieve` are medians of five after one that is not counted. Measure
two versions one after the other on a machine that does nothing else.
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
PICTURES, SIDE, RATE, REPEATS = 1500, 64, 0.3, 5


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="name of the version in the record")
    parser.add_argument("--package", type=Path, default=ROOT, help="checkout to measure")
    options = parser.parse_args()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record["machine"] = f"{os.cpu_count()} cores, {platform.machine()}"
    record["versions"] = {"python": platform.python_version(), "torch": torch.__version__}
    record["pictures"] = PICTURES
    record[options.name] = measure_package(options.package.resolve())
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record[options.name], indent=1))


if __name__ == "__main__":
    main()
