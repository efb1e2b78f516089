"""VGG-19 with batch-norm after every layer except the last, as SELFIE's public code builds it for ANIMAL-10N."""

import math

from torch import Tensor, nn

from labelsieve.models.densenet import init_densenet
from labelsieve.models.networks import hidden_layer

STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels and number of convolutions
HIDDEN = 4096


class VGG19(nn.Module):
    """Sixteen 3x3 convolutions in five stages that each halve the side, and three linear layers; for any image size."""

    def __init__(self, channels: int, height: int, width: int, num_classes: int) -> None:
        super().__init__()
        modules: list[nn.Module] = []
        for outputs, count in STAGES:
            for _ in range(count):
                modules += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
                channels = outputs
            modules.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*modules)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            *hidden_layer(channels * math.ceil(height / 32) * math.ceil(width / 32), HIDDEN),
            *hidden_layer(HIDDEN, HIDDEN),
            nn.Linear(HIDDEN, num_classes),
        )
        self.apply(_init_vgg)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def _init_vgg(module: nn.Module) -> None:
    """Initialise weights as DenseNet does, and all biases with 0."""
    init_densenet(module)
    if isinstance(module, nn.Conv2d) and module.bias is not None:
        nn.init.zeros_(module.bias)
