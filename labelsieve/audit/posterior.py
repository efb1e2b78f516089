"""How probable each label is, given a classifier's guess and where the wrong labels of each class come from.

A classifier says how likely each class j is the true one; the noise matrix says how often class j is labelled y. By
Bayes' rule, P(true = y | label y) = p[y] T[y, y] / sum over j of p[j] T[y, j], with T[y, j] = P(label y | true j).
Wrong labels that come from one class (pair noise) make that class weigh more, as a penalty label does; where they come
from all classes alike, the order is that of the confidence in the label.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from labelsieve.audit.guesses import Guesses, evenly

Array = np.ndarray[Any, Any]
ROUNDS = 3  # of estimating the joint anew: more believe the classifier too much (docs/decisions/023)
PRIOR = 5.0  # samples that each class is believed to have, spread over all labels
MOST = 200_000  # samples that the joint is estimated from


def counted_joint(guesses: Guesses) -> Array:
    """How many samples have label y (row) and likeliest class j (column), (K, K)."""
    return _summed(guesses.labels, guesses.likeliest[:, :1], np.ones((len(guesses), 1)), guesses.num_classes)


def posterior(guesses: Guesses, label_given: Array) -> tuple[Array, Array]:
    """The probability of each label (n), and the joint (K, K) that the same probabilities add up to."""
    classes, weight, rest = weighed(guesses, label_given)
    joint = _summed(guesses.labels, classes, weight, guesses.num_classes)
    spread = np.bincount(guesses.labels, rest, guesses.num_classes) / guesses.num_classes
    return weight[:, 0], joint + spread[:, None]


def weighed(guesses: Guesses, label_given: Array) -> tuple[Array, Array, Array]:
    """By Bayes' rule: classes (n, 1 + M), the label first, how probable each is, and what is left for others (n)."""
    labels = guesses.labels[:, None]
    classes = np.concatenate([labels, guesses.likeliest], axis=1)
    given = label_given[labels, classes]
    given[:, 1:][guesses.likeliest == labels] = 0  # the label counts once
    likelihood = np.concatenate([guesses.confidence[:, None], guesses.likelihood], axis=1, dtype=np.float64)
    left = np.clip(1 - np.where(given > 0, likelihood, 0).sum(1), 0, None)
    others = guesses.num_classes - (given > 0).sum(1)
    rest = left * np.clip(label_given.sum(1)[guesses.labels] - given.sum(1), 0, None) / np.maximum(others, 1)
    weight = likelihood * given
    total = weight.sum(1) + rest
    total = np.where(total > 0, total, 1)
    return classes, weight / total[:, None], rest / total


def best_other(guesses: Guesses, label_given: Array) -> Array:
    """The most probable class besides the label (n)."""
    classes, weight, _ = weighed(guesses, label_given)
    other: Array = classes[np.arange(len(guesses)), 1 + weight[:, 1:].argmax(1)]
    return other


def settled(guesses: Guesses, rounds: int = ROUNDS) -> Array:
    """P(label | true class) (K, K), estimated anew a few times; of many samples, from some of them, evenly spaced."""
    some = guesses.at(evenly(len(guesses), MOST))
    joint = counted_joint(some)
    for _ in range(rounds):
        joint = posterior(some, label_given_true(joint))[1]
    return label_given_true(joint)


def quality(guesses: Guesses, label_given: Array | None = None) -> Array:
    """The probability of each label (n)."""
    given = settled(guesses) if label_given is None else label_given
    return np.concatenate([posterior(piece, given)[0] for piece in pieces(guesses)])


def suggestions(guesses: Guesses, label_given: Array) -> Array:
    """The most probable class besides the label (n), of any number of samples."""
    return np.concatenate([best_other(piece, label_given) for piece in pieces(guesses)])


def pieces(guesses: Guesses, size: int = MOST) -> Iterator[Guesses]:
    return (guesses.at(slice(first, first + size)) for first in range(0, len(guesses), size))


def label_given_true(joint: Array) -> Array:
    """T[y, j] = P(label y | true class j) of a joint (K, K)."""
    known = joint + PRIOR / len(joint)
    shares: Array = known / known.sum(0)
    return shares


def _summed(labels: Array, classes: Array, weight: Array, count: int) -> Array:
    cells = (labels[:, None] * count + classes).ravel()
    return np.bincount(cells, weight.ravel(), count * count).reshape(count, count)
