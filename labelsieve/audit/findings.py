"""Findings: every sample with its label, what it should perhaps be, how good the label is and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labelsieve.audit.estimate import Interval, Noise, noise_of, noise_unmixed
from labelsieve.audit.guesses import Guesses
from labelsieve.audit.posterior import quality, settled, suggestions
from labelsieve.audit.quality import THRESHOLD
from labelsieve.audit.reconcile import reconciled
from labelsieve.audit.training import sharpened
from labelsieve.audit.unmixed import unmixed
from labelsieve.audit.verdict import HARDLY_BELIEVED, basis, reasons, verdict

Array = np.ndarray[Any, Any]
DECIDED = "You decided on this label."


@dataclass(frozen=True)
class Findings:
    """What an audit found; all arrays are in the order of the data."""

    classes: Sequence[str]
    ids: Sequence[str]  # (n)
    labels: Array  # (n)
    suggested: Array  # (n)  the label itself where nothing is likelier
    quality: Array  # (n)  0 to 1, low is suspicious
    issues: Array  # (n) bool
    why: Sequence[str]  # (n)
    noise: Noise
    plain: bool = False  # the network learnt from all labels alike, and so by heart
    held_out: int = 0  # samples that the share of the whole rests on; 0: on all
    decided: Array | None = None  # (n) bool: a person decided on the label
    told: float = 0.0  # share of wrong labels that a person named

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def order(self) -> Array:
        """Positions, the most suspicious first."""
        return np.argsort(self.quality, kind="stable")

    @property
    def verdict(self) -> str:
        return verdict(self.noise, int(self.issues.sum()), len(self), self.classes, self.plain, self.told)

    @property
    def basis(self) -> str:
        return basis(self.noise.rate, self.held_out, len(self.labels))

    @property
    def corrected(self) -> Array:
        """The labels (n) with every issue replaced by the suggestion."""
        return np.where(self.issues, self.suggested, self.labels)

    @property
    def unknown(self) -> list[str]:
        """Classes most of whose labels are issues, and twice as many as of all: the model may not know them."""
        judged = (self.labels, self.labels[self.issues])
        total, doubted = (np.bincount(labels, minlength=len(self.classes)) for labels in judged)
        least = max(HARDLY_BELIEVED, 2 * self.issues.mean())
        return [name for name, share in zip(self.classes, doubted / np.maximum(total, 1), strict=True) if share > least]

    @property
    def believed(self) -> Array:
        """The corrected labels (n), but for those of unknown classes, which stay."""
        unknown = self.unknown
        stays = np.isin(self.labels, [place for place, name in enumerate(self.classes) if name in unknown])
        return np.where(stays, self.labels, self.corrected)


def findings_of(
    guesses: Guesses,
    classes: Sequence[str],
    ids: Sequence[str] | None = None,
    *,
    training: tuple[Array, Array] | None = None,
    remarks: Sequence[str] | None = None,
    plain: bool = False,
    rate: Interval | None = None,
    held_out: int = 0,
    unlearnt: bool = False,
    told: float = 0.0,
) -> Findings:
    """Look at every label.

    `training`: the mean margin (n) of each sample while training and how often it was seen. `remarks` (n): what else is
    to be said of a sample, or nothing. `plain`: the network learnt from all labels alike. `rate`: the share of wrong
    labels, if it is better known from samples that were `held_out`; the shares of the classes are made to fit.
    `unlearnt`: the guesses are anybody's classifier's, which did not learn from the labels that it judges. `told`: the
    share of wrong labels that a person named. Labels that a person decided on are right.
    """
    truer, label_given = unmixed(guesses) if unlearnt else (guesses, settled(guesses))
    good = quality(truer, label_given)
    if training is not None:
        good = sharpened(good, *training)
    decided = guesses.decided
    if decided is not None:
        good = np.where(decided, 1.0, good)
    issues = good < THRESHOLD
    other = suggestions(truer, label_given)
    noise = noise_unmixed(guesses, (truer, label_given)) if unlearnt else noise_of(guesses)
    if rate is not None:
        rate = rate._replace(high=max(rate.high, float(issues.mean())))  # what is marked is likely wrong, too
        noise = reconciled(noise, rate, np.bincount(guesses.labels, minlength=guesses.num_classes))
    held = np.where(guesses.likeliest == other[:, None], guesses.likelihood, 0).sum(1)  # how likely it is held
    doubted = issues | (held > guesses.confidence)
    count = len(guesses)
    why = reasons(
        guesses.labels, other, guesses.confidence, held, issues, noise.matrix, classes, remarks or [""] * count
    )
    if decided is not None:
        why = [DECIDED if known else reason for known, reason in zip(decided.tolist(), why, strict=True)]
    names = ids if ids is not None else [str(index) for index in range(count)]
    suggested = np.where(doubted, other, guesses.labels)
    return Findings(classes, names, guesses.labels, suggested, good, issues, why, noise, plain, held_out, decided, told)
