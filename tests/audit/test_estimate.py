"""Estimates of the noise rate and matrix on known noise, and their reconciliation."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelsieve import estimate_noise
from labelsieve.audit.estimate import Interval, Noise, confident_joint, reconcile
from labelsieve.audit.guesses import guesses_from_probs
from labelsieve.noise import pair, symmetry
from tests.audit.simulated import true_class_predictions


def test_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.4), sure=1.5)
    found = estimate_noise(torch.from_numpy(labels), torch.from_numpy(probs))
    assert found.rate == estimate_noise(labels, probs).rate


@pytest.mark.parametrize(("kind", "rate"), [(pair, 0.4), (symmetry, 0.4), (pair, 0.1), (pair, 0.0)])
def test_known_noise_is_estimated(kind, rate):
    labels, probs, clean = true_class_predictions(lambda k: kind(k, rate), sure=3.0)
    noise = estimate_noise(labels, probs)
    true = (labels != clean).mean()
    assert (
        noise.rate.low <= max(true, 0.01)
        and true <= noise.rate.high
        and noise.rate.estimate == pytest.approx(true, abs=0.03)
    )
    if kind is pair and rate == 0.4:
        truth = np.array([[(clean[labels == y] == j).mean() for j in range(10)] for y in range(10)])
        assert abs(noise.matrix - truth).max() < 0.08
        inside = [share.low <= 1 - truth[k, k] <= share.high for k, share in enumerate(noise.per_class)]
        assert sum(inside) >= 9


def test_confident_joint_by_hand():
    labels = np.array([0, 0, 1, 1])
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.45, 0.55]])  # usual: 0.55 for class 0, 0.625 for class 1
    assert confident_joint(guesses_from_probs(labels, probs)).tolist() == [[1, 1], [0, 1]]


def test_class_without_samples_counts_as_correct():
    noise = estimate_noise(np.array([0, 1, 0, 1]), np.full((4, 3), 1 / 3))
    assert noise.matrix[2].tolist() == [0, 0, 1] and noise.per_class[2] == (0, 0, 1)


@given(
    st.lists(st.tuples(st.floats(0.001, 0.999), st.integers(1, 500)), min_size=2, max_size=8),
    st.floats(0.001, 0.95),
)
def test_reconciled_shares_add_up_to_the_rate(classes, rate):
    wrong, sizes = (np.array(column) for column in zip(*classes, strict=True))
    count = len(wrong)
    matrix = np.where(np.eye(count) > 0, 1 - wrong[:, None], wrong[:, None] / (count - 1))
    each = [Interval(w, 0.9 * w, min(1.0, 1.1 * w)) for w in wrong]
    whole = Interval(rate, rate / 2, rate)
    noise = reconcile(Noise(Interval(0.5, 0.4, 0.6), each, matrix), whole, sizes)
    after = np.array([share.estimate for share in noise.per_class])
    assert noise.rate == whole and np.average(after, weights=sizes) == pytest.approx(rate, abs=1e-6)
    assert (np.diff(after[np.argsort(wrong, kind="stable")]) >= -1e-12).all()
    assert all(0 <= s.low <= s.estimate <= s.high <= 1 for s in noise.per_class)
    assert all(s.low <= old.low and s.high >= old.high for s, old in zip(noise.per_class, each, strict=True))
    assert np.allclose(noise.matrix.sum(1), 1) and np.allclose(1 - noise.matrix.diagonal(), after, atol=1e-6)


def test_reconcile_by_hand():
    """Odds 1/4 and 1/1 become a third of that: 1/12 and 1/3, shares 1/13 and 1/4."""
    noise = Noise(
        Interval(0.3, 0.2, 0.4), [Interval(0.2, 0.1, 0.3), Interval(0.5, 0.4, 0.6)], np.array([[0.8, 0.2], [0.5, 0.5]])
    )
    sizes = np.array([300, 100])
    rate = (3 / 13 + 1 / 4) / 4
    found = reconcile(noise, Interval(rate, 0.1, 0.2), sizes)
    assert [share.estimate for share in found.per_class] == pytest.approx([1 / 13, 1 / 4])
    assert [share.high for share in found.per_class] == [0.3, 0.6] and found.per_class[1].low == pytest.approx(2 / 11)
    assert np.allclose(found.matrix, [[12 / 13, 1 / 13], [1 / 4, 3 / 4]])
    assert [share.estimate for share in reconcile(noise, Interval(0.0, 0.0, 0.1), sizes).per_class] == pytest.approx(
        [0, 0]
    )
    empty = replace(
        noise, per_class=[Interval(0.0, 0.0, 1.0), Interval(0.5, 0.4, 0.6)], matrix=np.array([[1.0, 0], [0.5, 0.5]])
    )
    found = reconcile(empty, Interval(0.25, 0.1, 0.3), np.array([0, 100]))
    assert found.per_class[0] == (0, 0, 1) and found.per_class[1].estimate == pytest.approx(0.25)
