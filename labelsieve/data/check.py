"""Examine a dataset for `labelsieve check`: read every sample once, and report contents, duplicates and faults."""

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

from labelsieve.data.folder import IMAGE_FOLDER
from labelsieve.data.images import BadImage, Frame, Pictures, Unusable, decode, read_header
from labelsieve.data.load import ReadOptions, find, frame_for
from labelsieve.data.sets import Labelled, Texts, Undecoded
from labelsieve.errors import InputError
from labelsieve.progress import live_bar
from labelsieve.text import listed, printable

MAX_LISTED = 20  # classes and duplicates that are listed by name
MAX_SIZES = 5  # different image sizes that are listed one by one
IMBALANCE = 3  # ratio of the largest to the smallest class above which it is reported


class _Examined(NamedTuple):
    """Digest and size of a sample."""

    digest: bytes
    size: tuple[int, ...]  # (height, width), (columns,) or (characters,)


def check(data: str, reading: ReadOptions | None = None) -> None:
    """Print a report on a dataset; raise InputError if files or rows cannot be used."""
    reading = reading or ReadOptions()
    listing = find(data, reading)
    frame = frame_for(listing, reading)
    print(f"{data}: {listing.kind}")
    unusable = list(listing.unusable)
    examined: dict[str, dict[int, _Examined]] = {}
    for name, split in listing.splits().items():
        examined[name], bad = _examine(split, frame, name)
        unusable += bad
        print("\n".join(_describe(name, split, examined[name], frame)))
        if listing.kind == IMAGE_FOLDER and (nested := _nested_classes(split)):
            print(f"  only folders in {_names(nested)}: if these are the classes, pass the folder that contains them")
    print("\n".join(_duplicates(examined, listing.splits())))
    for entry in unusable:
        print(f"bad: {printable(entry.name)}: {entry.reason}")
    if unusable:
        count = "1 file or row" if len(unusable) == 1 else f"{len(unusable):,} files or rows"
        raise InputError(f"{count} of {data} cannot be used, see above; correct or remove, or train with --skip-bad")
    print("all samples can be used")


def _examine(split: Undecoded, frame: Frame | None, name: str) -> tuple[dict[int, _Examined], list[Unusable]]:
    """Read every sample; return those that can be used, by position, and those that cannot."""
    examined: dict[int, _Examined] = {}
    unusable: dict[int, Unusable] = {}
    bar = live_bar()
    bar.disable = not sys.stdout.isatty()
    task = bar.add_task(f"checking {name}", total=len(split))

    def examine_one(index: int) -> None:
        try:
            examined[index] = _examine_sample(split, index, frame)
        except BadImage as error:
            assert isinstance(split, Pictures)
            unusable[index] = Unusable(split.names[index], str(error))
        bar.advance(task)

    with bar, ThreadPoolExecutor() as pool:
        list(pool.map(examine_one, range(len(split))))
    return dict(sorted(examined.items())), [unusable[index] for index in sorted(unusable)]


def _examine_sample(split: Undecoded, index: int, frame: Frame | None) -> _Examined:
    if isinstance(split, Pictures):
        assert frame is not None
        content = split.bytes_of(index)
        decode(content, frame)
        header = read_header(content)
        return _Examined(hashlib.sha256(content).digest(), (header.height, header.width))
    if isinstance(split, Texts):
        text = split.texts[index]
        return _Examined(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest(), (len(text),))
    values = split.images[index]
    return _Examined(hashlib.sha256(values.numpy().tobytes()).digest(), tuple(values.shape[1:]) or (len(values),))


def _describe(name: str, split: Undecoded, examined: dict[int, _Examined], frame: Frame | None) -> list[str]:
    """Return sample counts, imbalance and sizes of a split."""
    counts = Counter(split.labels[list(examined)].tolist())
    each = (f"{label} {counts[k]:,}" for k, label in enumerate(split.classes))
    lines = [f"{name}: {len(examined):,} samples of {len(split.classes)} classes: {_names(each)}"]
    if empty := [label for k, label in enumerate(split.classes) if not counts[k]]:
        lines.append(f"  no sample of {_names(empty)}")
    if counts and max(counts.values()) > IMBALANCE * min(counts.values()):
        (most, many), *_, (least, few) = counts.most_common()
        both = f"{printable(split.classes[most])} has {many:,} samples, {printable(split.classes[least])} {few:,}"
        lines.append(f"  imbalanced: {both}, {many / few:.1f} times as many")
    sizes = Counter(one.size for one in examined.values())
    lines.append(f"  {_text_lengths(sizes) if isinstance(split, Texts) else f'sizes: {_summarise_sizes(sizes)}'}")
    if frame is not None and isinstance(split, Pictures):
        lines.append(f"  read as {frame.height} x {frame.width}, {'gray' if frame.channels == 1 else 'RGB'}")
    if isinstance(split, Labelled) and split.columns:
        lines.append(f"  columns: {_names(split.columns)}")
    return lines


def _summarise_sizes(sizes: Counter[tuple[int, ...]]) -> str:
    """Return the sizes with their counts, or their range if there are many."""
    if len(sizes) <= MAX_SIZES:
        return ", ".join(f"{_size_text(size)} ({count:,})" for size, count in sizes.most_common())
    heights, widths = ([size[place] for size in sizes] for place in (0, -1))
    ranges = f"heights {min(heights)} to {max(heights)}, widths {min(widths)} to {max(widths)}"
    (common, count), *_ = sizes.most_common(1)
    return f"{len(sizes):,} different, {ranges}, most common {_size_text(common)} ({count:,})"


def _text_lengths(sizes: Counter[tuple[int, ...]]) -> str:
    lengths = [length for (length,) in sizes.elements()]
    return f"texts of {min(lengths):,} to {max(lengths):,} characters, median {median_low(lengths):,}"


def _size_text(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size)) if len(size) > 1 else f"{size[0]} columns"


def _nested_classes(split: Undecoded) -> list[str]:
    """Return the classes whose folder directly contains no image; their subfolders may be the classes."""
    if not isinstance(split, Pictures):
        return []
    direct = {name.split("/")[-2] for name in split.names if "/" in name}
    return [name for k, name in enumerate(split.classes) if name not in direct and (split.labels == k).any()]


def _duplicates(examined: dict[str, dict[int, _Examined]], splits: dict[str, Undecoded]) -> list[str]:
    """Return lines on equal samples across splits, within a split, and with different labels."""
    lines = []
    groups = {name: _equal_samples(samples) for name, samples in examined.items()}

    def named(*samples: tuple[str, int]) -> str:
        known = ((splits[name].names, index) for name, index in samples)
        return f"  {_names(names[index] if names else f'sample {index}' for names, index in known)}"

    for first, second in [*pairwise(examined), *([("train", "valid")] if len(examined) == 3 else [])]:
        if both := [digest for digest in groups[first] if digest in groups[second]]:
            count = "1 sample is" if len(both) == 1 else f"{len(both):,} samples are"
            lines.append(f"{count} in {first} and in {second}: the error on {second} will be too low")
            pairs = ((groups[first][digest][0], groups[second][digest][0]) for digest in both[:MAX_LISTED])
            lines += [named((first, one), (second, other)) for one, other in pairs]
    for name, equal in groups.items():
        repeated = [group for group in equal.values() if len(group) > 1]
        conflicts = [group for group in repeated if len(set(splits[name].labels[group].tolist())) > 1]
        if repeated:
            count = f"1 sample of {name} occurs" if len(repeated) == 1 else f"{len(repeated):,} samples of {name} occur"
            lines.append(f"{count} more than once, {len(conflicts):,} with different labels")
            shown = [*conflicts, *(group for group in repeated if group not in conflicts)]
            lines += [named(*((name, index) for index in group[:3])) for group in shown[:MAX_LISTED]]
    return lines or ["no duplicate samples"]


def _equal_samples(examined: dict[int, _Examined]) -> dict[bytes, list[int]]:
    """Return the positions of the samples with each digest."""
    groups: dict[bytes, list[int]] = {}
    for index, one in examined.items():
        groups.setdefault(one.digest, []).append(index)
    return groups


def _names(names: Iterable[str]) -> str:
    return listed(map(printable, names), MAX_LISTED)
