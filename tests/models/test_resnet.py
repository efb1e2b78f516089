"""ResNet and PreActResNet18: parameter names, strides, shortcuts and initialisation."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from labelsieve.models import make_model
from tests.models.test_make_model import IMAGE, cached_model

NORM = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]


def state_dict_keys(*layers):
    """Return the state dict keys of convolutions and norms."""
    return [f"{layer}.{k}" for layer in layers for k in (["weight"] if "conv" in layer or layer[-1] == "0" else NORM)]


def test_resnet_has_torchvision_parameter_names():
    keys = list(cached_model("resnet-18").state_dict())
    first, second = "layer1.0", "layer1.1"
    plain = [f"{block}.{layer}" for block in (first, second) for layer in ("conv1", "bn1", "conv2", "bn2")]
    strided = [f"layer2.0.{layer}" for layer in ("conv1", "bn1", "conv2", "bn2", "downsample.0", "downsample.1")]
    expected = state_dict_keys("conv1", "bn1", *plain, *strided)
    assert keys[: len(expected)] == expected
    assert keys[-2:] == ["fc.weight", "fc.bias"] and not any("layer1" in k and "downsample" in k for k in keys)
    deeper = cached_model("resnet-50").state_dict()
    layers = [f"layer1.0.{layer}" for layer in ("conv1", "bn1", "conv2", "bn2", "conv3", "bn3")]
    expected = state_dict_keys(
        "conv1", "bn1", *layers, "layer1.0.downsample.0", "layer1.0.downsample.1", "layer1.1.conv1"
    )
    assert list(deeper)[: len(expected)] == expected
    shapes = {
        k: tuple(deeper[k].shape) for k in ("conv1.weight", "layer3.5.conv3.weight", "layer4.0.downsample.0.weight")
    }
    assert list(shapes.values()) == [(64, 3, 7, 7), (1024, 256, 1, 1), (2048, 1024, 1, 1)]


@pytest.mark.parametrize(("name", "strides"), [("resnet-50-original", (2, 1)), ("resnet-50", (1, 2))])
def test_resnet_50_stride_position(name, strides):
    network = cached_model(name)
    for layer in (network.layer2, network.layer3, network.layer4):
        assert tuple(c.stride[0] for c in (layer[0].conv1, layer[0].conv2)) == strides
        assert layer[0].conv3.stride[0] == 1 and layer[0].downsample[0].stride[0] == 2
        assert layer[1].conv1.stride[0] == layer[1].conv2.stride[0] == 1
    assert network.layer1[0].conv1.stride[0] == network.layer1[0].conv2.stride[0] == 1


def test_resnet_initialisation_matches_torchvision():
    network = cached_model("resnet-34")
    for weight in (network.conv1.weight, network.layer2[1].conv1.weight, network.layer3[0].downsample[0].weight):
        fan_out = weight.shape[0] * weight[0, 0].numel()
        assert weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.05)
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all((n.weight == 1).all() and (n.bias == 0).all() for n in norms)
    assert network.fc.weight.abs().max() <= 1 / math.sqrt(512) + 1e-6  # torch's own: uniform


def test_blocks_add_their_input():
    """With zero weights in the last convolution, only the shortcut contributes."""
    x = torch.randn(2, 64, 4, 4)
    for name, expected in (("resnet-18", x.relu()), ("preact-resnet-18", x)):
        block = make_model(name, IMAGE, 2).layer1[0].eval()
        nn.init.zeros_(block.conv2.weight)
        assert torch.equal(block(x), expected)


def test_resnet_stages_reduce_the_side():
    seen = {}
    for name in ("resnet-18", "preact-resnet-18"):
        network = make_model(name, (3, 64, 64), 2).eval()
        for stage in range(1, 5):
            layer = network.get_submodule(f"layer{stage}")
            layer.register_forward_hook(lambda m, i, y, name=name: seen.setdefault(name, []).append(y.shape[-1]))
        network(torch.zeros(1, 3, 64, 64))
    assert seen == {"resnet-18": [16, 8, 4, 2], "preact-resnet-18": [64, 32, 16, 8]}


def test_preact_resnet_has_no_norm_after_its_last_block():
    """Convolutions, shortcuts, two norms per block and the linear layer have all parameters."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]  # in front of the blocks, then after each
    total = 3 * 64 * 9
    for inputs, width in pairwise(widths):
        total += 9 * inputs * width + 9 * width * width + 2 * inputs + 2 * width
        total += inputs * width if inputs != width else 0
    assert total + 512 * 10 + 10 == 11_171_146 == sum(p.numel() for p in cached_model("preact-resnet-18").parameters())


def test_preact_shortcut_starts_after_the_first_relu():
    block = make_model("preact-resnet-18", IMAGE, 2).layer2[0].eval()
    nn.init.zeros_(block.conv2.weight)
    block.bn1.running_mean.fill_(3.0)
    x = torch.randn(1, 64, 4, 4)
    expected = block.shortcut((x - 3).div(math.sqrt(1 + 1e-5)).relu())
    assert torch.allclose(block(x), expected, atol=1e-6)
