"""Networks and Dropout: weights and masks depend only on the seed of the run."""

import pytest
import torch

from labelsieve.models import DenseNet
from labelsieve.models.networks import Dropout, make_networks


def test_dropout_scales_and_draws_from_its_generator():
    dropout, x = Dropout(0.2), torch.ones(1000, 100)
    dropout.generator = torch.Generator().manual_seed(1)
    torch.manual_seed(5)
    first = dropout(x)
    dropout.generator.manual_seed(1)
    torch.manual_seed(6)
    assert torch.equal(dropout(x), first)
    assert first.unique().tolist() == [0.0, 1.25]
    assert first.mean().item() == pytest.approx(1, abs=0.01)
    assert torch.equal(dropout.eval()(x), x)
    assert Dropout(0.2)(x).unique().tolist() == [0.0, 1.25]


def test_initial_weights_depend_only_on_seed_and_position():
    def make():
        return DenseNet(1, 3, depth=7, growth=4)

    two = make_networks(make, 2, seed=4)
    torch.rand(3)
    one = make_networks(make, 1, seed=4)
    assert torch.equal(two[0].classifier.weight, one[0].classifier.weight)
    assert not torch.equal(two[0].classifier.weight, two[1].classifier.weight)
    assert two(torch.randn(5, 1, 8, 8)).shape == (2, 5, 3)
