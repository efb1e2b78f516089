"""DenseNet(L=25, k=12), the network of the paper's benchmarks, as SELFIE's public code builds it."""

import importlib
import math
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch.nn.functional as F
from torch import Tensor, cat, nn

from labelsieve.models.networks import Dropout


def densenet_25_12(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    """Return DenseNet(L=25, k=12) with dropout 0.2, the paper's network."""
    return DenseNet(channels, num_classes, depth=25, growth=12, dropout=0.2)


class DenseNet(nn.Module):
    """Three dense blocks without bottleneck or compression, for images of any size: (B, C, H, W) -> (B, K)."""

    def __init__(
        self, channels: int, num_classes: int, *, depth: int = 25, growth: int = 12, dropout: float = 0.2
    ) -> None:
        super().__init__()
        layers = (depth - 4) // 3
        width = 16
        self.layers, self.growth = layers, growth
        self.widths = tuple(width + block * layers * growth for block in range(3))  # input channels of each block
        modules: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        for block in range(3):
            if block:
                modules.append(_Transition(width, dropout))
            for _ in range(layers):
                modules.append(DenseLayer(width, growth, dropout))
                width += growth
        self.features = nn.Sequential(*modules)
        self.norm = nn.BatchNorm2d(width)
        self.classifier = nn.Linear(width, num_classes)
        self.fused = True  # use the fused kernels where they apply
        self.apply(init_densenet)

    def forward(self, x: Tensor) -> Tensor:
        fused = _fused_kernels() if self.fused and x.is_cuda else None
        if fused is not None and fused.applies(self, x):
            return fused.logits(self, x)
        means = F.relu(self.norm(self.features(x))).mean((2, 3))
        return self.classifier(means)


class DenseLayer(nn.Module):
    """Batch-norm, ReLU, 3x3 convolution to `growth` channels and dropout; the new channels precede the input."""

    def __init__(self, channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return cat([self.dropout(self.conv(F.relu(self.norm(x)))), x], dim=1)


class _Transition(nn.Module):
    """Batch-norm, ReLU, 1x1 convolution, ReLU, dropout and 2x2 average pooling; the channel count stays."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        # SELFIE's code has the second ReLU, the DenseNet paper does not.
        return F.avg_pool2d(self.dropout(F.relu(self.conv(F.relu(self.norm(x))))), 2)


@cache
def _fused_kernels() -> ModuleType | None:
    """Return the module of fused kernels, or None where Triton is not installed."""
    return importlib.import_module("labelsieve.models.fused") if find_spec("triton") else None


def init_densenet(module: nn.Module) -> None:
    """Initialise 3x3 convolutions He-normal over fan-out, other weights truncated He-normal over fan-in."""
    if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
    elif isinstance(module, nn.Conv2d | nn.Linear):
        std = math.sqrt(1.3 * 2 / module.weight[0].numel())  # 1.3 compensates the variance lost by truncation
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
