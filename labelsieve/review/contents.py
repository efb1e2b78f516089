"""The samples of a run as the reviewer sees them: pictures, texts and rows from the data, and what to compare with.

`open_contents` lists the data of a run by the project's own readers, finds the features and the linear head that the
run has, and returns `Contents`, which answers by sample index only: no path comes from a request. It imports torch, so
the server opens it in the background.
"""

import io
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps

from labelsieve.data.arrays import finite_rows
from labelsieve.data.images import GRAY, BadImage, FileReader, Pictures, Reader, eight_bits, opened, unwrapped
from labelsieve.data.load import ReadOptions, find, read_features
from labelsieve.data.sets import Labelled, Texts, Undecoded
from labelsieve.errors import InputError, LabelsieveError
from labelsieve.features.backbones import BackboneSpec
from labelsieve.features.embed import Cache, embed_split, unknown_samples
from labelsieve.files import DONE
from labelsieve.predict import load
from labelsieve.review.evidence import (
    Array,
    Column,
    Span,
    Word,
    compared_columns,
    nearest,
    robust_scale,
    telling_words,
    unit_rows,
    words_of,
)
from labelsieve.review.suspects import Judged
from labelsieve.runs.data import reading_of
from labelsieve.runs.read import HEAD, audit_folder, is_separate_audit, read_audit_origin, read_json
from labelsieve.runs.spec import Experiment, experiment_from, with_defaults
from labelsieve.text import rounded

SIDES = {"small": 320, "full": 2048, "large": 8192}  # pixels of the longer side, at most
SHOWN_BY_BROWSERS = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}
PLAIN_MODES = ("L", "RGB", "1", "P")
SHARP_SIDE = 200  # pixels, from which a thumbnail is good enough for a small picture
LOSSLESS_SIDE = 512  # pixels, up to which a converted picture is a PNG
JPEG_QUALITY = 92
MOST_AT_ONCE = 2  # pictures that are decoded at the same time
CACHED_BYTES = 128 * 2**20  # of pictures
COMPARED_SIDE, CHANGED_BY = 16, 10.0  # pixels, and mean difference of gray values (0 to 255) from the thumbnail
MOST_FEATURES = 2**29  # values; neighbours among more are not searched
PREVIEW_COLUMNS = 6
TINY = 1e-30  # probability

Score = Callable[[str, str, str], list[Word]]  # text, given and suggested label -> telling words


class Picture(NamedTuple):
    """An encoded picture that a browser shows, and the size of the original, upright."""

    content: bytes
    content_type: str
    width: int
    height: int


@dataclass(frozen=True)
class _Features:
    """Features of samples, for the search of neighbours."""

    unit: Array  # (n, F) of length 1
    index: list[int]  # (n) sample of each row
    place: dict[int, int]  # sample -> row


Value = TypeVar("Value")


class _Later(Generic[Value]):
    """A value that the first call computes, while other threads wait."""

    def __init__(self, compute: Callable[[], Value]) -> None:
        self._compute: Callable[[], Value] | None = compute
        self._value: Value | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Value | None:
        with self._lock:
            if self._compute is not None:
                self._value, self._compute = self._compute(), None
            return self._value


class Contents:
    """The samples of a run's data, by index."""

    def __init__(
        self,
        samples: Undecoded,
        judged: Sequence[Judged],
        audited: float,
        features: Callable[[], _Features | None] = lambda: None,
        words: Callable[[], Score | None] = lambda: None,
    ) -> None:
        self._samples, self._audited = samples, audited
        self._features, self._words = _Later(features), _Later(words)
        self._places = _places_of(samples, judged)
        self._labels = {each.index: each.given for each in judged}
        self._pictures: OrderedDict[tuple[int, str], Picture] = OrderedDict()
        self._cached = 0  # bytes
        self._lock = threading.Lock()
        self._decoding = threading.Semaphore(MOST_AT_ONCE)

    @property
    def has_pictures(self) -> bool:
        """Return whether the samples are images."""
        return isinstance(self._samples, Pictures) or _is_array_of_images(self._samples)

    def __contains__(self, index: int) -> bool:
        return index in self._places

    def picture(self, index: int, size: str, thumbnail: Path | None = None) -> Picture:
        """Return the image of a sample in a size of SIDES; raise BadImage if it is gone, damaged or has changed.

        An image file that is newer than the audit must resemble the thumbnail that the audit made.
        """
        key = (index, size)
        with self._lock:
            if key in self._pictures:
                self._pictures.move_to_end(key)
                return self._pictures[key]
        with self._decoding:
            picture = self._read_picture(self._place(index), SIDES[size], thumbnail)
        with self._lock:
            if key not in self._pictures:
                self._pictures[key] = picture
                self._cached += len(picture.content)
            while self._cached > CACHED_BYTES and len(self._pictures) > 1:
                self._cached -= len(self._pictures.popitem(last=False)[1].content)
        return picture

    def text(self, index: int) -> str | None:
        """Return the whole text of a sample; None if it is no text, or is gone."""
        samples = self._samples
        return samples.texts[self._places[index]] if isinstance(samples, Texts) and index in self._places else None

    def preview(self, index: int) -> str | None:
        """Return the text of a sample, or the first columns of its row; None if it is an image, or is gone."""
        table = self._table()
        if table is None or index not in self._places:
            return self.text(index)
        names, values = table
        row = values[self._places[index]].tolist()[:PREVIEW_COLUMNS]
        return "\n".join(f"{name}: {rounded(value)}" for name, value in zip(names, row, strict=False))

    def words(self, text: str, given: str, suggested: str) -> list[Word]:
        """Return the words that speak for the given label (positive) or for the suggested one (negative)."""
        score = self._words() if given != suggested else None
        return score(text, given, suggested) if score else []

    def columns(self, index: int, given: str, suggested: str) -> list[Column] | None:
        """Compare the row of a sample with those of two classes; None if it has none."""
        table = self._table()
        if table is None or index not in self._places:
            return None
        names, values = table
        row = values[self._places[index]].astype(np.float64)
        of_class = [
            values[[self._places[k] for k, label in self._labels.items() if label == name and k in self._places]]
            for name in (given, suggested)
        ]
        groups = [np.asarray(group if len(group) else row[None], np.float64) for group in of_class]
        return compared_columns(names, row, *groups)

    def neighbours(self, index: int, count: int) -> list[tuple[int, float]]:
        """Return the nearest samples and their distances; none if the run has no features."""
        features = self._features()
        if features is None or index not in features.place:
            return []
        found = nearest(features.unit, features.place[index], count)
        return [(features.index[place], distance) for place, distance in found]

    def prepare(self) -> None:
        """Load features and head, which the first comparison would do otherwise."""
        self._features()
        self._words()

    def _table(self) -> tuple[tuple[str, ...], Array] | None:
        """Return the names (F) and values (n, F) of the columns; None if the samples are no rows."""
        samples = self._samples
        if not isinstance(samples, Labelled) or len(samples.shape) != 1:
            return None
        return samples.columns or tuple(str(k) for k in range(samples.shape[0])), samples.images.numpy()

    def _place(self, index: int) -> int:
        if index not in self._places:
            raise BadImage("it is no longer in the data")
        return self._places[index]

    def _read_picture(self, place: int, side: int, thumbnail: Path | None) -> Picture:
        if isinstance(self._samples, Pictures):
            content = self._samples.bytes_of(place)
            if thumbnail is not None and _is_newer(self._samples.read, place, self._audited):
                _refuse_changed(content, thumbnail)
            return displayable(content, side)
        if isinstance(self._samples, Labelled) and _is_array_of_images(self._samples):
            pixels = self._samples.images[place].permute(1, 2, 0).cpu().numpy()
            return _picture_of_pixels(pixels)
        raise BadImage("it is no image")


def open_contents(run: Path, judged: Sequence[Judged], data: str | None = None) -> Contents:
    """Open the data of a run or of a separate audit.

    Args:
        run: folder of the run or audit.
        judged: what the audit says about every sample.
        data: where the data is now, if it was moved.

    Raises:
        InputError: if the data is unknown or gone.
    """
    source, reading, experiment = _source_of(run, data)
    samples = find(source, replace(reading, features=None)).train
    return Contents(
        samples,
        judged,
        (audit_folder(run) / "summary.json").stat().st_mtime,
        partial(_features_of, run, samples, judged, reading, experiment),
        partial(_words_of, run, experiment),
    )


def displayable(content: bytes, side: int) -> Picture:
    """Return an encoded image as a browser can show it, with at most `side` pixels on its longer side.

    JPEG, PNG and WebP files are returned unchanged if they are small enough. Others are converted as for training:
    upright, on white, the first frame, with 8 bits per channel.
    """
    with opened(content) as image:
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
        width, height = image.size[::-1] if turned else image.size
        animated = getattr(image, "n_frames", 1) > 1
        plain = image.mode in PLAIN_MODES and "transparency" not in image.info and not animated
        if plain and image.format in SHOWN_BY_BROWSERS and max(image.size) <= side:
            return Picture(content, SHOWN_BY_BROWSERS[image.format], width, height)
        mode = "L" if image.mode in GRAY else "RGB"
        scale = min(1.0, side / max(image.size))
        if scale < 1 and image.mode in ("L", "RGB"):
            image.draft(mode, (max(1, round(image.width * scale)), max(1, round(image.height * scale))))  # JPEG files
        profile = image.info.get("icc_profile") if image.mode == mode else None
        image.load()
        upright = eight_bits(ImageOps.exif_transpose(image), mode)
        upright.thumbnail((side, side), Image.Resampling.BICUBIC, reducing_gap=2.0)
        return Picture(*_encoded(upright, profile), width, height)


def is_sharp(thumbnail: Path) -> bool:
    """Return whether a thumbnail is large enough to be shown next to others."""
    try:
        with Image.open(thumbnail) as image:
            return max(image.size) >= SHARP_SIDE
    except OSError:
        return False


def _encoded(image: Image.Image, profile: bytes | None = None) -> tuple[bytes, str]:
    """Return a picture as a PNG file if it is small, else as a JPEG file, and its type."""
    out = io.BytesIO()
    if max(image.size) <= LOSSLESS_SIDE:
        image.save(out, "PNG", icc_profile=profile)
        return out.getvalue(), "image/png"
    image.save(out, "JPEG", quality=JPEG_QUALITY, subsampling=0, icc_profile=profile)
    return out.getvalue(), "image/jpeg"


def _picture_of_pixels(pixels: Array) -> Picture:
    """Return pixels (H, W, C) uint8 as a picture."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return Picture(*_encoded(image), image.width, image.height)


def _refuse_changed(content: bytes, thumbnail: Path) -> None:
    """Raise BadImage if an image does not resemble its thumbnail."""
    try:
        before = _small_gray(thumbnail.read_bytes())
    except (OSError, BadImage):
        return  # nothing to compare with
    if float(np.abs(_small_gray(content) - before).mean()) > CHANGED_BY:
        raise BadImage("it has changed since the audit")


def _small_gray(content: bytes) -> Array:
    with opened(content) as image:
        if image.mode in ("L", "RGB"):
            image.draft("L", (4 * COMPARED_SIDE, 4 * COMPARED_SIDE))
        gray = eight_bits(ImageOps.exif_transpose(image), "L")
        return np.asarray(gray.resize((COMPARED_SIDE, COMPARED_SIDE), Image.Resampling.BOX), np.float64)


def _is_newer(read: Reader, place: int, time: float) -> bool:
    """Return whether the file of a sample was written or renamed after a time; false if it has no file of its own."""
    read, place = unwrapped(read, place)
    if not isinstance(read, FileReader):
        return False
    try:
        found = (read.root / read.paths[place]).stat()
    except OSError:  # removed a moment ago
        return True
    return max(found.st_mtime, found.st_ctime) > time


def _is_array_of_images(samples: Undecoded) -> bool:
    return isinstance(samples, Labelled) and len(samples.shape) == 3


def _places_of(samples: Undecoded, judged: Sequence[Judged]) -> dict[int, int]:
    """Return the place in the data of each sample of an audit: by name, or by position where there are no names."""
    if samples.names is not None:
        places = {name: place for place, name in enumerate(samples.names)}
        if any(each.id in places for each in judged):
            return {each.index: places[each.id] for each in judged if each.id in places}
    if len(samples) != len(judged):
        raise InputError(f"the data has {len(samples):,} samples, but the audit {len(judged):,}")
    return {each.index: each.index for each in judged}


def _source_of(run: Path, data: str | None) -> tuple[str, ReadOptions, Experiment | None]:
    """Return the data of a run or audit, how to read it, and the experiment of the run."""
    if is_separate_audit(run):
        return data or str(read_audit_origin(run)["data"]), ReadOptions(), None
    head = run / HEAD / "1"  # the features, if the whole network was fine-tuned
    spec = read_json((head if (head / DONE).exists() else run) / "spec.json")
    experiment = experiment_from(with_defaults(spec["experiment"]))
    return data or experiment.data, reading_of(experiment), experiment


def _features_of(
    run: Path, samples: Undecoded, judged: Sequence[Judged], reading: ReadOptions, experiment: Experiment | None
) -> _Features | None:
    """Return the features of the samples that are known already; None if there are none, or too many."""
    places = _places_of(samples, judged)
    try:
        found = _known_features(run, samples, reading, experiment)
    except (LabelsieveError, OSError, KeyError, ValueError, ImportError):
        return None  # a backbone that is not installed any more, or a file that is gone
    if found is None and experiment is not None and experiment.backbone:
        print(
            f"no similar samples are shown: the features of {experiment.backbone} are not in the cache; set "
            "LABELSIEVE_CACHE as for the training",
            file=sys.stderr,
        )
    if found is None or found[0].size > MOST_FEATURES:
        return None
    rows, row_of = found  # row_of: place in the data -> row
    index = {row_of[place]: sample for sample, place in places.items() if place in row_of}
    chosen = sorted(index)
    kept = [index[row] for row in chosen]
    return _Features(unit_rows(rows[chosen]), kept, {sample: place for place, sample in enumerate(kept)})


def _known_features(
    run: Path, samples: Undecoded, reading: ReadOptions, experiment: Experiment | None
) -> tuple[Array, Mapping[int, int]] | None:
    """Return features (m, F), and the row of each place in the data."""
    made = read_audit_origin(run) if experiment is None else {}
    file = reading.features or made.get("features")
    if file:
        rows = finite_rows(read_features(Path(file)).rows["train"], str(file)).numpy()
        return (rows, {k: k for k in range(len(rows))}) if len(rows) == len(samples) else None
    if isinstance(samples, Labelled) and len(samples.shape) == 1:
        middle, spread = robust_scale(samples.images.numpy().astype(np.float64))
        values = (samples.images.numpy() - middle) / np.where(spread > 0, spread, 1)
        return values, {k: k for k in range(len(values))}
    if experiment is None or experiment.backbone is None:
        return None
    backbone = BackboneSpec(experiment.backbone, experiment.size, experiment.weights).load()
    cache = Cache(backbone, experiment.cache)
    missing = set(unknown_samples(samples, cache))
    known = [place for place in range(len(samples)) if place not in missing]
    if not known:
        return None
    features, unusable = embed_split(samples.at(torch.tensor(known)), backbone, cache)
    return None if unusable else (features.images.numpy(), {place: row for row, place in enumerate(known)})


def _words_of(run: Path, experiment: Experiment | None) -> Score | None:
    """Return a function that finds telling words, if the run predicts texts from the features of a backbone.

    A word contributes the difference that the text without it makes to the logit of the given label minus that of the
    suggested one.
    """
    if experiment is None or experiment.backbone is None:
        return None
    try:
        model = load(run)
    except LabelsieveError:
        return None
    if model.backbone is None or model.backbone.kind != "texts":
        return None
    number = {name: k for k, name in enumerate(model.classes)}

    def score(text: str, given: str, suggested: str) -> list[Word]:
        if given not in number or suggested not in number:
            return []

        def contributions(spans: Sequence[Span]) -> Array:
            without = [text[:start] + text[end:] for start, end in spans]
            logits = np.log(np.maximum(model.predict_proba([text, *without]), TINY))  # (1 + spans, K)
            margin = logits[:, number[given]] - logits[:, number[suggested]]
            return margin[0] - margin[1:]

        return telling_words(words_of(text), contributions)

    return score
