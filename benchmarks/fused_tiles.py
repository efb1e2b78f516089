"""Time the fused kernels of DenseNet(25, 12) with different tile sizes, warps and stages, on a GPU.

python benchmarks/fused_tiles.py [images per batch]

Prints the best settings of each kernel for a few layers. The settings in models/fused.py were chosen from them by hand.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import triton

from labelsieve.models import fused
from labelsieve.models.densenet import DenseNet

LAYERS = ((0, 0), (0, 1), (0, 3), (0, 6), (1, 0), (1, 6), (2, 0), (2, 6))  # block, layer
LAUNCHES = 20
Sizes = dict[str, int]


def microseconds(work: Callable[[], None]) -> float:
    """Return the microseconds of one launch, measured on a recorded sequence of launches."""
    with torch.cuda.stream(torch.cuda.Stream()):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            work()
    graph.replay()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    graph.replay()
    last.record()
    torch.cuda.synchronize()
    return 1000 * first.elapsed_time(last) / LAUNCHES


def every(**choices: tuple[int, ...]) -> Iterator[Sizes]:
    return (dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values()))


def best(title: str, function: str, candidates: Iterator[Sizes], work: Callable[[], None]) -> None:
    """Print the four fastest settings, each used in place of what a function of models/fused.py returns."""
    found: list[tuple[float, Sizes]] = []
    for sizes in candidates:
        with patch.object(fused, function, lambda *_, sizes=sizes: sizes):
            try:
                found.append((microseconds(work), sizes))
            except triton.runtime.errors.OutOfResources:
                continue
    found.sort(key=lambda entry: entry[0])
    print(title, *(f"{time:.1f} µs {tuple(sizes.values())}" for time, sizes in found[:4]), sep="  ", flush=True)


def a_pass(images: int) -> Any:
    """Run a batch forward and backward and return the pass, whose buffers can be used again."""
    network = DenseNet(3, 10).cuda()
    x = torch.randn(images, 3, 32, 32, device="cuda")
    kept: list[Any] = []
    original = fused.Pass.backward
    with (
        torch.autocast("cuda", torch.bfloat16),
        patch.object(fused.Pass, "backward", lambda self, gradient: (kept.append(self), original(self, gradient))[1]),
    ):
        fused.features(network, x).sum().backward()
    return kept[0]


def backward(journey: Any, block: int, unit: Any, dz: torch.Tensor) -> None:
    """Compute the gradients of a dense layer on the current stream."""
    journey.gradients = journey.new(journey.plan.real, dtype=torch.float32)
    journey._backward(block, unit, dz, None, add=True)


def main() -> None:
    journey = a_pass(int(sys.argv[1]) if sys.argv[1:] else 128)
    blocks = journey.plan.blocks()
    for block, layer in LAYERS:
        unit = blocks[block][layer]
        x = journey.buffers[block][:, unit.first :]
        best(
            f"conv_forward {block} {layer}",
            "_conv_sizes",
            every(BM=(64, 128, 256), BK=(16, 32, 64), num_warps=(4, 8), num_stages=(1, 2, 3)),
            lambda block=block, unit=unit, x=x: journey._conv(block, unit, x, unit.first - fused.SLOT),
        )
        journey.g = torch.empty_like(journey.buffers[block])
        images, height, width = journey.shape[0], *journey.size(block)[1:]
        dz = torch.randn(images, height + 2, width + 2, fused.SLOT, device="cuda").bfloat16()
        best(
            f"backward {block} {layer}",
            "_backward_sizes",
            every(BM=(16, 32, 64), CK=(64, 128), num_warps=(4, 8), num_stages=(1, 2, 3)),
            lambda block=block, unit=unit, dz=dz: backward(journey, block, unit, dz),
        )
    for block in (1, 2):
        unit = blocks[block - 1][-1]
        best(
            f"transition_forward {block}",
            "_transition_sizes",
            every(BM=(64, 128, 256), BK=(32, 64), BN=(32, 64, 128), num_warps=(4, 8), num_stages=(1, 2, 3)),
            lambda block=block, unit=unit: journey._transition(block, unit, 7 * fused.SLOT),
        )


if __name__ == "__main__":
    main()
