"""What can go wrong that is not a bug, and how a program should end then."""

import difflib
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

PACKAGE = str(Path(__file__).parent)
NOT_ONES_OWN = (PACKAGE, *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


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
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"


def unexpected(error: Exception) -> str:
    """An error that nobody foresaw, told in a line and kept in a file; it may be one of a person's own code."""
    with tempfile.NamedTemporaryFile("w", prefix="labelsieve-", suffix=".log", delete=False) as log:
        traceback.print_exception(error, file=log)
    said = f": {str(error).splitlines()[0]}" if str(error).strip() else ""
    if place := own_code(error):
        return f"{place} raised {type(error).__name__}{said}; the whole traceback is in {log.name}"
    where = f" at {place}" if (place := our_code(error)) else ""
    return f"a bug in labelsieve ({type(error).__name__}){where}{said}; please report it with {log.name}"


def own_code(error: Exception) -> str | None:
    """The last line of a person's own code on the way to an error, as file:line."""
    return last_line(error, lambda file: not file.startswith(NOT_ONES_OWN))


def our_code(error: Exception) -> str | None:
    """The last line of labelsieve itself, for those who change it."""
    return last_line(error, lambda file: file.startswith(PACKAGE))


def last_line(error: Exception, wanted: Callable[[str], bool]) -> str | None:
    """The line nearest to an error among those in wanted files, as file:line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_file() and wanted(f.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
