"""What every stage of the automatic training contributes: which labels it finds, and how accurate the model is.

    python -m benchmarks.stages --clothing clothing/ --banking banking77/ --cifar cifar10.npz --cifar-n labels.npz
    python -m benchmarks.stages --show

On features, with the cells of `benchmarks/photos.py`: one round of linear heads, two rounds, and heads that learn the
given labels, the probabilities of the first round, or those of the second. From scratch: the judges of the runs in
benchmarks/results/auto.jsonl, each as if it were the last stage. Rows are added to benchmarks/results/stages.jsonl as
they are finished; finished ones are skipped.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks import auto, photos
from benchmarks.detection import decision
from benchmarks.record import Row, add_row, made_here, read_rows
from labelsieve.audit.explain import explain
from labelsieve.audit.posterior import true_class_probs
from labelsieve.audit.quality import THRESHOLD, judge_labels
from labelsieve.features.judge import choose_strength, fit_head, judge_features
from labelsieve.models.linear import head_logits, one_hot
from labelsieve.runs.tables import markdown

RESULTS = Path(__file__).parent / "results" / "stages.jsonl"
SINCE = "01563a6"  # commit of the runs from scratch with today's stages


def measure(cell: photos.Cell) -> Row:
    """Return what one and two rounds of heads find, and the accuracy of heads that learned from each."""
    features, test, test_names, names = photos.features_of(cell.folder, cell.backbone or "lite0")
    place = {name: at for at, name in enumerate(cell.order)}
    order = [place[Path(name).name] for name in names] if cell.order else list(range(len(names)))
    given, wrong = cell.given[order], (cell.given != cell.true)[order]
    x, classes = torch.from_numpy(features), len(cell.classes)
    began = time.process_time()
    judgment = judge_features(x, given, classes)
    spent = time.process_time() - began
    explained = explain(judgment.first)
    targets = {
        "given labels": one_hot(torch.from_numpy(given), classes),
        "one round": torch.from_numpy(true_class_probs(explained.guesses, explained.label_given)),
        "two rounds": torch.from_numpy(judgment.targets()),
    }
    right = np.array([cell.classes.index(name) for name in test_names])
    row: Row = {"accuracy": {name: _accuracy(x, each, test, right) for name, each in targets.items()}}
    for name, second in (("one round", None), ("two rounds", judgment.second)):
        quality = judge_labels(judgment.first, second).quality
        row[name] = {"f1": decision(wrong, quality < THRESHOLD)["f1"]}
        row[name] |= {"average_precision": photos.average_precision(wrong, quality)}
    return {"wrong": float(wrong.mean()), **row, "cpu_seconds": round(spent, 1)}


def _accuracy(x: torch.Tensor, targets: torch.Tensor, test: np.ndarray, right: np.ndarray) -> float:
    """Return the test accuracy of a head that learned targets (n, K), with the strength of the delivered head."""
    strength = choose_strength(x, targets.argmax(1), targets.shape[1])[1]
    mean, scale, head = fit_head(x, targets, strength)
    predicted = head_logits((torch.from_numpy(test) - mean) / scale, head[None])[:, 0].argmax(1).numpy()
    return round(100 * float((predicted == right).mean()), 2)


def tables(rows: Sequence[Row], scratch: Sequence[Row]) -> str:
    """Return two Markdown tables: on features, and from scratch, with means over the draws or seeds."""
    ways, rounds = ("given labels", "one round", "two rounds"), ("one round", "two rounds")
    header = ["data", "draws", "wrong, %", *(f"{name}: average precision / F1" for name in rounds)]
    lines = [[*header, *(f"accuracy, {name}, %" for name in ways)]]
    for name in dict.fromkeys(row["set"] for row in rows):
        part = [row for row in rows if row["set"] == name]
        found = [[np.mean([row[way][key] for row in part]) for key in ("average_precision", "f1")] for way in rounds]
        accuracies = [np.mean([row["accuracy"][way] for row in part]) for way in ways]
        lines.append(
            [name, str(len(part)), f"{100 * np.mean([row['wrong'] for row in part]):.1f}"]
            + [f"{precision:.3f} / {f1:.3f}" for precision, f1 in found]
            + [f"{value:.1f}" for value in accuracies]
        )
    header = ["data", "noise", "seeds", *(f"{name}: average precision / F1" for name in ("plain", "selecting"))]
    others = [[*header, "second round: average precision / F1"]]
    for key in dict.fromkeys((row["data"], row["noise"], row["rate"]) for row in scratch if row["rate"]):
        part = [row for row in scratch if (row["data"], row["noise"], row["rate"]) == key]
        judges = [[row["plain judges"], row["selecting judges"], row] for row in part]
        cells = [
            f"{np.mean([each[way]['average_precision'] for each in judges]):.3f} / "
            f"{np.mean([each[way]['f1'] for each in judges]):.3f}"
            for way in range(3)
        ]
        others.append([key[0], f"{key[1]} {100 * key[2]:g}%", str(len(part)), *cells])
    return f"{markdown(lines)}\n\n{markdown(others)}"


def read_records() -> tuple[list[Row], list[Row]]:
    """Return the rows of this record, and those of the trainings from scratch."""
    return read_rows(RESULTS), [row for row in read_rows(auto.RESULTS) if row["code"] == SINCE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("clothing", "banking", "cifar", "cifar-n", "cifar100"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--counts", type=int, nargs="*", default=[2500])
    parser.add_argument("--draws", type=int, default=3)
    parser.set_defaults(backbone=None)
    parser.add_argument("--show", action="store_true", help="print the tables of the finished rows")
    options = parser.parse_args()
    if options.show:
        print(tables(*read_records()))
        return
    torch.set_num_threads(1)
    made = made_here("labelsieve", "torch", "numpy")
    done = read_records()[0]
    for name, seed, make in photos.cells(options):
        if name.endswith(" C") or any((row["set"], row["draw"]) == (name, seed) for row in done):
            continue
        with tempfile.TemporaryDirectory(dir=options.clothing.parent if options.clothing else None) as room:
            row = {"set": name, "draw": seed, **measure(make(Path(room) / "data")), "made": made}
        add_row(RESULTS, row)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
