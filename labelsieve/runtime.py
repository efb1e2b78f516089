"""Every random number is a function of a seed and a purpose, never of what was drawn before."""

import hashlib
import math
import platform
from collections.abc import Sequence

import torch

from labelsieve.errors import InputError


def derive(seed: int, *purpose: str | int) -> int:
    """A seed of its own for each purpose: derive(0, "batches", epoch)."""
    text = "/".join(str(word) for word in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A fresh CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


MOST = 1000  # samples that are predicted at a time
MOST_NUMBERS = 12_288_000  # in them: 1,000 images of 64 x 64 pixels


def at_a_time(shape: Sequence[int]) -> int:
    """How many samples of a shape are predicted at a time: fewer of large images."""
    return min(MOST, max(1, MOST_NUMBERS // math.prod(shape)))


def usable_device(name: str) -> torch.device:
    """The device of this name, tried once."""
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used here; try --device cpu") from error


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def best_precision(device: str) -> str:
    """bf16 where the hardware multiplies it."""
    return "bf16" if device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def device_name(name: str) -> str:
    return torch.cuda.get_device_name(name) if name.startswith("cuda") else f"{platform.machine()} {name}"
