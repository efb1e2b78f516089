"""Label files: labels that are laid over a set, .npy or .csv, and which of them a person has decided on."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.arrays import Array, label_tensor, load_npy
from labelsieve.data.table import reading_text, separator_of
from labelsieve.errors import InputError
from labelsieve.files import refuse_others
from labelsieve.text import guarded, unguarded

DECIDED = {  # as people and their spreadsheets write it
    **dict.fromkeys(("true", "1", "yes", "wahr", "vrai", "verdadero", "vero"), True),
    **dict.fromkeys(("", "false", "0", "no", "falsch", "faux", "falso"), False),
}


class Laid(NamedTuple):
    """The labels of a file, in the order of the data."""

    labels: Tensor  # (n)
    decided: Tensor | None = None  # (n) bool: a person has looked and said so


class Line(NamedTuple):
    """A row of a .csv file; a cell that is not there is None."""

    label: str | None
    place: str | None  # its column `index`
    name: str | None
    decided: str | None
    number: int  # of the line that it ends on


def read_label_file(path: Path, classes: Sequence[str], count: int, names: Sequence[str] | None = None) -> Laid:
    """What is laid over a set: .npy of whole numbers, or .csv whose column `label` has names or numbers.

    A .csv file may have a column `decided`.
    """
    decided: Array | None = None
    if path.suffix == ".npy":
        labels = load_npy(path)
    else:
        labels, decided = _from_lines(_lines(path), path, classes, names)
    if len(labels) != count:
        raise InputError(f"{path} has {len(labels):,} labels but the data has {count:,} samples; give one per sample")
    found = label_tensor(labels, len(classes), str(path))
    return Laid(found, None if decided is None else torch.from_numpy(decided))


def write_labels(path: Path, labels: Tensor, classes: Sequence[str], names: Sequence[str] | None = None) -> None:
    """A label file that read_label_file reads back: .npy as numbers, anything else as .csv with names."""
    refuse_others(path, *([] if path.suffix == ".npy" else ["index,label", "index,name,label"]))
    try:
        if path.suffix == ".npy":
            np.save(path, labels.numpy())
            return
        with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.writer(file)
            writer.writerow(["index", "label"] if names is None else ["index", "name", "label"])
            for index, label in enumerate(labels.tolist()):
                writer.writerow([index, *([] if names is None else [guarded(names[index])]), guarded(classes[label])])
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _lines(path: Path) -> list[Line]:
    with reading_text(path), path.open(newline="", encoding="utf-8-sig") as file:
        first = file.readline()
        file.seek(0)
        rows = csv.DictReader(file, delimiter=separator_of(first))
        if "label" not in (rows.fieldnames or ()):
            there = ", ".join(rows.fieldnames or ["nothing"])
            raise InputError(f"{path} has no column 'label' (it has: {there}); call the one with the labels so")
        return [
            Line(row["label"], row.get("index"), row.get("name"), row.get("decided"), rows.line_num) for row in rows
        ]


def _from_lines(
    found: list[Line], path: Path, classes: Sequence[str], names: Sequence[str] | None
) -> tuple[Array, Array | None]:
    """Class numbers (n) and decisions (n), in the order of the data."""
    number = {name: k for k, name in reversed(list(enumerate(classes)))}
    if any(line.label not in number for line in found):  # written so that no spreadsheet runs them
        found = [line._replace(label=line.label and unguarded(line.label)) for line in found]
    if any(name.isdigit() for name in classes):
        _refuse_strangers(found, number, path)
    numbers = np.array([_class_number(line, number, path) for line in found], dtype=np.int64)
    order = _order(found, path) if names is None or not _named(found, names) else _by_name(found, names, path)
    if all(line.decided is None for line in found):
        return numbers[order], None
    return numbers[order], np.array([_decided(line, path) for line in found], dtype=bool)[order]


def _decided(line: Line, path: Path) -> bool:
    said = (line.decided or "").strip().lower()
    if said not in DECIDED:
        raise InputError(
            f"{path}:{line.number}: the column 'decided' holds {line.decided!r}; write true or false, or rename it"
        )
    return DECIDED[said]


def _named(found: Sequence[Line], names: Sequence[str]) -> bool:
    """Whether the lines are told apart by the samples' names; where these repeat, the column `index` says more."""
    if any(line.name is None for line in found):
        return False
    return len(set(names)) == len(names) or any(line.place is None for line in found)


def _by_name(found: Sequence[Line], names: Sequence[str], path: Path) -> Array:
    """The line of each sample, by its name."""
    known, listed = set(names), [str(line.name) for line in found]
    ours = [name if name in known else unguarded(name) for name in listed]
    _refuse_twice([(name, line) for name, line in zip(ours, found, strict=True) if name in known], path)
    place = {name: line for line, name in enumerate(ours)}
    missing = [name for name in names if name not in place]
    if missing:
        raise InputError(
            f"{path} has no label for {missing[0]} ({len(missing):,} such samples); was it made for other data?"
        )
    return np.array([place[name] for name in names], dtype=np.int64)


def _refuse_strangers(found: Sequence[Line], number: dict[str, int], path: Path) -> None:
    """Where classes are named by numbers, a number is a name."""
    for line in found:
        if line.label not in number:
            known = ", ".join(list(number)[::-1][:12])
            raise InputError(f"{path}:{line.number}: {line.label!r} is no class; there are: {known}")


def _refuse_twice(named: Sequence[tuple[str, Line]], path: Path) -> None:
    """A sample with two lines: nobody knows which of them is meant."""
    first: dict[str, Line] = {}
    for name, line in named:
        other = first.setdefault(name, line)
        if other is not line:
            same = line.label == other.label
            what = (
                f", the same in line {other.number}"
                if same
                else f": as {line.label}, in line {other.number} as {other.label}"
            )
            raise InputError(f"{path}:{line.number}: {name} is there twice{what}; keep one of these lines")


def _order(found: Sequence[Line], path: Path) -> Array:
    """The line of each sample, by the column `index` where there is one."""
    if all(line.place is None for line in found):
        return np.arange(len(found))
    try:
        places = np.array([int(line.place or "") for line in found], dtype=np.int64)
    except ValueError as error:
        raise InputError(f"{path}: the column 'index' must hold whole numbers; leave it out or mend it") from error
    _refuse_twice([(f"sample {place}", line) for place, line in zip(places.tolist(), found, strict=True)], path)
    if not np.array_equal(np.sort(places), np.arange(len(places))):
        raise InputError(f"{path}: the column 'index' must name 0 to {len(places) - 1}, each once; mend or remove it")
    return np.argsort(places)


def _class_number(line: Line, number: dict[str, int], path: Path) -> int:
    if line.label in number:
        return number[line.label]
    if line.label is not None and line.label.strip().lstrip("-").isdigit():
        return int(line.label)
    known = ", ".join(sorted(number, key=number.__getitem__)[:12])
    raise InputError(f"{path}:{line.number}: {line.label!r} is no class; there are: {known}")
