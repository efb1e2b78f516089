"""Processes that train together: the batch of a step is the union of their batches, in the order of their ranks.

Every process computes the decisions, the loss and the new state of a method from the whole union, so that the state is
the same everywhere. Gradients are those of DistributedDataParallel, which averages over the processes: the gradient of
the union's loss reaches each process for its own rows, multiplied by the number of processes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from labelsieve.core.part import Predict


@dataclass(frozen=True)
class Processes:
    """This process and the number of those that train together; one alone by default.

    All processes must call the methods that communicate, in the same order: `union`, `sum` and `from_first`.
    """

    rank: int = 0
    count: int = 1

    def sizes(self, total: int) -> list[int]:
        """Return how many samples of a batch each process takes; of fewer samples than processes, each takes all."""
        if total < self.count:
            return [total] * self.count
        return [total // self.count + (rank < total % self.count) for rank in range(self.count)]

    def rows(self, total: int) -> slice:
        """Return which rows of a batch this process takes."""
        sizes = self.sizes(total)
        first = sum(sizes[: self.rank]) if total >= self.count else 0
        return slice(first, first + sizes[self.rank])

    def mean_factor(self, total: int) -> float:
        """Return the factor by which the mean over this process's rows becomes its part of the mean over the batch."""
        return self.count * self.sizes(total)[self.rank] / total if total >= self.count else 1.0

    def union(self, logits: Tensor, total: int) -> Tensor:
        """Return the logits (N, B, K) of a batch of `total` samples from those of the rows of each process."""
        if self.count == 1 or total < self.count:
            return logits
        return _union(logits, self.sizes(total), self.rank)

    def sum(self, counts: Tensor) -> Tensor:
        """Return a tensor summed over the processes."""
        if self.count > 1:
            counts = counts.clone()
            dist.all_reduce(counts)
        return counts

    def from_first(self, value: Any) -> Any:
        """Return the value of the first process; those of the others are ignored."""
        box = [value]
        if self.count > 1:
            dist.broadcast_object_list(box)
        return box[0]


_ALONE = Processes()


def all_processes() -> Processes:
    """Return the processes of torch.distributed; one alone if it is not initialized."""
    if dist.is_available() and dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size())
    return _ALONE


def union_batch(
    logits: Tensor, labels: Tensor, index: Tensor | None, rank: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return logits (N, B, K), labels (B) and index (B) of all processes, whose batches may differ in size."""
    sizes = [size for (size,) in _gather_numbers([len(labels)], logits.device)]
    logits = _union(logits.float(), sizes, rank)
    labels = torch.cat(_gather_rows(labels.long(), sizes))
    return logits, labels, None if index is None else torch.cat(_gather_rows(index.long(), sizes))


def first_places(index: Tensor) -> Tensor:
    """Return the places at which each value of index (B) appears first, in order."""
    values, inverse = index.unique(return_inverse=True)
    places = torch.arange(len(index), device=index.device)
    first = torch.full_like(values, len(index)).scatter_reduce_(0, inverse, places, "amin")
    return first.sort().values


def gather_predictions(predict: "Predict", processes: Processes) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the predictions that all processes make, each sample once, in the same order on every process.

    A process may predict a share of the samples or all of them. `predict` yields probabilities (N, B, K), labels (B)
    and index (B).
    """
    if processes.count == 1:
        yield from predict()
        return
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    mine = iter(predict())
    seen = torch.zeros(0, dtype=torch.bool)
    while True:
        batch = next(mine, None)
        device = device if batch is None else batch[0].device
        shape = [0, 0, 0] if batch is None else [len(batch[1]), batch[0].shape[0], batch[0].shape[2]]
        shapes = _gather_numbers([batch is None, *shape], device)
        if all(finished for finished, *_ in shapes):
            return
        sizes = [size for _, size, *_ in shapes]
        _, _, networks, classes = max(shapes, key=lambda shape: shape[2])
        if batch is None:
            no_labels = torch.zeros(0, dtype=torch.int64, device=device)
            batch = torch.zeros(networks, 0, classes, device=device), no_labels, no_labels
        probs = _gather_rows(batch[0].float().transpose(0, 1), sizes)
        labels, index = (_gather_rows(values.to(device).long(), sizes) for values in batch[1:])
        for each in zip(probs, labels, index, strict=True):
            places = each[2]
            if len(places):
                seen = _grown(seen.to(device), int(places.max()) + 1)
                new = ~seen[places]
                seen[places] = True
                yield each[0][new].transpose(0, 1), each[1][new], places[new]


class _Union(torch.autograd.Function):
    """Rows of all processes; the gradient of a process's own rows is multiplied by the number of processes.

    Every process computes the same loss from the union, so that its gradient needs no communication.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: Sequence[int], rank: int) -> Tensor:
        ctx.sizes, ctx.rank = sizes, rank
        return torch.cat(_gather_rows(rows, sizes))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        own = gradients[0].split(ctx.sizes)[ctx.rank]
        return own * len(ctx.sizes), None, None


def _union(logits: Tensor, sizes: Sequence[int], rank: int) -> Tensor:
    """Return the logits (N, B, K) of all processes, with gradients."""
    rows: Tensor = _Union.apply(logits.transpose(0, 1), sizes, rank)  # type: ignore[no-untyped-call]
    return rows.transpose(0, 1)


def _gather_rows(rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return the rows (size, ...) of every process, in one exchange of equal shapes."""
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def _gather_numbers(numbers: Sequence[int], device: torch.device) -> list[list[int]]:
    """Return the integers of every process."""
    mine = torch.tensor(numbers, dtype=torch.int64, device=device)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.stack(parts).tolist()


def _grown(flags: Tensor, size: int) -> Tensor:
    """Return the flags with False added up to a size."""
    return torch.cat([flags, flags.new_zeros(max(0, size - len(flags)))])
