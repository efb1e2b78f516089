"""The input of a training: labelled samples and settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from labelsieve.core.processes import Processes

ONE_PROCESS = Processes()


class Samples(Protocol):
    """Labelled data that can be trained on or evaluated."""

    @property
    def labels(self) -> Tensor:
        """Observed labels, (n)."""

    @property
    def clean(self) -> Tensor | None:
        """True labels, (n), or None if unknown; only metrics read them."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""

    def __len__(self) -> int: ...

    def staged(self, order: Tensor, size: int) -> Iterator[int]:
        """Yield the size of each batch of this order as soon as `inputs` can return the batch."""

    def inputs(self, index: Tensor) -> Tensor:
        """Return the network inputs of the batch that was staged last, (B, ...)."""


@dataclass(frozen=True)
class Training:
    """Settings of a training; the defaults are those of the paper."""

    epochs: int = 100
    batch: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    drops: tuple[float, ...] = (0.5, 0.75)  # fractions of the epochs after which the learning rate drops
    drop_factor: float = 0.2
    drop_last: bool = False  # leave out an incomplete last batch
    choose: str = "best"  # epoch to deliver: "best" on the held-out split if there is one, or "last"
    sampler: str = "permutation"  # each sample once per epoch, or "independent": every batch is drawn separately
    forward: str = "one"  # learn from the pass that selects, or "second": from another pass over the kept samples
    augment: str = ""  # such as "crop4,flip,cutout8"
    seed: int = 0
    precision: str = "fp32"  # or "bf16", by autocast
    recorded: bool = True  # on a GPU, run steps as CUDA graphs

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the autocast context of this precision."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate in an epoch, counted from 0."""
        drops = sum(epoch + 1e-9 >= drop * self.epochs for drop in self.drops)
        return self.lr * self.drop_factor**drops

    def first_deliverable_epoch(self) -> int:
        """Return the first epoch with the final learning rate, counted from 1; earlier ones are never delivered."""
        return 1 + sum(self.lr_at(epoch) > self.lr_at(self.epochs - 1) for epoch in range(self.epochs))
