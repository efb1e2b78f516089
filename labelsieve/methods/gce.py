"""Truncated GCE: leave out what the network does not believe."""

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import observed_confidence
from labelsieve.core.part import Predict, Weigh


class Prune(Weigh):
    """Truncated GCE's pruning: every few epochs, samples whose confidence in their label is at most k are left out."""

    needs_index = True
    needs_predictions = True

    def __init__(
        self, num_samples: int, networks: int = 1, *, k: float = 0.5, start: int = 40, every: int = 10
    ) -> None:
        super().__init__()
        if not 0 < k < 1:
            raise ValueError(f"k must be between 0 and 1, got {k}")
        if every < 1 or start < 0:
            raise ValueError(f"start must be at least 0 and every at least 1, got {start} and {every}")
        self.num_samples = num_samples
        self.k, self.start, self.every = k, start, every
        self.begins = start or every
        self.epoch = 0
        self.kept = nn.Buffer(torch.ones(networks, num_samples, dtype=torch.bool))
        self.pruned_for = nn.Buffer(torch.zeros((), dtype=torch.int64))  # the epoch that it was last done for

    def start_round(self, number: int) -> None:
        self.kept.fill_(True)

    def due(self, epoch: int) -> bool:
        """Whether the samples of this epoch are chosen anew."""
        return epoch > 0 and epoch >= self.start and (epoch - self.start) % self.every == 0

    def start_epoch(self, epoch: int) -> None:
        if self.due(epoch) and int(self.pruned_for) != epoch:
            raise ValueError("pruning predicts the training set again: call method.end_epoch(predict)")
        self.epoch = epoch

    def end_epoch(self, predict: Predict | None) -> None:
        if self.due(self.epoch + 1) and predict is not None:
            for probs, labels, index in predict():
                self.kept[:, index] = observed_confidence(probs, labels) > self.k
            self.pruned_for.fill_(self.epoch + 1)

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        return self.kept[:, index].to(probs.dtype)
