"""label_quality and find_label_issues."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.detection import average_precision
from labelsieve import estimate_noise, find_label_issues, label_quality
from labelsieve.audit import quality as quality_module
from labelsieve.audit.guesses import guesses_from_probs
from labelsieve.core.criteria import CriteriaALL
from labelsieve.errors import InputError
from labelsieve.noise import pair, symmetry
from tests.audit.simulated import true_class_predictions


def test_criteria_all_matches_the_training_criterion():
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.3), count=500)
    criterion = CriteriaALL(10, lam=0.5)
    y, p = torch.from_numpy(labels), torch.from_numpy(probs).float()[None]
    criterion.stack(p, y, torch.ones(1, 500, dtype=torch.bool))
    criterion.end_epoch(None)
    wanted = (criterion(p, y)[0].numpy() + 0.5) / 1.5
    np.testing.assert_allclose(label_quality(labels, probs, criterion="all", lam=0.5), wanted, atol=1e-5)


def test_simple_criteria_by_hand():
    labels, probs = np.array([0, 1]), np.array([[0.5, 0.3, 0.2], [0.6, 0.1, 0.3]])
    np.testing.assert_allclose(label_quality(labels, probs, criterion="ol"), [0.5, 0.1], rtol=1e-6)
    np.testing.assert_allclose(label_quality(labels, probs, criterion="margin"), [0.6, 0.25], rtol=1e-6)


@pytest.mark.parametrize("kind", [pair, symmetry])
def test_posterior_ranks_better_than_confidence_on_pair_noise(kind):
    labels, probs, clean = true_class_predictions(lambda k: kind(k, 0.4), sure=1.5)
    score = {
        name: average_precision(labels != clean, label_quality(labels, probs, criterion=name))
        for name in ("posterior", "ol")
    }
    assert score["posterior"] > score["ol"] + 0.02 if kind is pair else score["posterior"] > score["ol"] - 0.01


@given(st.integers(2, 12), st.integers(1, 60), st.integers(0, 10**6))
def test_qualities_are_between_0_and_1(classes, count, seed):
    random = np.random.default_rng(seed)
    labels, probs = random.integers(0, classes, count), random.dirichlet(np.full(classes, 0.2), count)
    for criterion in ("posterior", "all", "ol", "margin"):
        found = label_quality(labels, probs, criterion=criterion)
        assert found.shape == (count,) and (found >= 0).all() and (found <= 1).all()
    noise = estimate_noise(labels, probs)
    np.testing.assert_allclose(noise.matrix.sum(1), 1)
    for share in (noise.rate, *noise.per_class):
        assert 0 <= share.low <= share.estimate <= share.high <= 1


def test_quality_does_not_depend_on_the_order():
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.3), count=500)
    order = np.random.default_rng(0).permutation(500)
    np.testing.assert_allclose(label_quality(labels[order], probs[order]), label_quality(labels, probs)[order])


def test_issues_as_a_mask_or_ranked():
    labels, probs, clean = true_class_predictions(lambda k: pair(k, 0.2))
    mask = find_label_issues(labels, probs)
    ranked = find_label_issues(labels, probs, return_indices_ranked_by="label_quality")
    assert sorted(ranked.tolist()) == np.flatnonzero(mask).tolist()
    assert (np.diff(label_quality(labels, probs)[ranked]) >= 0).all()
    assert (labels != clean)[mask].mean() > 0.9


def test_ranked_issues_read_the_probabilities_once(monkeypatch):
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.2))
    read = []
    monkeypatch.setattr(
        quality_module, "guesses_from_probs", lambda *both: read.append(both) or guesses_from_probs(*both)
    )
    assert len(find_label_issues(labels, probs, return_indices_ranked_by="label_quality")) and len(read) == 1
    with pytest.raises(TypeError, match="criterion"):
        find_label_issues(labels, probs, criterion="ol")


def test_unknown_options_raise():
    with pytest.raises(InputError, match="did you mean margin"):
        label_quality(np.array([0, 1, 1]), np.full((3, 2), 0.5), criterion="margn")
    with pytest.raises(InputError, match="lam must be"):
        label_quality(np.array([0, 1, 1]), np.full((3, 2), 0.5), criterion="all", lam=-1)
