"""Align: predictions in which every class comes up as often as it is observed, so that no class is given up."""

import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import Criterion
from labelsieve.core.part import Part, Weigh

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


EVENTUALLY = 10**6  # an epoch by which every ramp is over
LARGEST_DENOMINATOR = 10**9  # of a kept share: its product with any batch size stays far inside int64


def exact_fraction(rate: float) -> Fraction:
    """The decimal that a person wrote, not the binary number nearest to it: 0.7 is 7/10."""
    return Fraction(str(rate)).limit_denominator(LARGEST_DENOMINATOR)


def kept_share(noise_rate: float) -> Fraction:
    """R = 1 - ε."""
    if not 0 <= noise_rate < 1:
        raise ValueError(f"noise rate must be in [0, 1), got {noise_rate}")
    return 1 - exact_fraction(noise_rate)


def constant_share(share: Fraction, epoch: int) -> Fraction:
    """The same in every epoch."""
    return share


def ramped_share(noise_rate: float, ramp: int, epoch: int) -> Fraction:
    """Co-teaching's R(t): from all samples down to 1 - ε within `ramp` epochs."""
    if ramp < 1:
        raise ValueError(f"ramp must be at least 1 epoch, got {ramp}")
    return 1 - (1 - kept_share(noise_rate)) * min(Fraction(1), Fraction(epoch + 1, ramp))


def ranks(scores: Tensor, candidates: Tensor | None = None) -> Tensor:
    """The place of each score in its row, the highest first: the earlier of equals first, what is not finite last."""
    last = torch.finfo(scores.dtype).min
    scores = scores.nan_to_num(nan=last, posinf=last, neginf=last)  # sort would put NaN first
    if candidates is not None:
        scores = torch.where(candidates, scores, -torch.inf)
    order = scores.argsort(dim=-1, descending=True, stable=True)
    place = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, place)


def within_share(rank: Tensor, candidates: int | Tensor, share: Tensor) -> Tensor:
    """True for the first ceil(share * candidates) places, at least one; `share` is a (numerator, denominator) pair.

    A whole number is below ceil(a / b) if and only if b times it is below a.
    """
    return rank * share[1] < (candidates * share[0]).clamp(min=1)


def with_floor(rank: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    """Ranks in which the best samples of each label, this share of them rounded down, come before all others.

    `share` is a (numerator, denominator) pair.
    """
    same = labels.unsqueeze(-1) == labels  # (B, B)
    among_own = (same & (rank.unsqueeze(-2) < rank.unsqueeze(-1))).sum(-1)  # how many of its label are better
    first = (among_own + 1) * share[1] <= same.sum(-1) * share[0]
    return ranks(torch.where(first, rank.shape[-1], 0) - rank.to(torch.float32))


class Select(Weigh):
    """Weight 1 for the share of the batch that looks cleanest, 0 for the rest; everything during warm-up.

    exchange: each network learns from what the other chose (Co-teaching). disagree_from: from this epoch on, only
    samples on which the networks disagree are candidates (Co-teaching+); where there is none, nothing is learnt, or the
    whole batch with or_everything. joint: one choice from the mean score (JoCoR). floor: of each label at least this
    part of the kept share, so that no class starves. align: what the criterion's predictions go through first. Samples
    that it is told to trust come before all others.
    """

    trusted: Tensor | None  # (n) bool

    def __init__(
        self,
        criterion: Criterion,
        keep: Callable[[int], Fraction],
        *,
        warmup: int = 0,
        exchange: bool = False,
        disagree_from: int | None = None,
        or_everything: bool = False,
        joint: bool = False,
        floor: Fraction = Fraction(0),
        align: Align | None = None,
    ) -> None:
        super().__init__()
        if warmup < 0:
            raise ValueError(f"warm-up must be 0 or more epochs, got {warmup}")
        self.criterion = criterion
        self.keep = keep
        self.begins = warmup
        self.exchange = exchange
        self.disagree_from = disagree_from
        self.or_everything = or_everything
        self.joint = joint
        self.floor = floor
        self.align = align
        self.share = nn.Buffer(torch.ones(2, dtype=torch.int64))  # numerator, denominator
        self.least = nn.Buffer(torch.ones(2, dtype=torch.int64), persistent=False)  # the same, of each label
        self.agreed_too = nn.Buffer(torch.tensor(True))  # samples on which the networks agree are candidates
        self.register_buffer("trusted", None, persistent=False)
        self.start_epoch(0)

    def trust(self, samples: Tensor) -> None:
        """Keep these samples first, (n) bool over the training set: their labels are known to be right."""
        self.trusted = samples
        self.needs_index, self.num_samples = True, len(samples)

    def start_epoch(self, epoch: int) -> None:
        self.kept_share = Fraction(1) if epoch < self.begins else self.keep(epoch)
        self.least_batch = self.fewest() if self.kept_share < 1 else 0  # here, since a step must not read the device
        least = (self.floor * self.kept_share).limit_denominator(LARGEST_DENOMINATOR)
        self.share.copy_(torch.tensor(self.kept_share.as_integer_ratio()))
        self.least.copy_(torch.tensor(least.as_integer_ratio()))
        self.agreed_too.fill_(self.disagree_from is None or epoch < self.disagree_from)

    def kept(self, count: int) -> int:
        """How many of so many candidates it keeps in this epoch."""
        return max(1, math.ceil(self.kept_share * count))

    def fewest(self) -> int:
        """The smallest batch of which something is left out once the selecting is in full; 0 where it keeps all."""
        share = self.keep(EVENTUALLY)
        return math.ceil(1 / (1 - share)) if share < 1 else 0

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        scores = self.criterion(probs if self.align is None else self.align(probs), labels)
        if self.joint:
            scores = scores.mean(0).expand_as(scores)
        if self.trusted is not None:
            scores = scores.masked_fill(self.trusted[index], torch.finfo(scores.dtype).max)
        if self.disagree_from is None:
            rank = ranks(scores)
            if self.floor:
                rank = with_floor(rank, labels, self.least)
            selected = within_share(rank, scores.shape[-1], self.share)
        else:
            guesses = probs.argmax(-1)
            candidates = (guesses != guesses[:1]).any(0) | self.agreed_too
            if self.or_everything:
                candidates = candidates | ~candidates.any()
            selected = within_share(ranks(scores, candidates), candidates.sum(), self.share) & candidates
        return (selected.flip(0) if self.exchange else selected).to(probs.dtype)
