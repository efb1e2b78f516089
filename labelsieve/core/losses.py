"""What a network learns from the samples that count."""

import math
import warnings
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelsieve.core.criteria import observed_confidence
from labelsieve.core.part import Part

LOG_OF_ZERO = math.log(1e-4)  # SL's clipped log 0: the public code's A = -9.21


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


class SampleLoss(Loss):
    """A loss that is a mean over samples: a subclass only says what one sample costs."""

    @abstractmethod
    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """(N, B, K), (N, B) -> (N, B)"""

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        return weighted_mean(self.per_sample(without_dropped(logits, weight), target), weight)


class CrossEntropy(SampleLoss):
    """Cross-entropy with the target label."""

    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(logits, target)


class SymmetricCrossEntropy(SampleLoss):
    """SL: alpha * CE + beta * reverse CE, which for a hard label is 9.21 * (1 - p of the label)."""

    def __init__(self, alpha: float, beta: float) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta

    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        reverse = -LOG_OF_ZERO * (1 - observed_confidence(logits.softmax(-1), target))
        return self.alpha * cross_entropy(logits, target) + self.beta * reverse


class GeneralizedCrossEntropy(Loss):
    """GCE: (1 - p^q) / q, between cross-entropy (q to 0) and 1 - p (q = 1); truncated, k's loss is the ceiling.

    The mean is over the batch, not over the kept: pruned samples make the step smaller, as in its paper.
    """

    def __init__(self, q: float, k: float | None = None) -> None:
        super().__init__()
        if not 0 < q <= 1:
            raise ValueError(f"q must be in (0, 1], got {q}")
        self.q = q
        self.ceiling = 0.0 if k is None else (1 - k**q) / q

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        kept = without_dropped(logits, weight)
        log_p = observed_confidence(kept.log_softmax(-1), target)
        per_sample = -torch.expm1(self.q * log_p) / self.q  # precise for small q
        return ((per_sample - self.ceiling) * weight).mean(-1)


class Determinant(Loss):
    """DMI: -log(|det U| + 0.001) with U = labels' one-hot matrix times predictions, a loss of the whole batch.

    Until `start` it is cross-entropy: DMI only fine-tunes a network that can already tell the classes apart. A batch
    without every class has a determinant of zero and nothing to learn from.
    """

    def __init__(self, num_classes: int, start: int) -> None:
        super().__init__()
        self.num_classes, self.begins = num_classes, start
        self.started = nn.Buffer(torch.tensor(start == 0))

    def start_epoch(self, epoch: int) -> None:
        self.started.fill_(epoch >= self.begins)

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        if logits.shape[1] < self.num_classes and not torch.compiler.is_compiling():
            warnings.warn(
                f"dmi cannot learn from {logits.shape[1]} samples of {self.num_classes} classes: "
                "its determinant is zero unless every class is in the batch",
                stacklevel=2,
            )
        kept = without_dropped(logits, weight)
        plain = weighted_mean(cross_entropy(kept, target), weight)
        return torch.where(self.started, self.determinant_loss(kept, target, weight), plain)

    def determinant_loss(self, logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """In float64 through slogdet, so that many classes neither under- nor overflow."""
        one_hot = F.one_hot(target, self.num_classes).double() * weight.double().unsqueeze(-1)
        joint = one_hot.mT @ logits.double().softmax(-1)  # (N, K, K)
        floor = math.log(1e-3)
        regular = torch.linalg.slogdet(joint.detach()).logabsdet > floor - 50
        safe = torch.where(regular[:, None, None], joint, torch.eye(self.num_classes, device=joint.device).double())
        log_det = torch.where(regular, torch.linalg.slogdet(safe).logabsdet, -torch.inf)
        return -torch.logaddexp(log_det, torch.full_like(log_det, floor)).to(logits.dtype)
