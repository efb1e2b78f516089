"""VGG-19 with batch-norm after every layer but the last, as SELFIE's public code builds it for ANIMAL-10N."""

from torch import Tensor, nn

from labelsieve.models.densenet import initialise
from labelsieve.models.networks import Dropout

STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels, convolutions
HIDDEN = 4096


class VGG19(nn.Module):
    """Sixteen 3x3 convolutions, halved five times (a half is rounded up), and three linear layers; any image size."""

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
            *hidden(channels * halved(height) * halved(width)),
            *hidden(HIDDEN),
            nn.Linear(HIDDEN, num_classes),
        )
        self.apply(start)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))  # type: ignore[no-any-return]


def hidden(inputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), Dropout(0.5)]


def halved(size: int) -> int:
    """What five max-pools leave of a side."""
    return -(-size // 32)


def start(module: nn.Module) -> None:
    """As DenseNet starts, with all biases 0."""
    initialise(module)
    if isinstance(module, nn.Conv2d) and module.bias is not None:
        nn.init.zeros_(module.bias)
