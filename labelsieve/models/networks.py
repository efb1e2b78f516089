"""Dropout that draws from a generator of the run's own."""

import threading
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelsieve.runtime import derive


class Dropout(nn.Module):
    """Element-wise dropout. A trainer sets `generator`, so that other runs and draws do not change the masks."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if self.generator is None:
            return F.dropout(x, self.rate)
        keep = torch.empty_like(x).bernoulli_(1 - self.rate, generator=self.generator)
        return x * keep.div_(1 - self.rate)


INITIALISING = threading.Lock()  # torch's initialisers draw from one generator for the whole process


class Networks(nn.ModuleList):
    """N networks that see the same inputs: (B, ...) -> (N, B, K)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self])


def make_networks(make_one: Callable[[], nn.Module], count: int, seed: int, number: int = 0) -> Networks:
    """Networks whose first weights depend on the seed, the number of the round and their place alone."""
    networks = Networks()
    with INITIALISING, torch.random.fork_rng(devices=[]):
        for place in range(count):
            torch.manual_seed(derive(seed, "weights", number, place))
            networks.append(make_one())
    return networks


def spare(make_one: Callable[[], nn.Module]) -> nn.Module:
    """A network whose weights do not matter, made without disturbing networks that are being made elsewhere."""
    with INITIALISING, torch.random.fork_rng(devices=[]):
        return make_one()


def first_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the first of several networks, named as its own."""
    return {name.removeprefix("0."): tensor for name, tensor in weights.items() if name.startswith("0.")}


def put_on(networks: Networks, device: torch.device, precision: str) -> Networks:
    """On a GPU, convolutions are fastest with channels last; fused kernels have a layout of their own."""
    fused = precision == "bf16" and any(getattr(network, "fused", False) for network in networks)
    if device.type == "cuda" and not fused:
        return networks.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return networks.to(device)
