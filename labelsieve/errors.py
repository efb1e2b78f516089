"""What can go wrong that is not a bug, and how a program should end then."""

import difflib
from collections.abc import Iterable


class LabelsieveError(Exception):
    """One line that says what is wrong and what to do about it."""

    exit_code = 1


class InputError(LabelsieveError, ValueError):
    """A file, an option or a value that cannot be used."""

    exit_code = 2


class Diverged(LabelsieveError):
    """Training met a loss or gradient that is not finite."""

    exit_code = 3


class ResourceError(LabelsieveError):
    """The disk or the memory is full; what was saved before is whole."""

    exit_code = 4


class Stopped(LabelsieveError):
    """A signal asked the run to stop; it can go on later."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def nearest(name: str, names: Iterable[str]) -> str:
    """What to write instead of an unknown name."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
