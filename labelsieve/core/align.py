"""Align: predictions in which every class comes up as often as it is observed, so that no class is given up."""

import torch
from torch import Tensor, nn

from labelsieve.core.part import Part

MEMORY = 64  # samples of a class that the running means are about
LEAST = 1e-30  # no share is 0, so that one can be divided by another


def aligned(probs: Tensor, predicted: Tensor, observed: Tensor) -> Tensor:
    """Predictions (N, B, K), each class weighed by how often it is observed over how often it is predicted, (N, K)."""
    weighed = probs * (observed / predicted).unsqueeze(-2)
    return weighed / weighed.sum(-1, keepdim=True)


class Align(Part):
    """Undoes what the network does to a whole class for a few steps.

    At a high learning rate it mistakes all of a class for its noisy twin now and then. A selection in such a moment
    keeps the wrong samples of both, and training holds on to that.
    """

    def __init__(self, num_classes: int, networks: int = 1) -> None:
        super().__init__()
        self.num_classes = num_classes
        uniform = torch.full((networks, num_classes), 1 / num_classes)
        self.predicted = nn.Buffer(uniform)  # (N, K)  running means
        self.observed = nn.Buffer(uniform.clone())

    def forward(self, probs: Tensor) -> Tensor:
        """(N, B, K) -> (N, B, K)"""
        return aligned(probs, self.predicted, self.observed)

    def start_round(self, number: int) -> None:
        self.predicted.fill_(1 / self.num_classes)
        self.observed.fill_(1 / self.num_classes)

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        counted = valid.to(probs.dtype)
        total = counted.sum(-1, keepdim=True)  # (N, 1)
        predicted = torch.where(valid.unsqueeze(-1), probs, 0.0).sum(1)
        observed = torch.zeros_like(self.observed).index_add_(1, labels, counted)
        share = 1 - torch.exp(-total / (MEMORY * self.num_classes))
        for mean, sums in ((self.predicted, predicted), (self.observed, observed)):
            mean.lerp_((sums / total.clamp(min=1)).clamp(min=LEAST), share)
