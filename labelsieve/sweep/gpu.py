"""Run several experiments at a time on one GPU: threads of one process, each with its own CUDA stream."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import torch

from labelsieve.errors import LabelsieveError, Stopped, unexpected
from labelsieve.runs.data import Shelf
from labelsieve.runs.execute import Prepared, first_batch, prepare, run
from labelsieve.runs.spec import Experiment
from labelsieve.sweep.sweep import POLL, Failures
from labelsieve.train.evaluate import predict_batches
from labelsieve.train.loop import StopFlag
from labelsieve.train.step import Learner

MOST_RUNS = 6  # seven at a time were no faster on an H200 (docs/log.md)
USABLE = 0.9  # share of the free memory that runs may take
OUT_OF_MEMORY = "out of GPU memory; use a smaller --batch or --at-once"


@dataclass(frozen=True)
class Fit:
    """Memory of one run and free memory of a GPU."""

    bytes_per_run: int
    free: int

    @property
    def count(self) -> int:
        """Number of runs that fit, at least 1."""
        return max(1, int(USABLE * self.free / self.bytes_per_run))

    def __str__(self) -> str:
        needed, free = self.bytes_per_run / 2**30, self.free / 2**30
        return f"one run needs about {needed:.1f} GiB of {free:.0f} GiB free: {self.count} fit"


def side_by_side(
    experiments: Sequence[Experiment],
    folders: Sequence[Path],
    report: Callable[[], None],
    at_once: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    shelf: Shelf | None = None,
) -> Failures:
    """Run all experiments as `sweep` describes, and return the reasons of those that failed.

    Results are the same as one after another. Without `at_once`, as many runs as fit, at most MOST_RUNS, run at a time.
    """
    shelf = shelf or Shelf()
    fit = _largest_fit(experiments, shelf)
    workers = min(at_once or MOST_RUNS, fit.count, len(experiments))
    say(f"{workers} runs at a time; {fit}")
    with StopFlag() as stop, ThreadPoolExecutor(workers) as pool:

        def run_one(experiment: Experiment, folder: Path) -> str | None:
            try:
                stop.check("before it began")
                run(experiment, folder, shelf=shelf, stop=stop)
            except Stopped:
                return "stopped"
            except LabelsieveError as error:
                return str(error)
            except torch.OutOfMemoryError:
                return OUT_OF_MEMORY
            except Exception as error:
                return unexpected(error)
            return None

        futures = {pool.submit(run_one, e, folder): e for e, folder in zip(experiments, folders, strict=True)}
        while wait(futures, timeout=POLL).not_done:
            report()
        stop.check("after the last complete epoch of every run")
    return {futures[future]: reason for future in futures if (reason := future.result()) is not None}


def _largest_fit(experiments: Sequence[Experiment], shelf: Shelf) -> Fit:
    """Measure every kind of experiment and return the fit of the largest."""
    kinds = {(e.method, e.criterion, e.options, e.model, e.batch, e.data): e for e in experiments}
    found = []
    for experiment in kinds.values():
        try:
            found.append(_measure_fit(prepare(experiment, shelf)))
        except Stopped:
            raise
        except Exception:
            continue  # its run fails, too, and says why
    return max(found, key=lambda fit: fit.bytes_per_run, default=Fit(1, 1))


def _measure_fit(prepared: Prepared) -> Fit:
    """Measure the memory of one step and one batch of predictions; a run needs it for eager and for recorded steps."""
    device = prepared.train.labels.device
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    networks = prepared.make_networks(0).train()
    learner = Learner(networks, prepared.method.to(device), prepared.training)
    index = torch.arange(min(prepared.training.batch, len(prepared.train)), device=device)
    learner.step(first_batch(prepared), prepared.train.labels[index], index)
    next(predict_batches(networks, prepared.train, prepared.training))
    taken = torch.cuda.max_memory_allocated(device) - before
    del networks, learner
    torch.cuda.empty_cache()
    return Fit(2 * taken, torch.cuda.mem_get_info(device)[0])
