"""Fine-tuning of the whole backbone after the linear head: test accuracy on photographs of clothes.

    python -m benchmarks.finetune CLOTHING --device cuda --noise A --draw 0

Runs `labelsieve train` without and with --finetune, and with mirrored images, on a folder with the noise of
benchmarks/photos.py. Rows are added to benchmarks/results/finetune.jsonl.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.photos import Cell, clothes
from benchmarks.record import Row, add_row
from labelsieve.runs.tables import markdown

RESULTS = Path(__file__).parent / "results" / "finetune.jsonl"
WAYS = {"head": [], "finetune": ["--finetune"], "finetune flip": ["--finetune", "--augment", "flip"]}


def measure(cell: Cell, way: str, device: str, room: Path) -> Row:
    """Train in one way and return the test accuracy, also after every epoch."""
    run, began = room / way.replace(" ", "-"), time.perf_counter()
    options = ["--device", device, "--threads", "1", "--workers", "2", *WAYS[way], "--out", str(run)]
    command = [sys.executable, "-m", "labelsieve", "train", str(cell.folder), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    rate = json.loads((run / "audit" / "summary.json").read_text())["noise_rate"]
    return {
        "set": cell.name,
        "draw": cell.seed,
        "what": way,
        "wrong": round(float((cell.given != cell.true).mean()), 4),
        "estimate": [rate["estimate"], rate["low"], rate["high"]],
        "test_accuracy": round(100 - rows[-1]["last"], 2),
        "test_errors": [round(row["test_error"], 2) for row in rows if "test_error" in row],
        "seconds": round(time.perf_counter() - began, 1),
    }


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table with the test accuracies of each set and draw."""
    lines = [["test accuracy, %", *WAYS]]
    for name, draw in dict.fromkeys((row["set"], row["draw"]) for row in rows):
        found = {row["what"]: row["test_accuracy"] for row in rows if (row["set"], row["draw"]) == (name, draw)}
        if len(found) == len(WAYS):
            lines.append([f"{name}, draw {draw}", *(f"{found[way]:.1f}" for way in WAYS)])
    return markdown(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clothing", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--noise", default="A", choices=("A", "B", "C"))
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.clothing.parent) as room:
        cell = clothes(options.clothing, options.noise, options.draw, Path(room) / "data")
        for way in WAYS:
            row = measure(cell, way, options.device, Path(room))
            add_row(options.out, row)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
