"""Progress of a training: a live line on a terminal, one plain line per epoch elsewhere.

Steps are counted on the host, so that showing progress never waits for the device.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labelsieve.text import duration

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

Row = dict[str, Any]
PLAIN_PAUSE = 30.0  # seconds between two lines about items without a terminal


def _epoch_name(row: Row) -> str:
    return f"round {row['round']}, epoch {row['epoch']}" if "round" in row else f"epoch {row['epoch']}"


def _epoch_summary(row: Row) -> str:
    """Return losses and errors of an epoch in one line."""
    words = [f"loss {row['train_loss']:.3f}"]
    words += [f"{name.replace('_', ' ')} {row[name]:.2f}%" for name in ("test_error", "valid_error") if name in row]
    if row.get("precision") is not None:
        words.append(f"kept clean {100 * row['precision']:.1f}%")
    return ", ".join(words)


@dataclass(frozen=True)
class Plan:
    """One training and its place among the trainings of one command."""

    epochs: int  # of one round
    rounds: int = 1
    part: str = ""  # name of this training, if there are several
    earlier: int = 0  # epochs of the trainings before it
    later: int = 0  # epochs of the trainings after it

    @property
    def all_epochs(self) -> int:
        return self.epochs * self.rounds

    def place(self, done: int, total: int) -> str:
        """Return the position after a number of steps: stage 2 of 4, selecting judges 1/5, epoch 3/44, step 7/10."""
        steps = total // self.all_epochs  # per epoch
        epoch, step = divmod(max(done - 1, 0), steps)
        number, epoch = divmod(epoch, self.epochs)
        words = [self.part] if self.part else []
        words += [f"round {number + 1}/{self.rounds}"] if self.rounds > 1 else []
        return ", ".join([*words, f"epoch {epoch + 1}/{self.epochs}", f"step {step + 1}/{steps}"])

    def whole(self, done: int, total: int) -> tuple[int, int]:
        """Return the finished and the total number of steps of all trainings."""
        steps = total // self.all_epochs
        return done + self.earlier * steps, total + (self.earlier + self.later) * steps


class Pace:
    """Measures the time per step, from the first step on."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.first = self.last = (0, 0.0)

    def step(self, done: int) -> None:
        self.last = (done, self.clock())
        if not self.first[0]:
            self.first = self.last

    @property
    def steps(self) -> int:
        """Steps since the first one."""
        return self.last[0] - self.first[0]

    @property
    def elapsed(self) -> float:
        """Seconds since the first step."""
        return self.last[1] - self.first[1]

    @property
    def seconds(self) -> float | None:
        """Seconds per step; None before the second step."""
        return self.elapsed / self.steps if self.steps else None


def speed(seconds: float) -> str:
    """Format the speed: steps per second, or seconds per step if steps are slow."""
    if seconds > 2:
        return f"{seconds:.0f} s per step"
    return f"{1 / seconds:,.1f} steps/s" if seconds > 0.1 else f"{1 / max(seconds, 1e-9):,.0f} steps/s"


class _Watcher:
    """Counts steps and estimates the remaining time."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.perf_counter) -> None:
        self.plan, self.pace = plan, Pace(clock)
        self.done = self.total = 0

    def __exit__(self, *error: object) -> None:
        pass

    def step(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        self.pace.step(done)

    def left(self) -> str:
        """Return the estimated remaining time, for example ", about 3 min left in total"."""
        done, total = self.plan.whole(self.done, self.total) if self.total else (0, 0)
        if self.pace.seconds is None or done == total:
            return ""
        return f", about {duration(self.pace.seconds * (total - done))} left{' in total' if self.plan.later else ''}"


class PlainLines(_Watcher):
    """Prints one line per epoch."""

    def __enter__(self) -> "PlainLines":
        return self

    def epoch(self, row: Row) -> None:
        part = f"{self.plan.part}, " if self.plan.part else ""
        print(
            f"{part}{_epoch_name(row)}/{self.plan.epochs}: {_epoch_summary(row)}, {row['seconds']} s{self.left()}",
            flush=True,
        )


class LiveLine(_Watcher):
    """Shows a progress bar, speed, remaining time and the result of the last epoch."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.perf_counter) -> None:
        from rich.live import Live

        super().__init__(plan, clock)
        self.summary = ""
        self.live = Live(get_renderable=self.drawn, refresh_per_second=4)

    def __enter__(self) -> "LiveLine":
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def epoch(self, row: Row) -> None:
        self.summary = f"{_epoch_name(row)}: {_epoch_summary(row)}"

    def line(self) -> str:
        if not self.total:
            return "starting"
        pace = f", {speed(self.pace.seconds)}" if self.pace.seconds else ""
        return f"{self.plan.place(self.done, self.total)}{pace}{self.left()}"

    def drawn(self) -> "Table":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        done, total = self.plan.whole(self.done, self.total) if self.total else (0, 1)
        grid = Table.grid(padding=(0, 1))
        grid.add_column()
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_row(ProgressBar(total=total, completed=done, width=12), Text(self.line()))
        if self.summary:
            grid.add_row("", Text(self.summary, "dim"))
        return grid


class Counting:
    """Shows how many items of a kind are finished: a bar on a terminal, elsewhere a line every half minute."""

    def __init__(self, task: str, items: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.task, self.items, self.clock = task, items, clock
        self.pace = Pace(clock)
        self.bar = live_bar() if sys.stdout.isatty() else None
        self.number = self.bar.add_task(task, total=None) if self.bar else None
        self.printed = clock()

    def __enter__(self) -> "Counting":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar:
            self.bar.stop()

    def step(self, done: int, total: int) -> None:
        self.pace.step(done)
        if self.bar and self.number is not None:
            self.bar.update(self.number, completed=done, total=total, description=self.line(done, total))
        elif self.clock() - self.printed >= PLAIN_PAUSE:
            self.printed = self.clock()
            left = f", about {duration((self.pace.seconds or 0) * (total - done))} left" if done < total else ""
            print(f"{self.line(done, total)}{left}", flush=True)

    def line(self, done: int, total: int) -> str:
        """Return the progress, such as "embedding: 120 of 3,068 images, 71 images/s"."""
        rate = f", {1 / max(self.pace.seconds, 1e-9):,.0f} {self.items}/s" if self.pace.seconds else ""
        return f"{self.task}: {done:,} of {total:,} {self.items}{rate}"


def live_bar() -> "Progress":
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(TextColumn("{task.description}", markup=False), BarColumn(bar_width=16), TimeRemainingColumn())


def watching(plan: Plan) -> PlainLines | LiveLine:
    """Return the live line for a terminal, plain lines otherwise."""
    return LiveLine(plan) if sys.stdout.isatty() else PlainLines(plan)
