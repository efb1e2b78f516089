"""Issues besides wrong labels that features show: near-duplicates, and outliers that resemble none of the classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelsieve.audit.guesses import Array

NONE = -1  # no group, no twin


@dataclass(frozen=True)
class OtherIssues:
    """Near-duplicates and outliers among n samples; names and scores as in cleanlab's Datalab (low is suspicious)."""

    groups: Array  # (n) position of the first sample of the group of near-duplicates; -1 for samples without any
    near_duplicate_sets: Sequence[Sequence[int]]  # (n) some near-duplicates of each sample, the nearest first
    near_duplicate_score: Array  # (n) 0 to 1, 0 for exact copies
    outliers: Array  # (n) bool: resembles none of the classes
    outlier_score: Array  # (n) 0 to 1: typical distance to the nearest class, divided by that of the sample

    @property
    def near_duplicates(self) -> Array:
        """Return which samples (n) have a near-duplicate."""
        return self.groups != NONE


def conflicting(groups: Array, labels: Array) -> Array:
    """Return which samples (n) are in a group whose samples do not all have the same label: one of these is wrong."""
    inside = groups != NONE
    lowest, highest = labels.copy(), labels.copy()  # of each group, at the position of its first sample
    np.minimum.at(lowest, groups[inside], labels[inside])
    np.maximum.at(highest, groups[inside], labels[inside])
    return inside & (lowest[groups] != highest[groups])


def twins(others: OtherIssues, labels: Array) -> Array:
    """Return a near-duplicate of each sample (n), the nearest with another label if there is one; -1 without any."""
    found = np.full(len(labels), NONE)
    different = conflicting(others.groups, labels)
    for index in np.flatnonzero(others.near_duplicates).tolist():
        listed = others.near_duplicate_sets[index]
        found[index] = listed[0]
        if different[index]:
            elsewhere = [twin for twin in listed if labels[twin] != labels[index]]
            found[index] = elsewhere[0] if elsewhere else _another(others.groups, labels, index)
    return found


def _another(groups: Array, labels: Array, index: int) -> int:
    """Return the first sample of the same group with another label."""
    return int(np.flatnonzero((groups == groups[index]) & (labels != labels[index]))[0])


def remarks(others: OtherIssues, labels: Array, classes: Sequence[str], ids: Sequence[str]) -> list[str]:
    """Return a sentence on the twin of each sample (n) and on outliers; empty for all other samples."""
    found = [""] * len(labels)
    for index, twin in enumerate(twins(others, labels).tolist()):
        if twin == NONE:
            continue
        if labels[twin] == labels[index]:
            found[index] = f"Near-duplicate of {ids[twin]}, with the same label."
        else:
            doubt = f"which is labelled {classes[labels[twin]]}: at least one of the two labels is probably wrong"
            found[index] = f"Near-duplicate of {ids[twin]}, {doubt}."
    for index in np.flatnonzero(others.outliers).tolist():
        found[index] = f"{found[index]} It resembles none of the classes.".lstrip()
    return found


def verdict_on(others: OtherIssues, labels: Array) -> str:
    """Return a sentence on the numbers of near-duplicates with another label and of outliers; empty without any."""
    number, strange = int(conflicting(others.groups, labels).sum()), int(others.outliers.sum())
    parts = [f"{number:,} samples are near-duplicates of others with another label"] if number else []
    if strange:
        parts.append(f"{strange:,} {'sample resembles' if strange == 1 else 'samples resemble'} none of the classes")
    return f"{'; '.join(parts)}." if parts else ""
