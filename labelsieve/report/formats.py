"""Tables of words as text, Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from labelsieve.report.comparison import markdown

Rows = list[list[str]]  # the first is the header
SPECIAL = {character: f"\\{character}" for character in "%&_#${}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}


@dataclass(frozen=True)
class Block:
    """One table; the title may be empty."""

    title: str
    rows: Rows


@dataclass(frozen=True)
class Document:
    """Tables under one title, with notes below; remarks are for who makes them, not for a paper's readers."""

    title: str
    blocks: Sequence[Block]
    notes: Sequence[str]
    remarks: Sequence[str] = ()


def written(document: Document, form: str) -> str:
    """The document in one of FORMATS."""
    return FORMATS[form](document)


def text(document: Document) -> str:
    """For people at a terminal."""
    below = [*document.notes, *document.remarks]
    titled = [[*([block.title] if block.title else []), *aligned(block.rows)] for block in document.blocks]
    return "\n\n".join("\n".join(part) for part in ([document.title], *titled, below) if part) + "\n"


def aligned(rows: Rows) -> list[str]:
    """Columns as wide as they need; a rule below the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    header, *body = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return [header, "  ".join("-" * width for width in widths), *body]


def as_markdown(document: Document) -> str:
    parts = [f"**{document.title}**"]
    for block in document.blocks:
        parts += [block.title] if block.title else []
        parts.append(markdown(block.rows))
    if below := [*document.notes, *document.remarks]:
        parts.append("\n".join(f"- {note}" for note in below))
    return "\n\n".join(parts) + "\n"


def latex(document: Document) -> str:
    """To be read in with \\input; needs the package booktabs."""
    lines = [r"% needs \usepackage{booktabs}", *(f"% {remark}" for remark in document.remarks)]
    for number, block in enumerate(document.blocks):
        title = document.title + (f": {block.title}" if block.title else "")
        last = number == len(document.blocks) - 1
        lines += latex_table(block.rows, title, document.notes if last else ())
    return "\n".join(lines) + "\n"


def latex_table(rows: Rows, title: str, notes: Sequence[str]) -> list[str]:
    header, *body = [" & ".join(map(latex_cell, row)) + r" \\" for row in rows]
    below = [rf"\par\smallskip {latex_cell(note)}." for note in notes]
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_cell(title)}}}",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\begin{{tabular}}{{{'l' * len(rows[0])}}}",
        r"\toprule",
        header,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *below,
        r"\end{table}",
    ]


def latex_cell(words: str) -> str:
    """Words as LaTeX sets them; a number's minus is a minus."""
    escaped = "".join(SPECIAL.get(character, character) for character in words)
    return re.sub(r"(?<![\w.])([+-]\d+(?:\.\d+)?)", r"$\1$", escaped)


def comma_separated(document: Document) -> str:
    """The first table alone, for other programs."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(document.blocks[0].rows)
    return file.getvalue()


FORMATS = {"text": text, "markdown": as_markdown, "latex": latex, "csv": comma_separated}
