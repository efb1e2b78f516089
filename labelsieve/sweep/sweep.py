"""sweep: many experiments, several at a time, each in its own folder: on a GPU side by side, on CPUs in processes."""

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

from labelsieve.errors import LabelsieveError, unexpected
from labelsieve.runs.spec import Experiment

_ended: Event | None = None  # of a worker: set when no further run may begin
POLL = 0.3  # seconds between two looks at the folders
DIED = "its process was ended from outside, perhaps for want of memory; the same command goes on"


Report = Callable[[int, int], None]


def sweep(
    experiments: Sequence[Experiment],
    root: Path,
    report: Report = lambda done, total: None,
    at_once: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    on: str = "here",
) -> dict[Experiment, str]:
    """Run all that are not done; returns why those failed that did.

    `report` is told now and then how many runs of how many are done, `say` how many run at a time.
    `on`: here, ray, ray:ADDRESS or ray://HOST:PORT; docs/sweeps.md says what each means.
    """
    every = {experiment: folder_of(experiment, root) for experiment in experiments}
    left = [experiment for experiment, folder in every.items() if not (folder / "done").exists()]
    if len(left) < len(every):
        from labelsieve.runs.data import refuse_changed_files

        refuse_changed_files([(experiment, folder) for experiment, folder in every.items() if experiment not in left])
    failed: dict[Experiment, str] = {}

    def tell() -> None:
        report(runs_done(list(every), root), len(every))

    if on != "here":
        from labelsieve.sweep.ray import on_ray

        failed |= on_ray(left, [folder_of(e, root) for e in left], tell, at_once, say, on)
        left = []
    on_gpu = [experiment for experiment in left if experiment.device.startswith("cuda")]
    on_cpu = [experiment for experiment in left if experiment not in on_gpu]
    if on_gpu:
        from labelsieve.sweep.gpu import side_by_side

        failed |= side_by_side(on_gpu, [folder_of(e, root) for e in on_gpu], tell, at_once, say)
    if on_cpu:
        failed |= in_processes(on_cpu, root, tell)
    tell()
    return failed


def in_processes(experiments: Sequence[Experiment], root: Path, report: Callable[[], None]) -> dict[Experiment, str]:
    """As many at a time as the cores allow; when a process dies, those that it took along are run again, one by one."""
    failed = in_pool(experiments, root, report)
    for experiment in [e for e, reason in failed.items() if reason == DIED and len(experiments) > 1]:
        del failed[experiment]
        failed |= in_pool([experiment], root, report)
    return failed


def in_pool(experiments: Sequence[Experiment], root: Path, report: Callable[[], None]) -> dict[Experiment, str]:
    workers = max(1, (os.cpu_count() or 1) // max(experiment.threads for experiment in experiments))
    context = multiprocessing.get_context("spawn")
    quiet_tracker()
    ended = context.Event()
    with ProcessPoolExecutor(min(workers, len(experiments)), context, _start_worker, (ended,)) as pool:
        futures = {pool.submit(_run_one, experiment, root): experiment for experiment in experiments}
        try:
            while wait(futures, timeout=POLL).not_done:
                report()
        except BaseException:
            ended.set()  # calls that a worker has taken already cannot be cancelled
            _stop(pool, futures)
            raise
    return {futures[future]: reason for future in futures if (reason := outcome(future)) is not None}


def quiet_tracker() -> None:
    """Start the process that tidies up should this one be killed, such that it does so without warning of it."""
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


def outcome(future: Future[str | None]) -> str | None:
    """Why a run failed, if it did."""
    try:
        return future.result()
    except BrokenProcessPool:
        return DIED


def folder_of(experiment: Experiment, root: Path) -> Path:
    return root / experiment.name()


def runs_done(experiments: Sequence[Experiment], root: Path) -> int:
    return sum((folder_of(experiment, root) / "done").exists() for experiment in experiments)


def _run_one(experiment: Experiment, root: Path) -> str | None:
    from labelsieve.runs.execute import run

    if _ended is not None and _ended.is_set():
        return "stopped"
    try:
        run(experiment, folder_of(experiment, root))
    except LabelsieveError as error:
        return str(error)
    except Exception as error:
        return unexpected(error)
    return None


def _start_worker(ended: Event) -> None:
    """Leave signals to the parent, know where it says that all is over, and end with it."""
    global _ended
    _ended = ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """A parent that was killed can stop nobody; its folders must be free for the next."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os._exit(1)


def _stop(pool: ProcessPoolExecutor, futures: dict[Future[str | None], Experiment]) -> None:
    """End the workers; their folders stay whole and are gone on with next time."""
    for future in futures:
        future.cancel()
    for process in multiprocessing.active_children():
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)
