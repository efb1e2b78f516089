"""Load data from any source: find out what it is, list its samples, and decode each image once.

    load_data(source)            the sets of a source, ready for training
    └── find(source)             its listing: names, labels and splits; no image is decoded
        └── read_folder, ...     the reader of its format

To add a format or dataset, write a module with two functions and add a line to `FILE_FORMATS` or `FOLDER_FORMATS`:

    def is_mine(path: Path) -> bool: ...       whether a path looks like it; cheap, and never raises
    def read_mine(path: Path) -> Listing: ...  list its samples; raise InputError if files are missing or damaged

The splits of a `Listing` are `Pictures` (encoded images, decoded here), `Texts`, or `Labelled` (arrays and numbers);
`published.read_animal10n` is a short example. To let users pass a name instead of a path, add the name to
`published.PUBLISHED`.
"""

import difflib
import hashlib
import unicodedata
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.arrays import FeatureFile, finite_rows, is_npz, read_array_features, read_npz
from labelsieve.data.cache import open_cache
from labelsieve.data.cifar import is_cifar, read_cifar
from labelsieve.data.classes import Array
from labelsieve.data.folder import IMAGE_FOLDER, read_folder, visible_entries
from labelsieve.data.images import (
    BadImage,
    FileReader,
    Frame,
    Pictures,
    Reader,
    SubsetReader,
    Unusable,
    common_frame,
    file_stamp,
)
from labelsieve.data.parquet import CellReader, is_parquet, read_parquet, read_table_features
from labelsieve.data.published import (
    EMBEDDED_DIGESTS,
    PUBLISHED,
    TINY_IMAGENET,
    is_animal10n,
    is_animal10n_binary,
    is_clothing1m,
    is_tiny_imagenet,
    locate_published,
    read_animal10n,
    read_animal10n_binary,
    read_clothing1m,
    read_fashion,
    read_photos,
    read_tiny_imagenet,
    subsampled,
)
from labelsieve.data.sets import Labelled, Listing, Sets, Streamed, Texts, Trainable, Undecoded, default_workers
from labelsieve.data.table import is_table, is_table_folder, read_table, read_table_folder
from labelsieve.errors import InputError
from labelsieve.runtime import generator

SUPPORTED = f"{IMAGE_FOLDER}, a .csv, .tsv, .parquet or .npz file, a saved Hugging Face dataset, or CIFAR as published"
MAX_IN_MEMORY = 4 * 2**30  # bytes of decoded images; more are streamed
TEXTS_NEED = (
    "texts need a backbone: pip install 'labelsieve[sentences]', or name one with --backbone hf:NAME, "
    "or pass features with --features"
)
SIMILAR = 0.7  # of 1: minimum similarity of a path to suggest it for a misspelt one


class _Format(NamedTuple):
    """A data format: functions to recognise and to list it."""

    matches: Callable[[Path], bool]
    read: Callable[..., Listing]
    columns: bool = False  # whether `read` has the arguments `label`, `image` and `text`
    contained: bool = False  # whether all data lies in the file or folder; else the listing is examined too


DATASETS: dict[str, Callable[[], Listing]] = {"fashion": read_fashion, "photos": read_photos}  # in the package
FILE_FORMATS = (
    _Format(is_npz, read_npz, contained=True),
    _Format(is_table, read_table, columns=True),
    _Format(is_parquet, read_parquet, columns=True),
    _Format(is_cifar, read_cifar, contained=True),
)
FOLDER_FORMATS = (  # the first that matches is used
    _Format(is_cifar, read_cifar, contained=True),
    _Format(is_tiny_imagenet, read_tiny_imagenet, contained=True),
    _Format(is_clothing1m, read_clothing1m, contained=True),
    _Format(is_animal10n_binary, read_animal10n_binary, contained=True),
    _Format(is_animal10n, read_animal10n, contained=True),
    _Format(is_parquet, read_parquet, columns=True),
    _Format(is_table_folder, read_table_folder, columns=True),
    _Format(lambda path: True, read_folder, contained=True),
)


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading data; None means that the value is determined from the data."""

    size: int | None = None  # side that images are resized to
    window: int | None = None  # side of the windows that are cut out of larger training images
    normalise: str = "image"  # or "imagenet" or "lite"
    frame: Frame | None = None  # exact frame, for a trained network
    label: str | None = None  # label column of a table
    image: str | None = None  # image column of a table
    text: str | None = None  # text column of a table
    features: str | None = None  # file of features for the samples of the source
    skip_bad: bool = False  # ignore unusable files and rows
    stream: bool = False  # read images from disk during training, even if they fit into memory
    cache: str | None = None  # folder for decoded images, when streaming
    workers: int | None = None  # threads that decode, when streaming


def load_data(
    source: str,
    options: ReadOptions | None = None,
    on_unusable: Callable[[Sequence[Unusable]], None] = lambda unusable: None,
) -> Sets:
    """Load a dataset; each image is decoded once.

    Args:
        source: file, folder, or name of an embedded or published dataset.
        options: how to read it.
        on_unusable: called with the files and rows that `skip_bad` ignored.

    Raises:
        InputError: if the source is not a dataset, or a file or row cannot be used and `skip_bad` is not set.
    """
    options = options or ReadOptions()
    listing = find(source, options)
    frame = frame_for(listing, options)
    stream = options.stream or _too_large(listing, frame)
    _check_options(source, listing, options, stream)
    unusable = list(listing.unusable)
    sets: dict[str, Trainable] = {}
    for name, split in listing.splits().items():
        target = _window_frame(frame, options.window) if name == "train" and options.window else frame
        whole, bad = _load_split(split, target, options, stream)
        if _is_subsampled(listing, options) and isinstance(whole, Labelled):
            whole = replace(whole, images=subsampled(whole.images).contiguous())
        sets[name] = replace(whole, normalise=options.normalise)
        unusable += bad
    if not options.skip_bad:
        refuse_unusable(source, unusable)
    on_unusable(unusable)
    return Sets(**sets)


def refuse_unusable(source: str, unusable: Sequence[Unusable]) -> None:
    """Raise InputError if there are files or rows that cannot be used."""
    if unusable:
        raise InputError(
            f"{len(unusable):,} samples of {source} cannot be used, first: {unusable[0].name}: {unusable[0].reason}; "
            "labelsieve check lists all of them, --skip-bad trains without them"
        )


def find(source: str, options: ReadOptions) -> Listing:
    """List the samples of a source without decoding any image."""
    if options.features is not None:
        listing = find(source, replace(options, features=None))
        return _with_features(listing, Path(options.features), source)
    if source in DATASETS:
        return DATASETS[source]()
    path = _locate(source)
    if (known := _format_of(path)) is None:
        raise InputError(_not_found(source, path))
    columns = {"label": options.label, "image": options.image, "text": options.text}
    return known.read(path, **(columns if known.columns else {}))


def _with_features(listing: Listing, file: Path, source: str) -> Listing:
    """Return the features of a file with the labels of a listing, whose samples become the original ones."""
    stored = read_features(file)
    splits = listing.splits()
    rows = _rows_of_splits(stored.rows, listing, file, source)
    sets = {}
    for name, split in splits.items():
        _check_names(stored.names.get(name, ()), split.names or (), file, source)
        values = finite_rows(rows[name], f"{file}, {name}" if len(splits) > 1 else str(file))
        sets[name] = Labelled(values, split.labels, split.classes, split.clean, split.names, original=split)
    if len({split.shape for split in sets.values()}) > 1:
        raise InputError(f"{file}: the splits have different numbers of features")
    kind = f"{listing.kind} with features"
    return Listing(sets["train"], sets.get("test"), sets.get("valid"), listing.unusable, kind)


def read_features(file: Path) -> FeatureFile:
    """Return the features in a .npy, .npz or Parquet file or in a saved dataset."""
    if file.suffix.lower() in (".npy", ".npz") and file.is_file():
        return read_array_features(file)
    if is_parquet(file) and file.exists():
        return FeatureFile(read_table_features(file), {})
    fault = "unknown format" if file.exists() else "no such file"
    raise InputError(
        f"cannot read the features {file}: {fault}; pass a .npy, .npz or .parquet file or a saved Hugging Face dataset"
    )


def _rows_of_splits(rows: dict[str, Array], listing: Listing, file: Path, source: str) -> dict[str, Array]:
    """Return split -> features; the rows of all splits may be in one array, in the order train, test, valid."""
    counts = {name: len(split) for name, split in listing.splits().items()}
    if len(rows) == 1 < len(counts) and len(rows["train"]) == sum(counts.values()):
        stops = np.cumsum(list(counts.values()))[:-1]
        return dict(zip(counts, np.split(rows["train"], stops), strict=True))
    found = {name: len(rows.get(name, ())) for name in counts}
    if found == counts:
        return rows
    known, needed = (" and ".join(f"{count:,} {name}" for name, count in each.items()) for each in (found, counts))
    known = known if len(rows) > 1 else f"{len(rows['train']):,}"
    without = f", not counting {len(listing.unusable):,} unusable ones" if listing.unusable else ""
    raise InputError(
        f"{file} has {known} rows of features but {source} has {needed} samples{without}; "
        f"one row per sample is needed, in the order of the data: {', '.join(counts)}"
    )


def _check_names(stored: Sequence[str], names: Sequence[str], file: Path, source: str) -> None:
    """Raise if the features are those of other samples; folders are ignored, because they depend on the source."""
    for row, (one, other) in enumerate(zip(stored, names, strict=False)):
        if one.rpartition("/")[2] != other.rpartition("/")[2]:
            raise InputError(
                f"{file}: row {row} is for {one}, but sample {row} of {source} is {other}; compute the features again"
            )


def _format_of(path: Path) -> _Format | None:
    """Return the first format that a file or folder matches."""
    formats = FOLDER_FORMATS if path.is_dir() else FILE_FORMATS if path.is_file() else ()
    return next((known for known in formats if known.matches(path)), None)


def frame_for(listing: Listing, options: ReadOptions) -> Frame | None:
    """Return the frame of all images, determined from the training set; None if nothing is to be decoded."""
    if _is_subsampled(listing, options):
        return listing.frame
    if options.frame is not None or not isinstance(listing.train, Pictures):
        return options.frame
    if listing.frame is not None and options.size is None:
        return listing.frame
    frame = common_frame(listing.train, options.size)
    return frame if listing.frame is None else replace(frame, channels=listing.frame.channels)


def decode_all(split: Undecoded, frame: Frame | None) -> tuple[Labelled, list[Unusable]]:
    """Decode a split into memory; return it without the samples that cannot be decoded, and those."""
    if isinstance(split, Labelled):
        return split, []
    if isinstance(split, Texts):
        raise InputError(TEXTS_NEED)
    assert frame is not None
    images = np.empty((len(split), frame.channels, frame.height, frame.width), dtype=np.uint8)

    def keep(index: int, pixels: Array) -> None:
        images[index] = pixels.transpose(2, 0, 1)

    bad = _decode_each(split, frame, keep)
    whole = Labelled(torch.from_numpy(images), split.labels, split.classes, split.clean, split.names)
    return (whole.at(_all_except(bad, len(split))) if bad else whole), list(bad.values())


def with_test_set(sets: Sets, share: float, seed: int, source: str) -> Sets:
    """Draw a test set from the training set if the data has none and `share` is not 0."""
    if sets.test is not None or share == 0:
        return sets
    kept, drawn = stratified(sets.train.labels, share, seed)
    if not len(drawn) or not len(kept):
        raise InputError(f"{source} has too few samples for a test set of {share:g} of them")
    return sets._replace(train=sets.train.at(kept), test=sets.train.at(drawn))


def stratified(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split positions class by class; return the kept and the drawn positions, both sorted.

    Of each class with two or more samples, at least one is drawn and at least one is kept.
    """
    drawn = []
    for label in labels.unique().tolist():
        places = (labels == label).nonzero().squeeze(1)
        count = min(max(1, round(share * len(places))), len(places) - 1)
        order = torch.randperm(len(places), generator=generator(seed, "test", label))
        drawn.append(places[order[:count]])
    test = torch.cat(drawn).sort().values
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[test] = False
    return kept.nonzero().squeeze(1), test


def source_fingerprint(source: str, options: ReadOptions) -> str | None:
    """Return a digest that identifies the raw data of a source without decoding any image.

    It covers name, size and modification time of every file, and for tables the samples, labels, classes and splits.
    Equal digests mean equal data. The digest also changes when a file is only touched.

    Returns:
        None if a file cannot be examined, or if the paths of images are only in the cells of a table.
    """
    digest = hashlib.sha256()
    try:
        for fact in _source_facts(source, options):
            digest.update(f"{fact}\n".encode("utf-8", "surrogateescape"))
    except (OSError, _UnknownFiles):
        return None
    return digest.hexdigest()[:16]


class _UnknownFiles(Exception):
    """The files of the images are not known before the cells of a table are read."""


def _source_facts(source: str, options: ReadOptions) -> Iterator[str]:
    if options.features is not None:
        yield from _path_facts(Path(options.features))
        options = replace(options, features=None)
    if source in DATASETS:
        yield f"{source} {EMBEDDED_DIGESTS[source]}"
        return
    path = _locate(source)
    yield from _path_facts(path)
    known = _format_of(path)
    if known is None or not known.contained:
        yield f"{options.label} {options.image}" + ("" if options.text is None else f" {options.text}")
        yield from _listing_facts(find(source, options))


def _path_facts(path: Path) -> Iterator[str]:
    if path.is_dir():
        yield from _folder_facts(path)
    elif path.is_file():
        yield f"{path.name} {file_stamp(path)}"


def _folder_facts(root: Path, below: str = "") -> Iterator[str]:
    """Yield name, size and modification time of every file below a folder, sorted by name."""
    for entry in sorted(visible_entries(root, below), key=lambda entry: entry.name):
        name = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield name
            yield from _folder_facts(root, name)
        else:
            found = entry.stat()
            link = Path(entry.path).readlink() if entry.is_symlink() else ""
            yield f"{name}\0{link}\0{found.st_size} {found.st_mtime_ns}"


def _listing_facts(listing: Listing) -> Iterator[str]:
    """Yield what a table lists, with size and modification time of every image file that it names."""
    yield f"{listing.kind} {list(listing.unusable)}"
    for name, split in listing.splits().items():
        yield f"{name} {len(split)} {split.classes}"
        yield f"{split.labels.tolist()} {split.clean if split.clean is None else split.clean.tolist()}"
        read = _base_reader(split.read) if isinstance(split, Pictures) else None
        if isinstance(read, CellReader) and not read.load.complete():
            raise _UnknownFiles
        if isinstance(read, FileReader):
            yield from (f"{path}\0{file_stamp(read.root / path)}" for path in split.names or ())


def _locate(source: str) -> Path:
    return locate_published(source) if source in PUBLISHED and not Path(source).exists() else Path(source)


def _not_found(source: str, path: Path) -> str:
    """Return the message for a source that is no data."""
    if path.is_file():
        return f"cannot read {path}: unknown format; pass {SUPPORTED}"
    if path.exists():
        return f"{path} is neither a file nor a folder; pass {SUPPORTED}"
    similar = _similar_path(path)
    if path.suffix or len(path.parts) > 1:
        fix = f"did you mean {similar}?" if similar else f"pass {SUPPORTED}"
        return f"cannot read {path}: no such file or folder; {fix}"
    fix = f"did you mean {similar}? Otherwise " if similar else ""
    return f"no data {source!r}: {fix}pass {SUPPORTED}, or one of: {', '.join([*DATASETS, *PUBLISHED])}"


def _similar_path(path: Path) -> Path | None:
    """Return an existing file or folder with a similar path."""
    if path.exists() or path == path.parent:
        return path if path.exists() else None
    folder = _similar_path(path.parent)
    if folder is None or not folder.is_dir():
        return None
    try:
        names = {_fold(each.name): each.name for each in sorted(folder.iterdir()) if not each.name.startswith(".")}
    except OSError:
        return None
    close = difflib.get_close_matches(_fold(path.name), names, n=1, cutoff=SIMILAR)
    return folder / names[close[0]] if close else None


def _fold(name: str) -> str:
    """Remove case and diacritics."""
    parts = unicodedata.normalize("NFD", name).casefold()
    return "".join(character for character in parts if not unicodedata.combining(character))


def _check_options(source: str, listing: Listing, options: ReadOptions, stream: bool) -> None:
    """Raise for options that have no effect on this data."""
    if options.cache is not None and not stream:
        raise InputError(f"--cache stores streamed images, but {source} fits into memory; add --stream or omit --cache")
    if options.size is not None and options.features is not None:
        raise InputError("--size does not change the features of --features; omit one of them")
    if options.size is not None and isinstance(listing.train, Labelled) and options.size not in listing.train.shape:
        raise InputError(f"{source} contains arrays, which --size does not resize; omit it")
    if stream and _is_subsampled(listing, options):
        raise InputError("Tiny-ImageNet at 32 pixels is reduced in memory; omit --stream")


def _too_large(listing: Listing, frame: Frame | None) -> bool:
    images = sum(len(split) for split in listing.splits().values() if isinstance(split, Pictures))
    return frame is not None and images * frame.height * frame.width * frame.channels > MAX_IN_MEMORY


def _window_frame(frame: Frame | None, window: int) -> Frame | None:
    """Return the frame that training windows are cut out of: 256 for windows of 224."""
    side = round(window * 8 / 7)
    return None if frame is None else replace(frame, height=side, width=side)


def _is_subsampled(listing: Listing, options: ReadOptions) -> bool:
    """Return whether this is Tiny ImageNet at 32 pixels, which is every second pixel as in the paper."""
    side = options.frame.height if options.frame else options.size
    return listing.kind == TINY_IMAGENET and side == 32


def _load_split(
    split: Undecoded, frame: Frame | None, options: ReadOptions, stream: bool
) -> tuple[Trainable, list[Unusable]]:
    """Decode a split, or open it for streaming; each streamed image is decoded once now, so that none fails later."""
    if not stream or not isinstance(split, Pictures):
        return decode_all(split, frame)
    assert frame is not None
    if not isinstance(_base_reader(split.read), FileReader) and options.cache is None:
        raise InputError("images inside a table are streamed from a cache; add --cache FOLDER")
    bad = _decode_each(split, frame, lambda index, pixels: None)
    good = split.at(_all_except(bad, len(split)).tolist()) if bad else split
    workers = default_workers() if options.workers is None else options.workers
    cache = None
    if options.cache is not None and (not bad or options.skip_bad):
        cache = open_cache(Path(options.cache), good, frame, workers)
    streamed = Streamed(good, frame, good.labels, good.classes, good.clean, workers, cache)
    return streamed, list(bad.values())


def _decode_each(split: Pictures, frame: Frame, use: Callable[[int, Array], None]) -> dict[int, Unusable]:
    """Decode every image once and pass it to `use`; return those that cannot be decoded, by position."""
    bad: dict[int, Unusable] = {}

    def decode_one(index: int) -> None:
        try:
            use(index, split.pixels(index, frame))
        except BadImage as error:
            bad[index] = Unusable(split.names[index], str(error))

    with ThreadPoolExecutor() as pool:  # decoders release Python's lock
        for _ in pool.map(decode_one, range(len(split))):
            pass
    return dict(sorted(bad.items()))


def _base_reader(read: Reader) -> Reader:
    """Return the reader below all subsets."""
    return _base_reader(read.read) if isinstance(read, SubsetReader) else read


def _all_except(positions: Container[int], count: int) -> Tensor:
    return torch.tensor([index for index in range(count) if index not in positions], dtype=torch.int64)
