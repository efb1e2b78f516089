"""Team: the processes that torchrun started for one `labelsieve train`.

The first process leads: it writes the run folder and announces each training. The others follow: they need the data,
but no run folder. Whatever ends the command, one line is printed, by the process that noticed it first.
"""

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from labelsieve.core.processes import Processes
from labelsieve.errors import InputError, LabelsieveError, Stopped, unexpected

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

TIMEOUT = timedelta(minutes=30)  # of one exchange; a process that ended is noticed at once
PAUSE = 0.05  # seconds between two looks for the next training
LOST = "another process of this training ended; run the same command again to resume"
NETWORK_WORDS = ("gloo", "NCCL", "Connection", "connection", "Broken pipe")  # in errors of an exchange


class ProcessLost(LabelsieveError):
    """Another process of the team ended."""


class Team:
    """The processes of one command, and the store through which the first announces trainings to the others."""

    def __init__(self, processes: Processes, store: "Store") -> None:
        self.processes = processes
        self.store = store
        self.announced = 0

    @property
    def leads(self) -> bool:
        """True for the first process."""
        return self.processes.rank == 0

    def announce(self, task: dict[str, Any] | None) -> None:
        """Tell the other processes to train; None: there is nothing more to do."""
        self.store.set(f"labelsieve/task/{self.announced}", json.dumps(task))
        self.announced += 1

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Yield what the first process announces, until there is nothing more to do."""
        while True:
            key = f"labelsieve/task/{self.announced}"
            while not self.store.check([key]):
                time.sleep(PAUSE)
            task = json.loads(self.store.get(key))
            if task is None:
                return
            self.announced += 1
            yield task

    def is_first_to_report(self) -> bool:
        """Return whether no other process has reported an error yet."""
        try:
            return bool(self.store.add("labelsieve/reported", 1) == 1)
        except RuntimeError:  # the first process held the store and is gone
            return self.processes.rank == 1


def is_launched() -> bool:
    """Return whether torchrun started this process as one of several."""
    return dist.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def teamed(device: str) -> Iterator[Team | None]:
    """Join the other processes that torchrun started, if there are any; of any error, one of them prints one line."""
    if not is_launched():
        yield None
        return
    from torch.distributed.rendezvous import rendezvous

    store, rank, count = next(rendezvous("env://", timeout=TIMEOUT))
    team = Team(Processes(rank, count), store)
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        backend = "nccl" if device.startswith("cuda") else "gloo"
        if backend == "nccl":
            _choose_gpu()
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=TIMEOUT)
        with _silent(not team.leads):
            yield team
        if team.leads:
            team.announce(None)
        dist.destroy_process_group()
        signal.signal(signal.SIGTERM, before)
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process ends anyway, and prints one line at most
        _report(team, _as_known(error))


def _choose_gpu() -> None:
    """Use the GPU whose number is that of this process among those of its machine."""
    place, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if place >= gpus:
        raise InputError(
            f"{os.environ['LOCAL_WORLD_SIZE']} processes need as many GPUs, this machine has {gpus}; use torchrun "
            f"--nproc-per-node {gpus}, or --device cpu"
        )
    torch.cuda.set_device(place)


def _stop(number: int, frame: FrameType | None) -> None:
    """Turn SIGTERM, by which torchrun ends the other processes after one has failed, into an error of one line."""
    raise Stopped(f"stopped by {signal.Signals(number).name}; run the same command again to resume", number)


@contextmanager
def _silent(silent: bool) -> Iterator[None]:
    """Print nothing and show no warnings."""
    if not silent:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _as_known(error: BaseException) -> BaseException:
    """Return the error of a lost process for a failed exchange, else the error itself."""
    failed = isinstance(error, dist.DistError) or any(word in str(error) for word in NETWORK_WORDS)
    if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError) and failed:
        return ProcessLost(LOST)
    return error


def _report(team: Team, error: BaseException) -> None:
    """Raise the error if this process leads and is the first to report one; else print it, if it is first, and exit."""
    first = team.is_first_to_report()
    if first and team.leads:
        raise error
    code, message = 1, LOST
    if isinstance(error, LabelsieveError):
        code, message = error.exit_code, str(error)
    elif isinstance(error, Exception):
        message = unexpected(error)
    elif isinstance(error, SystemExit):
        raise error
    if first:
        print(f"error: rank {team.processes.rank}: {message}", file=sys.stderr, flush=True)
    raise SystemExit(code) from None
