"""DenseNet(25, 12) as torch initialises its layers: `--model benchmarks.torch_init:densenet`.

For one question only: do the paper's numbers hang on the initialisation of its harness?
"""

from torch import nn

from labelsieve.models import make_model


def densenet(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The paper's network, every convolution and the classifier drawn anew by torch's own rule."""
    network = make_model("densenet-25-12", shape, num_classes)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.reset_parameters()
    return network
