"""How much a sample counts."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import Criterion
from labelsieve.core.part import Part

LARGEST_DENOMINATOR = 10**9  # of a kept share: its product with any batch size stays far inside int64


def exact_fraction(rate: float) -> Fraction:
    """The decimal that a person wrote, not the binary number nearest to it: 0.7 is 7/10."""
    return Fraction(str(rate)).limit_denominator(LARGEST_DENOMINATOR)


def kept_share(noise_rate: float) -> Fraction:
    """R = 1 - ε."""
    if not 0 <= noise_rate < 1:
        raise ValueError(f"noise rate must be in [0, 1), got {noise_rate}")
    return 1 - exact_fraction(noise_rate)


def kept_count(candidates: int, share: Tensor) -> Tensor:
    """ceil(share * candidates), at least one, in whole numbers; `share` is a (numerator, denominator) pair."""
    return ((candidates * share[0] + share[1] - 1) // share[1]).clamp(min=1)


def top(scores: Tensor, count: Tensor) -> Tensor:
    """True for the `count` highest scores of each row; the earlier of equals first, what is not finite last."""
    scores = torch.where(scores.isfinite(), scores, -torch.inf)  # sort would put NaN first
    order = scores.argsort(dim=-1, descending=True, stable=True)
    place = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, place) < count


class Weigh(Part, ABC):
    """Gives each sample a weight; the weights of several multiply."""

    @abstractmethod
    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """(N, B, K), (B), (B) -> (N, B)"""


class Select(Weigh):
    """Weight 1 for the share of the batch that looks cleanest, 0 for the rest; everything during warm-up."""

    def __init__(self, criterion: Criterion, keep: Callable[[int], Fraction], *, warmup: int = 0) -> None:
        super().__init__()
        if warmup < 0:
            raise ValueError(f"warm-up must be 0 or more epochs, got {warmup}")
        self.criterion = criterion
        self.keep = keep
        self.warmup = warmup
        self.share = nn.Buffer(torch.ones(2, dtype=torch.int64))  # numerator, denominator
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        share = Fraction(1) if epoch < self.warmup else self.keep(epoch)
        self.share.copy_(torch.tensor(share.as_integer_ratio()))

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        scores = self.criterion(probs, labels)
        return top(scores, kept_count(scores.shape[-1], self.share)).to(probs.dtype)
