"""Networks and Dropout: weights and masks depend only on the seed of the run."""

import pytest
import torch

from labelsieve.models import DenseNet
from labelsieve.models.networks import Dropout, make_networks, multiplications


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


def test_multiplications_of_a_forward_pass_by_hand():
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),  # 8 x 6 x 6 values of 3 x 3 x 3 products
        torch.nn.BatchNorm2d(8),
        torch.nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8),  # 8 x 3 x 3 values of 3 x 3 products
        torch.nn.Flatten(),
        torch.nn.Linear(72, 5),
    )
    assert multiplications(network, (3, 6, 6)) == 288 * 27 + 72 * 9 + 72 * 5
    assert not any(layer._forward_hooks for layer in network.modules())
