"""Judge labels by features: out-of-fold predictions of linear heads for every sample, in two rounds.

First round: linear heads predict the labels of the fifth that they did not learn from. The strength of their
regularisation is chosen by how well they predict held-out labels. From these predictions come the estimate of the
noise and the probabilities of the true classes (`labelsieve.audit.posterior`).

Second round: heads learn these probabilities instead of the labels, again out of fold, and predict true classes. This
ranks wrong labels better than the first round, but its own estimate of the noise would be too low: a head that learned
from corrected labels confirms them. The estimate therefore stays that of the first round (docs/decisions/036).
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelsieve.audit.explain import explain
from labelsieve.audit.guesses import Array, Guesses, guesses_from_probs, with_decided
from labelsieve.audit.held_out import label_log_likelihoods
from labelsieve.audit.posterior import TEMPERATURES, calibrate, true_class_probs
from labelsieve.errors import InputError
from labelsieve.models.linear import fit_heads, head_logits, one_hot, standardise
from labelsieve.runtime import generator

FOLDS = 5
STRENGTHS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)  # of the regularisation, strongest first
SECOND_STRENGTH = 1 / 3  # of that of the first round: corrected targets are less noisy than labels
PATH_SAMPLES = 20_000  # for choosing the strength
PRODUCTS = 800  # matrix products of all heads: forward and backward, about 80 steps for each of five fits
TIMED_ROWS = 2000


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
    targets = one_hot(given, num_classes)
    strength, log_likelihood, heads = _best_strength(x, targets, folds, counted)
    probs, _ = out_of_fold(x, targets, folds, strength, heads)
    first = _guesses(learned, probs, counted)
    explained = explain(first)
    corrected = true_class_probs(explained.guesses, explained.label_given)
    if decided is not None:
        corrected[decided] = np.eye(num_classes, dtype=np.float32)[labels[decided]]
    probs, _ = out_of_fold(x, torch.from_numpy(corrected).to(x.device), folds, SECOND_STRENGTH * strength)
    second = _guesses(labels, probs, decided)
    return Judgment(first, second, strength, log_likelihood, explained.label_given)


def choose_strength(features: Tensor, labels: Tensor, num_classes: int, seed: int = 0) -> tuple[Tensor, float]:
    """Return labels (n) as targets (n, K), and the strength of the regularisation found by cross-validation."""
    _refuse_unsuitable(features, labels.cpu().numpy(), num_classes)
    x = standardise(features.float())[0]
    targets = one_hot(labels, num_classes)
    return targets, _best_strength(x, targets, stratified_folds(labels, FOLDS, seed), None, calibrated=False)[0]


def seconds_of_heads(samples: int, features: int, num_classes: int, device: str = "cpu") -> float:
    """Return the CPU seconds that `judge_features` and the delivered head take, from a timed matrix product."""
    rows = min(samples, TIMED_ROWS)
    x, weights = torch.ones(rows, features, device=device), torch.ones(features, FOLDS * num_classes, device=device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(2):  # the first one is not counted
        began = time.process_time()
        (x @ weights).log_softmax(1).sum().item()  # waits for the device
    torch.set_num_threads(threads)
    return (time.process_time() - began) * PRODUCTS * samples / rows


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


def out_of_fold(
    x: Tensor, targets: Tensor, folds: Tensor, strength: float, start: Tensor | None = None
) -> tuple[Array, Tensor]:
    """Return the probabilities (n, K) of each sample by the head that did not learn from it, and the heads."""
    numbers = folds.unique()
    heads = fit_heads(x, targets, folds != numbers[:, None], strength, start)
    probs = torch.empty_like(targets)
    for number, head in zip(numbers, heads, strict=True):
        held = folds == number
        probs[held] = head_logits(x[held], head[None])[:, 0].softmax(-1)
    return probs.cpu().numpy(), heads


def _best_strength(
    x: Tensor, targets: Tensor, folds: Tensor, decided: Array | None, calibrated: bool = True
) -> tuple[float, float, Tensor]:
    """Return the strength of the regularisation, the mean log-likelihood of held-out labels, and the heads.

    Strengths are tried in descending order, each from the heads of the one before, until the likelihood declines. The
    strongest within one standard error of the best is taken: weaker ones fit more wrong labels for no clear gain.
    `calibrated`: the predictions will be calibrated, so that only their likelihood at the best temperature matters.
    """
    some = torch.arange(0, len(x), -(-len(x) // PATH_SAMPLES))
    x, targets, folds = x[some], targets[some], folds[some]
    labels = targets.argmax(1).cpu().numpy()
    judged = np.ones(len(some), bool) if decided is None or decided.all() else ~decided[some.numpy()]
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


def _guesses(labels: Array, probs: Array, decided: Array | None) -> Guesses:
    guesses = guesses_from_probs(labels, probs)
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
