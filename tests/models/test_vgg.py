"""VGG19: layers and initialisation."""

import math

import pytest
from torch import nn

from labelsieve.models.networks import Dropout
from tests.models.test_make_model import cached_model


def test_vgg_has_sixteen_convolutions_with_bias_and_wide_linear_layers():
    """At 32 pixels a side one pixel remains, so the first linear layer has 512 inputs."""
    network = cached_model("vgg-19")
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8
    assert all(m.bias is not None for m in convolutions)
    linear = [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(512, 4096), (4096, 4096), (4096, 10)]
    assert [m.p for m in network.modules() if isinstance(m, Dropout)] == [0.5, 0.5]
    assert sum(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in network.modules()) == 18


def test_vgg_biases_are_initialised_with_zero():
    network = cached_model("vgg-19")
    assert all((m.bias == 0).all() for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    assert network.features[3].weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 64)), rel=0.02)
