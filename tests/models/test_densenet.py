"""DenseNet: the parameter count, shapes and initialisation of the paper's network."""

import math

import pytest
import torch
from torch import nn

from labelsieve.models import make_model
from labelsieve.models.densenet import DenseLayer


@pytest.mark.parametrize(("classes", "parameters"), [(10, 362_242), (100, 386_452), (200, 413_352)])
def test_densenet_parameter_count_matches_the_paper(classes, parameters):
    network = make_model("densenet-25-12", (3, 32, 32), classes)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_densenet_feature_shapes():
    seen = []
    network = make_model("densenet-25-12", (3, 32, 32), 10).eval()
    for module in network.features:
        module.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape[1:])))
    network(torch.zeros(1, 3, 32, 32))
    assert seen[0] == (16, 32, 32) and seen[7] == (100, 32, 32) and seen[8] == (100, 16, 16)
    assert seen[15] == (184, 16, 16) and seen[-1] == (268, 8, 8) and len(seen) == 24


def test_dense_layer_puts_new_channels_first():
    layer = DenseLayer(16, 12, dropout=0.0).eval()
    x = torch.randn(1, 16, 4, 4)
    assert torch.equal(layer(x)[:, 12:], x)


def test_densenet_initialisation():
    """3x3: He-normal over fan-out (σ = 0.136 for 12 filters); 1x1 and the classifier: over fan-in, truncated at 2 σ."""
    torch.manual_seed(0)
    network = make_model("densenet-25-12", (3, 32, 32), 10)
    layers = [m.conv.weight for m in network.features if isinstance(m, DenseLayer)]
    assert torch.cat([w.flatten() for w in layers]).std().item() == pytest.approx(math.sqrt(2 / (9 * 12)), rel=0.02)
    transition = network.features[8].conv.weight
    assert transition.std().item() == pytest.approx(math.sqrt(2 / 100), rel=0.03)
    assert transition.abs().max() <= 2 * math.sqrt(1.3 * 2 / 100) + 1e-6
    assert network.classifier.weight.std().item() == pytest.approx(math.sqrt(2 / 268), rel=0.06)
    assert (network.classifier.bias == 0).all()
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 24 and all(n.eps == 1e-5 and n.momentum == 0.1 for n in norms)


def test_benchmark_densenet_without_dropout():
    torch.manual_seed(0)
    network = make_model("benchmarks.given_up:without_dropout", (3, 32, 32), 10)
    torch.manual_seed(0)
    usual = make_model("densenet-25-12", (3, 32, 32), 10)
    assert all(map(torch.equal, network.parameters(), usual.parameters()))
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(network(x), network(x)) and not torch.equal(usual(x), usual(x))


def test_benchmark_densenet_with_torch_initialisation():
    network, usual = (
        make_model(name, (3, 32, 32), 10) for name in ("benchmarks.torch_init:densenet", "densenet-25-12")
    )
    assert type(network) is type(usual) and network.fused
    assert [p.shape for p in network.parameters()] == [p.shape for p in usual.parameters()]
    for layer, other in zip(network.modules(), usual.modules(), strict=True):
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1 / math.sqrt(layer.weight[0].numel())  # torch draws evenly up to it
            assert 0.9 * bound < layer.weight.abs().max() <= bound < 0.9 * other.weight.abs().max()
