"""What training is told: the samples and the settings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Samples(Protocol):
    """Labelled data as training sees it."""

    @property
    def labels(self) -> Tensor:
        """(n) observed"""

    @property
    def clean(self) -> Tensor | None:
        """(n) true, where known: only metrics read it"""

    @property
    def num_classes(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """of one sample"""

    def __len__(self) -> int: ...

    def staged(self, order: Tensor, size: int) -> Iterator[int]:
        """The size of each batch of this order, once `inputs` can give it."""

    def inputs(self, index: Tensor) -> Tensor:
        """What the networks see of these samples, the batch that was staged last, (B, ...)."""


def stepped(epochs: int, drops: tuple[float, ...] = (0.5, 0.75), factor: float = 0.2) -> Callable[[int], float]:
    """Times a factor whenever a share of the epochs is over; the paper's: 0.2 at a half and three quarters."""
    return lambda epoch: factor ** sum(epoch + 1e-9 >= drop * epochs for drop in drops)


@dataclass(frozen=True)
class Training:
    """How the networks learn: the paper's settings, but for what depends on the data."""

    epochs: int = 100
    batch: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    drops: tuple[float, ...] = (0.5, 0.75)  # shares of the epochs after which the learning rate drops
    drop_factor: float = 0.2
    drop_last: bool = False  # leave out an incomplete last batch
    choose: str = "best"  # the epoch to deliver: the best on the held-out split, where there is one, or the last
    sampler: str = "permutation"  # each sample once an epoch, or independent: each batch drawn by itself
    forward: str = "one"  # learn from the pass that decides, or second: from another one, over the kept samples alone
    augment: str = ""  # crop4,flip,cutout8
    seed: int = 0
    precision: str = "fp32"  # or bf16, by autocast
    recorded: bool = True  # steps become CUDA graphs, where there is a GPU

    def autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def first_choice(self) -> int:
        """The first epoch that may be delivered, counted from 1: from then on the learning rate is at its lowest."""
        return 1 + sum(self.lr_at(epoch) > self.lr_at(self.epochs - 1) for epoch in range(self.epochs))

    def lr_at(self, epoch: int) -> float:
        return self.lr * stepped(self.epochs, self.drops, self.drop_factor)(epoch)
