"""Which label a sample is taught."""

import math
from abc import ABC, abstractmethod
from fractions import Fraction

import torch
from torch import Tensor, nn

from labelsieve.core.part import Part, Predict

NONE = -1  # no label yet


def smallest_integer(num_classes: int) -> torch.dtype:
    """The smallest integer type that holds every class and -1."""
    if num_classes <= 127:
        return torch.int8
    return torch.int16 if num_classes <= 32_767 else torch.int32


def normalised_entropy(history: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Entropy of the classes in each history (B, q), 0 to 1, and the commonest class, the lowest of equals."""
    votes = torch.zeros(len(history), num_classes, device=history.device)
    votes.scatter_add_(1, history.clamp(min=0).long(), torch.ones_like(history, dtype=votes.dtype))
    shares = votes / history.shape[1]
    return -torch.xlogy(shares, shares).sum(1) / math.log(num_classes), votes.argmax(1)


class Relabel(Part, ABC):
    """Says which label each network is taught for a sample, and may change how much it counts."""

    @abstractmethod
    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(N, B, K), (B), (B), (N, B) -> target (N, B), weight (N, B)"""


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


class LatentClass(Relabel):
    """LCCN: the true class is drawn from prediction times transition, and the transition counted from what was drawn.

    During the warm-up, of one epoch at least, the observed labels are taught; at its end the counts start from the
    network's predictions. `seed` is well mixed: the draws of an epoch come from it and the epoch's number.
    """

    needs_index = True
    needs_predictions = True

    def __init__(
        self, num_classes: int, num_samples: int, *, warmup: int, seed: int, prior: float, refresh: int
    ) -> None:
        super().__init__()
        if refresh < 1 or prior <= 0:
            raise ValueError(f"refresh must be at least 1 step and prior above 0, got {refresh} and {prior}")
        self.num_classes, self.num_samples = num_classes, num_samples
        self.begins = max(1, warmup)
        self.seed, self.prior, self.refresh, self.epoch = seed, prior, refresh, 0
        self.latent = nn.Buffer(torch.full((num_samples,), NONE, dtype=smallest_integer(num_classes)))
        self.counts = nn.Buffer(torch.zeros(num_classes, num_classes, dtype=torch.int64))  # [latent, observed]
        self.transition = nn.Buffer(torch.eye(num_classes))
        self.draws = nn.Buffer(torch.zeros(num_samples))  # one uniform number per sample and epoch
        self.steps = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.drawing = nn.Buffer(torch.tensor(False))

    def start_round(self, number: int) -> None:
        self.latent.fill_(NONE)
        self.counts.zero_()

    def start_epoch(self, epoch: int) -> None:
        if epoch >= self.begins and not self.known():
            raise ValueError("lccn starts from predictions of the training set: call method.end_epoch(predict)")
        self.epoch = epoch
        self.drawing.fill_(epoch >= self.begins and self.known())
        random = torch.Generator().manual_seed(self.seed ^ epoch)
        self.draws.copy_(torch.rand(self.draws.shape, generator=random))

    def end_epoch(self, predict: Predict | None) -> None:
        if self.epoch + 1 < self.begins or self.known() or predict is None:
            return
        self.counts.zero_()
        for probs, labels, index in predict():
            guess = probs[0].argmax(-1)
            self.latent[index] = guess.to(self.latent.dtype)
            self.counts.index_put_((guess, labels), torch.ones_like(labels), accumulate=True)
        self.transition.copy_(self.estimated())

    def known(self) -> bool:
        """Whether every sample has a latent class yet."""
        return bool((self.latent != NONE).all())

    def estimated(self) -> Tensor:
        """P(observed | latent) from the counts with a Dirichlet prior."""
        counts = self.counts + self.prior
        return counts / counts.sum(1, keepdim=True)

    def drawn(self, probs: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """The latent class of each sample by inversion of its cumulative posterior. (B)"""
        posterior = probs[0] * self.transition[:, labels].T
        cumulative = posterior.cumsum(-1)
        place = self.draws[index].unsqueeze(1) * cumulative[:, -1:]
        return (cumulative <= place).sum(1).clamp(max=probs.shape[-1] - 1)

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        assert index is not None
        target = torch.where(self.drawing, self.drawn(probs, labels, index), labels)
        return target.expand(probs.shape[:-1]), weight

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        assert index is not None
        moves = (valid[0] & self.drawing).long()
        old, new = self.latent[index].long(), self.drawn(probs, labels, index)
        self.counts.index_put_((old.clamp(min=0), labels), -moves, accumulate=True)
        self.counts.index_put_((new, labels), moves, accumulate=True)
        self.latent[index] = torch.where(moves > 0, new, old).to(self.latent.dtype)
        self.steps.add_(1)
        due = (self.steps % self.refresh == 0) & self.drawing
        self.transition.copy_(torch.where(due, self.estimated(), self.transition))

    def tables(self) -> dict[str, Tensor]:
        return {"transition": self.transition.unsqueeze(0)}
