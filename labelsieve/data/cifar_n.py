"""CIFAR-10N and CIFAR-100N as published: labels that people gave to the training images of CIFAR.

The files are CIFAR-10_human.pt and CIFAR-100_human.pt, saved by PyTorch, and CIFAR-10_human_ordered.npy. In each lies a
dict of arrays in the order of CIFAR's training images; nothing in a file is executed.
"""

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from labelsieve.data.arrays import label_tensor
from labelsieve.data.plain_pickle import load_plain, shown
from labelsieve.errors import InputError

KINDS = {
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worst": "worse_label",
    "noisy": "noisy_label",
    "clean": "clean_label",
}
LARGEST_FILE = 50_000_000  # bytes; the published ones have at most 2.5 million
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
        if path.stat().st_size > LARGEST_FILE:
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
                found = part.read(LARGEST_FILE + 1)
    except InputError:
        raise
    except faults as error:
        raise InputError(f"{path} is cut off, damaged or encrypted; {AGAIN}") from error
    if len(found) > LARGEST_FILE:
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
