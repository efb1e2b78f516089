"""Rendering of single samples for the gallery of an audit: as thumbnails, texts or rows of a table."""

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from labelsieve.audit.files import Render, Views, thumbnail, thumbnail_size
from labelsieve.data import Labelled, ReadOptions, Trainable
from labelsieve.data.images import BadImage, Frame, Pictures, decode, read_header
from labelsieve.data.load import find
from labelsieve.data.sets import Streamed
from labelsieve.data.table import detect_separator
from labelsieve.errors import InputError

MAX_TEXT = 2000  # characters
MAX_COLUMNS = 50


def sample_renderer(source: str, reading: ReadOptions, samples: Trainable) -> Render:
    """Return a function that renders the training samples of a source; images are upright and not distorted."""
    if isinstance(samples, Labelled) and len(samples.shape) == 1:
        return partial(_render_rows, samples)
    pictures = samples.pictures if isinstance(samples, Streamed) else find(source, reading).train
    return partial(_render_images, samples, pictures if isinstance(pictures, Pictures) else None)


def text_renderer(texts: Sequence[str]) -> Render:
    """Return a function that renders samples as their texts (n)."""
    return lambda indices, folder: {index: {"text": texts[index]} for index in indices}


def _render_rows(samples: Labelled, indices: Sequence[int], folder: Path) -> Views:
    """Render samples as the first columns of their rows."""
    columns = (samples.columns or tuple(str(k) for k in range(samples.shape[0])))[:MAX_COLUMNS]
    return {index: {"row": dict(zip(columns, samples.images[index].tolist(), strict=False))} for index in indices}


def _render_images(samples: Trainable, pictures: Pictures | None, indices: Sequence[int], folder: Path) -> Views:
    """Write a thumbnail of each sample into the folder, from `pictures` if there are encoded originals.

    Unreadable images are skipped.
    """
    place = {name: at for at, name in enumerate(pictures.names)} if pictures is not None else {}
    folder.mkdir(parents=True, exist_ok=True)
    views = {}
    for index in indices:
        try:
            if pictures is not None and samples.names is not None:
                content = pictures.bytes_of(place[samples.names[index]])
                found = read_header(content)
                height, width = thumbnail_size(found.height, found.width)
                pixels = decode(content, Frame(height, width, found.channels))
            else:
                assert isinstance(samples, Labelled)
                pixels = samples.images[index].permute(1, 2, 0).cpu().numpy()
        except BadImage:
            continue
        (folder / f"{index}.webp").write_bytes(thumbnail(pixels))
        views[index] = {"image": f"{folder.name}/{index}.webp"}
    return views


def read_texts(place: str, count: int) -> list[str]:
    """Read the texts of `count` samples from file.csv:column."""
    path, column = text_file(place), place.rpartition(":")[2]
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, delimiter=detect_separator(file.readline()))
            file.seek(0)
            if column not in (rows.fieldnames or ()):
                raise InputError(
                    f"{path} has no column {column!r}; its columns are: {', '.join(rows.fieldnames or ())}"
                )
            texts = [row[column] or "" for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    if len(texts) != count:
        raise InputError(f"{path} has {len(texts):,} rows but there are {count:,} samples; give one row per sample")
    return [text[:MAX_TEXT] for text in texts]


def text_file(place: str) -> str:
    """Return the file in file.csv:column."""
    path = place.rpartition(":")[0]
    if not path:
        raise InputError(f"--text needs file.csv:column, got {place!r}")
    return path
