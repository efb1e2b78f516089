"""How much a sample counts."""

from abc import ABC, abstractmethod

from torch import Tensor

from labelsieve.core.part import Part


class Weigh(Part, ABC):
    """Gives each sample a weight; the weights of several multiply."""

    @abstractmethod
    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """(N, B, K), (B), (B) -> (N, B)"""
