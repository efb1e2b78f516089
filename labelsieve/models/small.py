"""A small network for small images: it learns, and memorizes, the embedded data in seconds on two CPU cores."""

import itertools

from torch import Tensor, nn

from labelsieve.models.networks import Dropout


class SmallNet(nn.Module):
    """Two convolutions of stride 2, dropout and a linear layer.

    Without the dropout, whole classes flip to their noisy twin from step to step, and a selection that begins in such
    a moment loses them (docs/log.md).
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
            nn.Linear(32 * quarter(height) * quarter(width), num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def quarter(size: int) -> int:
    """What two convolutions of stride 2 leave of a side."""
    return -(-size // 4)


WIDTHS = (16, 32, 64)
LARGEST_SIDE = 64  # pixels that it looks at; larger pictures are shrunk first


class CompactNet(nn.Module):
    """Three convolutions with batch normalisation, the side halved after two of them, and a mean over the picture."""

    def __init__(self, channels: int, height: int, width: int, num_classes: int) -> None:
        super().__init__()
        shrink = -(-max(height, width) // LARGEST_SIDE)
        layers: list[nn.Module] = [nn.AvgPool2d(shrink, ceil_mode=True)] if shrink > 1 else []
        for stage, (before, after) in enumerate(itertools.pairwise((channels, *WIDTHS))):
            layers += [nn.MaxPool2d(2, ceil_mode=True)] if stage else []
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(WIDTHS[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))  # type: ignore[no-any-return]


HIDDEN = 256


class MLP(nn.Module):
    """Two hidden layers of 256 with batch-norm, ReLU and dropout; columns of any scale are standardised first."""

    def __init__(self, features: int, num_classes: int) -> None:
        super().__init__()
        standardise = nn.BatchNorm1d(features, affine=False)
        self.layers = nn.Sequential(
            nn.Flatten(), standardise, *hidden(features), *hidden(HIDDEN), nn.Linear(HIDDEN, num_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def hidden(inputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), Dropout(0.5)]
