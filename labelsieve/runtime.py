"""Random generators that depend on a seed and a purpose only, devices, and the batch size of predictions."""

import hashlib
import math
import platform
from collections.abc import Sequence

import torch

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


def prediction_batch_size(shape: Sequence[int]) -> int:
    """Return how many samples of a shape are predicted at once: fewer for large images."""
    return min(MAX_BATCH, max(1, MAX_VALUES // math.prod(shape)))


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
