"""What the records say about a cell of a table, or about two cells on the same noise: in words, or yes or no.

A cell is named as in `cifar10 pair 40% mentornet`, two of them as in `cifar10 pair 40% mentornet-prop over mentornet`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from labelsieve.errors import InputError, nearest
from labelsieve.report.beside import Entry, difference, ours, papers, within
from labelsieve.report.comparison import interval, mean_and_error
from labelsieve.report.records import Run

T = TypeVar("T")
FAR = 1.5  # points
VERDICTS = {
    "yes": "within two standard errors",
    "no": "more than two standard errors",
    "n too small": "too few trials to judge",
    "no spread printed": "without a printed spread to judge it by",
}


@dataclass(frozen=True)
class Outcome:
    """A cell, and its runs by seed."""

    entry: Entry
    runs: Mapping[int, Run]

    @property
    def name(self) -> str:
        return f"{self.entry.data} {self.entry.column} {self.entry.method}"

    @property
    def last(self) -> list[float]:
        return [float(run.end["last"]) for run in self.runs.values()]

    @property
    def kept(self) -> list[float]:
        """Right labels among the samples that the last epoch learnt from, in percent."""
        shares = [run.epochs[-1].get("precision") for run in self.runs.values()]
        return [100 * share for share in shares if share is not None]


Outcomes = Mapping[str, Outcome]  # by name


def looked_up(name: str, outcomes: Outcomes) -> Outcome | None:
    """The cell of this name, if any of its runs is there; in brackets behind it may stand what is done differently."""
    if name not in outcomes and name.partition(" (")[0] not in outcomes:
        raise InputError(f"the account speaks of {name!r}, which no table has: {nearest(name, outcomes)}")
    found = outcomes.get(name)
    return found if found and found.runs else None


def two_of(about: str, outcomes: Outcomes) -> list[Outcome | None]:
    """The cells of `cifar10 pair 40% mentornet-prop over mentornet`."""
    first, _, base = about.partition(" over ")
    where = " ".join(first.split()[:3])  # data, kind of noise, rate
    return [looked_up(name, outcomes) for name in (first, f"{where} {base}")]


def both(about: str, outcomes: Outcomes) -> list[float]:
    """The first one's error minus the second one's for every seed that both have."""
    errors = [outcome.entry.errors if outcome else {} for outcome in two_of(about, outcomes)]
    return [errors[0][seed] - errors[1][seed] for seed in sorted(errors[0].keys() & errors[1].keys())]


def printed(about: str, outcomes: Outcomes) -> str | None:
    """By how much the first one's printed error is below the second one's, or above it: 4.6 points lower"""
    means = [cell.entry.published[0] for cell in two_of(about, outcomes) if cell and cell.entry.published]
    if len(means) < 2:
        return None
    points = round(means[0] - means[1], 2)
    return f"{abs(points):g} points {'lower' if points < 0 else 'higher'}" if points else "the same"


def fact(kind: str, about: str, outcomes: Outcomes) -> str | None:
    """The words for `kind: about`; None if it was not run."""
    if " over " in about:
        return one_of(OF_TWO, kind)(about, outcomes)
    outcome = looked_up(about, outcomes)
    return one_of(OF_ONE, kind)(outcome) if outcome else None


def claim(kind: str, about: str, outcomes: Outcomes) -> bool | None:
    """Whether `kind: about` holds; None if too little was run to tell."""
    if " over " in about:
        found = both(about, outcomes)
        return one_of(CLAIMS_OF_TWO, kind)(found) if len(found) > 1 else None
    outcome = looked_up(about, outcomes)
    return one_of(CLAIMS_OF_ONE, kind)(outcome) if outcome and len(outcome.runs) > 1 else None


def one_of(kinds: Mapping[str, T], kind: str) -> T:
    if kind not in kinds:
        raise InputError(f"the account asks for {kind!r}, which is not known: {nearest(kind, kinds)}")
    return kinds[kind]


def spread(values: Sequence[float]) -> str:
    """28.62 ± 1.18"""
    if not values:
        return "–"
    mean, error = mean_and_error(values)
    return f"{mean:.2f}" if math.isnan(error) else f"{mean:.2f} ± {error:.2f}"


def compared(differences: Sequence[float]) -> str | None:
    """lower in 3 of 3 trials, on average by 8.19 ± 1.74 points (95% interval 0.69 to 15.68)"""
    if not differences:
        return None
    mean, error = mean_and_error(differences)
    word = "lower" if mean < 0 else "higher"
    if len(differences) == 1:
        return f"{word} in the one trial there is, by {abs(mean):.2f} points"
    agree = sum(one * mean > 0 for one in differences)
    low, high = sorted(math.copysign(1, mean) * end for end in interval(differences))
    return (
        f"{word} in {agree} of {len(differences)} trials, on average by {abs(mean):.2f} ± {error:.2f} points "
        f"(95% interval {low:.2f} to {high:.2f})"
    )


def beside(outcome: Outcome) -> str:
    """17.68 ± 0.28 (3), paper 18.4 ± 0.35, difference -0.72, within two standard errors"""
    entry = outcome.entry
    if entry.published is None:
        return ours(entry)
    return f"{ours(entry)}, paper {papers(entry)}, difference {difference(entry)}, {VERDICTS[within(entry)]}"


def trials(outcome: Outcome) -> str:
    """19.16, 23.98, 18.17"""
    return ", ".join(f"{outcome.entry.errors[seed]:.2f}" for seed in sorted(outcome.entry.errors))


def lost_classes(run: Run, row: Mapping[str, Any]) -> int:
    """How many classes kept fewer than half as many samples in this epoch as they should have."""
    least = (1 - run.spec["noise_rate"]) / 2
    return sum(share < least for share in row.get("kept") or [])


def given_up(run: Run) -> list[int]:
    """The epochs, counted from 1, in which some class did."""
    return [number for number, row in enumerate(run.epochs, 1) if lost_classes(run, row)]


def lost(outcome: Outcome) -> str:
    """How many classes did in the last epoch, trial by trial: 4 of 100, 0 of 100"""
    ends = [(run, run.epochs[-1]) for _, run in sorted(outcome.runs.items())]
    return ", ".join(f"{lost_classes(run, row)} of {len(row.get('kept') or [])}" for run, row in ends)


def where_given_up(outcome: Outcome) -> str:
    """seed 2 in epochs 26 to 86 (error 20.07 at best in these)"""
    said = []
    for seed, run in outcome.runs.items():
        if epochs := given_up(run):
            best = min(run.epochs[number - 1]["test_error"] for number in epochs)
            span = f"epochs {epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else f"epoch {epochs[0]}"
            said.append(f"seed {seed} in {span} (error {best:.2f} at best in these)")
    return "; ".join(said)


def clearly_lower(differences: Sequence[float]) -> bool:
    """In every trial, and so that zero is outside of the 95% interval."""
    return max(differences) < 0 and interval(differences)[1] < 0


def excess(outcome: Outcome) -> float:
    """By how many points the mean is above the printed one; 0 if none is printed."""
    printed = outcome.entry.published
    return 0.0 if printed is None else mean_and_error(list(outcome.entry.errors.values()))[0] - printed[0]


OF_ONE: dict[str, Callable[[Outcome], str]] = {
    "ours": lambda outcome: ours(outcome.entry),
    "beside": beside,
    "trials": trials,
    "given up": lambda outcome: where_given_up(outcome) or "no trial",
    "lost": lost,
    "last": lambda outcome: f"{spread(outcome.last)} ({len(outcome.last)})",
    "kept": lambda outcome: f"{spread(outcome.kept)} ({len(outcome.kept)})",
}
OF_TWO: dict[str, Callable[[str, Outcomes], str | None]] = {
    "compared": lambda about, outcomes: compared(both(about, outcomes)),
    "printed": printed,
}
CLAIMS_OF_ONE: dict[str, Callable[[Outcome], bool]] = {
    "far below": lambda outcome: excess(outcome) < -FAR,
    "below": lambda outcome: excess(outcome) < 0,
    "near": lambda outcome: outcome.entry.published is not None and abs(excess(outcome)) <= FAR,
}
CLAIMS_OF_TWO: dict[str, Callable[[Sequence[float]], bool]] = {"clearly lower": clearly_lower}
