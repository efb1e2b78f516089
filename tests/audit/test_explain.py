"""Errors that depend on the class and errors that depend on the sample: slopes, weights, estimates and decisions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelsieve.audit.explain import difficulties, explain, slope_of_errors, weight_of_samples
from labelsieve.audit.guesses import guesses_from_probs, with_decided
from labelsieve.audit.quality import THRESHOLD, judge_labels

CLASSES = 5


def predictions(errors, samples=20_000, seed=0):
    """Return labels, calibrated probabilities of the labels (n, K) and true classes.

    `errors` maps a difficulty (n), from 0 to 1, to the probability of a wrong label, which is any other class. The
    classifier knows these probabilities; of hard samples it is not sure which of two classes they belong to.
    """
    draw = np.random.default_rng(seed)
    first = draw.integers(CLASSES, size=samples)
    second = (first + draw.integers(1, CLASSES, samples)) % CLASSES
    difficulty = draw.random(samples)
    belief = 1 - 0.4 * difficulty**4
    true = np.where(draw.random(samples) < belief, first, second)
    share = errors(difficulty)
    other = (true + draw.integers(1, CLASSES, samples)) % CLASSES
    labels = np.where(draw.random(samples) < share, other, true)
    probs = np.zeros((samples, CLASSES))
    probs[np.arange(samples), first] = belief
    probs[np.arange(samples), second] = 1 - belief
    each = (share / (CLASSES - 1))[:, None]
    return labels, probs * (1 - share[:, None]) + (1 - probs) * each, true


def people(difficulty):
    return 1 / (1 + np.exp(2 - 2 * difficulty))


def test_difficulty_by_hand():
    probs = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
    found = difficulties(guesses_from_probs(np.zeros(5, int), probs))
    assert found.tolist() == [0.125, 0.5, 0.5, 0.5, 0.875]  # ranks of four samples of class 0, two of them equal


@pytest.mark.parametrize("slope", [0.0, 3.0])
def test_slope_is_recovered_from_many_samples(slope):
    draw = np.random.default_rng(1)
    samples = 200_000
    difficulty = (np.arange(samples) + 0.5) / samples
    wrong = draw.random(samples) < 1 / (1 + np.exp(2 - slope * difficulty))
    probs = np.column_stack([1 - 0.4 * difficulty, 0.4 * difficulty])
    assert slope_of_errors(guesses_from_probs(wrong.astype(int), probs)) == pytest.approx(slope, abs=0.15)
    few = slice(None, None, 1000)
    assert abs(slope_of_errors(guesses_from_probs(wrong[few].astype(int), probs[few]))) < 1.2  # the prior holds it back


def test_weight_by_hand():
    assert weight_of_samples(0.85, 0.02, 0.04) == pytest.approx(0.5 * 0.5)
    assert weight_of_samples(3.0, 0.3, 0.4) == pytest.approx(0.3 / 0.32, rel=1e-6)
    assert weight_of_samples(3.0, 0.0, 0.1) == 0  # nothing is wrong among easy samples
    assert weight_of_samples(-1.0, 0.3, 0.4) < 1e-6  # errors do not become more frequent
    assert weight_of_samples(3.0, 0.1, 0.5) == 0  # the classifier is too weak to tell


@given(st.floats(-20, 20), st.floats(0, 1), st.floats(0, 1))
def test_weight_is_a_share(slope, easy, disagreements):
    assert 0 <= weight_of_samples(slope, easy, disagreements) <= 1


def test_errors_of_people_are_not_explained_away():
    labels, probs, true = predictions(people)
    wrong = labels != true
    found = judge_labels(guesses_from_probs(labels, probs))
    rate = found.noise.rate
    assert rate.low <= wrong.mean() <= rate.high and rate.estimate == pytest.approx(wrong.mean(), abs=0.04)
    assert found.noise.sample_dependent > 0.1
    flagged = found.quality < THRESHOLD
    assert 2 * (flagged & wrong).sum() / (flagged.sum() + wrong.sum()) > 0.85


def test_errors_that_depend_on_the_class_alone_have_no_weight():
    labels, probs, true = predictions(lambda difficulty: np.full(len(difficulty), 0.25))
    found = explain(guesses_from_probs(labels, probs))
    assert found.weight < 0.01 and found.noise.sample_dependent < 0.01
    assert found.noise.rate.estimate == pytest.approx((labels != true).mean(), abs=0.03)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 60), st.integers(0, 1000))
def test_estimates_are_consistent(classes, samples, seed):
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=samples)
    found = judge_labels(guesses_from_probs(labels, draw.dirichlet(np.full(classes, 0.5), samples)))
    rate = found.noise.rate
    assert 0 <= rate.low <= rate.estimate <= rate.high <= 1 and 0 <= found.noise.sample_dependent <= 1
    assert ((found.quality >= 0) & (found.quality <= 1)).all()
    np.testing.assert_allclose(found.noise.matrix.sum(1), 1)
    shares = np.array([share.estimate for share in found.noise.per_class])
    sizes = np.bincount(labels, minlength=classes)
    assert (shares * sizes).sum() / samples == pytest.approx(rate.estimate, abs=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_labels_decided_at_random_do_not_hide_the_noise_of_the_others(share):
    labels, probs, true = predictions(lambda difficulty: np.full(len(difficulty), 0.3), 4000)
    decided = np.random.default_rng(1).random(len(labels)) < share
    labels = np.where(decided, true, labels)
    found = explain(with_decided(guesses_from_probs(labels, probs), decided))
    assert found.noise.rate.estimate == pytest.approx((labels != true).mean(), abs=0.02)
    assert (found.guesses.likeliest[decided, 0] == true[decided]).all() and len(found.guesses) == len(labels)
    np.testing.assert_allclose(found.noise.matrix.sum(1), 1)
    shares = np.array([each.estimate for each in found.noise.per_class])
    assert (shares * np.bincount(labels, minlength=CLASSES)).sum() / len(labels) == pytest.approx(
        found.noise.rate.estimate, abs=1e-6
    )
