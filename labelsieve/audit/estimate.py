"""How many labels are wrong, overall and per class, and where the wrong ones come from."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from labelsieve.audit.guesses import Guesses, guesses_of
from labelsieve.audit.posterior import counted_joint, label_given_true, posterior, quality, unmixed

Array = np.ndarray[Any, Any]
NORMAL = 1.96  # standard errors of a 95% interval


class Interval(NamedTuple):
    """A share and the range that it is likely in."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Noise:
    """An estimate of the label noise."""

    rate: Interval
    per_class: list[Interval]  # of the observed label
    matrix: Array  # (K, K)  row: observed label, column: true class; rows sum to 1


def estimate_noise(labels: Array, pred_probs: Array) -> Noise:
    """The share of wrong labels and the noise matrix, from probabilities (n, K) that were not learnt from these labels.

    For example predictions by cross-validation, or of a network that was trained robustly.
    """
    return noise_unmixed(guesses_of(labels, pred_probs))


def noise_of(guesses: Guesses) -> Noise:
    """The same from the guesses of a run, which holds the true classes likely and has learnt from these labels.

    The estimate is the mean probability of being wrong under the counted joint. The range reaches from the more careful
    joint that settles (it believes the labels more) to the confident joint (it believes the classifier more), with
    sampling error on both sides.
    """
    likely, joint = posterior(guesses, label_given_true(counted_joint(guesses)))
    return noise_from(guesses, likely, joint, quality(guesses))


def noise_unmixed(guesses: Guesses, about_true: tuple[Guesses, Array] | None = None) -> Noise:
    """The same from the guesses of a classifier that learnt from other labels, and what `unmixed` makes of them.

    The range begins with what is likely if the guesses are of true classes already.
    """
    truer, label_given = unmixed(guesses) if about_true is None else about_true
    likely, joint = posterior(truer, label_given)
    return noise_from(guesses, likely, joint, quality(guesses, label_given))


def noise_from(guesses: Guesses, likely: Array, joint: Array, careful: Array) -> Noise:
    """The noise in probabilities of the labels (n) and their joint (K, K), and in more careful ones (n)."""
    classes = guesses.num_classes
    sizes = np.bincount(guesses.labels, minlength=classes)
    bold = confident_joint(guesses)
    wrong = np.bincount(guesses.labels, 1 - likely, classes)
    least = np.bincount(guesses.labels, 1 - careful, classes)
    counted, agreed = bold.sum(1), bold.diagonal()
    overall = interval(
        wrong.sum() / len(guesses),
        least.sum() / len(guesses),
        1 - agreed.sum() / max(counted.sum(), 1),
        len(guesses),
    )
    each = [
        interval(wrong[k] / n, least[k] / n, 1 - agreed[k] / max(counted[k], 1), n) if n else Interval(0.0, 0.0, 1.0)
        for k, n in enumerate(sizes.tolist())
    ]
    return Noise(overall, each, rows_to_one(joint, sizes))


def interval(estimate: float, low: float, high: float, samples: int) -> Interval:
    """The range of several estimates, widened by the sampling error of each end."""
    low, high = min(estimate, low), max(estimate, high)
    return Interval(
        float(estimate),
        float(max(0.0, low - NORMAL * np.sqrt(low * (1 - low) / samples))),
        float(min(1.0, high + NORMAL * np.sqrt(high * (1 - high) / samples))),
    )


def confident_joint(guesses: Guesses) -> Array:
    """Confident learning's counts (K, K): of the classes that are as likely as they are on average for their own label,
    the likeliest."""
    classes = guesses.num_classes
    sizes = np.bincount(guesses.labels, minlength=classes)
    usual = np.bincount(guesses.labels, guesses.confidence, classes) / np.maximum(sizes, 1)
    usual = np.where(sizes > 0, usual, np.inf)
    candidates = np.concatenate([guesses.likeliest, guesses.labels[:, None]], axis=1)
    likelihood = np.concatenate([guesses.likelihood, guesses.confidence[:, None]], axis=1)
    likelihood = np.where(likelihood >= usual[candidates], likelihood, -1.0)
    best = likelihood.argmax(1)
    place = np.arange(len(guesses))
    sure = likelihood[place, best] >= 0
    cells = guesses.labels[sure] * classes + candidates[place, best][sure]
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def rows_to_one(joint: Array, sizes: Array) -> Array:
    """The joint as shares of each label; a label that nobody has is believed."""
    total = joint.sum(1, keepdims=True)
    matrix: Array = np.where(sizes[:, None] > 0, joint / np.where(total > 0, total, 1), np.eye(len(joint)))
    return matrix


LARGEST = 40.0  # logarithm of a factor on odds, beyond which nothing moves any more
HALVINGS = 80


def reconciled(noise: Noise, rate: Interval, sizes: Array) -> Noise:
    """The same noise with this rate; the odds of being wrong change by one factor in all classes (sizes: (K)).

    So the order of the classes stays, no share leaves 0 to 1, and the shares, weighed by their samples, add up to the
    rate. Ranges only become wider: they hold what was estimated before, too.
    """
    wrong = np.array([share.estimate for share in noise.per_class])
    factor = factor_for(rate.estimate, wrong, sizes)
    each = [
        Interval(
            changed(share.estimate, factor), changed(share.low, min(1, factor)), changed(share.high, max(1, factor))
        )
        for share in noise.per_class
    ]
    return replace(
        noise, rate=rate, per_class=each, matrix=with_shares(noise.matrix, wrong, [e.estimate for e in each])
    )


def factor_for(rate: float, wrong: Array, sizes: Array) -> float:
    """The factor on the odds of these shares (K) after which their mean over all samples is the rate; by bisection."""
    low, high = -LARGEST, LARGEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        mean = np.average([changed(share, np.exp(middle)) for share in wrong], weights=sizes)
        low, high = (middle, high) if mean < rate else (low, middle)
    return float(np.exp(high))


def changed(share: float, factor: float) -> float:
    """A share whose odds are so many times as high."""
    return float(share * factor / (1 - share + share * factor)) if share < 1 else 1.0


def with_shares(matrix: Array, before: Array, after: list[float]) -> Array:
    """The matrix (K, K) with what lies beside the diagonal scaled from the shares before to those after."""
    scale = np.divide(after, before, out=np.ones(len(matrix)), where=before > 0)
    beside = matrix * (1 - np.eye(len(matrix))) * scale[:, None]
    new: Array = beside + np.diag(1 - beside.sum(1))
    return new
