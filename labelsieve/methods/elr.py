"""ELR: keep predictions close to the running mean of earlier ones, from before the network memorizes wrong labels."""

import torch
from torch import Tensor, nn

from labelsieve.core.losses import Loss, cross_entropy, mask_dropped, weighted_mean
from labelsieve.core.method import Method
from labelsieve.methods.problem import MakeCriterion, Problem, register, require_num_samples, select_clean

CLAMP = 1e-4  # predictions are limited to [CLAMP, 1 - CLAMP]


@register("elr")
def elr(p: Problem, criterion: MakeCriterion | None = None, *, strength: float = 3.0, beta: float = 0.7) -> Method:
    """Early-learning regularization: keep predictions close to their running mean."""
    loss = EarlyLearning(p.num_classes, require_num_samples(p), strength=strength, beta=beta)
    return Method(loss, select_clean(p, criterion))


class EarlyLearning(Loss):
    """CE + strength * log(1 - <p, t>), where t is the running mean of the sample's predictions, K floats each."""

    needs_index = True

    def __init__(self, num_classes: int, num_samples: int, *, strength: float, beta: float) -> None:
        super().__init__()
        if not 0 <= beta < 1:
            raise ValueError(f"beta must be in [0, 1), got {beta}")
        self.num_classes, self.num_samples = num_classes, num_samples
        self.strength, self.beta = strength, beta
        self.targets = nn.Buffer(torch.zeros(1, num_samples, num_classes))

    def start_round(self, number: int) -> None:
        self.targets.zero_()

    def next_targets(self, probs: Tensor, index: Tensor | None) -> Tensor:
        """Return the running means of these samples after one more prediction, (N, B, K)."""
        clamped = probs.clamp(CLAMP, 1 - CLAMP)
        return self.beta * self.targets[:, index] + (1 - self.beta) * clamped / clamped.sum(-1, keepdim=True)

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        kept = mask_dropped(logits, weight)
        probs = kept.softmax(-1)
        agreement = (self.next_targets(probs.detach(), index) * probs.clamp(CLAMP, 1 - CLAMP)).sum(-1)
        return weighted_mean(cross_entropy(kept, target) + self.strength * (1 - agreement).log(), weight)

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        targets = torch.where(valid.unsqueeze(-1), self.next_targets(probs, index), self.targets[:, index])
        self.targets[:, index] = targets.to(self.targets.dtype)  # may be half precision
