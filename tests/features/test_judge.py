"""Judging labels by features: folds, out-of-fold predictions, the second round."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score

from labelsieve.audit.explain import explain
from labelsieve.audit.posterior import label_probability
from labelsieve.audit.quality import LOWEST, THRESHOLD, judge_labels
from labelsieve.errors import InputError
from labelsieve.features.judge import choose_strength, fit_head, judge_features, out_of_fold, stratified_folds
from labelsieve.models.linear import head_logits, one_hot, standardise


def clusters(samples: int = 900, classes: int = 6, columns: int = 40, seed: int = 0):
    """Return features of overlapping clusters and their classes."""
    draw = torch.Generator().manual_seed(seed)
    true = torch.arange(samples) % classes
    centres = 0.45 * torch.randn(classes, columns, generator=draw)
    return centres[true] + torch.randn(samples, columns, generator=draw), true.numpy()


def to_next_class(true, rate: float, seed: int = 0):
    moved = np.random.default_rng(seed).random(len(true)) < rate
    return np.where(moved, (true + 1) % (true.max() + 1), true)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=10, max_size=80), st.integers(0, 5))
def test_folds_spread_every_label_evenly(labels, seed):
    folds = stratified_folds(torch.tensor(labels), 5, seed)
    assert folds.bincount(minlength=5).max() - folds.bincount(minlength=5).min() <= 1
    for label in set(labels):
        counts = folds[torch.tensor(labels) == label].bincount(minlength=5)
        assert counts.max() - counts.min() <= 1


def test_prediction_of_a_sample_does_not_depend_on_its_own_label():
    features, true = clusters(300)
    x = standardise(features)[0]
    folds = stratified_folds(torch.from_numpy(true), 5, 0)
    before, _ = out_of_fold(x, one_hot(torch.from_numpy(true), 6), folds, 0.1)
    changed = true.copy()
    changed[17] = (changed[17] + 1) % 6
    after, _ = out_of_fold(x, one_hot(torch.from_numpy(changed), 6), folds, 0.1)
    same = (folds == folds[17]).numpy()
    np.testing.assert_allclose(before[same], after[same], atol=1e-3)  # other heads never saw this fold
    assert np.abs(before[~same] - after[~same]).max() > 1e-3


@pytest.mark.parametrize("rate", [0.2, 0.3])
def test_second_round_ranks_wrong_labels_better(rate):
    features, true = clusters()
    labels = to_next_class(true, rate)
    wrong = labels != true
    judgment = judge_features(features, labels, 6)
    first = label_probability(*explain(judgment.first)[:2])
    _, _, second, noise, _ = judge_labels(judgment.first, judgment.second)
    assert average_precision_score(wrong, -second) > average_precision_score(wrong, -first) + 0.02
    assert average_precision_score(wrong, -second) > 0.9
    assert abs(noise.rate.estimate - wrong.mean()) < 0.05
    assert noise.rate.low <= wrong.mean() <= noise.rate.high
    raised = LOWEST * (second < THRESHOLD).mean()  # the quality of suspects is at least LOWEST
    assert noise.rate.estimate - raised - 1e-3 <= np.mean(1 - second) <= noise.rate.estimate + 1e-3
    assert second.min() >= LOWEST / 2  # lower where errors seem to depend on the sample


def test_delivered_head_is_better_than_one_that_learned_the_labels():
    features, true = clusters(1200)
    labels = to_next_class(true[:900], 0.35)
    judgment = judge_features(features[:900], labels, 6)
    targets = torch.from_numpy(judgment.targets())
    torch.testing.assert_close(targets.sum(1), torch.ones(900))
    accuracy = {}
    for name, learned in {"given": one_hot(torch.from_numpy(labels), 6), "corrected": targets}.items():
        mean, scale, head = fit_head(features[:900], learned, judgment.strength / 10)
        predicted = head_logits((features[900:] - mean) / scale, head[None])[:, 0].argmax(1)
        accuracy[name] = float((predicted.numpy() == true[900:]).mean())
    assert accuracy["corrected"] > accuracy["given"] + 0.03


def test_clean_labels_stay():
    features, true = clusters(columns=120)
    judgment = judge_features(features, true, 6)
    _, _, quality, noise, _ = judge_labels(judgment.first, judgment.second)
    assert noise.rate.estimate < 0.02
    assert (quality < 0.5).mean() < 0.01


def test_chosen_strength_predicts_held_out_labels_as_well_as_scikit_learn():
    features, true = clusters(1400)
    labels = to_next_class(true, 0.2)
    targets, strength = choose_strength(features[:700], torch.from_numpy(labels[:700]), 6)
    mean, scale, head = fit_head(features[:700], targets, strength)
    ours = head_logits((features[700:] - mean) / scale, head[None])[:, 0].log_softmax(1).numpy()
    model = LogisticRegression(max_iter=1000).fit((features[:700] - mean) / scale, labels[:700])
    theirs = model.predict_log_proba((features[700:] - mean) / scale)
    rows = np.arange(700)
    assert ours[rows, labels[700:]].mean() > theirs[rows, labels[700:]].mean() - 0.01


def test_decided_labels_count_as_correct():
    features, true = clusters(300)
    labels = to_next_class(true, 0.3)
    decided = np.arange(300) < 100
    judgment = judge_features(features, labels, 6, decided)
    assert judgment.second.decided is not None
    np.testing.assert_array_equal(judgment.targets()[decided].argmax(1), labels[decided])
    assert judgment.targets()[decided].max(1).min() == 1


def test_first_round_judges_the_labels_before_a_partial_review():
    """A perfect reviewer decided on the most suspicious labels: what is left is still found."""
    features, true = clusters()
    given = to_next_class(true, 0.3)
    judgment = judge_features(features, given, 6)
    quality = judge_labels(judgment.first, judgment.second).quality
    decided = np.zeros(len(true), bool)
    decided[np.argsort(quality)[: len(true) // 6]] = True
    labels = np.where(decided, true, given)
    again = judge_features(features, labels, 6, decided, before=given)
    np.testing.assert_array_equal(again.first.confidence, judgment.first.confidence)
    np.testing.assert_array_equal(again.targets()[decided].argmax(1), true[decided])
    found = judge_labels(again.first, again.second)
    wrong, scores = labels != true, np.where(decided, 1, found.quality)
    assert abs(found.noise.rate.estimate - wrong.mean()) < 0.05
    assert found.noise.rate.low <= wrong.mean() <= found.noise.rate.high
    old = judge_features(features, labels, 6, decided)
    old_scores = np.where(decided, 1, judge_labels(old.first, old.second).quality)
    assert f1_score(wrong, scores < THRESHOLD) > f1_score(wrong, old_scores < THRESHOLD) + 0.1


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (torch.randn(20, 3), np.zeros(19, int), "19 labels but 20 rows of features"),
        (torch.randn(20, 3), np.zeros(20, int), "of 1 classes are too few"),
        (torch.randn(4, 3), np.arange(4) % 2, "4 labels of 2 classes are too few"),
        (torch.full((20, 3), torch.nan), np.arange(20) % 2, "row 0 of the features has a value that is not finite"),
        (torch.ones(20), np.arange(20) % 2, "features must be floats of shape"),
        (torch.randn(20, 3), np.arange(20) % 4, "labels must be 0 to 1, got 0 to 3"),
    ],
)
def test_unsuitable_features_are_refused(features, labels, message):
    with pytest.raises(InputError, match=message):
        judge_features(features, labels, 2)


def test_many_samples_are_judged_by_heads_that_learn_some_of_them(monkeypatch):
    features, true = clusters()
    labels = to_next_class(true, 0.2)
    whole = judge_features(features, labels, 6)
    monkeypatch.setattr("labelsieve.features.judge.PREDICTED", 6 * 50)  # in parts
    parts = judge_features(features, labels, 6)
    np.testing.assert_array_equal(parts.second.likeliest[:, 0], whole.second.likeliest[:, 0])
    np.testing.assert_allclose(parts.second.confidence, whole.second.confidence, atol=1e-4)
    learned = len(true) // 2
    monkeypatch.setattr("labelsieve.features.judge.MAX_LEARNED", learned * 5 * features.shape[1] * 6)
    some = judge_features(features, labels, 6)
    assert len(some.first) == len(true) and not np.array_equal(some.first.confidence, whole.first.confidence)
    assert (some.second.likeliest[:, 0] == whole.second.likeliest[:, 0]).mean() > 0.9
