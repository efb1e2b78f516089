"""Active Bias: learn more from samples that the network is not settled about."""

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import observed_confidence
from labelsieve.core.part import Weigh


class ActiveBias(Weigh):
    """Samples whose confidence in the observed label varies count more: sqrt(v + v²/(n-1)) + smoothness, mean 1."""

    needs_index = True

    def __init__(self, num_samples: int, networks: int = 1, *, warmup: int = 0, smoothness: float = 0.2) -> None:
        super().__init__()
        self.num_samples = num_samples
        self.begins = warmup
        self.smoothness = smoothness
        self.count = nn.Buffer(torch.zeros(networks, num_samples))  # Welford's running mean and squared deviations
        self.mean = nn.Buffer(torch.zeros(networks, num_samples))
        self.squares = nn.Buffer(torch.zeros(networks, num_samples))
        self.weighing = nn.Buffer(torch.tensor(warmup == 0))

    def start_round(self, number: int) -> None:
        for memory in (self.count, self.mean, self.squares):
            memory.zero_()

    def start_epoch(self, epoch: int) -> None:
        self.weighing.fill_(epoch >= self.begins)

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
        for memory, now in ((self.count, count), (self.mean, mean), (self.squares, squares)):
            memory[:, index] = torch.where(valid, now, memory[:, index]).to(memory.dtype)  # a model's, as a part of it
