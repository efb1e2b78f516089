"""make_model: every registered network by name."""

from functools import cache

import pytest
import torch
from torch import nn

from labelsieve.errors import InputError
from labelsieve.models import MODELS, default_model, make_model
from labelsieve.models.networks import Dropout

IMAGE = (3, 32, 32)


LARGER_MODELS = ["resnet-18", "resnet-34", "resnet-50", "resnet-50-original", "preact-resnet-18", "vgg-19", "mlp"]


@cache
def cached_model(name, shape=IMAGE, num_classes=10):
    """Return a network that no test changes."""
    torch.manual_seed(0)
    return make_model(name, shape, num_classes)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters", "tensors"),
    [
        ("resnet-18", IMAGE, 1000, 11_689_512, 122),
        ("resnet-34", IMAGE, 1000, 21_797_672, 218),
        ("resnet-50", IMAGE, 1000, 25_557_032, 320),
        ("resnet-50-original", IMAGE, 1000, 25_557_032, 320),
        ("preact-resnet-18", IMAGE, 10, 11_171_146, 102),
        ("vgg-19", IMAGE, 10, 38_975_306, 128),
        ("lite0", IMAGE, 1000, 4_652_008, 296),
        ("mlp", (20,), 3, 20 * 256 + 256 + 512 + 256 * 256 + 256 + 512 + 256 * 3 + 3, 19),
    ],
)
def test_models_have_the_published_parameter_counts(name, shape, classes, parameters, tensors):
    network = cached_model(name, shape, classes)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert len(network.state_dict()) == tensors


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 30, 17)])
def test_every_model_accepts_any_image_size(name, shape):
    assert make_model(name, shape, 7)(torch.randn(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet-18", (3, 64, 64)),
        ("resnet-18", (4, 45, 33)),
        ("resnet-50", (1, 96, 64)),
        ("resnet-50-original", (3, 64, 64)),
        ("preact-resnet-18", (3, 64, 64)),
        ("vgg-19", (3, 64, 64)),
        ("mlp", (5,)),
        ("mlp", (2, 4, 3)),
    ],
)
def test_models_accept_several_sample_sizes(name, shape):
    assert make_model(name, shape, 7).eval()(torch.randn(1, *shape)).shape == (1, 7)


@pytest.mark.parametrize("name", LARGER_MODELS)
def test_gradients_reach_every_parameter_and_eval_is_deterministic(name):
    torch.manual_seed(1)
    network, x = make_model(name, IMAGE, 5), torch.randn(4, *IMAGE)
    nn.functional.cross_entropy(network(x), torch.tensor([0, 1, 2, 3])).backward()
    for key, parameter in network.named_parameters():
        before_norm = key.endswith("bias") and parameter.ndim == 1 and name in ("vgg-19", "mlp")
        assert parameter.grad is not None, key
        assert before_norm or parameter.grad.abs().max() > 0, key  # a norm cancels the bias before it
    network.eval()
    with torch.no_grad():
        assert torch.equal(network(x[:1]), network(x[:1]))
    if any(isinstance(module, Dropout) for module in network.modules()):
        network.train()
        assert not torch.equal(network(x[:2]), network(x[:2]))


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("mlp", "linear")])
def test_image_models_reject_tables(name):
    with pytest.raises(InputError, match=f"^{name} needs images; for a table use mlp$"):
        make_model(name, (20,), 3)


def test_default_model_depends_on_shape_and_device():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert default_model((20,), gpu) == "mlp" and default_model(IMAGE, cpu) == "small"
    assert default_model((3, 64, 64), gpu) == "densenet-25-12" and default_model((3, 64, 65), gpu) == "resnet-18"
    assert {default_model(s, d) for s in ((20,), IMAGE, (3, 224, 224)) for d in (cpu, gpu)} <= set(MODELS)


def test_unknown_name_suggests_the_closest():
    for wrong, right in (
        ("resnet18", "resnet-18"),
        ("vgg19", "vgg-19"),
        ("preact-resnet", "preact-resnet-18"),
        ("densnet", "densenet-25-12"),
    ):
        with pytest.raises(InputError, match=f"unknown model '{wrong}': did you mean {right}[?]"):
            make_model(wrong, IMAGE, 10)
