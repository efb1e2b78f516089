"""side_by_side: several experiments at a time on one GPU, in one process, each on a stream of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from labelsieve.errors import LabelsieveError, Stopped, unexpected
from labelsieve.runs.data import Shelf
from labelsieve.runs.execute import Prepared, first_batch, prepare, run
from labelsieve.runs.spec import Experiment
from labelsieve.train.evaluate import predictions
from labelsieve.train.loop import StopFlag
from labelsieve.train.step import Learner

POLL = 0.3  # seconds between two looks at the signals
MOST = 6  # seven at a time were no quicker on an H200 (docs/log.md)
RESERVE = 0.9  # of the free memory that runs may take


@dataclass(frozen=True)
class Fit:
    """How many runs fit on a GPU."""

    bytes_per_run: int
    free: int

    @property
    def count(self) -> int:
        return max(1, int(RESERVE * self.free / self.bytes_per_run))

    def __str__(self) -> str:
        takes, free = self.bytes_per_run / 2**30, self.free / 2**30
        return f"a run takes about {takes:.1f} GiB, {free:.0f} are free: {self.count} fit"


def measured_fit(prepared: Prepared) -> Fit:
    """Try one step and one batch of predictions; a run holds its memory twice, for eager and for recorded steps."""
    device = prepared.train.labels.device
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    networks = prepared.make_networks(0).train()
    learner = Learner(networks, prepared.method.to(device), prepared.training)
    index = torch.arange(min(prepared.training.batch, len(prepared.train)), device=device)
    learner.step(first_batch(prepared), prepared.train.labels[index], index)
    next(predictions(networks, prepared.train, prepared.training))
    taken = torch.cuda.max_memory_allocated(device) - before
    del networks, learner
    torch.cuda.empty_cache()
    return Fit(2 * taken, torch.cuda.mem_get_info(device)[0])


def costliest_fit(experiments: Sequence[Experiment], shelf: Shelf) -> Fit:
    """The measure of the kind of run that takes the most memory; runs that fail here are told of later."""
    kinds = {(e.method, e.criterion, e.options, e.model, e.batch, e.data): e for e in experiments}
    found = []
    for experiment in kinds.values():
        with suppress(Exception):
            found.append(measured_fit(prepare(experiment, shelf)))
    return max(found, key=lambda fit: fit.bytes_per_run, default=Fit(1, 1))


def side_by_side(
    experiments: Sequence[Experiment],
    folders: Sequence[Path],
    report: Callable[[], None],
    at_once: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[Experiment, str]:
    """Run all that are not done; returns why those failed that did. Every run is as it would be alone."""
    shelf = Shelf()
    fits = costliest_fit(experiments, shelf)
    workers = min(at_once or MOST, fits.count, len(experiments))
    say(f"{workers} runs at a time; {fits}")
    with StopFlag() as stop, ThreadPoolExecutor(workers) as pool:

        def one(experiment: Experiment, folder: Path) -> str | None:
            try:
                stop.check("before it began")
                run(experiment, folder, prepared=prepare(experiment, shelf), stop=stop)
            except Stopped:
                return "stopped"
            except LabelsieveError as error:
                return str(error)
            except torch.OutOfMemoryError:
                return "out of GPU memory: use a smaller --batch or --at-once"
            except Exception as error:
                return unexpected(error)
            return None

        futures = {pool.submit(one, e, folder): e for e, folder in zip(experiments, folders, strict=True)}
        while wait(futures, timeout=POLL).not_done:
            report()
        stop.check("with all runs at their last whole epoch")
    return {futures[future]: reason for future in futures if (reason := future.result()) is not None}
