"""Networks by name, made for the shape of the data."""

from collections.abc import Callable

from torch import nn

from labelsieve.errors import InputError, nearest
from labelsieve.models.densenet import DenseNet
from labelsieve.models.small import SmallNet

Shape = tuple[int, int, int]  # channels, height, width


def densenet_25_12(shape: Shape, num_classes: int) -> nn.Module:
    """DenseNet(L=25, k=12) with dropout 0.2: the paper's network."""
    return DenseNet(shape[0], num_classes, depth=25, growth=12, dropout=0.2)


def small(shape: Shape, num_classes: int) -> nn.Module:
    """Two convolutions, dropout and a linear layer, for small images on a CPU."""
    return SmallNet(*shape, num_classes)


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {"densenet-25-12": densenet_25_12, "small": small}


def make_model(name: str, shape: Shape, num_classes: int) -> nn.Module:
    """A freshly initialised network."""
    if name not in MODELS:
        raise InputError(f"unknown model {name!r}: {nearest(name, MODELS)}")
    return MODELS[name](shape, num_classes)


__all__ = ["MODELS", "DenseNet", "SmallNet", "make_model"]
