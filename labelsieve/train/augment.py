"""Augment: batches changed at random on the device, each sample as the seed, the epoch and its number decide."""

import re
from typing import NamedTuple

import torch
from torch import Tensor

from labelsieve.errors import InputError
from labelsieve.runtime import derive

KINDS = (
    "crop4 (pad by 4 pixels, crop), window224 (a window of 224 pixels out of a larger image), "
    "flip (left to right, half of the images), cutout8 (blank a square of 8)"
)
WORD = re.compile(r"(?P<kind>crop|cutout|window)(?P<pixels>[1-9][0-9]{0,3})|(?P<plain>flip)")


class Change(NamedTuple):
    """One kind of augmentation."""

    kind: str  # crop, window, flip or cutout
    pixels: int = 0


def parse(text: str) -> tuple[Change, ...]:
    """The changes that a text such as crop4,flip,cutout8 names, in its order."""
    changes: list[Change] = []
    for word in text.split(","):
        found = WORD.fullmatch(word.strip())
        if found is None:
            raise InputError(f"no augmentation {word.strip()!r}; there are, joined by commas: {KINDS}")
        changes.append(Change(found["plain"] or found["kind"], int(found["pixels"] or 0)))
    if len({change.kind for change in changes}) < len(changes):
        raise InputError(f"augmentation {text!r} names one kind twice; give each once, of: {KINDS}")
    return tuple(changes)


def window_of(text: str) -> int | None:
    """The side of the window that is cut out of training images, if there is one."""
    sides = [change.pixels for change in (parse(text) if text else ()) if change.kind == "window"]
    return sides[0] if sides else None


def scrambled(numbers: Tensor) -> Tensor:
    """int64 to int64, one to one, so that near numbers land far apart."""
    for shift, factor in ((32, 0x5851F42D4C957F2D), (29, 0x2545F4914F6CDD1D), (31, 0x369DEA0F31A53F85)):
        numbers = (numbers ^ _shifted(numbers, shift)) * factor  # wraps around, as is wanted
    return numbers ^ _shifted(numbers, 30)


def _shifted(numbers: Tensor, by: int) -> Tensor:
    """To the right, with zeros coming in."""
    return (numbers >> by) & ((1 << (64 - by)) - 1)


def drawn(key: int, epoch: Tensor, index: Tensor, choices: int) -> Tensor:
    """(B) whole numbers from 0 to choices - 1, a function of nothing but the key, the epoch and the index."""
    bits = scrambled(scrambled(scrambled(epoch + key) + index))
    return _shifted(bits, 11) % choices


def crop(images: Tensor, down: Tensor, right: Tensor, pixels: int) -> Tensor:
    """Pad by zeros, then cut out at `down` and `right` (B), from 0 to 2 * pixels."""
    _, _, height, width = images.shape
    rows = torch.arange(height, device=images.device) + down[:, None] - pixels  # (B, H)
    columns = torch.arange(width, device=images.device) + right[:, None] - pixels  # (B, W)
    inside = _within(rows, height)[:, None, :, None] & _within(columns, width)[:, None, None, :]
    moved = images.gather(2, rows.clamp(0, height - 1)[:, None, :, None].expand_as(images))
    moved = moved.gather(3, columns.clamp(0, width - 1)[:, None, None, :].expand_as(images))
    return torch.where(inside, moved, 0.0)


def window(images: Tensor, down: Tensor, right: Tensor, pixels: int) -> Tensor:
    """A square of so many pixels, cut out at `down` and `right` (B)."""
    count, channels, _, width = images.shape
    places = torch.arange(pixels, device=images.device)
    rows = (down[:, None] + places)[:, None, :, None].expand(count, channels, pixels, width)
    columns = (right[:, None] + places)[:, None, None, :].expand(count, channels, pixels, pixels)
    return images.gather(2, rows).gather(3, columns)


def centred(images: Tensor, pixels: int | None) -> Tensor:
    """The middle window of images that are larger than it."""
    if pixels is None or images.shape[-1] <= pixels:
        return images
    down, right = (images.shape[-2] - pixels) // 2, (images.shape[-1] - pixels) // 2
    return images[..., down : down + pixels, right : right + pixels]


def _within(places: Tensor, side: int) -> Tensor:
    return (places >= 0) & (places < side)


def flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Left to right, where flipped (B) is 1."""
    return torch.where(flipped.bool()[:, None, None, None], images.flip(3), images)


def cutout(images: Tensor, row: Tensor, column: Tensor, pixels: int) -> Tensor:
    """Blank a square around a pixel (B); what sticks out is lost."""
    _, _, height, width = images.shape
    rows = torch.arange(height, device=images.device) - row[:, None] + pixels // 2  # (B, H), from the square's top
    columns = torch.arange(width, device=images.device) - column[:, None] + pixels // 2
    square = _within(rows, pixels)[:, None, :, None] & _within(columns, pixels)[:, None, None, :]
    return torch.where(square, 0.0, images)


class Augment:
    """Changes batches as a text such as crop4,flip,cutout8 says; a CUDA graph can record it."""

    def __init__(self, text: str, seed: int, device: torch.device) -> None:
        self.changes = parse(text)
        self.keys = {
            change.kind: (derive(seed, "augment", change.kind, "down"), derive(seed, "augment", change.kind, "right"))
            for change in self.changes
        }
        self.epoch = torch.zeros((), dtype=torch.int64, device=device)

    def start_epoch(self, epoch: int) -> None:
        self.epoch.fill_(epoch)

    def __call__(self, images: Tensor, index: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape, or to the window's; index (B): which samples these are."""
        for change in self.changes:
            images = self._changed(images, index, change)
        return images

    def _changed(self, images: Tensor, index: Tensor, change: Change) -> Tensor:
        kind, pixels = change
        _, _, height, width = images.shape
        if pixels >= min(height, width) + (kind == "window"):
            raise InputError(f"{kind}{pixels} is too much for images of {height} x {width}; give less")
        down, right = self.keys[kind]
        if kind == "flip":
            return flip(images, drawn(right, self.epoch, index, 2))
        if kind == "crop":
            shifts = 2 * pixels + 1
            place = drawn(down, self.epoch, index, shifts), drawn(right, self.epoch, index, shifts)
            return crop(images, *place, pixels)
        if kind == "window":
            place = (
                drawn(down, self.epoch, index, height - pixels + 1),
                drawn(right, self.epoch, index, width - pixels + 1),
            )
            return window(images, *place, pixels)
        return cutout(images, drawn(down, self.epoch, index, height), drawn(right, self.epoch, index, width), pixels)
