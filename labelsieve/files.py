"""Writing files: atomically, and never over the user's own work."""

import errno
import os
from pathlib import Path

from labelsieve.errors import InputError, ResourceError


def refuse_no_folder(path: Path, option: str = "--out") -> None:
    """Refuse an output folder that cannot be created or written."""
    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise InputError(f"{nearest} is a file, not a folder; name another {option}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to {nearest}; name another {option}")


def refuse_others(path: Path, *first_lines: str) -> None:
    """Refuse to overwrite a file whose first line is not one that labelsieve writes."""
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
        raise InputError(f"{path} exists and was not written by labelsieve; name another file, or move it away")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file, flush it to disk and rename it: neither readers nor crashes see a partial file."""
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
    """Flush a folder to disk, so that a rename in it survives a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_error(path: Path, error: OSError) -> InputError | ResourceError:
    """Return the error for a failed write; after a full disk the command can be resumed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(
            f"the disk is full, {path} was not written; free some space and run the same command again"
        )
    return InputError(f"cannot write {path}: {error.strerror or error}")
