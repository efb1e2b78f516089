"""Text for tables and terminals: .csv and label files, escaping of names, formatting of numbers, plain equations."""

import csv
import math
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

_FORMULA = re.compile(r"'*[=+\-@\t\r\n\0]")  # spreadsheets run cells that start like this
_ESCAPED = re.compile(r"'+[=+\-@\t\r\n\0]")


def escape_cell(text: str) -> str:
    """Return the text for a cell of a .csv file; an apostrophe keeps spreadsheets from running it as a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def unescape_cell(text: str) -> str:
    """Undo `escape_cell`."""
    return text[1:] if _ESCAPED.match(text) else text


def csv_file(rows: Iterable[Iterable[object]]) -> bytes:
    """Return rows of cells as a .csv file, with \\n at the end of each line."""
    lines = _Lines()
    csv.writer(lines).writerows(rows)
    return "".join(lines).encode("utf-8", "surrogateescape")


class _Lines(list[str]):
    """Collects lines that end in \\r\\n: with \\n alone, csv would not quote the \\r in a cell."""

    def write(self, line: str) -> None:
        self.append(line.removesuffix("\r\n") + "\n")


def label_file(
    labels: Sequence[str],
    names: Sequence[str] | None = None,
    decided: Iterable[bool] | None = None,
    before: Sequence[str] | None = None,
) -> bytes:
    """Return a label file (.csv) for `labelsieve train --labels`, with a row for each sample.

    Names that repeat, or are the positions, do not identify the samples better than the positions, and are left out.
    """
    positions = list(map(str, range(len(labels))))
    named = names is not None and len(set(names)) == len(names) and list(names) != positions
    columns: dict[str, Sequence[str] | None] = {
        "index": positions,
        "name": names if named else None,
        "label": labels,
        "decided": None if decided is None else ["true" if flag else "false" for flag in decided],
        "given_label": before,
    }
    written = {name: cells for name, cells in columns.items() if cells is not None}
    rows = zip(*written.values(), strict=True)
    return csv_file(chain([written], (map(escape_cell, row) for row in rows)))


def printable(text: str) -> str:
    """Return the text for a terminal, with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def listed(names: Iterable[str], limit: int) -> str:
    """Return names separated by commas, with the number of those beyond the limit."""
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def parse_integer(text: str) -> int:
    """Return the integer that a text is; raise ValueError for 1_000, for digits of other scripts, and for huge ones."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        raise ValueError(f"{text!r} is not an integer")
    return int(text)


def parse_number(text: str) -> float:
    """Return the number that a text is; raise ValueError for 1_000 and for digits of other scripts."""
    if "_" in text or not text.strip().isascii():
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def percent(share: float) -> str:
    """Format a share: 38%, 2.9%, under 0.1%."""
    if 0 < share < 0.001:
        return "under 0.1%"
    return f"{100 * share:.1f}%" if 0 < share < 0.0995 else f"{100 * share:.0f}%"


def format_quality(quality: float) -> str:
    """Format a label quality as a whole percentage; it is never certain."""
    if quality < 0.01:
        return "under 1%"
    return "over 99%" if quality > 0.99 else f"{100 * quality:.0f}%"


def rounded(value: Any) -> Any:
    """Round a float to six significant digits (13.09 for 13.09000015258789); return anything else unchanged."""
    if not isinstance(value, float) or not math.isfinite(value) or abs(value) >= 1e15:
        return value
    near = value if value.is_integer() else float(f"{value:.6g}")
    return int(near) if near.is_integer() else near


def duration(seconds: float) -> str:
    """Format a duration: 40 s, 12 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plain_equations(page: str) -> str:
    """Return a page of Markdown for a terminal: the LaTeX of ```math blocks and of $`...`$ becomes plain text."""
    page = re.sub(r"```math\n(.*?)\n```", lambda match: f"    {_plain(match[1])}", page, flags=re.S)
    return re.sub(r"\$`(.*?)`\$", lambda match: _plain(match[1]), page)


def _plain(latex: str) -> str:
    """Return an equation as text, such as "p[y] - λ Σ_j m[y,j] p[j]"; it knows the LaTeX of the pages of methods."""
    text = re.sub(r"(?<!\\sum)_(?:(\w)|\{([^{}]*)\})", lambda match: f"[{match[1] or match[2]}]", latex)
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", lambda match: " / ".join(map(_grouped, match.groups())), text)
    text = text.replace(r"\sum", "Σ").replace(r"\sim", "~").replace(r"\quad", "").replace(r"\arg\max", "argmax")
    return text.replace("^2", "²").replace("\\", "").replace("{", "(").replace("}", ")")


def _grouped(text: str) -> str:
    """Return a numerator or denominator, in brackets if it has several terms."""
    return text if re.fullmatch(r"[^ ]+", text) else f"({text})"
