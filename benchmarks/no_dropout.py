"""DenseNet(25, 12) without dropout: `--model benchmarks.no_dropout:densenet`.

It shows whether a second pass over the kept samples helps because of its new dropout masks.
"""

from torch import nn

from labelsieve.models import make_model
from labelsieve.models.networks import Dropout


def densenet(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return the paper's network with a dropout rate of 0."""
    network = make_model("densenet-25-12", shape, num_classes)
    for layer in network.modules():
        if isinstance(layer, Dropout):
            layer.rate = 0.0
    return network
