"""JoCoR: two networks that are taught to agree, and samples chosen by their joint loss."""

import torch
from torch import Tensor

from labelsieve.core.criteria import Criterion, observed_confidence
from labelsieve.core.losses import Loss, cross_entropy, weighted_mean, without_dropped


def disagreement(logs: Tensor) -> Tensor:
    """KL(p1 || p2) + KL(p2 || p1) of two networks' log-probabilities: (2, B, K) -> (B)."""
    first, second = logs
    total: Tensor = ((first.exp() - second.exp()) * (first - second)).sum(-1)
    return total


class CriteriaJoint(Criterion):
    """Minus the joint loss of two networks: (1 - agreement) * (CE1 + CE2) + agreement * (KL12 + KL21)."""

    def __init__(self, num_classes: int, networks: int = 2, *, agreement: float = 0.9) -> None:
        super().__init__(num_classes, networks)
        if networks != 2:
            raise ValueError("the joint criterion compares two networks; use it with jocor")
        self.agreement = agreement

    def forward(self, probs: Tensor, labels: Tensor) -> Tensor:
        logs = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
        entropy = -observed_confidence(logs, labels).sum(0)
        return -((1 - self.agreement) * entropy + self.agreement * disagreement(logs)).expand(2, -1)


class JointLoss(Loss):
    """The joint loss on the kept samples; each network bears half of the disagreement."""

    def __init__(self, agreement: float) -> None:
        super().__init__()
        if not 0 <= agreement <= 1:
            raise ValueError(f"agreement must be in [0, 1], got {agreement}")
        self.agreement = agreement

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        kept = without_dropped(logits, weight)
        apart = disagreement(kept.log_softmax(-1)) / 2
        return weighted_mean((1 - self.agreement) * cross_entropy(kept, target) + self.agreement * apart, weight)
