"""What it costs to check every file that is read back: CPU seconds of the checks, and of the whole command.

    python -m benchmarks.checks

trains two small runs on the embedded photographs, one on the features of lite0 (model of 14 MB) and one of ResNet-18
(45 MB), runs the commands that read them, and writes benchmarks/results/checks.json. The checks are the digests of
files, the reading of seals and the search for links.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "checks.json"
RUNS = {
    "lite0": ("--noise", "symmetry", "--rate", "0.2", "--noise-rate", "auto"),
    "resnet-18": ("--model", "resnet-18", "--size", "32", "--epochs", "1", "--warmup", "0", "--noise-rate", "0.1"),
}
CODE = """
import sys, time
from labelsieve import cli, files
from labelsieve.runs import read
spent = depth = 0
def timed(function):
    def call(*given):
        global spent, depth
        depth += 1
        began = time.process_time()
        try:
            return function(*given)
        finally:
            depth -= 1
            spent += 0 if depth else time.process_time() - began
    return call
files._file_digest = timed(files._file_digest)
files._parse_seal = timed(files._parse_seal)
read.refuse_links = timed(files.refuse_links)
code = cli.execute(sys.argv[1:])
print(f"\\n{code} {spent} {time.process_time()}")
"""


def measure(argv: list[str]) -> dict[str, float]:
    """Run a command; return its CPU seconds and those of the checks."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CODE, *argv], capture_output=True, text=True, env=environment)
    code, spent, total = done.stdout.splitlines()[-1].split()
    assert code == "0", done.stderr
    share = 100 * float(spent) / float(total)
    return {"cpu_s": round(float(total), 2), "checks_s": round(float(spent), 4), "percent": round(share, 2)}


def main() -> None:
    found: dict[str, object] = {"python": platform.python_version(), "processor": platform.machine()}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in RUNS.items():
            run = str(Path(folder) / name)
            train = ["train", "photos", *options, "--threads", "1", "--out", run]
            found[name] = {
                "train": measure(train),
                "train, again when finished": measure(train),
                "audit": measure(["audit", run]),
                "report": measure(["report", run]),
                "predict": measure(["predict", run, "photos", "--out", f"{run}.csv"]),
            }
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
