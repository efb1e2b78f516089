"""Rendering of single samples for the gallery of an audit: as thumbnails, texts or rows of a table."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from labelsieve.audit.files import Render, Views, thumbnail, thumbnail_size
from labelsieve.data import Labelled, ReadOptions, Trainable
from labelsieve.data.classes import Array
from labelsieve.data.images import BadImage, Frame, Pictures, decode, read_header
from labelsieve.data.load import find
from labelsieve.data.sets import Streamed, Texts, Undecoded
from labelsieve.data.table import read_dict_rows
from labelsieve.errors import InputError

MAX_TEXT = 2000  # characters
MAX_COLUMNS = 50


def sample_renderer(source: str, reading: ReadOptions, samples: Trainable | Undecoded) -> Render:
    """Return a function that renders the training samples of a source; images are upright and not distorted.

    Features are rendered as the images or texts that they were computed from, if these are known.
    """
    shown = _encoded_samples(source, reading, _original_samples(samples))
    if isinstance(shown, Texts):
        return text_renderer([text[:MAX_TEXT] for text in shown.texts])
    if isinstance(shown, Labelled) and len(shown.shape) == 1:
        return partial(_render_rows, shown)
    return partial(_render_images, shown)


def sample_texts(samples: Trainable | Undecoded) -> list[str] | None:
    """Return the texts (n) of samples that are texts, or that were computed from texts; None for others."""
    original = _original_samples(samples)
    return [text[:MAX_TEXT] for text in original.texts] if isinstance(original, Texts) else None


def _original_samples(samples: Trainable | Undecoded) -> Undecoded:
    """Return the samples that features were computed from, or the samples themselves."""
    if isinstance(samples, Streamed):
        return samples.pictures
    if isinstance(samples, Labelled) and samples.original is not None:
        return _original_samples(samples.original)
    return samples


def _encoded_samples(source: str, reading: ReadOptions, samples: Undecoded) -> Undecoded:
    """Return the encoded images of decoded ones, if the source has them; other samples are returned unchanged."""
    if not isinstance(samples, Labelled) or len(samples.shape) == 1 or samples.names is None:
        return samples
    listed = find(source, reading).train
    if not isinstance(listed, Pictures):
        return samples
    place = {name: at for at, name in enumerate(listed.names)}
    return listed.at([place[name] for name in samples.names])


def text_renderer(texts: Sequence[str]) -> Render:
    """Return a function that renders samples as their texts (n)."""
    return lambda indices, folder: {index: {"text": texts[index]} for index in indices}


def _render_rows(samples: Labelled, indices: Sequence[int], folder: Path) -> Views:
    """Render samples as the first columns of their rows."""
    columns = (samples.columns or tuple(str(k) for k in range(samples.shape[0])))[:MAX_COLUMNS]
    return {index: {"row": dict(zip(columns, samples.images[index].tolist(), strict=False))} for index in indices}


def _render_images(samples: Pictures | Labelled, indices: Sequence[int], folder: Path) -> Views:
    """Write a thumbnail of each sample into the folder; unreadable images are skipped."""
    folder.mkdir(parents=True, exist_ok=True)
    views = {}
    for index in indices:
        try:
            pixels = _small_pixels(samples, index)
        except BadImage:
            continue
        (folder / f"{index}.webp").write_bytes(thumbnail(pixels))
        views[index] = {"image": f"{folder.name}/{index}.webp"}
    return views


def _small_pixels(samples: Pictures | Labelled, index: int) -> Array:
    """Return an image as (height, width, channels) uint8, an encoded one in the size of its thumbnail."""
    if isinstance(samples, Labelled):
        return samples.images[index].permute(1, 2, 0).cpu().numpy()
    content = samples.bytes_of(index)
    found = read_header(content)
    height, width = thumbnail_size(found.height, found.width)
    return decode(content, Frame(height, width, found.channels))


def read_texts(place: str, count: int) -> list[str]:
    """Read the texts of `count` samples from file.csv:column."""
    path, column = text_file(place), place.rpartition(":")[2]
    columns, rows = read_dict_rows(Path(path))
    if column not in columns:
        raise InputError(f"{path} has no column {column!r}; its columns are: {', '.join(columns)}")
    if len(rows) != count:
        raise InputError(f"{path} has {len(rows):,} rows but there are {count:,} samples; give one row per sample")
    return [row[column][:MAX_TEXT] for _, row in rows]


def text_file(place: str) -> str:
    """Return the file in file.csv:column."""
    path = place.rpartition(":")[0]
    if not path:
        raise InputError(f"--text needs file.csv:column, got {place!r}")
    return path
