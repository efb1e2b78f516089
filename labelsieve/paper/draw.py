"""Draw the paper's figures with matplotlib, from plain data to PNG and SVG; equal data gives equal bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from io import BytesIO
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from labelsieve.errors import InputError
from labelsieve.paper.tables import Published
from labelsieve.runs.read import Array
from labelsieve.runs.tables import mean_and_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = dict[str, Any]
# Colours that colour-blind readers can distinguish (Okabe and Ito), each with its own marker and line style.
STYLES: tuple[Style, ...] = (
    {"color": "#000000", "marker": "o", "linestyle": ":"},
    {"color": "#D55E00", "marker": "^", "linestyle": "--"},
    {"color": "#0072B2", "marker": "s", "linestyle": "-"},
)
KINDS: tuple[tuple[str, Style], ...] = (  # of the samples in figure 3
    ("correct label", {"color": "#0072B2", "marker": "o"}),
    ("wrong label, from the dominant class", {"color": "#D55E00", "marker": "^"}),
    ("wrong label, from another class", {"color": "#E69F00", "marker": "s"}),
)
OFFSET = 0.025  # horizontal distance between series, as a share of the axis
CRITERIA = {"ol": "Criteria_OL", "pl": "Criteria_PL", "all": "Criteria_ALL"}
SETTINGS: Any = {"svg.hashsalt": "labelsieve", "font.size": 9, "axes.titlesize": 10, "figure.titlesize": 11}
Pictures = dict[str, bytes]  # by file extension
P = ParamSpec("P")


def _as_pictures(draw: "Callable[P, Figure]") -> Callable[P, Pictures]:
    """Make a drawing function return its figure as PNG and SVG, without dates or other changing content."""

    @wraps(draw)
    def pictures(*args: P.args, **kwargs: P.kwargs) -> Pictures:
        try:
            from matplotlib import rc_context
        except ImportError:
            raise InputError("figures need matplotlib; run pip install 'labelsieve[plots]'") from None
        png, svg = BytesIO(), BytesIO()
        with rc_context(SETTINGS):
            figure = draw(*args, **kwargs)
            figure.savefig(png, format="png", dpi=150)
            figure.savefig(svg, format="svg", metadata={"Date": None})
        return {"png": png.getvalue(), "svg": svg.getvalue()}

    return pictures


@dataclass(frozen=True)
class Line:
    """A series of errors along an axis."""

    name: str
    marks: Mapping[float, Sequence[float]]  # x -> errors in percent, one per seed
    paper: Mapping[float, Published] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.marks)

    @property
    def visible(self) -> bool:
        return bool(self.marks or self.paper)

    def legend_style(self, style: Style) -> Style:
        """Return the style in the legend: a single mark has no line, and a series of the paper alone is hollow."""
        if len(self.marks) > 1:
            return style
        return style | {"linestyle": ""} | ({} if self.marks else {"markerfacecolor": "none", "markersize": 9})


@dataclass(frozen=True)
class Curve:
    """A series with a value for every epoch."""

    name: str
    runs: Sequence[Sequence[float]]  # percent, one list per seed
    paper: float | None = None  # approximate last value in the paper

    @property
    def size(self) -> int:
        return len(self.runs)

    @property
    def visible(self) -> bool:
        return bool(self.runs)

    def legend_style(self, style: Style) -> Style:
        return style


@dataclass(frozen=True)
class Scored:
    """The scores of all samples at the end of an epoch."""

    scores: Mapping[str, Array]  # ol, pl, all, label, clean
    label: int  # the observed label whose samples are shown
    dominant: int  # the true class of most of its wrong labels
    kept: float  # share of the samples that is selected
    step: int = 1  # every step-th of these samples is shown


@_as_pictures
def draw_errors(panels: Mapping[str, Sequence[Line]], title: str, xlabel: str, of_paper: str) -> "Figure":
    """Draw figures 8, 9 and 10: mean test error with standard error over seeds, the paper's as hollow marks."""
    figure, axes = _canvas(1, len(panels), 3.6, 3.4, title)
    for axis, (name, lines) in zip(axes.flat, panels.items(), strict=True):
        ticks = sorted({x for line in lines for x in (*line.marks, *line.paper)})
        offset = OFFSET * (ticks[-1] - ticks[0])
        for place, (line, style) in enumerate(zip(lines, STYLES, strict=False)):
            _plot_errors(axis, line, style, offset * (place - (len(lines) - 1) / 2))
        axis.set(title=name, xlabel=xlabel)
        axis.set_xticks(ticks)
    axes.flat[0].set_ylabel("best test error, %")
    _series_legend(figure, panels, of_paper)
    return figure


@_as_pictures
def draw_precision(panels: Mapping[str, Sequence[Curve]], title: str, warmup: int, of_paper: str) -> "Figure":
    """Draw figure 11: the share of correct labels among the samples selected in each epoch."""
    figure, axes = _canvas(1, len(panels), 4.4, 3.4, title, sharey=True)
    for axis, (name, curves) in zip(axes.flat, panels.items(), strict=True):
        for curve, style in zip(curves, STYLES, strict=False):
            _plot_curve(axis, curve, style)
        axis.axvline(warmup + 0.5, color="0.6", linewidth=1)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set(title=name, xlabel=f"epoch (grey line: selection starts after {warmup})")
    axes.flat[0].set_ylabel("correct labels among the selected, %")
    _series_legend(figure, panels, of_paper)
    return figure


@_as_pictures
def draw_scores(panels: Mapping[str, Scored], title: str) -> "Figure":
    """Draw figure 3: samples of one label sorted by each criterion, the selected ones right of a dashed line."""
    figure, axes = _canvas(3, len(panels), 4.4, 2.1, title, sharey="row")
    for column, (name, scored) in enumerate(panels.items()):
        for row, criterion in enumerate(CRITERIA):
            _plot_scores(axes[row, column], scored, criterion)
        axes[0, column].set_title(f"{name}\n{axes[0, column].get_title()}")
        axes[2, column].set_xlabel(f"samples, sorted (1 in {scored.step} of this label)")
    for row, criterion in enumerate(CRITERIA):
        axes[row, 0].set_ylabel(f"{CRITERIA[criterion]}{', descending' if criterion == 'pl' else ''}")
    _add_legend(figure, [({**style, "linestyle": ""}, name) for name, style in KINDS])
    return figure


@_as_pictures
def draw_matrices(panels: Mapping[str, Array], title: str) -> "Figure":
    """Draw figure 7: transition matrices with a row per true class."""
    figure, axes = _canvas(1, len(panels), 3.7, 3.2, title)
    for axis, (name, matrix) in zip(axes.flat, panels.items(), strict=True):
        axis.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
        axis.set(title=name, xlabel="observed label", ylabel="true class")
        axis.set_xticks(range(len(matrix)), range(1, len(matrix) + 1))
        axis.set_yticks(range(len(matrix)), range(1, len(matrix) + 1))
        for (row, column), share in np.ndenumerate(matrix):
            if share > 0:
                ink = "white" if share > 0.5 else "black"
                axis.text(column, row, f"{100 * share:.3g}", ha="center", va="center", color=ink, fontsize=6)
    return figure


def sorted_scores(scored: Scored, criterion: str) -> tuple[Array, Array]:
    """Return the scores of the samples shown in figure 3, the selected ones last, and their positions in KINDS."""
    here = np.flatnonzero(scored.scores["label"] == scored.label)[:: scored.step]
    values, true = scored.scores[criterion][here], scored.scores["clean"][here]
    kinds = np.where(true == scored.label, 0, np.where(true == scored.dominant, 1, 2))
    order = np.argsort(-values if criterion == "pl" else values, kind="stable")
    return values[order], kinds[order]


def selected_precision(scored: Scored, criterion: str) -> float:
    """Return the share of correct labels among all selected samples of the label, shown or not."""
    _, kinds = sorted_scores(replace(scored, step=1), criterion)
    return float((kinds[len(kinds) - round(scored.kept * len(kinds)) :] == 0).mean())


def _canvas(
    rows: int, columns: int, width: float, height: float, title: str, **sharing: Any
) -> "tuple[Figure, np.ndarray[Any, Any]]":
    """Return an empty figure and its axes, (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(width * columns, 4.8), height * rows + 0.8), layout="constrained")
    figure.suptitle(title)
    return figure, figure.subplots(rows, columns, squeeze=False, **sharing)


def _series_legend(figure: "Figure", panels: Mapping[str, Sequence[Line] | Sequence[Curve]], of_paper: str) -> None:
    """Add a legend of the series that are drawn, and of the paper's hollow marks."""
    every = [each for series in panels.values() for each in series]
    styles = dict(zip(dict.fromkeys(each.name for each in every), STYLES, strict=False))
    fullest = {each.name: each for each in sorted(every, key=lambda each: each.size) if each.visible}
    entries = [(fullest[name].legend_style(style), name) for name, style in styles.items() if name in fullest]
    hollow = {"color": "0.4", "marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": ""}
    printed = any(each.paper for each in every if each.visible)
    _add_legend(figure, [*entries, (hollow, of_paper)] if printed else entries)


def _add_legend(figure: "Figure", entries: Sequence[tuple[Mapping[str, Any], str]]) -> None:
    """Add a legend below the panels, in as many columns as fit."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, **{"markersize": 5, **style}) for style, name in entries]
    for columns in range(min(len(handles), 4), 0, -1):
        added = figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
        if columns == 1 or added.get_window_extent().width < figure.bbox.width:
            return
        added.remove()


def _plot_errors(axis: "Axes", line: Line, style: Style, offset: float) -> None:
    at = [x + offset for x in sorted(line.marks)]
    if at:
        means, spread = zip(*(mean_and_error(line.marks[x]) for x in sorted(line.marks)), strict=True)
        axis.errorbar(at, means, np.nan_to_num(spread), markersize=5, capsize=3, linewidth=1.2, **style)
    for x, (value, error) in line.paper.items():
        hollow: Style = {"marker": style["marker"], "markersize": 10, "markerfacecolor": "none", "elinewidth": 0.8}
        axis.errorbar(x + offset, value, error or 0.0, color=style["color"], linestyle="", alpha=0.8, **hollow)


def _plot_curve(axis: "Axes", curve: Curve, style: Style) -> None:
    if curve.runs:
        values = np.array(curve.runs)
        epochs = np.arange(1, values.shape[1] + 1)
        means = values.mean(0)
        axis.plot(epochs, means, markevery=(len(epochs) // 20, max(1, len(epochs) // 10)), markersize=4, **style)
        if len(values) > 1:
            spread = values.std(0, ddof=1) / np.sqrt(len(values))
            axis.fill_between(epochs, means - spread, means + spread, color=style["color"], alpha=0.2, linewidth=0)
        if curve.paper is not None:
            hollow: Style = {"marker": style["marker"], "markersize": 10, "markerfacecolor": "none"}
            axis.plot(len(epochs) * 1.03, curve.paper, color=style["color"], clip_on=False, **hollow)


def _plot_scores(axis: "Axes", scored: Scored, criterion: str) -> None:
    values, kinds = sorted_scores(scored, criterion)
    for kind, (_, style) in enumerate(KINDS):
        at = np.flatnonzero(kinds == kind)
        axis.plot(at, values[at], linestyle="", markersize=3.5, **style)
    axis.axvline(len(values) - round(scored.kept * len(values)) - 0.5, color="black", linestyle="--", linewidth=1)
    axis.set_title(f"selected: {100 * selected_precision(scored, criterion):.0f}% correct", fontsize=9)
