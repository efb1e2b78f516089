"""Base classes of the parts that make up a method: Part, Weigh, Relabel and Regularizer.

The other kinds of parts are `Criterion` (criteria.py) and `Loss` (losses.py). `label_dtype` is the type of labels that
parts store per sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

# Returns predictions for the whole training set in eval mode, batch by batch: probs (N, B, K), labels (B), index (B).
Predict = Callable[[], Iterator[tuple[Tensor, Tensor, Tensor]]]

NO_LABEL = -1  # stored for a sample that has no label yet


class Part(nn.Module):
    """Base class of the parts of a method.

    A part keeps its state in buffers, so `.to()` and `state_dict()` include it. Code that runs in a training step must
    keep its shapes fixed and must not read values from the device. Shapes: N networks, B samples, K classes.
    """

    needs_index = False  # True if the part stores values per sample
    needs_predictions = False  # True if end_epoch needs predictions for the whole training set
    active_from = 0  # first epoch of a round, counted from 0, in which the part has an effect
    num_samples = 0  # number of samples it stores values for, 0 if none
    num_classes = 0  # number of classes it was made for, 0 if any

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        """Update the state in place after a step.

        `valid` (N, B) is False where a prediction is not finite or the step was undone.
        """

    def start_round(self, number: int) -> None:
        """Reset the state that belongs to the previous networks. Called before every round, counted from 0."""

    def start_epoch(self, epoch: int) -> None:
        """Fill the tensors that depend on the epoch, counted from 0 in each round. Repeated calls change nothing."""

    def end_epoch(self, predict: Predict | None) -> None:
        """Compute the state of the next epoch. `predict` is None if the training loop does not provide it."""

    def end_round(self, predict: Predict) -> None:
        """Update the state from the trained networks, before they are initialized again."""

    def tables(self) -> dict[str, Tensor]:
        """Return what the part has estimated about the labels, for reports: name -> tensor."""
        return {}

    def parameter_groups(self) -> list[dict[str, object]]:
        """Return the part's own parameters as optimizer groups with learning rates, without momentum or decay."""
        return []


class Weigh(Part, ABC):
    """A part that gives each sample a weight. The weights of several parts are multiplied."""

    @abstractmethod
    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """Return the weights: (N, B, K), (B), (B) -> (N, B)."""

    def keeps_all(self, probs: Tensor) -> bool:
        """Return True if it is known without reading the device that all weights of a batch are 1."""
        return False


class Relabel(Part, ABC):
    """A part that chooses the target label of each sample and may change its weight."""

    keeps_selection = False  # True if a weight of 1 stays 1, and one of 0 stays 0 or becomes 1

    @abstractmethod
    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return targets and weights: (N, B, K), (B), (B), (N, B) -> (N, B), (N, B)."""


class Regularizer(nn.Module, ABC):
    """A loss term that needs the model itself. It must not change batch normalization statistics."""

    @abstractmethod
    def forward(self, model: nn.Module, inputs: Tensor, logits: Tensor) -> Tensor:
        """Return the loss term, a scalar."""


def host_decides(values: Tensor) -> bool:
    """Return True where a step may read values, and is never recorded and replayed: eagerly on a CPU."""
    return values.is_cpu and type(values) is Tensor and not torch.compiler.is_compiling()


def label_dtype(num_classes: int) -> torch.dtype:
    """Return the smallest integer type that holds every class and -1."""
    if num_classes <= 127:
        return torch.int8
    return torch.int16 if num_classes <= 32_767 else torch.int32
