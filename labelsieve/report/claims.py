"""Whether the paper's claim holds: what penalty labels gain over their bases, here and in the paper, pair by pair."""

import math
from collections.abc import Iterable, Mapping, Sequence

from labelsieve.report.beside import Entry, dominant_first
from labelsieve.report.comparison import interval, mean_and_error, pairs
from labelsieve.report.formats import Rows

HEADER = ["data", "noise", "pair", "paper", "ours (n)", "95% interval", "verdict"]


def claims(entries: Iterable[Entry]) -> Rows:
    """A header, and a line for every pair of which there is a trial: the best error of the first minus the second's."""
    groups: dict[tuple[str, str], dict[str, Entry]] = {}
    for entry in sorted(entries, key=dominant_first):
        groups.setdefault((entry.data, entry.column), {}).setdefault(entry.method, entry)
    return [HEADER, *(row for where, found in groups.items() for row in claimed(where, found))]


def claimed(where: tuple[str, str], found: Mapping[str, Entry]) -> Rows:
    rows = []
    for method, base, differences in pairs({name: entry.errors for name, entry in found.items()}):
        printed = printed_difference(found[method], found[base])
        mean, error = mean_and_error(differences)
        ours = f"{mean:+.2f}" + ("" if math.isnan(error) else f" ± {error:.2f}") + f" ({len(differences)})"
        ends = " to ".join(f"{end:+.2f}" for end in interval(differences)) if len(differences) > 1 else ""
        papers = "" if printed is None else f"{printed:+.1f}"
        rows.append([*where, f"{method} minus {base}", papers, ours, ends, verdict(differences, printed)])
    return rows


def printed_difference(method: Entry, base: Entry) -> float | None:
    if method.published is None or base.published is None:
        return None
    return round(method.published[0] - base.published[0], 2)


def verdict(differences: Sequence[float], printed: float | None) -> str:
    """Whether ours go the paper's way; sure if zero is outside of the interval."""
    if printed is None:
        return ""
    if len(differences) < 2:
        return "one trial"
    low, high = interval(differences)
    if low <= 0 <= high:
        return "alike, as in the paper" if printed == 0 else "uncertain"
    return "holds" if printed * low > 0 else "differs"
