"""watch: a sweep is shown while it runs: what is done, what runs and how far it is, how long the rest will take."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from labelsieve.errors import InputError
from labelsieve.methods import Problem, make
from labelsieve.progress import duration
from labelsieve.runs.spec import Experiment
from labelsieve.sweep.sweep import folder_of, sweep

EVERY = 1.0  # seconds between two looks
LINE_EVERY = 30.0  # seconds between two lines, where nothing is live; a finished run is told sooner
MOST_SHOWN = 8  # running ones on a terminal


@dataclass(frozen=True)
class Standing:
    """How far a sweep is."""

    runs: int
    done: int
    running: dict[str, str]  # what runs: at which epoch
    epochs: int  # of all runs
    epochs_done: int

    @property
    def left(self) -> int:
        return self.runs - self.done - len(self.running)

    def __str__(self) -> str:
        return f"{self.done} of {self.runs} runs done, {len(self.running)} running, {self.left} to come"


def standing(experiments: Sequence[Experiment], root: Path, since: float) -> Standing:
    """What the folders say; a run is running if somebody has entered its folder since that time and not left it."""
    done, epochs_done, running = 0, 0, {}
    for experiment in experiments:
        folder = folder_of(experiment, root)
        if (folder / "done").exists():
            done += 1
            epochs_done += epochs_of(experiment)
            continue
        passed = epochs_recorded(folder)
        epochs_done += passed
        if entered(folder, since):
            running[title(experiment)] = place(experiment, passed)
    return Standing(len(experiments), done, running, sum(map(epochs_of, experiments)), epochs_done)


def title(experiment: Experiment) -> str:
    """A run in a few words, its method as one types it: mentornet-prop:ol:lam=0.5"""
    noise = f", {experiment.noise} {100 * experiment.rate:g}%" if experiment.noise else ""
    options = (f"{name}={value}" for name, value in experiment.options)
    method = ":".join(filter(None, (experiment.method, experiment.criterion, *options)))
    return f"{Path(experiment.data).name}{noise}, {method}, seed {experiment.seed}"


def epochs_of(experiment: Experiment) -> int:
    """Epochs of all its rounds."""
    return experiment.epochs * rounds_of(experiment)


@cache
def rounds_of(experiment: Experiment) -> int:
    """How often its networks are trained from the start; once, as far as the time goes, where it cannot be made."""
    problem = Problem(2, 0.0, experiment.warmup, num_samples=1)
    try:
        return make(experiment.method, problem, experiment.criterion, **dict(experiment.options)).rounds
    except InputError:
        return 1


def place(experiment: Experiment, passed: int) -> str:
    number, epoch = divmod(passed, experiment.epochs)
    rounds = rounds_of(experiment)
    return (f"round {number + 1}/{rounds}, " if rounds > 1 else "") + f"epoch {epoch}/{experiment.epochs}"


def epochs_recorded(folder: Path) -> int:
    try:
        return (folder / "record.jsonl").read_bytes().count(b'"event": "epoch"')
    except OSError:
        return 0


def cut_before(experiments: Sequence[Experiment], root: Path) -> str:
    """How many of these runs were cut and now go on, in a line; empty if none does."""
    folders = [folder_of(experiment, root) for experiment in experiments]
    cut = sum(not (folder / "done").exists() and epochs_recorded(folder) > 0 for folder in folders)
    many = "1 goes on from the epoch that it" if cut == 1 else f"{cut} go on from the epochs that they"
    return f"of {len(folders)} runs {many} had reached" if cut else ""


def entered(folder: Path, since: float) -> bool:
    """Whether the lock names a process that took it since then; who leaves empties it."""
    try:
        lock = (folder / "lock").stat()
    except OSError:
        return False
    return lock.st_size > 0 and lock.st_mtime >= since - 1  # a file system's clock may lag


def seconds_left(epochs: int, at_start: int, now: int, elapsed: float) -> float | None:
    """If the epochs go on as they went; None before there is one."""
    return elapsed * (epochs - now) / (now - at_start) if now > at_start else None


class Watch:
    """Looks at the folders of a sweep now and then, and shows them."""

    def __init__(self, experiments: Sequence[Experiment], root: Path, show: Callable[[Standing, str], None]) -> None:
        self.experiments, self.root, self.show = list(dict.fromkeys(experiments)), root, show
        self.began, self.looked = time.time(), 0.0
        self.at_start = standing(self.experiments, root, self.began).epochs_done

    def look(self, last: bool = False) -> None:
        now = time.time()
        if not last and now - self.looked < EVERY:
            return
        self.looked = now
        found = standing(self.experiments, self.root, self.began)
        left = seconds_left(found.epochs, self.at_start, found.epochs_done, now - self.began)
        self.show(found, f", about {duration(left)} left" if left else "")


class Lines:
    """A line when runs have ended, and one now and then."""

    def __init__(self) -> None:
        self.done, self.told = -1, 0.0

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def show(self, found: Standing, left: str) -> None:
        now = time.time()
        if found.done > self.done or now - self.told >= LINE_EVERY:
            self.done, self.told = found.done, now
            where = "".join(f"; {run}: {epoch}" for run, epoch in list(found.running.items())[:2])
            self.say(f"{found}{left}{where}")


class Screen:
    """A bar and the runs that are running, in place."""

    def __init__(self, console: Console) -> None:
        self.live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> "Screen":
        self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.live.stop()

    def say(self, line: str) -> None:
        self.live.console.print(Text(line))

    def show(self, found: Standing, left: str) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=found.epochs, completed=found.epochs_done, width=24), Text(f"{found}{left}"))
        for run, epoch in list(found.running.items())[:MOST_SHOWN]:
            grid.add_row(Text(epoch, style="dim"), Text(run, style="dim"))
        self.live.update(grid, refresh=True)


def run_all(
    experiments: Sequence[Experiment], root: Path, at_once: int | None = None, on: str = "here"
) -> dict[Experiment, str]:
    """The sweep, shown on the terminal or told in lines; returns why those failed that did, and says so."""
    console = Console(stderr=True)
    more: dict[str, Any] = {} if on == "here" else {"on": on}
    with Screen(console) if console.is_terminal else Lines() as display:
        watch = Watch(experiments, root, display.show)
        if line := cut_before(watch.experiments, root):
            display.say(line)
        failed = sweep(experiments, root, lambda done, total: watch.look(), at_once, display.say, **more)
        watch.look(last=True)
    for experiment, reason in failed.items():
        print(f"failed: {title(experiment)}: {reason}", file=sys.stderr)
    return failed
