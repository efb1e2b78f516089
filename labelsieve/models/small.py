"""Small networks that train in seconds on two CPU cores: SmallNet and CompactNet for images, MLP for tables."""

import itertools
import math

from torch import Tensor, nn

from labelsieve.models.networks import Dropout, hidden_layer

COMPACT_WIDTHS = (16, 32, 64)  # channels of CompactNet's convolutions
COMPACT_LARGEST_SIDE = 64  # pixels; CompactNet shrinks larger images first
MLP_WIDTH = 256


class SmallNet(nn.Module):
    """Two convolutions with stride 2, dropout and a linear layer.

    Without dropout, whole classes change to their confused class from one step to the next, and a selection that
    starts at such a step loses them (docs/log.md).
    """

    def __init__(self, channels: int, height: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            Dropout(0.5),
            nn.Linear(32 * math.ceil(height / 4) * math.ceil(width / 4), num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class CompactNet(nn.Module):
    """Three convolutions with batch-norm, two max-pools between them, and global average pooling."""

    def __init__(self, channels: int, height: int, width: int, num_classes: int) -> None:
        super().__init__()
        shrink = -(-max(height, width) // COMPACT_LARGEST_SIDE)
        layers: list[nn.Module] = [nn.AvgPool2d(shrink, ceil_mode=True)] if shrink > 1 else []
        for stage, (inputs, outputs) in enumerate(itertools.pairwise((channels, *COMPACT_WIDTHS))):
            layers += [nn.MaxPool2d(2, ceil_mode=True)] if stage else []
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(COMPACT_WIDTHS[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


class MLP(nn.Module):
    """Two hidden layers of 256 units with batch-norm, ReLU and dropout, after standardising the columns."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        features = math.prod(shape)
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.BatchNorm1d(features, affine=False),
            *hidden_layer(features, MLP_WIDTH),
            *hidden_layer(MLP_WIDTH, MLP_WIDTH),
            nn.Linear(MLP_WIDTH, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
