"""How much of each class looks wrong, and where its wrong labels come from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from labelsieve.cells import percent
from labelsieve.report import svg, words
from labelsieve.report.audited import ClassNoise, Findings
from labelsieve.report.records import Array, Run

MOST_NAMED = 20  # classes; tables of more are drawn as a map beside a list
MOST_ROWS = 200  # of the table of classes
MOST_LISTED = 20  # entries of a large table
ESTIMATED = "A row for each given label: which share of its samples, in %, seems to belong to which class."
LEARNT = "What the training learnt, as penalty labels: of the wrong labels in a row, which share, in %, is which class."
TRUE_ALONE = "A row for each given label, in %; the true labels are known only because this is an experiment."
TRUE = "The same from the true labels, which are known only because this is an experiment."


@dataclass(frozen=True)
class Table:
    """A square table of classes: as shaded cells, or as a map with its largest entries."""

    title: str
    note: str
    rows: list[tuple[str, list[tuple[str, int]]]]  # name, then text and shade of each cell
    drawing: Markup
    entries: list[tuple[str, str, str]]


def bars(findings: Findings) -> list[tuple[ClassNoise, Markup]]:
    """How much of each class looks wrong, most first, with its bar."""
    rows = sorted(findings.per_class, key=lambda row: -row.wrong.estimate)[:MOST_ROWS]
    longest = max((row.wrong.high for row in rows), default=0) or 1
    return [(row, svg.bar(row.wrong.estimate, row.wrong.low, row.wrong.high, longest)) for row in rows]


def tables(run: Run | None, findings: Findings | None) -> list[Table]:
    """Where the wrong labels come from: as estimated, the truth where it is known, and as learnt."""
    every: list[tuple[str, str, str, Array | None]] = [
        ("noise", "What the labels seem to be", ESTIMATED, findings.noise_matrix if findings else None),
        ("truth", "What the labels really are", TRUE if findings else TRUE_ALONE, truth(run)),
        ("penalty", "Where wrong labels come from, as learnt", LEARNT, penalty(run, findings)),
    ]
    known = findings.classes if findings else run.classes if run else []
    drawn = []
    for key, title, note, matrix in every:
        if matrix is not None:
            names = known if len(known) == len(matrix) else [f"class {k}" for k in range(len(matrix))]
            drawn.append(class_table(key, title, note, matrix, names))
    return drawn


def penalty(run: Run | None, findings: Findings | None) -> Array | None:
    """The penalty labels (K, K) of the first network."""
    if findings and findings.penalty is not None:
        return findings.penalty
    return run.tables["chosen/penalty"][0] if run and "chosen/penalty" in run.tables else None


def truth(run: Run | None) -> Array | None:
    """Per given label the shares of the true classes (K, K), where the run knew them."""
    if run is None or "noise" not in run.tables:
        return None
    counts = run.tables["noise"].T  # [observed][true]
    shares: Array = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


def class_table(key: str, title: str, note: str, matrix: Array, names: Sequence[str]) -> Table:
    """Cells in full for few classes, a map and the largest entries for many."""
    if len(names) > MOST_NAMED:
        about = f"A map of {len(names)} by {len(names)} classes; its largest entries are listed beside it."
        entries = [
            (names[row], names[column], percent(value)) for row, column, value in words.largest(matrix, MOST_LISTED)
        ]
        return Table(title, note, [], svg.matrix_map(key, title, about, matrix), entries)
    rows = [
        (name, [(f"{100 * x:.0f}" if x >= 0.005 else "", round(10 * min(max(float(x), 0), 1))) for x in row])
        for name, row in zip(names, matrix, strict=True)
    ]
    return Table(title, note, rows, Markup(), [])
