"""What was found, in plain words."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from labelsieve.audit.estimate import Interval, Noise
from labelsieve.cells import percent
from labelsieve.mixups import BOTH_WAYS, COMMON

Array = np.ndarray[Any, Any]
CLEAN_BELOW = 0.02  # share of wrong labels at the careful end, up to which nothing needs to be done
HARDLY_BELIEVED = 0.5  # share of wrong labels above which a bad model is the likelier reason
HALF = 0.5  # of the model's belief: a class with less is only the likelier of two


def verdict(
    noise: Noise, issues: int, samples: int, classes: Sequence[str], plain: bool = False, told: float = 0.0
) -> str:
    """How much looks wrong and what to do, in one or two sentences.

    `plain`: for a network that believes all labels. `told`: the share of wrong labels that a person named.
    """
    rate = noise.rate
    if looks_clean(rate):
        return clean_verdict(rate, issues, plain, told)
    found = f"{'At least' if plain else 'About'} {percent(rate.estimate)} of the {samples:,} labels look wrong"
    seen = f"{found} ({span(rate)}); {issues:,} are more likely wrong than right."
    if rate.estimate > HARDLY_BELIEVED:
        return f"{seen} Either most labels are wrong, or the model knows too little to judge them: look at some first."
    return f"{seen} {dominance(noise, classes)}"


def clean_verdict(rate: Interval, issues: int, plain: bool, told: float) -> str:
    """The same where few labels seem wrong."""
    if plain:
        return (
            "The labels look clean to this model, but it was trained to believe them all and may have learnt wrong "
            "ones by heart. To be sure, train with --noise-rate auto and audit that run."
        )
    if told > rate.high:
        return (
            f"At most {percent(rate.high)} of the labels seem wrong to this model, where {percent(told)} were said to "
            "be wrong. What it has learnt it does not doubt: more may be wrong than it sees."
        )
    look = f", though {issues:,} labels may be worth a look" if issues else ""
    return (
        f"The labels look clean: at most {percent(rate.high)} seem wrong, which may be the model's own mistakes. "
        f"Nothing needs to be done{look}."
    )


def looks_clean(rate: Interval) -> bool:
    """Whether so few labels seem wrong that nothing needs to be done."""
    return rate.low < CLEAN_BELOW and rate.estimate < 2.5 * CLEAN_BELOW


def basis(rate: Interval, held_out: int, samples: int) -> str:
    """What the shares rest on, where that of the whole and those of the classes come from different guesses."""
    if not held_out:
        return ""
    if held_out == samples:
        rests_on = "models that judged labels which they had not learnt from; the delivered model adds to"
    else:
        rests_on = f"the {held_out:,} samples that the model did not learn from; all samples add to"
    return (
        f"The {percent(rate.estimate)} come from {rests_on} the shares of the classes, which are scaled so that they "
        "add up to it."
    )


def dominance(noise: Noise, classes: Sequence[str]) -> str:
    """Whether the wrong labels come from one class or from everywhere."""
    wrong = noise.matrix.copy()
    np.fill_diagonal(wrong, 0)
    row, column = divmod(int(wrong.argmax()), len(wrong))
    share, back = wrong[row, column], wrong[column, row]
    if share < COMMON:
        return "No class stands out as the source of wrong labels."
    if back < BOTH_WAYS * share:
        return f"Most common: about {percent(share)} of those labelled {classes[row]} seem to be {classes[column]}."
    return (
        f"{classes[row]} and {classes[column]} are mixed up most (about {percent(share)} of those labelled "
        f"{classes[row]}, {percent(back)} of those labelled {classes[column]}); between classes that look alike, "
        "which way is uncertain."
    )


def reasons(
    labels: Array,
    suggested: Array,
    confidence: Array,
    other: Array,
    issues: Array,
    matrix: Array,
    classes: Sequence[str],
    remarks: Sequence[str],
) -> list[str]:
    """Why a label is suspicious or not, in short sentences for each sample; `remarks` follow where there are any."""
    return [
        f"{reason(classes[y], classes[s], float(p), float(o), bool(i), float(matrix[y, s]))} {r}".rstrip()
        for y, s, p, o, i, r in zip(labels, suggested, confidence, other, issues, remarks, strict=True)
    ]


def reason(label: str, suggested: str, confidence: float, other: float, issue: bool, share: float) -> str:
    """What speaks against a label, or for it; `share`: how many with this label seem to be the suggested class."""
    common = f" A common mix-up: about {sure(share)} of those labelled {label}." if issue and share >= COMMON else ""
    if other > confidence:
        doubt = "" if issue else ", but all in all the label is more likely right"
        looks = "The model is unsure: looks" if other < HALF else "Looks"
        return f"{looks} more like {suggested} ({sure(other)}) than {label} ({sure(confidence)}){doubt}.{common}"
    if issue:
        return f"The model is only {sure(confidence)} sure of {label}; it may be {suggested} ({sure(other)}).{common}"
    return f"The model agrees: {label} ({sure(confidence)})."


def sure(share: float) -> str:
    """A share on a card: whole numbers are enough, and nothing is wholly sure."""
    if share < 0.01:
        return "under 1%"
    return "over 99%" if share > 0.99 else f"{100 * share:.0f}%"


def span(interval: Interval) -> str:
    return f"between {percent(interval.low)} and {percent(interval.high)}"
