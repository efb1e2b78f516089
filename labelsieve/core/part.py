"""Part: one ingredient of a method."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

# Predictions for the whole training set in eval mode, batch by batch: probs (N, B, K), labels (B), index (B).
Predict = Callable[[], Iterator[tuple[Tensor, Tensor, Tensor]]]


class Part(nn.Module):
    """One ingredient of a method; its memory is buffers, so .to() and state_dict() just work.

    Shapes: N networks, B samples, K classes. Everything that a step calls keeps its shapes and never reads the device.
    """

    needs_index = False  # True: it remembers single samples
    needs_predictions = False  # True: at the end of an epoch it wants predictions of the whole training set
    begins = 0  # the first epoch of its work, counted from 0 in each round; until then the training is plain
    num_samples = 0  # how many it remembers
    num_classes = 0  # how many it was made for, where that matters

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        """Remember a step, in place. `valid` (N, B): False where a prediction is not finite or the step was undone."""

    def start_round(self, number: int) -> None:
        """Forget what a restart of the networks makes void; called for every round, counted from 0."""

    def start_epoch(self, epoch: int) -> None:
        """Fill the tensors that change with the epoch, counted from 0 in each round; a second call changes nothing."""

    def end_epoch(self, predict: Predict | None) -> None:
        """Turn what the epoch gathered into what the next one uses; `predict` only where the loop can."""

    def end_round(self, predict: Predict) -> None:
        """Learn what only a trained network can tell, before the networks start anew."""

    def tables(self) -> dict[str, Tensor]:
        """What it has learnt about the labels that is worth looking at, by name."""
        return {}

    def parameter_groups(self) -> list[dict[str, object]]:
        """Parameters of its own with their learning rates, for an optimizer without momentum or decay."""
        return []


class Weigh(Part, ABC):
    """Gives each sample a weight; the weights of several multiply."""

    @abstractmethod
    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """(N, B, K), (B), (B) -> (N, B)"""


NONE = -1  # no label yet


def smallest_integer(num_classes: int) -> torch.dtype:
    """The smallest integer type that holds every class and -1."""
    if num_classes <= 127:
        return torch.int8
    return torch.int16 if num_classes <= 32_767 else torch.int32


class Relabel(Part, ABC):
    """Says which label each network is taught for a sample, and may change how much it counts."""

    @abstractmethod
    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(N, B, K), (B), (B), (N, B) -> target (N, B), weight (N, B)"""


def processes() -> int:
    """How many processes train together."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1


def summed_over_processes(sums: Tensor) -> Tensor:
    """Whole numbers of all processes that train together, added up; every process must ask."""
    if processes() > 1:
        sums = sums.clone()
        torch.distributed.all_reduce(sums)
    return sums
