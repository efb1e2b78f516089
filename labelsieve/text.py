"""Text in the cells of tables and on terminals: whatever names hold, nothing may act on it; and numbers."""

import math
import re
from typing import Any

ACTS = re.compile(r"'*[=+\-@\t\r\n\0]")  # how a spreadsheet knows a formula
GUARDED = re.compile(r"'+[=+\-@\t\r\n\0]")


def guarded(text: str) -> str:
    """The text for a cell of a .csv file: what a spreadsheet would run gets an apostrophe."""
    return f"'{text}" if ACTS.match(text) else text


def unguarded(text: str) -> str:
    """What `guarded` was given."""
    return text[1:] if GUARDED.match(text) else text


def printable(text: str) -> str:
    """The text for a terminal, with control characters spelt out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def percent(share: float) -> str:
    """As a person would say it: 38%, 2.9%, under 0.1%."""
    if 0 < share < 0.001:
        return "under 0.1%"
    return f"{100 * share:.1f}%" if 0 < share < 0.0995 else f"{100 * share:.0f}%"


def rounded(value: Any) -> Any:
    """A number as people read it, of at most six digits that matter (13.09 for 13.09000015258789); whole ones in full.

    What is no number stays as it is.
    """
    if not isinstance(value, float) or not math.isfinite(value) or abs(value) >= 1e15:
        return value
    near = value if value.is_integer() else float(f"{value:.6g}")
    return int(near) if near.is_integer() else near
