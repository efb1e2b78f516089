"""Time and peak memory to open tables with a million rows, each in a new process.

python benchmarks/tables.py [rows]
"""

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FOLDERS = 1000
CLASSES = 100


def write_paths(folder: Path, rows: int) -> Path:
    """Write a table of image paths, with empty files, since opening a table decodes nothing."""
    for number in range(FOLDERS):
        (folder / f"{number:03}").mkdir()
    table = folder / "paths.csv"
    with table.open("w") as file:
        file.write("path,label\n")
        for row in range(rows):
            name = f"{row % FOLDERS:03}/{row}.jpg"
            os.close(os.open(folder / name, os.O_CREAT))
            file.write(f"{name},class {row % CLASSES}\n")
    return table


def write_numbers(folder: Path, rows: int) -> Path:
    """Write a table of five columns of numbers and a label."""
    table = folder / "numbers.csv"
    values = np.random.default_rng(0).normal(size=(rows, 5)).round(4)
    with table.open("w") as file:
        file.write("a,b,c,d,e,label\n")
        file.writelines(f"{','.join(map(str, line))},{row % CLASSES}\n" for row, line in enumerate(values.tolist()))
    return table


def opened(path: Path) -> dict[str, float]:
    """Return seconds and peak megabytes, the latter including imports."""
    code = f"from benchmarks.tables import measure; measure({str(path)!r})"
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def measure(path: str) -> None:
    from labelsieve.data.load import ReadOptions, find

    began = time.perf_counter()
    found = find(path, ReadOptions())
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rows": len(found.train), "seconds": round(seconds, 2), "peak_mb": round(peak)}))


def main() -> None:
    rows = int(sys.argv[1]) if sys.argv[1:] else 1_000_000
    result: dict[str, object] = {"cores": os.cpu_count(), "python": platform.python_version()}
    with tempfile.TemporaryDirectory() as folder:
        for name, write in {"paths and labels": write_paths, "five columns of numbers": write_numbers}.items():
            result[name] = opened(write(Path(folder), rows))
            print(f"{name}: {result[name]}", flush=True)
    Path("benchmarks/results/tables.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
