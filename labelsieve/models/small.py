"""A small network for small images: it learns, and memorizes, the embedded data in seconds on two CPU cores."""

from torch import Tensor, nn

from labelsieve.models.dropout import Dropout


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
