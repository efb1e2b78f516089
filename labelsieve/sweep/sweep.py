"""Run many experiments, each in its own folder: in processes on CPUs, side by side on one GPU, or on a Ray cluster.

Experiments that are finished are skipped, interrupted ones are resumed, and a failed one does not stop the others. Each
process decodes the data of consecutive experiments once."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING

from labelsieve.errors import LabelsieveError, unexpected
from labelsieve.files import DONE, usable_cores
from labelsieve.runs.spec import Experiment

if TYPE_CHECKING:
    from labelsieve.runs.data import Shelf

POLL = 0.3  # seconds between two reports
DIED = "its process was killed, perhaps because memory ran out; run the same command again to resume"
Report = Callable[[int, int], None]  # finished runs, all runs
Failures = dict[Experiment, str]  # reason by experiment


def sweep(
    experiments: Sequence[Experiment],
    root: Path,
    report: Report = lambda done, total: None,
    at_once: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    on: str = "here",
    shelf: "Shelf | None" = None,
) -> Failures:
    """Run all experiments that are not finished, and return the reasons of those that failed.

    Args:
        experiments: Each runs in `folder_of(experiment, root)`.
        report: Called several times a second with the number of finished runs and of all runs.
        at_once: Runs at a time on one GPU; None for as many as fit.
        say: Called with lines for the user, such as how many runs fit on the GPU.
        on: "here", "ray", "ray:ADDRESS" or "ray://HOST:PORT"; see docs/sweeps.md.
        shelf: Datasets that this process has already decoded.
    """
    from labelsieve.runs.data import Shelf, refuse_changed_files

    shelf = shelf or Shelf()
    every = {experiment: folder_of(experiment, root) for experiment in experiments}
    done = {experiment: folder for experiment, folder in every.items() if (folder / DONE).exists()}
    refuse_changed_files(list(done.items()), shelf)
    left = [experiment for experiment in every if experiment not in done]
    failed: Failures = {}

    def report_count() -> None:
        report(count_done(list(every), root), len(every))

    if on != "here":
        from labelsieve.sweep.ray import on_ray

        failed |= on_ray(left, [every[e] for e in left], report_count, at_once, say, on)
        left = []
    on_gpu = [experiment for experiment in left if experiment.device.startswith("cuda")]
    on_cpu = [experiment for experiment in left if experiment not in on_gpu]
    if on_gpu:
        from labelsieve.sweep.gpu import side_by_side

        failed |= side_by_side(on_gpu, [every[e] for e in on_gpu], report_count, at_once, say, shelf)
    if on_cpu:
        failed |= _in_processes(on_cpu, root, report_count)
    report_count()
    return failed


def folder_of(experiment: Experiment, root: Path) -> Path:
    """Return the run folder of an experiment of a sweep."""
    return root / experiment.name()


def count_done(experiments: Sequence[Experiment], root: Path) -> int:
    """Return how many of the experiments are finished."""
    return sum((folder_of(experiment, root) / DONE).exists() for experiment in experiments)


def _in_processes(experiments: Sequence[Experiment], root: Path, report: Callable[[], None]) -> Failures:
    """Run as many experiments at a time as there are cores; repeat runs lost with a killed process one by one."""
    failed = _in_pool(experiments, root, report)
    for experiment in [e for e, reason in failed.items() if reason == DIED and len(experiments) > 1]:
        del failed[experiment]
        failed |= _in_pool([experiment], root, report)
    return failed


def _in_pool(experiments: Sequence[Experiment], root: Path, report: Callable[[], None]) -> Failures:
    """Run the experiments in one pool of processes."""
    workers = max(1, usable_cores() // max(experiment.threads for experiment in experiments))
    context = multiprocessing.get_context("spawn")
    _start_quiet_tracker()
    stopped = context.Event()
    with ProcessPoolExecutor(min(workers, len(experiments)), context, Worker.start, (stopped,)) as pool:
        futures = {pool.submit(Worker.run, experiment, root): experiment for experiment in experiments}
        try:
            while wait(futures, timeout=POLL).not_done:
                report()
        except BaseException:
            stopped.set()  # calls that a worker has already fetched cannot be cancelled
            _stop(pool, futures)
            raise
    return {futures[future]: reason for future in futures if (reason := _reason_of(future)) is not None}


def _start_quiet_tracker() -> None:
    """Start multiprocessing's resource tracker such that it does not warn if this process is killed."""
    before = os.environ.get("PYTHONWARNINGS")
    quiet = "ignore::UserWarning:multiprocessing.resource_tracker"
    os.environ["PYTHONWARNINGS"] = f"{before},{quiet}" if before else quiet
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


def _reason_of(future: Future[str | None]) -> str | None:
    """Return why a run failed; None if it did not."""
    try:
        return future.result()
    except BrokenProcessPool:
        return DIED


def _stop(pool: ProcessPoolExecutor, futures: dict[Future[str | None], Experiment]) -> None:
    """End the workers; their runs can be resumed."""
    for future in futures:
        future.cancel()
    for process in multiprocessing.active_children():
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


class Worker:
    """State of a worker process: when to stop, and the dataset of its last experiment, decoded."""

    stopped: Event | None = None
    shelf: "Shelf | None" = None
    loaded: object = None  # data and reading of the shelf's only dataset

    @classmethod
    def start(cls, stopped: Event) -> None:
        """Leave signals to the parent process, and end when it ends."""
        cls.stopped = stopped
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    @classmethod
    def run(cls, experiment: Experiment, root: Path) -> str | None:
        """Run an experiment; return the reason if it fails."""
        from labelsieve.runs import execute
        from labelsieve.runs.data import Shelf, reading_of

        if cls.stopped is not None and cls.stopped.is_set():
            return "stopped"
        try:
            wanted = (experiment.data, reading_of(experiment))
            if cls.shelf is None or cls.loaded != wanted:  # one dataset at a time, to bound the memory
                cls.shelf, cls.loaded = Shelf(), wanted
            execute.run(experiment, folder_of(experiment, root), shelf=cls.shelf)
        except LabelsieveError as error:
            return str(error)
        except Exception as error:
            return unexpected(error)
        return None


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, so that the run folders are free for the next command."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os._exit(1)
