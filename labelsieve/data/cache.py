"""Store the decoded images of a set in one memory-mapped file."""

import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError

import numpy as np

from labelsieve.data.classes import Array
from labelsieve.data.images import (
    DECODER,
    BadImage,
    FileReader,
    Frame,
    Pictures,
    Reader,
    decode_into,
    file_stamp,
    unwrapped,
)
from labelsieve.errors import InputError, ResourceError
from labelsieve.files import disk_error

HASHED_SAMPLES = 50  # samples whose bytes are part of a digest
WRITE_CHUNK = 256  # images decoded between two writes
DECODE_CHUNK = 16  # images that a worker decodes at a time
BUILD_LOCK = threading.Lock()  # between threads; file locks work only between processes


@dataclass(frozen=True)
class DecodedCache:
    """Decoded images on disk."""

    path: Path
    pixels: Array  # (m, H, W, C) uint8, memory-mapped
    rows: Array | None = None  # (n) row of each sample; None: all rows in order

    def __len__(self) -> int:
        return len(self.pixels if self.rows is None else self.rows)

    def at(self, index: Sequence[int]) -> "DecodedCache":
        """Return the subset at the given positions."""
        picked = np.asarray(index, dtype=np.int64)
        return replace(self, rows=picked if self.rows is None else self.rows[picked])

    def read_into(self, out: Array, index: Sequence[int]) -> None:
        """Copy samples into the rows of an array."""
        rows = np.asarray(index) if self.rows is None else self.rows[index]
        np.take(self.pixels, rows, axis=0, out=out, mode="clip")  # mode "raise" would copy twice


def open_cache(folder: Path, pictures: Pictures, frame: Frame, workers: int = 1) -> DecodedCache:
    """Open the cache of a set; build it if it is missing or damaged, by one process at a time."""
    shape = (len(pictures), frame.height, frame.width, frame.channels)
    path = folder / f"{cache_key(pictures, frame)}.npy"
    pixels = _map(path, shape)
    if pixels is None:
        with _locked(path.with_suffix(".lock")):
            if _map(path, shape) is None:  # else another process has built it meanwhile
                _build(path, pictures, frame, workers)
            pixels = _map(path, shape)
    assert pixels is not None
    return DecodedCache(path, pixels)


def cache_key(pictures: Pictures, frame: Frame) -> str:
    """Return a digest of the images, the frame and the decoder; labels are not part of it."""
    digest = hashlib.blake2b(f"{DECODER}\n{frame}\n{len(pictures)}\n".encode(), digest_size=16)
    for index, name in enumerate(pictures.names):
        digest.update(f"{name}\0{_stamp(pictures.read, index)}\n".encode("utf-8", "surrogateescape"))
    for content in sampled_bytes(pictures):
        digest.update(content)
    return digest.hexdigest()


def sampled_bytes(pictures: Pictures) -> Iterator[bytes]:
    """Yield the encoded bytes of up to 50 images at even intervals."""
    count = min(HASHED_SAMPLES, len(pictures))
    for number in range(count):
        try:
            yield pictures.bytes_of(number * len(pictures) // count)
        except BadImage:
            yield b""  # reported when it is decoded


def _map(path: Path, shape: tuple[int, ...]) -> Array | None:
    """Map a cache file into memory; None if it is missing, truncated or has another shape."""
    try:
        pixels = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, EOFError, ValueError, SyntaxError, TokenError):
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    return pixels.view(np.ndarray) if pixels.shape == shape and pixels.dtype == np.uint8 else None


def _build(path: Path, pictures: Pictures, frame: Frame, workers: int) -> None:
    """Write a temporary file, flush it to disk and rename it; the caller holds the lock."""
    shape = (len(pictures), frame.height, frame.width, frame.channels)
    temporary = path.with_suffix(".partial")
    try:
        _check_free_space(path, int(np.prod(shape)))
        with temporary.open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for images in _decoded_chunks(pictures, frame, workers):
                file.write(images)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _decoded_chunks(pictures: Pictures, frame: Frame, workers: int) -> Iterator[memoryview]:
    """Yield all images in order, in chunks."""
    images = np.empty((WRITE_CHUNK, frame.height, frame.width, frame.channels), dtype=np.uint8)

    with ThreadPoolExecutor(max(1, workers)) as pool:
        for first in range(0, len(pictures), WRITE_CHUNK):
            last = min(first + WRITE_CHUNK, len(pictures))

            def decode_chunk(start: int, first: int = first, last: int = last) -> None:
                index = range(start, min(start + DECODE_CHUNK, last))
                decode_into(images[start - first : index.stop - first], pictures, index, frame)

            list(pool.map(decode_chunk, range(first, last, DECODE_CHUNK)))
            yield images[: last - first].data


def _stamp(read: Reader, index: int) -> str:
    """Return a text that changes when the file of a sample is rewritten.

    A reader other than FileReader can provide it by a method `stamp`.
    """
    read, index = unwrapped(read, index)
    if not isinstance(read, FileReader):
        return str(read.stamp(index)) if hasattr(read, "stamp") else ""
    try:
        return file_stamp(read.root / read.paths[index])
    except OSError:
        return ""  # reported when it is decoded


def _check_free_space(path: Path, size: int) -> None:
    """Raise before hours of decoding if the disk is too full."""
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise ResourceError(
            f"not enough disk space for {path}: {size / 1e9:,.1f} GB needed, {free / 1e9:,.1f} GB free; "
            "free some space, or omit --cache"
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that excludes all other threads and processes."""
    with BUILD_LOCK:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("wb")
            fcntl.lockf(file, fcntl.LOCK_EX)  # waits
        except OSError as error:
            raise disk_error(path, error) from error
        with file:  # closing it releases the lock
            yield
