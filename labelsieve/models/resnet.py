"""ResNet-18, -34 and -50, which can load the weights of torchvision's networks, and the pre-activation ResNet-18."""

import torch.nn.functional as F
from torch import Tensor, nn


class ResNet(nn.Module):
    """ResNet with a depth of 18, 34 or 50 layers, for images of about 224 pixels a side.

    A 7x7 convolution and a max-pool reduce the side to a quarter; four stages of residual blocks follow. In the
    original ResNet-50, bottleneck blocks have their stride in the first convolution instead of the second.
    """

    def __init__(
        self, channels: int, height: int, width: int, num_classes: int, *, depth: int, original: bool = False
    ) -> None:
        super().__init__()
        block, counts = BLOCKS[depth]
        self.conv1, self.bn1 = _convolution(channels, 64, 7, 2), nn.BatchNorm2d(64)
        inputs = 64
        for stage, count in enumerate(counts):
            outputs = 64 << stage
            blocks = []
            for position in range(count):
                blocks.append(block(inputs, outputs, 2 if stage and not position else 1, original))
                inputs = outputs * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, num_classes)
        self.apply(_init_resnet)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


class PreActResNet18(nn.Module):
    """Pre-activation ResNet-18 for images of about 32 pixels a side; its first convolution keeps the side."""

    def __init__(self, channels: int, height: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = _convolution(channels, 64, 3)
        self.layer1 = _preact_stage(64, 64, 1)
        self.layer2 = _preact_stage(64, 128, 2)
        self.layer3 = _preact_stage(128, 256, 2)
        self.layer4 = _preact_stage(256, 512, 2)
        self.linear = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        return self.linear(x.mean((2, 3)))


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, original: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = _convolution(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3), nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the stride is in the 3x3 (v1.5) or the first one (original)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, original: bool) -> None:
        super().__init__()
        first, second = (stride, 1) if original else (1, stride)
        outputs = width * self.expansion
        self.conv1, self.bn1 = _convolution(inputs, width, 1, first), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3, second), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _convolution(width, outputs, 1), nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


BLOCKS: dict[int, tuple[type[_BasicBlock | _Bottleneck], tuple[int, int, int, int]]] = {
    18: (_BasicBlock, (2, 2, 2, 2)),
    34: (_BasicBlock, (3, 4, 6, 3)),
    50: (_Bottleneck, (3, 4, 6, 3)),
}


class _PreActBlock(nn.Module):
    """Batch-norm and ReLU before each of two 3x3 convolutions; a convolved shortcut starts after the first ReLU."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), _convolution(inputs, width, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), _convolution(width, width, 3)
        same_shape = stride == 1 and inputs == width
        self.shortcut = None if same_shape else nn.Sequential(_convolution(inputs, width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return y + (x if self.shortcut is None else self.shortcut(active))


def _preact_stage(inputs: int, width: int, stride: int) -> nn.Sequential:
    """Return two pre-activation blocks, the first with this stride."""
    return nn.Sequential(_PreActBlock(inputs, width, stride), _PreActBlock(width, width, 1))


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps the side at stride 1."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """Return a 1x1 convolution that gives a block's input the shape of its output, or None if it already fits."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def _init_resnet(module: nn.Module) -> None:
    """Initialise convolutions He-normal over fan-out; other layers keep torch's defaults."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
