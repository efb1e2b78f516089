"""Probabilities of labels and unmixing: by hand, against dense references, and on known noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.detection import average_precision, decision
from labelsieve import estimate_noise, find_label_issues, label_quality
from labelsieve.audit import posterior as posterior_module
from labelsieve.audit.guesses import guesses_from_probs, with_decided
from labelsieve.audit.posterior import (
    UNMIXING_ROUNDS,
    best_temperature,
    calibrate,
    count_confident,
    count_joint,
    deconvolve,
    estimate_label_given_confident,
    label_given_true,
    label_probability,
    own_errors,
    posterior,
    share_of_disagreements,
    shrunk_label_given_true,
    true_class_probs,
    unmix_with,
    with_mean_error,
)
from labelsieve.noise import mixed, pair, symmetry
from tests.audit.simulated import label_predictions, true_class_predictions


def test_bayes_rule_by_hand():
    labels, probs = np.array([0, 0, 1]), np.array([[0.8, 0.2], [0.3, 0.7], [0.1, 0.9]])
    found = guesses_from_probs(labels, probs)
    assert count_joint(found).tolist() == [[1, 1], [0, 1]]
    joint = np.array([[97.5, 47.5], [-2.5, 147.5]])  # with the prior of 2.5 a cell: 100, 50; 0, 150
    likely, again = posterior(found, label_given_true(joint))
    given_0 = 1.0, 0.25  # P(label 0 | true 0), P(label 0 | true 1)
    first = 0.8 * given_0[0] / (0.8 * given_0[0] + 0.2 * given_0[1])
    second = 0.3 * given_0[0] / (0.3 * given_0[0] + 0.7 * given_0[1])
    np.testing.assert_allclose(likely, [first, second, 1.0], rtol=1e-6)
    np.testing.assert_allclose(again, [[first + second, 2 - first - second], [0, 1]], atol=1e-6)


def test_remaining_classes_share_the_remaining_probability():
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.3), classes=8)
    found = guesses_from_probs(labels, probs)
    exact = posterior(found, label_given_true(joint := count_joint(found)))[0]
    dense = joint + 5 / 8
    weight = probs * (dense / dense.sum(0))[labels]
    wanted = weight[np.arange(len(labels)), labels] / weight.sum(1)
    assert abs(exact - wanted).max() < 0.1 and abs(exact - wanted).mean() < 0.002


def test_count_confident_by_hand():
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    first = np.array([0.9, 0.6, 0.4, 0.3, 0.8, 0.2, 0.1, 0.1])
    found = guesses_from_probs(labels, np.stack([first, 1 - first], 1))
    assert count_confident(found, least=0).tolist() == [[1, 0], [0, 2]]  # 0: the one with 0.9; 1: both with 0.9
    assert count_confident(found, 0.5, least=0).tolist() == [[1, 0], [1, 2]]
    assert count_confident(found, least=50).tolist() == [[1, 0], [1, 2]]  # few samples: half of them


def clean_labels(easy, hard, per_class=40):
    """Return guesses about correct labels: right for a quarter of each class, else with the given confidences."""
    true = np.repeat(np.arange(20), per_class)
    place = np.tile(np.arange(per_class), 20)
    probs = np.full((len(true), 20), (1 - hard) / 19)
    likeliest = np.where(place % 2 == 0, true, (true + 1 + place // 2 % 19) % 20)  # half of the hard ones are wrong
    likeliest = np.where(place < per_class // 4, true, likeliest)
    probs[np.arange(len(true)), likeliest] = hard
    probs[place < per_class // 4] = (1 - easy) / 19
    rows = np.flatnonzero(place < per_class // 4)
    probs[rows, true[rows]] = easy
    return guesses_from_probs(true, probs)


def test_own_errors_of_a_weak_classifier_are_not_counted_as_wrong_labels():
    weak = clean_labels(0.9, 0.5)
    assert share_of_disagreements(weak) == pytest.approx(0.375, abs=0.01)
    found = estimate_label_given_confident(weak)
    assert found.diagonal().mean() > 0.97  # a quarter of each class is right
    assert shrunk_label_given_true(count_confident(weak)).diagonal().mean() < 0.9  # half of it is not


def test_small_classes_contribute_half_to_a_strong_classifier():
    labels = np.repeat(np.arange(4), 30)
    probs = np.full((120, 4), 0.02)
    draw = np.random.default_rng(0)
    probs[np.arange(120), np.where(draw.random(120) < 0.1, (labels + 1) % 4, labels)] = draw.uniform(0.5, 0.9, 120)
    strong = guesses_from_probs(labels, probs / probs.sum(1, keepdims=True))
    expected = shrunk_label_given_true(count_confident(strong, least=50))
    assert (estimate_label_given_confident(strong) == expected).all()
    assert (expected != shrunk_label_given_true(count_confident(strong, least=0))).any()


def test_own_errors_by_hand():
    assert own_errors(0.4, 0.2) == pytest.approx(0.25)
    assert own_errors(1.0, 1.0) == 0


def test_class_without_samples_is_not_counted():
    counts = count_confident(guesses_from_probs(np.array([0, 1, 0, 1]), np.full((4, 3), 1 / 3)))
    assert counts[:, 2].tolist() == [0, 0, 0] and counts[2].tolist() == [0, 0, 0]
    np.testing.assert_allclose(shrunk_label_given_true(counts).sum(0), 1)


def test_differences_explained_by_chance_are_removed():
    random = np.random.default_rng(0)
    even = random.poisson(3, (10, 10)) + 70 * np.eye(10, dtype=int)
    off = ~np.eye(10, dtype=bool)
    spread = [
        np.where(off, s - (s * off).sum(0) / 9, 0).std() for s in (shrunk_label_given_true(even), even / even.sum(0))
    ]
    assert spread[0] < 0.2 * spread[1]
    one = np.diag(np.full(10, 60)) + 40 * np.roll(np.eye(10, dtype=int), 1, axis=0)
    shares = shrunk_label_given_true(one)
    np.testing.assert_allclose(np.roll(shares, -1, axis=0).diagonal(), 0.4, atol=0.02)
    assert shares[off].min() > 0  # nothing is impossible


@given(st.integers(2, 8), st.integers(0, 10**6))
def test_shrunk_counts_are_shares_and_keep_the_diagonal(classes, seed):
    counts = np.random.default_rng(seed).integers(0, 30, (classes, classes))
    shares = shrunk_label_given_true(counts)
    np.testing.assert_allclose(shares.sum(0), 1)
    assert (shares > 0).all()
    share = counts.diagonal() / np.maximum(counts.sum(0), 1)
    enough = counts.sum(0) > 20
    assert abs(shares.diagonal() - share)[enough].max(initial=0) < 1 / 20


def test_deconvolve_recovers_a_mixture():
    # class 0 becomes 1, 1 becomes 2, 2 becomes 0
    given_true = np.array([[0.6, 0.0, 0.4], [0.4, 0.6, 0.0], [0.0, 0.4, 0.6]])
    true = deconvolve(given_true, np.repeat(given_true[:, :, None], 3, axis=2))
    assert (true.diagonal() > 0.97).all()
    even = np.array([[0.5], [0.5], [0.0]])  # labels 0 and 1 equally likely: class 0, as class 1 would give label 2
    assert deconvolve(even, given_true[:, :, None])[:, 0].argmax() == 0


@given(st.integers(0, 10**6))
def test_few_classes_match_a_dense_reference(seed):
    random = np.random.default_rng(seed)
    labels, probs = random.integers(0, 4, 30), random.dirichlet(np.ones(4), 30).astype(np.float32)
    given_true = random.dirichlet(np.ones(4), 4).T
    raised = probs.astype(float) ** (1 / 0.7)
    calibrated = raised / raised.sum(1, keepdims=True)
    true = calibrated
    for _ in range(UNMIXING_ROUNDS):
        true = true * ((calibrated / (true @ given_true.T)) @ given_true)
    found = unmix_with(guesses_from_probs(labels, probs), given_true, 0.7)
    dense = np.zeros((30, 4))
    np.put_along_axis(dense, found.likeliest.astype(int), found.likelihood, axis=1)
    np.testing.assert_allclose(dense, true / true.sum(1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(found.confidence, dense[np.arange(30), labels], atol=1e-6)
    assert (np.diff(found.likelihood, axis=1) <= 0).all()


def test_remaining_classes_hardly_matter():
    labels, probs, _ = label_predictions(lambda k: mixed(k, 0.4), count=500)
    given_true = mixed(10, 0.4).numpy().T
    true = probs
    for _ in range(UNMIXING_ROUNDS):
        true = true * ((probs / (true @ given_true.T)) @ given_true)
    found = unmix_with(guesses_from_probs(labels, probs), given_true, 1.0)
    assert abs(found.confidence - true[np.arange(500), labels] / true.sum(1)).mean() < 0.01


def test_clean_labels_leave_guesses_unchanged():
    labels, probs, _ = label_predictions(lambda k: pair(k, 0.0), count=500)
    found = guesses_from_probs(labels, probs)
    same = unmix_with(found, np.eye(10), 1.0)
    np.testing.assert_allclose(same.confidence, found.confidence, atol=1e-5)
    np.testing.assert_array_equal(same.likeliest, found.likeliest)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_temperature_is_recovered(temperature):
    labels, probs, _ = label_predictions(lambda k: symmetry(k, 0.3), temperature=temperature, count=8000)
    found = best_temperature(guesses_from_probs(labels, probs), symmetry(10, 0.3).numpy().T)
    assert found == pytest.approx(1 / temperature, rel=0.25)


@pytest.mark.parametrize("kind", [pair, mixed, symmetry])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_classifier_trained_on_noisy_labels_finds_the_wrong_ones(kind, temperature):
    labels, probs, clean = label_predictions(lambda k: kind(k, 0.4), temperature=temperature)
    wrong = labels != clean
    assert decision(wrong, find_label_issues(labels, probs))["f1"] > 0.87
    assert decision(wrong, label_probability(guesses_from_probs(labels, probs)) < 0.5)["f1"] < 0.8  # without unmixing
    confidence = probs[np.arange(len(labels)), labels]
    better = 0.02 if kind is pair else -0.01
    assert average_precision(wrong, label_quality(labels, probs)) > average_precision(wrong, confidence) + better
    noise = estimate_noise(labels, probs)
    assert (
        noise.rate.estimate == pytest.approx(wrong.mean(), abs=0.04) and noise.rate.low < wrong.mean() < noise.rate.high
    )


def test_clean_labels_are_not_marked():
    labels, probs, _ = label_predictions(lambda k: pair(k, 0.0), sure=2.0)
    assert (probs.argmax(1) != labels).mean() > 0.05 and find_label_issues(labels, probs).mean() < 0.02


def test_rare_class_is_not_marked():
    """The classifier hardly ever predicts the rare class; all labels are correct."""
    random = np.random.default_rng(0)
    labels = (random.random(4000) < 0.05).astype(int)
    seen = random.normal(size=4000) + 1.5 * labels
    odds = 0.05 / 0.95 * np.exp(1.5 * seen - 1.5**2 / 2)
    probs = np.stack([1 / (1 + odds), odds / (1 + odds)], 1)
    assert find_label_issues(labels, probs)[labels == 1].mean() < (probs.argmax(1) == 0)[labels == 1].mean() / 2


def test_true_class_probs_follow_bayes_rule():
    probs = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]], np.float32)
    label_given = np.array([[0.8, 0.1, 0.0], [0.2, 0.8, 0.1], [0.0, 0.1, 0.9]])  # row: label, column: true class
    labels = np.array([1, 2])
    found = true_class_probs(guesses_from_probs(labels, probs), label_given)
    expected = probs * label_given[labels]
    np.testing.assert_allclose(found, expected / expected.sum(1, keepdims=True), rtol=1e-5)


@given(st.integers(2, 12), st.integers(0, 99))
def test_true_class_probs_sum_to_one_and_keep_decided_labels(classes, seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, 30)
    guesses = guesses_from_probs(labels, random.dirichlet(np.full(classes, 0.3), 30))
    decided = with_decided(guesses, np.arange(30) < 10)
    found = true_class_probs(decided, shrunk_label_given_true(count_joint(guesses)))
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-4)
    assert (found[:10].argmax(1) == labels[:10]).all() and (found[:10].max(1) == 1).all()


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40), st.floats(0.01, 0.9))
def test_mean_error_is_set_and_the_order_stays(values, rate):
    quality = np.array(values)
    shifted = with_mean_error(quality, rate)
    order = np.argsort(quality, kind="stable")
    assert (np.diff(shifted[order]) >= 0).all()
    if ((quality > 1e-6) & (quality < 1 - 1e-6)).all():
        assert np.mean(1 - shifted) == pytest.approx(rate, abs=1e-6)


def test_calibration_of_true_classes_undoes_a_temperature():
    random = np.random.default_rng(0)
    true_probs = random.dirichlet(np.full(4, 0.25), 20_000)
    labels = np.array([random.choice(4, p=row) for row in true_probs])
    flat = np.sqrt(true_probs)
    flat /= flat.sum(1, keepdims=True)  # temperature 2
    found = calibrate(guesses_from_probs(labels, flat), np.eye(4))
    np.testing.assert_allclose(found.likelihood[:, 0], true_probs.max(1), atol=0.05)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_racing_finds_the_best_of_all_temperatures(temperature, monkeypatch):
    labels, probs, _ = label_predictions(lambda k: mixed(k, 0.3), temperature=temperature, count=9000)
    guesses, label_given = guesses_from_probs(labels, probs), mixed(10, 0.3).numpy().T
    raced = best_temperature(guesses, label_given)
    monkeypatch.setattr(posterior_module, "RACING_ERRORS", 1e9)
    assert raced == best_temperature(guesses, label_given)


def test_mean_error_of_many_samples_matches_bisection():
    quality = np.random.default_rng(0).beta(2, 0.3, 50_000).clip(1e-6, 1 - 1e-6)
    odds = np.log(quality) - np.log1p(-quality)
    low, high = -80.0, 80.0
    for _ in range(100):
        shift = (low + high) / 2
        low, high = (shift, high) if np.mean(1 / (1 + np.exp(odds + shift))) > 0.07 else (low, shift)
    np.testing.assert_allclose(with_mean_error(quality, 0.07), 1 / (1 + np.exp(-odds - low)), rtol=1e-9)


@pytest.mark.parametrize("rate", [0.003, 0.07, 0.4])
@pytest.mark.parametrize("seed", range(4))
def test_mean_error_is_exact_after_few_steps(rate, seed, monkeypatch):
    monkeypatch.setattr(posterior_module, "SHIFT_STEPS", 12)
    quality = np.random.default_rng(seed).beta(0.3, 0.1, 40_000)
    assert abs((1 - with_mean_error(quality, rate)).mean() - rate) < 1e-15


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_mean_error_may_be_none_or_all(rate):
    assert abs(1 - with_mean_error(np.array([0.2, 0.9, 0.5]), rate) - rate).max() < 1e-12
