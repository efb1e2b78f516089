"""Labels and probabilities of anybody's classifier, read from the files in which people have them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labelsieve.data.arrays import load_npy, load_npz
from labelsieve.data.classes import numbered
from labelsieve.data.table import read_records
from labelsieve.errors import InputError

Array = np.ndarray[Any, Any]
Names = tuple[str, ...]
Record = tuple[int, list[str]]  # a line's number and its cells
TABLES = (".csv", ".tsv")
PREFIX = "p_"  # of the columns with probabilities, in a table that has others too
LABEL = "label"
WHOLE = re.compile("[0-9]+")
ACCEPTED = {
    "labels": "a .npy or .npz file with one array (n), or a .csv file with one column or a column named label",
    "probabilities": "a .npy or .npz file with one array (n, K), or a .csv file with a column per class",
}


def read_given(path: Path) -> Array:
    """The labels (n) of a file, as numbers or as words."""
    if path.suffix.lower() in TABLES:
        return np.array(label_column(path))
    return one_array(path, "labels")


def read_probabilities(path: Path) -> tuple[Array, Names | None]:
    """The probabilities (n, K) of a file, and the names of its columns where they have some; .npy stays on the disk."""
    names = None
    if path.suffix.lower() in TABLES:
        probs, names = probability_table(path)
    else:
        probs = one_array(path, "probabilities")
    if probs.ndim != 2:
        raise InputError(f"{path} must hold one array of shape (samples, classes), not {probs.shape}")
    return probs, names


def one_array(path: Path, kind: str) -> Array:
    """The only array of a .npy or .npz file."""
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz"):
        raise InputError(f"{path} cannot be used for the {kind}; give {ACCEPTED[kind]}")
    if not path.is_file():
        raise InputError(f"cannot read {path}: there is no such file; give {ACCEPTED[kind]}")
    with path.open("rb") as file:
        start = file.read(6)
    if not start.startswith(b"PK" if suffix == ".npz" else b"\x93NUMPY"):
        raise InputError(f"{path} is no {suffix} file, whatever its name says; give {ACCEPTED[kind]}")
    if suffix == ".npz":
        arrays = load_npz(path)
        if len(arrays) != 1:
            raise InputError(f"{path} holds {len(arrays)} arrays ({', '.join(arrays)}); give {ACCEPTED[kind]}")
        return next(iter(arrays.values()))
    if kind == "labels":
        return load_npy(path)
    try:
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError):
        return load_npy(path)  # says what is wrong with it


def label_column(path: Path) -> list[str]:
    """The column named label, or the only one, whose header then is left out if it says label."""
    records = whole_table(path)
    header = [name.strip().casefold() for name in records[0][1]]
    if LABEL in header:
        place, rows = header.index(LABEL), records[1:]
    elif len(header) == 1:
        place, rows = 0, records
    else:
        listed = ", ".join(records[0][1])
        raise InputError(f"{path} has {len(header)} columns ({listed}), none named label; give {ACCEPTED['labels']}")
    if not rows:
        raise InputError(f"{path} has a header but no labels; give {ACCEPTED['labels']}")
    return [cells[place].strip() for _, cells in rows]


def probability_table(path: Path) -> tuple[Array, Names | None]:
    """The columns of the classes: those that begin with p_, else all with a name but label; all without a header."""
    records = whole_table(path)
    header = [name.strip() for name in records[0][1]]
    if not is_header(header):
        return numbers(path, records, range(len(header))), None
    marked = [k for k, name in enumerate(header) if name.startswith(PREFIX)]
    # programs write row numbers without a name
    places = marked or [k for k, name in enumerate(header) if name and name.casefold() != LABEL]
    names = tuple(header[k].removeprefix(PREFIX) if marked else header[k] for k in places)
    if len(set(names)) < len(names):
        raise InputError(f"{path} names a class twice in its first line; give each column a name of its own")
    return numbers(path, records[1:], places), names


def is_header(cells: Sequence[str]) -> bool:
    """Words, or the numbers of classes: whole, all different, and not the two probabilities 1 and 0."""
    if all(WHOLE.fullmatch(cell) for cell in cells):
        return len(set(cells)) == len(cells) and list(cells) != ["1", "0"]
    return not all(is_number(cell) for cell in cells)


def number(cell: str) -> float:
    """The number in a cell, also with a decimal comma."""
    return float(cell.replace(",", "."))


def is_number(cell: str) -> bool:
    try:
        number(cell)
    except ValueError:
        return False
    return True


def numbers(path: Path, records: Sequence[Record], places: Sequence[int]) -> Array:
    """The cells (n, K) at these places."""
    if not records:
        raise InputError(f"{path} has a header but no rows; give {ACCEPTED['probabilities']}")
    table = np.empty((len(records), len(places)), np.float32)
    for row, (line, cells) in enumerate(records):
        try:
            table[row] = [number(cells[place]) for place in places]
        except ValueError:
            strange = next(cells[place] for place in places if not is_number(cells[place]))
            raise InputError(
                f"{path}:{line} holds {strange!r} where a probability is expected; leave only the columns of the "
                f"classes, or let the names of these begin with {PREFIX}"
            ) from None
    return table


def whole_table(path: Path) -> list[Record]:
    """The lines of a .csv file, all with as many cells as the first."""
    records = read_records(path)
    if not records:
        raise InputError(f"{path} is empty")
    columns = len(records[0][1])
    for line, cells in records:
        if len(cells) != columns:
            raise InputError(f"{path}:{line} has {len(cells)} cells where the first line has {columns}; correct it")
    return records


def class_names(path: Path | None, count: int) -> Names | None:
    """The names of a file with one a line."""
    if path is None:
        return None
    try:
        names = tuple(path.read_text(encoding="utf-8-sig").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}; a text file with a class name a line is needed") from error
    if len(names) != count or len(set(names)) < len(names):
        raise InputError(f"{path} must name {count} different classes, one a line, in the order of the columns")
    return names


def numbers_of(labels: Array, names: Names | None, path: Path, count: int) -> tuple[Array, Names, bool]:
    """Labels as class numbers, the names of the classes, and whether their order is a guess.

    Labels that are all among the names mean these, other whole numbers the columns from 0.
    """
    distinct, codes = np.unique(labels, return_inverse=True)
    words = [word.decode(errors="replace") if isinstance(word, bytes) else str(word) for word in distinct.tolist()]
    place = {name: k for k, name in enumerate(names or ())}
    if words and all(word in place for word in words):
        return np.array([place[word] for word in words], dtype=np.int64)[codes], names or (), False
    if labels.dtype.kind not in "US":
        return labels, names or tuple(map(str, range(count))), False
    if words and all(WHOLE.fullmatch(word) and len(word) < 10 for word in words):
        return np.array([int(word) for word in words])[codes], names or tuple(map(str, range(count))), False
    if names is not None:
        strange = next(word for word in words if word not in place)
        raise InputError(f"{path}: {strange!r} is none of the classes ({', '.join(names[:10])})")
    found, named = numbered(labels, str(path))
    if len(named) != count:
        raise InputError(f"{path} has {len(named)} classes, the probabilities {count} columns; name them by --classes")
    return found.numpy(), named, True
