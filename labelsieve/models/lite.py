"""EfficientNet-Lite0, -Lite1 and -Lite2, small networks for photographs, which can load the published weights.

Parameters have the names of the published weights. Inputs are (pixels - 127) / 128.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelsieve.models.networks import Dropout

FEATURES = 1280


class Variant(NamedTuple):
    """Factors of channels and repeats, the side of the images that it was made for, and its dropout rate."""

    width: float
    depth: float
    size: int
    dropout: float


VARIANTS = {
    "lite0": Variant(1.0, 1.0, 224, 0.2),
    "lite1": Variant(1.0, 1.1, 240, 0.2),
    "lite2": Variant(1.1, 1.2, 260, 0.3),
}
STAGES = (  # blocks, kernel, stride of the first block, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class EfficientNetLite(nn.Module):
    """EfficientNet without squeeze-and-excitation, with ReLU6: (B, C, H, W) -> (B, K)."""

    def __init__(self, channels: int, height: int, width: int, num_classes: int, *, variant: str) -> None:
        super().__init__()
        form = VARIANTS[variant]
        self._conv_stem, self._bn0 = _Convolution(channels, 32, 3, stride=2), _norm(32)
        blocks: list[nn.Module] = []
        inputs = 32
        for stage, (repeats, kernel, stride, expansion, outputs) in enumerate(STAGES):
            scaled = 0 < stage < len(STAGES) - 1  # the first and the last stage always have one block
            outputs = _round_channels(form.width * outputs)
            for position in range(math.ceil(form.depth * repeats) if scaled else repeats):
                blocks.append(_Block(inputs, outputs, kernel, 1 if position else stride, expansion))
                inputs = outputs
        self._blocks = nn.Sequential(*blocks)
        self._conv_head, self._bn1 = _Convolution(inputs, FEATURES, 1), _norm(FEATURES)
        self._dropout = Dropout(form.dropout)
        self._fc = nn.Linear(FEATURES, num_classes)
        self.apply(_init_lite)

    def forward(self, x: Tensor) -> Tensor:
        x = self._blocks(_relu6(self._bn0(self._conv_stem(x))))
        means = _relu6(self._bn1(self._conv_head(x))).mean((2, 3), dtype=torch.float32)  # not rounded to bf16
        return self._fc(self._dropout(means))


class _Block(nn.Module):
    """A 1x1 convolution to more channels, a depthwise one and a 1x1 one to fewer, with a shortcut if shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expands = expansion > 1
        if self.expands:
            self._expand_conv, self._bn0 = _Convolution(inputs, inner, 1), _norm(inner)
        self._depthwise_conv, self._bn1 = _Convolution(inner, inner, kernel, stride=stride, groups=inner), _norm(inner)
        self._project_conv, self._bn2 = _Convolution(inner, outputs, 1), _norm(outputs)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = _relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = self._bn2(self._project_conv(_relu6(self._bn1(self._depthwise_conv(y)))))
        return y + x if self.shortcut else y


class _Convolution(nn.Conv2d):
    """A convolution without bias whose output has the side of its input, divided by the stride and rounded up.

    Where the padding is odd, as at stride 2, there is one more row below and one more column on the right.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(inputs, outputs, kernel, stride=stride, padding=padding, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] > 1:
            bottom, right = (_missing(side, self.kernel_size[0], self.stride[0]) for side in x.shape[2:])
            x = F.pad(x, (right // 2, right - right // 2, bottom // 2, bottom - bottom // 2))
        return super().forward(x)


def _missing(side: int, kernel: int, stride: int) -> int:
    """Return the pixels that a side lacks for windows of this kernel at every `stride`-th of its pixels."""
    return max(0, (math.ceil(side / stride) - 1) * stride + kernel - side)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _relu6(x: Tensor) -> Tensor:
    return F.relu6(x, inplace=True)


def _round_channels(channels: float) -> int:
    """Round to a multiple of 8, upwards if rounding would take away more than a tenth."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _init_lite(module: nn.Module) -> None:
    """Initialise convolutions He-normal over fan-out; the last layer keeps torch's default."""
    if isinstance(module, nn.Conv2d):
        fan_out = module.weight[0, 0].numel() * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
