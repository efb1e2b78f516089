"""Networks: the paper's DenseNet to the parameter, initialisation, dropout from the run's own generator."""

import math

import pytest
import torch
from torch import nn

from labelsieve.errors import InputError
from labelsieve.models import MODELS, DenseNet, make_model
from labelsieve.models.densenet import DenseLayer
from labelsieve.models.networks import Dropout, make_networks


@pytest.mark.parametrize(("classes", "parameters"), [(10, 362_242), (100, 386_452), (200, 413_352)])
def test_densenet_has_the_papers_parameters(classes, parameters):
    network = make_model("densenet-25-12", (3, 32, 32), classes)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_densenet_grows_and_halves_as_stated():
    seen = []
    network = make_model("densenet-25-12", (3, 32, 32), 10).eval()
    for module in network.features:
        module.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape[1:])))
    network(torch.zeros(1, 3, 32, 32))
    assert seen[0] == (16, 32, 32) and seen[7] == (100, 32, 32) and seen[8] == (100, 16, 16)
    assert seen[15] == (184, 16, 16) and seen[-1] == (268, 8, 8) and len(seen) == 24


def test_densenet_puts_new_channels_first():
    layer = DenseLayer(16, 12, dropout=0.0).eval()
    x = torch.randn(1, 16, 4, 4)
    assert torch.equal(layer(x)[:, 12:], x)


def test_densenet_starts_as_stated():
    """3x3: He-normal over fan-out (σ = 0.136 for 12 filters); 1x1 and the classifier: over fan-in, cut at two σ."""
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


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 30, 17)])
def test_every_model_takes_any_image(name, shape):
    assert make_model(name, shape, 7)(torch.randn(2, *shape)).shape == (2, 7)


def test_dropout_scales_and_draws_from_its_own_generator():
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


def test_networks_start_from_their_seed_and_place_alone():
    def make():
        return DenseNet(1, 3, depth=7, growth=4)

    two = make_networks(make, 2, seed=4)
    torch.rand(3)
    one = make_networks(make, 1, seed=4)
    assert torch.equal(two[0].classifier.weight, one[0].classifier.weight)
    assert not torch.equal(two[0].classifier.weight, two[1].classifier.weight)
    assert two(torch.randn(5, 1, 8, 8)).shape == (2, 5, 3)


def test_unknown_model_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean densenet-25-12"):
        make_model("densnet", (3, 32, 32), 10)
