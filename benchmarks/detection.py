"""Quality of a score that ranks wrong labels, and of a decision, in NumPy."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def average_precision(wrong: Array, score: Array) -> float:
    """Return the mean precision at each wrong label, lowest scores first; equal scores are taken together."""
    found, looked = _steps(wrong, score)
    new = np.diff(found, prepend=0)
    return float((new * found / looked).sum() / found[-1])


def auroc(wrong: Array, score: Array) -> float:
    """Return the share of pairs of a wrong and a correct label in which the wrong one scores lower; ties count half."""
    found, looked = _steps(wrong, score)
    passed = looked - found  # correct labels so far
    before = np.concatenate([[0], found[:-1]])
    return float((np.diff(passed, prepend=0) * (before + found) / 2).sum() / (found[-1] * passed[-1]))


def precision_at_errors(wrong: Array, score: Array) -> float:
    """Return the precision among the k lowest scores, where k is the number of wrong labels; ties in data order."""
    count = int(wrong.sum())
    return float(wrong[np.argsort(score, kind="stable")[:count]].mean())


def ranking(wrong: Array, score: Array) -> dict[str, float]:
    """Return all figures of a score; low scores mark suspicious labels."""
    figures = (average_precision, auroc, precision_at_errors)
    return {figure.__name__: figure(wrong, score) for figure in figures}


def decision(wrong: Array, issues: Array) -> dict[str, float]:
    """Return precision, recall and F1 of a decision per label; 0 if nothing is flagged."""
    hits = float((wrong & issues).sum())
    flagged, errors = float(issues.sum()), float(wrong.sum())
    return {
        "precision": hits / flagged if flagged else 0.0,
        "recall": hits / errors if errors else 0.0,
        "f1": 2 * hits / (flagged + errors) if flagged + errors else 0.0,
    }


def _steps(wrong: Array, score: Array) -> tuple[Array, Array]:
    """Return the number of wrong labels and of all labels up to each distinct score."""
    order = np.argsort(score, kind="stable")
    last = np.append(np.diff(score[order]) != 0, True)  # last of equal scores
    return np.cumsum(wrong[order])[last], np.flatnonzero(last) + 1
