"""How many classes the selection gives up when it starts, and what this depends on.

    python -m benchmarks.given_up --seeds 16
    python -m benchmarks.given_up --seeds 8 --noise symmetry,mixed,asymmetric --changes "as it is,floor,align"
    python -m benchmarks.given_up --data cifar100 --device cuda --seeds 3 --changes "as it is,second pass"

Runs with 40% noise that learn from the pass that selects, each with one change; runs on CIFAR end a few epochs after
the warm-up. Finished runs are not repeated. A class is given up if its last epoch keeps less than half of the share of
its samples that is kept of all samples. Asymmetric noise affects four classes of fashion that look like another one, so
that labels are no longer equally frequent.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from torch import nn

from benchmarks.record import commit_of
from labelsieve.models import make_model
from labelsieve.models.networks import Dropout
from labelsieve.paper.results import classes_given_up
from labelsieve.paper.tables import SMALL_EPOCHS, experiment
from labelsieve.runs.read import Run, read_run
from labelsieve.runs.spec import Experiment, experiment_for
from labelsieve.runs.tables import markdown, plus_minus
from labelsieve.runtime import best_precision
from labelsieve.sweep.sweep import folder_of, sweep

RATE = 0.4
LOOK_ALIKE = "9:7,5:7,2:4,6:0"  # boots and sandals become sneakers, pullovers coats, shirts T-shirts
AFTER = 5  # epochs after the warm-up on CIFAR: classes are given up by then
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "second pass": {"forward": "second"},
    "independent batches": {"sampler": "independent"},
    "both": {"forward": "second", "sampler": "independent"},
    "without Nesterov": {"nesterov": False},
    "a fifth of the weight decay": {"weight_decay": 1e-4},
    "torch's initialisation": {"model": "benchmarks.torch_init:densenet"},
    "fp32": {"precision": "fp32"},
    "no dropout": {"model": "benchmarks.given_up:without_dropout"},
    "no dropout and second pass": {"model": "benchmarks.given_up:without_dropout", "forward": "second"},
    "floor": {"options": {"floor": 0.5}},
    "align": {"options": {"align": True}},
    **{f"warm-up of {warmup} epochs": {"warmup": warmup, "epochs": 32, "forward": "second"} for warmup in (24, 25, 26)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion", help="fashion, cifar10 or cifar100")
    parser.add_argument("--noise", default="pair", help="pair, symmetry, mixed; on fashion also asymmetric")
    parser.add_argument("--methods", default="mentornet,mentornet-prop")
    parser.add_argument("--changes", default=",".join(list(CHANGES)[:4]))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0 on")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--at-once", type=int, default=6, help="runs side by side on a GPU")
    parser.add_argument("--out", type=Path, default=Path("runs/given-up"))
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results/given_up.json"))
    options = parser.parse_args()
    kinds = [words.split(",") for words in (options.noise, options.methods, options.changes)]
    if unknown := set(kinds[2]) - CHANGES.keys():
        parser.error(f"unknown changes {', '.join(sorted(unknown))}; there are: {', '.join(CHANGES)}")
    cells = list(cells_of(options.data, *kinds, options.seeds, options.device))
    failed = sweep([cell for _, cell in cells], options.out, at_once=options.at_once)
    for cell, reason in failed.items():
        print(f"{cell.method}, seed {cell.seed}: {reason}")
    there = [(change, cell) for change, cell in cells if (folder_of(cell, options.out) / "done").exists()]
    runs = [(change, read_run(folder_of(cell, options.out))) for change, cell in there]
    rows = [row_of(change, run) | where(run) | {"commit": commit_of()} for change, run in runs]
    known = json.loads(options.record.read_text()) if options.record.exists() else []
    merged = list({key(row): row for row in [*known, *rows]}.values())
    options.record.write_text("[\n" + ",\n".join(map(json.dumps, merged)) + "\n]\n", encoding="utf-8")
    print(markdown(table(merged)))


def cells_of(
    data: str, noises: list[str], methods: list[str], changes: list[str], seeds: int, device: str
) -> Iterator[tuple[str, Experiment]]:
    """Yield every change with its experiment."""
    for noise, seed, method in product(noises, range(seeds), methods):
        for change in changes:
            yield change, changed(usual(data, noise, method, seed, device), **CHANGES[change])


def changed(training: Experiment, options: dict[str, Any] | None = None, **settings: Any) -> Experiment:
    """Return the experiment with other settings and additional options of the method."""
    merged = tuple(sorted({**dict(training.options), **(options or {})}.items()))
    return replace(training, options=merged, **settings)


def without_dropout(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return the paper's network with a dropout rate of 0: does a second pass help because of its new dropout masks?"""
    network = make_model("densenet-25-12", shape, num_classes)
    for layer in network.modules():
        if isinstance(layer, Dropout):
            layer.p = 0.0
    return network


def usual(data: str, noise: str, method: str, seed: int, device: str) -> Experiment:
    if data == "fashion":
        own = experiment_for(
            data, method=method, noise=noise, rate=RATE, noise_rate=RATE, epochs=SMALL_EPOCHS, seed=seed
        )
        wrong = {"noise_map": LOOK_ALIKE, "noise_rate": 4 / 10 * RATE} if noise == "asymmetric" else {}
        return replace(own, device=device, **wrong)
    papers = replace(experiment(data, method, noise, RATE, seed), forward="one")
    short = replace(papers, epochs=papers.warmup + AFTER, drops=())
    return replace(short, device=device, precision=best_precision(device))


def row_of(change: str, run: Run) -> dict[str, Any]:
    last = run.epochs[-1]
    return {
        "data": run.spec["data"],
        "noise": run.spec["noise"],
        "method": run.method,
        "change": change,
        "seed": run.spec["seed"],
        "epochs": len(run.epochs),
        "given up": classes_given_up(run, last),
        "classes": len(last["kept"]),
        "precision": round(last["precision"], 4),
        "error": last["test_error"],
    }


def where(run: Run) -> dict[str, Any]:
    """Return device and versions of a run."""
    return {"device": run.start["device"], "versions": run.start["versions"]}


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("data", "noise", "method", "change", "seed"))


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row per change: means over the seeds, and its effect on the error seed by seed."""
    figures = ["classes given up", "right among the kept, %", "error, %", "against as it is"]
    lines = [["data", "noise", "method", "change", "seeds", *figures]]
    errors = {key(row): row["error"] for row in rows}
    for group in dict.fromkeys(key(row)[:4] for row in rows):
        those = [row for row in rows if key(row)[:4] == group]
        lost, right, error = (mean(row[name] for row in those) for name in ("given up", "precision", "error"))
        unchanged = [errors.get((*group[:3], "as it is", row["seed"])) for row in those]
        moved = [row["error"] - base for row, base in zip(those, unchanged, strict=True) if base is not None]
        numbers = [f"{lost:.2f} of {those[0]['classes']}", f"{100 * right:.1f}", f"{error:.1f}"]
        difference = "" if group[3] == "as it is" or not moved else plus_minus(moved, 2, "+")
        lines.append([*group, str(len(those)), *numbers, difference])
    return lines


if __name__ == "__main__":
    main()
