"""jpeg: quick decoding of JPEG files, and of everything else as decode does it.

Quicker than decode.decode by the decoder (simplejpeg, where it is installed), by decoding at a half, quarter or eighth
of the size where the frame is that small, and by torch's resizing. Pixels may differ from decode.decode's by a few grey
levels, so DECODER belongs to what identifies a run.
"""

import io
import math
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from PIL import Image, JpegImagePlugin
from torch.nn.functional import interpolate

from labelsieve.data.decode import BadImage, Frame, decode
from labelsieve.data.pictures import Pictures
from labelsieve.errors import InputError

try:
    import simplejpeg  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ImportError:  # an optional extra
    simplejpeg = None

Array = np.ndarray[Any, Any]
DECODER = f"simplejpeg {version('simplejpeg')}" if simplejpeg else f"pillow {version('pillow')}"
Decoded = tuple[Array, float, float]  # pixels (H, W, C) and how much of H and W is the image: 31.25 of 32, at an eighth
ROUNDED_UP = 1 + 1e-9  # so that a factor of 7 / 10 makes 7 pixels of 10, not 6
ORIENTATION = 0x0112  # of EXIF
START_OF_PIXELS, EXIF_OR_XMP = 0xDA, 0xE1  # markers; the latter's parts can hold an orientation


def fast_decode(content: bytes, frame: Frame) -> Array:
    """(height, width, channels) uint8"""
    if content.startswith(b"\xff\xd8"):
        try:
            found = _by_simplejpeg(content, frame) if simplejpeg else _by_pillow(content, frame)
            if found is not None:
                return resize(*found, frame)
        except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError):
            pass  # decode tells what is wrong with it, or copes
    return decode(content, frame)


def decode_into(out: Array, pictures: Pictures, index: Sequence[int], frame: Frame) -> None:
    """Decode these samples into the rows of an array."""
    for row, sample in zip(out, index, strict=True):
        try:
            row[:] = fast_decode(pictures.bytes_of(sample), frame)
        except BadImage as error:
            raise InputError(
                f"{pictures.names[sample]}: {error}; `labelsieve check DATA` lists all such images, "
                "--skip-bad leaves them out"
            ) from error


def resize(pixels: Array, height: float, width: float, frame: Frame) -> Array:
    """The first height x width of pixels (H, W, C), scaled with anti-aliasing as Pillow does, but quicker."""
    if pixels.shape[:2] == (frame.height, frame.width):
        return pixels
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    factors = [frame.height / height * ROUNDED_UP, frame.width / width * ROUNDED_UP]
    scaled = interpolate(image, scale_factor=factors, mode="bilinear", antialias=True)
    return scaled[0, :, : frame.height, : frame.width].permute(1, 2, 0).numpy()


def shrinkage(height: int, width: int, frame: Frame) -> int:
    """The largest of 1, 2, 4 and 8 by which an image can be divided and still cover the frame."""
    return next(by for by in (8, 4, 2, 1) if by == 1 or (height >= by * frame.height and width >= by * frame.width))


def _by_simplejpeg(content: bytes, frame: Frame) -> Decoded | None:
    """None: leave it to decode."""
    height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    if colours not in ("YCbCr", "Gray") or _too_large(height, width) or _turned(content):
        return None
    by = shrinkage(height, width, frame)
    mode = "GRAY" if frame.channels == 1 else "RGB"
    least = {"min_height": math.ceil(height / by), "min_width": math.ceil(width / by)}
    return simplejpeg.decode_jpeg(content, mode, **least), height / by, width / by


def _by_pillow(content: bytes, frame: Frame) -> Decoded | None:
    """None: leave it to decode."""
    mode = "L" if frame.channels == 1 else "RGB"
    with JpegImagePlugin.JpegImageFile(io.BytesIO(content)) as image:
        width, height = image.size
        if image.mode not in ("L", "RGB") or _too_large(height, width) or _turned(content):
            return None
        by = shrinkage(height, width, frame)
        image.draft(mode, (width // by, height // by))
        pixels = np.array(image.convert(mode))  # a copy: torch wants arrays that can be written to
    return pixels.reshape(*pixels.shape[:2], frame.channels), height / by, width / by


def _too_large(height: int, width: int) -> bool:
    return height * width > (Image.MAX_IMAGE_PIXELS or 0)


def _turned(content: bytes) -> bool:
    """Whether the image says that it is not upright."""
    if not _may_be_turned(content):
        return False
    with JpegImagePlugin.JpegImageFile(io.BytesIO(content)) as image:
        return bool(image.getexif().get(ORIENTATION, 1) != 1)


def _may_be_turned(content: bytes) -> bool:
    """Whether a part ahead of the pixels could hold an orientation: told without parsing any."""
    at = 2
    while content[at] == 0xFF and content[at + 1] != EXIF_OR_XMP:
        if content[at + 1] == START_OF_PIXELS:
            return False
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return True
