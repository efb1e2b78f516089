"""Show a sweep while it runs: finished, running and waiting runs, their epochs, and the estimated time left.

Progress is read from the run folders, so it works for processes, threads and resumed sweeps alike."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from labelsieve.files import DONE
from labelsieve.runs.execute import epochs_of, rounds_of
from labelsieve.runs.spec import Experiment
from labelsieve.sweep.sweep import Failures, folder_of, sweep
from labelsieve.text import duration

if TYPE_CHECKING:
    from labelsieve.runs.data import Shelf

LOOK_EVERY = 1.0  # seconds between two readings of the folders
LINE_EVERY = 30.0  # seconds between two lines where there is no terminal; a finished run prints one at once
MOST_SHOWN = 8  # running experiments on a terminal


def run_all(
    experiments: Sequence[Experiment],
    root: Path,
    at_once: int | None = None,
    on: str = "here",
    shelf: "Shelf | None" = None,
) -> Failures:
    """Run a sweep with its progress on the terminal; print and return the reasons of runs that failed."""
    console = Console(stderr=True)
    context: AbstractContextManager[Screen | Lines] = Screen(console) if console.is_terminal else nullcontext(Lines())
    with context as display:
        watch = _Watch(experiments, root, display.show)
        if line := describe_resumed(watch.experiments, root):
            display.say(line)
        failed = sweep(experiments, root, lambda done, total: watch.look(), at_once, display.say, on, shelf)
        watch.look(last=True)
    for experiment, reason in failed.items():
        print(f"failed: {title(experiment)}: {reason}", file=sys.stderr)
    return failed


@dataclass(frozen=True)
class Standing:
    """Progress of a sweep."""

    runs: int
    done: int
    running: dict[str, str]  # epoch by title of the experiment
    epochs: int  # of all runs
    epochs_done: int

    def __str__(self) -> str:
        waiting = self.runs - self.done - len(self.running)
        return f"{self.done} of {self.runs} runs done, {len(self.running)} running, {waiting} waiting"


def standing(experiments: Sequence[Experiment], root: Path, since: float) -> Standing:
    """Read the progress of a sweep from its run folders; a run counts as running if it was locked after `since`."""
    done, epochs_done, running = 0, 0, {}
    for experiment in experiments:
        folder = folder_of(experiment, root)
        if (folder / DONE).exists():
            done += 1
            epochs_done += epochs_of(experiment)
            continue
        passed = _epochs_recorded(folder)
        epochs_done += passed
        if _locked_since(folder, since):
            running[title(experiment)] = position(experiment, passed)
    return Standing(len(experiments), done, running, sum(map(epochs_of, experiments)), epochs_done)


def title(experiment: Experiment) -> str:
    """Return a short description of a run, its method as on the command line: mentornet-prop:ol:lam=0.5."""
    noise = f", {experiment.noise} {100 * experiment.rate:g}%" if experiment.noise else ""
    options = (f"{name}={value}" for name, value in experiment.options)
    method = ":".join(filter(None, (experiment.method, experiment.criterion, *options)))
    return f"{Path(experiment.data).name}{noise}, {method}, seed {experiment.seed}"


def position(experiment: Experiment, passed: int) -> str:
    """Format the number of epochs that a run has passed: round 2/3, epoch 30/100."""
    number, epoch = divmod(passed, experiment.epochs)
    rounds = rounds_of(experiment)
    return (f"round {number + 1}/{rounds}, " if rounds > 1 else "") + f"epoch {epoch}/{experiment.epochs}"


def _epochs_recorded(folder: Path) -> int:
    """Return the number of epochs in the record of a run."""
    try:
        return (folder / "record.jsonl").read_bytes().count(b'"event": "epoch"')
    except OSError:
        return 0


def describe_resumed(experiments: Sequence[Experiment], root: Path) -> str:
    """Return a line with the number of interrupted runs that will be resumed; empty if there are none."""
    folders = [folder_of(experiment, root) for experiment in experiments]
    count = sum(not (folder / DONE).exists() and _epochs_recorded(folder) > 0 for folder in folders)
    return f"resuming {count} of {len(folders)} runs from their last epochs" if count else ""


def _locked_since(folder: Path, since: float) -> bool:
    """Return whether the lock of a run folder names a process and was written after `since`."""
    try:
        lock = (folder / "lock").stat()
    except OSError:
        return False
    return lock.st_size > 0 and lock.st_mtime >= since - 1  # the clock of a file system may lag


def seconds_left(epochs: int, at_start: int, now: int, elapsed: float) -> float | None:
    """Estimate the seconds left from the epochs passed since the start; None before the first one."""
    return elapsed * (epochs - now) / (now - at_start) if now > at_start else None


class _Watch:
    """Reads the run folders of a sweep at most every LOOK_EVERY seconds and passes the progress on."""

    def __init__(self, experiments: Sequence[Experiment], root: Path, show: Callable[[Standing, str], None]) -> None:
        self.experiments, self.root, self.show = list(dict.fromkeys(experiments)), root, show
        self.began, self.looked = time.time(), 0.0
        self.at_start = standing(self.experiments, root, self.began).epochs_done

    def look(self, last: bool = False) -> None:
        now = time.time()
        if not last and now - self.looked < LOOK_EVERY:
            return
        self.looked = now
        found = standing(self.experiments, self.root, self.began)
        left = seconds_left(found.epochs, self.at_start, found.epochs_done, now - self.began)
        self.show(found, f", about {duration(left)} left" if left else "")


class Lines:
    """Prints a line when a run has finished, and one every LINE_EVERY seconds."""

    def __init__(self) -> None:
        self.done, self.printed = -1, 0.0

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def show(self, found: Standing, left: str) -> None:
        now = time.time()
        if found.done > self.done or now - self.printed >= LINE_EVERY:
            self.done, self.printed = found.done, now
            where = "".join(f"; {run}: {epoch}" for run, epoch in list(found.running.items())[:2])
            self.say(f"{found}{left}{where}")


class Screen:
    """Shows a progress bar and the running experiments, updated in place."""

    def __init__(self, console: Console) -> None:
        self.live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> "Screen":
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def say(self, line: str) -> None:
        self.live.console.print(Text(line))

    def show(self, found: Standing, left: str) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=found.epochs, completed=found.epochs_done, width=24), Text(f"{found}{left}"))
        for run, epoch in list(found.running.items())[:MOST_SHOWN]:
            grid.add_row(Text(epoch, style="dim"), Text(run, style="dim"))
        self.live.update(grid, refresh=True)
