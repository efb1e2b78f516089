"""Pre-activation ResNet-18 for small images, as most papers on noisy labels use it: no norm after the last block."""

import torch.nn.functional as F
from torch import Tensor, nn

from labelsieve.models.resnet import convolution


class PreActBlock(nn.Module):
    """Batch-norm and ReLU before each of two 3x3 convolutions; a convolved shortcut begins after the first ReLU."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), convolution(inputs, width, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), convolution(width, width, 3)
        unchanged = stride == 1 and inputs == width
        self.shortcut = None if unchanged else nn.Sequential(convolution(inputs, width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return y + (x if self.shortcut is None else self.shortcut(active))  # type: ignore[no-any-return]


class PreActResNet18(nn.Module):
    """A 3x3 convolution that keeps the side, four stages of two blocks, the mean over the image, a linear layer."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = convolution(channels, 64, 3)
        self.layer1 = stage(64, 64, 1)
        self.layer2 = stage(64, 128, 2)
        self.layer3 = stage(128, 256, 2)
        self.layer4 = stage(256, 512, 2)
        self.linear = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


def stage(inputs: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(PreActBlock(inputs, width, stride), PreActBlock(width, width, 1))
