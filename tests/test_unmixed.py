"""unmixed: probabilities that learnt wrong labels, by hand, against a dense oracle, and on noise that is known."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.detection import average_precision, decision
from benchmarks.posthoc import OURS, THEIRS, classifiers_table, steps_table
from labelsieve.audit import estimate_noise, find_label_issues, label_quality
from labelsieve.audit import posterior as unmixing
from labelsieve.audit.findings import findings_of
from labelsieve.audit.guesses import guesses_of
from labelsieve.audit.posterior import (
    counted_where_surest,
    explained,
    explaining,
    levelled,
    likeliest_temperature,
    quality,
)
from labelsieve.noise import corrupt, mixed, pair, symmetry

ROOT = Path(__file__).parents[1]


def learnt(matrix, count=4000, classes=10, seed=0, sure=2.5, temperature=1.0):
    """Labels, the probabilities of a classifier that knows all that can be known about labels, and the truth.

    Its logits are divided by the temperature: it is too little sure of what it knows, or too much.
    """
    random = np.random.default_rng(seed)
    clean = random.integers(0, classes, count)
    labels = corrupt(torch.from_numpy(clean), matrix(classes), seed).numpy()
    seen = random.normal(size=(count, classes))
    seen[np.arange(count), clean] += sure
    true = np.exp(sure * (seen - seen.max(1, keepdims=True)))
    probs = (true / true.sum(1, keepdims=True)) @ matrix(classes).numpy()
    raised = probs ** (1 / temperature)
    return labels, raised / raised.sum(1, keepdims=True), clean


# --- where it is counted


def test_the_surest_are_counted_by_hand(monkeypatch):
    monkeypatch.setattr(unmixing, "ENOUGH", 0)
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    first = np.array([0.9, 0.6, 0.4, 0.3, 0.8, 0.2, 0.1, 0.1])
    found = guesses_of(labels, np.stack([first, 1 - first], 1))
    assert counted_where_surest(found).tolist() == [
        [1, 0],
        [0, 2],
    ]  # 0.9 of class 0; 0.1 twice: equally sure of class 1
    assert counted_where_surest(found, 0.5).tolist() == [[1, 0], [1, 2]]
    monkeypatch.setattr(unmixing, "ENOUGH", 50)
    assert counted_where_surest(found).tolist() == [[1, 0], [1, 2]]  # few samples: half of them


def test_a_class_that_nobody_has_is_not_counted():
    counts = counted_where_surest(guesses_of(np.array([0, 1, 0, 1]), np.full((4, 3), 1 / 3)))
    assert counts[:, 2].tolist() == [0, 0, 0] and counts[2].tolist() == [0, 0, 0]
    np.testing.assert_allclose(levelled(counts).sum(0), 1)


def test_differences_that_chance_explains_are_levelled():
    random = np.random.default_rng(0)
    even = random.poisson(3, (10, 10)) + 70 * np.eye(10, dtype=int)
    off = ~np.eye(10, dtype=bool)
    spread = [np.where(off, s - (s * off).sum(0) / 9, 0).std() for s in (levelled(even), even / even.sum(0))]
    assert spread[0] < 0.2 * spread[1]
    one = np.diag(np.full(10, 60)) + 40 * np.roll(np.eye(10, dtype=int), 1, axis=0)
    shares = levelled(one)
    np.testing.assert_allclose(np.roll(shares, -1, axis=0).diagonal(), 0.4, atol=0.02)
    assert shares[off].min() > 0  # nothing is impossible


@given(st.integers(2, 8), st.integers(0, 10**6))
def test_levelled_counts_are_shares_and_keep_the_right_labels(classes, seed):
    counts = np.random.default_rng(seed).integers(0, 30, (classes, classes))
    shares = levelled(counts)
    np.testing.assert_allclose(shares.sum(0), 1)
    assert (shares > 0).all()
    share = counts.diagonal() / np.maximum(counts.sum(0), 1)
    enough = counts.sum(0) > 20
    assert abs(shares.diagonal() - share)[enough].max(initial=0) < 1 / 20


# --- what is explained


def test_a_mixture_is_explained():
    given_true = np.array(
        [[0.6, 0.0, 0.4], [0.4, 0.6, 0.0], [0.0, 0.4, 0.6]]
    )  # class 0 becomes 1, 1 becomes 2, 2 becomes 0
    held = explaining(given_true.T.copy(), np.broadcast_to(given_true, (3, 3, 3)))
    assert (held.diagonal() > 0.97).all()
    even = np.array([[0.5, 0.5, 0.0]])  # as likely label 0 as label 1: class 0, else there would be label 2
    assert explaining(even, given_true[None])[0].argmax() == 0


@given(st.integers(0, 10**6))
def test_few_classes_are_as_in_a_dense_table_and_order_does_not_matter(seed):
    random = np.random.default_rng(seed)
    labels, probs = random.integers(0, 4, 30), random.dirichlet(np.ones(4), 30).astype(np.float32)
    given_true = random.dirichlet(np.ones(4), 4).T
    warm = probs.astype(float) ** (1 / 0.7)
    said = warm / warm.sum(1, keepdims=True)
    held = said
    for _ in range(unmixing.ROUNDS):
        held = held * ((said / (held @ given_true.T)) @ given_true)
    found = explained(guesses_of(labels, probs), given_true, 0.7)
    dense = np.zeros((30, 4))
    np.put_along_axis(dense, found.likeliest.astype(int), found.likelihood, axis=1)
    np.testing.assert_allclose(dense, held / held.sum(1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(found.confidence, dense[np.arange(30), labels], atol=1e-6)
    assert (np.diff(found.likelihood, axis=1) <= 0).all()


def test_classes_that_were_not_kept_hardly_matter():
    labels, probs, _ = learnt(lambda k: mixed(k, 0.4), count=500)
    given_true = mixed(10, 0.4).numpy().T
    held = probs
    for _ in range(unmixing.ROUNDS):
        held = held * ((probs / (held @ given_true.T)) @ given_true)
    found = explained(guesses_of(labels, probs), given_true, 1.0)
    assert abs(found.confidence - held[np.arange(500), labels] / held.sum(1)).mean() < 0.01


def test_clean_labels_leave_the_guesses_as_they_are():
    labels, probs, _ = learnt(lambda k: pair(k, 0.0), count=500)
    found = guesses_of(labels, probs)
    same = explained(found, np.eye(10), 1.0)
    np.testing.assert_allclose(same.confidence, found.confidence, atol=1e-5)
    np.testing.assert_array_equal(same.likeliest, found.likeliest)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_the_temperature_is_found(temperature):
    labels, probs, _ = learnt(lambda k: symmetry(k, 0.3), temperature=temperature, count=8000)
    found = likeliest_temperature(guesses_of(labels, probs), symmetry(10, 0.3).numpy().T)
    assert found == pytest.approx(1 / temperature, rel=0.25)


# --- what it is good for


@pytest.mark.parametrize("kind", [pair, mixed, symmetry])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_classifier_that_learnt_wrong_labels_still_finds_them(kind, temperature):
    labels, probs, clean = learnt(lambda k: kind(k, 0.4), temperature=temperature)
    wrong = labels != clean
    assert decision(wrong, find_label_issues(labels, probs))["f1"] > 0.87
    assert decision(wrong, quality(guesses_of(labels, probs)) < 0.5)["f1"] < 0.8  # as if it knew the classes
    confidence = probs[np.arange(len(labels)), labels]
    better = 0.02 if kind is pair else -0.01
    assert average_precision(wrong, label_quality(labels, probs)) > average_precision(wrong, confidence) + better
    noise = estimate_noise(labels, probs)
    assert (
        noise.rate.estimate == pytest.approx(wrong.mean(), abs=0.04) and noise.rate.low < wrong.mean() < noise.rate.high
    )


def test_clean_labels_are_left_alone():
    labels, probs, _ = learnt(lambda k: pair(k, 0.0), sure=2.0)
    assert (probs.argmax(1) != labels).mean() > 0.05 and find_label_issues(labels, probs).mean() < 0.02


def test_a_rare_class_is_not_given_up():
    """A classifier that hardly ever says it first, as it is rare; all labels are right."""
    random = np.random.default_rng(0)
    labels = (random.random(4000) < 0.05).astype(int)
    seen = random.normal(size=4000) + 1.5 * labels
    odds = 0.05 / 0.95 * np.exp(1.5 * seen - 1.5**2 / 2)
    probs = np.stack([1 / (1 + odds), odds / (1 + odds)], 1)
    assert find_label_issues(labels, probs)[labels == 1].mean() < (probs.argmax(1) == 0)[labels == 1].mean() / 2


def test_findings_suggest_the_true_class_and_quote_the_model():
    labels, probs, clean = learnt(lambda k: pair(k, 0.4))
    names = [f"c{k}" for k in range(10)]
    found = findings_of(guesses_of(labels, probs), names, unlearnt=True)
    np.testing.assert_array_equal(found.issues, find_label_issues(labels, probs))
    assert (found.suggested == clean)[found.issues].mean() > 0.85
    worst = int(found.order[0])
    assert f"({100 * probs[worst, labels[worst]]:.0f}%)" in found.why[worst] or probs[worst, labels[worst]] < 0.1
    assert found.noise.rate == estimate_noise(labels, probs).rate


# --- what the documentation says


def test_a_classifier_that_only_guesses_is_not_believed():
    random = np.random.default_rng(0)
    labels, guessed = random.integers(0, 10, 2000), random.dirichlet(np.ones(10), 2000)
    found = findings_of(guesses_of(labels, guessed), list("abcdefghij"), unlearnt=True)
    assert found.verdict.endswith("the model knows too little to judge them: look at some first.")


def test_the_documented_tables_come_from_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "posthoc.json").read_text())
    decided = (ROOT / "docs" / "decisions" / "026-probabilities-of-any-classifier.md").read_text(encoding="utf-8")
    assert steps_table(record) in decided and classifiers_table(record) in decided
    assert {OURS, THEIRS} <= {row["step"] for row in record}
