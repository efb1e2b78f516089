"""SELFIE: teach samples whose predictions agree the class they agree on."""

import math
from fractions import Fraction

import torch
from torch import Tensor, nn

from labelsieve.core.part import NONE, Relabel, smallest_integer


def normalised_entropy(history: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Entropy of the classes in each history (B, q), 0 to 1, and the commonest class, the lowest of equals."""
    votes = torch.zeros(len(history), num_classes, device=history.device)
    votes.scatter_add_(1, history.clamp(min=0).long(), torch.ones_like(history, dtype=votes.dtype))
    shares = votes / history.shape[1]
    return -torch.xlogy(shares, shares).sum(1) / math.log(num_classes), votes.argmax(1)


class Refurbish(Relabel):
    """SELFIE: a sample whose last predictions agree is taught the class they agree on, and counts.

    clean_first: a sample that was selected as clean keeps its observed label (SELFIE-Prop's overlap rule). Corrections
    outlive restarts; the history does not.
    """

    needs_index = True

    def __init__(
        self, num_classes: int, num_samples: int, *, warmup: int, threshold: float, history: int, clean_first: bool
    ) -> None:
        super().__init__()
        if not 1 <= history <= min(255, warmup):
            raise ValueError(f"the history of {history} predictions must fill during the warm-up of {warmup} epochs")
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must be in [0, 1], got {threshold}")
        self.num_classes, self.num_samples = num_classes, num_samples
        self.begins, self.threshold, self.clean_first = warmup, threshold, clean_first
        dtype = smallest_integer(num_classes)
        self.history = nn.Buffer(torch.full((num_samples, history), NONE, dtype=dtype))
        self.written = nn.Buffer(torch.zeros(num_samples, dtype=torch.uint8))  # the place that is written next
        self.corrected = nn.Buffer(torch.full((num_samples,), NONE, dtype=dtype))
        self.corrected_before = nn.Buffer(torch.zeros((), dtype=torch.int64))  # how many, when this round began
        self.selecting = nn.Buffer(torch.tensor(warmup == 0))

    def start_round(self, number: int) -> None:
        self.history.fill_(NONE)
        self.written.zero_()
        self.corrected_before.copy_((self.corrected != NONE).sum())

    def start_epoch(self, epoch: int) -> None:
        self.selecting.fill_(epoch >= self.begins)

    def share_at_least(self, share: Fraction, epoch: int) -> Fraction:
        """SELFIE selects at least as much as was corrected before this round."""
        return max(share, Fraction(int(self.corrected_before), len(self.corrected)))

    def settled(self, index: Tensor) -> Tensor:
        """The correction of each sample, or -1: a new one where its history agrees, else the one it had. (B)"""
        history = self.history[index]
        entropy, commonest = normalised_entropy(history, self.num_classes)
        certain = (history != NONE).all(1) & (entropy <= self.threshold) & self.selecting
        return torch.where(certain, commonest, self.corrected[index].long())

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        assert index is not None
        correction = self.settled(index)
        known = correction != NONE
        taught = known & (weight == 0) if self.clean_first else known.expand_as(weight)
        taught = torch.where(self.selecting, taught, known)  # in the warm-up of a later round every correction counts
        target = torch.where(taught, correction, labels)
        return target, torch.where(taught, 1.0, weight)

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        assert index is not None
        happened = valid[0]
        correction = torch.where(happened, self.settled(index), self.corrected[index].long())
        self.corrected[index] = correction.to(self.corrected.dtype)
        place = self.written[index].long()
        guess = torch.where(happened, probs[0].argmax(-1), self.history[index, place].long())
        self.history[index, place] = guess.to(self.history.dtype)
        self.written[index] = torch.where(happened, (place + 1) % self.history.shape[1], place).to(torch.uint8)
