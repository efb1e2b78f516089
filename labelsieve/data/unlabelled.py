"""Samples without labels, to be classified: a folder of images, or a table without a label column."""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch

from labelsieve.data.classes import shown
from labelsieve.data.folder import images_below, listed
from labelsieve.data.images import Bad, Files, Pictures
from labelsieve.data.sets import Labelled
from labelsieve.data.table import no_number, reading_text, separator_of
from labelsieve.errors import InputError

IMAGE_COLUMNS = ("image", "path", "file", "filename", "filepath", "image_path")


def read_images(root: Path, classes: tuple[str, ...]) -> tuple[Pictures, list[Bad]]:
    """Every image below a folder, sorted by path."""
    found = images_below(root, "")
    paths = [path.lstrip("/") for path in found.paths]
    if not paths:
        raise InputError(f"{root} holds no images")
    bad = [Bad(entry.name.lstrip("/"), entry.reason) for entry in found.bad]
    return listed(root, paths, [0] * len(paths), classes), bad


def read_rows(
    path: Path, classes: tuple[str, ...], image: str | None, columns: Sequence[str] | None
) -> Pictures | Labelled:
    """The rows of a .csv or .tsv file: images by their paths, or the columns that a model was trained on."""
    with reading_text(path), path.open(newline="", encoding="utf-8-sig") as file:
        first = file.readline()
        file.seek(0)
        rows = list(csv.DictReader(file, delimiter=separator_of(first)))
    if not rows:
        raise InputError(f"{path} has no rows")
    names = [f"{path.name}:{number}" for number in range(2, len(rows) + 2)]
    labels = torch.zeros(len(rows), dtype=torch.int64)
    usual = next((column for column in rows[0] if (column or "").lower() in IMAGE_COLUMNS), None)
    if columns is None:
        column = image or usual
        if column not in rows[0]:
            raise InputError(
                f"{path} has no column {column or 'image'!r}; name the one with the images: --image-column"
            )
        paths = [row[column] or "" for row in rows]
        return Pictures(paths, Files(path.parent, paths), labels, classes)
    missing = [column for column in columns if column not in rows[0]]
    if missing:
        raise InputError(f"{path} has no column {missing[0]!r}, which the model was trained on")
    values = torch.tensor(
        [
            [_number(row[column] or "", column, name) for column in columns]
            for row, name in zip(rows, names, strict=True)
        ]
    )
    return Labelled(values, labels, classes, names=names, columns=tuple(columns))


def _number(cell: str, column: str, row: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise InputError(f"{row}: column {shown(column)} holds {shown(cell)}, which {no_number(cell)}") from None
