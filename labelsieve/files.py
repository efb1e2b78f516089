"""Files: written atomically and never over the user's own work, and checked when they are read back.

A *seal* lists files of its folder with their SHA-256 in the format of `sha256sum`, and ends with a digest of its own
lines. The seal of a run is its file `done`, that of another folder is named sha256sums, that of a single file
FILE.sha256. Files without a seal, such as those of older versions, are read unchecked.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from labelsieve.errors import InputError, ResourceError

DONE, SUMS = "done", "sha256sums"  # names of the seal of a run, and of another folder
THUMBS = "thumbs"  # folder of images in an audit; its files are in the seal of the audit
LONGEST_STEM = 200  # bytes of a name that its temporary file repeats; a name may have 255
OWN_DIGEST = "# sha256 of the lines above: "


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    """Replace a file: neither readers nor crashes see a partial one."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file for writing; at the end, flush it to disk and rename it to the path.

    A file that is replaced keeps its mode.
    """
    stem = os.fsencode(path.name)[:LONGEST_STEM].decode(errors="ignore")
    temporary = path.with_name(f".{stem}.{os.getpid()}.tmp")
    try:
        mode = _mode_of(path)
        with temporary.open("wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open a file named by the user for writing: replace a file or what a link leads to, write to a pipe or device.

    Files in run folders are written by `replacing`, which follows no links.
    """
    try:
        mode = _mode_of(path)
        if mode is not None and not stat.S_ISREG(mode):
            with path.open("wb") as file:
                yield file
            return
    except OSError as error:
        raise disk_error(path, error) from error
    with replacing(path.resolve() if path.is_symlink() else path) as file:
        yield file


def _mode_of(path: Path) -> int | None:
    """Return the mode of a file, or of what a link leads to; None if there is none. A loop of links is an OSError."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
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


# ---- seals


def digest_of(*parts: bytes) -> str:
    """Return the SHA-256 of all parts together."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


def write_seal(seal: Path, names: Iterable[str]) -> None:
    """Write the digests of files, given by their names relative to the folder of the seal."""
    lines = "".join(f"{_file_digest(seal.parent / name)}  {name}\n" for name in sorted(names))
    write_atomically(seal, f"{lines}{OWN_DIGEST}{digest_of(lines.encode())}\n".encode())


def write_sealed(path: Path, content: bytes) -> None:
    """Write a file, and then its own seal."""
    _own_seal(path).unlink(missing_ok=True)
    write_atomically(path, content)
    write_seal(_own_seal(path), [path.name])


def read_seal(seal: Path) -> dict[str, str]:
    """Return the digests in a seal by file name; none if there is no seal, or the empty one of an older version."""
    try:
        return _parse_seal(seal, _stamp(seal))
    except (FileNotFoundError, IsADirectoryError):
        return {}
    except OSError as error:
        raise InputError(f"cannot read {seal}: {error.strerror}") from error


def verified(file: Path, seal: Path | None = None) -> Path:
    """Return the path of a file to read; refuse it if it differs from its seal, or is listed there and missing."""
    folder = file.parent.parent if file.parent.name == THUMBS else file.parent
    for place in (seal,) if seal else (_own_seal(file), folder / DONE, folder / SUMS):
        digest = read_seal(place).get(str(file.relative_to(place.parent)))
        if digest is not None:
            if reason := _fault(file, digest):
                raise InputError(f"{file} {reason} (its SHA-256 is in {place}); {how_to_mend(file)}")
            break
    return file


def read_verified(file: Path) -> bytes:
    """Return the content of a file, which is refused if it differs from its seal."""
    try:
        return verified(file).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error


def faults(seal: Path) -> dict[Path, str]:
    """Return the files that differ from a seal or are missing, with the reason; the seal itself if it is damaged."""
    try:
        listed = read_seal(seal)
    except InputError:
        return {seal: "is damaged"}
    found = {seal.parent / name: _fault(seal.parent / name, digest) for name, digest in listed.items()}
    return {file: reason for file, reason in found.items() if reason}


def how_to_mend(file: Path) -> str:
    """Return what to do about a damaged file of a run or an audit."""
    folder = file.parent.parent if file.parent.name == THUMBS else file.parent
    if folder.name == "audit" or (folder / "labels.csv").exists():
        place = folder.parent if folder.name == "audit" else folder
        return f"restore it, or delete {folder / 'summary.json'} and make the audit of {place} again"
    return "restore it, or run the command that trained it again: it says what to do"


def parse_json(content: bytes | str) -> Any:
    """Return a JSON value; raise ValueError for anything else, also for values that are nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None


def refuse_links(folder: Path) -> None:
    """Refuse a folder with links that lead out of it, or with anything but files and folders.

    Folders may come from strangers: such a link would have us read or overwrite other files.
    """
    root = Path(os.path.realpath(folder))  # a loop of links is itself, and an error where it is read
    pending = [root] if root.is_dir() else []
    while pending:
        with os.scandir(pending.pop()) as entries:
            found = [(entry, entry.stat(follow_symlinks=False).st_mode) for entry in entries]
        for entry, mode in found:
            if stat.S_ISDIR(mode):
                pending.append(Path(entry.path))
            elif stat.S_ISLNK(mode) and not Path(os.path.realpath(entry)).is_relative_to(root):
                raise InputError(f"{entry.path} is a link that leads out of {folder}; replace it by what it leads to")
            elif not stat.S_ISLNK(mode) and not stat.S_ISREG(mode):
                raise InputError(f"{entry.path} is neither a file nor a folder; remove it")


def _own_seal(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _fault(file: Path, digest: str) -> str:
    """Return what is wrong with a file, or an empty string."""
    try:
        return "" if _known_digest(file, _stamp(file)) == digest else "is damaged"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error


def _stamp(file: Path) -> tuple[int, ...]:
    """Return what changes when a file is written."""
    facts = file.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


@lru_cache(maxsize=4096)
def _known_digest(file: Path, stamp: tuple[int, ...]) -> str:
    return _file_digest(file)


def _file_digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@lru_cache(maxsize=256)
def _parse_seal(seal: Path, stamp: tuple[int, ...]) -> dict[str, str]:
    """Return the digests of a seal by file name."""
    content = seal.read_bytes()
    if not content:
        return {}
    *lines, last = content.splitlines(keepends=True)
    if last != f"{OWN_DIGEST}{digest_of(*lines)}\n".encode():
        raise InputError(f"{seal} is damaged; {how_to_mend(seal)}")
    pairs = (line.decode().rstrip("\n").split("  ", 1) for line in lines)
    return {name: digest for digest, name in pairs}
