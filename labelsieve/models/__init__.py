"""Neural networks, by name or from user code.

* ``densenet``: DenseNet(L=25, k=12), the network of the paper's benchmarks.
* ``fused``: the same DenseNet in fused Triton kernels, used on a GPU with bf16.
* ``resnet``: ResNet-18, -34 and -50, and the pre-activation ResNet-18.
* ``lite``: EfficientNet-Lite0, -Lite1 and -Lite2, the default backbone for photographs.
* ``vgg``: VGG-19 with batch normalisation.
* ``small``: two small networks for images and a multilayer perceptron for tables.
* ``linear``: logistic regression for tables and features.
* ``networks``: several networks as one module, and dropout with its own generator.
* ``load``: pretrained weights, networks from user code and networks from timm.

To add a network for images, write a file with a function or class that takes ``channels, height, width, num_classes``
and returns an ``nn.Module`` with logits (B, K), and add one line to ``IMAGE_MODELS``. A network for tables takes
``shape, num_classes`` and is added to ``MODELS``.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from labelsieve.errors import InputError, nearest
from labelsieve.models.densenet import DenseNet, densenet_25_12
from labelsieve.models.linear import LinearHead
from labelsieve.models.lite import VARIANTS, EfficientNetLite
from labelsieve.models.load import ModelFactory, Shape, import_model
from labelsieve.models.resnet import PreActResNet18, ResNet
from labelsieve.models.small import MLP, CompactNet, SmallNet
from labelsieve.models.vgg import VGG19

LARGEST_SMALL_SIDE = 64  # pixels; larger images need a network that first reduces the side to a quarter

IMAGE_MODELS: dict[str, Callable[[int, int, int, int], nn.Module]] = {
    "densenet-25-12": densenet_25_12,
    "small": SmallNet,
    "compact": CompactNet,
    "resnet-18": partial(ResNet, depth=18),
    "resnet-34": partial(ResNet, depth=34),
    "resnet-50": partial(ResNet, depth=50),
    "resnet-50-original": partial(ResNet, depth=50, original=True),
    "preact-resnet-18": PreActResNet18,
    "vgg-19": VGG19,
    **{variant: partial(EfficientNetLite, variant=variant) for variant in VARIANTS},
}


def make_model(name: str, shape: Shape, num_classes: int) -> nn.Module:
    """Return a newly initialised network.

    Args:
        name: a key of ``MODELS``, ``package.module:factory`` for a network from user code, or ``timm:NAME``.
        shape: the shape of one sample: (channels, height, width) of an image or (columns,) of a table row.
        num_classes: the number of logits.
    """
    if ":" in name:
        return import_model(name)(shape, num_classes)
    if name not in MODELS:
        raise InputError(f"unknown model {name!r}: {nearest(name, MODELS)}")
    return MODELS[name](shape, num_classes)


def default_model(shape: Shape, device: torch.device) -> str:
    """Return the name of the network used for samples of this shape when none is requested."""
    if len(shape) != 3:
        return "mlp"
    if device.type == "cpu":
        return "small"
    return "densenet-25-12" if max(shape[1:]) <= LARGEST_SMALL_SIDE else "resnet-18"


def candidate_models(shape: Shape, device: torch.device) -> tuple[str, ...]:
    """Return the names of the networks that an automatic training compares for samples of this shape."""
    is_colour = len(shape) == 3 and shape[0] == 3
    return ("small", "compact") if is_colour and device.type == "cpu" else (default_model(shape, device),)


def _make_image_model(
    name: str, factory: Callable[[int, int, int, int], nn.Module], shape: Shape, num_classes: int
) -> nn.Module:
    """Return a network for images, or raise InputError if the samples are table rows."""
    if len(shape) != 3:
        raise InputError(f"{name} needs images; for a table use mlp")
    return factory(*shape, num_classes)


MODELS: dict[str, ModelFactory] = {
    **{name: partial(_make_image_model, name, factory) for name, factory in IMAGE_MODELS.items()},
    "mlp": MLP,
    "linear": LinearHead,
}

__all__ = ["MODELS", "DenseNet", "ModelFactory", "SmallNet", "candidate_models", "default_model", "make_model"]
