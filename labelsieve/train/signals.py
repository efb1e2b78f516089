"""SIGINT and SIGTERM only raise a flag; training looks at it between two steps."""

import signal
import threading
from types import FrameType, TracebackType

from labelsieve.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopFlag:
    """While it is entered, a signal asks for a stop instead of causing one. A second SIGINT stops at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopFlag":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def check(self, where: str) -> None:
        """Raise Stopped if a signal came."""
        if self.received is not None:
            name = "Ctrl-C" if self.received == signal.SIGINT else signal.Signals(self.received).name
            raise Stopped(f"stopped by {name} {where}; the same command goes on from there", self.received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        self.received = number
