"""Explain the guesses of a classifier that was not trained on the labels it judges: true classes and noise.

Errors may depend on the class alone, as in most simulations, or on the sample, as those of people do. In the first
case, unmixing (`labelsieve.audit.posterior`) finds them: mixed predictions are classes that overlap. In the second
case, hard samples are mislabelled more often, and part of what looks like overlap is wrong labels. One label per sample
cannot tell these apart for certain, but one is more plausible: errors of people occur among easy samples, too, and
become more frequent with the difficulty. `explain` weighs both by this (decision 38).

Difficulty of a sample: its rank among the samples predicted as the same class, from 0 (most confident) to 1.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from labelsieve.audit.estimate import (
    Z_95,
    Interval,
    Noise,
    confident_joint,
    estimate_class_dependent_noise,
    reconcile,
    with_correct_labels,
)
from labelsieve.audit.guesses import Array, Guesses, evenly_spaced, stable_order
from labelsieve.audit.posterior import (
    MAX_SAMPLES,
    best_temperature,
    estimate_label_given_confident,
    levelled,
    own_errors,
    share_of_disagreements,
    unmix_with,
)

EASIER_SHARE = 0.5  # of the samples, in which the classifier hardly errs itself
BINS = 20  # of the difficulty of the easier samples
SLOPE_VARIANCE = 0.5  # of the slope before anything is seen: few samples do not show that it is steep
STEEP, STEEP_WIDTH = 0.85, 0.1  # slope of the log-odds of an error in the difficulty, from which errors depend on it
EASY_ERRORS = 0.02  # share of errors among the easiest samples with which half of the effect is credited
WEAK, WEAK_WIDTH = 0.24, 0.04  # share of its own errors from which a classifier is too weak to tell
BEYOND_COUNT = 0.4  # share of the disagreements beyond the confident count that are errors of people
UPPER_SHARE = 2 / 3  # share of the disagreements beyond the estimate that the range includes
LOWER_SHARE = 1 / 2  # of these, which the range includes below the estimate at least
NEGLIGIBLE = 0.01  # weight below which errors count as dependent on the class alone
NEWTON_STEPS = 25


class Explanation(NamedTuple):
    """Result of `explain`."""

    guesses: Guesses  # about true classes
    label_given: Array  # (K, K) P(label | true class)
    noise: Noise
    weight: float  # how plausible it is that errors depend on the sample, from 0 to 1


def explain(guesses: Guesses) -> Explanation:
    """Return true classes and noise that explain guesses about the labels of these samples.

    Labels that a person decided on are correct. The noise of the other labels is estimated from these alone.
    """
    decided = guesses.decided
    if decided is None or not decided.any():
        return _explain(guesses)
    if decided.all():
        classes = guesses.num_classes
        none = Interval(0.0, 0.0, 0.0)
        return Explanation(guesses, np.eye(classes), Noise(none, [none] * classes, np.eye(classes)), 0.0)
    found = _explain(replace(guesses.undecided, decided=None))
    noise = with_correct_labels(found.noise, found.guesses.labels, guesses.labels)
    return found._replace(guesses=guesses.replaced(~decided, found.guesses), noise=noise)


def _explain(guesses: Guesses) -> Explanation:
    """Return true classes and noise that explain guesses, none of whose labels a person decided on."""
    label_given = estimate_label_given_confident(guesses)
    temperature = best_temperature(guesses, label_given)
    true_guesses = unmix_with(guesses, label_given, temperature)
    noise = estimate_class_dependent_noise(guesses, true_guesses, label_given)
    some = evenly_spaced(len(guesses), MAX_SAMPLES)
    counted = _wrong_share(confident_joint(unmix_with(guesses.at(some), label_given, temperature, mixed=False)))
    easy = _share_among_easiest(true_guesses, label_given)
    disagreements = share_of_disagreements(guesses)
    weight = weight_of_samples(slope_of_errors(true_guesses.at(some)), easy, disagreements)
    rate = _weighed_rate(noise.rate, counted, disagreements, weight, len(guesses))
    if weight > NEGLIGIBLE:
        label_given = levelled(label_given, weight / 2)
        true_guesses = unmix_with(guesses, label_given, best_temperature(guesses, label_given))
    noise = reconcile(noise, rate, np.bincount(guesses.labels, minlength=guesses.num_classes))
    return Explanation(true_guesses, label_given, noise, weight)


def weight_of_samples(slope: float, easy: float, disagreements: float) -> float:
    """Return how plausible it is that errors depend on the sample, from 0 to 1.

    Args:
        slope: Of the log-odds of a disagreement in the difficulty, among the easier samples.
        easy: Share of wrong labels among the easiest samples.
        disagreements: Share of labels that the classifier predicts differently.
    """
    steep = 1 / (1 + np.exp(np.clip((STEEP - slope) / STEEP_WIDTH, -50, 50)))
    strong = np.clip((WEAK - own_errors(disagreements, easy)) / WEAK_WIDTH, 0, 1)
    return float(steep * strong * easy / (easy + EASY_ERRORS))


def slope_of_errors(guesses: Guesses) -> float:
    """Return the slope of the log-odds that label and most likely class differ, per unit of difficulty.

    It is the most probable slope of a logistic regression on the easier samples, with a normal prior around 0.
    """
    if not len(guesses):
        return 0.0
    difficulty = difficulties(guesses)
    easier = difficulty < EASIER_SHARE
    bins = (difficulty[easier] * (BINS / EASIER_SHARE)).astype(np.int64)
    samples = np.bincount(bins, minlength=BINS)
    errors = np.bincount(bins, (guesses.likeliest[:, 0] != guesses.labels)[easier], BINS)
    centred = (np.arange(BINS) + 0.5) * EASIER_SHARE / BINS - EASIER_SHARE / 2
    columns = np.stack([np.ones(BINS), centred], axis=1)  # (BINS, 2)
    precision = np.diag([1e-6, 1 / SLOPE_VARIANCE])
    mean = (errors.sum() + 0.5) / (samples.sum() + 1)
    parameters = np.array([np.log(mean / (1 - mean)), 0.0])
    for _ in range(NEWTON_STEPS):
        share = 1 / (1 + np.exp(-np.clip(columns @ parameters, -30, 30)))
        gradient = columns.T @ (errors - samples * share) - precision @ parameters
        curvature = (columns.T * (samples * share * (1 - share))) @ columns + precision
        parameters = parameters + np.clip(np.linalg.solve(curvature, gradient), -5, 5)
    return float(parameters[1])


def difficulties(guesses: Guesses) -> Array:
    """Return the difficulty (n) of each sample; samples with equal probabilities have equal difficulties."""
    classes, likelihood = guesses.likeliest[:, 0], guesses.likelihood[:, 0]
    order = np.argsort(-likelihood)
    order = order[stable_order(classes[order])]
    sizes = np.bincount(classes, minlength=guesses.num_classes)
    place = np.arange(len(guesses)) - (np.cumsum(sizes) - sizes)[classes[order]]
    ranks = (place + 0.5) / sizes[classes[order]]
    differs = (np.diff(classes[order]) != 0) | (np.diff(likelihood[order]) != 0)
    group = np.concatenate([[0], np.cumsum(differs)])
    means = np.bincount(group, ranks) / np.bincount(group)
    difficulty = np.empty(len(guesses))
    difficulty[order] = means[group]
    return difficulty


def _weighed_rate(rate: Interval, counted: float, disagreements: float, weight: float, samples: int) -> Interval:
    """Return the rate between that of class-dependent errors and that of errors of people, and its range."""
    people = counted + BEYOND_COUNT * (disagreements - counted)
    estimate = rate.estimate + weight * (people - rate.estimate)
    beyond = max(0.0, disagreements - estimate)
    high = estimate + UPPER_SHARE * beyond
    error = Z_95 * np.sqrt(high * (1 - high) / samples)
    low = min(rate.low, estimate - LOWER_SHARE * beyond)
    return Interval(float(estimate), float(max(0.0, low)), float(min(1.0, high + error)))


def _share_among_easiest(guesses: Guesses, label_given: Array) -> float:
    """Return the share of wrong labels according to P(label | true class) (K, K), counted among the easiest."""
    columns = zip(guesses.likeliest.T, guesses.likelihood.T, strict=True)  # one at a time needs less memory
    correct = sum((label_given.diagonal()[classes] * likelihood).sum() for classes, likelihood in columns)
    return float(1 - correct / max(guesses.likelihood.sum(dtype=np.float64), 1e-12))


def _wrong_share(joint: Array) -> float:
    """Return the share of the counted samples (K, K) that are off the diagonal."""
    return float(1 - joint.trace() / max(joint.sum(), 1))
