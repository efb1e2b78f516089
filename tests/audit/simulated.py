"""Simulated classifiers on labels with known noise."""

import numpy as np
import torch

from labelsieve.audit.others import OtherIssues
from labelsieve.noise import corrupt


def true_class_predictions(matrix, count=4000, classes=10, seed=0, sure=3.0):
    """Return noisy labels, probabilities of a perfect classifier of the true classes, and the true classes.

    `matrix` is a function of the number of classes, `sure` the distance between the classes.
    """
    random = np.random.default_rng(seed)
    clean = random.integers(0, classes, count)
    labels = corrupt(torch.from_numpy(clean), matrix(classes), seed).numpy()
    features = random.normal(size=(count, classes))
    features[np.arange(count), clean] += sure
    likely = np.exp(sure * (features - features.max(1, keepdims=True)))
    return labels, likely / likely.sum(1, keepdims=True), clean


def label_predictions(matrix, count=4000, classes=10, seed=0, sure=2.5, temperature=1.0):
    """Return noisy labels, probabilities of a perfect classifier of the noisy labels, and the true classes.

    Its logits are divided by the temperature, so that it is over- or underconfident.
    """
    labels, true, clean = true_class_predictions(matrix, count, classes, seed, sure)
    raised = (true @ matrix(classes).numpy()) ** (1 / temperature)
    return labels, raised / raised.sum(1, keepdims=True), clean


def other_issues(count, groups=(), outliers=()):
    """Return near-duplicates in these groups of positions, and outliers at these positions."""
    first, sets = np.full(count, -1), [[] for _ in range(count)]
    for group in groups:
        first[list(group)] = min(group)
        for sample in group:
            sets[sample] = [other for other in group if other != sample]
    strange = np.isin(np.arange(count), list(outliers))
    nearness, distance = np.where(first >= 0, 0.25, 0.875), np.where(strange, 0.625, 0.9375)
    return OtherIssues(first, sets, nearness, strange, distance)
