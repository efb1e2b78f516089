"""Random image augmentation on the device; the changes of a sample depend only on seed, epoch and position."""

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
PATTERN = re.compile(r"(?P<kind>crop|cutout|window)(?P<pixels>[1-9][0-9]{0,3})|(?P<plain>flip)")


class Augment:
    """Augments batches as text such as "crop4,flip,cutout8" describes; can be captured as a CUDA graph."""

    def __init__(self, text: str, seed: int, device: torch.device) -> None:
        self.changes = parse_augment(text)
        self.keys = {
            change.kind: (derive(seed, "augment", change.kind, "down"), derive(seed, "augment", change.kind, "right"))
            for change in self.changes
        }
        self.epoch = torch.zeros((), dtype=torch.int64, device=device)

    def start_epoch(self, epoch: int) -> None:
        """Draw new changes for this epoch, counted over all rounds."""
        self.epoch.fill_(epoch)

    def __call__(self, images: Tensor, index: Tensor) -> Tensor:
        """Return augmented images (B, C, H, W), smaller if a window is cut; index (B) are their positions."""
        for change in self.changes:
            images = self._apply(images, index, change)
        return images

    def _apply(self, images: Tensor, index: Tensor, change: "_Change") -> Tensor:
        kind, pixels = change
        _, _, height, width = images.shape
        if pixels >= min(height, width) + (kind == "window"):
            raise InputError(f"{kind}{pixels} is too large for images of {height} x {width} pixels; use fewer pixels")
        down, right = self.keys[kind]
        if kind == "flip":
            flipped = draw(right, self.epoch, index, 2).bool()
            return torch.where(flipped[:, None, None, None], images.flip(3), images)
        if kind == "crop":
            shifts = 2 * pixels + 1
            offset = draw(down, self.epoch, index, shifts), draw(right, self.epoch, index, shifts)
            return _crop(images, *offset, pixels)
        if kind == "window":
            offset = (
                draw(down, self.epoch, index, height - pixels + 1),
                draw(right, self.epoch, index, width - pixels + 1),
            )
            return _cut_window(images, *offset, pixels)
        return _cutout(images, draw(down, self.epoch, index, height), draw(right, self.epoch, index, width), pixels)


class _Change(NamedTuple):
    """One kind of augmentation."""

    kind: str  # crop, window, flip or cutout
    pixels: int = 0


def parse_augment(text: str) -> tuple[_Change, ...]:
    """Return the changes named by text such as "crop4,flip,cutout8", in order."""
    changes: list[_Change] = []
    for word in text.split(","):
        found = PATTERN.fullmatch(word.strip())
        if found is None:
            raise InputError(f"unknown augmentation {word.strip()!r}; join any of these by commas: {KINDS}")
        changes.append(_Change(found["plain"] or found["kind"], int(found["pixels"] or 0)))
    if len({change.kind for change in changes}) < len(changes):
        raise InputError(f"augmentation {text!r} names a kind twice; use each of these at most once: {KINDS}")
    return tuple(changes)


def window_size(text: str) -> int | None:
    """Return the side of the window that is cut out of training images, or None."""
    sides = [change.pixels for change in (parse_augment(text) if text else ()) if change.kind == "window"]
    return sides[0] if sides else None


def center_window(images: Tensor, pixels: int | None) -> Tensor:
    """Return the central window of images that are larger than it, else the images."""
    if pixels is None or images.shape[-1] <= pixels:
        return images
    down, right = (images.shape[-2] - pixels) // 2, (images.shape[-1] - pixels) // 2
    return images[..., down : down + pixels, right : right + pixels]


def _crop(images: Tensor, down: Tensor, right: Tensor, pixels: int) -> Tensor:
    """Pad images with zeros and crop them at offsets `down` and `right` (B), from 0 to 2 * pixels."""
    _, _, height, width = images.shape
    rows = torch.arange(height, device=images.device) + down[:, None] - pixels  # (B, H)
    columns = torch.arange(width, device=images.device) + right[:, None] - pixels  # (B, W)
    inside = _in_range(rows, height)[:, None, :, None] & _in_range(columns, width)[:, None, None, :]
    moved = images.gather(2, rows.clamp(0, height - 1)[:, None, :, None].expand_as(images))
    moved = moved.gather(3, columns.clamp(0, width - 1)[:, None, None, :].expand_as(images))
    return torch.where(inside, moved, 0.0)


def _cut_window(images: Tensor, down: Tensor, right: Tensor, pixels: int) -> Tensor:
    """Cut a square of `pixels` a side out of each image at offsets `down` and `right` (B)."""
    count, channels, _, width = images.shape
    offsets = torch.arange(pixels, device=images.device)
    rows = (down[:, None] + offsets)[:, None, :, None].expand(count, channels, pixels, width)
    columns = (right[:, None] + offsets)[:, None, None, :].expand(count, channels, pixels, pixels)
    return images.gather(2, rows).gather(3, columns)


def _cutout(images: Tensor, row: Tensor, column: Tensor, pixels: int) -> Tensor:
    """Blank a square around the pixel (row, column) (B); the part outside the image is ignored."""
    _, _, height, width = images.shape
    rows = torch.arange(height, device=images.device) - row[:, None] + pixels // 2  # (B, H), relative to the square
    columns = torch.arange(width, device=images.device) - column[:, None] + pixels // 2
    square = _in_range(rows, pixels)[:, None, :, None] & _in_range(columns, pixels)[:, None, None, :]
    return torch.where(square, 0.0, images)


def _in_range(positions: Tensor, size: int) -> Tensor:
    """Return where positions are from 0 to size - 1."""
    return (positions >= 0) & (positions < size)


def draw(key: int, epoch: Tensor, index: Tensor, choices: int) -> Tensor:
    """Return integers (B) from 0 to choices - 1 that depend only on the key, the epoch and the index (B)."""
    bits = _mix_bits(_mix_bits(_mix_bits(epoch + key) + index))
    return _shift_right(bits, 11) % choices


def _mix_bits(numbers: Tensor) -> Tensor:
    """Map int64 to int64 one to one, so that similar numbers become unrelated."""
    for shift, factor in ((32, 0x5851F42D4C957F2D), (29, 0x2545F4914F6CDD1D), (31, 0x369DEA0F31A53F85)):
        numbers = (numbers ^ _shift_right(numbers, shift)) * factor  # the overflow is intended
    return numbers ^ _shift_right(numbers, 30)


def _shift_right(numbers: Tensor, by: int) -> Tensor:
    """Shift int64 numbers to the right and fill with zeros."""
    return (numbers >> by) & ((1 << (64 - by)) - 1)
