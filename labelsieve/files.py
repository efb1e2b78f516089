"""Files that are whole or not there."""

import errno
import os
from pathlib import Path

from labelsieve.errors import InputError, ResourceError


def refuse_no_folder(path: Path, option: str = "--out") -> None:
    """Say before any work that a folder for it is not there and cannot be made."""
    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise InputError(f"{nearest} is a file, not a folder; name another {option}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"cannot write in {nearest}; name another {option}")


def refuse_others(path: Path, *first_lines: str) -> None:
    """A file that does not begin with a line which labelsieve writes is somebody's work, and not written over."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    if not path.is_file() or not path.stat().st_size:
        return
    longest = 2 + max((len(line) for line in first_lines), default=0)
    try:
        with path.open("rb") as file:
            first = file.readline(longest).decode(errors="replace").rstrip("\r\n")
    except OSError as error:
        raise disk_error(path, error) from error
    if first not in first_lines:
        raise InputError(f"{path} is there already and may be your own work; name another file, or move it away")


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a file beside it, flush to the disk, rename: a reader or a crash never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_error(path: Path, error: OSError) -> InputError | ResourceError:
    """The right error for a failed write: a full disk can be mended and gone on from."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(f"the disk is full, {path} was not written: make room and run the same command again")
    return InputError(f"cannot write {path}: {error.strerror or error}")
