"""bench_floor: how fast a machine could be at best, and where the time of a step goes."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], Any], device: torch.device, repeats: int = 10) -> float:
    """The median seconds of a piece of work, after a first go."""
    seconds = []
    for _ in range(repeats + 1):
        wait_for(device)
        began = time.perf_counter()
        work()
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def ceilings(device: torch.device, half: bool) -> tuple[float, float]:
    """Bytes per second of a large copy, read and written, and operations per second of a large matrix product."""
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.randint(100, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * size / timed(lambda: target.copy_(source), device)
    side = 8192 if device.type == "cuda" else 1024
    matrix = torch.randn(side, side, device=device, dtype=torch.bfloat16 if half else torch.float32)
    return bandwidth, 2 * side**3 / timed(lambda: matrix @ matrix, device)


def work_per_image(network: nn.Module, shape: tuple[int, ...], bytes_each: int) -> tuple[float, float]:
    """The fewest bytes that the layers with weights must move for one image, and their operations, forth and back.

    Forward, a layer reads its input and writes its output; backward, it reads both (the output's gradient in place of
    the output) and writes the input's gradient. Norms, activations and copies would cost nothing if all were fused.
    """
    moved = operations = 0.0

    def count(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        nonlocal moved, operations
        (x,) = inputs
        moved += bytes_each * (3 * x.numel() + 2 * output.numel())
        weights = next(layer.parameters())
        operations += 3 * 2 * weights.numel() * output.numel() / output.shape[1]

    hooks = [m.register_forward_hook(count) for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        network.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return moved, operations


def kernels_of_a_step(work: Callable[[], None], steps: int, device: torch.device) -> list[dict[str, Any]]:
    """Where the time of one recorded step goes: name, launches and microseconds of its kernels."""
    from torch.profiler import ProfilerActivity, profile

    work()
    wait_for(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        wait_for(device)
    events = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
    return [
        {"kernel": e.key[:90], "launches": e.count / steps, "us": round(e.device_time_total / steps, 1)}
        for e in events
        if e.device_time_total > 0
    ]
