"""Processes that train together, each on a part of the data: torch.distributed, where it is in use."""

import torch
from torch import Tensor


def processes() -> int:
    """How many processes train together."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1


def summed_over_processes(sums: Tensor) -> Tensor:
    """Whole numbers of all processes that train together, added up; every process must ask."""
    if processes() > 1:
        sums = sums.clone()
        torch.distributed.all_reduce(sums)
    return sums
