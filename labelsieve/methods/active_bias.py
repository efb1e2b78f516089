"""Active Bias: give more weight to samples whose predictions vary between epochs."""

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import observed_confidence
from labelsieve.core.losses import CrossEntropy
from labelsieve.core.method import Method
from labelsieve.core.part import Weigh
from labelsieve.methods.problem import MakeCriterion, Problem, register, require_num_samples, select_clean


@register("active-bias")
def active_bias(p: Problem, criterion: MakeCriterion | None = None, *, smoothness: float = 0.2) -> Method:
    """Give more weight to samples whose predictions vary between epochs."""
    weight = ActiveBias(require_num_samples(p), warmup=p.warmup, smoothness=smoothness)
    return Method(CrossEntropy(), [weight, *select_clean(p, criterion)])


class ActiveBias(Weigh):
    """Weight sqrt(v + v²/(n-1)) + smoothness, normalized to mean 1.

    v is the variance of the sample's confidence in the observed label over the n epochs so far.
    """

    needs_index = True

    def __init__(self, num_samples: int, *, warmup: int = 0, smoothness: float = 0.2) -> None:
        super().__init__()
        self.num_samples = num_samples
        self.active_from = warmup
        self.smoothness = smoothness
        self.count = nn.Buffer(torch.zeros(1, num_samples))  # Welford's algorithm: number of predictions,
        self.mean = nn.Buffer(torch.zeros(1, num_samples))  # their mean,
        self.squares = nn.Buffer(torch.zeros(1, num_samples))  # and their sum of squared deviations
        self.weighing = nn.Buffer(torch.tensor(warmup == 0))

    def start_round(self, number: int) -> None:
        for buffer in (self.count, self.mean, self.squares):
            buffer.zero_()

    def start_epoch(self, epoch: int) -> None:
        self.weighing.fill_(epoch >= self.active_from)

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        count = self.count[:, index]
        variance = self.squares[:, index] / count.clamp(min=1)
        spread = (variance + variance.square() / (count - 1).clamp(min=1)).sqrt()
        weight = torch.where(count < 2, 0.0, spread) + self.smoothness
        return torch.where(self.weighing, weight / weight.mean(-1, keepdim=True), 1.0)

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        confidence = observed_confidence(probs, labels)
        count = self.count[:, index] + 1
        before = self.mean[:, index]
        mean = before + (confidence - before) / count
        squares = self.squares[:, index] + (confidence - before) * (confidence - mean)
        for buffer, new in ((self.count, count), (self.mean, mean), (self.squares, squares)):
            buffer[:, index] = torch.where(valid, new, buffer[:, index]).to(buffer.dtype)  # may be half precision
