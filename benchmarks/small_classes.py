"""Small classes, and classes with many wrong labels: what the delivered head learns, and its accuracy.

    labelsieve embed clothing/ --out clothing.npz
    python -m benchmarks.small_classes clothing.npz
    python -m benchmarks.small_classes --show

Four of the ten classes are cut to a few training samples, with and without wrong labels, or one class receives so many
samples of other classes that 60% of its labels are wrong. The head is trained with the given labels, with the targets
of the judgment, and with these targets except for lost classes, which keep their labels (`lost_classes`). The rule was
chosen on draws 0 and 1 of these photographs; the others were drawn afterwards. The file needs test samples with correct
labels. Rows are added to benchmarks/results/small_classes.jsonl.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.record import ROOT, Row, add_row, made_here, read_rows
from labelsieve.audit.findings import lost_classes
from labelsieve.features.judge import choose_strength, fit_head, judge_features
from labelsieve.models.linear import head_logits, one_hot
from labelsieve.runs.tables import markdown

RESULTS = ROOT / "benchmarks" / "results" / "small_classes.jsonl"
SMALL, SIZES = (1, 3, 6, 7), (2, 4, 6, 10, 15)  # classes that are cut, and to how many samples
LARGE = 110  # samples of the other classes
RATE = 0.15  # of wrong labels, to any other class
DRAWS = 4
CHOSEN_ON = (0, 1)  # draws on which the rule was chosen
CROWDED = 0.6  # share of wrong labels in the class that receives them


class Cell(NamedTuple):
    name: str
    draw: int
    index: np.ndarray  # positions of the training samples
    given: np.ndarray  # their labels


def cells(true: np.ndarray, classes: int) -> Iterator[Cell]:
    for draw in range(DRAWS):
        random = np.random.default_rng(draw)
        for size in SIZES:
            index = np.concatenate(
                [random.permutation(np.flatnonzero(true == k))[: size if k in SMALL else LARGE] for k in range(classes)]
            )
            yield Cell(f"{size} samples", draw, index, true[index])
            given = true[index].copy()
            wrong = np.flatnonzero(random.random(len(index)) < RATE)
            given[wrong] = (given[wrong] + random.integers(1, classes, len(wrong))) % classes
            yield Cell(f"{size} samples, 15% wrong", draw, index, given)
        for crowded in range(draw, classes, DRAWS):
            given = true.copy()
            others = random.permutation(np.flatnonzero(true != crowded))
            given[others[: int(CROWDED / (1 - CROWDED) * (true == crowded).sum())]] = crowded
            yield Cell("60% of a class wrong", draw, np.arange(len(true)), given)


def measure(cell: Cell, data: dict[str, Tensor], classes: int) -> Row:
    """Return the test accuracy in percent of heads that learned three kinds of targets."""
    features, given = data["features"][cell.index], torch.from_numpy(cell.given)
    judgment = judge_features(features, cell.given, classes)
    judged, labels = torch.from_numpy(judgment.targets()), one_hot(given, classes)
    lost = lost_classes(cell.given, judged.argmax(1).numpy(), classes)
    kept = torch.where(torch.isin(given, torch.from_numpy(lost))[:, None], labels, judged)
    row: Row = {"cell": cell.name, "draw": cell.draw, "lost": len(lost)}
    for name, targets in (("given", labels), ("judged", judged), ("kept", kept)):
        strength = choose_strength(features, targets.argmax(1), classes)[1]
        mean, scale, head = fit_head(features, targets, strength)
        predicted = head_logits((data["test_features"] - mean) / scale, head[None])[:, 0].argmax(1)
        row[name] = round(100 * float((predicted == data["test_labels"]).float().mean()), 2)
    return row


def table(rows: list[Row]) -> str:
    """Return a Markdown table of mean accuracies over the draws on which the rule was not chosen."""
    lines = [["training samples", "cells", "lost classes", "given labels", "judged", "judged, lost ones kept"]]
    rows = [row for row in rows if row["draw"] not in CHOSEN_ON]
    for name in dict.fromkeys(row["cell"] for row in rows):
        part = [row for row in rows if row["cell"] == name]
        means = [np.mean([row[key] for row in part]) for key in ("lost", "given", "judged", "kept")]
        lines.append([name, str(len(part)), *(f"{mean:.1f}" for mean in means)])
    return markdown(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "features", type=Path, nargs="?", help="features of photographs in ten classes, with a test set"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="print the table of the finished rows")
    args = parser.parse_args()
    if args.features is not None:
        torch.set_num_threads(1)
        with np.load(args.features) as file:
            classes = len(file["classes"])
            data = {name: torch.from_numpy(file[name]) for name in ("labels", "test_labels")}
            data |= {name: torch.from_numpy(file[name]).float() for name in ("features", "test_features")}
        for cell in cells(data["labels"].numpy(), classes):
            add_row(args.out, measure(cell, data, classes) | made_here("torch", "numpy"))
    print(table(read_rows(args.out)))


if __name__ == "__main__":
    main()
