"""Drawings of the page: numbers in, SVG out. Colours are classes of the page's style sheet, in light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from labelsieve.report.records import Array

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


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers that enclose low and high, about as many as wanted."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    raw = (high - low) / wanted
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 10) for k in range(first, last + 1)]


def line_chart(key: str, title: str, about: str, lines: Sequence[Line], unit: str, marks: Sequence[float]) -> Markup:
    """Curves over epochs; `marks` are the ends of warm-up, `key` tells apart the drawings of one page."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    y_ticks = ticks(min(ys), max(ys))
    low, high = y_ticks[0], y_ticks[-1]
    most = max(max(xs), 2)

    def across(x: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (x - 1) / (most - 1), 1)

    def down(y: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low), 1)

    parts = []
    for y in y_ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down(y)}" y2="{down(y)}"/>')
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{down(y) + 4:.1f}">{y:g}{escape(unit)}</text>')
    for x in sorted({round(x) for x in ticks(1, most) if 1 <= x <= most and x == round(x)} | {1}):
        parts.append(f'<text class="middle" x="{across(x)}" y="{HEIGHT - BOTTOM + 16}">{x:g}</text>')
    parts.append(f'<text class="middle" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 5}">epoch</text>')
    for number, mark in enumerate(marks):
        x = across(mark + 0.5)
        parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        if number == 0:
            side, place = ("end", x - 4) if x > WIDTH / 2 else ("start", x + 4)
            parts.append(f'<text class="{side}" x="{place:.1f}" y="{TOP - 8}">end of warm-up</text>')
    for line in lines:
        path = " ".join(f"{across(x)},{down(y)}" for x, y in line.points)
        parts.append(f'<polyline class="line {line.classes}" points="{path}"/>')
        for x, y in line.points if len(xs) <= MOST_DOTS else line.points[:1] if len(line.points) == 1 else ():
            said = f"{line.label}, epoch {x:g}: {y:.4g}{unit}"
            dot = f'<circle class="dot {line.classes}" cx="{across(x)}" cy="{down(y)}" r="2.5">'
            parts.append(f"{dot}<title>{escape(said)}</title></circle>")
    return picture(key, title, about, WIDTH, HEIGHT, "chart", parts)


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
    parts = ['<rect class="ground" x="0" y="0" width="{0}" height="{0}"/>'.format(classes)]
    parts.append(f'<line class="diagonal" x1="0" y1="0" x2="{classes}" y2="{classes}"/>')
    for place in chosen:
        row, column = divmod(int(place), classes)
        depth = beside[row, column] / largest
        if depth >= 0.02:
            parts.append(f'<rect class="cell" x="{column}" y="{row}" width="1" height="1" fill-opacity="{depth:.2f}"/>')
    return picture(key, title, about, classes, classes, "map", parts)
