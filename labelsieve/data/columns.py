"""What a table becomes: rows of numbers, or encoded images, with labels, in splits."""

import shlex
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.classes import Array, Labels, coded, missing, numbered, shown
from labelsieve.data.images import Bad, Chosen, Pictures, Reader
from labelsieve.errors import InputError, nearest

LABEL = ("label", "labels", "class", "target")
IMAGE = ("image", "path", "file", "filename", "filepath", "image_path", "file_name", "img")
CLEAN = ("clean_label", "clean_labels", "true_label")
NO_FEATURE = ("", "index", "id", "unnamed: 0", "__index_level_0__")  # these number the rows
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "valid"),
}


@dataclass(frozen=True)
class Features:
    """A set of labelled rows of numbers."""

    values: Tensor  # (n, F) float32
    columns: tuple[str, ...]  # (F)
    labels: Tensor  # (n) int64
    classes: tuple[str, ...]
    names: Sequence[str]  # of each row, for people: file:row
    clean: Tensor | None = None  # (n) true labels, where they are known

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape[1:])

    def at(self, index: Sequence[int]) -> "Features":
        """The rows at these positions alone."""
        picked = torch.as_tensor(list(index), dtype=torch.int64)
        return replace(
            self,
            values=self.values[picked],
            labels=self.labels[picked],
            names=[self.names[i] for i in index],
            clean=None if self.clean is None else self.clean[picked],
        )


def feature_tensor(values: "array[float] | Array", columns: Sequence[str], faults: dict[int, str]) -> Tensor:
    """Numbers (n, F) as float32; rows with one that is not finite are added to the faults."""
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        table = np.array(values, dtype=np.float32).reshape(-1, len(columns))
    for row, column in np.argwhere(~np.isfinite(table)).tolist():
        faults.setdefault(
            row, f"column {shown(columns[column])} holds {table[row, column]}; only finite numbers can be used"
        )
    return torch.from_numpy(table)


class Rows(NamedTuple):
    """What a reader of tables gives: the sets, and the rows that cannot be used."""

    train: Pictures | Features
    test: Pictures | Features | None
    valid: Pictures | Features | None
    bad: list[Bad]


class Roles(NamedTuple):
    """Which column is what."""

    label: str
    image: str | None
    split: str | None
    clean: str | None
    numbers: tuple[str, ...]  # the features; none where there are images


def roles_of(columns: Sequence[str], source: str, label: str | None, image: str | None, split: str | None) -> Roles:
    """The columns that were asked for, else those with the usual names."""
    twice = next((name for place, name in enumerate(columns) if name in columns[:place]), None)
    if twice is not None:
        raise InputError(f"{source} has two columns {shown(twice)}; rename one of them")
    label = _label_column(columns, source) if label is None else _asked(label, columns, source)
    image = _usual(columns, IMAGE, label) if image is None else _asked(image, columns, source)
    split = _usual(columns, ("split",), label) if split is None else _asked(split, columns, source)
    clean = _usual(columns, CLEAN, label)
    if image == label:
        raise InputError(f"{source}: the column {shown(label)} cannot hold both images and labels; name another one")
    used = (label, image, split, clean)
    numbers = tuple(name for name in columns if name not in used and name.strip().lower() not in NO_FEATURE)
    if image is None and not numbers:
        raise InputError(
            f"{source} has labels but nothing to tell them from (columns: {_listed(columns)}); "
            "it needs a column with the paths of images, or columns of numbers"
        )
    return Roles(label, image, split, clean, () if image is not None else numbers)


def _label_column(columns: Sequence[str], source: str) -> str:
    found = [name for name in columns if name.strip().lower() in LABEL]
    if len(found) > 1:
        raise InputError(
            f"{source}: both {shown(found[0])} and {shown(found[1])} could be the labels; name the column, "
            f"--label-column {shlex.quote(found[0])}, and leave the other out"
        )
    found = found or [name for name in columns if name.strip().lower() == "y"]
    if not found:
        raise InputError(
            f"{source} has no column 'label' (it has: {_listed(columns)}); name the one with the labels, "
            f"such as --label-column {shlex.quote(columns[-1])}"
        )
    return found[0]


def _usual(columns: Sequence[str], names: Sequence[str], label: str) -> str | None:
    of = {name.strip().lower(): name for name in reversed(columns) if name != label}
    return next((of[name] for name in names if name in of), None)


def _asked(name: str, columns: Sequence[str], source: str) -> str:
    if name not in columns:
        raise InputError(
            f"{source} has no column {name!r} ({nearest(name, [shown(known)[1:-1] for known in columns[:50]])})"
        )
    return name


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(shown(name)[1:-1] for name in columns[:20]) + (
        f" and {len(columns) - 20:,} more" if len(columns) > 20 else ""
    )


class Table(NamedTuple):
    """All rows of a table, as a reader found them."""

    source: str
    rows: Sequence[str]  # where each row stands, file:line
    names: Sequence[str]  # of each sample, for people
    inputs: Reader | Tensor  # encoded images, or (n, F) float32
    columns: tuple[str, ...]  # of the numbers
    labels: Labels
    faults: dict[int, str]  # rows whose inputs cannot be used, and why
    splits: Sequence[Any] | None = None
    clean: Labels | None = None
    classes: tuple[str, ...] | None = None  # names that the file itself gives to the numbers 0, 1, ...


def rows_of(table: Table) -> Rows:
    """The usable rows as sets, with class numbers for labels."""
    faults = _all_faults(table)
    bad = [Bad(table.rows[row], faults[row]) for row in sorted(faults)]
    good = [row for row in range(len(table.rows)) if row not in faults]
    if not good:
        raise InputError(
            f"{table.source}: none of the {len(bad):,} rows can be used; {bad[0].name}: {bad[0].reason}"
            if bad
            else f"{table.source} has no rows; at least one per class is needed"
        )
    try:
        labels, clean, classes = _numbers(table, good)
    except InputError as error:
        if not bad:
            raise
        rows = "that row" if len(bad) == 1 else f"the {len(bad):,} bad rows"
        raise InputError(f"{bad[0].name}: {bad[0].reason}; without {rows}, {error}") from error
    whole = _set(table, good, labels, clean, classes)
    if table.splits is None:
        return Rows(whole, None, None, bad)
    parts = _parts([str(table.splits[row]) for row in good])
    if not parts["train"]:
        raise InputError(
            f"{table.source}: no usable row is marked as train, only as "
            f"{', '.join(part for part in parts if parts[part])}; mark some as train"
        )
    _refuse_unseen(whole, parts, table)
    train, test, valid = (whole.at(parts[part]) if parts[part] else None for part in ("train", "test", "valid"))
    assert train is not None
    return Rows(train, test, valid, bad)


def _all_faults(table: Table) -> dict[int, str]:
    faults = dict(table.faults)
    for row in np.flatnonzero(missing(table.labels)).tolist():
        faults.setdefault(row, "it has no label; give it one or remove the row")
    if table.clean is not None:
        for row in np.flatnonzero(missing(table.clean)).tolist():
            faults.setdefault(row, "it has no true label; give it one or remove the row")
    if table.splits is not None:
        codes, distinct = coded(table.splits)
        known = np.array([_split(name) in SPLITS for name in distinct], dtype=bool)
        for row in np.flatnonzero(~known[codes]).tolist():
            faults.setdefault(row, f"its split {shown(table.splits[row])} is none of train, test, val")
    if table.classes is not None:
        for labels in (table.labels,) if table.clean is None else (table.labels, table.clean):
            for row, label in enumerate(labels):
                if label is not None and not 0 <= label < len(table.classes):
                    faults.setdefault(row, f"its label {label} is out of range: there are {len(table.classes)} classes")
    return faults


def _numbers(table: Table, good: Sequence[int]) -> tuple[Tensor, Tensor | None, tuple[str, ...]]:
    """Class numbers of labels and true labels, by one numbering."""
    both = [table.labels[row] for row in good]
    rows = [table.rows[row] for row in good]
    if table.clean is not None:
        both, rows = both + [table.clean[row] for row in good], rows * 2
    if table.classes is None:
        numbers, classes = numbered(both, table.source, rows)
    else:
        numbers, classes = torch.tensor(both, dtype=torch.int64), table.classes
    return numbers[: len(good)], None if table.clean is None else numbers[len(good) :], classes


def _set(
    table: Table, good: Sequence[int], labels: Tensor, clean: Tensor | None, classes: tuple[str, ...]
) -> Pictures | Features:
    names = [table.names[row] for row in good]
    if isinstance(table.inputs, Tensor):
        values = table.inputs if len(good) == len(table.rows) else table.inputs[torch.tensor(good)]
        return Features(values, table.columns, labels, classes, names, clean)
    read = table.inputs if len(good) == len(table.rows) else Chosen(table.inputs, good)
    return Pictures(names, read, labels, classes, clean)


def _split(value: Any) -> str:
    return str(value).strip().lower()


def _parts(splits: Sequence[str]) -> dict[str, list[int]]:
    parts: dict[str, list[int]] = {"train": [], "test": [], "valid": []}
    for row, name in enumerate(splits):
        parts[SPLITS[_split(name)]].append(row)
    return parts


def _refuse_unseen(whole: Pictures | Features, parts: dict[str, list[int]], table: Table) -> None:
    """A class that no training row has cannot be learned."""
    if table.classes is not None:
        return
    counts = whole.labels[parts["train"]].bincount(minlength=len(whole.classes))
    for part in ("test", "valid"):
        unseen = (counts[whole.labels[parts[part]]] == 0).nonzero().flatten().tolist()
        if unseen:
            row = parts[part][unseen[0]]
            raise InputError(
                f"{table.source}: no training row has the label {shown(whole.classes[whole.labels[row]])} "
                f"of {whole.names[row]}, a {part} row; correct it or leave it out"
            )
