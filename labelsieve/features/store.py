"""Rows on disk, found by the digest of the sample that they were computed from.

A store is a folder of chunks. A chunk consists of three files: NAME.rows.npy (m, width), which is mapped into memory,
NAME.keys.npy (m), and their seal NAME.sha256 (see labelsieve.files). Keys are written after the rows, so that a chunk
is there completely or not at all. Any number of processes may read and write a store at once: each writes chunks of its
own, and many small chunks are merged into one.

The first time that a process finds a key in a chunk, it compares the whole chunk with its seal. A damaged chunk is
deleted, and a line says so: its rows are then missing, and are computed again. Chunks without a seal, those of older
versions, are read unchecked.
"""

import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from labelsieve.errors import InputError, warn_of_damage
from labelsieve.files import disk_error, faults, refuse_no_folder, sync_folder, write_seal

KEY_BYTES = 16
KEY = np.dtype(f"S{KEY_BYTES}")
FLUSH_BYTES, FLUSH_SECONDS = 2**20, 10.0  # rows of this size or age are written; a kill loses at most these
SMALL_CHUNK = 2**26  # bytes of rows
MAX_SMALL_CHUNKS = 8  # more are merged
MERGE_EVERY = 64  # chunks that one process has written
PARTS = ("keys.npy", "sha256", "rows.npy")  # files of a chunk, in the order in which they are deleted
ABANDONED = 3600.0  # seconds after which an incomplete chunk is removed

Array = NDArray[Any]


def cache_folder(given: Path | str | None = None) -> Path:
    """Return the folder for what can be computed again: the given one, $LABELSIEVE_CACHE, or ~/.cache/labelsieve."""
    if given or os.environ.get("LABELSIEVE_CACHE"):
        return Path(given or os.environ["LABELSIEVE_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labelsieve"


class _Chunk(NamedTuple):
    keys: Array  # (m) S16
    rows: Array  # (m, width), memory-mapped


class _Index(NamedTuple):
    """The keys of all chunks one after the other, for binary search."""

    chunks: dict[str, _Chunk]
    keys: Array  # (n) sorted
    order: Array  # (n) place of each sorted key
    starts: Array  # (chunks + 1) first place of each chunk

    def chunk_of(self, places: Array) -> Array:
        """Return the number of the chunk of each place."""
        return np.searchsorted(self.starts, places, side="right") - 1

    def find(self, keys: Array) -> Array:
        """Return the place of each key, -1 if it is not there."""
        at = np.searchsorted(self.keys, keys)
        found = np.full(len(keys), -1, np.int64)
        inside = at < len(self.keys)
        inside[inside] = self.keys[at[inside]] == keys[inside]
        found[inside] = self.order[at[inside]]
        return found


def _index_of(chunks: dict[str, _Chunk]) -> _Index:
    keys = [chunk.keys for chunk in chunks.values()]
    joined: Array = np.concatenate([np.empty(0, KEY), *keys])
    order = np.argsort(joined, kind="stable")
    return _Index(chunks, joined[order], order, np.cumsum([0, *map(len, keys)]))


class Store:
    """Rows of one width and type on disk, by 16-byte keys."""

    def __init__(
        self, folder: Path, width: int, dtype: DTypeLike = np.float16, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder, self.width, self.dtype, self.clock = folder, width, np.dtype(dtype), clock
        refuse_no_folder(folder, "--cache")
        self._index = _index_of({})  # replaced as a whole: other threads may be reading it
        self._whole: set[str] = set()  # chunks that agree with their seals
        self._changing = threading.RLock()  # held while any of these is replaced
        self._pending: dict[bytes, Array] = {}
        self._added: set[bytes] = set()  # keys that this process has added since the last refresh
        self._flushed = clock()
        self._flushes = 0
        self.refresh()

    def __contains__(self, key: bytes) -> bool:
        return key in self._added or bool(self._find([key])[1][0] >= 0)

    def get(self, key: bytes) -> Array | None:
        """Return one row; None if it is not there, or was added after the last refresh."""
        index, (place,) = self._find([key])
        if place < 0:
            return None
        number = int(index.chunk_of(place))
        return list(index.chunks.values())[number].rows[place - index.starts[number]]

    def add(self, keys: Sequence[bytes], rows: Array) -> None:
        """Add rows (len(keys), width); they are on disk after `flush`, or when there are enough of them."""
        with self._changing:
            for key, row in zip(keys, rows.astype(self.dtype, copy=False), strict=True):
                self._pending[key] = row
                self._added.add(key)
        size = len(self._pending) * self.width * self.dtype.itemsize
        if size >= FLUSH_BYTES or self.clock() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the added rows to disk."""
        self._flushed = self.clock()
        with self._changing:
            if not self._pending:
                return
            _write_chunk(self.folder, np.array(list(self._pending), KEY), [np.stack(list(self._pending.values()))])
            self._pending.clear()
        self._flushes += 1
        if self._flushes % MERGE_EVERY == 0:
            self.compact()

    def refresh(self) -> None:
        """Read the list of chunks again, with those that other processes have written."""
        with self._changing:
            while True:
                names = [file.name.removesuffix(".keys.npy") for file in sorted(self.folder.glob("*.keys.npy"))]
                found = {name: self._index.chunks.get(name) or self._open(name) for name in names}
                if all(chunk or (self.folder / f"{name}.keys.npy").exists() for name, chunk in found.items()):
                    break  # else a chunk was merged into another one meanwhile, or is damaged
            self._index = _index_of({name: chunk for name, chunk in found.items() if chunk})
            self._added = set(self._pending)

    def rows(self, keys: Sequence[bytes], dtype: DTypeLike | None = None) -> Array:
        """Return the rows (len(keys), width) of these keys; raise KeyError if one is missing."""
        self.flush()
        self.refresh()
        index, places = self._find(keys)
        if len(places) and places.min() < 0:
            raise KeyError(keys[int(places.argmin())])
        rows: Array = np.empty((len(keys), self.width), dtype or self.dtype)
        numbers = index.chunk_of(places)  # (n)
        for number, chunk in enumerate(index.chunks.values()):
            wanted = np.flatnonzero(numbers == number)
            rows[wanted] = chunk.rows[places[wanted] - index.starts[number]]
        return rows

    def compact(self) -> None:
        """Merge small chunks if there are many, and remove incomplete ones; do nothing while another process does."""
        if not self.folder.is_dir():
            return
        with _try_lock(self.folder / "lock") as locked:
            if locked:
                self.refresh()
                self._merge()
                _remove_abandoned(self.folder)
        self.refresh()

    def _find(self, keys: Sequence[bytes]) -> tuple[_Index, Array]:
        """Return the index and the place of each key in it, -1 if it is not there; the chunks used are whole."""
        wanted: Array = np.array(keys, KEY)
        while True:
            index = self._index
            places = index.find(wanted)
            if index.chunks.keys() <= self._whole:
                return index, places
            names = list(index.chunks)
            used = {names[number] for number in set(index.chunk_of(places[places >= 0]).tolist())}
            if self._all_whole(used):
                return index, places

    def _all_whole(self, names: Iterable[str]) -> bool:
        """Compare chunks with their seals; if one is damaged, delete it, list the chunks again and return False."""
        with self._changing:
            unchecked = set(names) - self._whole
            for name in unchecked:
                damaged = faults(self.folder / f"{name}.sha256")
                if not (self.folder / f"{name}.keys.npy").exists():
                    continue  # merged into another chunk, or deleted, by another process
                if damaged:
                    self._discard(name)
                else:
                    self._whole.add(name)
            if unchecked <= self._whole:
                return True
            self.refresh()
            return False

    def _discard(self, name: str) -> None:
        """Delete a damaged chunk."""
        _delete_chunk(self.folder, name)
        warn_of_damage(f"{self.folder / name}.rows.npy is damaged; its rows are computed again")

    def _merge(self) -> None:
        self._all_whole([name for name, chunk in self._index.chunks.items() if chunk.rows.nbytes < SMALL_CHUNK])
        small = {name: chunk for name, chunk in self._index.chunks.items() if chunk.rows.nbytes < SMALL_CHUNK}
        if len(small) <= MAX_SMALL_CHUNKS:
            return
        keys: Array = np.concatenate([chunk.keys for chunk in small.values()])
        first = np.zeros(len(keys), bool)
        first[np.unique(keys, return_index=True)[1]] = True  # a key that two processes have added is kept once
        starts = np.cumsum([0, *(len(chunk.keys) for chunk in small.values())])
        parts = (chunk.rows[first[s : s + len(chunk.keys)]] for s, chunk in zip(starts, small.values(), strict=False))
        _write_chunk(self.folder, keys[first], parts)
        for name in small:
            _delete_chunk(self.folder, name)

    def _open(self, name: str) -> _Chunk | None:
        """Open a chunk; None if it is missing or damaged: its rows are then computed again."""
        try:
            keys = np.load(self.folder / f"{name}.keys.npy", allow_pickle=False)
            rows = np.load(self.folder / f"{name}.rows.npy", mmap_mode="r", allow_pickle=False)
            if keys.dtype == KEY and rows.dtype == self.dtype and rows.shape == (*keys.shape, self.width):
                return _Chunk(keys, rows.view(np.ndarray))
        except FileNotFoundError:  # merged into another chunk meanwhile, or lost
            return None
        except (EOFError, ValueError, SyntaxError, TokenError):
            pass
        except OSError as error:
            raise InputError(f"cannot read {self.folder}: {error.strerror or error}; use another --cache") from error
        self._discard(name)
        return None


def _write_chunk(folder: Path, keys: Array, rows: Iterable[Array]) -> None:
    """Write a chunk with a random name; `rows` are the parts of an array."""
    name = secrets.token_hex(8)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        parts = iter(rows)
        first = next(parts)
        _write_array(folder / f"{name}.rows.npy", (len(keys), first.shape[1]), first, parts)
        _write_array(folder / f"{name}.keys.npy", keys.shape, keys)
        write_seal(folder / f"{name}.sha256", [f"{name}.keys.npy", f"{name}.rows.npy"])
        sync_folder(folder)
    except OSError as error:
        raise disk_error(folder / name, error) from error


def _delete_chunk(folder: Path, name: str) -> None:
    for part in PARTS:
        try:
            (folder / f"{name}.{part}").unlink(missing_ok=True)
        except OSError as error:
            raise disk_error(folder / f"{name}.{part}", error) from error


def _write_array(path: Path, shape: tuple[int, ...], first: Array, others: Iterable[Array] = ()) -> None:
    """Write an array in parts to a temporary file, flush it to disk and rename it."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for part in (first, *others):
                file.write(np.ascontiguousarray(part).data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes have left: temporary files, and rows or seals without keys."""
    for file in [*folder.glob(".*.tmp"), *folder.glob("*.rows.npy"), *folder.glob("*.sha256")]:
        complete = (folder / f"{file.name.partition('.')[0]}.keys.npy").exists() and not file.name.startswith(".")
        try:
            if not complete and time.time() - file.stat().st_mtime > ABANDONED:
                file.unlink()
        except FileNotFoundError:
            continue


@contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    """Yield whether the lock could be taken from all other processes and threads."""
    try:
        file = path.open("wb")
    except OSError as error:
        raise disk_error(path, error) from error
    with file:  # closing it releases the lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held by another one, or not supported by the file system
            yield False
            return
        yield True
