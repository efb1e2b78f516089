"""Several networks as one module, their initialisation from a seed, and building blocks that all networks share."""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from labelsieve.runtime import derive, random_like

INIT_LOCK = threading.Lock()  # torch's initialisers draw from one generator per process


class Networks(nn.ModuleList):
    """N networks that are given the same inputs: (B, ...) -> (N, B, K)."""

    def forward(self, x: Tensor) -> Tensor:
        logits = [network(x) for network in self]
        return logits[0].unsqueeze(0) if len(logits) == 1 else torch.stack(logits)


def make_networks(make_one: Callable[[], nn.Module], count: int, seed: int, number: int = 0) -> Networks:
    """Return `count` networks whose initial weights depend only on seed, number of the round (from 0) and position."""
    networks = Networks()
    with INIT_LOCK, torch.random.fork_rng(devices=[]):
        for position in range(count):
            torch.manual_seed(derive(seed, "weights", number, position))
            networks.append(make_one())
    return networks


def make_placeholder(make_one: Callable[[], nn.Module]) -> nn.Module:
    """Return a network whose initial weights do not matter, without affecting networks made in other threads."""
    with INIT_LOCK, torch.random.fork_rng(devices=[]):
        return make_one()


def multiplications(network: nn.Module, shape: Sequence[int]) -> int:
    """Return the number of multiplications of convolutions and linear layers in a forward pass of one sample."""
    counts: list[int] = []

    def count(layer: nn.Module, inputs: object, output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        counts.append(output.numel() * weight[0].numel())

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        network.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return sum(counts)


def first_network_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of the first network from the state dict of several."""
    return {name.removeprefix("0."): tensor for name, tensor in weights.items() if name.startswith("0.")}


def move_to_device(networks: Networks, device: torch.device, precision: str) -> Networks:
    """Move networks to a device; on a GPU use the channels-last layout unless the fused kernels apply."""
    fused = precision == "bf16" and any(getattr(network, "fused", False) for network in networks)
    if device.type == "cuda" and not fused:
        return networks.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return networks.to(device)


class _FrozenNorm(nn.BatchNorm2d):
    """Batch-norm that uses its running statistics in training, too."""

    def train(self, mode: bool = True) -> "_FrozenNorm":
        return super().train(False)


def freeze_norms(network: nn.Module) -> nn.Module:
    """Let all batch-norms of a pretrained network use and keep their statistics; their weights are still trained."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = _FrozenNorm
            module.eval()
    return network


def fold_norms(network: nn.Module) -> nn.Module:
    """Return a copy for inference in which batch-norms are part of the convolutions before them, where that is exact.

    A batch-norm that a module registers right after a convolution must be applied right after it.
    """
    folded = copy.deepcopy(network).eval()
    for module in list(folded.modules()):
        for (first, conv), (second, norm) in pairwise(list(module.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(module, first, fuse_conv_bn_eval(conv, norm))
                setattr(module, second, nn.Identity())
    return folded


class Dropout(nn.Dropout):
    """Element-wise dropout; masks drawn from a `generator` of the run let the run be repeated and resumed."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.generator is None:
            return super().forward(x)
        keep = random_like(x, self.generator, lambda mask: mask.bernoulli_(1 - self.p, generator=self.generator))
        return x * keep.div_(1 - self.p)


def hidden_layer(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a linear layer followed by batch-norm, ReLU and dropout 0.5."""
    return [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), Dropout(0.5)]
