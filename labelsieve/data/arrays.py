"""A person's own arrays: .npz with images and labels, .npy with images, label files."""

import csv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.resident import Labelled
from labelsieve.errors import InputError

Array = np.ndarray[Any, Any]
MOST_CHANNELS = 16
KEYS = "images, labels and, as you like, test_images, test_labels, classes"


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
            f"got {images.dtype} {images.shape}"
        )
    if images.ndim == 4 and images.shape[3] > MOST_CHANNELS:
        raise InputError(
            f"{source}: images have {images.shape[3]} channels; "
            "if they are channels first, use images.transpose(0, 2, 3, 1)"
        )
    channels_last = images[..., None] if images.ndim == 3 else images
    return torch.from_numpy(np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2)))


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
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, csv.Error) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "pickle" in reason:
            reason = "it holds no plain arrays"
        raise InputError(f"cannot read {path}: {reason}; {needed}") from error


def load_npz(path: Path) -> dict[str, Array]:
    """All arrays of a .npz file by name."""
    with _reading(path, f"a .npz file with {KEYS} is needed"), path.open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise InputError(f"{path} holds a single array; a .npz file with {KEYS} is needed")
        return dict(arrays)


def load_npy(path: Path) -> Array:
    """The array of a .npy file."""
    with _reading(path, "a .npy file with one array is needed"), path.open("rb") as file:
        array = np.load(file, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise InputError(f"{path} holds several arrays; a .npy file with one is needed")
        return array


def read_npz(path: Path) -> tuple[Labelled, Labelled | None]:
    """Training set and, where the file has one, test set."""
    arrays = load_npz(path)
    for key in ("images", "labels"):
        if key not in arrays:
            raise InputError(f"{path} has no {key!r} (it has: {', '.join(arrays)}); it needs {KEYS}")
    classes = _classes(arrays, path)
    train = labelled(arrays["images"], arrays["labels"], classes, str(path))
    if "test_images" not in arrays and "test_labels" not in arrays:
        return train, None
    for key in ("test_images", "test_labels"):
        if key not in arrays:
            raise InputError(f"{path} has no {key!r}; a test set needs test_images and test_labels")
    return train, labelled(arrays["test_images"], arrays["test_labels"], classes, str(path))


def read_labels(path: Path, classes: Sequence[str], count: int) -> Tensor:
    """Labels that are laid over a set: .npy of whole numbers, or .csv whose column `label` has names or numbers."""
    labels = load_npy(path) if path.suffix == ".npy" else _csv_labels(path, classes)
    if len(labels) != count:
        raise InputError(f"{path} has {len(labels):,} labels but the data has {count:,} samples; give one per sample")
    return label_tensor(labels, len(classes), str(path))


def write_labels(path: Path, labels: Tensor, classes: Sequence[str]) -> None:
    """A label file that read_labels reads back: .npy as numbers, anything else as .csv with names."""
    try:
        if path.suffix == ".npy":
            np.save(path, labels.numpy())
            return
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["index", "label"])
            writer.writerows((index, classes[label]) for index, label in enumerate(labels.tolist()))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _classes(arrays: dict[str, Array], path: Path) -> list[str]:
    if "classes" in arrays:
        return [str(name) for name in arrays["classes"].tolist()]
    labels = arrays["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        label_tensor(labels, 1, str(path))  # says what is wrong with them
        raise InputError(f"{path} has no samples")
    return [str(number) for number in range(int(labels.max()) + 1)]


def _csv_labels(path: Path, classes: Sequence[str]) -> Array:
    number = {name: k for k, name in reversed(list(enumerate(classes)))}
    with (
        _reading(path, "a .csv file with a column 'label' is needed"),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        rows = csv.DictReader(file)
        if "label" not in (rows.fieldnames or ()):
            raise InputError(f"{path} has no column 'label' (it has: {', '.join(rows.fieldnames or ['nothing'])})")
        return np.array([_class_number(row["label"], number, path, rows.line_num) for row in rows], dtype=np.int64)


def _class_number(label: str | None, number: dict[str, int], path: Path, line: int) -> int:
    if label in number:
        return number[label]
    if label is not None and label.strip().lstrip("-").isdigit():
        return int(label)
    raise InputError(
        f"{path}:{line}: {label!r} is no class; there are: {', '.join(sorted(number, key=number.__getitem__)[:12])}"
    )
