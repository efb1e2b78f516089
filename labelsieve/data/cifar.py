"""CIFAR-10 and CIFAR-100 as published: the python or the binary version, as a folder or as the archive untouched.

An archive is read in memory, member by member, and never unpacked."""

import gzip
import hashlib
import io
import itertools
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.arrays import label_tensor
from labelsieve.data.pickles import load_plain, shown
from labelsieve.data.sets import Labelled
from labelsieve.errors import InputError

Array = np.ndarray[Any, Any]
PIXELS = 3 * 32 * 32
LARGEST_FILE = 300_000_000  # bytes; the largest published one has 155 million
LARGEST_ARCHIVE = 600_000_000  # bytes, unpacked
MOST_MEMBERS = 10_000
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


@dataclass(frozen=True)
class Layout:
    """The files of one published version."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str  # has the names of the classes
    labels: str  # key of the labels in a pickle; "" in binary versions
    names: str  # key of the classes' names, likewise
    label_bytes: int = 0  # before the pixels in a binary version; the last is the label

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.meta)


LAYOUTS = (
    Layout("CIFAR-10", "cifar-10-batches-py", BATCHES, "test_batch", "batches.meta", "labels", "label_names"),
    Layout("CIFAR-100", "cifar-100-python", ("train",), "test", "meta", "fine_labels", "fine_label_names"),
    Layout(
        "CIFAR-10",
        "cifar-10-batches-bin",
        tuple(f"{batch}.bin" for batch in BATCHES),
        "test_batch.bin",
        "batches.meta.txt",
        labels="",
        names="",
        label_bytes=1,
    ),
    Layout(
        "CIFAR-100",
        "cifar-100-binary",
        ("train.bin",),
        "test.bin",
        "fine_label_names.txt",
        labels="",
        names="",
        label_bytes=2,  # coarse, then fine
    ),
)
WANTED = frozenset(name for layout in LAYOUTS for name in layout.files)
DIGESTS = {  # of the training and the test set's contents
    "CIFAR-10": (
        "973ef2abb5897efc795681a4d79a6f5f642fa2bcb1a828f7476017c89db53a57",
        "2c33b053d1cd726af8d86e174a96dd89d7000ba1412add026d68142375b89d51",
    ),
    "CIFAR-100": (
        "3f04bb596c34a28a39a030be86f7777c004db9cb45165568a504cca261f6765c",
        "9f0797cda23af3231dce0cca7e8d619c0607f6bb8ca05e9b95ff23e4d044c600",
    ),
}
PUBLISHED_MD5 = {
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}


class Described(NamedTuple):
    """What the data is, in words, and its sets."""

    words: str
    train: Labelled
    test: Labelled


def is_cifar(path: Path) -> bool:
    """Whether this looks like CIFAR as published, from names and the first bytes alone."""
    try:
        if path.is_dir():
            return any(_layout_of(folder) for folder in _folders(path))
        return path.is_file() and (path.name in PUBLISHED_MD5 or _archive_looks_right(path))
    except OSError:
        return False


def read_described(path: Path) -> Described:
    """Training and test set, CIFAR-100 with its hundred fine classes, and whether they are the published ones."""
    layout, train, test = _read(path)
    published = (digest(train), digest(test)) == DIGESTS[layout.name]
    words = f"the published {layout.name}" if published else f"not the published {layout.name} (other contents)"
    return Described(words, train, test)


def digest(data: Labelled) -> str:
    """SHA-256 over images and labels, so that another way of packing them is the same data."""
    sha = hashlib.sha256(data.images.numpy().tobytes())
    sha.update(data.labels.numpy().astype("<i8").tobytes())
    return sha.hexdigest()


def _read(path: Path) -> tuple[Layout, Labelled, Labelled]:
    layout, files = _from_folder(path) if path.is_dir() else _from_archive(path)
    classes = _class_names(layout, files[layout.meta])
    train = [_samples(layout, files[name], classes) for name in layout.train]
    return layout, _joined(train, classes), _joined([_samples(layout, files[layout.test], classes)], classes)


@dataclass(frozen=True)
class _File:
    """A file's contents, and how people know it."""

    name: str
    shown: str
    content: bytes


def _folders(path: Path) -> Iterator[Path]:
    """The folder itself and those right inside it."""
    yield path
    with os.scandir(path) as entries:
        yield from sorted(Path(entry.path) for entry in entries if entry.is_dir())


def _layout_of(folder: Path) -> Layout | None:
    """Which version's files lie here, be it not all of them."""
    for layout in LAYOUTS:
        some = any(_is_file(folder, name) for name in (*layout.train, layout.test))
        if some and (not layout.label_bytes or _binary_looks_right(folder, layout)):
            return layout
    return None


def _is_file(folder: Path, name: str) -> bool:
    return (folder / name).is_file()


def _binary_looks_right(folder: Path, layout: Layout) -> bool:
    """Other sets have files of these names as well, without the names of the classes and with other records."""
    if _is_file(folder, layout.meta):
        return True
    sizes = [(folder / name).stat().st_size for name in layout.files if _is_file(folder, name)]
    return any(size and size % (layout.label_bytes + PIXELS) == 0 for size in sizes)


def _from_folder(path: Path) -> tuple[Layout, Mapping[str, _File]]:
    with _reading(path):
        found = [(folder, layout) for folder in _folders(path) if (layout := _layout_of(folder))]
        if not found:
            raise InputError(f"{path} is no CIFAR folder; give one such as {LAYOUTS[0].folder} or its .tar.gz")
        if found[0][0] == path:
            found = found[:1]
        if len(found) > 1:
            names = ", ".join(folder.name for folder, _ in found)
            raise InputError(f"{path} has several datasets ({names}); name one of these folders")
        folder, layout = found[0]
        _require(layout, [name for name in layout.files if _is_file(folder, name)], folder)
        return layout, {name: _from_disk(folder / name) for name in layout.files}


def _from_disk(path: Path) -> _File:
    if path.stat().st_size > LARGEST_FILE:
        raise InputError(f"{path} is larger than any file of CIFAR; download it again")
    return _File(path.name, str(path), path.read_bytes())


def _require(layout: Layout, names: Iterable[str], where: Path) -> None:
    missing = sorted(set(layout.files) - set(names))
    if missing:
        raise InputError(f"{where} has no {missing[0]} ({layout.name} needs it); download it again")


def _from_archive(path: Path) -> tuple[Layout, Mapping[str, _File]]:
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is neither a file nor a folder; give the published .tar.gz or its folder")
    with _reading(path), path.open("rb") as file:
        try:
            files = dict(_members(path, file))
        except InputError as error:
            raise InputError(f"{error}{_not_published(path)}") from error
    most = max(LAYOUTS, key=lambda layout: len(files.keys() & set(layout.files)) / len(layout.files))
    if not files.keys() & set(most.files):
        raise InputError(f"{path} has no files of CIFAR; give the published .tar.gz or its folder")
    _require(most, files, path)
    return most, files


def _members(path: Path, file: IO[bytes]) -> Iterator[tuple[str, _File]]:
    """The files of CIFAR in an archive; links, devices and names that lead elsewhere are passed over."""
    seen = set()
    stream = _Limited(_unzipped(file), path)
    with _unpacking(path), tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as archive:  # type: ignore[call-overload]
        for member in _at_most(archive, path):
            name = _wanted(member)
            if name is None:
                continue
            if name in seen:
                raise InputError(f"{path} has {name} twice; download it again")
            seen.add(name)
            content = archive.extractfile(member)
            assert content is not None
            yield name, _File(name, f"{path}: {name}", content.read())
        while stream.read(1 << 20):  # to the end, where the checksum is
            pass


def _at_most(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    for number, member in enumerate(archive):
        if number == MOST_MEMBERS:
            raise InputError(f"{path} has over {MOST_MEMBERS:,} members; it is not CIFAR")
        if member.size > LARGEST_FILE:
            raise InputError(f"{path} has a member larger than any file of CIFAR; it is not CIFAR")
        yield member


def _wanted(member: tarfile.TarInfo) -> str | None:
    """The plain name of a file of CIFAR, else None."""
    place = PurePosixPath(member.name)
    elsewhere = place.is_absolute() or ".." in place.parts
    if elsewhere or not member.isreg() or member.issparse() or place.name not in WANTED:
        return None
    return place.name


def _archive_looks_right(path: Path) -> bool:
    """Whether one of the first few members is a file of CIFAR."""
    folders = {layout.folder for layout in LAYOUTS}
    try:
        with path.open("rb") as file, _unpacking(path):
            stream = _Limited(_unzipped(file), path)
            with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
                for member in itertools.islice(archive, 20):
                    if _wanted(member) or folders & set(PurePosixPath(member.name).parts):
                        return True
                    if member.size > 1_000_000:
                        return False
    except InputError:
        pass
    return False


class _Limited:
    """A stream that is refused once it gets too long."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self.stream, self.path, self.left = stream, path, LARGEST_ARCHIVE

    def read(self, size: int) -> bytes:
        block = self.stream.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise InputError(f"{self.path} unpacks to over {LARGEST_ARCHIVE:,} bytes; it is not CIFAR")
        return block


def _unzipped(file: IO[bytes]) -> IO[bytes]:
    zipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if zipped else file  # type: ignore[return-value]


@contextmanager
def _unpacking(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is cut off, damaged or no .tar.gz archive; download it again") from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {error.filename or path}: {error.strerror or error}") from error


def _not_published(archive: Path) -> str:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    published = [md5 for name, md5 in PUBLISHED_MD5.items() if name.endswith(".tar.gz")]
    return "" if found in published else " (its md5 sum is none of the published archives')"


def _joined(parts: list[Labelled], classes: tuple[str, ...]) -> Labelled:
    images = parts[0].images if len(parts) == 1 else torch.cat([part.images for part in parts])
    return Labelled(images, torch.cat([part.labels for part in parts]), classes)


def _samples(layout: Layout, file: _File, classes: tuple[str, ...]) -> Labelled:
    """One file's images and labels."""
    with _blaming(file):
        rows, labels = _records(layout, file) if layout.label_bytes else _pickled(layout, file)
        images = torch.from_numpy(rows.reshape(-1, 3, 32, 32))
        return Labelled(images, label_tensor(labels, len(classes), file.shown), classes)


def _records(layout: Layout, file: _File) -> tuple[Array, Array]:
    """Rows of a few bytes of labels and 3,072 of pixels, channel by channel."""
    size = layout.label_bytes + PIXELS
    if not file.content or len(file.content) % size:
        raise InputError(
            f"{file.shown} is cut off: its {len(file.content):,} bytes are no whole number of records "
            f"of {size:,}; download it again"
        )
    rows = np.frombuffer(file.content, np.uint8).reshape(-1, size)
    return rows[:, layout.label_bytes :].copy(), rows[:, layout.label_bytes - 1]


def _pickled(layout: Layout, file: _File) -> tuple[Array, Array]:
    record = _record(file)
    rows, labels = record.get("data"), record.get(layout.labels)
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != PIXELS:
        raise InputError(f"{file.shown} has no 'data' of rows of {PIXELS:,} bytes; download it again")
    if not isinstance(labels, list) or any(type(label) is not int or abs(label) >= 2**31 for label in labels):
        raise InputError(f"{file.shown} has no list of whole numbers {layout.labels!r}; download it again")
    if len(labels) != len(rows) or not labels:
        raise InputError(f"{file.shown} has {len(rows):,} images but {len(labels):,} labels; download it again")
    return rows.copy(), np.array(labels, dtype=np.int64)


def _record(file: _File) -> dict[str, object]:
    """The dict of a pickle, by plain names."""
    found = load_plain(file.content, file.shown)
    if not isinstance(found, dict):
        raise InputError(f"{file.shown} holds no dict; download it again")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}


def _class_names(layout: Layout, file: _File) -> tuple[str, ...]:
    with _blaming(file):
        names = file.content.splitlines() if layout.label_bytes else _record(file).get(layout.names)
        if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
            raise InputError(f"{file.shown} has no list of names {layout.names!r}; download it again")
        try:
            texts = [(name.decode() if isinstance(name, bytes) else name).strip() for name in names]
        except UnicodeDecodeError as error:
            raise InputError(f"{file.shown} has a class name that is no text; download it again") from error
        classes = tuple(text for text in texts if text)
        if len(classes) < 2 or not all(name.isprintable() for name in classes):
            raise InputError(f"{file.shown} has no names of classes, one each; download it again")
        return classes


@contextmanager
def _blaming(file: _File) -> Iterator[None]:
    """Where a file does not parse, say whether it is the published one."""
    try:
        yield
    except InputError as error:
        published = PUBLISHED_MD5.get(file.name)
        if published in (None, hashlib.md5(file.content, usedforsecurity=False).hexdigest()):
            raise
        raise InputError(f"{error} (its md5 sum is not the published {file.name}'s)") from error


KINDS = {
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worst": "worse_label",
    "noisy": "noisy_label",
    "clean": "clean_label",
}
LARGEST_LABEL_FILE = 50_000_000  # bytes; the published ones have at most 2.5 million
OLD_TORCH = 0x1950A86A20F9469CFC6C  # first number of a file that PyTorch saved before its version 1.6
AGAIN = "download it again from the CIFAR-N authors"


def read_cifar_n(path: Path, kind: str) -> Tensor:
    """(n) labels. `kind`: aggregate, random1, random2, random3 or worst; noisy of CIFAR-100N; clean of both."""
    arrays = _arrays(path)
    kinds = [name for name, key in KINDS.items() if key in arrays]
    if not kinds:
        held = ", ".join(shown(key) for key in list(arrays)[:6]) or "nothing"
        raise InputError(f"{path} has no labels of CIFAR-N (it has: {held}); {AGAIN}")
    if kind not in kinds:
        raise InputError(f"{path} has no labels {kind!r}; it has: {', '.join(kinds)}")
    labels = arrays[KINDS[kind]]
    if not isinstance(labels, np.ndarray) or not labels.size:
        raise InputError(f"{path}: {KINDS[kind]} is no array of labels; {AGAIN}")
    return label_tensor(labels, 100 if KINDS["noisy"] in arrays else 10, f"{path}: {KINDS[kind]}")


def _arrays(path: Path) -> dict[str, Any]:
    """What a file holds, by plain names, whichever way it was saved."""
    content = _content(path)
    if content.startswith(b"PK"):
        found = load_plain(_zipped_pickle(content, path), path)
    elif content.startswith(b"\x93NUMPY"):
        found = load_plain(_boxed_pickle(content, path), path, boxed=True)
    else:
        found = _old_torch(content, path)
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no dict of labels; {AGAIN}")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}


def _content(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no file; give CIFAR-10_human.pt or CIFAR-100_human.pt")
    try:
        if path.stat().st_size > LARGEST_LABEL_FILE:
            raise InputError(f"{path} is larger than any file of CIFAR-N; {AGAIN}")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _zipped_pickle(content: bytes, path: Path) -> bytes:
    """The part of a file of PyTorch's that says what it holds."""
    faults = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if name == "data.pkl" or name.endswith("/data.pkl")]
            if len(names) != 1:
                raise InputError(f"{path} was not saved by PyTorch: it has {len(names)} parts data.pkl; {AGAIN}")
            with archive.open(names[0]) as part:
                found = part.read(LARGEST_LABEL_FILE + 1)
    except InputError:
        raise
    except faults as error:
        raise InputError(f"{path} is cut off, damaged or encrypted; {AGAIN}") from error
    if len(found) > LARGEST_LABEL_FILE:
        raise InputError(f"{path} unpacks to more than any file of CIFAR-N; {AGAIN}")
    return found


def _boxed_pickle(content: bytes, path: Path) -> bytes:
    """What follows the header of a .npy file, which must announce an object."""
    width = 2 if content[6:7] == b"\x01" else 4  # of the header's length
    start = 8 + width + int.from_bytes(content[8 : 8 + width], "little")
    if b"|O" not in content[8 + width : start]:
        raise InputError(f"{path} holds a single array, not the labels of CIFAR-N by name; {AGAIN}")
    return content[start:]


def _old_torch(content: bytes, path: Path) -> object:
    """The fourth pickle, after a fixed number, a version and notes on the machine."""
    stream = io.BytesIO(content)
    first = load_plain(stream, path)
    if type(first) is not int or first != OLD_TORCH:
        return first
    load_plain(stream, path)
    load_plain(stream, path)
    return load_plain(stream, path)
