"""DenseNet(25, 12) with torch's default initialization: `--model benchmarks.torch_init:densenet`.

It shows whether the paper's numbers depend on the initialization of the code it is built on.
"""

from torch import nn

from labelsieve.models import make_model


def densenet(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return the paper's network with convolutions and classifier initialized by torch's default."""
    network = make_model("densenet-25-12", shape, num_classes)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.reset_parameters()
    return network
