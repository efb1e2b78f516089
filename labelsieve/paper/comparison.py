"""Our numbers beside the printed ones: what is compared, and the rows of the tables that show it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labelsieve.errors import InputError
from labelsieve.runs.read import Run
from labelsieve.runs.tables import Block, Rows, mean_and_error, pairs

MANY = 20  # cells; more are shown with a column per noise
NOT_RUN = "not run"
MARK = {"yes": "in", "no": "out"}  # of a difference, where there is little room
LEGEND = (
    "difference: ours minus paper; in: within two standard errors of the difference, out: not, ?: cannot be said "
    "because n is too small or no spread is printed"
)


@dataclass(frozen=True)
class Entry:
    """One cell: the errors that our runs had, and the one that is printed."""

    data: str
    method: str
    noise: str | None
    rate: float
    errors: Mapping[int, float]  # by seed
    published: tuple[float, float | None] | None = None  # with its standard error
    digits: int = 1  # after the point, as printed

    @property
    def column(self) -> str:
        return f"{self.noise} {100 * self.rate:g}%" if self.noise else "its own"


def dominant_first(entry: Entry) -> tuple[str, int, float]:
    """To sort by: the data, the noise, where one class dominates before where none does, and its rate."""
    kinds = ["pair", "mixed", "symmetry", entry.noise]
    return entry.data, kinds.index(entry.noise), entry.rate


def measured(run: Run, measure: str) -> float:
    """An error of a run in percent: its best, that of the chosen epoch, or the best of one of its rounds."""
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


def ours(entry: Entry) -> str:
    """12.34 ± 0.12 (3)"""
    if not entry.errors:
        return NOT_RUN
    mean, error = mean_and_error(list(entry.errors.values()))
    spread = "" if math.isnan(error) else f" ± {error:.2f}"
    return f"{mean:.2f}{spread} ({len(entry.errors)})"


def papers(entry: Entry) -> str:
    """12.2 ± 0.12"""
    if entry.published is None:
        return ""
    error, spread = entry.published
    return f"{error:.{entry.digits}f}" + ("" if spread is None else f" ± {spread:.2f}")


def difference(entry: Entry) -> str:
    """Ours minus the paper's: +0.14"""
    if entry.published is None or not entry.errors:
        return ""
    return f"{mean_and_error(list(entry.errors.values()))[0] - entry.published[0]:+.2f}"


def within(entry: Entry) -> str:
    """Whether the difference lies within two of its standard errors, the paper's spread and ours together."""
    if entry.published is None or not entry.errors:
        return ""
    error, spread = entry.published
    mean, own = mean_and_error(list(entry.errors.values()))
    if math.isnan(own):
        return "n too small"
    if spread is None:
        return "no spread printed"
    return "yes" if abs(mean - error) <= 2 * math.hypot(own, spread) + 1e-9 else "no"


def blocks(entries: Sequence[Entry], by_noise: bool) -> list[Block]:
    """A line per cell if they are few; else a column per noise, and with `by_noise` a table for each kind of it."""
    if len(entries) <= MANY or len({entry.column for entry in entries}) == 1:
        return [Block("", long_form(entries))]
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        title = f"{entry.data}, {entry.noise or 'its own'} noise" if by_noise else entry.data
        groups.setdefault(title, []).append(entry)
    return [Block(title, wide_form(group)) for title, group in groups.items()]


def long_form(entries: Sequence[Entry]) -> Rows:
    """A line per cell."""
    if all(entry.published is None for entry in entries):
        return [
            ["data", "method", "noise", "ours (n)"],
            *([entry.data, entry.method, entry.column, ours(entry)] for entry in entries),
        ]
    header = ["data", "method", "noise", "ours (n)", "paper", "ours - paper", "within 2 s.e."]
    return [header, *([e.data, e.method, e.column, ours(e), papers(e), difference(e), within(e)] for e in entries)]


def plain_form(entries: Sequence[Entry]) -> Rows:
    """A line per cell with one number in each place, for other programs."""
    header = ["data", "method", "noise", "rate", "n", "mean", "standard error", "trials"]
    return [
        [*header, "paper", "paper's standard error", "difference", "within two standard errors"],
        *([*own_numbers(e), *papers_numbers(e), difference(e).removeprefix("+"), verdict(e)] for e in entries),
    ]


def own_numbers(entry: Entry) -> list[str]:
    mean, error = mean_and_error(list(entry.errors.values())) if entry.errors else (math.nan, math.nan)
    numbers = ["" if math.isnan(number) else f"{number:.2f}" for number in (mean, error)]
    trials = " ".join(f"{entry.errors[seed]:.2f}" for seed in sorted(entry.errors))
    return [entry.data, entry.method, entry.noise or "", f"{entry.rate:g}", str(len(entry.errors)), *numbers, trials]


def verdict(entry: Entry) -> str:
    return within(entry) if entry.errors else NOT_RUN


def papers_numbers(entry: Entry) -> list[str]:
    error, spread = entry.published or (None, None)
    return ["" if error is None else f"{error:.{entry.digits}f}", "" if spread is None else f"{spread:.2f}"]


def wide_form(entries: Sequence[Entry]) -> Rows:
    """Three lines per method, a column per noise."""
    columns = list(dict.fromkeys(entry.column for entry in entries))
    methods = list(dict.fromkeys(entry.method for entry in entries))
    at = {(entry.method, entry.column): entry for entry in entries}
    rows = [["method", "", *columns]]
    for method in methods:
        found = [at.get((method, column)) for column in columns]
        rows.append([method, "ours (n)", *(ours(e) if e else "" for e in found)])
        rows.append(["", "paper", *(papers(e) if e else "" for e in found)])
        if any(e and difference(e) for e in found):
            rows.append(["", "difference", *(marked(e) if e else "" for e in found)])
    return rows


def marked(entry: Entry) -> str:
    """+0.14 in"""
    return f"{difference(entry)} {MARK.get(within(entry), '?')}" if difference(entry) else ""


def paired_blocks(entries: Sequence[Entry]) -> list[Block]:
    """What the paper's methods gain over their bases on the same noise, seed by seed, a table for each dataset."""
    every = {
        data: paired_rows([e for e in entries if e.data == data]) for data in dict.fromkeys(e.data for e in entries)
    }
    return [Block(f"{data}, differences on the same noise and seed", rows) for data, rows in every.items() if rows[1:]]


def paired_rows(entries: Sequence[Entry]) -> Rows:
    """Those of one dataset."""
    groups: dict[str, dict[str, Mapping[int, float]]] = {}
    for entry in entries:
        groups.setdefault(entry.column, {})[entry.method] = entry.errors
    rows = [["pair", "noise", "seed by seed", "mean (n)"]]
    for column, errors in groups.items():
        for method, base, differences in pairs(errors):
            mean, error = mean_and_error(differences)
            spread = "" if math.isnan(error) else f" ± {error:.2f}"
            each = ", ".join(f"{one:+.2f}" for one in differences)
            rows.append([f"{method} minus {base}", column, each, f"{mean:+.2f}{spread} ({len(differences)})"])
    return rows
