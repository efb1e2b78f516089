"""Progress for people: a line that moves on a terminal, a plain line per epoch elsewhere.

Steps are counted on the host: nothing here asks the device how far it is.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

Row = dict[str, Any]


def place(row: Row) -> str:
    return f"round {row['round']}, epoch {row['epoch']}" if "round" in row else f"epoch {row['epoch']}"


def told(row: Row) -> str:
    """An epoch in one line."""
    words = [f"loss {row['train_loss']:.3f}"]
    words += [f"{name.replace('_', ' ')} {row[name]:.2f}%" for name in ("test_error", "valid_error") if name in row]
    if row.get("precision") is not None:
        words.append(f"kept clean {100 * row['precision']:.1f}%")
    return ", ".join(words)


def duration(seconds: float) -> str:
    """In words, to the unit that matters."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Plan:
    """What is trained, and what comes before and after it in one go."""

    epochs: int  # of a round
    rounds: int = 1
    part: str = ""  # its name, if it is a part of something
    earlier: int = 0  # epochs of the parts before it
    later: int = 0  # epochs of the parts after it

    @property
    def all_epochs(self) -> int:
        return self.epochs * self.rounds

    def place(self, done: int, total: int) -> str:
        """Where that many of its steps lead: probe, epoch 3/44, step 7/10"""
        steps = total // self.all_epochs  # of an epoch
        epoch, step = divmod(max(done - 1, 0), steps)
        number, epoch = divmod(epoch, self.epochs)
        words = [self.part] if self.part else []
        words += [f"round {number + 1}/{self.rounds}"] if self.rounds > 1 else []
        return ", ".join([*words, f"epoch {epoch + 1}/{self.epochs}", f"step {step + 1}/{steps}"])

    def whole(self, done: int, total: int) -> tuple[int, int]:
        """The same with the parts before and after it counted: steps done, and all."""
        steps = total // self.all_epochs
        return done + self.earlier * steps, total + (self.earlier + self.later) * steps


class Pace:
    """How long a step takes, since the first that was seen."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.first = self.last = (0, 0.0)

    def step(self, done: int) -> None:
        self.last = (done, self.clock())
        if not self.first[0]:
            self.first = self.last

    @property
    def seconds(self) -> float | None:
        """Of a step; None before there are two."""
        steps = self.last[0] - self.first[0]
        return (self.last[1] - self.first[1]) / steps if steps else None


def speed(seconds: float) -> str:
    """Of a step, as steps per second, or the other way round where they are slow."""
    if seconds > 2:
        return f"{seconds:.0f} s a step"
    return f"{1 / seconds:,.1f} steps/s" if seconds > 0.1 else f"{1 / max(seconds, 1e-9):,.0f} steps/s"


class HowFar:
    """How far a training is: told every step and every epoch."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.perf_counter) -> None:
        self.plan, self.pace = plan, Pace(clock)
        self.done = self.total = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def step(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        self.pace.step(done)

    def left(self) -> str:
        """How long it will take, if it goes on like this."""
        done, total = self.plan.whole(self.done, self.total) if self.total else (0, 0)
        if self.pace.seconds is None or done == total:
            return ""
        return f", about {duration(self.pace.seconds * (total - done))} left{' in all' if self.plan.later else ''}"


class PlainLines(HowFar):
    """A line per epoch."""

    def __enter__(self) -> "PlainLines":
        return self

    def epoch(self, row: Row) -> None:
        part = f"{self.plan.part}, " if self.plan.part else ""
        print(f"{part}{place(row)}/{self.plan.epochs}: {told(row)}, {row['seconds']} s{self.left()}", flush=True)


class LiveLine(HowFar):
    """A bar that moves with the steps, how fast they go, how long it will take, and how the last epoch went."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.perf_counter) -> None:
        from rich.live import Live

        super().__init__(plan, clock)
        self.said = ""
        self.live = Live(get_renderable=self.drawn, refresh_per_second=4)

    def __enter__(self) -> "LiveLine":
        self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.live.stop()

    def epoch(self, row: Row) -> None:
        self.said = f"{place(row)}: {told(row)}"

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
        if self.said:
            grid.add_row("", Text(self.said, "dim"))
        return grid


def live_bar() -> "Progress":
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(TextColumn("{task.description}", markup=False), BarColumn(bar_width=16), TimeRemainingColumn())


def watching(plan: Plan) -> PlainLines | LiveLine:
    """What suits where the output goes."""
    return LiveLine(plan) if sys.stdout.isatty() else PlainLines(plan)
