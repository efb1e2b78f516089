"""Text in the cells of tables and on terminals: whatever names hold, nothing may act on it."""

import re

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
