"""Read CIFAR-10 and CIFAR-100 as published, and the human labels of CIFAR-10N and CIFAR-100N.

The Python and the binary version of CIFAR are read, as a folder or as the archive. Archives are read in memory, member
by member, and never extracted.
"""

import codecs
import gzip
import hashlib
import io
import itertools
import os
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.arrays import label_tensor
from labelsieve.data.classes import Array, join_names
from labelsieve.data.pickles import load_plain
from labelsieve.data.sets import Labelled, Listing
from labelsieve.errors import InputError

PIXELS = 3 * 32 * 32
MAX_FILE = 300_000_000  # bytes; the largest published file has 155 million
MAX_ARCHIVE = 600_000_000  # bytes, uncompressed
MAX_MEMBERS = 10_000
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


@dataclass(frozen=True)
class _Layout:
    """The files of one published version."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str  # file with the class names
    labels: str = ""  # key of the labels in a pickle file
    names: str = ""  # key of the class names in a pickle file
    label_bytes: int = 0  # before the pixels in a binary file; the last of them is the label

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files."""
        return (*self.train, self.test, self.meta)


LAYOUTS = (
    _Layout("CIFAR-10", "cifar-10-batches-py", BATCHES, "test_batch", "batches.meta", "labels", "label_names"),
    _Layout("CIFAR-100", "cifar-100-python", ("train",), "test", "meta", "fine_labels", "fine_label_names"),
    _Layout(
        "CIFAR-10",
        "cifar-10-batches-bin",
        tuple(f"{batch}.bin" for batch in BATCHES),
        "test_batch.bin",
        "batches.meta.txt",
        label_bytes=1,
    ),
    _Layout(
        "CIFAR-100",
        "cifar-100-binary",
        ("train.bin",),
        "test.bin",
        "fine_label_names.txt",
        label_bytes=2,  # coarse, then fine
    ),
)
ARCHIVES = tuple(f"cifar-{number}-{version}.tar.gz" for number in (10, 100) for version in ("python", "binary"))
KNOWN_FILES = frozenset(name for layout in LAYOUTS for name in layout.files)
DIGESTS = {  # contents of training and test set
    "CIFAR-10": (
        "973ef2abb5897efc795681a4d79a6f5f642fa2bcb1a828f7476017c89db53a57",
        "2c33b053d1cd726af8d86e174a96dd89d7000ba1412add026d68142375b89d51",
    ),
    "CIFAR-100": (
        "3f04bb596c34a28a39a030be86f7777c004db9cb45165568a504cca261f6765c",
        "9f0797cda23af3231dce0cca7e8d619c0607f6bb8ca05e9b95ff23e4d044c600",
    ),
}
CIFAR_N_KEYS = {
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worst": "worse_label",
    "noisy": "noisy_label",
    "clean": "clean_label",
}
MAX_CIFAR_N = 50_000_000  # bytes; the largest published file has 2.5 million
CIFAR_N_FILES = "CIFAR-10_human.pt or CIFAR-100_human.pt"
DOWNLOAD_AGAIN = "download it again from the CIFAR-N authors"
_RECONSTRUCT = np.empty(0).__reduce__()[0]
ARRAY_NAMES: list[Any] = [  # all that a file of PyTorch names for an array of int64
    (_RECONSTRUCT, "numpy.core.multiarray._reconstruct"),  # before NumPy 2
    (_RECONSTRUCT, "numpy._core.multiarray._reconstruct"),
    *(np.ndarray, np.dtype, type(np.dtype(np.int64)), codecs.encode),
]


def is_cifar(path: Path) -> bool:
    """Return whether a file or folder looks like CIFAR, from names and the first bytes."""
    try:
        if path.is_dir():
            return any(_layout_of(folder) for folder in _folders(path))
        return path.is_file() and (path.name in ARCHIVES or _is_cifar_archive(path))
    except OSError:
        return False


def read_cifar(path: Path) -> Listing:
    """Read training and test set, for CIFAR-100 with its 100 fine classes.

    The kind of the listing states whether the contents are the published ones.
    """
    layout, files = _read_folder(path) if path.is_dir() else _read_archive(path)
    classes = _class_names(layout, files[layout.meta])
    parts = [_samples(layout, files[name], classes) for name in layout.train]
    images, labels = torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
    train = Labelled(images, labels, classes)
    test = _samples(layout, files[layout.test], classes)
    published = (contents_digest(train), contents_digest(test)) == DIGESTS[layout.name]
    kind = f"the published {layout.name}" if published else f"not the published {layout.name} (other contents)"
    return Listing(train, test, kind=kind)


def contents_digest(data: Labelled) -> str:
    """Return the SHA-256 digest of images and labels, which does not depend on the file format."""
    sha = hashlib.sha256(data.images.numpy().tobytes())
    sha.update(data.labels.numpy().astype("<i8").tobytes())
    return sha.hexdigest()


def read_cifar_n(path: Path, kind: str) -> Tensor:
    """Return one label set of a CIFAR-N file, (n) int64.

    `kind`: aggregate, random1, random2, random3 or worst (CIFAR-10N), noisy (CIFAR-100N), or clean.
    """
    arrays = _cifar_n_arrays(path)
    kinds = [name for name, key in CIFAR_N_KEYS.items() if key in arrays]
    if kind not in kinds:
        found = f"label sets: {', '.join(kinds)}" if kinds else f"not a file of CIFAR-N, keys: {join_names(arrays, 6)}"
        raise InputError(f"{path} has no labels {kind!r} ({found})")
    labels = arrays[CIFAR_N_KEYS[kind]]
    if not isinstance(labels, np.ndarray) or not labels.size:
        raise InputError(f"{path}: {CIFAR_N_KEYS[kind]} is not an array of labels; {DOWNLOAD_AGAIN}")
    return label_tensor(labels, 100 if CIFAR_N_KEYS["noisy"] in arrays else 10, f"{path}: {CIFAR_N_KEYS[kind]}")


def check_records(content: bytes, size: int, place: str | Path) -> None:
    """Raise if the contents of a binary file are not one or more records of the given size."""
    if not content or len(content) % size:
        raise InputError(
            f"{place} is truncated: {len(content):,} bytes are not a multiple of the record size {size:,}; "
            "download it again"
        )


class _File(NamedTuple):
    """The contents of a file, and its name in messages."""

    place: str
    content: bytes


def _folders(path: Path) -> Iterator[Path]:
    """Yield a folder and its subfolders, not deeper."""
    yield path
    with os.scandir(path) as entries:
        yield from sorted(Path(entry.path) for entry in entries if entry.is_dir())


def _layout_of(folder: Path) -> _Layout | None:
    """Return the version that a folder contains files of; some may be missing."""
    for layout in LAYOUTS:
        some = any((folder / name).is_file() for name in (*layout.train, layout.test))
        if some and (not layout.label_bytes or _is_cifar_binary(folder, layout)):
            return layout
    return None


def _is_cifar_binary(folder: Path, layout: _Layout) -> bool:
    """Return whether binary files are CIFAR; other datasets use these file names for other records."""
    if (folder / layout.meta).is_file():
        return True
    sizes = [(folder / name).stat().st_size for name in layout.files if (folder / name).is_file()]
    return any(size and size % (layout.label_bytes + PIXELS) == 0 for size in sizes)


def _read_folder(path: Path) -> tuple[_Layout, Mapping[str, _File]]:
    with _read_errors(path):
        found = [(folder, layout) for folder in _folders(path) if (layout := _layout_of(folder))]
        if not found:
            raise InputError(f"{path} is not CIFAR; pass a folder such as {LAYOUTS[0].folder}, or its .tar.gz")
        if len(found) > 1 and found[0][0] != path:
            names = ", ".join(folder.name for folder, _ in found)
            raise InputError(f"{path} contains several datasets ({names}); pass one of these folders")
        folder, layout = found[0]
        files = {name: folder / name for name in layout.files if (folder / name).is_file()}
        _check_missing(layout, files, folder)
        return layout, {name: _read_file(file, MAX_FILE, "CIFAR") for name, file in files.items()}


def _read_file(path: Path, limit: int, dataset: str) -> _File:
    if path.stat().st_size > limit:
        raise InputError(f"{path} is larger than any file of {dataset}; download it again")
    return _File(str(path), path.read_bytes())


def _check_missing(layout: _Layout, files: Mapping[str, object], place: Path) -> None:
    missing = sorted(set(layout.files) - set(files))
    if missing:
        raise InputError(f"{place} has no {missing[0]}, which {layout.name} needs; download it again")


def _read_archive(path: Path) -> tuple[_Layout, Mapping[str, _File]]:
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is neither a file nor a folder; pass the published .tar.gz or its folder")
    with _read_errors(path), path.open("rb") as file:
        files = dict(_members(path, file))
    layout = max(LAYOUTS, key=lambda layout: len(files.keys() & set(layout.files)) / len(layout.files))
    if not files.keys() & set(layout.files):
        raise InputError(f"{path} contains no files of CIFAR; pass the published .tar.gz or its folder")
    _check_missing(layout, files, path)
    return layout, files


def _members(path: Path, file: IO[bytes]) -> Iterator[tuple[str, _File]]:
    """Yield the files of CIFAR in an archive; ignore links, devices and paths that lead elsewhere."""
    seen = set()
    stream = _LimitedStream(_decompressed(file), path)
    with tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as archive:  # type: ignore[call-overload]
        for number, member in enumerate(archive):
            if number == MAX_MEMBERS or member.size > MAX_FILE:
                raise InputError(f"{path} is not CIFAR: it has too many or too large members")
            name = _cifar_name(member)
            if name is None:
                continue
            if name in seen:
                raise InputError(f"{path} contains {name} twice; download it again")
            seen.add(name)
            content = archive.extractfile(member)
            assert content is not None
            yield name, _File(f"{path}: {name}", content.read())
        while stream.read(1 << 20):  # up to the checksum at the end
            pass


def _cifar_name(member: tarfile.TarInfo) -> str | None:
    """Return the name of a file of CIFAR without its folder, or None."""
    path = PurePosixPath(member.name)
    elsewhere = path.is_absolute() or ".." in path.parts
    if elsewhere or not member.isreg() or member.issparse() or path.name not in KNOWN_FILES:
        return None
    return path.name


def _is_cifar_archive(path: Path) -> bool:
    """Return whether one of the first members of an archive is a file of CIFAR."""
    folders = {layout.folder for layout in LAYOUTS}
    try:
        with _read_errors(path), path.open("rb") as file:
            stream = _LimitedStream(_decompressed(file), path)
            with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
                for member in itertools.islice(archive, 20):
                    if _cifar_name(member) or folders & set(PurePosixPath(member.name).parts):
                        return True
                    if member.size > 1_000_000:
                        return False
    except InputError:
        pass
    return False


class _LimitedStream:
    """A stream that raises once it exceeds the size limit of archives."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self.stream, self.path, self.left = stream, path, MAX_ARCHIVE

    def read(self, size: int) -> bytes:
        block = self.stream.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise InputError(f"{self.path} is not CIFAR: it expands to over {MAX_ARCHIVE:,} bytes")
        return block


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    zipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if zipped else file  # type: ignore[return-value]


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Convert errors of reading files and damaged archives to InputError."""
    try:
        yield
    except InputError:
        raise
    except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, ValueError, OverflowError) as error:
        raise InputError(f"{path} is truncated, damaged or not a .tar.gz archive; download it again") from error
    except OSError as error:
        raise InputError(f"cannot read {error.filename or path}: {error.strerror or error}") from error


def _samples(layout: _Layout, file: _File, classes: tuple[str, ...]) -> Labelled:
    """Return images and labels of one file."""
    rows, labels = _binary_records(layout, file) if layout.label_bytes else _pickled_records(layout, file)
    images = torch.from_numpy(rows.reshape(-1, 3, 32, 32))
    return Labelled(images, label_tensor(labels, len(classes), file.place), classes)


def _binary_records(layout: _Layout, file: _File) -> tuple[Array, Array]:
    """Return pixels and labels of records of label bytes and 3,072 bytes of pixels, channel by channel."""
    size = layout.label_bytes + PIXELS
    check_records(file.content, size, file.place)
    rows = np.frombuffer(file.content, np.uint8).reshape(-1, size)
    return rows[:, layout.label_bytes :].copy(), rows[:, layout.label_bytes - 1]


def _pickled_records(layout: _Layout, file: _File) -> tuple[Array, Array]:
    record = _read_dict(file)
    rows, labels = record.get("data"), record.get(layout.labels)
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != PIXELS:
        raise InputError(f"{file.place} has no 'data' of shape (n, {PIXELS}) uint8; download it again")
    integers = isinstance(labels, list) and all(type(label) is int and abs(label) < 2**31 for label in labels)
    if not integers or not labels or len(labels) != len(rows):
        raise InputError(
            f"{file.place} has no list {layout.labels!r} of {len(rows):,} integers, one per image; download it again"
        )
    return rows.copy(), np.array(labels, dtype=np.int64)


def _read_dict(file: _File) -> dict[str, Any]:
    """Return the dict of a pickle file, with strings as keys."""
    return _text_keys(load_plain(file.content, file.place), file.place)


def _text_keys(found: object, place: str | Path) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InputError(f"{place} contains no dict; download it again")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}


def _class_names(layout: _Layout, file: _File) -> tuple[str, ...]:
    names = file.content.splitlines() if layout.label_bytes else _read_dict(file).get(layout.names)
    if isinstance(names, list) and all(isinstance(name, bytes | str) for name in names):
        texts = [(name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name) for name in names]
        classes = tuple(text.strip() for text in texts if text.strip())
        if len(classes) > 1 and all(name.isprintable() for name in classes):
            return classes
    raise InputError(f"{file.place} has no list of class names {layout.names!r}; download it again")


def _cifar_n_arrays(path: Path) -> dict[str, Any]:
    """Return the contents of a CIFAR-N file by name."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file; pass {CIFAR_N_FILES}")
    with _read_errors(path):
        content = _read_file(path, MAX_CIFAR_N, "CIFAR-N").content
    if content.startswith(b"\x93NUMPY"):
        raise InputError(f"{path} is in the order of TensorFlow Datasets, not of CIFAR's files; pass {CIFAR_N_FILES}")
    try:
        if _expanded_size(content) > MAX_CIFAR_N:
            raise InputError(f"{path} expands to more than any file of CIFAR-N; {DOWNLOAD_AGAIN}")
        with warnings.catch_warnings(), torch.serialization.safe_globals(ARRAY_NAMES):
            warnings.simplefilter("ignore")  # about pickles that PyTorch did not write
            found = torch.load(io.BytesIO(content), weights_only=True)
    except InputError:
        raise
    except Exception as error:  # damage raises errors of many types
        raise InputError(f"{path} is truncated, damaged or not the published file; {DOWNLOAD_AGAIN}") from error
    return _text_keys(found, path)


def _expanded_size(content: bytes) -> int:
    """Return the size of a file that PyTorch saved, without compression."""
    if not content.startswith(b"PK"):
        return len(content)  # saved before version 1.6
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return sum(member.file_size for member in archive.infolist())
