"""Judge labels by the probabilities of any classifier."""

from typing import Literal, NamedTuple

import numpy as np

from labelsieve.audit.estimate import Interval, Noise, reconcile, with_shares
from labelsieve.audit.explain import explain
from labelsieve.audit.guesses import (
    Array,
    Guesses,
    checked_labels,
    each_checked_chunk,
    guesses_from_probs,
    stable_order,
)
from labelsieve.audit.posterior import calibrate, label_probability, with_mean_error
from labelsieve.errors import InputError, nearest

Criterion = Literal["posterior", "all", "ol", "margin"]
CRITERIA = ("posterior", "all", "ol", "margin")
THRESHOLD = 0.5  # labels with a lower quality are more likely wrong than right
LOWEST = 0.05  # share of right labels among those that seem surely wrong, if errors depend on the class alone


def quality_by(criterion: Criterion, labels: Array, pred_probs: Array, lam: float = 1.0) -> Array:
    """Return the quality of each label (n) by a criterion (`labelsieve.label_quality`)."""
    if criterion not in CRITERIA:
        raise InputError(f"there is no criterion {criterion!r}: {nearest(criterion, CRITERIA)}")
    if criterion == "all":
        return _criteria_all(labels, pred_probs, lam)
    if criterion != "posterior":
        return _confidence(labels, pred_probs, criterion == "margin")
    return judge_labels(guesses_from_probs(labels, pred_probs)).quality


class Judged(NamedTuple):
    """The judgment of labels."""

    guesses: Guesses  # about true classes
    label_given: Array  # (K, K) P(label | true class)
    quality: Array  # (n) probability that the label is correct
    noise: Noise
    first_rate: float | None  # noise rate of the undecided labels of the first guesses; None if they were learned


def judge_labels(first: Guesses, second: Guesses | None = None, rate: Interval | None = None) -> Judged:
    """Judge labels by out-of-sample guesses.

    The noise is always estimated from the first guesses: a classifier that learned corrections confirms them. If they
    are about the labels before a person decided on some, the noise rate is that of the labels that are left.

    Args:
        first: Guesses about labels.
        second: Guesses about true classes, by a classifier that learned `true_class_probs` of the first ones.
        rate: Noise rate, if it is known better; the range includes that of the first guesses.
    """
    guesses, label_given, noise, weight = explain(first)
    if rate is not None:
        rate = Interval(rate.estimate, min(rate.low, noise.rate.low), max(rate.high, noise.rate.high))
        noise = reconcile(noise, rate, np.bincount(first.labels, minlength=first.num_classes))
    first_rate = noise.rate.estimate * len(first) / max(1, len(first.undecided))
    if second is not None:
        if second.decided is not None and first.decided is None:
            likely = with_mean_error(label_probability(guesses, label_given), noise.rate.estimate)
            noise = _noise_left(noise, likely, first.labels, second)
        guesses = calibrate(second, label_given)
    quality = with_mean_error(label_probability(guesses, label_given), noise.rate.estimate)
    return Judged(guesses, label_given, _at_least(quality, (1 - weight) * LOWEST), noise, first_rate)


def _at_least(quality: Array, lowest: float) -> Array:
    """Raise qualities (n) below one half so that none is below `lowest`; their order and the suspects stay."""
    return np.where(quality < THRESHOLD, lowest + (1 - lowest / THRESHOLD) * quality, quality)


def _noise_left(noise: Noise, likely: Array, before: Array, now: Guesses) -> Noise:
    """Return the noise that is left after a person decided on some labels, which are then correct.

    Args:
        noise: Of the labels before.
        likely: (n) Probability that each label was correct before.
        before: (n) these labels.
        now: Guesses about the labels after the decisions.
    """
    assert now.decided is not None
    undecided, classes = now.undecided.labels, now.num_classes
    wrong = _counts(undecided, classes, (1 - likely)[~now.decided])
    most, sizes, earlier = (_counts(labels, classes) for labels in (undecided, now.labels, before))
    sizes = np.maximum(sizes, 1)
    estimate, low, high = np.array([*noise.per_class, noise.rate]).T
    left = wrong / sizes
    low, high = (left + (end - estimate) * earlier / sizes for end in (low, high))  # the same range in samples
    bounds = (left, np.maximum(low, 0), np.minimum(high, most / sizes))
    *per_class, rate = (Interval(*shares) for shares in zip(*(part.tolist() for part in bounds), strict=True))
    return with_shares(noise, rate, per_class)


def _counts(labels: Array, classes: int, weights: Array | None = None) -> Array:
    """Return the number of samples with each label, or the sum of their weights, and last that of all (K + 1)."""
    counts = np.bincount(labels, weights, classes)
    return np.append(counts, counts.sum())


def _confidence(labels: Array, pred_probs: Array, margin: bool) -> Array:
    """Return the confidence in each label (n), or half of one plus its margin over the most likely other class."""
    pred_probs = np.asanyarray(pred_probs)
    labels = checked_labels(labels, pred_probs)
    quality = np.empty(len(labels))

    def score(rows: slice, probs: Array) -> None:
        place = np.arange(len(probs)), labels[rows]
        confidence = probs[place].astype(np.float64)
        if margin:
            probs = probs.copy()
            probs[place] = -1
            confidence = (1 + (confidence - probs[place[0], probs.argmax(1)])) / 2  # argmax is faster than max
        quality[rows] = confidence

    each_checked_chunk(pred_probs, score)
    return quality


def _criteria_all(labels: Array, pred_probs: Array, lam: float) -> Array:
    """Return (Criteria_ALL + λ) / (1 + λ) (n), with penalty labels from the mean prediction of each label.

    Reads the probabilities twice.
    """
    if not (np.isfinite(lam) and lam >= 0):
        raise InputError(f"lam must be a number of at least 0, got {lam}")
    pred_probs = np.asanyarray(pred_probs)
    labels = checked_labels(labels, pred_probs)
    penalty = _penalty_labels(labels, pred_probs)
    scores = np.empty(len(labels))

    def score(rows: slice, probs: Array) -> None:
        confidence = probs[np.arange(len(probs)), labels[rows]]
        scores[rows] = confidence - lam * np.einsum("nk,nk->n", penalty[labels[rows]], probs)

    each_checked_chunk(pred_probs, score)
    return np.clip((scores + lam) / (1 + lam), 0, 1)


def _penalty_labels(labels: Array, pred_probs: Array) -> Array:
    """Return the penalty labels (K, K) in float32.

    A row holds the summed predictions of the other classes for samples with that label, scaled to 1; it is uniform
    for a label without samples.
    """
    classes = pred_probs.shape[1]
    sums = np.zeros((classes, classes))

    def add(rows: slice, probs: Array) -> None:
        order = stable_order(labels[rows])
        present, first = np.unique(labels[rows][order], return_index=True)
        sums[present] += np.add.reduceat(probs[order], first, axis=0, dtype=np.float64)

    each_checked_chunk(pred_probs, add, threads=1)  # in this order
    np.fill_diagonal(sums, 0)
    total = sums.sum(1, keepdims=True)
    uniform = (1 - np.eye(classes)) / (classes - 1)
    return np.where(total > 0, sums / np.where(total > 0, total, 1), uniform).astype(np.float32)
