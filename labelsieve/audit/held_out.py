"""The share of wrong labels, from predictions of samples that the network has not learnt from.

A sample of class probabilities p has the label y with likelihood sum over j of p[j] T[j, y]. T, from true class to
label, has three parts: the label stays right; it becomes any other class alike, one share for all; it becomes one
certain class, a share for each pair. Expectation-maximisation finds the shares that make the held-out labels likeliest.
Each share gives up half a sample, so that what a few samples say by chance stays zero. Networks are surer, or less
sure, than they should be: the temperature that makes the labels likeliest is found along with the shares."""

from typing import Any, NamedTuple

import numpy as np

from labelsieve.audit.estimate import NORMAL, Interval
from labelsieve.audit.guesses import Guesses, evenly
from labelsieve.audit.posterior import TEMPERATURES

Array = np.ndarray[Any, Any]
DOUBT = 0.5  # samples that each share gives up, and what it must add to the log-likelihood
MOST = 2_000_000  # probabilities that are looked at
RESAMPLES = 30


class Shares(NamedTuple):
    """What becomes of the labels of each class."""

    right: Array  # (K) stays
    chance: float  # becomes any other class alike
    certain: Array  # (K, K) becomes this one

    def matrix(self) -> Array:
        """P(label | true class), (K, K)."""
        classes = len(self.right)
        return np.diag(self.right) + self.chance * others(classes) / (classes - 1) + self.certain


class Unseen(NamedTuple):
    """An estimate from held-out samples."""

    rate: Interval
    chance: float  # the part of it that goes to any class alike
    matrix: Array  # (K, K) P(label | true class)
    temperature: float
    likelihood: float = 0.0  # of the labels, the mean logarithm: how well these are foretold


def unseen_noise(labels: Array, probs: Array) -> Unseen:
    """The share of wrong labels among samples with probabilities (n, K) of a network that did not learn from them."""
    some = evenly(len(labels), max(1, MOST // probs.shape[1]))
    labels, probs = labels[some], probs[some]
    found = [(temperature, *fitted(tempered(probs, temperature), labels)) for temperature in TEMPERATURES]
    temperature, shares, likelihood = max(found, key=lambda each: each[2])
    warm = tempered(probs, temperature)
    rate = share_wrong(warm, labels, shares)
    spread = NORMAL * resampled(warm, labels, shares)
    interval = Interval(rate, max(0.0, rate - spread), min(1.0, rate + spread))
    return Unseen(interval, float(shares.chance), shares.matrix(), temperature, likelihood / len(labels))


def label_likelihood(labels: Array, probs: Array) -> float:
    """How well probabilities (n, K) of labels foretell the labels, the mean logarithm, at the best temperature."""
    rows = np.arange(len(labels))
    each = (np.log(tempered(probs, temperature)[rows, labels]).mean() for temperature in TEMPERATURES)
    return float(max(each))


def in_share(seen: Unseen, share: float) -> Unseen:
    """The same of more samples, of which these are a share and the labels of the others are right."""
    rate = Interval(*(share * value for value in seen.rate))
    return seen._replace(rate=rate, chance=share * seen.chance)


def fitted(probs: Array, labels: Array) -> tuple[Shares, float]:
    """The likeliest shares, and how likely they make the labels, less what each share must add."""
    classes = probs.shape[1]
    start = Shares(np.full(classes, 0.8), 0.1, 0.1 * others(classes) / (classes - 1))
    doubted = improved(probs, labels, start, DOUBT, 50)
    shares = improved(probs, labels, doubted, 0.0, 30)  # what is there is there in full
    used = int((shares.certain > 1e-6).sum()) + (shares.chance > 1e-6)
    likelihood = np.log(np.maximum(joint(probs, labels, shares).sum(1), 1e-12)).sum()
    return shares, float(likelihood - DOUBT * used)


def improved(probs: Array, labels: Array, shares: Shares, doubt: float, rounds: int) -> Shares:
    """Expectation-maximisation."""
    classes = probs.shape[1]
    off = others(classes)
    for _ in range(rounds):
        likely = joint(probs, labels, shares)
        likely /= np.maximum(likely.sum(1, keepdims=True), 1e-12)
        counts = np.zeros((classes, classes))  # label, true class
        np.add.at(counts, labels, likely)
        counts = counts.T
        by_chance = shares.chance * off / (classes - 1)
        part = np.divide(by_chance, by_chance + shares.certain, out=np.zeros_like(off), where=by_chance > 0)
        chance = max((counts * off * part).sum() - doubt, 0.0) / len(labels)
        certain = np.maximum(counts * off * (1 - part) - doubt, 0.0)
        stays = counts.diagonal()
        total = stays + certain.sum(1)
        scale = (1 - chance) / np.where(total > 0, total, 1)
        shares = Shares(np.where(total > 0, stays * scale, 1 - chance), chance, certain * scale[:, None])
    return shares


def joint(probs: Array, labels: Array, shares: Shares) -> Array:
    """P(true class and label), (n, K)."""
    product: Array = probs * shares.matrix().T[labels]
    return product


def share_wrong(probs: Array, labels: Array, shares: Shares) -> float:
    """The mean probability that a label is wrong."""
    likely = joint(probs, labels, shares)
    right = likely[np.arange(len(labels)), labels] / np.maximum(likely.sum(1), 1e-12)
    return float(1 - right.mean())


def resampled(probs: Array, labels: Array, shares: Shares) -> float:
    """The standard error of the estimate, from samples drawn anew from these."""
    random = np.random.default_rng(0)
    rates = []
    for _ in range(RESAMPLES):
        drawn = random.integers(0, len(labels), len(labels))
        again = improved(probs[drawn], labels[drawn], shares, 0.0, 15)
        rates.append(share_wrong(probs[drawn], labels[drawn], again))
    return float(np.std(rates, ddof=1))


def tempered(probs: Array, temperature: float) -> Array:
    """Probabilities of logits divided by the temperature."""
    logits = np.log(np.clip(probs, 1e-7, 1)) / temperature
    raised = np.exp(logits - logits.max(1, keepdims=True))
    spread: Array = raised / raised.sum(1, keepdims=True)
    return spread


def dense(guesses: Guesses) -> Array:
    """Guesses as a table of probabilities (n, K); what the likeliest classes leave is spread over the others."""
    count, kept = guesses.likeliest.shape
    left = np.clip(1 - guesses.likelihood.sum(1), 0, None) / max(guesses.num_classes - kept, 1)
    probs = np.repeat(left[:, None].astype(np.float64), guesses.num_classes, axis=1)
    probs[np.arange(count)[:, None], guesses.likeliest] = guesses.likelihood
    return probs


def others(classes: int) -> Array:
    """One everywhere but on the diagonal."""
    return 1.0 - np.eye(classes)
