"""decode: an encoded image becomes an array, by one rule for all sources.

Turned upright as its EXIF data says, laid on white where it is transparent, the first frame where there are several, as
RGB (gray where the whole set is gray), scaled to the frame with anti-aliasing. The aspect ratio is not kept and nothing
is cut off."""

import io
import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError
from torch import Tensor
from torch.nn.functional import interpolate

from labelsieve.errors import InputError
from labelsieve.text import printable

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


try:
    import simplejpeg  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ImportError:  # an optional extra
    simplejpeg = None

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


def decode_into(out: Array, pictures: "Pictures", index: Sequence[int], frame: Frame) -> None:
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


def written(file: Path) -> str:
    """Return the size and modification time of a file, which change when it is written again."""
    found = file.stat()
    return f"{found.st_size} {found.st_mtime_ns}"


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
