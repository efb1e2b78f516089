"""Logistic regression: against scikit-learn, several heads at once, soft targets."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from labelsieve.models import make_model
from labelsieve.models.linear import LinearHead, fit_heads, head_logits, one_hot, standardise


@pytest.fixture(scope="module")
def data():
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (240,), generator=draw)
    features = torch.randn(240, 12, generator=draw) + 1.5 * one_hot(labels, 12)
    return standardise(3 * features + 7)[0], labels


@pytest.mark.parametrize("l2", [1.0, 0.1, 0.003])
def test_heads_equal_those_of_scikit_learn(data, l2):
    x, labels = data
    used = torch.stack([torch.arange(240) % 3 != k for k in range(3)])
    heads = fit_heads(x, one_hot(labels, 4), used, l2)
    for mask, head in zip(used, heads, strict=True):
        model = LogisticRegression(C=1 / (l2 * int(mask.sum())), tol=1e-8, max_iter=2000).fit(x[mask], labels[mask])
        ours = head_logits(x, head[None])[:, 0].softmax(1).numpy()
        np.testing.assert_allclose(ours, model.predict_proba(x.numpy()), atol=4e-3)


def test_probabilities_as_targets_give_the_stationary_point(data):
    x, labels = data
    targets = 0.7 * one_hot(labels, 4) + 0.3 / 4
    used = torch.ones(1, 240, dtype=torch.bool)
    head = fit_heads(x, targets, used, 0.05)[0]
    error = head_logits(x, head[None])[:, 0].softmax(1) - targets  # gradient of the cross-entropy
    gradient = x.T @ error / 240 + 0.05 * head[:-1]
    assert gradient.abs().max() < 1e-3
    assert error.mean(0).abs().max() < 1e-3  # of the biases


def test_targets_may_differ_between_heads(data):
    x, labels = data
    both = torch.stack([one_hot(labels, 4), one_hot((labels + 1) % 4, 4)], 1)
    heads = fit_heads(x, both, torch.ones(2, 240, dtype=torch.bool), 0.1)
    predicted = head_logits(x, heads).argmax(-1)
    assert (predicted[:, 1] == (predicted[:, 0] + 1) % 4).float().mean() > 0.95


def test_samples_that_a_head_does_not_use_do_not_matter(data):
    x, labels = data
    used = (torch.arange(240) < 200)[None]
    other = labels.clone()
    other[200:] = 0
    one, two = (fit_heads(x, one_hot(each, 4), used, 0.1) for each in (labels, other))
    torch.testing.assert_close(one, two)


def test_start_does_not_change_the_result(data):
    x, labels = data
    used = torch.ones(1, 240, dtype=torch.bool)
    cold = fit_heads(x, one_hot(labels, 4), used, 0.1)
    warm = fit_heads(x, one_hot(labels, 4), used, 0.1, fit_heads(x, one_hot(labels, 4), used, 1.0))
    torch.testing.assert_close(cold, warm, atol=5e-3, rtol=0)


def test_constant_columns_count_as_zero():
    features = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    features[:, 1] = 1e6
    x, mean, scale = standardise(features)
    assert torch.equal(x[:, 1], torch.zeros(50))
    head = LinearHead((3,), 2).eval()
    head.assign(mean, scale, torch.randn(4, 2, generator=torch.Generator().manual_seed(1)))
    assert head(features + torch.tensor([0, 5.0, 0])).isfinite().all()


def test_network_gives_the_logits_of_the_head(data):
    features = torch.randn(60, 5, generator=torch.Generator().manual_seed(2)) * 4 + 3
    x, mean, scale = standardise(features)
    head = torch.randn(6, 3, generator=torch.Generator().manual_seed(3))
    network = make_model("linear", (5,), 3)
    assert isinstance(network, LinearHead)
    network.assign(mean, scale, head)
    torch.testing.assert_close(network.eval()(features), head_logits(x, head[None])[:, 0], atol=1e-4, rtol=1e-4)


def test_targets_may_be_computed_in_parts(data, monkeypatch):
    x, labels = data
    used = torch.arange(240) % 3 != torch.arange(3)[:, None]
    targets = one_hot(labels, 4)
    whole = fit_heads(x, targets, used, 0.1)
    monkeypatch.setattr("labelsieve.models.linear.CPU_CHUNK", 3 * 4 * 50)
    torch.testing.assert_close(fit_heads(x, lambda cut: targets[cut], used, 0.1), whole, atol=2e-3, rtol=0)
