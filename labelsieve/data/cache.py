"""cache: all images of a set, decoded once, in one file that is mapped into memory."""

import errno
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labelsieve.data.images import DECODER, BadImage, Chosen, Files, Frame, Pictures, Reader, decode_into, written
from labelsieve.errors import InputError, ResourceError

Array = np.ndarray[Any, Any]
LOOKED_AT = 50  # samples whose bytes stand for all
CHUNK = 256  # images decoded between two writes
PIECE = 16  # images that a worker decodes at a time
BUILDING = threading.Lock()  # file locks are between processes, this is between the threads of one


@dataclass(frozen=True)
class DecodedCache:
    """Decoded images on disk."""

    path: Path
    pixels: Array  # (n, H, W, C) uint8, mapped
    rows: Array | None = None  # of each sample; None: all in order

    def __len__(self) -> int:
        return len(self.pixels if self.rows is None else self.rows)

    def at(self, index: Sequence[int]) -> "DecodedCache":
        """The samples at these positions alone."""
        picked = np.asarray(index, dtype=np.int64)
        return replace(self, rows=picked if self.rows is None else self.rows[picked])

    def read_into(self, out: Array, index: Sequence[int]) -> None:
        """Copy these samples into the rows of an array."""
        rows = np.asarray(index) if self.rows is None else self.rows[index]
        np.take(self.pixels, rows, axis=0, out=out, mode="clip")  # "raise" would copy twice


def open_cache(
    folder: Path,
    pictures: Pictures,
    frame: Frame,
    workers: int = 1,
    tell: Callable[[int], None] = lambda done: None,
) -> DecodedCache:
    """The cache of these images in a folder; built if it is not there or damaged, by one process at a time."""
    shape = (len(pictures), frame.height, frame.width, frame.channels)
    path = folder / f"{identity(pictures, frame)}.npy"
    pixels = whole(path, shape)
    if pixels is None:
        with _locked(path.with_suffix(".lock")):
            pixels = whole(path, shape)  # who held the lock before may have built it
            if pixels is None:
                _build(path, pictures, frame, workers, tell)
                pixels = whole(path, shape)
    if pixels is None:
        raise InputError(f"cannot use {path}: it is not what was just written; give another folder for the cache")
    return DecodedCache(path, pixels)


def identity(pictures: Pictures, frame: Frame) -> str:
    """A digest of the images, their frame and the decoder; labels do not matter."""
    digest = hashlib.blake2b(f"{DECODER}\n{frame}\n{len(pictures)}\n".encode(), digest_size=16)
    for index, name in enumerate(pictures.names):
        digest.update(f"{name}\0{_stamp(pictures.read, index)}\n".encode("utf-8", "surrogateescape"))
    for content in samples_of(pictures):
        digest.update(content)
    return digest.hexdigest()


def samples_of(pictures: Pictures) -> Iterator[bytes]:
    """The encoded bytes of up to 50 images, evenly spaced."""
    for number in range(min(LOOKED_AT, len(pictures))):
        try:
            yield pictures.bytes_of(number * len(pictures) // min(LOOKED_AT, len(pictures)))
        except BadImage:
            yield b""  # whoever decodes it says so


def whole(path: Path, shape: tuple[int, ...]) -> Array | None:
    """The images of a cache file, mapped; None if it is not there, cut off or of another shape."""
    try:
        with path.open("rb") as file:
            header = len(_header(shape))
            if file.read(header) != _header(shape) or os.fstat(file.fileno()).st_size != header + int(np.prod(shape)):
                return None
            return np.memmap(file, np.uint8, "r", header, shape).view(np.ndarray)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _header(shape: tuple[int, ...]) -> bytes:
    """Of a .npy file with uint8 numbers, so that NumPy can load it as well."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    length = -(-(10 + len(text) + 1) // 64) * 64 - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"


def _build(path: Path, pictures: Pictures, frame: Frame, workers: int, tell: Callable[[int], None]) -> None:
    """Write beside it, flush to the disk, rename; the caller holds the lock."""
    shape = (len(pictures), frame.height, frame.width, frame.channels)
    temporary = path.with_suffix(".partial")
    try:
        _room_for(path, int(np.prod(shape)))
        with temporary.open("wb") as file:
            file.write(_header(shape))
            for done, images in _decoded(pictures, frame, workers):
                file.write(images)
                tell(done)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise _disk_error(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _decoded(pictures: Pictures, frame: Frame, workers: int) -> Iterator[tuple[int, memoryview]]:
    """All images in order, in chunks, with the number of those that are done."""
    images = np.empty((CHUNK, frame.height, frame.width, frame.channels), dtype=np.uint8)

    with ThreadPoolExecutor(max(1, workers)) as pool:
        for first in range(0, len(pictures), CHUNK):
            last = min(first + CHUNK, len(pictures))

            def piece(start: int, first: int = first, last: int = last) -> None:
                index = range(start, min(start + PIECE, last))
                decode_into(images[start - first : index.stop - first], pictures, index, frame)

            list(pool.map(piece, range(first, last, PIECE)))
            yield last, images[: last - first].data


def _stamp(read: Reader, index: int) -> str:
    """What changes when a file is written again; a reader of another kind can say it by a method `stamp`."""
    if isinstance(read, Chosen):
        return _stamp(read.read, read.index[index])
    if not isinstance(read, Files):
        return str(read.stamp(index)) if hasattr(read, "stamp") else ""
    try:
        return written(read.root / read.paths[index])
    except OSError:
        return ""  # whoever decodes it says so


def _room_for(path: Path, size: int) -> None:
    """A full disk is told at once, not after hours of decoding."""
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise ResourceError(
            f"the disk is too full for {path}: it needs {size / 1e9:,.1f} GB and {free / 1e9:,.1f} GB are free; "
            "make room, or go without the cache"
        )


def _disk_error(path: Path, error: OSError) -> InputError | ResourceError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(f"the disk is full, {path} was not written: make room, or go without the cache")
    return InputError(f"cannot write {path}: {error.strerror or error}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among all threads and processes that ask for this lock."""
    with BUILDING:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("wb")
            fcntl.lockf(file, fcntl.LOCK_EX)  # waits
        except OSError as error:
            raise _disk_error(path, error) from error
        with file:  # closing it frees the lock
            yield
