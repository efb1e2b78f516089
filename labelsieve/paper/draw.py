"""The paper's figures, each from plain data; drawn again they are the same bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from io import BytesIO
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from labelsieve.errors import InputError
from labelsieve.runs.read import Array
from labelsieve.runs.tables import mean_and_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that colour-blind people can tell apart (Okabe and Ito), each with a mark and a line of its own.
Style = dict[str, Any]
STYLES: tuple[Style, ...] = (
    {"color": "#000000", "marker": "o", "linestyle": ":"},
    {"color": "#D55E00", "marker": "^", "linestyle": "--"},
    {"color": "#0072B2", "marker": "s", "linestyle": "-"},
)
KINDS: tuple[tuple[str, Style], ...] = (  # of samples, in figure 3
    ("right label", {"color": "#0072B2", "marker": "o"}),
    ("wrong label, of the dominant class", {"color": "#D55E00", "marker": "^"}),
    ("wrong label, of another class", {"color": "#E69F00", "marker": "s"}),
)
BESIDE = 0.025  # of the axis: how far lines with equal marks stand apart
CRITERIA = {"ol": "Criteria_OL", "pl": "Criteria_PL", "all": "Criteria_ALL"}
SETTINGS: Any = {"svg.hashsalt": "labelsieve", "font.size": 9, "axes.titlesize": 10, "figure.titlesize": 11}
Published = tuple[float, float | None]  # a number and its standard error, as printed
Pictures = dict[str, bytes]  # by the ending of the file
P = ParamSpec("P")


def drawn(draw: "Callable[P, Figure]") -> Callable[P, Pictures]:
    """The figure as PNG and SVG, in one style and without anything that changes from day to day."""

    @wraps(draw)
    def pictures(*args: P.args, **kwargs: P.kwargs) -> Pictures:
        try:
            from matplotlib import rc_context
        except ImportError:
            raise InputError("figures need matplotlib: pip install 'labelsieve[plots]'") from None
        png, svg = BytesIO(), BytesIO()
        with rc_context(SETTINGS):
            figure = draw(*args, **kwargs)
            figure.savefig(png, format="png", dpi=150)
            figure.savefig(svg, format="svg", metadata={"Date": None})
        return {"png": png.getvalue(), "svg": svg.getvalue()}

    return pictures


@dataclass(frozen=True)
class Line:
    """Errors along an axis."""

    name: str
    marks: Mapping[float, Sequence[float]]  # x -> percent, one per seed
    paper: Mapping[float, Published] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.marks)

    @property
    def drawn(self) -> bool:
        return bool(self.marks or self.paper)

    def as_drawn(self, style: Style) -> Style:
        """What it looks like: a single mark has no line, and what only the paper has is hollow."""
        if len(self.marks) > 1:
            return style
        return style | {"linestyle": ""} | ({} if self.marks else {"markerfacecolor": "none", "markersize": 9})


@dataclass(frozen=True)
class Curve:
    """Something measured in every epoch."""

    name: str
    runs: Sequence[Sequence[float]]  # percent, one list per seed
    paper: float | None = None  # where it ends, approximately

    @property
    def size(self) -> int:
        return len(self.runs)

    @property
    def drawn(self) -> bool:
        return bool(self.runs)

    def as_drawn(self, style: Style) -> Style:
        return style


@dataclass(frozen=True)
class Scored:
    """Every sample's scores at the end of an epoch."""

    scores: Mapping[str, Array]  # ol, pl, all, label, clean
    label: int  # the observed label whose samples are shown
    dominant: int  # the class that most of its wrong labels come from
    kept: float  # share that is selected
    interval: int = 1  # every so many-th of these samples is shown


@drawn
def errors(panels: Mapping[str, Sequence[Line]], title: str, xlabel: str, of_paper: str) -> "Figure":
    """Figures 8, 9 and 10: mean test error over seeds with its standard error; the paper's are hollow marks."""
    figure, axes = canvas(1, len(panels), 3.6, 3.4, title)
    for axis, (name, lines) in zip(axes.flat, panels.items(), strict=True):
        ticks = sorted({x for line in lines for x in (*line.marks, *line.paper)})
        aside = BESIDE * (ticks[-1] - ticks[0])
        for place, (line, style) in enumerate(zip(lines, STYLES, strict=False)):
            _errors(axis, line, style, aside * (place - (len(lines) - 1) / 2))
        axis.set(title=name, xlabel=xlabel)
        axis.set_xticks(ticks)
    axes.flat[0].set_ylabel("best test error, %")
    legend(figure, panels, of_paper)
    return figure


@drawn
def precision(panels: Mapping[str, Sequence[Curve]], title: str, warmup: int, of_paper: str) -> "Figure":
    """Figure 11: the share of right labels among the samples that each epoch learnt from."""
    figure, axes = canvas(1, len(panels), 4.4, 3.4, title, sharey=True)
    for axis, (name, curves) in zip(axes.flat, panels.items(), strict=True):
        for curve, style in zip(curves, STYLES, strict=False):
            _curve(axis, curve, style)
        axis.axvline(warmup + 0.5, color="0.6", linewidth=1)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set(title=name, xlabel=f"epoch (grey line: selecting begins after {warmup})")
    axes.flat[0].set_ylabel("right labels among the selected, %")
    legend(figure, panels, of_paper)
    return figure


@drawn
def scores(panels: Mapping[str, Scored], title: str) -> "Figure":
    """Figure 3: samples of one observed label, sorted by each criterion; right of the dashed line they are selected."""
    figure, axes = canvas(3, len(panels), 4.4, 2.1, title, sharey="row")
    for column, (name, scored) in enumerate(panels.items()):
        for row, criterion in enumerate(CRITERIA):
            _sorted(axes[row, column], scored, criterion)
        axes[0, column].set_title(f"{name}\n{axes[0, column].get_title()}")
        axes[2, column].set_xlabel(f"samples, sorted (1 in {scored.interval} of this label)")
    for row, criterion in enumerate(CRITERIA):
        axes[row, 0].set_ylabel(f"{CRITERIA[criterion]}{', descending' if criterion == 'pl' else ''}")
    legend_of(figure, [({**style, "linestyle": ""}, name) for name, style in KINDS])
    return figure


@drawn
def matrices(panels: Mapping[str, Array], title: str) -> "Figure":
    """Figure 7: transition matrices, a row per true class."""
    figure, axes = canvas(1, len(panels), 3.7, 3.2, title)
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


def arranged(scored: Scored, criterion: str) -> tuple[Array, Array]:
    """The scores of the samples that figure 3 shows, the selected ones last, and their places in KINDS."""
    here = np.flatnonzero(scored.scores["label"] == scored.label)[:: scored.interval]
    values, true = scored.scores[criterion][here], scored.scores["clean"][here]
    kinds = np.where(true == scored.label, 0, np.where(true == scored.dominant, 1, 2))
    order = np.argsort(-values if criterion == "pl" else values, kind="stable")
    return values[order], kinds[order]


def selected_clean(scored: Scored, criterion: str) -> float:
    """Of all samples of the label, not only those shown: the share of right labels among the selected."""
    _, kinds = arranged(replace(scored, interval=1), criterion)
    return float((kinds[len(kinds) - round(scored.kept * len(kinds)) :] == 0).mean())


def canvas(
    rows: int, columns: int, width: float, height: float, title: str, **sharing: Any
) -> "tuple[Figure, np.ndarray[Any, Any]]":
    """An empty figure and its axes, (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(width * columns, 4.8), height * rows + 0.8), layout="constrained")
    figure.suptitle(title)
    return figure, figure.subplots(rows, columns, squeeze=False, **sharing)


def legend(figure: "Figure", panels: Mapping[str, Sequence[Line] | Sequence[Curve]], of_paper: str) -> None:
    """Below the panels: what is drawn in them, and what hollow marks are."""
    every = [each for series in panels.values() for each in series]
    styles = dict(zip(dict.fromkeys(each.name for each in every), STYLES, strict=False))
    fullest = {each.name: each for each in sorted(every, key=lambda each: each.size) if each.drawn}
    entries = [(fullest[name].as_drawn(style), name) for name, style in styles.items() if name in fullest]
    hollow = {"color": "0.4", "marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": ""}
    printed = any(each.paper for each in every if each.drawn)
    legend_of(figure, [*entries, (hollow, of_paper)] if printed else entries)


def legend_of(figure: "Figure", entries: Sequence[tuple[Mapping[str, Any], str]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, **{"markersize": 5, **style}) for style, name in entries]
    for columns in range(min(len(handles), 4), 0, -1):
        drawn = figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
        if columns == 1 or drawn.get_window_extent().width < figure.bbox.width:
            return
        drawn.remove()


def _errors(axis: "Axes", line: Line, style: Style, aside: float) -> None:
    at = [x + aside for x in sorted(line.marks)]
    if at:
        means, spread = zip(*(mean_and_error(line.marks[x]) for x in sorted(line.marks)), strict=True)
        axis.errorbar(at, means, np.nan_to_num(spread), markersize=5, capsize=3, linewidth=1.2, **style)
    for x, (value, error) in line.paper.items():
        hollow: Style = {"marker": style["marker"], "markersize": 10, "markerfacecolor": "none", "elinewidth": 0.8}
        axis.errorbar(x + aside, value, error or 0.0, color=style["color"], linestyle="", alpha=0.8, **hollow)


def _curve(axis: "Axes", curve: Curve, style: Style) -> None:
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


def _sorted(axis: "Axes", scored: Scored, criterion: str) -> None:
    values, kinds = arranged(scored, criterion)
    for kind, (_, style) in enumerate(KINDS):
        at = np.flatnonzero(kinds == kind)
        axis.plot(at, values[at], linestyle="", markersize=3.5, **style)
    axis.axvline(len(values) - round(scored.kept * len(values)) - 0.5, color="black", linestyle="--", linewidth=1)
    axis.set_title(f"selected: {100 * selected_clean(scored, criterion):.0f}% right", fontsize=9)
