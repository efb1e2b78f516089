"""Tables of finished runs: statistics over seeds, comparisons of methods, output as text, Markdown, LaTeX or CSV."""

import csv
import io
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labelsieve.errors import InputError, nearest
from labelsieve.files import writing
from labelsieve.runs.read import Run

Rows = list[list[str]]  # the first row is the header
UNKNOWN = "–"
STUDENT_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # 97.5% quantiles for 2, 3, ... values
MOST_COMPARED = 6  # methods; with more, only the paper's pairs are compared
# The paper's claims: each method is compared with its baseline.
PAIRS = (
    ("mentornet-prop", "default"),
    ("mentornet-prop", "mentornet"),
    ("sl-prop", "sl"),
    ("selfie-prop", "selfie"),
    ("co-teaching (all)", "co-teaching"),
)
LATEX_ESCAPES = {character: f"\\{character}" for character in "%&_#${}"} | {
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
    """Tables under one title with notes below. Remarks concern the runs and appear in LaTeX only as comments."""

    title: str
    blocks: Sequence[Block]
    notes: Sequence[str]
    remarks: Sequence[str] = ()


# ---- statistics


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error (n - 1 in the deviation), which is NaN for a single value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the mean of at least two values by Student's t; slightly wide for many values."""
    mean, error = mean_and_error(values)
    reach = STUDENT_T[min(len(values) - 2, len(STUDENT_T) - 1)] * error
    return mean - reach, mean + reach


def plus_minus(values: Iterable[float], digits: int = 1, sign: str = "") -> str:
    """Format a mean with its standard error: 12.3 ± 0.4. `sign`: "+" to show the sign of the mean."""
    values = list(values)
    if not values:
        return UNKNOWN
    mean, error = mean_and_error(values)
    return f"{mean:{sign}.{digits}f}" + ("" if math.isnan(error) else f" ± {error:.{digits}f}")


# ---- comparisons of methods


def comparison(groups: Mapping[str, Sequence[Run]]) -> Rows:
    """Return a header and a row per method, with means over its runs."""
    table = [["method", "best test error %", "last test error %", "kept samples clean %", "seeds"]]
    for method, runs in groups.items():
        best, last = ([run.end[name] for run in runs if name in run.end] for name in ("best", "last"))
        clean = [100 * run.epochs[-1]["precision"] for run in runs if run.epochs[-1]["precision"] is not None]
        table.append([method, plus_minus(best), plus_minus(last), plus_minus(clean), str(len(runs))])
    return table


def pairs(
    errors: Mapping[str, Mapping[int, float]], of: Sequence[tuple[str, str]] = PAIRS
) -> list[tuple[str, str, list[float]]]:
    """Return method, baseline and the differences of their errors for the seeds that both have.

    Args:
        errors: Error by seed of each method.
        of: The pairs to look for; those without a common seed are left out.
    """
    found = []
    for method, base in of:
        bases, own = errors.get(base, {}), errors.get(method, {})
        differences = [own[seed] - bases[seed] for seed in sorted(own.keys() & bases.keys())]
        if differences:
            found.append((method, base, differences))
    return found


def pairs_among(methods: Sequence[str], against: str | None = None) -> list[tuple[str, str]]:
    """Return the pairs of method and baseline to compare.

    With `against`, every other method is compared with that one. Otherwise: the paper's pairs, and among at most
    MOST_COMPARED methods, those that are in none of these pairs with the first method.
    """
    if against is not None:
        return [(method, against) for method in methods if method != against]
    papers = [pair for pair in PAIRS if set(pair) <= set(methods)]
    paired = {name for pair in papers for name in pair}
    others = methods[1:] if len(methods) <= MOST_COMPARED else ()
    return [*papers, *((method, methods[0]) for method in others if method not in paired)]


def paired_differences(groups: Mapping[str, Sequence[Run]], against: str | None = None) -> list[str]:
    """Return a line per pair of methods: differences of the last test error on the same noise and seed."""
    errors = {method: {run.spec["seed"]: run.end["last"] for run in runs} for method, runs in groups.items()}
    lines = []
    for method, base, differences in pairs(errors, pairs_among(list(groups), against)):
        each = ", ".join(f"{difference:+.1f}" for difference in differences)
        lines.append(f"{method} minus {base}, last test error seed by seed: {each}; mean {plus_minus(differences)}")
    return lines


def run_by_run(groups: Mapping[str, Sequence[Run]], against: str) -> Rows:
    """Return a header and a row per run with one number per cell, for other programs."""
    header = ["method", "seed", "best test error", "last test error", "mean of the last ten", "kept samples clean"]
    base = {run.spec["seed"]: run.end["last"] for run in groups.get(against, ())}
    table = [[*header, "against", "last minus that"]]
    for method, runs in groups.items():
        for run in runs:
            clean, seed = run.epochs[-1]["precision"], run.spec["seed"]
            errors = [f"{run.end[name]:.2f}" for name in ("best", "last", "last_ten")]
            compared = method != against and seed in base
            difference = [against, f"{run.end['last'] - base[seed]:.2f}"] if compared else ["", ""]
            table.append([method, str(seed), *errors, "" if clean is None else f"{100 * clean:.2f}", *difference])
    return table


# ---- output


def check_output(form: str, save: Path | None) -> None:
    """Raise InputError for an unknown format or a file that cannot be written, before any run starts."""
    if form not in FORMATS:
        raise InputError(f"unknown format {form!r}: {nearest(form, FORMATS)}")
    if save is not None and (save.is_dir() or not save.absolute().parent.is_dir()):
        raise InputError(f"cannot write {save}: it is a folder, or its folder does not exist")


def output(document: Document, form: str, save: Path | None) -> None:
    """Write the document to the file `save`, or to standard output."""
    text = render(document, form)
    if save is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        with writing(save) as file:
            file.write(text.encode())
        print(f"table: {save}")


def render(document: Document, form: str) -> str:
    """Return the document as a string in one of FORMATS."""
    return FORMATS[form](document)


def markdown(table: Sequence[Sequence[str]]) -> str:
    """Return a table, header first, as Markdown."""
    header, *rows = table
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _as_text(document: Document) -> str:
    below = [*document.notes, *document.remarks]
    titled = [[*([block.title] if block.title else []), *_aligned(block.rows)] for block in document.blocks]
    return "\n\n".join("\n".join(part) for part in ([document.title], *titled, below) if part) + "\n"


def _aligned(rows: Rows) -> list[str]:
    """Return lines with aligned columns and a rule below the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    header, *body = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return [header, "  ".join("-" * width for width in widths), *body]


def _as_markdown(document: Document) -> str:
    parts = [f"**{document.title}**"]
    for block in document.blocks:
        parts += [block.title] if block.title else []
        parts.append(markdown(block.rows))
    if below := [*document.notes, *document.remarks]:
        parts.append("\n".join(f"- {note}" for note in below))
    return "\n\n".join(parts) + "\n"


def _as_latex(document: Document) -> str:
    """Return LaTeX for \\input; it needs the package booktabs."""
    lines = [r"% needs \usepackage{booktabs}", *(f"% {remark}" for remark in document.remarks)]
    for number, block in enumerate(document.blocks):
        title = document.title + (f": {block.title}" if block.title else "")
        last = number == len(document.blocks) - 1
        lines += _latex_table(block.rows, title, document.notes if last else ())
    return "\n".join(lines) + "\n"


def _latex_table(rows: Rows, title: str, notes: Sequence[str]) -> list[str]:
    header, *body = [" & ".join(map(_latex_cell, row)) + r" \\" for row in rows]
    below = [rf"\par\smallskip {_latex_cell(note)}." for note in notes]
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex_cell(title)}}}",
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


def _latex_cell(words: str) -> str:
    """Escape special characters and set signed numbers in math mode."""
    escaped = "".join(LATEX_ESCAPES.get(character, character) for character in words)
    return re.sub(r"(?<![\w.])([+-]\d+(?:\.\d+)?)", r"$\1$", escaped)


def _as_csv(document: Document) -> str:
    """Return the first table alone, for other programs."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(document.blocks[0].rows)
    return file.getvalue()


FORMATS = {"text": _as_text, "markdown": _as_markdown, "latex": _as_latex, "csv": _as_csv}
