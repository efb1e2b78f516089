"""How much each label can be trusted, from probabilities that anybody's classifier gave."""

from typing import Any, Literal

import numpy as np

from labelsieve.audit import posterior
from labelsieve.audit.guesses import checked_labels, guesses_of, pieces
from labelsieve.audit.posterior import unmixed
from labelsieve.errors import InputError, nearest

Array = np.ndarray[Any, Any]
Criterion = Literal["posterior", "all", "ol", "margin"]
CRITERIA = ("posterior", "all", "ol", "margin")
THRESHOLD = 0.5  # a label that is more likely wrong than right


def label_quality(labels: Array, pred_probs: Array, *, criterion: Criterion = "posterior", lam: float = 1.0) -> Array:
    """A number from 0 to 1 per sample, low where the label is suspicious.

    labels: (n) class numbers. pred_probs: (n, K), may be a file opened with np.load(..., mmap_mode="r"). criterion:
    posterior, the probability that the label is right; all, Criteria_ALL with the penalty labels of these predictions;
    ol, the confidence in the label; margin, that minus the likeliest other class. lam: λ of Criteria_ALL.
    """
    if criterion not in CRITERIA:
        raise InputError(f"there is no criterion {criterion!r}: {nearest(criterion, CRITERIA)}")
    if criterion == "all":
        return criteria_all(labels, pred_probs, lam)
    guesses = guesses_of(labels, pred_probs)
    if criterion == "ol":
        return guesses.confidence.astype(np.float64)
    if criterion == "margin":
        return (1 + margin(guesses.labels, guesses.confidence, guesses.likeliest, guesses.likelihood)) / 2
    return posterior.quality(*unmixed(guesses))


def find_label_issues(
    labels: Array, pred_probs: Array, *, return_indices_ranked_by: Literal["label_quality"] | None = None
) -> Array:
    """Which labels are more likely wrong than right: a mask (n), or their positions, the most suspicious first."""
    if return_indices_ranked_by not in (None, "label_quality"):
        raise InputError(f"return_indices_ranked_by is label_quality or None, got {return_indices_ranked_by!r}")
    quality = label_quality(labels, pred_probs)
    issues: Array = quality < THRESHOLD
    if return_indices_ranked_by is None:
        return issues
    found = np.flatnonzero(issues)
    ranked: Array = found[np.argsort(quality[found], kind="stable")]
    return ranked


def criteria_all(labels: Array, pred_probs: Array, lam: float) -> Array:
    """(Criteria_ALL + λ) / (1 + λ), with penalty labels from the mean prediction of each label; two readings."""
    if not (np.isfinite(lam) and lam >= 0):
        raise InputError(f"lam must be a number of at least 0, got {lam}")
    labels = checked_labels(labels, pred_probs)
    penalty = penalty_labels(labels, pred_probs)
    scores = np.empty(len(labels))
    for rows, probs in pieces(pred_probs):
        observed = probs[np.arange(len(probs)), labels[rows]]
        scores[rows] = observed - lam * np.einsum("nk,nk->n", penalty[labels[rows]], probs)
    quality: Array = np.clip((scores + lam) / (1 + lam), 0, 1)
    return quality


def penalty_labels(labels: Array, pred_probs: Array) -> Array:
    """(K, K) float32: per observed label, the summed prediction of the other classes, scaled to one; else uniform."""
    classes = pred_probs.shape[1]
    sums = np.zeros((classes, classes))
    for rows, probs in pieces(pred_probs):
        order = np.argsort(labels[rows], kind="stable")
        present, first = np.unique(labels[rows][order], return_index=True)
        sums[present] += np.add.reduceat(probs[order], first, axis=0, dtype=np.float64)
    np.fill_diagonal(sums, 0)
    total = sums.sum(1, keepdims=True)
    uniform = (1 - np.eye(classes)) / (classes - 1)
    return np.where(total > 0, sums / np.where(total > 0, total, 1), uniform).astype(np.float32)


def margin(labels: Array, confidence: Array, likeliest: Array, likelihood: Array) -> Array:
    """Confidence in the label minus that in the likeliest other class (n)."""
    other = np.where(likeliest[:, 0] == labels, likelihood[:, 1], likelihood[:, 0])
    gap: Array = confidence.astype(np.float64) - other
    return gap
