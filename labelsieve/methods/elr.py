"""ELR: hold the network to what it predicted early, before it memorizes."""

import torch
from torch import Tensor, nn

from labelsieve.core.losses import Loss, cross_entropy, weighted_mean, without_dropped

CLAMP = 1e-4


class EarlyLearning(Loss):
    """CE + lam * log(1 - <p, t>), t a running mean of the sample's own predictions: samples x classes floats."""

    needs_index = True

    def __init__(self, num_classes: int, num_samples: int, networks: int = 1, *, lam: float, beta: float) -> None:
        super().__init__()
        if not 0 <= beta < 1:
            raise ValueError(f"beta must be in [0, 1), got {beta}")
        self.num_classes, self.num_samples, self.lam, self.beta = num_classes, num_samples, lam, beta
        self.targets = nn.Buffer(torch.zeros(networks, num_samples, num_classes))

    def start_round(self, number: int) -> None:
        self.targets.zero_()

    def moved(self, probs: Tensor, index: Tensor) -> Tensor:
        """The targets of these samples after one more prediction, (N, B, K)."""
        clamped = probs.clamp(CLAMP, 1 - CLAMP)
        return self.beta * self.targets[:, index] + (1 - self.beta) * clamped / clamped.sum(-1, keepdim=True)

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        assert index is not None
        kept = without_dropped(logits, weight)
        probs = kept.softmax(-1)
        agreement = (self.moved(probs.detach(), index) * probs.clamp(CLAMP, 1 - CLAMP)).sum(-1)
        return weighted_mean(cross_entropy(kept, target) + self.lam * (1 - agreement).log(), weight)

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        assert index is not None
        moved = torch.where(valid.unsqueeze(-1), self.moved(probs, index), self.targets[:, index])
        self.targets[:, index] = moved.to(self.targets.dtype)  # that of the model, where the method is a part of it
