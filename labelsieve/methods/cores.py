"""CORES²: reward confident predictions, whatever the label, and leave out samples of more than average loss."""

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import observed_confidence
from labelsieve.core.losses import Loss, weighted_mean, without_dropped
from labelsieve.core.part import Predict, Weigh, summed_over_processes

SMALLEST = 1e-8


def sieved(probs: Tensor, labels: Tensor) -> Tensor:
    """Whether -log p of the label is at most the mean of -log p over the classes, (N, B)."""
    logs = probs.clamp(min=SMALLEST).log()
    return observed_confidence(logs, labels) >= logs.mean(-1)


class ConfidenceRegularized(Loss):
    """CE - beta * the mean loss over labels drawn from the prior; beta rises from `start` to `full`.

    The prior is the share of each label in the epoch before, from `full` on among the samples that the sieve keeps.
    Probabilities have a floor, without which the reward has none.
    """

    def __init__(self, num_classes: int, *, beta: float, start: int, full: int) -> None:
        super().__init__()
        if not 0 <= start <= full:
            raise ValueError(f"start must be 0 to full, got {start} and {full}")
        self.num_classes, self.most, self.begins, self.full = num_classes, beta, start, full
        self.beta = nn.Buffer(torch.zeros(()))
        self.prior = nn.Buffer(torch.full((num_classes,), 1 / num_classes))
        self.sieving = nn.Buffer(torch.tensor(full == 0))
        self.counts = nn.Buffer(torch.zeros(num_classes, dtype=torch.int64))
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        self.beta.fill_(self.beta_at(epoch))
        self.sieving.fill_(epoch >= self.full)

    def end_epoch(self, predict: Predict | None) -> None:
        counts = summed_over_processes(self.counts)
        total = counts.sum()
        self.prior.copy_(torch.where(total > 0, counts / total.clamp(min=1), self.prior))
        self.counts.zero_()

    def beta_at(self, epoch: int) -> float:
        return self.most * min(1.0, max(0, epoch - self.begins) / max(1, self.full - self.begins))

    def lr_scale(self, epoch: int) -> float:
        """The learning rate falls as the reward rises, so that the step keeps its size."""
        return 1 / (1 + self.beta_at(epoch))

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        self.counts.index_add_(0, labels, ((sieved(probs, labels) | ~self.sieving) & valid)[0].long())

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        losses = -(without_dropped(logits, weight).softmax(-1) + SMALLEST).log()  # of each label
        return weighted_mean(observed_confidence(losses, target) - self.beta * (self.prior * losses).sum(-1), weight)


class Sieve(Weigh):
    """CORES²: from some epoch on, keep samples whose loss is at most the mean loss over all labels."""

    def __init__(self, *, start: int) -> None:
        super().__init__()
        self.begins = start
        self.sieving = nn.Buffer(torch.tensor(start == 0))

    def start_epoch(self, epoch: int) -> None:
        self.sieving.fill_(epoch >= self.begins)

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        return (sieved(probs, labels) | ~self.sieving).to(probs.dtype)
