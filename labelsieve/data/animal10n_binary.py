"""ANIMAL-10N in the binary version that the authors of SELFIE give out.

A folder of files data_batch_1.bin, data_batch_2.bin, ... for training and test_batch.bin for testing. A file is a row
of records: an id and a label of four bytes each, the highest first, then 64 x 64 pixels as bytes, all of red, all of
green, all of blue. Assumed here: whichever .bin file has `test` in its name is for testing, files follow each other by
the number in their names, and labels stand for the classes in the order below.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelsieve.data.animal10n import CLASSES
from labelsieve.data.arrays import label_tensor
from labelsieve.data.resident import Labelled
from labelsieve.errors import InputError

SIDE = 64
RECORD = np.dtype([("id", ">u4"), ("label", ">u4"), ("pixels", np.uint8, (3, SIDE, SIDE))])


def is_animal10n_binary(path: Path) -> bool:
    """Whether a folder has .bin files of such records, from their first labels; CIFAR's lie beside names of classes."""
    try:
        return not (path / "batches.meta.txt").exists() and any(_starts_right(file) for file in _files(path))
    except OSError:
        return False


def read_animal10n_binary(folder: Path) -> tuple[Labelled, Labelled]:
    """Training and test set."""
    try:
        files = _files(folder)
        train = [file for file in files if "test" not in file.name.lower()]
        test = [file for file in files if "test" in file.name.lower()]
        if not train or not test:
            missing = "test_batch.bin" if train else "data_batch_1.bin"
            raise InputError(f"{folder} has no {missing}; ANIMAL-10N needs data_batch_*.bin and test_batch.bin")
        return _read(train), _read(test)
    except OSError as error:
        raise InputError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error


def records(content: bytes, source: str) -> np.ndarray[Any, Any]:
    """(n) records of id, label and pixels (3, 64, 64)."""
    count, rest = divmod(len(content), RECORD.itemsize)
    if rest:
        raise InputError(
            f"{source} is cut off in record {count}: its {len(content):,} bytes are no whole number of records "
            f"of {RECORD.itemsize:,}; download it again"
        )
    if not count:
        raise InputError(f"{source} is empty; download it again")
    return np.frombuffer(content, RECORD)


def _files(folder: Path) -> list[Path]:
    """The .bin files, batch 2 before batch 10."""
    files = [file for file in folder.glob("*.bin") if file.is_file()]
    return sorted(files, key=lambda file: ([int(number) for number in re.findall(r"\d+", file.name)], file.name))


def _starts_right(file: Path) -> bool:
    with file.open("rb") as stream:
        start = stream.read(10 * RECORD.itemsize)
    whole = len(start) // RECORD.itemsize
    return whole > 0 and bool((np.frombuffer(start, RECORD, whole)["label"] < len(CLASSES)).all())


def _read(files: list[Path]) -> Labelled:
    parts = [_part(file) for file in files]
    return Labelled(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]), CLASSES)


def _part(file: Path) -> Labelled:
    found = records(file.read_bytes(), str(file))
    labels = label_tensor(found["label"].astype(np.int64), len(CLASSES), str(file))
    return Labelled(torch.from_numpy(found["pixels"].copy()), labels, CLASSES)
