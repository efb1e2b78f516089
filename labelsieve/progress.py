"""Progress for people: one live line on a terminal, plain lines elsewhere."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

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


class PlainLines:
    """A line per epoch."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def step(self, done: int, total: int) -> None:
        pass

    def epoch(self, row: Row) -> None:
        print(f"{place(row)}/{self.epochs}: {told(row)}, {row['seconds']} s", flush=True)


class LiveLine:
    """A bar that moves with the steps and says how the last epoch went."""

    def __init__(self) -> None:
        self.bar = live_bar()
        self.task = self.bar.add_task("starting")

    def __enter__(self) -> "LiveLine":
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def step(self, done: int, total: int) -> None:
        self.bar.update(self.task, completed=done, total=total)

    def epoch(self, row: Row) -> None:
        self.bar.update(self.task, description=f"{place(row)}: {told(row)}")


def live_bar() -> "Progress":
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(TextColumn("{task.description}", markup=False), BarColumn(bar_width=16), TimeRemainingColumn())


def watching(epochs: int) -> PlainLines | LiveLine:
    """What suits where the output goes."""
    return LiveLine() if sys.stdout.isatty() else PlainLines(epochs)
