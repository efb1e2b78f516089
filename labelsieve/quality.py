"""Label quality, label issues and noise of labelled samples, from predicted probabilities or from features.

With features, such as the embeddings of a pretrained network, linear heads predict every label out of fold, in two
rounds (`labelsieve.features.judge`). torch is imported only for features.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np

from labelsieve.audit.estimate import Noise
from labelsieve.audit.explain import explain
from labelsieve.audit.guesses import Array, guesses_from_probs, label_array
from labelsieve.audit.quality import THRESHOLD, Criterion, judge_labels, quality_by
from labelsieve.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from labelsieve.features.judge import Judgment

ONE_OF = "give either pred_probs or features"


def label_quality(
    labels: Array,
    pred_probs: Array | None = None,
    *,
    features: "Array | Tensor | None" = None,
    criterion: Criterion = "posterior",
    lam: float = 1.0,
) -> Array:
    """Return a quality from 0 to 1 for each label (n); low values are suspicious.

    Args:
        labels: (n) class numbers.
        pred_probs: (n, K) probabilities of a classifier that was not trained on the labels of these samples, for
            example from cross-validation. May be a file opened with np.load(..., mmap_mode="r").
        features: (n, F) features of the samples, instead of `pred_probs`; an array, a tensor or a memory-mapped file.
        criterion: "posterior", the probability that the label is correct, also by features; "all", Criteria_ALL with
            the penalty labels of these predictions; "ol", the confidence in the label; "margin", the confidence in the
            label minus that in the most likely other class.
        lam: The weight λ of Criteria_ALL.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> true = rng.integers(0, 3, 300)
        >>> pred_probs = rng.dirichlet(np.ones(3), 300) * 0.2 + np.eye(3)[true] * 0.8  # a good classifier
        >>> labels = np.where(np.arange(300) < 30, (true + 1) % 3, true)  # the first 30 labels are wrong
        >>> quality = labelsieve.label_quality(labels, pred_probs)
        >>> quality.shape, bool(quality[:30].max() < quality[30:].min())
        ((300,), True)
    """
    if features is None and pred_probs is not None:
        return quality_by(criterion, labels, pred_probs, lam)
    if features is None or pred_probs is not None:
        raise InputError(ONE_OF)
    if criterion != "posterior":
        raise InputError(f"criterion {criterion!r} needs pred_probs; omit it to judge labels by features")
    return _quality_and_noise(labels, features)[0]


def find_label_issues(
    labels: Array,
    pred_probs: Array | None = None,
    *,
    features: "Array | Tensor | None" = None,
    return_indices_ranked_by: Literal["label_quality"] | None = None,
) -> Array:
    """Find labels that are more likely wrong than right.

    Args:
        labels: (n) class numbers.
        pred_probs: (n, K) probabilities, as for `label_quality`.
        features: (n, F) features, instead of `pred_probs`.
        return_indices_ranked_by: "label_quality" to return positions instead of a mask.

    Returns:
        A boolean mask (n), or the positions of the issues, the most suspicious first.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> true = rng.integers(0, 3, 300)
        >>> pred_probs = rng.dirichlet(np.ones(3), 300) * 0.2 + np.eye(3)[true] * 0.8  # a good classifier
        >>> labels = np.where(np.arange(300) < 30, (true + 1) % 3, true)  # the first 30 labels are wrong
        >>> labelsieve.find_label_issues(labels, pred_probs).sum()
        np.int64(30)
        >>> issues = labelsieve.find_label_issues(labels, pred_probs, return_indices_ranked_by="label_quality")
        >>> sorted(issues.tolist()) == list(range(30))
        True
    """
    if return_indices_ranked_by not in (None, "label_quality"):
        raise InputError(f"return_indices_ranked_by must be label_quality or None, got {return_indices_ranked_by!r}")
    quality = label_quality(labels, pred_probs, features=features)
    issues: Array = quality < THRESHOLD
    return issues if return_indices_ranked_by is None else np.argsort(quality, kind="stable")[: issues.sum()]


def estimate_noise(
    labels: Array, pred_probs: Array | None = None, *, features: "Array | Tensor | None" = None
) -> Noise:
    """Estimate the noise rate and the noise matrix.

    Args:
        labels: (n) class numbers.
        pred_probs: (n, K) probabilities, as for `label_quality`.
        features: (n, F) features, instead of `pred_probs`.

    Returns:
        The `rate` with its range, the rate `per_class` and the noise `matrix` (K, K): row k holds the shares of the
        true classes among the samples labelled k.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> true = rng.integers(0, 3, 300)
        >>> pred_probs = rng.dirichlet(np.ones(3), 300) * 0.2 + np.eye(3)[true] * 0.8  # a good classifier
        >>> labels = np.where(np.arange(300) < 30, (true + 1) % 3, true)  # the first 30 labels are wrong
        >>> noise = labelsieve.estimate_noise(labels, pred_probs)
        >>> round(noise.rate.estimate, 2), noise.rate.low < 0.1 < noise.rate.high
        (0.1, True)
    """
    if features is None and pred_probs is not None:
        return explain(guesses_from_probs(labels, pred_probs)).noise
    if features is None or pred_probs is not None:
        raise InputError(ONE_OF)
    return _quality_and_noise(labels, features)[1]


def judge(labels: Array, features: "Array | Tensor", num_classes: int | None = None) -> "Judgment":
    """Judge labels (n) by features (n, F), after checking both. By default the largest label is the last class."""
    from labelsieve.features.judge import judge_features

    numbers = label_array(labels)
    classes = num_classes or int(numbers.max(initial=0)) + 1
    if num_classes is None and 1 < len(numbers) < classes:
        raise InputError(f"{len(numbers):,} labels, of which the largest is {classes - 1:,}; number the classes from 0")
    return judge_features(_feature_rows(features), numbers, classes)


def _feature_rows(features: "Array | Tensor") -> "Tensor":
    """Return features (n, F) as a float32 tensor; tensors stay on their device."""
    import torch

    from labelsieve.data.arrays import finite_rows

    if isinstance(features, torch.Tensor):
        return features.detach().float()
    values = np.asanyarray(features)  # keeps memory-mapped files mapped
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise InputError(
            f"features must be numbers of shape (samples, features), got {values.dtype} of shape {values.shape}"
        )
    return finite_rows(values, "features")


def _quality_and_noise(labels: Array, features: "Array | Tensor") -> tuple[Array, Noise]:
    judgment = judge(labels, features)
    judged = judge_labels(judgment.first, judgment.second)
    return judged.quality, judged.noise
