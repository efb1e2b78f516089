"""Dropout that draws from a generator of the run's own."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Element-wise dropout. A trainer sets `generator`, so that other runs and draws do not change the masks."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if self.generator is None:
            return F.dropout(x, self.rate)
        keep = torch.empty_like(x).bernoulli_(1 - self.rate, generator=self.generator)
        return x * keep.div_(1 - self.rate)
