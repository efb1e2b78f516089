"""Estimates of the noise rate, overall and per class, and of the noise matrix; and their reconciliation."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from labelsieve.audit.guesses import Array, Guesses
from labelsieve.audit.posterior import count_joint, label_given_true, label_probability, posterior

Z_95 = 1.96  # standard errors of a 95% interval
HARD_SAMPLES = 0.01  # share of hard samples mistaken for wrong labels where few labels are wrong (decision 25)
HIGH_RATE = 0.4  # noise rate from which on none are
MAX_LOG_FACTOR = 40.0  # bound of the search for a factor on the odds
BISECTIONS = 80


class Interval(NamedTuple):
    """An estimated share and its range, which is meant to hold the truth in nine of ten cases (docs/audit.md)."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Noise:
    """An estimate of the label noise."""

    rate: Interval  # share of wrong labels
    per_class: list[Interval]  # share of wrong labels per given label
    matrix: Array  # (K, K)  row: given label, column: true class; rows sum to 1
    sample_dependent: float = 0.0  # share of the wrong labels that seem to depend on the sample, not only on the class

    @property
    def class_dependent(self) -> float:
        """The share of labels that are wrong because of their class alone."""
        return self.rate.estimate * (1 - self.sample_dependent)


def estimate_in_sample_noise(guesses: Guesses) -> Noise:
    """Estimate the noise from the guesses of a robustly trained network about its own training samples.

    The estimate is the mean probability of being wrong under the counted joint. The range reaches from the label
    probabilities of the iterated joint, which trusts the labels more, to the confident joint, which trusts the network
    more, plus the sampling error at both ends.
    """
    likely, joint = posterior(guesses, label_given_true(count_joint(guesses)))
    return _noise_from(guesses, likely, joint, label_probability(guesses))


def estimate_class_dependent_noise(guesses: Guesses, true_guesses: Guesses, label_given: Array) -> Noise:
    """Estimate the noise from out-of-sample guesses, if errors depend on the class alone.

    The lower end of the range assumes that the guesses are about true classes already, and that hard samples look
    wrong.

    Args:
        true_guesses: The guesses, unmixed.
        label_given: (K, K) P(label | true class).
    """
    likely, joint = posterior(true_guesses, label_given)
    noise = _noise_from(guesses, likely, joint, label_probability(guesses, label_given))
    hard = HARD_SAMPLES * max(0.0, 1 - noise.rate.estimate / HIGH_RATE)
    return replace(noise, rate=noise.rate._replace(low=max(0.0, noise.rate.low - hard)))


def reconcile(noise: Noise, rate: Interval, sizes: Array) -> Noise:
    """Return the noise with another overall rate and with class shares that add up to it.

    Wrong labels beyond those that depend on the class depend on the sample.

    The odds of a wrong label change by the same factor in all classes. This keeps the order of the classes and shares
    between 0 and 1. Ranges only become wider: they include the estimates from before. `sizes` (K) is the number of
    samples of each label.
    """
    wrong, low, high = np.array(noise.per_class, dtype=np.float64).T
    factor = _odds_factor(rate.estimate, wrong, sizes)
    scaled = _scale_odds(wrong, factor)
    bounds = _scale_odds(low, min(1, factor)), _scale_odds(high, max(1, factor))
    per_class = [Interval(*shares) for shares in zip(*(part.tolist() for part in (scaled, *bounds)), strict=True)]
    beyond = max(0.0, 1 - noise.class_dependent / rate.estimate) if rate.estimate > 0 else 0.0
    return replace(with_shares(noise, rate, per_class), sample_dependent=float(beyond))


def with_shares(noise: Noise, rate: Interval, per_class: list[Interval]) -> Noise:
    """Return the noise with another overall rate and other class shares; the matrix is scaled to them."""
    before, wrong = (np.array([share.estimate for share in shares]) for shares in (noise.per_class, per_class))
    scale = np.divide(wrong, before, out=np.ones(len(wrong)), where=before > 0)
    others = noise.matrix * (1 - np.eye(len(wrong))) * scale[:, None]
    return replace(noise, rate=rate, per_class=per_class, matrix=others + np.diag(1 - others.sum(1)))


def with_correct_labels(noise: Noise, judged: Array, labels: Array) -> Noise:
    """Return the noise of all labels (n), of which the judged ones (m) have this noise and the others are correct."""
    classes = len(noise.per_class)
    sizes = np.bincount(labels, minlength=classes)
    shares = np.bincount(judged, minlength=classes) / np.maximum(sizes, 1)  # (K) of each label that was judged
    rate = Interval(*(value * len(judged) / len(labels) for value in noise.rate))
    pairs = zip(noise.per_class, shares.tolist(), strict=True)
    per_class = [Interval(*(value * share for value in interval)) for interval, share in pairs]
    return replace(noise, rate=rate, per_class=per_class, matrix=shares[:, None] * noise.matrix + np.diag(1 - shares))


def _noise_from(guesses: Guesses, likely: Array, joint: Array, careful: Array) -> Noise:
    """Return the noise given probabilities of the labels (n) and expected counts of label and true class (K, K).

    The lower end of the range comes from the `careful` probabilities (n), the upper end from the confident joint.
    """
    count, classes = len(guesses), guesses.num_classes
    sizes = np.bincount(guesses.labels, minlength=classes)
    wrong = np.bincount(guesses.labels, 1 - likely, classes)
    least = np.bincount(guesses.labels, 1 - careful, classes)
    confident = confident_joint(guesses)
    counted, agreed = confident.sum(1), confident.diagonal()
    rate = _widened_interval(wrong.sum() / count, least.sum() / count, 1 - agreed.sum() / max(counted.sum(), 1), count)
    per_class = [
        _widened_interval(wrong[k] / max(n, 1), least[k] / max(n, 1), 1 - agreed[k] / max(counted[k], 1), n)
        for k, n in enumerate(sizes.tolist())
    ]
    total = joint.sum(1, keepdims=True)
    matrix = np.where(sizes[:, None] > 0, joint / np.where(total > 0, total, 1), np.eye(classes))  # no samples: correct
    return Noise(rate, per_class, matrix)


def _widened_interval(estimate: float, low: float, high: float, samples: int) -> Interval:
    """Return the range of several estimates, widened by the sampling error of both ends."""
    if not samples:
        return Interval(0.0, 0.0, 1.0)
    low, high = min(estimate, low), max(estimate, high)
    return Interval(
        float(estimate),
        float(max(0.0, low - Z_95 * np.sqrt(low * (1 - low) / samples))),
        float(min(1.0, high + Z_95 * np.sqrt(high * (1 - high) / samples))),
    )


def confident_joint(guesses: Guesses) -> Array:
    """Count labels (row) and true classes (column) as in confident learning, (K, K).

    A class counts as the true one if it is at least as likely as it is on average for samples with that label; if
    there are several, the most likely of them.
    """
    classes = guesses.num_classes
    sizes = np.bincount(guesses.labels, minlength=classes)
    thresholds = np.bincount(guesses.labels, guesses.confidence, classes) / np.maximum(sizes, 1)
    thresholds = np.where(sizes > 0, thresholds, np.inf)
    true = np.where(guesses.confidence >= thresholds[guesses.labels], guesses.labels, -1)
    for column in reversed(range(guesses.likeliest.shape[1])):  # from the least likely class; the label is even less
        candidates = guesses.likeliest[:, column]
        np.copyto(true, candidates, where=guesses.likelihood[:, column] >= thresholds[candidates])
    confident = true >= 0
    cells = guesses.labels[confident] * classes + true[confident]
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def _odds_factor(rate: float, wrong: Array, sizes: Array) -> float:
    """Return the factor on the odds of the shares (K) after which their weighted mean is the rate, by bisection."""
    low, high = -MAX_LOG_FACTOR, MAX_LOG_FACTOR
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        mean = np.average(_scale_odds(wrong, np.exp(middle)), weights=sizes)
        low, high = (middle, high) if mean < rate else (low, middle)
    return float(np.exp(high))


def _scale_odds(share: Array, factor: float) -> Array:
    """Multiply the odds of shares (K) by a factor."""
    scaled = np.ones_like(share)
    below = share < 1
    scaled[below] = share[below] * factor / (1 - share[below] + share[below] * factor)
    return scaled
