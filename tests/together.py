"""Run a function in several processes that train together (gloo), and return what each of them returns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def together(count: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call a function in `count` forked processes; return its results by rank."""
    folder.mkdir(exist_ok=True)
    mp.start_processes(_one, (count, folder, function, arguments), nprocs=count, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


def _one(rank: int, count: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)  # threads of the parent do not exist in a forked process
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    torch.save(function(*arguments), folder / f"{rank}.pt")
    dist.destroy_process_group()
