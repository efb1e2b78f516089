"""Base classes of losses, cross-entropy, and functions shared by the losses of the methods.

A loss that belongs to one method is defined in the file of that method.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labelsieve.core.part import Part

NO_CLASS = -(2**62)  # torch would ignore samples with the label -100 instead of refusing it


class Predictions(NamedTuple):
    """Predictions of networks for a batch."""

    logits: Tensor  # (N, B, K) or (B, K)
    logs: Tensor | None  # shape of the logits, their log_softmax with gradient, if the loss uses it
    probs: Tensor  # (N, B, K), softmax of the logits without gradient
    finite: bool  # True if the predictions are known to be finite


class Loss(Part, ABC):
    """One value per network from logits (N, B, K), target (N, B) and weight (N, B)."""

    @abstractmethod
    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """Return the loss of each network, (N)."""

    def log_softmax(self, logits: Tensor) -> Tensor | None:
        """Return log_softmax of the logits if `total` uses it; the predictions are then computed from it."""
        return None

    def total(
        self,
        predicted: Predictions,
        target: Tensor,
        weight: Tensor,
        labels: Tensor,
        index: Tensor | None,
        selected: bool = False,
        all_kept: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the sum over the networks, a scalar, and the loss of each network (N).

        `selected` is True if all weights are known to be 0 or 1 and at least one is 1; `all_kept` if all are 1. A loss
        that can use this or the predictions overrides this method.
        """
        losses: Tensor = self(predicted.logits.view_as(predicted.probs), target, weight, labels, index)
        return losses.sum(), losses


class CrossEntropy(Loss):
    """Cross-entropy with the target label.

    On a CPU, one log_softmax serves the predictions and the loss, and samples of weight 0 have no target.
    """

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        return weighted_mean(cross_entropy(mask_dropped(logits, weight), target), weight)

    def log_softmax(self, logits: Tensor) -> Tensor | None:
        return logits.log_softmax(-1) if logits.is_cpu else None

    def total(
        self,
        predicted: Predictions,
        target: Tensor,
        weight: Tensor,
        labels: Tensor,
        index: Tensor | None,
        selected: bool = False,
        all_kept: bool = False,
    ) -> tuple[Tensor, Tensor]:
        logits, logs, probs, finite = predicted
        one = probs.shape[0] == 1
        if logs is None and one and all_kept:  # plain training, bit for bit
            return _of_one(F.cross_entropy(logits.view(probs.shape[1:]), target[0], ignore_index=NO_CLASS))
        if logs is None:
            return super().total(predicted, target, weight, labels, index)
        if not (finite or all_kept):  # the gradient of a NaN that is left out would be NaN
            logs = mask_dropped(logits.view_as(probs), weight).log_softmax(-1)
        chosen = (target if all_kept else target.masked_fill(weight <= 0, NO_CLASS)).flatten()
        logs = logs if logs.dim() == 2 else logs.flatten(0, 1)
        if one and selected:
            return _of_one(F.nll_loss(logs, chosen, ignore_index=NO_CLASS))
        values = F.nll_loss(logs, chosen, ignore_index=NO_CLASS, reduction="none").view_as(target)
        losses = weighted_mean(values, weight)
        return losses.sum(), losses


def _of_one(loss: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of `Loss.total` for one network."""
    return loss, loss.detach().unsqueeze(0)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of each sample: (N, B, K), (N, B) -> (N, B)."""
    values = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none", ignore_index=NO_CLASS)
    return values.view_as(target)


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the mean over the samples with a positive weight (eq. 4), (N, B) -> (N)."""
    return (values * weight).sum(-1) / weight.sum(-1).clamp(min=torch.finfo(weight.dtype).tiny)


def mask_dropped(logits: Tensor, weight: Tensor) -> Tensor:
    """Return the logits with 0 for samples of weight 0, because 0 times an infinite loss would be NaN."""
    return torch.where(weight.unsqueeze(-1) > 0, logits, 0.0)
