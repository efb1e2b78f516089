"""decode: an encoded image becomes an array, by one rule for all sources.

Turned upright as its EXIF data says, laid on white where it is transparent, the first frame where there are several, as
RGB (gray where the whole set is gray), scaled to the frame with anti-aliasing. The aspect ratio is not kept and nothing
is cut off.
"""

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

Array = np.ndarray[Any, Any]
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")
GRAY = ("L", "1", "LA", "La", *SIXTEEN_BITS)
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # no EPS: Pillow would have Ghostscript run it
Image.MAX_IMAGE_PIXELS = 89_478_485  # Pillow's own limit, beyond which it warns; here it is refused


HEADERS = threading.Lock()  # warnings can be silenced only for the whole process, so one header at a time


class BadImage(ValueError):
    """An image that cannot be decoded; the message is the reason, in words."""


@dataclass(frozen=True)
class Frame:
    """What all images of a set are brought to."""

    height: int
    width: int
    channels: int  # 1: gray, 3: RGB


@dataclass(frozen=True)
class Header:
    """What an image says of itself before it is decoded."""

    height: int
    width: int
    gray: bool


def header(content: bytes) -> Header:
    """Size and kind, upright, without decoding the pixels."""
    with _opened(content) as image:
        width, height = image.size
        if image.getexif().get(0x0112, 1) in (5, 6, 7, 8):  # lies on its side
            width, height = height, width
        return Header(height, width, image.mode in GRAY)


def decode(content: bytes, frame: Frame) -> Array:
    """(height, width, channels) uint8"""
    with _opened(content) as image:
        image.load()
        upright = ImageOps.exif_transpose(image)
        plain = _plain(upright, "L" if frame.channels == 1 else "RGB")
        if plain.size != (frame.width, frame.height):
            plain = plain.resize((frame.width, frame.height), Image.Resampling.BILINEAR)
        return np.asarray(plain, dtype=np.uint8).reshape(frame.height, frame.width, frame.channels)


@contextmanager
def _opened(content: bytes) -> Iterator[Image.Image]:
    """The image of an encoded file; whatever Pillow raises while it is open is a fault of that file."""
    if not content:
        raise BadImage("the file is empty")
    try:
        with _with_header(content) as image:
            yield image
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage("it is no image of a known format") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise BadImage("it has too many pixels (over 89 million)") from None
    except Exception as error:  # of many types, by format
        raise BadImage(_reason(error)) from error


def _with_header(content: bytes) -> Image.Image:
    """The image, whose size and EXIF data are read; Pillow's remarks on them are left out."""
    with HEADERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        image.getexif()
        return image


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """Eight bits per channel, no transparency."""
    if image.mode == "F" or image.mode == "I":
        raise BadImage(f"its pixels are 32-bit numbers (mode {image.mode}); save it with 8 bits")
    if image.mode in SIXTEEN_BITS:
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert(mode)


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"it cannot be decoded ({text[:120]})"
