"""What it costs to check every file that is read back: CPU seconds of the checks, and of the whole command.

    python -m benchmarks.checks

trains two small runs on the embedded photographs, one on the features of lite0 (model of 14 MB) and one of ResNet-18
(45 MB), runs the commands that read them, and writes benchmarks/results/checks.json. The checks are the digests of
files, those of features in the cache included, the reading of seals and the search for links. Commands may check files
in several threads, so the time of a check is the CPU time of its thread.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.record import ROOT, commit_of

RECORD = ROOT / "benchmarks" / "results" / "checks.json"
RUNS = {
    "lite0": ("--noise", "symmetry", "--rate", "0.2", "--noise-rate", "auto"),
    "resnet-18": ("--model", "resnet-18", "--size", "32", "--epochs", "1", "--warmup", "0", "--noise-rate", "0.1"),
}
CODE = """
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


def measure(argv: list[str], cache: str) -> dict[str, float]:
    """Run a command; return its CPU seconds and those of the checks."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LABELSIEVE_CACHE": cache}
    done = subprocess.run([sys.executable, "-c", CODE, *argv], capture_output=True, text=True, env=environment)
    code, spent, total = done.stdout.splitlines()[-1].split()
    assert code == "0", done.stderr
    share = 100 * float(spent) / float(total)
    return {"cpu_s": round(float(total), 2), "checks_s": round(float(spent), 4), "percent": round(share, 2)}


def main() -> None:
    found: dict[str, object] = {"python": platform.python_version(), "processor": platform.machine()}
    found["commit"] = commit_of()
    with tempfile.TemporaryDirectory() as folder:
        for name, options in RUNS.items():
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
            found[name] = {words: measure(argv, f"{folder}/cache") for words, argv in commands.items()}
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
