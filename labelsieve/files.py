"""Files that are whole or not there."""

import errno
import os
from pathlib import Path

from labelsieve.errors import InputError, ResourceError


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
