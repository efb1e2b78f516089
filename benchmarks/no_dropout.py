"""DenseNet(25, 12) without dropout: `--model benchmarks.no_dropout:densenet`.

For one question only: does a second pass over the kept samples help because dropout is drawn anew in it?
"""

from torch import nn

from labelsieve.models import make_model
from labelsieve.models.networks import Dropout


def densenet(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The paper's network, nothing of it ever dropped."""
    network = make_model("densenet-25-12", shape, num_classes)
    for layer in network.modules():
        if isinstance(layer, Dropout):
            layer.rate = 0.0
    return network
