"""Compare the time that `labelsieve train --dry-run` forecasts with that of the whole command, idle and busy.

    python -m benchmarks.forecast

runs both commands on a table, on the embedded images and on the embedded photographs, first on the machine as it is,
then with as many busy loops as there are cores, and writes benchmarks/results/forecast.json. The features of
photographs are computed anew each time.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import commit_of
from labelsieve.files import usable_cores

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "forecast.json"
CASES = {  # options of labelsieve train
    "table, one training": "table.npz --noise-rate 0.2 --epochs 30",
    "table, automatic": "table.npz --epochs 20",
    "images, one training": "fashion --noise pair --rate 0.4",
    "photographs, heads on features": "photos --noise symmetry --rate 0.2 --noise-rate auto",
}
UNITS = {"s": 1, "min": 60, "h": 3600}


def write_table(path: Path) -> None:
    """Write a table of 12,500 rows, 20 columns and 5 classes, with a fifth of the labels moved to the next class."""
    random = np.random.default_rng(0)
    true = random.integers(5, size=12_500)
    values = random.normal(size=(5, 20))[true] + random.normal(size=(len(true), 20))
    labels = np.where(random.random(len(true)) < 0.2, (true + 1) % 5, true)
    np.savez(path, features=values.astype(np.float32), labels=labels)


def run(words: list[str], folder: Path) -> tuple[float, str]:
    """Run labelsieve train with an empty cache; return seconds and output."""
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LABELSIEVE_CACHE": place}
        command = [sys.executable, "-m", "labelsieve", "train", *words, "--device", "cpu", "--out", f"{place}/run"]
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        return time.perf_counter() - began, done.stdout


def forecast_of(output: str) -> float:
    """Return the seconds that a dry run forecasts."""
    number, unit = re.search(r"^cost: +about ([\d.]+) (s|min|h) ", output, re.M).groups()
    return float(number) * UNITS[unit]


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """Return forecast and true seconds of every case."""
    found = {}
    for name, options in CASES.items():
        forecast = forecast_of(run([*options.split(), "--dry-run"], folder)[1])
        seconds = run(options.split(), folder)[0]
        ratio = round(seconds / forecast, 2)
        found[name] = {"forecast_s": forecast, "took_s": round(seconds, 1), "took / forecast": ratio}
        print(name, found[name], flush=True)
    return found


@contextmanager
def busy_loops() -> Iterator[None]:
    """Keep as many processes busy as there are cores."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(usable_cores())]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    record: dict[str, Any] = {
        "machine": f"{usable_cores()} cores, {platform.machine()}",
        "load before": round(os.getloadavg()[0], 1),
        "commit": commit_of(),
        "commands": {name: f"labelsieve train {options}" for name, options in CASES.items()},
    }
    with tempfile.TemporaryDirectory() as place:
        write_table(Path(place) / "table.npz")
        record["idle"] = measure(Path(place))
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        with busy_loops():
            record["busy"] = measure(Path(place))
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
