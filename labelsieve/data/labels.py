"""Read and write label files, which replace the labels of a training set: .npy or .csv."""

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.arrays import label_tensor, load_npy
from labelsieve.data.classes import Array, join_names
from labelsieve.data.table import read_dict_rows
from labelsieve.errors import InputError
from labelsieve.files import refuse_others, writing
from labelsieve.text import label_file, parse_integer, unescape_cell

DECIDED = {  # true and false as spreadsheets write them
    **dict.fromkeys(("true", "1", "yes", "wahr", "vrai", "verdadero", "vero"), True),
    **dict.fromkeys(("", "false", "0", "no", "falsch", "faux", "falso"), False),
}


class LabelOverlay(NamedTuple):
    """The contents of a label file, in the order of the samples."""

    labels: Tensor  # (n) int64
    decided: Tensor | None = None  # (n) bool: a person confirmed the label
    before: Tensor | None = None  # (n) int64: labels before these decisions


class _LabelRow(NamedTuple):
    """A row of a .csv label file; the cell of a column that the file does not have is None."""

    label: str
    position: str | None  # column `index`
    name: str | None
    decided: str | None
    given_label: str | None  # before the decision
    line: int  # that it starts on


def read_label_file(path: Path, classes: Sequence[str], count: int, names: Sequence[str] | None = None) -> LabelOverlay:
    """Read the labels for a set.

    A .npy file contains class indices. A .csv file has a column `label` of class names or indices; columns `name` or
    `index` identify the samples, a column `decided` marks confirmed labels, and `given_label` contains the labels
    before these decisions.
    """
    decided: Array | None = None
    before: Array | None = None
    if path.suffix == ".npy":
        labels = load_npy(path)
    else:
        labels, decided, before = _ordered_labels(_read_rows(path), path, classes, names)
    if len(labels) != count:
        raise InputError(f"{path} has {len(labels):,} labels but the data has {count:,} samples; one each is needed")
    return LabelOverlay(
        label_tensor(labels, len(classes), str(path)),
        None if decided is None else torch.from_numpy(decided),
        None if before is None or decided is None else label_tensor(before, len(classes), str(path)),
    )


def write_labels(path: Path, labels: Tensor, classes: Sequence[str], names: Sequence[str] | None = None) -> None:
    """Write a label file: .npy with class indices, otherwise .csv with class names."""
    refuse_others(path, *([] if path.suffix == ".npy" else ["index,label", "index,name,label"]))
    if path.suffix == ".npy":
        content = io.BytesIO()  # np.save cannot write to a pipe
        np.save(content, labels.numpy())
    else:
        content = io.BytesIO(label_file([classes[label] for label in labels.tolist()], names))
    with writing(path) as file:
        file.write(content.getbuffer())


def _read_rows(path: Path) -> list[_LabelRow]:
    columns, rows = read_dict_rows(path)
    if "label" not in columns:
        found = join_names(columns) or "none"
        raise InputError(f"{path} has no column 'label' (columns: {found}); rename the one with the labels")
    return [
        _LabelRow(row["label"], row.get("index"), row.get("name"), row.get("decided"), row.get("given_label"), line)
        for line, row in rows
    ]


def _ordered_labels(
    rows: list[_LabelRow], path: Path, classes: Sequence[str], names: Sequence[str] | None
) -> tuple[Array, Array | None, Array | None]:
    """Return class indices (n), the decided column (n) and the labels before (n), in the order of the samples."""
    labels = _class_indices(rows, path, classes)
    given = [row._replace(label=row.given_label) for row in rows if row.given_label]
    before = _class_indices(given, path, classes) if len(given) == len(rows) else None
    by_name = names is not None and _identified_by_name(rows, names)
    order = _order_by_name(rows, names, path) if by_name and names is not None else _order_by_index(rows, path)
    if all(row.decided is None for row in rows):
        return labels[order], None, None
    decided = np.array([_parse_decided(row, path) for row in rows], dtype=bool)
    return labels[order], decided[order], None if before is None else before[order]


def _class_indices(rows: list[_LabelRow], path: Path, classes: Sequence[str]) -> Array:
    """Return the class index of the label of each row."""
    index = {name: k for k, name in reversed(list(enumerate(classes)))}
    if any(row.label not in index for row in rows):  # class names may be escaped against spreadsheet formulas
        rows = [row._replace(label=unescape_cell(row.label)) for row in rows]
    numeric = any(name.isdigit() for name in classes)  # if class names are numbers, a number is a name
    return np.array([_class_index(row, index, numeric, path) for row in rows], dtype=np.int64)


def _class_index(row: _LabelRow, index: dict[str, int], numeric: bool, path: Path) -> int:
    if row.label in index:
        return index[row.label]
    if not numeric:
        with suppress(ValueError):
            return parse_integer(row.label)
    known = sorted(index, key=index.__getitem__)
    raise InputError(f"{path}:{row.line}: {row.label!r} is not a class; classes: {join_names(known)}")


def _parse_decided(row: _LabelRow, path: Path) -> bool:
    value = (row.decided or "").strip().lower()
    if value not in DECIDED:
        raise InputError(
            f"{path}:{row.line}: column 'decided' contains {row.decided!r}; use true or false, or rename the column"
        )
    return DECIDED[value]


def _identified_by_name(rows: Sequence[_LabelRow], names: Sequence[str]) -> bool:
    """Return whether the names identify the samples; if names repeat, the index is used."""
    if any(row.name is None for row in rows):
        return False
    return len(set(names)) == len(names) or any(row.position is None for row in rows)


def _order_by_name(rows: Sequence[_LabelRow], names: Sequence[str], path: Path) -> Array:
    """Return the row of each sample."""
    known = set(names)
    found = [str(row.name) if row.name in known else unescape_cell(str(row.name)) for row in rows]
    _check_repeated([(name, row) for name, row in zip(found, rows, strict=True) if name in known], path)
    position = {name: row for row, name in enumerate(found)}
    missing = [name for name in names if name not in position]
    if missing:
        raise InputError(
            f"{path} has no label for {missing[0]} ({len(missing):,} samples without label); is it for other data?"
        )
    return np.array([position[name] for name in names], dtype=np.int64)


def _order_by_index(rows: Sequence[_LabelRow], path: Path) -> Array:
    """Return the row of each sample, by the column `index` if it exists."""
    if all(row.position is None for row in rows):
        return np.arange(len(rows))
    try:
        places = np.array([parse_integer(row.position or "") for row in rows], dtype=np.int64)
    except ValueError as error:
        raise InputError(f"{path}: column 'index' must contain integers; correct or remove it") from error
    _check_repeated([(f"sample {place}", row) for place, row in zip(places.tolist(), rows, strict=True)], path)
    if not np.array_equal(np.sort(places), np.arange(len(places))):
        raise InputError(f"{path}: column 'index' must contain 0 to {len(places) - 1}, each once; correct or remove it")
    return np.argsort(places)


def _check_repeated(rows: Sequence[tuple[str, _LabelRow]], path: Path) -> None:
    """Raise if two rows are for one sample."""
    first: dict[str, _LabelRow] = {}
    for name, row in rows:
        other = first.setdefault(name, row)
        if other is not row:
            both = f"{row.label!r} here, {other.label!r} in line {other.line}"
            raise InputError(f"{path}:{row.line}: second row for {name} ({both}); remove one")
