"""SVG drawings of the report. Colours are classes of the style sheet, for light and dark mode."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from labelsieve.runs.read import Array

WIDTH, HEIGHT = 340, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 22, 38  # margins around the curves
STYLES = 8  # distinct colours and dashes
MAX_DOTS = 600  # per chart; with more points, values are not shown under the pointer
MAX_CELLS = 2000  # per map


@dataclass(frozen=True)
class Line:
    """A curve: its label, the number of its style and its points (x, y)."""

    label: str
    style: int
    points: list[tuple[float, float]]

    @property
    def classes(self) -> str:
        """Return the CSS class of its style."""
        return f"c{self.style % STYLES}"


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers that enclose low and high."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]  # 0.3, not 0.30000000000000004


@dataclass(frozen=True)
class _Frame:
    """Axis ranges of a chart; the first epoch is 1."""

    last_epoch: float
    low: float
    high: float

    def x(self, epoch: float) -> float:
        """Return the horizontal position of an epoch."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (epoch - 1) / (self.last_epoch - 1), 1)

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (self.high - value) / (self.high - self.low), 1)


def line_chart(key: str, title: str, about: str, lines: Sequence[Line], unit: str, marks: Sequence[float]) -> Markup:
    """Draw curves by epoch; `key` is unique in the page, `about` for screen readers, `marks` the ends of warm-ups."""
    points = [point for line in lines for point in line.points]
    levels = ticks(min(y for _, y in points), max(y for _, y in points))
    frame = _Frame(max(2, *(x for x, _ in points)), levels[0], levels[-1])
    parts = [*_axes(frame, levels, unit), *_warmup_marks(frame, marks)]
    for line in lines:
        points_text = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in line.points)
        parts.append(f'<polyline class="line {line.classes}" points="{points_text}"/>')
        for x, y in line.points if len(points) <= MAX_DOTS or len(line.points) == 1 else ():
            value = escape(f"{line.label}, epoch {x:g}: {y:.4g}{unit}")  # shown under the pointer
            dot = f'<circle class="dot {line.classes}" cx="{frame.x(x)}" cy="{frame.y(y)}" r="2.5">'
            parts.append(f"{dot}<title>{value}</title></circle>")
    return _svg_element(key, title, about, WIDTH, HEIGHT, "chart", parts)


def _axes(frame: _Frame, levels: Sequence[float], unit: str) -> list[str]:
    """Draw grid lines with their values, and the epochs below."""
    parts = []
    for level in levels:
        y = frame.y(level)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{y + 4:.1f}">{level:g}{escape(unit)}</text>')
    epochs = {1} | {round(x) for x in ticks(1, frame.last_epoch) if 1 <= x <= frame.last_epoch and x == round(x)}
    below = HEIGHT - BOTTOM + 16
    parts += [f'<text class="middle" x="{frame.x(x)}" y="{below}">{x}</text>' for x in sorted(epochs)]
    return [*parts, f'<text class="middle" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 5}">epoch</text>']


def _warmup_marks(frame: _Frame, marks: Sequence[float]) -> list[str]:
    """Draw a line after the last epoch of each warm-up, with a label at the first."""
    places = [frame.x(mark + 0.5) for mark in marks]
    parts = [f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>' for x in places]
    if places:
        side, x = ("end", places[0] - 4) if places[0] > WIDTH / 2 else ("start", places[0] + 4)
        parts.append(f'<text class="{side}" x="{x:.1f}" y="{TOP - 8}">end of warm-up</text>')
    return parts


def _svg_element(key: str, title: str, about: str, width: int, height: int, kind: str, parts: Sequence[str]) -> Markup:
    """Return an SVG element with a title and a description for screen readers."""
    return Markup(
        f'<svg class="{kind}" role="img" viewBox="0 0 {width} {height}" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">{escape(title)}</title><desc id="{key}-d">{escape(about)}</desc>{"".join(parts)}</svg>'
    )


def swatch(line: Line) -> Markup:
    """Draw a piece of a curve for the legend."""
    return Markup(
        '<svg class="swatch" aria-hidden="true" viewBox="0 0 28 10">'
        f'<line class="line {line.classes}" x1="0" x2="28" y1="5" y2="5"/></svg>'
    )


def bar(share: float, low: float, high: float, longest: float) -> Markup:
    """Draw a share as a bar with its interval, relative to the longest bar."""
    full, start, stop = (f"{100 * min(max(x / longest, 0), 1):.1f}%" for x in (share, low, high))
    return Markup(
        '<svg class="bar" aria-hidden="true" width="100%" height="16">'
        f'<rect class="fill" x="0" y="2" height="12" width="{full}"/>'
        f'<line class="range" x1="{start}" x2="{stop}" y1="8" y2="8"/>'
        f'<line class="range" x1="{start}" x2="{start}" y1="4" y2="12"/>'
        f'<line class="range" x1="{stop}" x2="{stop}" y1="4" y2="12"/></svg>'
    )


def matrix_map(key: str, title: str, about: str, matrix: Array) -> Markup:
    """Draw the largest off-diagonal entries of a matrix as a map; darker means larger."""
    classes, entries = len(matrix), largest_off_diagonal(matrix, MAX_CELLS)
    parts = [
        f'<rect class="ground" x="0" y="0" width="{classes}" height="{classes}"/>',
        f'<line class="diagonal" x1="0" y1="0" x2="{classes}" y2="{classes}"/>',
    ]
    for row, column, value in entries:
        shade = value / max(entries[0][2], 1e-12)
        if shade >= 0.02:
            parts.append(f'<rect class="cell" x="{column}" y="{row}" width="1" height="1" fill-opacity="{shade:.2f}"/>')
    return _svg_element(key, title, about, classes, classes, "map", parts)


def largest_off_diagonal(matrix: Array, limit: int) -> list[tuple[int, int, float]]:
    """Return the largest positive entries off the diagonal, in descending order: row, column, value."""
    off_diagonal = matrix * (1 - np.eye(len(matrix)))
    order = np.argsort(-off_diagonal, axis=None, kind="stable")[:limit]
    places = (divmod(int(position), len(matrix)) for position in order)
    return [(row, column, float(off_diagonal[row, column])) for row, column in places if off_diagonal[row, column] > 0]
