"""Base classes of losses, cross-entropy, and functions shared by the losses of the methods.

A loss that belongs to one method is defined in the file of that method.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from labelsieve.core.part import Part

NO_CLASS = -(2**62)  # torch would ignore samples with the label -100 instead of refusing it


class Loss(Part, ABC):
    """One value per network from logits (N, B, K), target (N, B) and weight (N, B)."""

    @abstractmethod
    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """Return the loss of each network, (N)."""

    def total(
        self,
        logits: Tensor,
        probs: Tensor,
        target: Tensor,
        weight: Tensor,
        labels: Tensor,
        index: Tensor | None,
        *,
        all_kept: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the sum over the networks, a scalar, and the loss of each network (N) from logits (N, B, K) or (B, K).

        A loss that can use the predictions (N, B, K), softmax of the logits, overrides this method. `all_kept` is True
        if all weights are known to be 1.
        """
        losses: Tensor = self(logits.view_as(probs), target, weight, labels, index)
        return losses.sum(), losses


class CrossEntropy(Loss):
    """Cross-entropy with the target label."""

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        return weighted_mean(cross_entropy(mask_dropped(logits, weight), target), weight)

    def total(
        self,
        logits: Tensor,
        probs: Tensor,
        target: Tensor,
        weight: Tensor,
        labels: Tensor,
        index: Tensor | None,
        *,
        all_kept: bool = False,
    ) -> tuple[Tensor, Tensor]:
        if all_kept and len(probs) == 1:  # plain training, bit for bit
            loss = F.cross_entropy(logits.view(probs.shape[1:]), target[0], ignore_index=NO_CLASS)
            return loss, loss.detach().unsqueeze(0)
        if probs.device.type != "cpu":  # scatter_add_ of the gradient is not deterministic on a GPU
            return super().total(logits, probs, target, weight, labels, index)
        return _CrossEntropyOfProbs.apply(logits, probs, target, weight)  # type: ignore[no-any-return,no-untyped-call]


class _CrossEntropyOfProbs(torch.autograd.Function):
    """Weighted mean of the cross-entropy from logits and their softmax, as one step of a few operations.

    The gradient at the logits is (p - one-hot) · weight / Σ weight.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, probs: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        given, chosen = logits.view_as(probs), target.unsqueeze(-1)
        normalizer = given.amax(-1) - probs.amax(-1).log_()  # log Σ exp z, since max p is at least 1 / K
        values = normalizer - given.gather(-1, chosen).squeeze(-1)  # (N, B)
        values = torch.where(weight > 0, values, 0.0)  # 0 times an infinite loss would be NaN
        share = weight / weight.sum(-1, keepdim=True).clamp_(min=torch.finfo(weight.dtype).tiny)
        losses = (values * share).sum(-1)
        ctx.save_for_backward(probs, chosen, torch.add(share, values, alpha=0))  # NaN where a loss is not finite
        ctx.shape = logits.shape
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *others: Tensor) -> tuple[Tensor, None, None, None]:
        probs, chosen, share = ctx.saved_tensors
        scale = (share * gradient).unsqueeze(-1)  # (N, B, 1)
        rows = (probs * scale).nan_to_num_(nan=0.0)  # rows that are left out may be NaN
        return rows.scatter_add_(-1, chosen, -scale).view(ctx.shape), None, None, None


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
