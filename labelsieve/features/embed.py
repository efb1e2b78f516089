"""Compute the features of datasets: every sample is read once, and encoded only if its features are not stored yet.

Threads read, hash and decode samples while others run the network. Each batch is computed by one thread, so that the
features of a sample are the same whichever batch, thread, process or machine of the same kind computes them.
"""

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.arrays import FEATURE_SPLITS, npz_keys
from labelsieve.data.images import BadImage, FileReader, Frame, Pictures, Reader, Unusable, fast_decode, unwrapped
from labelsieve.data.load import ReadOptions, find, refuse_unusable
from labelsieve.data.sets import Labelled, Sets, Texts, Undecoded
from labelsieve.errors import InputError
from labelsieve.features.backbones import Backbone, fit_images
from labelsieve.features.store import KEY_BYTES, Array, Store, cache_folder
from labelsieve.files import make_folder, refuse_no_folder, usable_cores, writing
from labelsieve.runtime import torch_threads

CHUNK = 16  # samples that a thread reads and decodes at a time
SETTLED = 2_000_000_000  # nanoseconds; a file that changed later may change again with the same time stamp
MARK = "backbone"  # an array that only files of features have
NOT_FINITE = "its features are not finite in half precision"

Report = Callable[[int, int], None]  # finished samples, all samples
Item = TypeVar("Item")
Result = TypeVar("Result")


class Cache:
    """The stores of features in a cache folder, and the content digests of files that did not change."""

    def __init__(self, backbone: Backbone, folder: Path | str | None = None) -> None:
        root = cache_folder(folder) / "features"
        self.features = Store(root / f"{backbone.identity}-{backbone.precision}", backbone.dim)
        self.files = Store(root / "files", KEY_BYTES, np.uint8)

    def flush(self) -> None:
        """Write everything to disk."""
        self.features.flush()
        self.files.flush()

    def compact(self) -> None:
        """Merge small files."""
        self.features.compact()
        self.files.compact()


class Encoded(NamedTuple):
    """The encoded samples of a split, and those that cannot be used."""

    keys: list[bytes | None]  # (n) digest of the content; None if it cannot be read
    reasons: dict[int, str]  # samples that cannot be used, and why


def load_embedded(
    source: str,
    reading: ReadOptions,
    backbone: Backbone,
    *,
    cache: Path | str | None = None,
    workers: int | None = None,
    watch: Report = lambda done, total: None,
    on_unusable: Callable[[Sequence[Unusable]], None] = lambda unusable: None,
) -> Sets:
    """Load a dataset of images or texts as features (n, F) float32, with the samples as `original`.

    Args:
        source: file, folder, or name of an embedded or published dataset.
        reading: how to read it; the size of images is that of the backbone.
        backbone: the encoder of `find_backbone`.
        cache: folder in which features are kept. Default: $LABELSIEVE_CACHE, or ~/.cache/labelsieve.
        workers: threads that encode on a CPU, or decode for a GPU. Default: one per core.
        watch: called with the number of finished samples and of all samples.
        on_unusable: called with the files and rows that `reading.skip_bad` ignored.

    Raises:
        InputError: as `load_data`, and if the backbone does not fit the data.
    """
    listing = find(source, reading)
    refuse_kind(listing.train, backbone, source)
    store = Cache(backbone, cache)
    unusable = list(listing.unusable)
    sets: dict[str, Labelled] = {}
    finished, total = 0, sum(map(len, listing.splits().values()))
    for name, split in listing.splits().items():
        report = _shifted(watch, finished, total)
        sets[name], bad = embed_split(split, backbone, store, workers=workers, report=report)
        unusable += bad
        finished += len(split)
        if not len(sets[name]):
            raise InputError(f"no sample of {source} ({name}) can be used, first: {bad[0].name}: {bad[0].reason}")
    store.compact()
    if not reading.skip_bad:
        refuse_unusable(source, unusable)
    on_unusable(unusable)
    return Sets(**sets)


def embed_split(
    split: Undecoded,
    backbone: Backbone,
    cache: Cache,
    *,
    workers: int | None = None,
    report: Report = lambda done, total: None,
) -> tuple[Labelled, list[Unusable]]:
    """Return the features of a split without the samples that cannot be used, and those."""
    try:
        encoded = encode_samples(
            split, backbone, cache.features.__contains__, cache.features.add, cache.files, workers, report
        )
    finally:
        cache.flush()  # also after Ctrl-C
    names = split.names or [str(index) for index in range(len(split))]
    unusable = [Unusable(names[index], reason) for index, reason in encoded.reasons.items()]
    good = torch.tensor([index for index in range(len(split)) if index not in encoded.reasons], dtype=torch.int64)
    kept = split.at(good) if unusable else split
    keys = [key for index, key in enumerate(encoded.keys) if key is not None and index not in encoded.reasons]
    features = torch.from_numpy(cache.features.rows(keys, np.float32))
    return Labelled(features, kept.labels, kept.classes, kept.clean, kept.names, original=kept), unusable


def encode_samples(
    split: Undecoded,
    backbone: Backbone,
    known: Callable[[bytes], bool],
    keep: Callable[[Sequence[bytes], Array], None],
    files: Store | None = None,
    workers: int | None = None,
    report: Report = lambda done, total: None,
) -> Encoded:
    """Encode the samples whose keys are not known and pass keys and features (m, F) float16 on to `keep`."""
    workers = workers or usable_cores()
    runners = workers if backbone.device.type == "cpu" else 1
    outcome = _Outcome(len(split), keep, files, report)
    prepare = _Preparation(split, backbone, known, files)
    spans = (range(first, min(first + CHUNK, len(split))) for first in range(0, len(split), CHUNK))
    ahead = max(2 * workers, 2 * backbone.batch // CHUNK)  # spans that are decoded before the network needs them

    def encode(batch: Sequence[_Prepared]) -> tuple[Sequence[_Prepared], Array]:
        return batch, backbone(_joined(batch)).half().numpy()

    with (
        torch_threads(1),  # for each batch
        ThreadPoolExecutor(workers, "decode") as decoders,
        ThreadPoolExecutor(runners, "encode") as encoders,
    ):
        prepared = (one for part in _in_order(decoders, prepare, spans, ahead) for one in part)
        missing = (one for one in prepared if outcome.note(one))
        for batch, rows in _in_order(encoders, encode, _batches(missing, backbone.batch), 2 * runners):
            outcome.finish(batch, rows)
    return outcome.encoded()


class _Outcome:
    """Collects the results for all samples, in one thread."""

    def __init__(
        self, count: int, keep: Callable[[Sequence[bytes], Array], None], files: Store | None, report: Report
    ) -> None:
        self.keep, self.files, self.report = keep, files, report
        self.keys: list[bytes | None] = [None] * count
        self.unread: dict[int, str] = {}
        self.broken: dict[bytes, str] = {}  # by content: equal samples fail alike
        self.done = 0

    def note(self, one: "_Prepared") -> bool:
        """Note a sample that was read; return whether it must be encoded."""
        self.keys[one.place] = one.key
        if one.key is None:
            self.unread[one.place] = one.reason
        elif one.reason:
            self.broken[one.key] = one.reason
        if self.files is not None and one.stamp is not None and one.key is not None:
            self.files.add([one.stamp], np.frombuffer(one.key, np.uint8)[None])
        if one.sample is not None:
            return True
        self._count(1)
        return False

    def finish(self, batch: Sequence["_Prepared"], rows: Array) -> None:
        """Keep the features of a batch."""
        keys = [one.key for one in batch if one.key is not None]
        finite: Array = np.asarray(np.isfinite(rows).all(axis=1))
        self.keep([key for key, good in zip(keys, finite.tolist(), strict=True) if good], rows[finite])
        self.broken |= {key: NOT_FINITE for key, good in zip(keys, finite.tolist(), strict=True) if not good}
        self._count(len(batch))

    def encoded(self) -> Encoded:
        broken = {place: self.broken[key] for place, key in enumerate(self.keys) if key in self.broken}
        return Encoded(self.keys, dict(sorted((self.unread | broken).items())))

    def _count(self, more: int) -> None:
        self.done += more
        self.report(self.done, len(self.keys))


def seconds_per_sample(split: Undecoded, backbone: Backbone) -> float:
    """Return the seconds of one thread for reading, decoding and encoding a sample, from one batch of the split."""
    nothing = _Preparation(split, backbone, lambda key: False, None)
    indices = range(min(backbone.batch, len(split)))
    with torch_threads(1):
        backbone(_joined(nothing(indices[:1])))  # the first one is not counted
        nothing = _Preparation(split, backbone, lambda key: False, None)
        began = time.perf_counter()
        prepared = [one for one in nothing(indices) if one.sample is not None]
        if prepared:
            backbone(_joined(prepared))
        return (time.perf_counter() - began) / max(1, len(prepared))


def unknown_samples(split: Undecoded, cache: Cache) -> list[int]:
    """Return the positions of samples whose features are not stored, without reading any file.

    A file whose content is not known from an earlier reading counts as unknown.
    """

    def is_known(index: int) -> bool:
        stamp = _file_stamp(split.read, index)[0] if isinstance(split, Pictures) else None
        if stamp is not None:
            found = cache.files.get(stamp)
            return found is not None and found.tobytes() in cache.features
        try:
            return content_key(_content_of(split, index)) in cache.features
        except BadImage:
            return True  # nothing to compute

    return [index for index in range(len(split)) if not is_known(index)]


def content_key(content: bytes) -> bytes:
    """Return the digest of a sample's content."""
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()


def refuse_kind(split: Undecoded, backbone: Backbone, source: str) -> None:
    """Raise InputError if a backbone cannot encode the samples of a split."""
    if isinstance(split, Labelled) and split.images.ndim != 4:
        raise InputError(f"{source} contains numbers, which need no backbone; train on them directly")
    kind = "texts" if isinstance(split, Texts) else "images"
    if kind != backbone.kind:
        raise InputError(f"{source} contains {kind}, but the backbone {backbone.name} encodes {backbone.kind}")


# ---- files of features, for `labelsieve train` and NumPy ------------------------------------------------------------


def refuse_file(path: Path) -> None:
    """Refuse an output file that cannot be written, or that another program wrote."""
    if path.suffix != ".npz":
        raise InputError(f"--out must be a .npz file, got {path}")
    refuse_no_folder(path.parent)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    if path.exists() and MARK not in npz_keys(path):
        raise InputError(f"{path} exists and was not written by labelsieve embed; name another file, or move it away")


def save_features(path: Path, sets: Sets, backbone: Backbone) -> None:
    """Write features in half precision, labels, classes and names of all splits, and a description of the backbone."""
    arrays: dict[str, Any] = {MARK: np.array(json.dumps(backbone.about())), "classes": np.array(sets.train.classes)}
    for name, prefix in FEATURE_SPLITS.items():
        split = getattr(sets, name)
        if not isinstance(split, Labelled):
            continue
        arrays[f"{prefix}features"] = split.images.half().numpy()
        arrays[f"{prefix}labels"] = split.labels.numpy()
        if split.names is not None:
            arrays[f"{prefix}names"] = np.array(split.names)
        if name == "train" and split.clean is not None:
            arrays["clean_labels"] = split.clean.numpy()
    make_folder(path.parent)
    with writing(path) as file:
        np.savez(file, **arrays)


# ---- reading samples -----------------------------------------------------------------------------------------------


class _Prepared(NamedTuple):
    """A sample that was read, and decoded if it must be encoded."""

    place: int
    key: bytes | None  # None: it cannot be read
    sample: Tensor | str | None = None  # pixels (H, W, 3) uint8 or a text; None: nothing to encode
    reason: str = ""  # why it cannot be used
    stamp: bytes | None = None  # of its file, to be remembered with the key


class _Preparation:
    """Read samples, and decode those whose features are neither known nor being computed; used by several threads."""

    def __init__(
        self, split: Undecoded, backbone: Backbone, known: Callable[[bytes], bool], files: Store | None
    ) -> None:
        self.split, self.backbone, self.known, self.files = split, backbone, known, files
        self.claimed: set[bytes] = set()
        self.lock = threading.Lock()

    def __call__(self, span: Iterable[int]) -> list[_Prepared]:
        return [self._prepare(index) for index in span]

    def _prepare(self, index: int) -> _Prepared:
        stamp, settled = _file_stamp(self.split.read, index) if isinstance(self.split, Pictures) else (None, False)
        found = self.files.get(stamp) if self.files is not None and stamp is not None else None
        if found is not None and self.known(found.tobytes()):
            return _Prepared(index, found.tobytes())
        try:
            content = _content_of(self.split, index)
        except BadImage as error:
            return _Prepared(index, None, reason=str(error))
        key = content_key(content)
        new_stamp = stamp if settled and (found is None or found.tobytes() != key) else None
        if not self._claim(key):
            return _Prepared(index, key, stamp=new_stamp)
        try:
            return _Prepared(index, key, _decode(self.split, index, content, self.backbone.size), stamp=new_stamp)
        except BadImage as error:
            return _Prepared(index, key, reason=str(error))

    def _claim(self, key: bytes) -> bool:
        """Return whether this is the first sample with this content, and its features are not known."""
        with self.lock:
            if key in self.claimed:
                return False
            self.claimed.add(key)
        return not self.known(key)


def _content_of(split: Undecoded, index: int) -> bytes:
    """Return the bytes that identify a sample."""
    if isinstance(split, Pictures):
        return split.bytes_of(index)
    if isinstance(split, Texts):
        return split.texts[index].encode("utf-8", "surrogatepass")
    image = split.images[index]
    return f"{tuple(image.shape)}".encode() + image.numpy().tobytes()


def _decode(split: Undecoded, index: int, content: bytes, size: int) -> Tensor | str:
    """Return the pixels (size, size, 3) of an image, or a text."""
    if isinstance(split, Pictures):
        return torch.tensor(fast_decode(content, Frame(size, size, 3)))
    if isinstance(split, Texts):
        return split.texts[index]
    return fit_images(split.images[index : index + 1], size)[0].permute(1, 2, 0)


def _joined(batch: Sequence[_Prepared]) -> Tensor | list[str]:
    """Return the samples of a batch as one tensor (B, 3, H, W), or as a list of texts."""
    images = [one.sample for one in batch if isinstance(one.sample, Tensor)]
    if images:
        return torch.stack(images).permute(0, 3, 1, 2)
    return [one.sample for one in batch if isinstance(one.sample, str)]


def _file_stamp(read: Reader, index: int) -> tuple[bytes | None, bool]:
    """Return a digest of a file's path, size and times, and whether it can be relied on; None if there is no file."""
    read, index = unwrapped(read, index)
    if not isinstance(read, FileReader):
        return None, False
    path = (read.root / read.paths[index]).absolute()
    try:
        found = path.stat()
    except OSError:
        return None, False  # reported when it is read
    facts = f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}"
    settled = time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > SETTLED
    return content_key(facts.encode("utf-8", "surrogateescape")), settled


# ---- threads -------------------------------------------------------------------------------------------------------


def _in_order(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    """Yield the results of a function in the order of the items, of which `ahead` are computed in advance."""
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # also if the caller stops early
        for future in pending:
            future.cancel()


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items; the last one may be shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _shifted(watch: Report, finished: int, total: int) -> Report:
    """Return a report for a part of the samples, after `finished` of `total` ones."""
    return lambda done, count: watch(finished + done, total)
