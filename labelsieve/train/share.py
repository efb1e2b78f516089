"""One training in several processes: the share of each in a batch, and batch-norm over the whole batch."""

import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labelsieve.core.processes import Processes
from labelsieve.train.settings import Samples

DDP_IGNORE = "_ddp_params_and_buffers_to_ignore"  # attribute of a module: what DistributedDataParallel does not send
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def staged_share(data: Samples, order: Tensor, size: int, processes: Processes) -> Iterator[int]:
    """Yield the size of each batch of this order as soon as `data.inputs` can return the rows of this process."""
    if processes.count == 1:
        yield from data.staged(order, size)
        return
    complete = len(order) // size * size
    for batches in (order[:complete].view(-1, size), order[complete:].view(1, -1)):
        rows = processes.rows(batches.shape[1])
        if batches.numel():
            for _ in data.staged(batches[:, rows].flatten(), rows.stop - rows.start):
                yield batches.shape[1]


class DistributedNetworks:
    """Networks in DistributedDataParallel, with gradients and batch-norm statistics over the batches of all processes.

    The batch-norms of the networks are replaced in place; frozen ones and those of other classes are left as they are.
    """

    def __init__(self, networks: nn.Module, processes: Processes) -> None:
        self.processes = processes
        self.plain = [module for module in networks.modules() if type(module) in NORMS]
        self.classes = [type(module) for module in self.plain]
        self.model = networks
        if processes.count == 1:
            return
        device = next(networks.parameters()).device
        self.synced = nn.SyncBatchNorm if device.type == "cuda" else SyncedNorm
        for module in networks.modules():
            if getattr(module, "fused", False):
                setattr(module, "fused", False)  # noqa: B010  # the fused kernels normalise by the rows of one process
        self._synchronise(True)
        setattr(networks, DDP_IGNORE, [name for name, _ in networks.named_buffers()])  # equal on every process
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")  # images of one channel
        self.model = DistributedDataParallel(networks, device_ids=[device] if device.type == "cuda" else None)

    def __call__(self, inputs: Tensor, total: int) -> Tensor:
        """Return the logits of this process's rows of a batch of `total` samples, (N, B, K)."""
        whole = total < self.processes.count  # every process has the whole batch
        if whole:
            self._synchronise(False)
        logits: Tensor = self.model(inputs)
        if whole:
            self._synchronise(True)
        return logits

    def _synchronise(self, on: bool) -> None:
        """Let the batch-norms normalise over all processes, or over the rows of this one."""
        for module, plain in zip(self.plain, self.classes, strict=True):
            module.__class__ = self.synced if on else plain
            setattr(module, "process_group", None)  # noqa: B010  # of SyncBatchNorm: all processes


class SyncedNorm(nn.modules.batchnorm._BatchNorm):
    """Batch-norm by the mean and variance over the rows of all processes; torch.nn.SyncBatchNorm needs a GPU."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        count, mean, variance = _moments_of_all(x, axes)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            self._update(count, mean.detach(), variance.detach())
        shape = [1, -1, *[1] * (x.dim() - 2)]
        scale = (variance + self.eps).rsqrt()
        if not self.affine:
            return (x - mean.view(shape)) * scale.view(shape)
        return (x - mean.view(shape)) * (scale * self.weight).view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _update(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics in place, as torch does: with the unbiased variance."""
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.mul_(1 - share).add_(mean, alpha=share)
        self.running_var.mul_(1 - share).add_(unbiased, alpha=share)


def _moments_of_all(x: Tensor, axes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return number of values, mean and variance of each channel over the rows of all processes, with gradients."""
    variance, mean = torch.var_mean(x, axes, correction=0)
    own = torch.stack([torch.full_like(mean, x.numel() // x.shape[1]), mean, variance])  # (3, C)
    slots = torch.zeros(dist.get_world_size(), 1, 1, dtype=x.dtype, device=x.device)
    slots[dist.get_rank()] = 1
    counts, means, variances = _Sum.apply(slots * own).unbind(1)  # type: ignore[no-untyped-call]  # (W, C) each
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    return count, mean, (counts * (variances + (means - mean).square())).sum(0) / count


class _Sum(torch.autograd.Function):
    """Sum over all processes, which is its own gradient."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total
