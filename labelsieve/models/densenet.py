"""DenseNet(L=25, k=12), the network of the paper's benchmarks, as its harness (SELFIE's public code) builds it."""

import importlib
import math
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch.nn.functional as F
from torch import Tensor, cat, nn

from labelsieve.models.networks import Dropout


class DenseLayer(nn.Module):
    """BN, ReLU, 3x3 convolution to `growth` channels, dropout; the new channels go before the old ones."""

    def __init__(self, channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return cat([self.dropout(self.conv(F.relu(self.norm(x)))), x], dim=1)


class Transition(nn.Module):
    """BN, ReLU, 1x1 convolution to as many channels, ReLU, dropout, halving. The second ReLU is the harness's own."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.dropout(F.relu(self.conv(F.relu(self.norm(x))))), 2)


class DenseNet(nn.Module):
    """Three dense blocks without bottleneck or compression; any image size."""

    def __init__(
        self, channels: int, num_classes: int, *, depth: int = 25, growth: int = 12, dropout: float = 0.2
    ) -> None:
        super().__init__()
        layers = (depth - 4) // 3
        width = 16
        self.layers, self.growth = layers, growth
        self.widths = tuple(width + block * layers * growth for block in range(3))  # channels that a block begins with
        modules: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        for block in range(3):
            if block:
                modules.append(Transition(width, dropout))
            for _ in range(layers):
                modules.append(DenseLayer(width, growth, dropout))
                width += growth
        self.features = nn.Sequential(*modules)
        self.norm = nn.BatchNorm2d(width)
        self.classifier = nn.Linear(width, num_classes)
        self.fused = True  # use the fused kernels where they can be used
        self.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        fused = fused_kernels() if self.fused and x.is_cuda else None
        if fused is not None and fused.applies(self, x):
            means = fused.features(self, x)
        else:
            means = F.relu(self.norm(self.features(x))).mean((2, 3))
        return self.classifier(means)  # type: ignore[no-any-return]


@cache
def fused_kernels() -> ModuleType | None:
    """The same network in fused kernels, where Triton is installed."""
    return importlib.import_module("labelsieve.models.fused") if find_spec("triton") else None


def initialise(module: nn.Module) -> None:
    """He-normal over fan-out for 3x3 convolutions, truncated He-normal over fan-in for 1x1 ones and the classifier."""
    if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
    elif isinstance(module, nn.Conv2d | nn.Linear):
        deviation = math.sqrt(1.3 * 2 / module.weight[0].numel())  # 1.3 makes up for the variance lost to truncation
        nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
