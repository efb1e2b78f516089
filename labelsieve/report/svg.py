"""Drawings of the page: numbers in, SVG out. Colours are classes of the page's style sheet, in light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from labelsieve.runs.read import Array

WIDTH, HEIGHT = 340, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 22, 38  # margins around the curves
STYLES = 8  # colours and dashes that can be told apart
MOST_DOTS = 600  # of a chart; beyond that, values do not show under the pointer
MOST_CELLS = 2000  # of a map


@dataclass(frozen=True)
class Line:
    """One curve: its name, its look and its points."""

    label: str
    style: int
    points: list[tuple[float, float]]

    @property
    def classes(self) -> str:
        return f"c{self.style % STYLES}"


def ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose low and high, about five."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]  # 0.3, not 0.30000000000000004


@dataclass(frozen=True)
class Frame:
    """Where a point of the data lies in the chart."""

    last: float  # epoch
    low: float
    high: float

    def across(self, x: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (x - 1) / (self.last - 1), 1)

    def down(self, y: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (self.high - y) / (self.high - self.low), 1)


def line_chart(key: str, title: str, about: str, lines: Sequence[Line], unit: str, marks: Sequence[float]) -> Markup:
    """Curves over epochs; `marks` are the ends of warm-up, `key` tells apart the drawings of one page."""
    points = [point for line in lines for point in line.points]
    levels = ticks(min(y for _, y in points), max(y for _, y in points))
    frame = Frame(max(2, *(x for x, _ in points)), levels[0], levels[-1])
    parts = [*axes(frame, levels, unit), *warmup_marks(frame, marks)]
    for line in lines:
        places = " ".join(f"{frame.across(x)},{frame.down(y)}" for x, y in line.points)
        parts.append(f'<polyline class="line {line.classes}" points="{places}"/>')
        if len(points) <= MOST_DOTS or len(line.points) == 1:
            parts += dots(frame, line, unit)
    return picture(key, title, about, WIDTH, HEIGHT, "chart", parts)


def axes(frame: Frame, levels: Sequence[float], unit: str) -> list[str]:
    """Grid lines with their values, and the epochs below."""
    parts = []
    for level in levels:
        y = frame.down(level)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{y + 4:.1f}">{level:g}{escape(unit)}</text>')
    epochs = {1} | {round(x) for x in ticks(1, frame.last) if 1 <= x <= frame.last and x == round(x)}
    below = HEIGHT - BOTTOM + 16
    parts += [f'<text class="middle" x="{frame.across(x)}" y="{below}">{x}</text>' for x in sorted(epochs)]
    return [*parts, f'<text class="middle" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 5}">epoch</text>']


def warmup_marks(frame: Frame, marks: Sequence[float]) -> list[str]:
    """A line after the last epoch of each warm-up; the first is named."""
    places = [frame.across(mark + 0.5) for mark in marks]
    parts = [f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>' for x in places]
    if places:
        side, x = ("end", places[0] - 4) if places[0] > WIDTH / 2 else ("start", places[0] + 4)
        parts.append(f'<text class="{side}" x="{x:.1f}" y="{TOP - 8}">end of warm-up</text>')
    return parts


def dots(frame: Frame, line: Line, unit: str) -> list[str]:
    """Points that say their value under the pointer."""
    return [
        f'<circle class="dot {line.classes}" cx="{frame.across(x)}" cy="{frame.down(y)}" r="2.5">'
        f"<title>{escape(f'{line.label}, epoch {x:g}: {y:.4g}{unit}')}</title></circle>"
        for x, y in line.points
    ]


def picture(key: str, title: str, about: str, width: int, height: int, kind: str, parts: Sequence[str]) -> Markup:
    """A drawing that says what it is also to those who cannot see it."""
    return Markup(
        f'<svg class="{kind}" role="img" viewBox="0 0 {width} {height}" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">{escape(title)}</title><desc id="{key}-d">{escape(about)}</desc>{"".join(parts)}</svg>'
    )


def swatch(line: Line) -> Markup:
    """A piece of a curve, for the legend."""
    return Markup(
        '<svg class="swatch" aria-hidden="true" viewBox="0 0 28 10">'
        f'<line class="line {line.classes}" x1="0" x2="28" y1="5" y2="5"/></svg>'
    )


def bar(share: float, low: float, high: float, longest: float) -> Markup:
    """A share as a bar with its interval, as wide as its place; the numbers stand beside it."""
    full, start, stop = (f"{100 * min(max(x / longest, 0), 1):.1f}%" for x in (share, low, high))
    return Markup(
        '<svg class="bar" aria-hidden="true" width="100%" height="16">'
        f'<rect class="fill" x="0" y="2" height="12" width="{full}"/>'
        f'<line class="range" x1="{start}" x2="{stop}" y1="8" y2="8"/>'
        f'<line class="range" x1="{start}" x2="{start}" y1="4" y2="12"/>'
        f'<line class="range" x1="{stop}" x2="{stop}" y1="4" y2="12"/></svg>'
    )


def matrix_map(key: str, title: str, about: str, matrix: Array) -> Markup:
    """A square map of a large table: the darker, the more; only its largest entries beside the diagonal are drawn."""
    classes = len(matrix)
    beside = matrix * (1 - np.eye(classes))
    chosen = np.argsort(-beside, axis=None, kind="stable")[:MOST_CELLS]
    largest = max(float(beside.max()), 1e-12)
    parts = [
        f'<rect class="ground" x="0" y="0" width="{classes}" height="{classes}"/>',
        f'<line class="diagonal" x1="0" y1="0" x2="{classes}" y2="{classes}"/>',
    ]
    for place in chosen:
        row, column = divmod(int(place), classes)
        depth = beside[row, column] / largest
        if depth >= 0.02:
            parts.append(f'<rect class="cell" x="{column}" y="{row}" width="1" height="1" fill-opacity="{depth:.2f}"/>')
    return picture(key, title, about, classes, classes, "map", parts)
