"""Pictures: labelled images that are still encoded, in files or in the cells of a table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from labelsieve.cells import printable
from labelsieve.data.decode import BadImage, Frame, Header, decode, header
from labelsieve.errors import InputError

LOOKED_AT = 1000  # images whose headers decide what all are brought to
LARGEST_SIDE = 224


class Bad(NamedTuple):
    """A file or row that cannot be used, and why."""

    name: str
    reason: str


def left_out(bad: Sequence[Bad]) -> str:
    """How much cannot be used, and the first of it, in a line."""
    what = "1 file or row is left out:" if len(bad) == 1 else f"{len(bad):,} files or rows are left out, the first is"
    return printable(f"{what} {bad[0].name}: {bad[0].reason}")


class Reader(Protocol):
    """Gives the encoded bytes of a sample; it can be sent to other processes. Raises OSError."""

    def __call__(self, index: int) -> bytes: ...


@dataclass(frozen=True)
class Files:
    """A reader of files below a folder."""

    root: Path
    paths: Sequence[str]  # relative to it

    def __call__(self, index: int) -> bytes:
        return (self.root / self.paths[index]).read_bytes()


@dataclass(frozen=True)
class Chosen:
    """A reader of some samples of another."""

    read: Reader
    index: Sequence[int]

    def __call__(self, index: int) -> bytes:
        return self.read(self.index[index])


@dataclass(frozen=True)
class Pictures:
    """A set of encoded images."""

    names: Sequence[str]  # of each sample, for people: a path, or file:row
    read: Reader
    labels: Tensor  # (n) int64
    classes: tuple[str, ...]
    clean: Tensor | None = None  # (n) true labels, where they are known

    def __len__(self) -> int:
        return len(self.names)

    def at(self, index: Sequence[int]) -> "Pictures":
        """The samples at these positions alone."""
        picked = torch.as_tensor(list(index), dtype=torch.int64)
        return replace(
            self,
            names=[self.names[i] for i in index],
            read=Chosen(self.read, list(index)),
            labels=self.labels[picked],
            clean=None if self.clean is None else self.clean[picked],
        )

    def bytes_of(self, index: int) -> bytes:
        try:
            return self.read(index)
        except OSError as error:
            raise BadImage(f"it cannot be read ({error.strerror or error})") from error

    def pixels(self, index: int, frame: Frame) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """One image, decoded: (height, width, channels)."""
        return decode(self.bytes_of(index), frame)


def frame_of(pictures: Pictures, size: int | None = None) -> Frame:
    """What all images are brought to, from the headers of up to 1,000 of them, evenly spaced.

    `size`: the side to scale to. Without it: the size that they have, if all have the same; else squares whose side is
    the median of the shorter sides, at most 224. Gray if all of them are gray.
    """
    if not len(pictures):
        raise InputError("there are no images")
    step = -(-len(pictures) // LOOKED_AT)
    headers: list[Header] = []
    for index in range(0, len(pictures), step):
        try:
            headers.append(header(pictures.bytes_of(index)))
        except BadImage:
            continue  # whoever decodes it says so
    if not headers:
        raise InputError(f"none of the images can be read, the first is {pictures.names[0]}")
    channels = 1 if all(found.gray for found in headers) else 3
    if size is not None:
        return Frame(size, size, channels)
    if (
        len({(found.height, found.width) for found in headers}) == 1
        and max(headers[0].height, headers[0].width) <= LARGEST_SIDE
    ):
        return Frame(headers[0].height, headers[0].width, channels)
    sides = sorted(min(found.height, found.width) for found in headers)
    side = min(LARGEST_SIDE, sides[len(sides) // 2])
    return Frame(side, side, channels)
