"""Which label a sample is taught."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from labelsieve.core.part import Part

NONE = -1  # no label yet


def smallest_integer(num_classes: int) -> torch.dtype:
    """The smallest integer type that holds every class and -1."""
    if num_classes <= 127:
        return torch.int8
    return torch.int16 if num_classes <= 32_767 else torch.int32


class Relabel(Part, ABC):
    """Says which label each network is taught for a sample, and may change how much it counts."""

    @abstractmethod
    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(N, B, K), (B), (B), (N, B) -> target (N, B), weight (N, B)"""
