"""What is asked of a network beside the labels."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Regularizer(nn.Module, ABC):
    """A term that needs the model itself; it leaves batch-norm statistics alone."""

    @abstractmethod
    def forward(self, model: nn.Module, inputs: Tensor, logits: Tensor) -> Tensor:
        """-> ()"""


class VirtualAdversarial(Regularizer):
    """VAT: KL(p(x) || p(x + r)) for the r of norm `radius` that changes the prediction most, by power iteration.

    The official xi of 1e-6 is below what float32 can add to standardised inputs; the direction is sought in float32.
    """

    def __init__(self, *, radius: float, weight: float = 1.0, xi: float = 1e-2, iterations: int = 1) -> None:
        super().__init__()
        if radius <= 0 or iterations < 1:
            raise ValueError(f"radius must be above 0 and iterations at least 1, got {radius} and {iterations}")
        self.radius, self.weight, self.xi, self.iterations = radius, weight, xi, iterations
        self.generator: torch.Generator | None = None

    def forward(self, model: nn.Module, inputs: Tensor, logits: Tensor) -> Tensor:
        fixed = logits.detach().float().log_softmax(-1)
        with frozen_statistics(model):
            with torch.autocast(inputs.device.type, enabled=False):
                direction = self.adversarial(model, inputs, fixed)
            moved = model(inputs + self.radius * direction)
        return self.weight * divergence(fixed, moved)

    def adversarial(self, model: nn.Module, inputs: Tensor, fixed: Tensor) -> Tensor:
        """The unit direction, per sample, in which the prediction changes most."""
        direction = torch.empty_like(inputs).normal_(generator=self.generator)
        for _ in range(self.iterations):
            step = (self.xi * unit(direction)).requires_grad_()
            (direction,) = torch.autograd.grad(divergence(fixed, model(inputs + step)), step)
        return unit(direction)


def divergence(fixed: Tensor, logits: Tensor) -> Tensor:
    """KL of fixed log-probabilities to those of the logits: summed over classes and networks, mean over samples."""
    logs = logits.float().log_softmax(-1)
    return (fixed.exp() * (fixed - logs)).sum(-1).mean(-1).sum()


def unit(direction: Tensor) -> Tensor:
    """Scaled to norm one per sample, without under- or overflow."""
    flat = direction.flatten(1)
    flat = flat / (flat.abs().amax(1, keepdim=True) + 1e-12)
    return (flat / (1e-6 + flat.square().sum(1, keepdim=True)).sqrt()).view_as(direction)


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Batch-norm normalises by the batch, as in training, but does not remember it."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
