"""How the training went, as charts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from labelsieve.report import svg, words
from labelsieve.report.audit import ClassNoise, Findings
from labelsieve.runs.read import Array, Run
from labelsieve.text import percent

MOST_TOLD_APART = svg.STYLES  # runs with a colour each; beyond that, a colour for each method
SHORT = {"train_loss": "loss", "precision": "right labels"}
MEASURES = (
    ("test_error", "Test error", "How often the model is wrong on samples that it never learnt from.", "%", 1.0),
    ("valid_error", "Validation error", "Against held-out labels as given, the wrong ones included.", "%", 1.0),
    ("train_loss", "Training loss", "What the training minimises, on the samples that it learns from.", "", 1.0),
    (
        "precision",
        "Learnt samples with a right label",
        "Known only because this is an experiment in which the true labels are known.",
        "%",
        100.0,
    ),
)


@dataclass(frozen=True)
class Chart:
    """A drawing with its legend and its numbers."""

    title: str
    note: str
    lines: list[svg.Line]
    drawing: Markup
    values: list[list[str]]  # a header and a row per epoch; none where there are too many curves


def curve(run: Run, name: str, scale: float = 1.0) -> list[tuple[float, float]]:
    """A measure by epoch, counted on through the rounds; epochs without it are left out."""
    length = run.spec["epochs"]
    points = [((e.get("round", 1) - 1) * length + e["epoch"], e.get(name)) for e in run.epochs]
    return [(x, scale * y) for x, y in points if y is not None and math.isfinite(y)]


def warmups(runs: Sequence[Run]) -> list[float]:
    """Where the selecting begins, where all runs that select agree on it."""
    ends = set()
    for run in runs:
        if any(share < 1 for epoch in run.epochs for share in epoch.get("kept", ())):
            rounds = max(epoch.get("round", 1) for epoch in run.epochs)
            ends.add(tuple(run.spec["warmup"] + k * run.spec["epochs"] for k in range(rounds)))
    agreed = ends.pop() if len(ends) == 1 else ()
    last = max((x for run in runs for x, _ in curve(run, "train_loss")), default=0)
    return [end for end in agreed if 0 < end < last]


def single_charts(run: Run) -> list[Chart]:
    """How one training went; both errors share a chart."""
    found = {name: curve(run, name, scale) for name, *_, scale in MEASURES}
    marks = warmups([run])
    lines = [svg.Line("test", 0, found["test_error"]), svg.Line("validation", 1, found["valid_error"])]
    if run.final:
        lines.append(svg.Line("test, model delivered", 2, curve(run.final, "test_error")))
    error_note = MEASURES[0][2] if found["test_error"] else ""
    if found["valid_error"]:
        error_note += " Validation is against held-out labels as given, the wrong ones included."
    charts = [chart("error", "Error", error_note.strip(), lines, "%", marks)]
    for name, title, note, unit, _ in MEASURES[2:]:
        charts.append(chart(name, title, note, [svg.Line(SHORT[name], 0, found[name])], unit, marks))
    return [drawn for drawn in charts if drawn is not None]


def common_charts(named: Sequence[tuple[str, Run]]) -> list[Chart]:
    """Every run in one chart, measure by measure; each run is a pair of its folder's name and itself."""
    labels = words.labels_of(named) if len(named) <= MOST_TOLD_APART else [run.method for _, run in named]
    styles = {label: style for style, label in enumerate(dict.fromkeys(labels))}
    runs = [run for _, run in named]
    marks = warmups(runs)
    charts = []
    for name, title, note, unit, scale in MEASURES:
        curves = zip(labels, runs, strict=True)
        lines = [svg.Line(label, styles[label], curve(run, name, scale)) for label, run in curves]
        charts.append(chart(name, title, note, lines, unit, marks))
    return [drawn for drawn in charts if drawn is not None]


def chart(
    key: str, title: str, note: str, lines: Sequence[svg.Line], unit: str, marks: Sequence[float]
) -> Chart | None:
    """None where there is nothing to draw."""
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    last = "; ".join(f"{line.label} ends at {line.points[-1][1]:.4g}{unit}" for line in lines[:MOST_TOLD_APART])
    drawing = svg.line_chart(key, title, f"{title} by epoch: {last}.", lines, unit, marks)
    legend = list({line.label: line for line in lines}.values())
    return Chart(title, note, legend, drawing, values(lines, unit) if len(lines) <= MOST_TOLD_APART else [])


def values(lines: Sequence[svg.Line], unit: str) -> list[list[str]]:
    """The numbers behind the curves."""
    columns = [dict(line.points) for line in lines]
    epochs = sorted({x for column in columns for x in column})
    header = ["epoch", *(f"{line.label} {unit}".strip() for line in lines)]
    return [header, *([f"{x:g}", *(f"{c[x]:.4g}" if x in c else "–" for c in columns)] for x in epochs)]


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
