"""Run a labelsieve command that sends itself a signal at a given point of a training, on machines of any speed.

    python tests/interrupted.py SIGNAL RECORD EPOCHS STEPS COMMAND...

The signal is sent when the record has this many epochs and this many further steps are done.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from labelsieve.cli import main
from labelsieve.progress import PlainLines
from labelsieve.train.checkpoint import Record


def arm(number: int, path: Path, epochs: int, steps: int) -> None:
    """Replace the functions that record epochs and count steps."""
    append, step = Record.append, PlainLines.step
    left: int | None = None

    def append_epoch(self: Record, row: dict[str, Any]) -> None:
        nonlocal left
        append(self, row)
        if self.path == path and row["event"] == "epoch" and path.read_bytes().count(b'"event": "epoch"') == epochs:
            left = steps
            count_down()

    def count_step(self: PlainLines, done: int, total: int) -> None:
        nonlocal left
        step(self, done, total)
        if left is not None:
            left -= 1
            count_down()

    def count_down() -> None:
        nonlocal left
        if left == 0:
            left = None
            os.kill(os.getpid(), number)

    Record.append = append_epoch  # type: ignore[method-assign]
    PlainLines.step = count_step  # type: ignore[method-assign]


if __name__ == "__main__":
    name, record, epochs, steps, *command = sys.argv[1:]
    arm(signal.Signals[name], Path(record), int(epochs), int(steps))
    main(command)
