"""Cost of a step of a loss against F.cross_entropy: forward and backward, 128 samples, one CPU thread.

`python -m benchmarks.step_cost` measures this checkout; `--package CHECKOUT` measures another one, such as the state
before a change, and `--name` names its entry in the record. Losses take turns within a run, each figure is the least
CPU time of several repeats, and the ratios compare figures of the same run.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

RESULTS = Path(__file__).parent / "results" / "step_cost.json"
BATCH, REPEATS, STEPS = 128, 25, 40
GUARDS = {"align": True, "floor": 0.5}
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("default", {}),
    "mentornet": ("mentornet", {}),
    "mentornet-prop": ("mentornet-prop", {}),
    "mentornet-prop with align and floor": ("mentornet-prop", GUARDS),
}


def measure(classes: int) -> dict[str, dict[str, float]]:
    """Return microseconds of each loss, and times that of cross-entropy."""
    methods = importlib.import_module("labelsieve.methods")
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(BATCH, classes, generator=random).requires_grad_()
    labels = torch.randint(classes, (BATCH,), generator=random)
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross_entropy": F.cross_entropy}
    for name, (method, options) in LOSSES.items():
        losses[name] = methods.make(method, methods.Problem(classes, 0.2, 0), **options)
        losses[name].start_epoch(0)  # type: ignore[attr-defined]
    best = dict.fromkeys(losses, float("inf"))
    for _ in range(REPEATS):
        for name, loss in losses.items():
            best[name] = min(best[name], seconds(loss, logits, labels))
    plain = best["cross_entropy"]
    return {name: {"us": round(1e6 * s, 1), "times": round(s / plain, 2)} for name, s in best.items()}


def seconds(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> float:
    """Return CPU seconds of a step, the mean of several."""
    start = time.thread_time()
    for _ in range(STEPS):
        logits.grad = None
        loss(logits, labels).backward()
    return (time.thread_time() - start) / STEPS


def main() -> None:
    """Measure and add to the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, help="checkout whose labelsieve is measured")
    parser.add_argument("--name", default="now", help="name of the entry in the record")
    options = parser.parse_args()
    if options.package:
        sys.path.insert(0, str(options.package.resolve()))
    torch.set_num_threads(1)
    found = {f"{classes} classes": measure(classes) for classes in (10, 1000)}
    record = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    record |= {options.name: {"torch": torch.__version__, **found}}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
