"""What was seen while training sharpens what the delivered network thinks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labelsieve.audit.estimate import Interval, Noise, noise_of, noise_unmixed, reconciled
from labelsieve.audit.guesses import Guesses
from labelsieve.audit.posterior import quality, settled, suggestions, unmixed
from labelsieve.audit.quality import THRESHOLD
from labelsieve.text import percent

Array = np.ndarray[Any, Any]
WEIGHT = 0.25  # of the margin's log-odds (docs/decisions/023)
SURE = 1e-6


def sharpened(quality: Array, margin: Array, seen: Array) -> Array:
    """The quality (n) with the mean margin of training, -1 to 1, added to its log-odds where a sample was seen."""
    odds = log_odds(quality) + np.where(seen > 0, WEIGHT * log_odds((1 + margin) / 2), 0.0)
    chance: Array = 1 / (1 + np.exp(-odds))
    return chance


def log_odds(share: Array) -> Array:
    share = np.clip(share.astype(np.float64), SURE, 1 - SURE)
    odds: Array = np.log(share / (1 - share))
    return odds


COMMON = 0.05  # share of a label's samples that seem to be one other class, from which it is worth saying
BOTH_WAYS = 0.25  # as large a share the other way round: two classes that the model itself may not tell apart


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
