"""Judge labels by features: out-of-fold predictions of linear heads for every sample, in two rounds.

First round: linear heads predict the labels of the fifth that they did not learn from. The strength of their
regularisation is chosen by how well they predict held-out labels. From these predictions come the estimate of the
noise and the probabilities of the true classes (`labelsieve.audit.posterior`).

Second round: heads learn these probabilities instead of the labels, again out of fold, and predict true classes. This
ranks wrong labels better than the first round, but its own estimate of the noise would be too low: a head that learned
from corrected labels confirms them. The estimate therefore stays that of the first round (docs/decisions/036).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelsieve.audit.explain import explain
from labelsieve.audit.guesses import Array, Guesses, evenly_spaced, guesses_from_probs, with_decided
from labelsieve.audit.held_out import label_log_likelihoods
from labelsieve.audit.posterior import TEMPERATURES, calibrate, true_class_probs
from labelsieve.errors import InputError
from labelsieve.models.linear import Targets, fit_heads, head_logits, one_hot, standardise
from labelsieve.runtime import generator, torch_threads

FOLDS = 5
STRENGTHS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)  # of the regularisation, strongest first
SECOND_STRENGTH = 1 / 3  # of that of the first round: corrected targets are less noisy than labels
PATH_SAMPLES = 20_000  # for choosing the strength
MAX_LEARNED = 6 * 10**10  # multiplications per pass over the samples that are learned; all samples are judged
PREDICTED = 2**25  # probabilities predicted at a time
PRODUCTS = 800  # matrix products of all heads: forward and backward, about 80 steps for each of five fits
TIMED_ROWS, TIMED_PRODUCTS = 2000, 5  # of a forecast


@dataclass(frozen=True)
class Judgment:
    """Out-of-fold predictions for all samples."""

    first: Guesses  # about labels, before the decisions of a person if these are known
    second: Guesses  # about true classes
    strength: float  # regularisation of the first round
    log_likelihood: float  # mean of the held-out labels, at the best temperature
    label_given: Array  # (K, K) P(label | true class) that explains the first round

    def targets(self) -> Array:
        """Return the probabilities of the true classes (n, K), for the head that is delivered."""
        return true_class_probs(calibrate(self.second, self.label_given), self.label_given)


def judge_features(
    features: Tensor,
    labels: Array,
    num_classes: int,
    decided: Array | None = None,
    seed: int = 0,
    before: Array | None = None,
) -> Judgment:
    """Predict the labels (n) of all samples out of fold from features (n, F), in two rounds.

    Args:
        decided: (n) bool: labels that a person decided on; they count as correct.
        seed: of the division into folds.
        before: (n) labels before these decisions. If they are known, the first round judges them: people decide on
            the most suspicious labels first, and what is left would not show how labels went wrong.
    """
    _refuse_unsuitable(features, labels, num_classes)
    x = standardise(features.float())[0]
    learned, counted = (labels, decided) if before is None else (before, None)
    given = torch.from_numpy(learned).to(x.device)
    folds = stratified_folds(given, FOLDS, seed)
    some = _learned_samples(given, MAX_LEARNED // (FOLDS * x.shape[1] * num_classes), seed)
    path = evenly_spaced(len(x), PATH_SAMPLES)
    counted_path = None if counted is None else counted[path]
    strength, log_likelihood, heads = _best_strength(
        x[path], one_hot(given[path], num_classes), folds[path], counted_path
    )

    def given_rows(cut: slice) -> Tensor:
        return one_hot(given[some][cut], num_classes)

    heads = _fit_folds(x[some], given_rows, folds[some], strength, heads)
    first = _held_out_guesses(x, heads, folds, learned, counted)
    explained = explain(first)
    learnable = explained.guesses.at(some)
    known = None if decided is None else decided[some]

    def corrected_rows(cut: slice) -> Tensor:
        rows = true_class_probs(learnable.at(cut), explained.label_given)
        if known is not None:
            rows[known[cut]] = np.eye(num_classes, dtype=np.float32)[labels[some][cut][known[cut]]]
        return torch.from_numpy(rows).to(x.device)

    heads = _fit_folds(x[some], corrected_rows, folds[some], SECOND_STRENGTH * strength)
    second = _held_out_guesses(x, heads, folds, labels, decided)
    return Judgment(first, second, strength, log_likelihood, explained.label_given)


def choose_strength(features: Tensor, labels: Tensor, num_classes: int, seed: int = 0) -> tuple[Tensor, float]:
    """Return labels (n) as targets (n, K), and the strength of the regularisation found by cross-validation."""
    _refuse_unsuitable(features, labels.cpu().numpy(), num_classes)
    x = standardise(features.float())[0]
    targets, folds = one_hot(labels, num_classes), stratified_folds(labels, FOLDS, seed)
    path = evenly_spaced(len(x), PATH_SAMPLES)
    return targets, _best_strength(x[path], targets[path], folds[path], None, calibrated=False)[0]


def seconds_of_heads(samples: int, features: int, num_classes: int, device: str = "cpu") -> float:
    """Return the seconds that `judge_features` and the delivered head take on one thread, from matrix products."""
    rows = min(samples, TIMED_ROWS)
    learned = min(samples, max(1, MAX_LEARNED // (FOLDS * features * num_classes)))
    x, weights = torch.ones(rows, features, device=device), torch.ones(features, FOLDS * num_classes, device=device)
    with torch_threads(1):
        for count in (1, TIMED_PRODUCTS):  # the first one is not counted
            began = time.perf_counter()
            for _ in range(count):
                (x @ weights).log_softmax(1).sum().item()  # waits for the device
    return (time.perf_counter() - began) / TIMED_PRODUCTS * PRODUCTS * learned / rows


def fit_head(features: Tensor, targets: Tensor, strength: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and scale (F) of the features (n, F), and a head (F + 1, K) fitted to targets (n, K)."""
    x, mean, scale = standardise(features.float())
    used = torch.ones(1, len(x), dtype=torch.bool, device=x.device)
    return mean, scale, fit_heads(x, targets, used, strength)[0]


def stratified_folds(labels: Tensor, count: int, seed: int) -> Tensor:
    """Return the number of the fold (n) of each sample; the samples of each label are spread over all folds."""
    order = torch.randperm(len(labels), generator=generator(seed, "folds")).to(labels.device)
    by_label = order[labels[order].sort(stable=True).indices]  # shuffled within each label
    folds = torch.empty_like(labels)
    folds[by_label] = torch.arange(len(labels), device=labels.device) % count
    return folds


def _learned_samples(labels: Tensor, most: int, seed: int) -> Array:
    """Return ascending positions of about `most` samples to learn from, with an equal share of every label (n)."""
    step = -(-len(labels) // max(1, most))
    if step == 1:
        return np.arange(len(labels))
    order = torch.randperm(len(labels), generator=generator(seed, "learned")).to(labels.device)
    by_label = order[labels[order].sort(stable=True).indices]
    return by_label[::step].sort().values.cpu().numpy()


def out_of_fold(
    x: Tensor, targets: Tensor, folds: Tensor, strength: float, start: Tensor | None = None
) -> tuple[Array, Tensor]:
    """Return the probabilities (n, K) of each sample by the head that did not learn from it, and the heads."""
    heads = _fit_folds(x, targets, folds, strength, start)
    probs = np.empty(targets.shape, np.float32)
    for rows, part in _held_out_probs(x, heads, folds):
        probs[rows] = part
    return probs, heads


def _fit_folds(x: Tensor, targets: Targets, folds: Tensor, strength: float, start: Tensor | None = None) -> Tensor:
    """Return a head for each fold that is fitted to the samples of the other folds, (S, F + 1, K)."""
    return fit_heads(x, targets, folds != folds.unique()[:, None], strength, start)


def _held_out_probs(x: Tensor, heads: Tensor, folds: Tensor) -> Iterator[tuple[Array, Array]]:
    """Yield positions and probabilities (m, K) of all samples, by the head that did not learn from them."""
    for number, head in zip(folds.unique(), heads, strict=True):
        for rows in (folds == number).nonzero()[:, 0].split(max(1, PREDICTED // head.shape[1])):
            yield rows.cpu().numpy(), head_logits(x[rows], head[None])[:, 0].softmax(-1).cpu().numpy()


def _best_strength(
    x: Tensor, targets: Tensor, folds: Tensor, decided: Array | None, calibrated: bool = True
) -> tuple[float, float, Tensor]:
    """Return the strength of the regularisation, the mean log-likelihood of held-out labels, and the heads.

    Strengths are tried in descending order, each from the heads of the one before, until the likelihood declines. The
    strongest within one standard error of the best is taken: weaker ones fit more wrong labels for no clear gain.
    `calibrated`: the predictions will be calibrated, so that only their likelihood at the best temperature matters.
    """
    labels = targets.argmax(1).cpu().numpy()
    judged = np.ones(len(labels), bool) if decided is None or decided.all() else ~decided
    tried: list[tuple[float, float, Tensor]] = []
    best, error, heads = -np.inf, 0.0, None
    for strength in STRENGTHS:
        probs, heads = out_of_fold(x, targets, folds, strength, heads)
        each = label_log_likelihoods(labels[judged], probs[judged], TEMPERATURES if calibrated else (1.0,))
        if each.mean() < best:
            break
        best, error = float(each.mean()), float(each.std() / np.sqrt(len(each)))
        tried.append((strength, best, heads))
    return next(each for each in tried if each[1] >= best - error)


def _held_out_guesses(x: Tensor, heads: Tensor, folds: Tensor, labels: Array, decided: Array | None) -> Guesses:
    """Return the guesses about all labels (n) by heads that did not learn from them; probabilities are not kept."""
    parts = [(rows, guesses_from_probs(labels[rows], probs)) for rows, probs in _held_out_probs(x, heads, folds)]
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    confidence, likeliest, likelihood = (
        np.concatenate([getattr(part, name) for _, part in parts])[order]
        for name in ("confidence", "likeliest", "likelihood")
    )
    guesses = Guesses(labels.astype(np.int64), confidence, likeliest, likelihood, heads.shape[2])
    return guesses if decided is None else with_decided(guesses, decided)


def _refuse_unsuitable(features: Tensor, labels: Array, num_classes: int) -> None:
    if features.dim() != 2 or not features.is_floating_point():
        raise InputError(f"features must be floats of shape (samples, features), got {tuple(features.shape)}")
    if len(features) != len(labels):
        raise InputError(f"{len(labels):,} labels but {len(features):,} rows of features; give one each per sample")
    if len(labels) < 2 * FOLDS or len(np.unique(labels)) < 2:
        raise InputError(f"{len(labels):,} labels of {len(np.unique(labels))} classes are too few to judge them")
    if num_classes <= labels.max() or labels.min() < 0:
        raise InputError(f"labels must be 0 to {num_classes - 1}, got {labels.min()} to {labels.max()}")
    wrong = (~features.isfinite()).any(1).nonzero()
    if len(wrong):
        raise InputError(f"row {int(wrong[0])} of the features has a value that is not finite; remove the sample")
