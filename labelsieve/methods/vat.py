"""VAT: virtual adversarial training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from labelsieve.core.losses import CrossEntropy
from labelsieve.core.method import Method
from labelsieve.core.part import Regularizer
from labelsieve.methods.problem import MakeCriterion, Problem, register, select_clean
from labelsieve.runtime import random_like


@register("vat")
def vat(
    p: Problem, criterion: MakeCriterion | None = None, *, radius: float = 8.0, weight: float = 1.0, iterations: int = 1
) -> Method:
    """Virtual adversarial training: keep predictions constant within a small distance of each sample."""
    regularizer = VirtualAdversarial(radius=radius, weight=weight, iterations=iterations)
    return Method(CrossEntropy(), select_clean(p, criterion), regularizer=regularizer)


class VirtualAdversarial(Regularizer):
    """KL(p(x) || p(x + r)), where r of norm `radius` changes the prediction most; found by power iteration.

    `xi` is the step of the finite difference. The reference code uses 1e-6, which is too small for standardized inputs
    in float32. The direction is computed in float32, unless the model has dropout: its masks change predictions far
    more than the step does, so that bfloat16 gives nearly the same direction.
    """

    def __init__(self, *, radius: float, weight: float = 1.0, xi: float = 1e-2, iterations: int = 1) -> None:
        super().__init__()
        if radius <= 0 or iterations < 1:
            raise ValueError(f"radius must be above 0 and iterations at least 1, got {radius} and {iterations}")
        self.radius, self.weight, self.xi, self.iterations = radius, weight, xi, iterations
        self.generator: torch.Generator | None = None

    def forward(self, model: nn.Module, inputs: Tensor, logits: Tensor) -> Tensor:
        fixed = logits.detach().float().log_softmax(-1)
        with _frozen_statistics(model):
            with torch.autocast(inputs.device.type, enabled=_bfloat16_suffices(model, inputs.device.type)):
                direction = self.adversarial_direction(model, inputs, fixed)
            moved = model(inputs + self.radius * direction)
        return self.weight * _divergence(fixed, moved)

    def adversarial_direction(self, model: nn.Module, inputs: Tensor, fixed: Tensor) -> Tensor:
        """Return the unit vector of each sample in whose direction the prediction changes most."""
        direction = random_like(inputs, self.generator, lambda drawn: drawn.normal_(generator=self.generator))
        for _ in range(self.iterations):
            step = (self.xi * unit(direction)).requires_grad_()
            (direction,) = torch.autograd.grad(_divergence(fixed, model(inputs + step)), step)
        return unit(direction)


def _divergence(fixed: Tensor, logits: Tensor) -> Tensor:
    """Return KL(fixed || logits) of log-probabilities and logits: sum over classes and networks, mean over samples."""
    logs = logits.float().log_softmax(-1)
    return (fixed.exp() * (fixed - logs)).sum(-1).mean(-1).sum()


def unit(direction: Tensor) -> Tensor:
    """Return the vectors scaled to norm one per sample, without under- or overflow."""
    flat = direction.flatten(1)
    flat = flat / (flat.abs().amax(1, keepdim=True) + 1e-12)
    return (flat / (1e-6 + flat.square().sum(1, keepdim=True)).sqrt()).view_as(direction)


def _bfloat16_suffices(model: nn.Module, device: str) -> bool:
    """Return whether autocast to bfloat16 is on and the model has active dropout."""
    if not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) != torch.bfloat16:
        return False
    return any(m.training and m.p > 0 for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd))


@contextmanager
def _frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Normalize by the batch as in training, but keep the running statistics of batch normalization unchanged."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
