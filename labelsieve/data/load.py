"""source: whatever a person names as data is found, read and brought into one shape."""

import difflib
import hashlib
import unicodedata
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.arrays import labelled, npz_keys, read_npz, read_npz_features
from labelsieve.data.cache import open_cache
from labelsieve.data.columns import Features
from labelsieve.data.folder import entries
from labelsieve.data.images import Array, Bad, BadImage, Chosen, Files, Frame, Pictures, Reader, frame_of, written
from labelsieve.data.parquet import is_saved_dataset
from labelsieve.data.published import PUBLISHED, where
from labelsieve.data.sets import Labelled, Streamed, usual_workers
from labelsieve.errors import InputError
from labelsieve.runtime import generator

TINY, FOLDER = "Tiny-ImageNet", "a folder of images"
TEXT_TABLES, PARQUET_TABLES = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
KINDS = "a folder of images, a .csv, .tsv, .parquet or .npz file, CIFAR as published"
LARGEST_IN_MEMORY = 4 * 2**30  # bytes of decoded images; more are streamed
CLOSE = 0.7  # of 1, how alike a misspelt name must be to one that is there
Trainable = Labelled | Streamed
Undecoded = Labelled | Pictures | Features
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Reading:
    """How data is read; what is None is found out."""

    size: int | None = None  # the side that images are scaled to
    window: int | None = None  # the side of a window that is cut out of larger training images
    normalise: str = "image"  # or imagenet
    frame: Frame | None = None  # the very frame, for a network that is trained already
    label: str | None = None  # column of a table
    image: str | None = None  # likewise
    skip_bad: bool = False  # leave out what cannot be used
    stream: bool = False  # read images from disk while training, even if they fit into memory
    cache: str | None = None  # folder for decoded images, when streaming
    workers: int | None = None  # threads that decode, when streaming


class Found(NamedTuple):
    """Data that is listed but not decoded."""

    kind: str  # in words
    train: Undecoded
    test: Undecoded | None = None
    valid: Undecoded | None = None
    bad: Sequence[Bad] = ()

    frame: Frame | None = None  # that its images have

    def splits(self) -> dict[str, Undecoded]:
        named = {"train": self.train, "test": self.test, "valid": self.valid}
        return {name: split for name, split in named.items() if split is not None}


class Sets(NamedTuple):
    """Data that can be trained on."""

    train: Trainable
    test: Trainable | None = None
    valid: Trainable | None = None  # with labels that are known to be right


def load_data(
    source: str,
    reading: Reading | None = None,
    tell: Tell = lambda done, total: None,
    left_out: Callable[[Sequence[Bad]], None] = lambda bad: None,
) -> Sets:
    """The sets of whatever `source` names, decoded.

    `tell`: how many images of how many are decoded. `left_out`: what was skipped because it is bad.
    """
    reading = reading or Reading()
    found = find(source, reading)
    frame = frame_for(found, reading)
    total = sum(len(split) for split in found.splits().values() if isinstance(split, Pictures))
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        tell(done, total)

    bad = list(found.bad)
    sets: dict[str, Trainable] = {}
    stream = reading.stream or too_large(found, frame)
    refuse_misfits(source, found, reading, stream)
    for name, split in found.splits().items():
        wanted = widened(frame, reading.window) if name == "train" and reading.window else frame
        whole: Trainable
        if stream and isinstance(split, Pictures):
            whole, unusable = from_disk(split, wanted, reading, one_more)
        else:
            whole, unusable = in_memory(split, wanted, one_more)
        sets[name] = replace(whole, normalise=reading.normalise)
        bad += unusable
    if bad and not reading.skip_bad:
        raise InputError(
            f"{len(bad):,} of the samples in {source} cannot be used, the first is {bad[0].name}: {bad[0].reason}; "
            "labelsieve check lists them all, --skip-bad trains without them"
        )
    left_out(bad)
    return subsampled_sets(Sets(**sets), found, reading)


def refuse_misfits(source: str, found: Found, reading: Reading, stream: bool) -> None:
    """Options that this data has no use for are said, not passed over."""
    if reading.cache is not None and not stream:
        raise InputError(f"--cache keeps streamed images, and {source} fits into memory: say --stream, or leave it out")
    if reading.size is not None and not isinstance(found.train, Pictures) and reading.size not in found.train.shape:
        raise InputError(f"{source} holds arrays, which --size does not scale; leave it out")
    if stream and halves(found, reading):
        raise InputError("Tiny-ImageNet at 32 pixels is halved in memory: leave out --stream")


def widened(frame: Frame | None, window: int) -> Frame | None:
    """The frame that windows of the real one are cut out of: 256 for windows of 224."""
    side = round(window * 8 / 7)
    return None if frame is None else replace(frame, height=side, width=side)


def halves(found: Found, reading: Reading) -> bool:
    """Whether this is Tiny-ImageNet at half its size."""
    side = reading.frame.height if reading.frame else reading.size
    return found.kind == TINY and side == 32


def subsampled_sets(sets: Sets, found: Found, reading: Reading) -> Sets:
    """Tiny-ImageNet at 32 pixels is every second pixel, as the paper's harness makes it."""
    if not halves(found, reading):
        return sets
    from labelsieve.data.published import subsampled

    def halved(each: Trainable) -> Trainable:
        return replace(each, images=subsampled(each.images).contiguous()) if isinstance(each, Labelled) else each

    return Sets(halved(sets.train), sets.test and halved(sets.test))


def frame_for(found: Found, reading: Reading) -> Frame | None:
    """What the images are brought to; the test set's to the same as the training set's."""
    if halves(found, reading):
        return found.frame
    if reading.frame is not None or not isinstance(found.train, Pictures):
        return reading.frame
    if found.frame is not None and reading.size is None:
        return found.frame
    frame = frame_of(found.train, reading.size)
    return frame if found.frame is None else replace(frame, channels=found.frame.channels)


def in_memory(
    split: Undecoded, frame: Frame | None, one_more: Callable[[], None] = lambda: None
) -> tuple[Labelled, list[Bad]]:
    """A split decoded, and what of it cannot be."""
    if isinstance(split, Labelled):
        return split, []
    if isinstance(split, Features):
        rows = Labelled(split.values, split.labels, split.classes, split.clean, split.names)
        return replace(rows, columns=split.columns), []
    assert frame is not None
    images = np.empty((len(split), frame.channels, frame.height, frame.width), dtype=np.uint8)

    def keep(index: int, pixels: Array) -> None:
        images[index] = pixels.transpose(2, 0, 1)

    bad = decoded(split, frame, keep, one_more)
    whole = Labelled(torch.from_numpy(images), split.labels, split.classes, split.clean, split.names)
    return (whole.at(all_but(bad, len(split))) if bad else whole), list(bad.values())


def from_disk(
    split: Pictures, frame: Frame | None, reading: Reading, one_more: Callable[[], None]
) -> tuple[Streamed, list[Bad]]:
    """A split that is decoded batch by batch; each image is tried once before, so that none fails in mid-training."""
    assert frame is not None
    if not isinstance(whole_reader(split.read), Files) and reading.cache is None:
        raise InputError("images inside a table are streamed from a cache: say --cache FOLDER")
    bad = decoded(split, frame, lambda index, pixels: None, one_more)
    good = split.at(all_but(bad, len(split)).tolist()) if bad else split
    workers = usual_workers() if reading.workers is None else reading.workers
    cache = None
    if reading.cache is not None and (not bad or reading.skip_bad):
        cache = open_cache(Path(reading.cache), good, frame, workers)
    streamed = Streamed(good, frame, good.labels, good.classes, good.clean, workers, cache)
    return streamed, list(bad.values())


def decoded(
    split: Pictures, frame: Frame, use: Callable[[int, Array], None], one_more: Callable[[], None]
) -> dict[int, Bad]:
    """Decode every image once; returns those that cannot be, by position."""
    bad: dict[int, Bad] = {}

    def one(index: int) -> None:
        try:
            use(index, split.pixels(index, frame))
        except BadImage as error:
            bad[index] = Bad(split.names[index], str(error))
        one_more()

    with ThreadPoolExecutor() as pool:  # decoders release Python's lock
        for _ in pool.map(one, range(len(split))):
            pass
    return dict(sorted(bad.items()))


def whole_reader(read: Reader) -> Reader:
    """What a reader of some samples reads from."""
    return whole_reader(read.read) if isinstance(read, Chosen) else read


def all_but(left_out: Container[int], count: int) -> Tensor:
    return torch.tensor([index for index in range(count) if index not in left_out], dtype=torch.int64)


def too_large(found: Found, frame: Frame | None) -> bool:
    """Whether the decoded images would take more memory than they should."""
    images = sum(len(split) for split in found.splits().values() if isinstance(split, Pictures))
    return frame is not None and images * frame.height * frame.width * frame.channels > LARGEST_IN_MEMORY


def with_test_set(sets: Sets, share: float, seed: int, source: str) -> Sets:
    """Draw a test set where one is asked for and none is there."""
    if sets.test is not None or share == 0:
        return sets
    kept, drawn = stratified(sets.train.labels, share, seed)
    if not len(drawn) or not len(kept):
        raise InputError(f"{source} has too few samples to draw a test set of {share:g} from")
    return sets._replace(train=sets.train.at(kept), test=sets.train.at(drawn))


def source_fingerprint(source: str, reading: Reading) -> str | None:
    """Return a digest that identifies the raw data of `source` without decoding an image.

    It covers the name, size and modification time of every file, and what a table lists: samples, labels, classes and
    splits. Touching a file changes it, so that an equal digest means equal data, but not the reverse.

    Returns:
        None where a file cannot be examined, or where images lie in files that only the cells of a table name.
    """
    digest = hashlib.sha256()
    try:
        for fact in source_facts(source, reading):
            digest.update(f"{fact}\n".encode("utf-8", "surrogateescape"))
    except (OSError, Unidentified):
        return None
    return digest.hexdigest()[:16]


class Unidentified(Exception):
    """The files that hold the images are not known before they are read."""


def source_facts(source: str, reading: Reading) -> Iterator[str]:
    """Yield what `source_fingerprint` covers, line by line."""
    if source in DATASETS:
        yield f"{source} {DIGEST}"
        return
    path = located(source)
    table = path.suffix.lower() in (*TEXT_TABLES, *PARQUET_TABLES)
    if path.is_dir():
        yield from folder_facts(path)
        table = holds_tables(path)
    elif path.is_file():
        yield f"{path.name} {written(path)}"
    if table or not path.exists():
        yield f"{reading.label} {reading.image}"
        yield from listed_facts(find(source, reading))


def holds_tables(path: Path) -> bool:
    """Return whether a folder holds Parquet or Arrow files, which can name images anywhere."""
    return is_saved_dataset(path) or any(path.glob("*.parquet"))


def folder_facts(root: Path, below: str = "") -> Iterator[str]:
    """Yield the name, size and modification time of every file below a folder, in the order of their names."""
    for entry in sorted(entries(root, below), key=lambda entry: entry.name):
        name = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield name
            yield from folder_facts(root, name)
        else:
            found = entry.stat()
            link = Path(entry.path).readlink() if entry.is_symlink() else ""
            yield f"{name}\0{link}\0{found.st_size} {found.st_mtime_ns}"


def listed_facts(found: Found) -> Iterator[str]:
    """Yield what a table lists, and the size and modification time of every image file that it names."""
    yield f"{found.kind} {list(found.bad)}"
    for name, split in found.splits().items():
        yield f"{name} {len(split)} {split.classes}"
        yield f"{split.labels.tolist()} {split.clean if split.clean is None else split.clean.tolist()}"
        if not isinstance(split, Pictures):
            continue
        read = whole_reader(split.read)
        if not isinstance(read, Files) and not read.complete():  # type: ignore[attr-defined]
            raise Unidentified
        if isinstance(read, Files):
            yield from (f"{path}\0{written(read.root / path)}" for path in split.names)


def located(source: str) -> Path:
    """Return the path of a file, a folder or a published dataset."""
    return where(source) if source in PUBLISHED and not Path(source).exists() else Path(source)


def find(source: str, reading: Reading) -> Found:
    """What there is, without decoding any image."""
    if source in DATASETS:
        return Found("embedded images", *DATASETS[source]())
    path = located(source)
    if path.is_dir():
        return find_folder(path, reading)
    if path.is_file():
        return find_file(path, reading)
    if path.exists():
        raise InputError(f"{path} is neither a file nor a folder; give {KINDS}")
    meant = alike(path)
    if path.suffix or len(path.parts) > 1:
        instead = f"did you mean {meant}?" if meant else f"give {KINDS}"
        raise InputError(f"cannot read {path}: there is no such file or folder; {instead}")
    instead = f"did you mean {meant}? Else " if meant else ""
    raise InputError(f"no data {source!r}: {instead}give {KINDS}, or one of: {', '.join([*DATASETS, *PUBLISHED])}")


def alike(path: Path) -> Path | None:
    """A file or folder that is there and whose path is written nearly like this one's."""
    if path.exists() or path == path.parent:
        return path if path.exists() else None
    folder = alike(path.parent)
    if folder is None or not folder.is_dir():
        return None
    try:
        names = {plain(each.name): each.name for each in sorted(folder.iterdir()) if not each.name.startswith(".")}
    except OSError:
        return None
    close = difflib.get_close_matches(plain(path.name), names, n=1, cutoff=CLOSE)
    return folder / names[close[0]] if close else None


def plain(name: str) -> str:
    """A name without case and diacritics."""
    parts = unicodedata.normalize("NFD", name).casefold()
    return "".join(character for character in parts if not unicodedata.combining(character))


def find_file(path: Path, reading: Reading) -> Found:
    from labelsieve.data.cifar import is_cifar, read_described
    from labelsieve.data.parquet import read_parquet
    from labelsieve.data.table import read_table

    suffix = path.suffix.lower()
    if suffix == ".npz":
        if "features" in npz_keys(path):
            return Found("arrays of numbers", *read_npz_features(path))
        return Found("arrays", *read_npz(path))
    if suffix in TEXT_TABLES:
        return Found("a table", *read_table(path, label=reading.label, image=reading.image))
    if suffix in PARQUET_TABLES:
        return Found("a Parquet table", *read_parquet(path, label=reading.label, image=reading.image))
    if is_cifar(path):
        return Found(*read_described(path))
    raise InputError(f"cannot read {path}: give {KINDS}")


def find_folder(path: Path, reading: Reading) -> Found:
    from labelsieve.data.cifar import is_cifar, read_described
    from labelsieve.data.folder import read_folder
    from labelsieve.data.parquet import read_parquet, read_saved_dataset
    from labelsieve.data.published import TINY_FRAME as TINY_FRAME
    from labelsieve.data.published import (
        is_animal10n,
        is_animal10n_binary,
        is_clothing1m,
        is_tiny_imagenet,
        read_animal10n,
        read_animal10n_binary,
        read_clothing1m,
        read_tiny_imagenet,
    )

    columns = {"label": reading.label, "image": reading.image}
    if is_cifar(path):
        return Found(*read_described(path))
    if is_tiny_imagenet(path):
        return Found(TINY, *read_tiny_imagenet(path), TINY_FRAME)
    if is_clothing1m(path):
        return Found("Clothing1M", *read_clothing1m(path))
    if is_animal10n_binary(path):
        return Found("ANIMAL-10N, binary", *read_animal10n_binary(path))
    if is_animal10n(path):
        return Found("ANIMAL-10N", *read_animal10n(path))
    if is_saved_dataset(path):
        return Found("a saved dataset", *read_saved_dataset(path, **columns))
    if any(path.glob("*.parquet")):
        return Found("Parquet shards", *read_parquet(path, **columns))
    return Found(FOLDER, *read_folder(path))


def stratified(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Positions to train on and to test on, both in order; of each class of two or more, at least one on both sides."""
    drawn = []
    for number in labels.unique().tolist():
        places = (labels == number).nonzero().squeeze(1)
        count = min(max(1, round(share * len(places))), len(places) - 1)
        order = torch.randperm(len(places), generator=generator(seed, "test", number))
        drawn.append(places[order[:count]])
    test = torch.cat(drawn).sort().values
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[test] = False
    return kept.nonzero().squeeze(1), test


FILE = Path(__file__).with_name("fashion_mnist.npz")
DIGEST = "10bd6e32a3d057c3c94fa3468ad514456a4039eb4c8518e79759dce7b6f28699"
CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def digest(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """SHA-256 over the decoded arrays, so that another way of packing them is the same data."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        sha.update(f"{name} {arrays[name].shape} {arrays[name].dtype}".encode())
        sha.update(np.ascontiguousarray(arrays[name]).tobytes())
    return sha.hexdigest()


def load_fashion() -> tuple[Labelled, Labelled]:
    """Training and test set."""
    with np.load(FILE, allow_pickle=False) as file:
        arrays = dict(file)
    if digest(arrays) != DIGEST:
        raise InputError(f"{FILE} is damaged: install labelsieve again")
    train = labelled(arrays["train_images"], arrays["train_labels"], CLASSES)
    return train, labelled(arrays["test_images"], arrays["test_labels"], CLASSES)


DATASETS: dict[str, Callable[[], tuple[Labelled, Labelled]]] = {"fashion": load_fashion}
