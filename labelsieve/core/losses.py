"""Base classes of losses, cross-entropy, and functions shared by the losses of the methods.

A loss that belongs to one method is defined in the file of that method.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from labelsieve.core.part import Part


class Loss(Part, ABC):
    """One value per network from logits (N, B, K), target (N, B) and weight (N, B)."""

    @abstractmethod
    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """Return the loss of each network, (N)."""


class CrossEntropy(Loss):
    """Cross-entropy with the target label."""

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        return weighted_mean(cross_entropy(mask_dropped(logits, weight), target), weight)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of each sample: (N, B, K), (N, B) -> (N, B)."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the mean over the samples with a positive weight (eq. 4), (N, B) -> (N)."""
    return (values * weight).sum(-1) / weight.sum(-1).clamp(min=torch.finfo(weight.dtype).tiny)


def mask_dropped(logits: Tensor, weight: Tensor) -> Tensor:
    """Return the logits with 0 for samples of weight 0, because 0 times an infinite loss would be NaN."""
    return torch.where(weight.unsqueeze(-1) > 0, logits, 0.0)
