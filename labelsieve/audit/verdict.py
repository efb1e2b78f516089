"""What was found, in plain words."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from labelsieve.audit.estimate import Interval, Noise

Array = np.ndarray[Any, Any]
CLEAN_BELOW = 0.02  # share of wrong labels at the careful end, up to which nothing should be done
COMMON = 0.05  # share of a label's samples that seem to be one other class, from which it is worth saying


def verdict(noise: Noise, issues: int, samples: int, classes: Sequence[str], plain: bool = False) -> str:
    """How much looks wrong and what to do, in one or two sentences; `plain`: for a network that believes all labels."""
    rate = noise.rate
    if rate.low < CLEAN_BELOW and rate.estimate < 2.5 * CLEAN_BELOW:
        if plain:
            return (
                "The labels look clean to this model, but it was trained to believe them all and may have learnt wrong "
                "ones by heart. To be sure, train with --noise-rate auto and audit that run."
            )
        look = f", though {issues:,} labels may be worth a look" if issues else ""
        return (
            f"The labels look clean: at most {percent(rate.high)} seem wrong, no more than a model's own mistakes. "
            f"Nothing should be done{look}."
        )
    found = f"{'At least' if plain else 'About'} {percent(rate.estimate)} of the {samples:,} labels look wrong"
    return f"{found} ({span(rate)}); {issues:,} are more likely wrong than right. {dominance(noise, classes)}"


def dominance(noise: Noise, classes: Sequence[str]) -> str:
    """Whether the wrong labels come from one class or from everywhere."""
    wrong = noise.matrix.copy()
    np.fill_diagonal(wrong, 0)
    row, column = divmod(int(wrong.argmax()), len(wrong))
    if wrong[row, column] < COMMON:
        return "No class stands out as the source of wrong labels."
    return f"The most common: {percent(wrong[row, column])} of the labels {classes[row]} seem to be {classes[column]}."


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
    """Why a label is suspicious or not, one short sentence for each sample; `remarks` are added where there are any."""
    return [
        reason(classes[y], classes[s], float(p), float(o), bool(i), float(matrix[y, s])) + (f" ({r})." if r else ".")
        for y, s, p, o, i, r in zip(labels, suggested, confidence, other, issues, remarks, strict=True)
    ]


def reason(label: str, suggested: str, confidence: float, other: float, issue: bool, share: float) -> str:
    if issue:
        common = f"; {percent(share)} of the labels {label} seem to be {suggested}" if share >= COMMON else ""
        if other <= confidence:
            return f"The model is not sure of {label} ({percent(confidence)}), {suggested} has {percent(other)}{common}"
        return f"The model holds {suggested} ({percent(other)}) likelier than {label} ({percent(confidence)}){common}"
    if other > confidence:
        return f"The model leans to {suggested} ({percent(other)}), too little to doubt {label} ({percent(confidence)})"
    return f"The model agrees with {label} ({percent(confidence)})"


def percent(share: float) -> str:
    """As a person would say it: 38%, 2.9%, under 0.1%."""
    if 0 < share < 0.001:
        return "under 0.1%"
    return f"{100 * share:.1f}%" if 0 < share < 0.0995 else f"{100 * share:.0f}%"


def span(interval: Interval) -> str:
    return f"between {percent(interval.low)} and {percent(interval.high)}"
