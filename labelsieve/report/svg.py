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
CLASS_COLOURS = 12  # distinct colours of classes; the last number is that of all other classes
GRAPH_WIDTH, GRAPH_HEIGHT, GRAPH_RADIUS = 480, 360, 125
NODE_RADIUS = 8
LABELS_AT = (0.4, 0.55, 0.28, 0.7)  # of the way of an arrow, best first: off the middle, where arrows cross
LABEL_ROOM = 26  # around a label or node
THIN, THICK = 1.5, 9.0  # widths of arrows
MAX_NODE_NAME = 15  # characters
MARGIN = 14  # around the points of a scatter chart


_Edge = tuple[int, int, int]  # of a graph: from, to, number


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


@dataclass(frozen=True)
class Point:
    """A point of a scatter chart: its place, the colour of its class, whether it is marked, index and name."""

    x: float
    y: float
    colour: int
    marked: bool
    index: int
    name: str


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


def scatter(key: str, title: str, about: str, points: Sequence[Point]) -> Markup:
    """Draw points, the marked ones above the others; their names are shown under the pointer."""
    low = min(point.y for point in points)
    width = round(max(point.x for point in points)) + 2 * MARGIN
    height = round(max(point.y for point in points) - low) + 2 * MARGIN
    parts = []
    for marked, kind, radius in ((False, "point", 4), (True, "point marked", 5.5)):
        for colour in range(CLASS_COLOURS + 1):
            drawn = [point for point in points if point.marked == marked and point.colour == colour]
            circles = (
                f'<circle cx="{point.x + MARGIN:g}" cy="{height - MARGIN - point.y + low:g}" r="{radius}" '
                f'data-index="{point.index}"><title>{escape(point.name)}</title></circle>'
                for point in drawn
            )
            if drawn:
                parts.append(f'<g class="{kind} k{colour}">{"".join(circles)}</g>')
    return _svg_element(key, title, about, width, height, "points", parts)


def point_swatch(colour: int, marked: bool = False) -> Markup:
    """Draw a point for the legend."""
    kind, radius = ("point marked", 4.5) if marked else ("point", 4)
    return Markup(
        f'<svg class="dot-swatch" aria-hidden="true" viewBox="0 0 12 12"><g class="{kind} k{colour}">'
        f'<circle cx="6" cy="6" r="{radius}"/></g></svg>'
    )


def directed_graph(key: str, title: str, about: str, names: Sequence[str], edges: Sequence[_Edge]) -> Markup:
    """Draw nodes on a circle and arrows between them, given as (from, to, number); the wider the larger the number.

    Arrows bend to the side, so that those of both directions are seen.
    """
    most = max(number for _, _, number in edges)
    angles = [2 * math.pi * k / len(names) - math.pi / 2 for k in range(len(names))]
    places = [
        complex(GRAPH_WIDTH / 2 + GRAPH_RADIUS * math.cos(a), GRAPH_HEIGHT / 2 + GRAPH_RADIUS * math.sin(a))
        for a in angles
    ]
    parts, numbers, taken = [], [], list(places)
    for start, end, number in sorted(edges, key=lambda edge: -edge[2]):
        label = f"{names[start]} → {names[end]}: {number:,}"
        arrow, free = _arrow(places[start], places[end], THIN + (THICK - THIN) * number / most)
        at = max(free, key=lambda place: min([LABEL_ROOM, *(abs(place - other) for other in taken)]))
        taken.append(at)
        parts.append(f"<g>{arrow}<title>{escape(label)}</title></g>")
        numbers.append(f'<text class="middle number" x="{at.real:.1f}" y="{at.imag + 4:.1f}">{number:,}</text>')
    for name, place, angle in zip(names, places, angles, strict=True):
        x, y = place.real + 16 * math.cos(angle), place.imag + 18 * math.sin(angle) + 4
        side = "middle" if abs(math.cos(angle)) < 0.3 else "start" if math.cos(angle) > 0 else "end"
        short = name if len(name) <= MAX_NODE_NAME else name[: MAX_NODE_NAME - 1] + "…"
        numbers.append(f'<circle class="node" cx="{place.real:.1f}" cy="{place.imag:.1f}" r="{NODE_RADIUS}"/>')
        numbers.append(
            f'<text class="{side} name" x="{x:.1f}" y="{y:.1f}">{escape(short)}<title>{escape(name)}</title></text>'
        )
    return _svg_element(key, title, about, GRAPH_WIDTH, GRAPH_HEIGHT, "chart graph", [*parts, *numbers])


def _arrow(start: complex, end: complex, width: float) -> tuple[str, list[complex]]:
    """Draw a bent arrow between two nodes, and return it with places for its number, best first."""
    length = abs(end - start)
    control = (start + end) / 2 + 0.22 * (end - start) * 1j
    head = 5 + 1.6 * width
    arriving, leaving = (end - control) / abs(end - control), (control - start) / abs(control - start)
    tip, tail = end - arriving * (NODE_RADIUS + 2), start + leaving * (NODE_RADIUS + 1)
    base = tip - arriving * min(head, length / 3)
    corners = (tip, base + arriving * 1j * head / 2, base - arriving * 1j * head / 2)
    along = [tail * (1 - t) ** 2 + 2 * control * t * (1 - t) + base * t**2 for t in LABELS_AT]
    curve = f"M{_place(tail)}Q{_place(control)} {_place(base)}"
    drawn = f'<path class="edge" d="{curve}" stroke-width="{width:.1f}"/>'
    drawn += f'<polygon class="head" points="{" ".join(map(_place, corners))}"/>'
    return drawn, along


def _place(point: complex) -> str:
    return f"{point.real:.1f},{point.imag:.1f}"


def largest_off_diagonal(matrix: Array, limit: int) -> list[tuple[int, int, float]]:
    """Return the largest positive entries off the diagonal, in descending order: row, column, value."""
    off_diagonal = matrix * (1 - np.eye(len(matrix)))
    order = np.argsort(-off_diagonal, axis=None, kind="stable")[:limit]
    places = (divmod(int(position), len(matrix)) for position in order)
    return [(row, column, float(off_diagonal[row, column])) for row, column in places if off_diagonal[row, column] > 0]
