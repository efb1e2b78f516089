"""Every random number is a function of a seed and a purpose, never of what was drawn before."""

import hashlib

import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A seed of its own for each purpose: derive(0, "batches", epoch)."""
    text = "/".join(str(word) for word in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A fresh CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
