"""A compact network for photographs on a CPU: what it sees counts, not where."""

import itertools

from torch import Tensor, nn

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
