"""check: one pass over everything in a dataset, and a report of what is there and what cannot be used."""

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

from labelsieve.data.columns import Features
from labelsieve.data.images import Bad, BadImage, Frame, Pictures, decode, header
from labelsieve.data.load import FOLDER, Reading, Undecoded, find, frame_for
from labelsieve.data.sets import Labelled
from labelsieve.errors import InputError
from labelsieve.progress import live_bar

SHOWN = 20  # classes, sizes and duplicates listed by name
FEW_SIZES = 5  # that are listed one by one
IMBALANCED = 3  # times as many samples in the largest class as in the smallest


class Seen(NamedTuple):
    """One sample: what it contains, as a digest, and how large it is."""

    digest: bytes
    size: tuple[int, ...]  # height and width, or columns


def check(data: str, size: int | None, label: str | None, image: str | None) -> None:
    """Print what was found; raise if anything cannot be used."""
    reading = Reading(size=size, label=label, image=image)
    found = find(data, reading)
    frame = frame_for(found, reading)
    print(f"{data}: {found.kind}")
    bad = list(found.bad)
    seen: dict[str, dict[int, Seen]] = {}
    for name, split in found.splits().items():
        seen[name], unusable = looked_at(split, frame, name)
        bad += unusable
        print("\n".join(described(name, split, seen[name], frame)))
        if found.kind == FOLDER:
            print("".join(f"{line}\n" for line in too_high(split)), end="")
    print("\n".join(repeated(seen, found.splits())))
    for entry in bad:
        print(f"bad: {shown(entry.name)}: {entry.reason}")
    if bad:
        what = "1 file or row" if len(bad) == 1 else f"{len(bad):,} files or rows"
        raise InputError(f"{what} of {data} cannot be used, see above; mend or remove, or train with --skip-bad")
    print("everything can be used")


def looked_at(split: Undecoded, frame: Frame | None, name: str) -> tuple[dict[int, Seen], list[Bad]]:
    """Every sample that can be used, by position, and those that cannot."""
    seen: dict[int, Seen] = {}
    bad: dict[int, Bad] = {}
    bar = live_bar()
    bar.disable = not sys.stdout.isatty()
    task = bar.add_task(f"looking at {name}", total=len(split))

    def look(index: int) -> None:
        try:
            seen[index] = sample(split, index, frame)
        except BadImage as error:
            assert isinstance(split, Pictures)
            bad[index] = Bad(split.names[index], str(error))
        bar.advance(task)

    with bar, ThreadPoolExecutor() as pool:
        list(pool.map(look, range(len(split))))
    return dict(sorted(seen.items())), [bad[index] for index in sorted(bad)]


def sample(split: Undecoded, index: int, frame: Frame | None) -> Seen:
    if isinstance(split, Pictures):
        assert frame is not None
        content = split.bytes_of(index)
        decode(content, frame)
        about = header(content)
        return Seen(hashlib.sha256(content).digest(), (about.height, about.width))
    values = split.images[index] if isinstance(split, Labelled) else split.values[index]
    return Seen(hashlib.sha256(values.numpy().tobytes()).digest(), tuple(values.shape[1:]) or (len(values),))


def described(name: str, split: Undecoded, seen: dict[int, Seen], frame: Frame | None) -> list[str]:
    """Counts, classes, sizes and imbalance of a split."""
    counts = Counter(split.labels[list(seen)].tolist())
    each = [f"{shown(split.classes[k])} {counts[k]:,}" for k in range(len(split.classes))]
    lines = [f"{name}: {len(seen):,} samples of {len(split.classes)} classes: {listed(each)}"]
    empty = [shown(split.classes[k]) for k in range(len(split.classes)) if not counts[k]]
    if empty:
        lines.append(f"  no sample of {listed(empty)}")
    if counts and max(counts.values()) > IMBALANCED * min(counts.values()):
        (most, many), *_, (least, few) = counts.most_common()
        both = f"{shown(split.classes[most])} has {many:,} samples, {shown(split.classes[least])} {few:,}"
        lines.append(f"  imbalanced: {both}, {many / few:.1f} times as many")
    lines.append(f"  sizes: {summarised(Counter(one.size for one in seen.values()))}")
    if frame is not None and isinstance(split, Pictures):
        kind = "gray" if frame.channels == 1 else "RGB"
        lines.append(f"  read as {frame.height} x {frame.width}, {kind}")
    if isinstance(split, Features):
        lines.append(f"  columns: {listed([shown(column) for column in split.columns])}")
    return lines


def summarised(sizes: Counter[tuple[int, ...]]) -> str:
    """A few sizes one by one, of many how far they reach."""
    if len(sizes) <= FEW_SIZES:
        return ", ".join(f"{sized(size)} ({count:,})" for size, count in sizes.most_common())
    heights, widths = ([size[place] for size in sizes] for place in (0, -1))
    reach = f"heights {min(heights)} to {max(heights)}, widths {min(widths)} to {max(widths)}"
    (common, count), *_ = sizes.most_common(1)
    return f"{len(sizes):,} different ones, {reach}, most often {sized(common)} ({count:,})"


def sized(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size)) if len(size) > 1 else f"{size[0]} columns"


def too_high(split: Undecoded) -> list[str]:
    """A question, where a class folder holds no image itself: the classes may be the folders below."""
    if not isinstance(split, Pictures):
        return []
    direct = {name.split("/")[-2] for name in split.names if "/" in name}
    empty = [shown(name) for k, name in enumerate(split.classes) if name not in direct and (split.labels == k).any()]
    if not empty:
        return []
    return [f"  only folders in {listed(empty)}: if these are the classes, name the folder that they lie in"]


def repeated(seen: dict[str, dict[int, Seen]], splits: dict[str, Undecoded]) -> list[str]:
    """Samples that are there more than once, within a split (also under different labels) and across splits."""
    lines = []
    digests = {name: {one.digest for one in samples.values()} for name, samples in seen.items()}
    for first, second in [*pairwise(seen), *([("train", "valid")] if len(seen) == 3 else [])]:
        both = digests[first] & digests[second]
        if both:
            what = "1 sample is" if len(both) == 1 else f"{len(both):,} samples are"
            lines.append(f"{what} in {first} and in {second}: errors on {second} will look too good")
    for name, samples in seen.items():
        groups: dict[bytes, list[int]] = {}
        for index, one in samples.items():
            groups.setdefault(one.digest, []).append(index)
        twice = [group for group in groups.values() if len(group) > 1]
        torn = [group for group in twice if len(set(splits[name].labels[group].tolist())) > 1]
        if twice:
            what = f"1 sample of {name} is" if len(twice) == 1 else f"{len(twice):,} samples of {name} are"
            lines.append(f"{what} there more than once")
            lines[-1] += f", {len(torn):,} under different labels"
            lines += [f"  {', '.join(call(splits[name], index) for index in group[:3])}" for group in torn[:SHOWN]]
    return lines or ["no sample is there twice"]


def call(split: Undecoded, index: int) -> str:
    names = split.names
    return shown(names[index]) if names is not None else f"sample {index}"


def shown(name: str) -> str:
    """A name without what would confuse a terminal."""
    return name.encode("unicode_escape", "surrogateescape").decode("ascii") if not name.isprintable() else name


def listed(words: Sequence[str]) -> str:
    more = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")
