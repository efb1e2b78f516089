"""CORES²: reward confident predictions and leave out samples with a loss above average."""

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import observed_confidence
from labelsieve.core.losses import Loss, mask_dropped, weighted_mean
from labelsieve.core.method import Method
from labelsieve.core.part import Predict, Weigh
from labelsieve.methods.problem import MakeCriterion, Problem, register, select_clean

SMALLEST_PROBABILITY = 1e-8


@register("cores")
def cores(p: Problem, criterion: MakeCriterion | None = None, *, beta: float = 2.0) -> Method:
    """CORES²: reward confident predictions and, after the warm-up, leave out samples with a loss above average."""
    loss = ConfidenceRegularized(p.num_classes, beta=beta, start=p.warmup // 3, full=p.warmup)
    weigh = [_Sieve(start=p.warmup), *select_clean(p, criterion)]
    return Method(loss, weigh, lr_scale=loss.lr_scale)


class ConfidenceRegularized(Loss):
    """CE - beta * expected CE over labels drawn from the prior; beta rises linearly from epoch `start` to `full`.

    The prior is the frequency of each label in the previous epoch, from epoch `full` on among the samples kept by the
    sieve. Probabilities have a lower bound, because the loss would have none otherwise.
    """

    def __init__(self, num_classes: int, *, beta: float, start: int, full: int) -> None:
        super().__init__()
        self.num_classes, self.max_beta, self.active_from, self.full = num_classes, beta, start, full
        self.beta = nn.Buffer(torch.zeros(()))
        self.prior = nn.Buffer(torch.full((num_classes,), 1 / num_classes))
        self.sieving = nn.Buffer(torch.tensor(full == 0))
        self.counts = nn.Buffer(torch.zeros(num_classes, dtype=torch.int64))
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        self.beta.fill_(self.beta_at(epoch))
        self.sieving.fill_(epoch >= self.full)

    def end_epoch(self, predict: Predict | None) -> None:
        total = self.counts.sum()
        self.prior.copy_(torch.where(total > 0, self.counts / total.clamp(min=1), self.prior))
        self.counts.zero_()

    def beta_at(self, epoch: int) -> float:
        """Return beta in an epoch."""
        return self.max_beta * min(1.0, max(0, epoch - self.active_from) / max(1, self.full - self.active_from))

    def lr_scale(self, epoch: int) -> float:
        """Return the factor of the learning rate, which falls as beta rises so that steps keep their size."""
        return 1 / (1 + self.beta_at(epoch))

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        self.counts.index_add_(0, labels, ((_is_kept(probs, labels) | ~self.sieving) & valid)[0].long())

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        probs = mask_dropped(logits, weight).softmax(-1)
        losses = -(probs + SMALLEST_PROBABILITY).log()  # (N, B, K), loss of each label
        return weighted_mean(observed_confidence(losses, target) - self.beta * (self.prior * losses).sum(-1), weight)


class _Sieve(Weigh):
    """From epoch `start` on, keep the samples whose loss is at most the mean loss over all labels."""

    def __init__(self, *, start: int) -> None:
        super().__init__()
        self.active_from = start
        self.sieving = nn.Buffer(torch.tensor(start == 0))

    def start_epoch(self, epoch: int) -> None:
        self.sieving.fill_(epoch >= self.active_from)

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        return (_is_kept(probs, labels) | ~self.sieving).to(probs.dtype)


def _is_kept(probs: Tensor, labels: Tensor) -> Tensor:
    """Return True where -log p of the label is at most the mean of -log p over the classes, (N, B)."""
    logs = probs.clamp(min=SMALLEST_PROBABILITY).log()
    return observed_confidence(logs, labels) >= logs.mean(-1)
