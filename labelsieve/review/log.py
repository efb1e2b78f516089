"""DecisionLog: decisions on disk, one line each, there before anybody is told so."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from labelsieve.errors import InputError
from labelsieve.files import disk_error, sync_folder
from labelsieve.review.decisions import Decision, parsed


class DecisionLog:
    """A file that is only appended to, by any number of threads and processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._decisions: list[Decision] = []
        self._read = 0  # bytes
        self._here = threading.RLock()  # file locks are between open files, this is between the threads that share one

    def decisions(self) -> Sequence[Decision]:
        """All decisions so far, also those that other processes wrote."""
        with self._here:
            if not self.path.exists():
                self._decisions, self._read = [], 0
                return ()
            with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as handle:
                return self._caught_up(handle)

    def append(self, decide: Callable[[Sequence[Decision]], Decision]) -> Sequence[Decision]:
        """Write what `decide` makes of all decisions so far; nobody else writes in between."""
        with self._here, self._locked(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as handle:
            decision = decide(self._caught_up(handle))
            write_line(handle, decision.line())
            if self._read == 0:  # the file is new, and so may be its folder
                sync_folder(self.path.parent)
                sync_folder(self.path.parent.parent)
            return self._caught_up(handle)

    def mend(self) -> None:
        """Finish or remove a last line that was cut."""
        if self.path.exists() and not ends_whole(self.path):
            with self._here, self._locked(os.O_RDWR | os.O_APPEND, fcntl.LOCK_EX) as handle:
                self._caught_up(handle)

    @contextmanager
    def _locked(self, flags: int, lock: int) -> Iterator[int]:
        try:
            if flags & os.O_CREAT:
                self.path.parent.mkdir(exist_ok=True)
            handle = os.open(self.path, flags, 0o644)
            try:
                fcntl.flock(handle, lock)
                if flags & os.O_APPEND:
                    mend(handle)
                yield handle
            finally:
                os.close(handle)
        except OSError as error:
            raise disk_error(self.path, error) from error

    def _caught_up(self, handle: int) -> Sequence[Decision]:
        size = os.fstat(handle).st_size
        if size < self._read:  # somebody put another file in its place
            self._decisions, self._read = [], 0
        *whole, _ = os.pread(handle, size - self._read, self._read).split(b"\n")
        new = [self._parsed(line, number) for number, line in enumerate(whole, len(self._decisions) + 1)]
        self._decisions = [*self._decisions, *new]
        self._read += sum(len(line) + 1 for line in whole)
        return self._decisions

    def _parsed(self, line: bytes, number: int) -> Decision:
        try:
            return parsed(line)
        except ValueError as error:
            raise InputError(f"{self.path}:{number} is no decision ({error}); mend or remove that line") from error


def ends_whole(path: Path) -> bool:
    content = path.read_bytes()
    return not content or content.endswith(b"\n")


def mend(handle: int) -> None:
    """Let the file end with a whole line. Nobody was told that an unfinished one is saved."""
    size = os.fstat(handle).st_size
    if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
        return
    content = os.pread(handle, size, 0)
    end = content.rfind(b"\n") + 1
    try:
        parsed(content[end:])
    except ValueError:
        os.ftruncate(handle, end)
    else:
        os.write(handle, b"\n")  # only its end was missing
    os.fsync(handle)


def write_line(handle: int, line: bytes) -> None:
    """Append a line and wait until the disk has it; if it cannot, nothing of it stays."""
    size = os.fstat(handle).st_size
    try:
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    except OSError:
        with suppress(OSError):
            os.ftruncate(handle, size)
        raise
