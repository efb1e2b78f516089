"""Our numbers next to the paper's: the result of a table's cell, and the rows of the tables that compare them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from labelsieve.errors import InputError
from labelsieve.paper.tables import Published
from labelsieve.runs.read import Run
from labelsieve.runs.tables import Block, Rows, mean_and_error, pairs, plus_minus

MOST_LINES = 20  # cells shown one per line; more are shown with a column per noise
NOT_RUN = "not run"
SHORT = {"yes": "in", "no": "out"}  # agreement in wide tables
LEGEND = (
    "difference: ours minus paper; in: within two standard errors of the difference, out: not, ?: cannot be judged "
    "because n is too small or the paper prints no standard error"
)


@dataclass(frozen=True)
class CellResult:
    """One cell of a table: the errors of our runs and the printed error, in percent."""

    data: str
    method: str
    noise: str | None
    rate: float
    errors: Mapping[int, float]  # by seed
    published: Published | None = None
    digits: int = 1  # of the printed error
    runs: Mapping[int, Run] = field(default_factory=dict)  # by seed

    @property
    def column(self) -> str:
        return f"{self.noise} {100 * self.rate:g}%" if self.noise else "its own"

    @property
    def name(self) -> str:
        return f"{self.data} {self.column} {self.method}"

    @property
    def difference(self) -> float | None:
        """Mean of our errors minus the printed error; None if one of them is missing."""
        if self.published is None or not self.errors:
            return None
        return mean_and_error(list(self.errors.values()))[0] - self.published[0]


def dominant_first(result: CellResult) -> tuple[str, int, float]:
    """Return a sort key: by data, then noise with a dominant class (pair, mixed) before symmetry noise, then rate."""
    kinds = ["pair", "mixed", "symmetry", result.noise]
    return result.data, kinds.index(result.noise), result.rate


def measured_error(run: Run, measure: str) -> float:
    """Return an error of a run in percent: "best", "chosen" (of the delivered epoch), or "round 1" and so on."""
    name, _, number = measure.partition(" ")
    if name == "best":
        return float(run.end["best"])
    last = run.epochs[-1].get("round")
    wanted = int(number) if name == "round" else last
    rows = [row for row in run.epochs if row.get("round") == wanted]
    if name == "chosen":
        rows = [row for row in rows if row["epoch"] == run.end["chosen_epoch"]]
    if not rows:
        raise InputError(f"a finished run of {run.method}, seed {run.spec['seed']}, has no {measure}")
    return min(float(row["test_error"]) for row in rows)


def format_ours(result: CellResult) -> str:
    """Format our errors: 12.34 ± 0.12 (3)."""
    return f"{plus_minus(result.errors.values(), 2)} ({len(result.errors)})" if result.errors else NOT_RUN


def format_paper(result: CellResult) -> str:
    """Format the printed error: 12.2 ± 0.12."""
    if result.published is None:
        return ""
    error, spread = result.published
    return f"{error:.{result.digits}f}" + ("" if spread is None else f" ± {spread:.2f}")


def format_difference(result: CellResult) -> str:
    """Format our mean minus the printed error: +0.14."""
    return "" if result.difference is None else f"{result.difference:+.2f}"


def agreement(result: CellResult) -> str:
    """Return "yes" if the difference is within two of its standard errors (ours and the paper's combined), or "no".

    The reason is returned where this cannot be judged, and an empty string where a number is missing.
    """
    if result.published is None or result.difference is None:
        return ""
    own, spread = mean_and_error(list(result.errors.values()))[1], result.published[1]
    if math.isnan(own):
        return "n too small"
    if spread is None:
        return "no spread printed"
    return "yes" if abs(result.difference) <= 2 * math.hypot(own, spread) + 1e-9 else "no"


def comparison_blocks(results: Sequence[CellResult], by_noise: bool) -> list[Block]:
    """Return a table with a line per cell or, of many cells, tables with a column per noise, split `by_noise` too."""
    if len(results) <= MOST_LINES or len({result.column for result in results}) == 1:
        return [Block("", long_form(results))]
    groups: dict[str, list[CellResult]] = {}
    for result in results:
        title = f"{result.data}, {result.noise or 'its own'} noise" if by_noise else result.data
        groups.setdefault(title, []).append(result)
    return [Block(title, _wide_form(group)) for title, group in groups.items()]


def paired_blocks(results: Sequence[CellResult]) -> list[Block]:
    """Return a table per dataset of the paper's methods minus their baselines, on the same noise and seed."""
    by_data: dict[str, list[CellResult]] = {}
    for result in results:
        by_data.setdefault(result.data, []).append(result)
    every = {data: paired_rows(group) for data, group in by_data.items()}
    return [Block(f"{data}, differences on the same noise and seed", rows) for data, rows in every.items() if rows[1:]]


def paired_rows(results: Sequence[CellResult]) -> Rows:
    """Return a header and a row per noise and pair of methods, for the cells of one dataset."""
    groups: dict[str, dict[str, Mapping[int, float]]] = {}
    for result in results:
        groups.setdefault(result.column, {})[result.method] = result.errors
    rows = [["pair", "noise", "seed by seed", "mean (n)"]]
    for column, errors in groups.items():
        for method, base, differences in pairs(errors):
            each = ", ".join(f"{one:+.2f}" for one in differences)
            mean = f"{plus_minus(differences, 2, '+')} ({len(differences)})"
            rows.append([f"{method} minus {base}", column, each, mean])
    return rows


def long_form(results: Sequence[CellResult]) -> Rows:
    """Return a header and a row per cell."""
    header = ["data", "method", "noise", "ours (n)"]
    rows = [[result.data, result.method, result.column, format_ours(result)] for result in results]
    if all(result.published is None for result in results):
        return [header, *rows]
    papers = [[format_paper(result), format_difference(result), agreement(result)] for result in results]
    more = ["paper", "ours - paper", "within 2 s.e."]
    return [[*header, *more], *([*row, *paper] for row, paper in zip(rows, papers, strict=True))]


def csv_form(results: Sequence[CellResult]) -> Rows:
    """Return a header and a row per cell with one number in each column, for other programs."""
    header = ["data", "method", "noise", "rate", "n", "mean", "standard error", "trials"]
    rows = [[*header, "paper", "paper's standard error", "difference", "within two standard errors"]]
    for result in results:
        own = mean_and_error(list(result.errors.values())) if result.errors else (math.nan, math.nan)
        numbers = ["" if math.isnan(number) else f"{number:.2f}" for number in own]
        trials = " ".join(f"{result.errors[seed]:.2f}" for seed in sorted(result.errors))
        error, spread = result.published or (None, None)
        printed = ["" if error is None else f"{error:.{result.digits}f}", "" if spread is None else f"{spread:.2f}"]
        judged = agreement(result) if result.errors else NOT_RUN
        rows.append([result.data, result.method, result.noise or "", f"{result.rate:g}", str(len(result.errors))])
        rows[-1] += [*numbers, trials, *printed, format_difference(result).removeprefix("+"), judged]
    return rows


def _wide_form(results: Sequence[CellResult]) -> Rows:
    """Return a header with a column per noise, and up to three rows per method: ours, paper, difference."""
    columns = list(dict.fromkeys(result.column for result in results))
    at = {(result.method, result.column): result for result in results}
    rows = [["method", "", *columns]]
    for method in dict.fromkeys(result.method for result in results):
        found = [at.get((method, column)) for column in columns]
        rows.append([method, "ours (n)", *(format_ours(cell) if cell else "" for cell in found)])
        rows.append(["", "paper", *(format_paper(cell) if cell else "" for cell in found)])
        if any(cell and cell.difference is not None for cell in found):
            rows.append(["", "difference", *(_short_difference(cell) if cell else "" for cell in found)])
    return rows


def _short_difference(result: CellResult) -> str:
    """Format the difference with its agreement: +0.14 in."""
    return "" if result.difference is None else f"{result.difference:+.2f} {SHORT.get(agreement(result), '?')}"
