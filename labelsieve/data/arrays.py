"""Read .npz files with images or features and labels, .npy files with one array, and features of other data.

Pickled objects are never loaded, and headers are checked before memory is allocated.
"""

import csv
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.classes import Array, encode_labels, join_names, missing_labels
from labelsieve.data.columns import BEYOND_FLOAT32, feature_tensor
from labelsieve.data.images import Unusable
from labelsieve.data.sets import Labelled, Listing
from labelsieve.errors import InputError, first_line

MAX_CHANNELS = 16
OPTIONAL_KEYS = "and optionally test_{0}, test_labels, classes, clean_labels"
IMAGE_KEYS = f"images, labels {OPTIONAL_KEYS.format('images')}"
FEATURE_KEYS = f"features, labels {OPTIONAL_KEYS.format('features')}, columns, names, test_names"
FEATURE_SPLITS = {"train": "", "test": "test_", "valid": "valid_"}  # prefixes of the arrays of a split
MAX_CLASSES = 10_000  # named by indices alone, unless there are as many samples
LARGE_FILE, MAX_EXPANSION = 2**30, 200  # a larger file may expand by at most this factor; images expand 2- to 50-fold
CONVERTED = 2**16  # rows that are converted to float32 at once
WRITE_AGAIN = "write it again with np.save or np.savez"


class FeatureFile(NamedTuple):
    """Features of the samples of a dataset, as stored."""

    rows: dict[str, Array]  # split -> (n, F) numbers; a single split may contain the rows of all
    names: dict[str, list[str]]  # split -> (n) names of the samples, if the file has them


def is_npz(path: Path) -> bool:
    """Return whether a file is a .npz file, from its suffix."""
    return path.suffix.lower() == ".npz"


def read_npz(path: Path) -> Listing:
    """Read training and test set of a .npz file with images or features."""
    return _read_features(path) if "features" in npz_keys(path) else _read_images(path)


def image_tensor(images: Array, source: str) -> Tensor:
    """Convert images (n, H, W) or (n, H, W, C) uint8 to (n, C, H, W)."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
        scaled = images.dtype.kind == "f" and images.size > 0 and images.min() >= 0 and images.max() <= 1
        raise InputError(
            f"{source}: images must be uint8, 0 to 255, of shape (n, height, width) or (n, height, width, channels), "
            f"got {images.dtype} {images.shape}" + ("; use (images * 255).round().astype(np.uint8)" if scaled else "")
        )
    if images.ndim == 4 and images.shape[3] > MAX_CHANNELS:
        raise InputError(
            f"{source}: images have {images.shape[3]} channels; "
            "if they are channels first, use images.transpose(0, 2, 3, 1)"
        )
    channels_last = images[..., None] if images.ndim == 3 else images
    return torch.from_numpy(np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2)))


def label_tensor(labels: Array, num_classes: int, source: str) -> Tensor:
    """Check class indices (n) of any integer type, and return them as int64."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(
            f"{source}: labels must be integers of shape (n), got {labels.dtype} {labels.shape}; "
            "np.unique(labels, return_inverse=True) converts names to integers"
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise InputError(
            f"label {labels[wrong[0]]} at position {wrong[0]} in {source} is out of range: "
            f"there are {num_classes} classes, 0 to {num_classes - 1} ({len(wrong):,} labels out of range)"
        )
    return torch.from_numpy(labels.astype(np.int64))


def npz_keys(path: Path) -> tuple[str, ...]:
    """Return the names of the arrays of a .npz file."""
    with _read_errors(path, f"a .npz file with {IMAGE_KEYS} is needed"), path.open("rb") as file:
        return tuple(_members(path, file))


def load_npz(path: Path, keys: Collection[str] | None = None) -> dict[str, Array]:
    """Return the arrays of a .npz file by name: all, or those given."""
    with _read_errors(path, f"a .npz file with {IMAGE_KEYS} is needed"), path.open("rb") as file:
        members = _members(path, file)
        with zipfile.ZipFile(file) as archive:
            return {
                key: _member_array(archive, member, f"{path}, array {key!r}")
                for key, member in members.items()
                if keys is None or key in keys
            }


def load_npy(path: Path, mapped: bool = False) -> Array:
    """Return the array of a .npy file, in memory or as a read-only memory map."""
    with _read_errors(path, "a .npy file with one array is needed"), path.open("rb") as file:
        if file.read(2) == b"PK":
            raise InputError(f"{path} contains several arrays; a .npy file with one array is needed")
        file.seek(0)
        needed, size = _expected_size(file, str(path)), path.stat().st_size
        if size < needed:
            raise InputError(f"{path} is truncated: it has {size:,} of {needed:,} bytes; {WRITE_AGAIN}")
        file.seek(0)
        return np.load(path, mmap_mode="r", allow_pickle=False) if mapped else _read_array(file)


def read_array_features(path: Path) -> FeatureFile:
    """Return the features in a .npy file, which is memory-mapped, or in a .npz file."""
    found = _stored_features(path)
    for values in found.rows.values():
        if values.ndim != 2 or values.dtype.kind not in "fiub" or not values.shape[1]:
            raise InputError(
                f"{path}: features must be numbers of shape (n, columns), got {values.dtype} {values.shape}"
            )
    return found


def _stored_features(path: Path) -> FeatureFile:
    if path.suffix.lower() == ".npy":
        return FeatureFile({"train": load_npy(path, mapped=True)}, {})
    if "features" in npz_keys(path):
        arrays = load_npz(
            path, [f"{prefix}{key}" for prefix in FEATURE_SPLITS.values() for key in ("features", "names")]
        )
        rows, names = (
            {split: arrays[f"{prefix}{key}"] for split, prefix in FEATURE_SPLITS.items() if f"{prefix}{key}" in arrays}
            for key in ("features", "names")
        )
        return FeatureFile(rows, {split: list(map(_as_text, found.tolist())) for split, found in names.items()})
    tables = {key: array for key, array in load_npz(path).items() if array.ndim == 2 and array.dtype.kind == "f"}
    if len(tables) != 1:
        found = join_names(npz_keys(path), 20)
        raise InputError(f"{path} has no array 'features', and not exactly one table of numbers (arrays: {found})")
    return FeatureFile({"train": next(iter(tables.values()))}, {})


def finite_rows(values: Array, source: str) -> Tensor:
    """Convert features (n, F) of any numeric type to float32, part by part; raise if one is too large or not finite."""
    table = np.empty(values.shape, dtype=np.float32)
    for first in range(0, len(values), CONVERTED):
        part = table[first : first + CONVERTED]
        with np.errstate(over="ignore"):  # values beyond float32 become infinite
            part[:] = values[first : first + CONVERTED]
        if not np.isfinite(part).all():
            row, column = np.argwhere(~np.isfinite(part))[0].tolist()
            raise InputError(
                f"{source}: row {first + row}, column {column} contains {values[first + row, column]}, which "
                f"{BEYOND_FLOAT32}; correct it, or remove the sample"
            )
    return torch.from_numpy(table)


@contextmanager
def _read_errors(path: Path, needed: str) -> Iterator[None]:
    """Convert errors of NumPy and zipfile to InputError."""
    try:
        yield
    except InputError:
        raise
    except (
        *(OSError, ValueError, EOFError, MemoryError, NotImplementedError, OverflowError, IndexError),
        *(zipfile.BadZipFile, zlib.error, struct.error, csv.Error),
    ) as error:
        raise InputError(f"cannot read {path}: {first_line(error)}; {needed}") from error


def _members(path: Path, file: IO[bytes]) -> dict[str, zipfile.ZipInfo]:
    """Return the members of a .npz file by array name without reading them; raise if they are unsafe."""
    if file.read(6) == b"\x93NUMPY":
        raise InputError(f"{path} contains a single array; a .npz file with {IMAGE_KEYS} is needed")
    with zipfile.ZipFile(file) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    members = {info.filename.removesuffix(".npy"): info for info in infos}
    if len(members) < len(infos):
        raise InputError(f"{path} contains two arrays of the same name; {WRITE_AGAIN}")
    expanded, packed = sum(info.file_size for info in infos), path.stat().st_size
    if expanded > max(LARGE_FILE, MAX_EXPANSION * packed):
        raise InputError(
            f"{path} would expand from {packed:,} to {expanded:,} bytes, over {MAX_EXPANSION}-fold; "
            "if this is intended, write it with np.savez, which does not compress"
        )
    known = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    if any(info.flag_bits & 1 or info.compress_type not in known for info in infos):
        raise InputError(f"{path} is encrypted, or compressed in a way that NumPy does not use; {WRITE_AGAIN}")
    return members


def _member_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, place: str) -> Array:
    with archive.open(member) as file:
        needed = _expected_size(file, place)
    if needed != member.file_size:
        raise InputError(f"{place} is damaged: it has {member.file_size:,} of {needed:,} bytes; {WRITE_AGAIN}")
    with archive.open(member) as file:
        return _read_array(file)


def _read_array(file: IO[bytes]) -> Array:
    return np.lib.format.read_array(file, allow_pickle=False)


def _expected_size(file: IO[bytes], place: str) -> int:
    """Return the size in bytes that the header of a .npy file implies, including the header."""
    if file.read(6) != b"\x93NUMPY":
        raise InputError(f"{place} is not a plain array (pickles are not loaded); {WRITE_AGAIN}")
    version = file.read(2)[:1]
    if version not in (b"\x01", b"\x02", b"\x03"):
        raise InputError(f"{place} has an unknown format; {WRITE_AGAIN}")
    read_header = np.lib.format.read_array_header_1_0 if version == b"\x01" else np.lib.format.read_array_header_2_0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, _, dtype = read_header(file)
    except (ValueError, TypeError, LookupError, SyntaxError, TokenError, MemoryError, RecursionError):
        raise InputError(f"{place} has a damaged header; {WRITE_AGAIN}") from None
    if not all(type(side) is int and side >= 0 for side in shape) or not (dtype.itemsize or 0 in shape):
        raise InputError(f"{place} has a damaged header; {WRITE_AGAIN}")
    if dtype.hasobject:
        raise InputError(f"{place} is not a plain array, it contains Python objects; use a dtype such as int64 or str")
    return file.tell() + math.prod(shape) * dtype.itemsize


def _read_images(path: Path) -> Listing:
    arrays = _needed_arrays(path, "images", IMAGE_KEYS)
    indices, classes = _class_indices(arrays, str(path))
    images = image_tensor(arrays["images"], str(path))
    _check_counts(arrays, "images", "labels", "clean_labels", path)
    train, test = Labelled(images, indices["labels"], classes, indices.get("clean_labels")), None
    if "test_images" in arrays:
        images = image_tensor(arrays["test_images"], str(path))
        _check_counts(arrays, "test_images", "test_labels", None, path)
        test = Labelled(images, indices["test_labels"], classes)
    return Listing(train, test, kind="arrays")


def _read_features(path: Path) -> Listing:
    """Read rows of numbers; rows with non-finite values are unusable."""
    arrays = _needed_arrays(path, "features", FEATURE_KEYS)
    indices, classes = _class_indices(arrays, str(path))
    columns = _column_names(arrays, path)
    unusable: list[Unusable] = []
    sets: dict[str, Labelled] = {}
    for split, prefix in FEATURE_SPLITS.items():
        key, labels, clean = f"{prefix}features", f"{prefix}labels", None if prefix else "clean_labels"
        if key not in arrays:
            continue
        values = arrays[key]
        _check_counts(arrays, key, labels, clean, path)
        if values.dtype.kind not in "fiub" or values.ndim != 2 or values.shape[1] != len(columns):
            raise InputError(
                f"{path}: features must be real numbers of shape (n, {len(columns)}), got {values.dtype} {values.shape}"
            )
        faults: dict[int, str] = {}
        names = _sample_names(arrays, prefix, path)
        table = feature_tensor(values, columns, faults)
        unusable += [Unusable(names[row], reason) for row, reason in sorted(faults.items())]
        good = [row for row in range(len(names)) if row not in faults]
        if not good:
            last = f"{unusable[-1].name}: {unusable[-1].reason}"
            raise InputError(f"{path}: none of the {len(names):,} rows can be used; {last}")
        whole = Labelled(table, indices[labels], classes, indices.get(clean or ""), names, columns=columns)
        sets[split] = whole.at(torch.tensor(good)) if faults else whole
    return Listing(sets["train"], sets.get("test"), sets.get("valid"), unusable, "arrays of numbers")


def _needed_arrays(path: Path, inputs: str, keys: str) -> dict[str, Array]:
    """Return the arrays that are used; raise if one of a set is missing."""
    pairs = [(inputs, "labels"), (f"test_{inputs}", "test_labels")]
    others = ["classes", "clean_labels"]
    if inputs == "features":
        pairs.append(("valid_features", "valid_labels"))
        others += ["columns", *(f"{prefix}names" for prefix in FEATURE_SPLITS.values())]
    arrays = load_npz(path, {key for pair in pairs for key in pair}.union(others))
    needed = [pair for pair in pairs if pair[0] == inputs or any(key in arrays for key in pair)]
    for key in (key for pair in needed for key in pair):
        if key not in arrays:
            raise InputError(f"{path} has no array {key!r} (arrays: {join_names(npz_keys(path), 20)}); it needs {keys}")
    return arrays


def _check_counts(arrays: dict[str, Array], inputs: str, labels: str, clean: str | None, path: Path) -> None:
    count = len(arrays[inputs]) if arrays[inputs].ndim else 0
    for key in (labels, clean):
        if key in arrays and len(arrays[key]) != count:
            raise InputError(f"{path} has {count:,} {inputs} but {len(arrays[key]):,} {key}; one per sample is needed")


def _sample_names(arrays: dict[str, Array], prefix: str, path: Path) -> list[str]:
    """Return the names of the samples in the file, or their positions."""
    count, names = len(arrays[f"{prefix}features"]), arrays.get(f"{prefix}names")
    if names is None:
        return [f"{path.name}:{prefix}features[{row}]" for row in range(count)]
    if names.shape != (count,):
        raise InputError(
            f"{path} has {count:,} {prefix}features but {prefix}names is {names.shape}; one each is needed"
        )
    return list(map(_as_text, names.tolist()))


def _column_names(arrays: dict[str, Array], path: Path) -> tuple[str, ...]:
    features = arrays["features"]
    if features.ndim != 2 or 0 in features.shape:
        raise InputError(f"{path}: features must have the shape (n, columns), got {features.shape}")
    if "columns" not in arrays:
        return tuple(str(column) for column in range(features.shape[1]))
    if arrays["columns"].shape != (features.shape[1],):
        raise InputError(f"{path}: features have {features.shape[1]} columns but columns is {arrays['columns'].shape}")
    return tuple(str(name) for name in arrays["columns"].tolist())


def _class_indices(arrays: dict[str, Array], source: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the class indices of all labels of a file, by array name, and the class names."""
    keys = ("labels", "clean_labels", "test_labels", "valid_labels")
    given: dict[str, Array] = {key: arrays[key] for key in keys if key in arrays}
    rows: dict[str, Array] = {key: _plain_labels(labels, f"{source}, {key}") for key, labels in given.items()}
    if "classes" in arrays:
        return _named_indices(rows, arrays["classes"], source)
    if all(row.dtype.kind in "iu" for row in rows.values()):
        one_hot = given["labels"].shape[1] if given["labels"].ndim == 2 else 0
        classes = _integer_classes(rows, one_hot, source)
        return {key: label_tensor(row, len(classes), source) for key, row in rows.items()}, classes
    values = [label for row in rows.values() for label in row.tolist()]
    places = [f"{source}, {key}[{place}]" for key, row in rows.items() for place in range(len(row))]
    indices, classes = encode_labels(values, source, places)
    parts = dict(zip(rows, indices.split([len(row) for row in rows.values()]), strict=True))
    for key in parts.keys() & {"test_labels", "valid_labels"}:
        if unseen := set(parts[key].tolist()) - set(parts["labels"].tolist()):
            raise InputError(
                f"{source}: the {key[:-7]} label {classes[min(unseen)]!r} is not among the training labels"
            )
    return parts, classes


def _plain_labels(labels: Array, place: str) -> Array:
    """Return labels (n); convert one-hot rows (n, K) and whole floats to integers."""
    if labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "iufb":
        wrong = np.flatnonzero(((labels != 0).sum(1) != 1) | ((labels == 1).sum(1) != 1))
        if len(wrong):
            raise InputError(
                f"{place}[{wrong[0]}] is not one-hot; labels must be integers (n) or one-hot (n, K); "
                "labels.argmax(1) converts probabilities"
            )
        return np.asarray(labels.argmax(1))
    if labels.ndim != 1 or labels.dtype.kind not in "iufbUS":
        raise InputError(
            f"{place} must be strings or integers of shape (n), got {labels.dtype} {labels.shape}"
            + ("; use labels.ravel()" if labels.ndim == 2 and labels.shape[1] == 1 else "")
        )
    if labels.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(labels) | (labels != np.floor(labels)) | (abs(labels) >= 2**53))
        if len(wrong):
            raise InputError(f"{place} must be integers, got {labels.dtype} {labels[wrong[0]]} at {wrong[0]}")
        return labels.astype(np.int64)
    if labels.dtype.kind in "US" and (gone := np.flatnonzero(missing_labels(labels))).size:
        raise InputError(f"{place}[{gone[0]}] is missing ({str(labels[gone[0]])!r}); remove the sample")
    return labels


def _named_indices(rows: dict[str, Array], classes: Array, source: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the indices of labels that are indices or names of the classes in the file."""
    names = tuple(map(_as_text, classes.tolist())) if classes.ndim == 1 else ()
    if not names or len(set(names)) < len(names):
        raise InputError(f"{source}: classes must be different names of shape (K), got {classes.dtype} {classes.shape}")
    index = {name: k for k, name in enumerate(names)}
    return {key: _look_up(row, index, f"{source}, {key}") for key, row in rows.items()}, names


def _look_up(row: Array, index: dict[str, int], place: str) -> Tensor:
    if row.dtype.kind in "iub":
        return label_tensor(row.astype(np.int64) if row.dtype.kind == "b" else row, len(index), place)
    names = list(map(_as_text, row.tolist()))
    for position, name in enumerate(names):
        if name not in index:
            raise InputError(f"{place}[{position}] {name!r} is not a class; classes: {join_names(index)}")
    return torch.tensor([index[name] for name in names], dtype=torch.int64)


def _as_text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _integer_classes(rows: dict[str, Array], one_hot: int, source: str) -> tuple[str, ...]:
    """Return the names "0" to the largest label, or one for each column of one-hot labels."""
    known = [rows[key] for key in ("labels", "clean_labels") if key in rows]
    if not len(rows["labels"]):
        raise InputError(f"{source} has no samples")
    count = max(one_hot, *(int(row.max()) + 1 for row in known if len(row)), 0)
    if count > max(MAX_CLASSES, len(rows["labels"])):
        raise InputError(
            f"{source} has {len(rows['labels']):,} samples and the label {count - 1:,}; number the classes from 0"
        )
    if count == 1 and all(int(row.min()) == 0 for row in known if len(row)):
        raise InputError(f"{source} has only the class 0; at least two classes are needed")
    return tuple(str(number) for number in range(count))
