"""Random generators that depend on a seed and a purpose only, devices, threads, and the batch size of predictions."""

import hashlib
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from labelsieve.errors import InputError

MAX_BATCH = 1000  # samples predicted at once
MAX_VALUES = 12_288_000  # values in their inputs: 1,000 images of 64 x 64 pixels


def derive(seed: int, *purpose: str | int) -> int:
    """Return an independent seed for each purpose, e.g. derive(0, "batches", epoch)."""
    text = "/".join(str(word) for word in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a new CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


class RowsGenerator(torch.Generator):
    """A generator of a process that has some rows of a batch; `random_like` draws for the whole batch."""

    rows = slice(0, 0)  # of this process
    total = 0  # samples of the batch


def random_like(x: Tensor, random: torch.Generator | None, fill: Callable[[Tensor], Tensor]) -> Tensor:
    """Return random values in the shape of x (B, ...), written by `fill`, a function that draws from `random`.

    Each process of several draws the values of the whole batch, as a single process would, and takes those of its rows.
    """
    if not isinstance(random, RowsGenerator) or len(x) != random.rows.stop - random.rows.start:
        return fill(torch.empty_like(x))
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last and not x.is_contiguous() else torch.contiguous_format
    whole = torch.empty((random.total, *x.shape[1:]), dtype=x.dtype, device=x.device, memory_format=layout)
    return fill(whole)[random.rows]


def prediction_batch_size(shape: Sequence[int]) -> int:
    """Return how many samples of a shape are predicted at once: fewer for large images."""
    return min(MAX_BATCH, max(1, MAX_VALUES // math.prod(shape)))


def join_adjacent(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return flat views of the same memory, in which tensors that lie one after the other are one."""
    joined: list[torch.Tensor] = []
    end = -1  # address after the last view
    for tensor in tensors:
        same = joined and tensor.dtype == joined[-1].dtype and tensor.is_contiguous() and tensor.data_ptr() == end
        if same and tensor.untyped_storage().data_ptr() == joined[-1].untyped_storage().data_ptr():
            joined[-1] = joined[-1].as_strided((len(joined[-1]) + tensor.numel(),), (1,))
        else:
            joined.append(tensor.detach().flatten())
        end = tensor.data_ptr() + tensor.numel() * tensor.element_size()
    return joined


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of CPU threads of torch temporarily. The number changes how sums are rounded."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_optimizers() -> None:
    """Load the modules that torch loads for the first optimizer of a process, which takes seconds."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)


def usable_device(name: str) -> torch.device:
    """Return the device of this name, or raise InputError if it cannot hold a tensor."""
    try:
        zero = torch.zeros(1, device=name)
        zero.tolist()  # raises on devices without memory, such as "meta"
        return zero.device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used here; try --device cpu") from error


def is_usable(name: str) -> bool:
    """Return whether the device of this name can hold a tensor."""
    try:
        return bool(usable_device(name))
    except InputError:
        return False


def best_device() -> str:
    """Return "cuda" if a GPU is available, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def best_precision(device: str) -> str:
    """Return "bf16" if the device supports it in hardware, else "fp32"."""
    return "bf16" if device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def device_name(name: str) -> str:
    """Return the name of the hardware, e.g. that of the GPU model."""
    return torch.cuda.get_device_name(name) if name.startswith("cuda") else f"{platform.machine()} {name}"
