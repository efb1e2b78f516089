"""Peak memory and time of auditing a large table of probabilities on disk.

python benchmarks/audit_memory.py [samples] [classes] [folder]: writes benchmarks/results/audit_memory.json
"""

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from labelsieve.audit import estimate_noise, label_quality

ROWS = 10_000  # written at once


def write(path: Path, labels: np.ndarray, classes: int) -> None:
    """Write random predictions that are mostly correct, in half precision."""
    table = np.lib.format.open_memmap(path, "w+", np.float16, (len(labels), classes))
    random = np.random.default_rng(0)
    for first in range(0, len(labels), ROWS):
        rows = slice(first, first + ROWS)
        logits = random.normal(size=(len(labels[rows]), classes)).astype(np.float32)
        logits[np.arange(len(logits)), labels[rows]] += 9
        np.exp(logits, out=logits)
        table[rows] = logits / logits.sum(1, keepdims=True)
    table.flush()


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def measure(path: Path, labels: np.ndarray) -> dict[str, dict[str, float]]:
    figures = {}
    for name, call in {
        "label_quality, posterior": label_quality,
        "label_quality, all": lambda y, p: label_quality(y, p, criterion="all"),
        "estimate_noise": estimate_noise,
    }.items():
        began = time.perf_counter()
        call(labels, np.load(path, mmap_mode="r"))
        figures[name] = {"seconds": round(time.perf_counter() - began, 1), "peak_mb": peak_mb()}
        print(name, figures[name], flush=True)
    return figures


def main(samples: int = 1_000_000, classes: int = 1000, folder: str | None = None) -> None:
    labels = np.random.default_rng(1).integers(0, classes, samples)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "probs.npy"
        writer = multiprocessing.Process(
            target=write, args=(path, labels, classes)
        )  # in another process: its memory does not count
        writer.start()
        writer.join()
        record = {"samples": samples, "classes": classes, "file_mb": path.stat().st_size // 2**20}
        record["figures"] = measure(path, labels)
    out = Path(__file__).parent / "results" / "audit_memory.json"
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:3]), *sys.argv[3:4])
