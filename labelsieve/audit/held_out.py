"""Estimate of the noise rate from predictions for held-out samples, which the network was not trained on.

A sample with class probabilities p has label y with likelihood sum over j of p[j] T[j, y]. T, from true class to label,
has three parts: the label is correct; it becomes any other class with equal probability (one share for all classes);
it becomes one specific class (a share for each pair). Expectation-maximisation finds the shares that maximize the
likelihood of the held-out labels. Each share is reduced by half a sample, so that chance alone gives zero. Networks are
over- or underconfident: the temperature that maximizes the likelihood is found together with the shares.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from labelsieve.audit.estimate import Z_95, Interval
from labelsieve.audit.guesses import Array, Guesses, evenly_spaced
from labelsieve.audit.posterior import MIN_PROBABILITY, TEMPERATURES

PENALTY = 0.5  # samples subtracted from each share, and the log-likelihood that each share must add
MAX_PROBABILITIES = 2_000_000  # used for the estimate
RESAMPLES = 30
SMALLEST = 1e-12  # lower bound of a probability before its logarithm


class HeldOutNoise(NamedTuple):
    """An estimate of the noise from held-out samples."""

    rate: Interval  # share of wrong labels
    uniform: float  # the part of it that goes to all other classes with equal probability
    matrix: Array  # (K, K) P(label | true class), row: true class, column: label
    log_likelihood: float = 0.0  # mean over the labels


class _LabelModel(NamedTuple):
    """Shares of correct and wrong labels for each true class."""

    correct: Array  # (K)
    uniform: float  # becomes any other class
    pairwise: Array  # (K, K) becomes this class

    def matrix(self) -> Array:
        """Return P(label | true class), (K, K)."""
        classes = len(self.correct)
        return np.diag(self.correct) + self.uniform * (1.0 - np.eye(classes)) / (classes - 1) + self.pairwise


def estimate_held_out_noise(labels: Array, probs: Array) -> HeldOutNoise:
    """Estimate the noise of labels (n) from probabilities (n, K) of a network that was not trained on these samples."""
    some = evenly_spaced(len(labels), max(1, MAX_PROBABILITIES // probs.shape[1]))
    labels, probs = labels[some], probs[some]
    fits = [(temperature, *_fit(apply_temperature(probs, temperature), labels)) for temperature in TEMPERATURES]
    temperature, model, log_likelihood = max(fits, key=lambda each: each[2])
    calibrated = apply_temperature(probs, temperature)
    rate = _mean_wrong(calibrated, labels, model)
    error = Z_95 * _bootstrap_error(calibrated, labels, model)
    interval = Interval(rate, max(0.0, rate - error), min(1.0, rate + error))
    return HeldOutNoise(interval, float(model.uniform), model.matrix(), log_likelihood / len(labels))


def label_log_likelihood(labels: Array, probs: Array) -> float:
    """Return the mean log-likelihood of labels (n) under probabilities (n, K), at the best temperature."""
    return float(label_log_likelihoods(labels, probs).mean())


def label_log_likelihoods(labels: Array, probs: Array, temperatures: Sequence[float] = TEMPERATURES) -> Array:
    """Return the log-likelihood (n) of each label under probabilities (n, K), at the temperature with the best mean."""
    rows = np.arange(len(labels))
    likelihoods = (apply_temperature(probs, each)[rows, labels] for each in temperatures)
    return max((np.log(np.maximum(each, SMALLEST)) for each in likelihoods), key=np.mean)


def in_larger_set(noise: HeldOutNoise, share: float) -> HeldOutNoise:
    """Return the noise of a larger set, of which these samples are a share and all other labels are correct."""
    rate = Interval(*(share * value for value in noise.rate))
    matrix = share * noise.matrix + (1 - share) * np.eye(len(noise.matrix))
    return noise._replace(rate=rate, uniform=share * noise.uniform, matrix=matrix)


def dense_probs(guesses: Guesses) -> Array:
    """Return the guesses as a table of probabilities (n, K), with the remainder spread over the other classes."""
    count, kept = guesses.likeliest.shape
    left = np.clip(1 - guesses.likelihood.sum(1), 0, None) / max(guesses.num_classes - kept, 1)
    probs = np.repeat(left[:, None].astype(np.float64), guesses.num_classes, axis=1)
    probs[np.arange(count)[:, None], guesses.likeliest] = guesses.likelihood
    return probs


def apply_temperature(probs: Array, temperature: float) -> Array:
    """Divide the logits of probabilities (n, K) by the temperature."""
    logits = np.log(np.clip(probs, MIN_PROBABILITY, 1)) / temperature
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def _fit(probs: Array, labels: Array) -> tuple[_LabelModel, float]:
    """Return the most likely label model and the penalized log-likelihood of the labels."""
    classes = probs.shape[1]
    start = _LabelModel(np.full(classes, 0.8), 0.1, 0.1 * (1.0 - np.eye(classes)) / (classes - 1))
    penalized = _maximize(probs, labels, start, PENALTY, 50)
    model = _maximize(probs, labels, penalized, 0.0, 30)  # shares above zero are estimated without the penalty
    used = int((model.pairwise > 1e-6).sum()) + (model.uniform > 1e-6)
    log_likelihood = np.log(np.maximum(_joint_probs(probs, labels, model).sum(1), SMALLEST)).sum()
    return model, float(log_likelihood - PENALTY * used)


def _maximize(probs: Array, labels: Array, model: _LabelModel, penalty: float, rounds: int) -> _LabelModel:
    """Improve the label model by expectation-maximisation."""
    classes = probs.shape[1]
    off = 1.0 - np.eye(classes)
    for _ in range(rounds):
        likely = _joint_probs(probs, labels, model)
        likely /= np.maximum(likely.sum(1, keepdims=True), 1e-12)
        counts = np.zeros((classes, classes))  # label, true class
        np.add.at(counts, labels, likely)
        counts = counts.T
        by_chance = model.uniform * off / (classes - 1)
        part = np.divide(by_chance, by_chance + model.pairwise, out=np.zeros_like(off), where=by_chance > 0)
        uniform = max((counts * off * part).sum() - penalty, 0.0) / len(labels)
        pairwise = np.maximum(counts * off * (1 - part) - penalty, 0.0)
        correct = counts.diagonal()
        total = correct + pairwise.sum(1)
        scale = (1 - uniform) / np.where(total > 0, total, 1)
        model = _LabelModel(np.where(total > 0, correct * scale, 1 - uniform), uniform, pairwise * scale[:, None])
    return model


def _joint_probs(probs: Array, labels: Array, model: _LabelModel) -> Array:
    """Return P(true class and label), (n, K)."""
    return probs * model.matrix().T[labels]


def _mean_wrong(probs: Array, labels: Array, model: _LabelModel) -> float:
    """Return the mean probability that a label is wrong."""
    likely = _joint_probs(probs, labels, model)
    correct = likely[np.arange(len(labels)), labels] / np.maximum(likely.sum(1), 1e-12)
    return float(1 - correct.mean())


def _bootstrap_error(probs: Array, labels: Array, model: _LabelModel) -> float:
    """Return the standard error of the estimated rate, by bootstrapping the samples."""
    random = np.random.default_rng(0)
    rates = []
    for _ in range(RESAMPLES):
        drawn = random.integers(0, len(labels), len(labels))
        refitted = _maximize(probs[drawn], labels[drawn], model, 0.0, 15)
        rates.append(_mean_wrong(probs[drawn], labels[drawn], refitted))
    return float(np.std(rates, ddof=1))
