"""A person's own arrays: .npz with images or features and labels, .npy with images."""

import ast
import csv
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.classes import missing, numbered
from labelsieve.data.columns import Features, Rows, feature_tensor
from labelsieve.data.images import Bad
from labelsieve.data.sets import Labelled
from labelsieve.errors import InputError

Array = np.ndarray[Any, Any]
MOST_CHANNELS = 16
KEYS = "images, labels and, as you like, test_images, test_labels, classes, clean_labels"
FEATURE_KEYS = "features, labels and, as you like, test_features, test_labels, classes, clean_labels, columns"
MOST_CLASSES = 10_000  # that are named by numbers alone, unless there are as many samples
LONGEST_HEADER = 10_000  # bytes, as in NumPy
LARGE, MOST_EXPANDED = 2**30, 200  # a larger file must not expand by more; pictures expand 2- to 50-fold
VERSIONS = {b"\x01": "<H", b"\x02": "<I", b"\x03": "<I"}  # how each gives the length of its header


def labelled(images: Array, labels: Array, classes: Sequence[str], source: str = "data") -> Labelled:
    """Arrays as a labelled set: images (n, H, W) or (n, H, W, C) uint8, labels (n) whole numbers."""
    data = Labelled(image_tensor(images, source), label_tensor(labels, len(classes), source), tuple(classes))
    if len(labels) != len(images):
        raise InputError(f"{source} has {len(images):,} images but {len(labels):,} labels; give one label per image")
    return data


def image_tensor(images: Array, source: str) -> Tensor:
    """(n, H, W) or (n, H, W, C) uint8 -> (n, C, H, W)."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
        raise InputError(
            f"{source}: images must be uint8, 0 to 255, of shape (n, height, width) or (n, height, width, channels), "
            f"got {images.dtype} {images.shape}{_scaling(images)}"
        )
    if images.ndim == 4 and images.shape[3] > MOST_CHANNELS:
        raise InputError(
            f"{source}: images have {images.shape[3]} channels; "
            "if they are channels first, use images.transpose(0, 2, 3, 1)"
        )
    channels_last = images[..., None] if images.ndim == 3 else images
    return torch.from_numpy(np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2)))


def _scaling(images: Array) -> str:
    scaled = images.dtype.kind == "f" and images.size > 0 and images.min() >= 0 and images.max() <= 1
    return "; (images * 255).round().astype(np.uint8) makes them so" if scaled else ""


def label_tensor(labels: Array, num_classes: int, source: str) -> Tensor:
    """Whole numbers from 0 to num_classes - 1."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(
            f"{source}: labels must be a row of whole numbers, got {labels.dtype} {labels.shape}; "
            "names become numbers by np.unique(labels, return_inverse=True)"
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise InputError(
            f"label {labels[wrong[0]]} at position {wrong[0]} in {source} is out of range: "
            f"there are {num_classes} classes, 0 to {num_classes - 1} ({len(wrong):,} such labels)"
        )
    return torch.from_numpy(labels.astype(np.int64))


@contextmanager
def _reading(path: Path, needed: str) -> Iterator[None]:
    try:
        yield
    except (
        *(OSError, ValueError, EOFError, MemoryError, NotImplementedError, OverflowError, IndexError),
        *(zipfile.BadZipFile, zlib.error, struct.error, csv.Error),
    ) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot read {path}: {reason}; {needed}") from error


def npz_keys(path: Path) -> tuple[str, ...]:
    """The names of the arrays of a .npz file."""
    with _reading(path, f"a .npz file with {KEYS} is needed"), path.open("rb") as file:
        return tuple(_members(path, file))


def load_npz(path: Path, keys: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of a .npz file by name, all or those named."""
    with _reading(path, f"a .npz file with {KEYS} is needed"), path.open("rb") as file:
        members = _members(path, file)
        with zipfile.ZipFile(file) as archive:
            return {
                key: _member_array(archive, member, f"{path}, array {key!r}")
                for key, member in members.items()
                if keys is None or key in keys
            }


def load_npy(path: Path) -> Array:
    """The array of a .npy file."""
    with _reading(path, "a .npy file with one array is needed"), path.open("rb") as file:
        if file.read(2) == b"PK":
            raise InputError(f"{path} holds several arrays; a .npy file with one is needed")
        file.seek(0)
        needed, there = _announced(file, str(path)), path.stat().st_size
        if there < needed:
            raise InputError(f"{path} is cut off: its {there:,} bytes should be {needed:,}; write it again")
        file.seek(0)
        return _array(file)


def _members(path: Path, file: IO[bytes]) -> dict[str, zipfile.ZipInfo]:
    """The arrays of a .npz file by name, none of them read; what could harm is refused."""
    if file.read(6) == b"\x93NUMPY":
        raise InputError(f"{path} holds a single array; a .npz file with {KEYS} is needed")
    with zipfile.ZipFile(file) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    members = {info.filename.removesuffix(".npy"): info for info in infos}
    if len(members) < len(infos):
        raise InputError(f"{path} holds two arrays of the same name; write it again with np.savez")
    expanded, packed = sum(info.file_size for info in infos), path.stat().st_size
    if expanded > max(LARGE, MOST_EXPANDED * packed):
        raise InputError(
            f"{path} would expand from {packed:,} to {expanded:,} bytes, over {MOST_EXPANDED}-fold; "
            "if this is meant, write it with np.savez, which does not compress"
        )
    for info in infos:
        if info.flag_bits & 1:
            raise InputError(f"{path} is encrypted; write it without a password")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(f"{path} is compressed as np.savez never does; write it with np.savez_compressed")
    return members


def _member_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, place: str) -> Array:
    with archive.open(member) as file:
        needed = _announced(file, place)
    if needed != member.file_size:
        raise InputError(f"{place} is damaged: its {member.file_size:,} bytes should be {needed:,}; write it again")
    with archive.open(member) as file:
        return _array(file)


def _array(file: IO[bytes]) -> Array:
    array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _announced(file: IO[bytes], place: str) -> int:
    """How many bytes an array with this header takes, the header included; nothing is made that large."""
    if file.read(6) != b"\x93NUMPY":
        raise InputError(f"{place} holds no plain arrays (pickles are not opened); write it with np.save or np.savez")
    layout = VERSIONS.get(file.read(2)[:1])
    if layout is None:
        raise InputError(f"{place} has a format that is not known; write it with np.save or np.savez")
    (length,) = struct.unpack(layout, file.read(struct.calcsize(layout)))
    if length > LONGEST_HEADER:
        raise InputError(f"{place} has a header of {length:,} bytes; write it as a plain array")
    shape, dtype = _shape_and_type(file.read(length), place)
    if dtype.hasobject:
        raise InputError(f"{place} holds no plain arrays but Python objects; give it a dtype such as int64 or str")
    if dtype.itemsize == 0 and 0 not in shape:
        raise InputError(f"{place} has values of no size; write it as a plain array")
    return 8 + struct.calcsize(layout) + int(length) + math.prod(shape) * dtype.itemsize


def _shape_and_type(header: bytes, place: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fields = ast.literal_eval(header.decode())
            shape, dtype = fields["shape"], np.lib.format.descr_to_dtype(fields["descr"])
        if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError("shape")
    except (ValueError, TypeError, KeyError, IndexError, SyntaxError, MemoryError, RecursionError):
        raise InputError(f"{place} has a damaged header; write it again") from None
    return shape, dtype


def read_npz(path: Path) -> tuple[Labelled, Labelled | None]:
    """Training set and, where the file has one, test set."""
    arrays = _wanted(path, "images", KEYS)
    numbers, classes = _numbers(arrays, str(path))
    images = image_tensor(arrays["images"], str(path))
    _refuse_other_count(arrays, "images", "labels", "clean_labels", path)
    train = Labelled(images, numbers["labels"], classes, numbers.get("clean_labels"))
    if "test_images" not in arrays:
        return train, None
    images = image_tensor(arrays["test_images"], str(path))
    _refuse_other_count(arrays, "test_images", "test_labels", None, path)
    return train, Labelled(images, numbers["test_labels"], classes)


def read_npz_features(path: Path) -> Rows:
    """The sets of a file with rows of numbers instead of images; rows that are not finite are bad."""
    arrays = _wanted(path, "features", FEATURE_KEYS)
    numbers, classes = _numbers(arrays, str(path))
    columns = _columns(arrays, path)
    bad: list[Bad] = []
    sets: list[Features | None] = []
    for values, labels, clean in (("features", "labels", "clean_labels"), ("test_features", "test_labels", None)):
        if values not in arrays:
            sets.append(None)
            continue
        _refuse_other_count(arrays, values, labels, clean, path)
        faults: dict[int, str] = {}
        names = [f"{path.name}:{values}[{row}]" for row in range(len(arrays[values]))]
        table = feature_tensor(_plain_features(arrays[values], len(columns), path), columns, faults)
        bad += [Bad(names[row], reason) for row, reason in sorted(faults.items())]
        good = [row for row in range(len(names)) if row not in faults]
        if not good:
            raise InputError(f"{path}: none of the {len(names):,} rows can be used; {bad[-1].name}: {bad[-1].reason}")
        whole = Features(table, columns, numbers[labels], classes, names, numbers.get(clean or ""))
        sets.append(whole.at(good) if faults else whole)
    train, test = sets
    assert train is not None
    return Rows(train, test, None, bad)


def _wanted(path: Path, inputs: str, keys: str) -> dict[str, Array]:
    """The arrays that make the sets; a set is whole or not there."""
    known = (inputs, "labels", f"test_{inputs}", "test_labels", "classes", "clean_labels", "columns")
    arrays = load_npz(path, known)
    for key in (inputs, "labels"):
        if key not in arrays:
            raise InputError(f"{path} has no {key!r} (it has: {', '.join(npz_keys(path)[:20])}); it needs {keys}")
    if f"test_{inputs}" in arrays or "test_labels" in arrays:
        for key in (f"test_{inputs}", "test_labels"):
            if key not in arrays:
                raise InputError(f"{path} has no {key!r}; a test set needs test_{inputs} and test_labels")
    return arrays


def _refuse_other_count(arrays: dict[str, Array], inputs: str, labels: str, clean: str | None, path: Path) -> None:
    count = len(arrays[inputs]) if arrays[inputs].ndim else 0
    if len(arrays[labels]) != count:
        raise InputError(
            f"{path} has {count:,} {inputs} but {len(arrays[labels]):,} {labels}; give one label per sample"
        )
    if clean in arrays and len(arrays[clean]) != count:
        raise InputError(f"{path} has {count:,} {inputs} but {len(arrays[clean]):,} {clean}; give one per sample")


def _columns(arrays: dict[str, Array], path: Path) -> tuple[str, ...]:
    features = arrays["features"]
    if features.ndim != 2 or 0 in features.shape:
        raise InputError(f"{path}: features must be of shape (n, columns), got {features.shape}")
    if "columns" not in arrays:
        return tuple(str(column) for column in range(features.shape[1]))
    if arrays["columns"].shape != (features.shape[1],):
        raise InputError(f"{path}: features have {features.shape[1]} columns but columns is {arrays['columns'].shape}")
    return tuple(str(name) for name in arrays["columns"].tolist())


def _plain_features(features: Array, count: int, path: Path) -> Array:
    if features.dtype.kind not in "fiub" or features.ndim != 2 or features.shape[1] != count:
        raise InputError(
            f"{path}: features must be real numbers of shape (n, {count}), got {features.dtype} {features.shape}"
        )
    return features


def _numbers(arrays: dict[str, Array], source: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Class numbers of all labels in a file, by one numbering, and the names of the classes."""
    given: dict[str, Array] = {key: arrays[key] for key in ("labels", "clean_labels", "test_labels") if key in arrays}
    rows: dict[str, Array] = {key: _label_row(labels, f"{source}, {key}") for key, labels in given.items()}
    if "classes" in arrays:
        return _by_names(rows, arrays["classes"], source)
    if all(row.dtype.kind in "iu" for row in rows.values()):
        classes = _number_names(rows, given, source)
        return {key: label_tensor(row, len(classes), source) for key, row in rows.items()}, classes
    values = [label for row in rows.values() for label in row.tolist()]
    places = [f"{source}, {key}[{place}]" for key, row in rows.items() for place in range(len(row))]
    numbers, classes = numbered(values, source, places)
    parts = dict(zip(rows, numbers.split([len(row) for row in rows.values()]), strict=True))
    unseen = set(parts["test_labels"].tolist()) - set(parts["labels"].tolist()) if "test_labels" in parts else ()
    if unseen:
        raise InputError(f"{source}: the test label {classes[min(unseen)]!r} is not among the training labels")
    return parts, classes


def _label_row(labels: Array, place: str) -> Array:
    """Labels (n) as they are, with one-hot rows (n, K) and whole floats as whole numbers."""
    if labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "iufb":
        wrong = np.flatnonzero(((labels != 0).sum(1) != 1) | ((labels == 1).sum(1) != 1))
        if len(wrong):
            raise InputError(
                f"{place}[{wrong[0]}] is not one-hot; labels must be whole numbers (n) or one-hot (n, K); "
                "probabilities become labels by labels.argmax(1)"
            )
        return np.asarray(labels.argmax(1))
    if labels.ndim != 1 or labels.dtype.kind not in "iufbUS":
        raise InputError(
            f"{place} must be a row of words or whole numbers, got {labels.dtype} {labels.shape}"
            + ("; labels.ravel() makes it one" if labels.ndim == 2 and labels.shape[1] == 1 else "")
        )
    if labels.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(labels) | (labels != np.floor(labels)) | (abs(labels) >= 2**53))
        if len(wrong):
            raise InputError(f"{place} must be whole numbers, got {labels.dtype} {labels[wrong[0]]} at {wrong[0]}")
        return labels.astype(np.int64)
    if labels.dtype.kind in "US" and (gone := np.flatnonzero(missing(labels))).size:
        raise InputError(f"{place}[{gone[0]}] is no label ({str(labels[gone[0]])!r}); leave the sample out")
    return labels


def _by_names(rows: dict[str, Array], classes: Array, source: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Labels that are numbers or names of the classes that the file itself names."""
    if classes.ndim != 1:
        raise InputError(f"{source}: classes must be a row of names, got {classes.dtype} {classes.shape}")
    names = tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in classes.tolist())
    if len(set(names)) < len(names):
        raise InputError(f"{source}: two classes have the same name; name them apart")
    number = {name: k for k, name in enumerate(names)}
    return {key: _looked_up(row, number, f"{source}, {key}") for key, row in rows.items()}, names


def _looked_up(row: Array, number: dict[str, int], place: str) -> Tensor:
    if row.dtype.kind in "iub":
        return label_tensor(row.astype(np.int64) if row.dtype.kind == "b" else row, len(number), place)
    names = [name.decode(errors="replace") if isinstance(name, bytes) else name for name in row.tolist()]
    for position, name in enumerate(names):
        if name not in number:
            raise InputError(f"{place}[{position}] {name!r} is no class; there are: {', '.join(list(number)[:12])}")
    return torch.tensor([number[name] for name in names], dtype=torch.int64)


def _number_names(rows: dict[str, Array], given: dict[str, Array], source: str) -> tuple[str, ...]:
    """ "0" to the largest label, or one for each column of one-hot labels."""
    known = [rows[key] for key in ("labels", "clean_labels") if key in rows]
    if not len(rows["labels"]):
        raise InputError(f"{source} has no samples")
    hot = given["labels"].shape[1] if given["labels"].ndim == 2 else 0
    count = max(hot, *(int(row.max()) + 1 for row in known if len(row)), 0)
    if count > max(MOST_CLASSES, len(rows["labels"])):
        raise InputError(
            f"{source} has {len(rows['labels']):,} samples and the label {count - 1:,}; number the classes from 0"
        )
    if count == 1 and all(int(row.min()) == 0 for row in known if len(row)):
        raise InputError(f"{source} has only the class 0; at least two classes are needed")
    return tuple(str(number) for number in range(count))
