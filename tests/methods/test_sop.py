"""Sparse over-parameterization."""

import math

import pytest
import torch

from labelsieve.methods.sop import SparseNoise


def test_value_and_gradient_computed_by_hand():
    """u = .5, v = (0, .4, 0), p = (.7, .2, .1), label 0; the hard prediction is right."""
    loss = SparseNoise(3, 1, lr_u=1, lr_v=1)
    with torch.no_grad():
        loss.u.fill_(0.5)
        loss.v.copy_(torch.tensor([[0.0, 0.4, 0.0]]))
    logits, target = torch.tensor([[[0.7, 0.2, 0.1]]]).log(), torch.tensor([[0]])
    mixed = torch.tensor([0.7 + 0.25, 0.2 - 0.16, 0.1])
    expected = -math.log(mixed[0] / mixed.sum()) + 0.25**2 + 0.16**2
    value = loss(logits, target, torch.ones(1, 1), target[0], torch.tensor([0]))
    assert value.item() == pytest.approx(expected, abs=1e-6)
    value.sum().backward()
    assert loss.v.grad[0, 1].item() == pytest.approx(2 * 0.16 * 2 * 0.4, abs=1e-6)  # of the squared error alone
