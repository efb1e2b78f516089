"""Networks: several networks as one module, with a leading network axis."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from labelsieve.randomness import derive


class Networks(nn.ModuleList):
    """N networks that see the same inputs: (B, ...) -> (N, B, K)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self])


def make_networks(make_one: Callable[[], nn.Module], count: int, seed: int, number: int = 0) -> Networks:
    """Networks whose first weights depend on the seed, the number of the round and their place alone."""
    networks = Networks()
    with torch.random.fork_rng(devices=[]):
        for place in range(count):
            torch.manual_seed(derive(seed, "weights", number, place))
            networks.append(make_one())
    return networks
