"""Charts of the report: training curves, noise bars per class and class matrices."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from labelsieve.report import svg, words
from labelsieve.report.audit import AuditResults, ClassNoise
from labelsieve.runs.read import Array, Run
from labelsieve.text import percent

MAX_COLOURED_RUNS = svg.STYLES  # runs with a colour each; with more runs, each method has a colour
MAX_NAMED_CLASSES = 20  # larger class matrices are drawn as a map with a list
MAX_BARS = 200
MAX_ARROWS = 12  # of the graph of confusions
MIN_ARROW_SHARE = 0.01  # of the suspects
MAX_LISTED_ENTRIES = 20  # of a large class matrix
GIVEN_LABEL_NOTE = "Measured against the given labels of held-out samples, which include wrong ones."
ESTIMATED_NOTE = "For each given label, the share of its samples, in %, that seem to belong to each class."
TRUE_NOTE = (
    "For each given label, the share of its samples, in %, that belong to each class. The true labels are known only "
    "because this is an experiment."
)
PENALTY_NOTE = (
    "Penalty labels learned in training: for each given label, the classes that its wrongly labelled samples belong "
    "to, in %."
)


@dataclass(frozen=True)
class _Measure:
    """A quantity recorded once per epoch."""

    key: str
    title: str
    curve: str  # label of its curve where it is the only one
    note: str
    unit: str = ""
    scale: float = 1.0


TEST_ERROR = _Measure("test_error", "Test error", "test", "Measured on samples that are not used for training.", "%")
VALID_ERROR = _Measure("valid_error", "Validation error", "validation", GIVEN_LABEL_NOTE, "%")
TRAIN_LOSS = _Measure("train_loss", "Training loss", "loss", "Loss on the samples that are used for training.")
PRECISION = _Measure(
    "precision",
    "Training samples with a correct label",
    "correct labels",
    "Share of the samples used for training; known only because this is an experiment with known true labels.",
    "%",
    100.0,
)


@dataclass(frozen=True)
class _Chart:
    """A line chart with its legend and values."""

    title: str
    note: str
    lines: list[svg.Line]
    drawing: Markup
    values: list[list[str]]  # header and a row per epoch; empty for too many curves


@dataclass(frozen=True)
class _ConfusionGraph:
    """Classes whose labels are confused, as a graph and as a table."""

    drawing: Markup
    table: list[list[str]]  # header and a row per arrow
    note: str


@dataclass(frozen=True)
class _MapChart:
    """Samples as points, and the colours of their classes."""

    drawing: Markup
    legend: list[tuple[int, str]]  # number of the colour, class
    marked: bool  # whether suspects are among the points
    note: str


@dataclass(frozen=True)
class _ClassMatrix:
    """A square table of classes: shaded cells for few classes, a map and its largest entries for many."""

    title: str
    note: str
    columns: str  # title of the columns; rows are given labels
    rows: list[tuple[str, list[tuple[str, int]]]]  # class, then text and shade of each cell
    drawing: Markup
    entries: list[tuple[str, str, str]]


def run_charts(run: Run) -> list[_Chart]:
    """Return the charts of one run; test and validation error share a chart."""
    test, valid = _curve(run, TEST_ERROR), _curve(run, VALID_ERROR)
    lines = [svg.Line("test", 0, test), svg.Line("validation", 1, valid)]
    notes = [f"Test: {TEST_ERROR.note}" if test else "", f"Validation: {GIVEN_LABEL_NOTE}" if valid else ""]
    error = _Measure("error", "Error", "", " ".join(filter(None, notes)), "%")
    single = [(measure, [svg.Line(measure.curve, 0, _curve(run, measure))]) for measure in (TRAIN_LOSS, PRECISION)]
    return _make_charts([(error, lines), *single], _warmup_ends([run]))


def comparison_charts(named: Sequence[tuple[str, Run]]) -> list[_Chart]:
    """Return one chart per measure with the curves of all runs, given as (name, run)."""
    labels = words.run_labels(named) if len(named) <= MAX_COLOURED_RUNS else [run.method for _, run in named]
    styles = {label: style for style, label in enumerate(dict.fromkeys(labels))}
    runs = [run for _, run in named]
    measured = [
        (measure, [svg.Line(name, styles[name], _curve(run, measure)) for name, run in zip(labels, runs, strict=True)])
        for measure in (TEST_ERROR, VALID_ERROR, TRAIN_LOSS, PRECISION)
    ]
    return _make_charts(measured, _warmup_ends(runs))


def class_noise_bars(audit: AuditResults) -> list[tuple[ClassNoise, Markup]]:
    """Return the noise of each class with its bar, noisiest class first."""
    rows = sorted(audit.per_class, key=lambda row: -row.noise_rate.estimate)[:MAX_BARS]
    longest = max((row.noise_rate.high for row in rows), default=0) or 1
    return [(row, svg.bar(*row.noise_rate, longest)) for row in rows]


def confusion_graph(audit: AuditResults) -> _ConfusionGraph | None:
    """Return the most common confusions as arrows from the given to the suggested label; None without suspects."""
    total = sum(number for *_, number in audit.confusions)
    shown = [pair for pair in audit.confusions[:MAX_ARROWS] if pair[2] >= MIN_ARROW_SHARE * total]
    if not shown:
        return None
    names = neighbouring_order(shown)
    edges = [(names.index(given), names.index(suggested), number) for given, suggested, number in shown]
    listed = "; ".join(f"{given} to {suggested}, {number:,}" for given, suggested, number in shown)
    drawing = svg.directed_graph("confusions", "Given and suggested labels", f"Arrows: {listed}.", names, edges)
    drawn = sum(number for *_, number in shown)
    most = "all" if drawn == audit.issues else f"{drawn:,} of the {audit.issues:,}"
    note = f"An arrow leads from the given to the suggested label. The arrows stand for {most} suspects."
    table = [["Given label", "Suggested label", "Suspects"], *([a, b, f"{number:,}"] for a, b, number in shown)]
    return _ConfusionGraph(drawing, table, note)


def neighbouring_order(confusions: Sequence[tuple[str, str, int]]) -> list[str]:
    """Return the classes of some confusions in a circle, so that classes which are often confused lie side by side.

    Each class is inserted where the arrows between the classes so far are shortest.
    """

    def length(circle: Sequence[str]) -> int:
        place = {name: k for k, name in enumerate(circle)}
        known = [pair for pair in confusions if pair[0] in place and pair[1] in place]
        apart = [(abs(place[given] - place[suggested]), number) for given, suggested, number in known]
        return sum(number * min(distance, len(circle) - distance) for distance, number in apart)

    circle: list[str] = []
    for name in dict.fromkeys(name for given, suggested, _ in confusions for name in (given, suggested)):
        circle = min(([*circle[:k], name, *circle[k:]] for k in range(len(circle) + 1)), key=length)
    return circle


def map_chart(audit: AuditResults, noun: str) -> _MapChart | None:
    """Return the map of the samples with their given labels as colours; None without features."""
    if audit.map is None:
        return None
    points, names = audit.map.points, audit.classes
    common = [given for given, _ in Counter(point.given for point in points).most_common(svg.CLASS_COLOURS)]
    others = len({point.given for point in points}) - len(common)
    colours = {given: colour for colour, given in enumerate(sorted(common))}
    drawn = [
        svg.Point(
            *(point.x, point.y, colours.get(point.given, svg.CLASS_COLOURS), point.is_label_issue, point.index),
            f"{point.id}: {names[point.given]}" + (f" → {names[point.suggested]}" if point.is_label_issue else ""),
        )
        for point in points
    ]
    marked = sum(point.marked for point in drawn)
    about = (
        f"A scatter chart of {len(points):,} {noun}, coloured by given label; {marked:,} suspects among them have an "
        "outline. The suspects are also listed below."
    )
    legend = [(colour, names[given]) for given, colour in colours.items()]
    legend += [(svg.CLASS_COLOURS, f"{others:,} other classes")] if others else []
    all_shown = len(points) == audit.map.samples
    which = f"All {len(points):,} {noun}" if all_shown else f"{len(points):,} of the {audit.map.samples:,} {noun}"
    note = (
        f"{which}; similar {noun} lie near each other (principal components of their features). The colour is the "
        "given label. A suspect among points of another colour may belong to that class."
    )
    drawing = svg.scatter("map-of-samples", f"Map of the {noun}", about, drawn)
    return _MapChart(drawing, legend, marked > 0, note)


def class_matrices(run: Run | None, audit: AuditResults | None) -> list[_ClassMatrix]:
    """Return the known matrices of given labels by classes: estimated, true and learned."""
    estimated, penalty = (audit.noise_matrix, audit.penalty) if audit else (None, None)
    if penalty is None and run and "chosen/penalty" in run.tables:
        penalty = run.tables["chosen/penalty"][0]  # of the first network
    true = None
    if run and "noise" in run.tables:
        counts = run.tables["noise"].T  # row: given label, column: true class
        true = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    matrices = [
        ("noise", "Estimated true classes", ESTIMATED_NOTE, "Estimated class", estimated),
        ("truth", "True classes", TRUE_NOTE, "True class", true),
        ("penalty", "Learned confusions", PENALTY_NOTE, "Class", penalty),
    ]
    known = audit.classes if audit else run.classes if run else []
    drawn = []
    for key, title, note, columns, matrix in matrices:
        if matrix is not None:
            names = known if len(known) == len(matrix) else [f"class {k}" for k in range(len(matrix))]
            drawn.append(_class_matrix(key, title, note, columns, matrix, names))
    return drawn


def _curve(run: Run, measure: _Measure) -> list[tuple[float, float]]:
    """Return a measure by epoch, counted across rounds; epochs without a finite value are left out."""
    length = run.spec["epochs"]
    points = [((epoch.get("round", 1) - 1) * length + epoch["epoch"], epoch.get(measure.key)) for epoch in run.epochs]
    return [(x, measure.scale * y) for x, y in points if y is not None and math.isfinite(y)]


def _warmup_ends(runs: Sequence[Run]) -> list[float]:
    """Return the last epoch of each warm-up, if all runs that select samples agree on them."""
    ends = set()
    for run in runs:
        if any(share < 1 for epoch in run.epochs for share in epoch.get("kept", ())):
            rounds = max(epoch.get("round", 1) for epoch in run.epochs)
            ends.add(tuple(run.spec["warmup"] + k * run.spec["epochs"] for k in range(rounds)))
    common = ends.pop() if len(ends) == 1 else ()
    last = max((x for run in runs for x, _ in _curve(run, TRAIN_LOSS)), default=0)
    return [end for end in common if 0 < end < last]


def _make_charts(measured: Sequence[tuple[_Measure, list[svg.Line]]], marks: Sequence[float]) -> list[_Chart]:
    """Return a line chart of each measure that has a line of at least two points."""
    charts = []
    for measure, all_lines in measured:
        lines = [line for line in all_lines if line.points]
        if any(len(line.points) > 1 for line in lines):
            title, unit, few = measure.title, measure.unit, lines[:MAX_COLOURED_RUNS]
            last = "; ".join(f"{line.label} ends at {line.points[-1][1]:.4g}{unit}" for line in few)
            drawing = svg.line_chart(measure.key, title, f"{title} by epoch: {last}.", lines, unit, marks)
            legend = list({line.label: line for line in lines}.values())
            charts.append(
                _Chart(title, measure.note, legend, drawing, _value_table(lines, unit) if few == lines else [])
            )
    return charts


def _value_table(lines: Sequence[svg.Line], unit: str) -> list[list[str]]:
    """Return the values of the curves: a header and a row per epoch."""
    columns = [dict(line.points) for line in lines]
    epochs = sorted({x for column in columns for x in column})
    header = ["epoch", *(f"{line.label} {unit}".strip() for line in lines)]
    return [header, *([f"{x:g}", *(f"{c[x]:.4g}" if x in c else "–" for c in columns)] for x in epochs)]


def _class_matrix(key: str, title: str, note: str, columns: str, matrix: Array, names: Sequence[str]) -> _ClassMatrix:
    """Return a matrix as shaded cells, or as a map and its largest entries for many classes."""
    if len(names) > MAX_NAMED_CLASSES:
        about = f"A map of {len(names)} by {len(names)} classes; its largest entries are listed next to it."
        largest = svg.largest_off_diagonal(matrix, MAX_LISTED_ENTRIES)
        entries = [(names[row], names[column], percent(value)) for row, column, value in largest]
        return _ClassMatrix(title, note, columns, [], svg.matrix_map(key, title, about, matrix), entries)
    rows = [
        (name, [(f"{100 * x:.0f}" if x >= 0.005 else "", round(10 * min(max(float(x), 0), 1))) for x in row])
        for name, row in zip(names, matrix, strict=True)
    ]
    return _ClassMatrix(title, note, columns, rows, Markup(), [])
