"""What a network learns from the samples that count."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from labelsieve.core.part import Part


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Eq. 4: the mean over the samples that count, (N, B) -> (N)."""
    return (values * weight).sum(-1) / weight.sum(-1).clamp(min=torch.finfo(weight.dtype).tiny)


def without_dropped(logits: Tensor, weight: Tensor) -> Tensor:
    """The logits with those of weight 0 replaced: 0 times an infinite loss would be NaN."""
    return torch.where(weight.unsqueeze(-1) > 0, logits, 0.0)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Per sample: (N, B, K), (N, B) -> (N, B)."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)


class Loss(Part, ABC):
    """One number per network from logits (N, B, K), target (N, B) and weight (N, B)."""

    @abstractmethod
    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """-> (N)"""


class CrossEntropy(Loss):
    """Cross-entropy with the target label."""

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        return weighted_mean(cross_entropy(without_dropped(logits, weight), target), weight)
