"""Selection of the samples of a batch that are most likely clean, and Align, which keeps classes from being given up.

The kept number of samples is exact: shares are fractions of integers, and a sample is kept if its rank is within the
share (docs/decisions/003-the-kept-number-is-exact.md).
"""

import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import Criterion
from labelsieve.core.part import Part, Weigh, host_decides

ALIGN_MEMORY = 64  # samples per class over which Align's running means are taken
SMALLEST_SHARE = 1e-30  # lower bound of Align's running means, which are divided by each other
LAST_EPOCH = 10**6  # an epoch after the end of every ramp
LARGEST_DENOMINATOR = 10**9  # of a kept share; its product with any batch size fits into int64


class Align(Part):
    """Reweight predictions so that each class is predicted as often as it is observed.

    At a high learning rate, a network can confuse a whole class with another one for a few steps. A selection at such a
    moment keeps wrong samples of both classes, and the training does not recover from it.
    """

    def __init__(self, num_classes: int, networks: int = 1) -> None:
        super().__init__()
        self.num_classes = num_classes
        uniform = torch.full((networks, num_classes), 1 / num_classes)
        self.predicted = nn.Buffer(uniform)  # (N, K), running mean of the predictions
        self.observed = nn.Buffer(uniform.clone())  # (N, K), running frequency of the labels

    def forward(self, probs: Tensor) -> Tensor:
        """Return predictions (N, B, K) multiplied by observed / predicted frequency of each class, normalized."""
        weighted = probs * (self.observed / self.predicted).unsqueeze(-2)
        return weighted / weighted.sum(-1, keepdim=True)

    def start_round(self, number: int) -> None:
        self.predicted.fill_(1 / self.num_classes)
        self.observed.fill_(1 / self.num_classes)

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        counted = valid.to(probs.dtype)
        total = counted.sum(-1, keepdim=True)  # (N, 1)
        predicted = torch.where(valid.unsqueeze(-1), probs, 0.0).sum(1)
        observed = torch.zeros_like(self.observed).index_add_(1, labels, counted)
        share = 1 - torch.exp(-total / (ALIGN_MEMORY * self.num_classes))
        for mean, sums in ((self.predicted, predicted), (self.observed, observed)):
            mean.lerp_((sums / total.clamp(min=1)).clamp(min=SMALLEST_SHARE), share)


class Select(Weigh):
    """Give weight 1 to the share of the batch with the highest scores and 0 to the rest; 1 to all during the warm-up.

    Args:
        criterion: scores the samples.
        keep: returns the share to keep in an epoch.
        warmup: number of epochs in which all samples are kept.
        exchange: each network learns from the samples that the other one selected (Co-teaching).
        joint: all networks learn from one selection by the mean score (JoCoR).
        floor: minimum share kept of each label, as a part of the kept share.
        align: reweights the predictions before they are scored.
    """

    trusted: Tensor | None  # (n) bool
    num_kept_is_fixed = True  # False if the number depends on the predictions, or if weights are not only 0 and 1

    def __init__(
        self,
        criterion: Criterion,
        keep: Callable[[int], Fraction],
        *,
        warmup: int = 0,
        exchange: bool = False,
        joint: bool = False,
        floor: Fraction = Fraction(0),
        align: Align | None = None,
    ) -> None:
        super().__init__()
        if warmup < 0:
            raise ValueError(f"warm-up must be at least 0 epochs, got {warmup}")
        self.criterion = criterion
        self.keep = keep
        self.active_from = warmup
        self.exchange = exchange
        self.joint = joint
        self.floor = floor
        self.align = align
        self.share = nn.Buffer(torch.ones(2, dtype=torch.int64))  # numerator and denominator of the kept share
        self.floor_share = nn.Buffer(torch.ones(2, dtype=torch.int64), persistent=False)  # kept share of each label
        self.agreed_too = nn.Buffer(torch.tensor(True))  # used by Co-teaching+; part of the state of every selection
        self.register_buffer("trusted", None, persistent=False)
        self.start_epoch(0)

    def trust(self, samples: Tensor) -> None:
        """Keep these samples, (n) bool over the training set, before all others, as their labels are correct."""
        self.trusted = samples
        self.needs_index, self.num_samples = True, len(samples)

    def start_epoch(self, epoch: int) -> None:
        self.kept_share = Fraction(1) if epoch < self.active_from else self.keep(epoch)
        self._ratio = self.kept_share.as_integer_ratio()
        self.warn_below = self.smallest_batch() if self.kept_share < 1 else 0  # a step must not read the device
        floor_share = (self.floor * self.kept_share).limit_denominator(LARGEST_DENOMINATOR)
        self.share.copy_(torch.tensor(self._ratio))
        self.floor_share.copy_(torch.tensor(floor_share.as_integer_ratio()))

    def num_kept(self, count: int) -> int:
        """Return how many of `count` samples are kept in this epoch."""
        return max(1, -(-count * self._ratio[0] // self._ratio[1]))

    def smallest_batch(self) -> int:
        """Return the smallest batch size of which a sample is left out after the ramp, 0 if all are kept."""
        share = self.keep(LAST_EPOCH)
        return math.ceil(1 / (1 - share)) if share < 1 else 0

    def keeps_all(self, probs: Tensor) -> bool:
        known = self.num_kept_is_fixed and host_decides(probs)
        return known and self.num_kept(probs.shape[1]) == probs.shape[1]

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        if self.keeps_all(probs):
            return torch.ones_like(probs[..., 0])
        scores = self.criterion(probs if self.align is None else self.align(probs), labels, index)
        if self.joint:
            scores = scores.mean(0).expand_as(scores)
        if self.trusted is not None:
            scores = scores.masked_fill(self.trusted[index], torch.finfo(scores.dtype).max)
        selected = self.select(scores, probs, labels)
        return (selected.flip(0) if self.exchange else selected).to(probs.dtype)

    def select(self, scores: Tensor, probs: Tensor, labels: Tensor) -> Tensor:
        """Return 1 or True for samples that are kept: scores (N, B), probs (N, B, K), labels (B) -> (N, B)."""
        if self.floor:
            return within_share(ranks_with_floor(ranks(scores), labels, self.floor_share), scores.shape[-1], self.share)
        order = best_first(scores)
        if host_decides(scores):
            best = order.narrow(-1, 0, self.num_kept(scores.shape[-1]))
            return torch.zeros_like(scores).scatter_(-1, best, 1.0)
        place = torch.arange(scores.shape[-1], device=scores.device)
        kept = within_share(place, len(place), self.share)  # (B), of the samples in this order
        return torch.empty_like(kept.expand_as(order)).scatter_(-1, order, kept.expand_as(order))


def kept_share(noise_rate: float) -> Fraction:
    """Return the share of samples to keep, R = 1 - ε."""
    if not 0 <= noise_rate < 1:
        raise ValueError(f"noise rate must be in [0, 1), got {noise_rate}")
    return 1 - exact_fraction(noise_rate)


def constant_share(share: Fraction, epoch: int) -> Fraction:
    """Return `share` in every epoch."""
    return share


def ramped_share(noise_rate: float, ramp: int, epoch: int) -> Fraction:
    """Return Co-teaching's R(t), which falls from 1 to 1 - ε within `ramp` epochs."""
    if ramp < 1:
        raise ValueError(f"ramp must be at least 1 epoch, got {ramp}")
    return 1 - (1 - kept_share(noise_rate)) * min(Fraction(1), Fraction(epoch + 1, ramp))


def exact_fraction(rate: float) -> Fraction:
    """Return the decimal number as written, not the nearest binary one: 0.7 is 7/10."""
    return Fraction(str(rate)).limit_denominator(LARGEST_DENOMINATOR)


def best_first(scores: Tensor, candidates: Tensor | None = None) -> Tensor:
    """Return the places of the scores (N, B) in each row, the highest first.

    Of equal scores the earlier one comes first. Non-finite scores come last, then samples that are no candidates.
    """
    last = torch.finfo(scores.dtype).min
    scores = scores.nan_to_num(nan=last, posinf=last, neginf=last)  # sort would put NaN first
    if candidates is not None:
        scores = torch.where(candidates, scores, -torch.inf)
    return scores.argsort(dim=-1, descending=True, stable=True)


def ranks(scores: Tensor, candidates: Tensor | None = None) -> Tensor:
    """Return the rank of each score in its row, 0 for the highest, in the order of `best_first`."""
    order = best_first(scores, candidates)
    place = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, place)


def within_share(rank: Tensor, candidates: int | Tensor, share: Tensor) -> Tensor:
    """Return True for the first ceil(share * candidates) ranks, at least one.

    `share` is a tensor (numerator, denominator). An integer is below ceil(a / b) if and only if b times it is below a.
    """
    numerator, denominator = share.unbind()
    return rank * denominator < (candidates * numerator).clamp(min=1)


def ranks_with_floor(rank: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    """Return ranks in which the best samples of each label, `share` of them rounded down, come before all others.

    `share` is a tensor (numerator, denominator).
    """
    same_label = labels.unsqueeze(-1) == labels  # (B, B)
    better = (same_label & (rank.unsqueeze(-2) < rank.unsqueeze(-1))).sum(-1)  # number of better samples of its label
    first = (better + 1) * share[1] <= same_label.sum(-1) * share[0]
    return ranks(torch.where(first, rank.shape[-1], 0) - rank.to(torch.float32))
