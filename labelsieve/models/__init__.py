"""Networks by name, made for the shape of the data."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from labelsieve.errors import InputError, nearest
from labelsieve.models.densenet import DenseNet
from labelsieve.models.load import imported
from labelsieve.models.resnet import PreActResNet18, ResNet
from labelsieve.models.small import MLP, CompactNet, SmallNet
from labelsieve.models.vgg import VGG19

Shape = tuple[int, ...]  # (channels, height, width) of an image, (features,) of a row of a table
Maker = Callable[[Shape, int], nn.Module]
LARGEST_SMALL_SIDE = 64  # pixels; above it, a network that begins by quartering the side


def densenet_25_12(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """DenseNet(L=25, k=12) with dropout 0.2: the paper's network."""
    return DenseNet(channels, num_classes, depth=25, growth=12, dropout=0.2)


def resnet(
    depth: int, channels: int, height: int, width: int, num_classes: int, *, original: bool = False
) -> nn.Module:
    """ResNet of 18, 34 or 50 layers, for images of about 224 pixels a side and for torchvision's weights."""
    return ResNet(channels, num_classes, depth=depth, original=original)


def preact_resnet_18(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """Pre-activation ResNet-18 for images of about 32 pixels a side."""
    return PreActResNet18(channels, num_classes)


def for_images(name: str, make: Callable[[int, int, int, int], nn.Module], shape: Shape, num_classes: int) -> nn.Module:
    """A network for images, which refuses the rows of a table."""
    if len(shape) != 3:
        raise InputError(f"{name} needs images; for a table use mlp")
    return make(*shape, num_classes)


def mlp(shape: Shape, num_classes: int) -> nn.Module:
    """Two hidden layers of 256, for tables."""
    return MLP(math.prod(shape), num_classes)


IMAGE_MODELS: dict[str, Callable[[int, int, int, int], nn.Module]] = {
    "densenet-25-12": densenet_25_12,
    "small": SmallNet,
    "compact": CompactNet,
    "resnet-18": partial(resnet, 18),
    "resnet-34": partial(resnet, 34),
    "resnet-50": partial(resnet, 50),
    "resnet-50-original": partial(resnet, 50, original=True),
    "preact-resnet-18": preact_resnet_18,
    "vgg-19": VGG19,
}
MODELS: dict[str, Maker] = {name: partial(for_images, name, make) for name, make in IMAGE_MODELS.items()}
MODELS["mlp"] = mlp


def make_model(name: str, shape: Shape, num_classes: int) -> nn.Module:
    """A freshly initialised network: one of MODELS, a person's own package.module:factory, or timm:NAME."""
    if ":" in name:
        return imported(name)(shape, num_classes)
    if name not in MODELS:
        raise InputError(f"unknown model {name!r}: {nearest(name, MODELS)}")
    return MODELS[name](shape, num_classes)


def suitable(shape: Shape, device: torch.device) -> str:
    """The name of a network that suits such samples on such a device."""
    if len(shape) != 3:
        return "mlp"
    if device.type == "cpu":
        return "small"
    return "densenet-25-12" if max(shape[1:]) <= LARGEST_SMALL_SIDE else "resnet-18"


def candidates(shape: Shape, device: torch.device) -> tuple[str, ...]:
    """The names of networks one of which suits such samples; which one, only training tells."""
    coloured = len(shape) == 3 and shape[0] == 3
    return ("small", "compact") if coloured and device.type == "cpu" else (suitable(shape, device),)


__all__ = ["MODELS", "DenseNet", "SmallNet", "candidates", "make_model", "suitable"]
