"""Errors that are not bugs, with their exit codes, messages for unexpected ones, and warnings about damaged files."""

import difflib
import sys
import sysconfig
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)
_NOT_USER_CODE = (_PACKAGE, *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
WARNINGS_LOCK = threading.Lock()  # warning filters are global: hold it to change them, or to warn in a thread


class DamagedFile(UserWarning):
    """A file is damaged, and the work goes on without it."""


class LabelsieveError(Exception):
    """An error whose message says in one line what is wrong and how to fix it."""

    exit_code = 1


class InputError(LabelsieveError, ValueError):
    """A file, an option or a value that cannot be used."""

    exit_code = 2


class Diverged(LabelsieveError):
    """The loss or a gradient was not finite."""

    exit_code = 3


class ResourceError(LabelsieveError):
    """The disk or the memory is full; files written before are intact."""

    exit_code = 4


class Stopped(LabelsieveError):
    """A signal stopped the run; it can be resumed."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def warn_of_damage(message: str) -> None:
    """Warn about a damaged file, in any thread."""
    with WARNINGS_LOCK:
        warnings.warn(message, DamagedFile, stacklevel=3)


def warn_user(message: str) -> None:
    """Warn, naming the line of the user's code that called labelsieve, directly or through another library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_USER_CODE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def missing_extra(extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error of an import with the command that installs what is missing."""
    message = f"{error.name} is not installed; run pip install 'labelsieve[{extra}]'"
    return ModuleNotFoundError(message, name=error.name)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error of torch says that memory is full."""
    return any(words in str(error) for words in ("can't allocate memory", "out of memory", "not enough memory"))


def nearest(name: str, names: Iterable[str]) -> str:
    """Suggest a known name for an unknown one, or list all known names."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"


def first_line(error: BaseException, longest: int = 200) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:longest] if lines else type(error).__name__


def unexpected(error: Exception) -> str:
    """Describe an unexpected error in one line and save its traceback; it may come from the user's own code."""
    with tempfile.NamedTemporaryFile("w", prefix="labelsieve-", suffix=".log", delete=False) as log:
        traceback.print_exception(error, file=log)
    message = f": {first_line(error)}" if str(error).strip() else ""
    if place := _user_code(error):
        return f"{place} raised {type(error).__name__}{message}; see the traceback in {log.name}"
    where = f" at {place}" if (place := _package_code(error)) else ""
    return f"a bug in labelsieve ({type(error).__name__}){where}{message}; please report it with {log.name}"


def _user_code(error: Exception) -> str | None:
    """Return the innermost line of the user's code in a traceback, as file:line."""
    return _innermost_line(error, lambda file: not file.startswith(_NOT_USER_CODE))


def _package_code(error: Exception) -> str | None:
    """Return the innermost line of labelsieve in a traceback, as file:line."""
    return _innermost_line(error, lambda file: file.startswith(_PACKAGE))


def _innermost_line(error: Exception, wanted: Callable[[str], bool]) -> str | None:
    """Return the innermost line of a traceback whose file is wanted, as file:line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_file() and wanted(f.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
