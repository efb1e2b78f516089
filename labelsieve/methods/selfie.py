"""SELFIE and SELFIE-Prop: replace the label of a sample by its past predictions if these are consistent."""

import math
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import CriteriaALL, CriteriaOL
from labelsieve.core.losses import CrossEntropy
from labelsieve.core.method import Method
from labelsieve.core.part import NO_LABEL, Relabel, label_dtype
from labelsieve.core.select import Select, constant_share, kept_share
from labelsieve.methods.problem import MakeCriterion, Problem, register, require_num_samples


@register("selfie")
def selfie(
    p: Problem,
    criterion: MakeCriterion = CriteriaOL,
    *,
    threshold: float = 0.05,
    history: int | None = None,
    rounds: int = 3,
    clean_first: bool = False,
    recompute: bool = True,
) -> Method:
    """Train on clean samples and on samples whose past predictions are consistent, relabelled by these predictions.

    The length of the history is at most 15 by default. With `recompute`, the kept share is at least the share of
    samples that were corrected in earlier rounds.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    length = min(15, p.warmup) if history is None else history
    share, samples = kept_share(p.noise_rate), require_num_samples(p)
    refurbish = _Refurbish(
        p.num_classes, samples, warmup=p.warmup, threshold=threshold, history=length, clean_first=clean_first
    )
    keep = partial(refurbish.share_at_least if recompute else constant_share, share)
    select = Select(criterion(p.num_classes, 1), keep, warmup=p.warmup)
    return Method(CrossEntropy(), [select], refurbish, num_rounds=rounds)


@register("selfie-prop")
def selfie_prop(
    p: Problem,
    criterion: MakeCriterion = CriteriaALL,
    *,
    threshold: float = 0.005,
    history: int | None = None,
    rounds: int = 3,
    clean_first: bool = True,
    recompute: bool = False,
) -> Method:
    """SELFIE with Criteria_ALL, where selected samples keep their observed label (from the paper).

    The length of the history is at most 25 by default.
    """
    length = min(25, p.warmup) if history is None else history
    return selfie(
        p, criterion, threshold=threshold, history=length, rounds=rounds, clean_first=clean_first, recompute=recompute
    )


class _Refurbish(Relabel):
    """Correct the label of a sample if its last predictions are consistent, and give it weight 1.

    The last `history` predictions are consistent if their normalized entropy is at most `threshold`. With `clean_first`
    (SELFIE-Prop), a sample that was selected as clean keeps its observed label. When the networks are restarted,
    corrections are kept and the history is cleared.
    """

    needs_index = True
    keeps_selection = True

    def __init__(
        self, num_classes: int, num_samples: int, *, warmup: int, threshold: float, history: int, clean_first: bool
    ) -> None:
        super().__init__()
        if not 1 <= history <= min(255, warmup):
            raise ValueError(f"history must be from 1 to the warm-up of {warmup} epochs and at most 255, got {history}")
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must be in [0, 1], got {threshold}")
        self.num_classes, self.num_samples = num_classes, num_samples
        self.active_from, self.threshold, self.clean_first = warmup, threshold, clean_first
        dtype = label_dtype(num_classes)
        self.history = nn.Buffer(torch.full((num_samples, history), NO_LABEL, dtype=dtype))
        self.written = nn.Buffer(torch.zeros(num_samples, dtype=torch.uint8))  # next position of the history
        self.corrected = nn.Buffer(torch.full((num_samples,), NO_LABEL, dtype=dtype))
        self.corrected_before = nn.Buffer(torch.zeros((), dtype=torch.int64))  # number at the start of this round
        self.selecting = nn.Buffer(torch.tensor(warmup == 0))

    def start_round(self, number: int) -> None:
        self.history.fill_(NO_LABEL)
        self.written.zero_()
        self.corrected_before.copy_((self.corrected != NO_LABEL).sum())

    def start_epoch(self, epoch: int) -> None:
        self.selecting.fill_(epoch >= self.active_from)

    def share_at_least(self, share: Fraction, epoch: int) -> Fraction:
        """Return the kept share: at least the share of samples corrected before this round."""
        return max(share, Fraction(int(self.corrected_before), len(self.corrected)))

    def correction_of(self, index: Tensor | None) -> Tensor:
        """Return the corrected label of each sample, -1 if none; a consistent history replaces an earlier one. (B)"""
        history = self.history[index]
        entropy, most_frequent = normalized_entropy(history, self.num_classes)
        consistent = (history != NO_LABEL).all(1) & (entropy <= self.threshold) & self.selecting
        return torch.where(consistent, most_frequent, self.corrected[index].long())

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        correction = self.correction_of(index)
        corrected = correction != NO_LABEL
        used = corrected & (weight == 0) if self.clean_first else corrected.expand_as(weight)
        used = torch.where(self.selecting, used, corrected)  # in the warm-up of later rounds all corrections are used
        target = torch.where(used, correction, labels)
        return target, torch.where(used, 1.0, weight)

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        applied = valid[0]
        correction = torch.where(applied, self.correction_of(index), self.corrected[index].long())
        self.corrected[index] = correction.to(self.corrected.dtype)
        position = self.written[index].long()
        predicted = torch.where(applied, probs[0].argmax(-1), self.history[index, position].long())
        self.history[index, position] = predicted.to(self.history.dtype)
        self.written[index] = torch.where(applied, (position + 1) % self.history.shape[1], position).to(torch.uint8)


def normalized_entropy(history: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the entropy of the classes in each history (B, q), from 0 to 1, and the most frequent class.

    Of equally frequent classes the lowest is returned.
    """
    votes = torch.zeros(len(history), num_classes, device=history.device)
    votes.scatter_add_(1, history.clamp(min=0).long(), torch.ones_like(history, dtype=votes.dtype))
    shares = votes / history.shape[1]
    return -torch.xlogy(shares, shares).sum(1) / math.log(num_classes), votes.argmax(1)
