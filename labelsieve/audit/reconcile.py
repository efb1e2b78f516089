"""One story: the shares of the classes made to add up to a share of the whole that is better known."""

from dataclasses import replace
from typing import Any

import numpy as np

from labelsieve.audit.estimate import Interval, Noise

Array = np.ndarray[Any, Any]
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
