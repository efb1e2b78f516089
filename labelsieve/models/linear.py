"""LinearHead: multinomial logistic regression on features, and its fit by L-BFGS, several heads at a time.

The loss of a head is the mean cross-entropy to its targets plus l2 / 2 times the sum of its squared weights, on
standardised features. It is convex: the result depends on the data alone. Targets may be probabilities.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from labelsieve.runtime import torch_threads

MAX_STEPS = 200
TOLERANCE = 1e-3  # of the gradient, relative to that of heads that are zero
MANY_PRODUCTS = 10**9  # multiplications per step from which several threads are used
NORM_EPS = nn.BatchNorm1d(1).eps
MEMORY = 10  # earlier steps from which L-BFGS estimates the curvature
CPU_CHUNK, CHUNK = 2**20, 2**25  # logits computed at a time: 4 MB stay in a CPU's cache, a GPU needs fewer launches
Targets = Tensor | Callable[[slice], Tensor]


class LinearHead(nn.Module):
    """Standardise the features and apply a linear layer: (B, F) -> (B, K)."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        features = math.prod(shape)
        self.norm = nn.BatchNorm1d(features, affine=False)
        self.linear = nn.Linear(features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x.flatten(1)))

    @torch.no_grad()
    def assign(self, mean: Tensor, scale: Tensor, head: Tensor) -> None:
        """Set the parameters: mean and scale (F) of the features, and weights and biases (F + 1, K)."""
        assert self.norm.running_mean is not None and self.norm.running_var is not None
        self.norm.running_mean.copy_(mean)
        self.norm.running_var.copy_((scale.square() - self.norm.eps).clamp(min=0))
        self.linear.weight.copy_(head[:-1].T)
        self.linear.bias.copy_(head[-1])

    @torch.no_grad()
    def folded(self) -> tuple[Tensor, Tensor]:
        """Return weights (K, F) and biases (K) of an equal linear layer without standardisation before it."""
        assert self.norm.running_mean is not None and self.norm.running_var is not None
        weight = self.linear.weight * (self.norm.running_var + self.norm.eps).rsqrt()
        return weight, self.linear.bias - weight @ self.norm.running_mean


def standardise(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return features (n, F) with mean 0 and deviation 1 per column, and the mean and scale (F); constants become 0."""
    variance, mean = torch.var_mean(features, 0, correction=0)
    constant = variance <= (1e-6 * mean).square()
    scale = torch.where(constant, torch.inf, (variance + NORM_EPS).sqrt())
    return (features - mean) / scale, mean, scale


def fit_heads(x: Tensor, targets: Targets, used: Tensor, l2: float, start: Tensor | None = None) -> Tensor:
    """Fit S heads to the same samples, each to those that it uses.

    Args:
        x: (n, F) standardised features.
        targets: (n, K) probabilities of the classes, or (n, S, K) if they differ between the heads; or a function that
            returns these of some rows, if all of them would need too much memory.
        used: (S, n) bool: samples that each head is fitted to.
        l2: strength of the regularisation.
        start: (S, F + 1, K) heads to start from.

    Returns:
        (S, F + 1, K) weights, and biases in the last row.
    """
    classes = _rows_of(targets, slice(0, 1)).shape[-1]
    heads = x.new_zeros(len(used), x.shape[1] + 1, classes) if start is None else start.clone()
    share = (used / used.sum(1, keepdim=True)).T  # (n, S)
    size = max(1, (CPU_CHUNK if x.device.type == "cpu" else CHUNK) // heads[:, 0].numel())
    cuts = [slice(first, first + size) for first in range(0, len(x), size)]
    heads.requires_grad_(True)
    solver = torch.optim.LBFGS(
        [heads],
        max_iter=MAX_STEPS,
        history_size=MEMORY,
        line_search_fn="strong_wolfe",
        tolerance_grad=TOLERANCE * _gradient_at_zero(x, targets, share, cuts),
        tolerance_change=0.0,
    )

    def loss() -> Tensor:
        solver.zero_grad()
        total = l2 / 2 * heads[:, :-1].square().sum()
        total.backward()
        for cut in cuts:
            log_probs = head_logits(x[cut], heads).log_softmax(-1)
            part = -(share[cut, :, None] * _rows_of(targets, cut) * log_probs).sum()
            part.backward()
            total = total.detach() + part.detach()
        return total

    # on busy cores, threads wait for each other at every vector operation
    few = x.shape[0] * heads[:, :-1].numel() < MANY_PRODUCTS
    with torch_threads(1 if few else torch.get_num_threads()):
        solver.step(loss)
    return heads.detach()


def _rows_of(targets: Targets, cut: slice) -> Tensor:
    """Return the targets of some rows, (m, 1, K) or (m, S, K)."""
    rows = targets[cut] if isinstance(targets, Tensor) else targets(cut)
    return rows if rows.dim() == 3 else rows.unsqueeze(1)


def _gradient_at_zero(x: Tensor, targets: Targets, share: Tensor, cuts: list[slice]) -> float:
    """Return the largest component of the gradient of heads that are zero, as a scale for the tolerance."""
    gradient = torch.zeros((), device=x.device)
    for cut in cuts:
        rows = _rows_of(targets, cut)
        error = share[cut].unsqueeze(-1) * (rows - 1 / rows.shape[-1])  # (m, S, K)
        gradient = gradient + x[cut].T @ error.flatten(1)
    return float(gradient.abs().max())


def head_logits(x: Tensor, heads: Tensor) -> Tensor:
    """Return the logits (n, S, K) of S heads for standardised features (n, F), in one matrix product."""
    count, rows, classes = heads.shape
    weights = heads[:, :-1].permute(1, 0, 2).reshape(rows - 1, count * classes)
    return (x @ weights).view(len(x), count, classes) + heads[:, -1]


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Return labels (n) as targets (n, K)."""
    return torch.zeros(len(labels), num_classes, device=labels.device).scatter_(1, labels.long()[:, None], 1.0)
