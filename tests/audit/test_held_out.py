"""Noise estimates from held-out samples, on known noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.audit import held_out as held_out_module
from labelsieve.audit.guesses import guesses_from_probs
from labelsieve.audit.held_out import apply_temperature, dense_probs, estimate_held_out_noise, label_log_likelihood

CLASSES = 6


def held_out_predictions(kind, rate, count=3000, seed=0):
    """Return noisy labels, the known probabilities of their true classes, and the share of wrong labels."""
    random = np.random.default_rng(seed)
    probs = apply_temperature(random.dirichlet(np.full(CLASSES, 0.3), count), 0.7)
    true = (probs.cumsum(1) > random.random((count, 1))).argmax(1)
    step = 1 if kind == "pair" else random.integers(1, CLASSES, count)
    labels = np.where(random.random(count) < rate, (true + step) % CLASSES, true)
    return labels, probs, (labels != true).mean()


@pytest.mark.parametrize("kind", ["pair", "symmetry"])
@pytest.mark.parametrize("rate", [0.1, 0.25, 0.4])
def test_rate_of_known_noise_is_estimated(kind, rate):
    labels, probs, true = held_out_predictions(kind, rate)
    noise = estimate_held_out_noise(labels, probs)
    assert abs(noise.rate.estimate - true) < 0.03
    assert noise.rate.low <= noise.rate.estimate <= noise.rate.high
    assert noise.rate.low - 0.02 < true < noise.rate.high + 0.02
    assert (noise.uniform > noise.rate.estimate / 2) is (kind == "symmetry")
    assert np.allclose(noise.matrix.sum(1), 1)
    if kind == "pair":
        assert all(noise.matrix[k, (k + 1) % CLASSES] > rate - 0.1 for k in range(CLASSES))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_clean_labels_look_clean_at_any_confidence(temperature):
    labels, probs, _ = held_out_predictions("pair", 0.0)
    assert estimate_held_out_noise(labels, apply_temperature(probs, temperature)).rate.estimate < 0.02


def test_samples_sorted_by_class_are_evenly_used(monkeypatch):
    """Only labels of the last three classes are wrong; the estimate uses a third of the samples."""
    (true, probs, _), (labels, _, _) = held_out_predictions("pair", 0.0), held_out_predictions("pair", 0.4)
    kept = np.flatnonzero((labels == true) | (labels >= 3))
    order = kept[np.argsort(labels[kept], kind="stable")]
    monkeypatch.setattr(held_out_module, "MAX_PROBABILITIES", len(order) // 3 * CLASSES)
    noise = estimate_held_out_noise(labels[order], probs[order])
    assert abs(noise.rate.estimate - (labels != true)[order].mean()) < 0.05


@given(st.integers(2, 5), st.integers(1, 40), st.integers(0, 1000))
def test_estimates_are_shares(classes, count, seed):
    random = np.random.default_rng(seed)
    labels, probs = random.integers(0, classes, count), random.dirichlet(np.ones(classes), count)
    noise = estimate_held_out_noise(labels, probs)
    assert 0 <= noise.rate.low <= noise.rate.estimate <= noise.rate.high <= 1 and np.isfinite(noise.matrix).all()


def test_dense_probs_restore_the_table():
    random = np.random.default_rng(0)
    probs = random.dirichlet(np.full(8, 0.2), 20)
    again = dense_probs(guesses_from_probs(random.integers(0, 8, 20), probs))
    assert np.allclose(again.sum(1), 1, atol=1e-6) and (again.argmax(1) == probs.argmax(1)).all()
    assert np.abs(again - probs).max() < 0.05
    few = random.dirichlet(np.ones(3), 5)
    assert np.allclose(dense_probs(guesses_from_probs(np.zeros(5, int), few)), few, atol=1e-6)


def test_log_likelihood_is_higher_for_better_predictions():
    labels, probs, _ = held_out_predictions("pair", 0.2)
    shuffled = np.random.default_rng(1).permutation(probs)
    good, bad = (estimate_held_out_noise(labels, each).log_likelihood for each in (probs, shuffled))
    assert good > bad + 0.3 and -np.log(CLASSES) - 0.01 < bad < 0


def test_log_likelihood_does_not_depend_on_confidence():
    random = np.random.default_rng(0)
    probs = random.dirichlet(np.ones(4), 500)
    labels = np.array([random.choice(4, p=row) for row in probs])
    known = label_log_likelihood(labels, probs)
    assert known >= np.log(probs[np.arange(500), labels]).mean()
    assert label_log_likelihood(labels, apply_temperature(probs, 0.5)) == pytest.approx(known, abs=0.02)
    sure = np.full((2, 4), 0.1)
    sure[:, 0] = 0.7
    assert label_log_likelihood(np.array([0, 0]), sure) > np.log(0.95)  # always correct
