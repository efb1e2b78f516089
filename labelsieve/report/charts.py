"""How the training went, as charts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from labelsieve.report import svg, words
from labelsieve.report.records import Run

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
