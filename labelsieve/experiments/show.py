"""How single samples are shown to people: as thumbnails, texts or rows of a table."""

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from labelsieve.audit.findings import Findings
from labelsieve.audit.tables import shown
from labelsieve.audit.thumbnail import fitted, thumbnail
from labelsieve.data import Labelled, Reading, Trainable
from labelsieve.data.decode import BadImage, Frame, decode, header
from labelsieve.data.pictures import Pictures
from labelsieve.data.source import find
from labelsieve.data.stream import Streamed
from labelsieve.data.table import separator_of
from labelsieve.errors import InputError

# Makes what is needed to show the samples of the gallery, in a folder for thumbnails: by position, what its line gets.
Views = Callable[[Findings, Path], Mapping[int, Mapping[str, Any]]]
LONGEST_TEXT = 2000  # characters
MOST_COLUMNS = 50


def views_of(source: str, reading: Reading, whole: Trainable) -> Views:
    """How the samples of a set are shown; images come from their files, upright and with their aspect."""
    if isinstance(whole, Labelled) and len(whole.shape) == 1:
        return partial(as_rows, whole)
    pictures = whole.pictures if isinstance(whole, Streamed) else find(source, reading).train
    return partial(as_thumbnails, whole, pictures if isinstance(pictures, Pictures) else None)


def as_rows(whole: Labelled, findings: Findings, folder: Path) -> dict[int, dict[str, Any]]:
    """The first columns of each row."""
    columns = (whole.columns or tuple(str(k) for k in range(whole.shape[0])))[:MOST_COLUMNS]
    return {index: {"row": dict(zip(columns, whole.images[index].tolist(), strict=False))} for index in shown(findings)}


def as_thumbnails(
    whole: Trainable, pictures: Pictures | None, findings: Findings, folder: Path
) -> dict[int, dict[str, Any]]:
    """A file for each sample; one that cannot be made is left out."""
    place = {name: at for at, name in enumerate(pictures.names)} if pictures is not None else {}
    folder.mkdir(parents=True, exist_ok=True)
    views = {}
    for index in shown(findings):
        try:
            if pictures is not None and whole.names is not None:
                pixels = upright(pictures.bytes_of(place[whole.names[index]]))
            else:
                assert isinstance(whole, Labelled)
                pixels = whole.images[index].permute(1, 2, 0).cpu().numpy()
        except BadImage:
            continue
        (folder / f"{index}.webp").write_bytes(thumbnail(pixels))
        views[index] = {"image": f"{folder.name}/{index}.webp"}
    return views


def upright(content: bytes) -> Any:
    """An encoded image, decoded at the size it is shown in."""
    found = header(content)
    height, width = fitted(found.height, found.width)
    return decode(content, Frame(height, width, 1 if found.gray else 3))


def read_texts(place: str, count: int) -> list[str]:
    """The texts of a column of a .csv file, file.csv:column."""
    path, column = text_file(place), place.rpartition(":")[2]
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, delimiter=separator_of(file.readline()))
            file.seek(0)
            if column not in (rows.fieldnames or ()):
                raise InputError(f"{path} has no column {column!r} (it has: {', '.join(rows.fieldnames or ())})")
            texts = [row[column] or "" for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    if len(texts) != count:
        raise InputError(f"{path} has {len(texts):,} rows but there are {count:,} samples; give one per sample")
    return [text[:LONGEST_TEXT] for text in texts]


def text_file(place: str) -> str:
    """The file of file.csv:column"""
    path = place.rpartition(":")[0]
    if not path:
        raise InputError(f"--text takes file.csv:column, got {place!r}")
    return path


def views_of_text(texts: Sequence[str]) -> Views:
    return partial(as_texts, texts)


def as_texts(texts: Sequence[str], findings: Findings, folder: Path) -> dict[int, dict[str, Any]]:
    return {index: {"text": texts[index]} for index in shown(findings)}
