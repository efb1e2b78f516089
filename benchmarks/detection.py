"""How well a score finds wrong labels: figures of a ranking and of a decision, in NumPy alone."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def average_precision(wrong: Array, score: Array) -> float:
    """Precision at each wrong label, the lowest score first, averaged; equal scores are taken together."""
    found, looked = _steps(wrong, score)
    new = np.diff(found, prepend=0)
    return float((new * found / looked).sum() / found[-1])


def auroc(wrong: Array, score: Array) -> float:
    """The share of pairs of a wrong and a right label in which the wrong one scores lower; equal ones count half."""
    found, looked = _steps(wrong, score)
    passed = looked - found  # right labels so far
    before = np.concatenate([[0], found[:-1]])
    return float((np.diff(passed, prepend=0) * (before + found) / 2).sum() / (found[-1] * passed[-1]))


def precision_at_errors(wrong: Array, score: Array) -> float:
    """The share of wrong labels among as many of the lowest scores; equal scores in the order of the data."""
    count = int(wrong.sum())
    return float(wrong[np.argsort(score, kind="stable")[:count]].mean())


def ranking(wrong: Array, score: Array) -> dict[str, float]:
    """All figures of a score, low where a label is suspicious."""
    figures = (average_precision, auroc, precision_at_errors)
    return {figure.__name__: figure(wrong, score) for figure in figures}


def decision(wrong: Array, issues: Array) -> dict[str, float]:
    """Precision, recall and F1 of a yes or no per label; 0 where nothing is flagged."""
    hits = float((wrong & issues).sum())
    flagged, errors = float(issues.sum()), float(wrong.sum())
    return {
        "precision": hits / flagged if flagged else 0.0,
        "recall": hits / errors if errors else 0.0,
        "f1": 2 * hits / (flagged + errors) if flagged + errors else 0.0,
    }


def _steps(wrong: Array, score: Array) -> tuple[Array, Array]:
    """Wrong labels found, and labels looked at, up to and with each different score."""
    order = np.argsort(score, kind="stable")
    last = np.append(np.diff(score[order]) != 0, True)  # of its score
    return np.cumsum(wrong[order])[last], np.flatnonzero(last) + 1
