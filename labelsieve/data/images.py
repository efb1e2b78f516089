"""Decode images, and represent sets of encoded images.

Every image is converted by the same rule: rotated according to its EXIF data, composited on white if transparent,
reduced to the first frame if animated, converted to RGB (or to grayscale if the whole set is grayscale), and resized to
the frame with anti-aliasing. The aspect ratio is not kept and nothing is cropped.

`decode` uses Pillow and explains why an image cannot be decoded. `fast_decode` decodes JPEG files at a reduced size,
for streaming; it falls back to `decode`.
"""

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError
from torch import Tensor

from labelsieve.data.classes import Array
from labelsieve.errors import WARNINGS_LOCK, InputError, first_line
from labelsieve.text import printable

try:
    import simplejpeg  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ImportError:  # an optional extra
    simplejpeg = None

DECODER = ", ".join(f"{name} {version(name)}" for name in ("simplejpeg", "pillow") if name == "pillow" or simplejpeg)
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # not EPS: Pillow would execute it with Ghostscript
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")
GRAY = ("L", "1", "LA", "La", *SIXTEEN_BITS)
Image.MAX_IMAGE_PIXELS = 89_478_485  # Pillow's default, beyond which it warns; here such images are rejected

MAX_HEADERS = 1000  # images whose headers determine the common frame
LARGEST_SIDE = 224
ORIENTATION = 0x0112  # EXIF tag
START_OF_PIXELS, EXIF_OR_XMP = 0xDA, 0xE1  # JPEG markers; segments of the latter can contain an orientation

# Pixels (H, W, C), and how many rows and columns of them the image covers: a JPEG of 250 rows that is decoded at 1/8
# has 32 rows of pixels, of which it covers 31.25.
ScaledPixels = tuple[Array, float, float]


class BadImage(ValueError):
    """An image cannot be read or decoded; the message is the reason."""


class Unusable(NamedTuple):
    """A file or row that cannot be used, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class Frame:
    """Size and channels of an image, or those that all images of a set are converted to."""

    height: int
    width: int
    channels: int  # 1: grayscale, 3: RGB


class Reader(Protocol):
    """Return the encoded bytes of a sample, or raise OSError."""

    def __call__(self, index: int) -> bytes: ...


@dataclass(frozen=True)
class FileReader:
    """Read samples from files below a folder."""

    root: Path
    paths: Sequence[str]  # relative to the root

    def __call__(self, index: int) -> bytes:
        return (self.root / self.paths[index]).read_bytes()


@dataclass(frozen=True)
class SubsetReader:
    """Read a subset of the samples of another reader."""

    read: Reader
    index: Sequence[int]

    def __call__(self, index: int) -> bytes:
        return self.read(self.index[index])


def unwrapped(read: Reader, index: int) -> tuple[Reader, int]:
    """Return the reader below all subsets, and the position of a sample in it."""
    while isinstance(read, SubsetReader):
        index, read = read.index[index], read.read
    return read, index


@dataclass(frozen=True)
class Pictures:
    """A labelled set of encoded images."""

    names: Sequence[str]  # (n) path, or file:row
    read: Reader
    labels: Tensor  # (n) int64
    classes: tuple[str, ...]
    clean: Tensor | None = None  # (n) true labels, if known

    def __len__(self) -> int:
        return len(self.names)

    def at(self, index: Sequence[int] | Tensor) -> "Pictures":
        """Return the subset at the given positions."""
        picked = torch.as_tensor(index, dtype=torch.int64)
        positions = picked.tolist()
        return replace(
            self,
            names=[self.names[i] for i in positions],
            read=SubsetReader(self.read, positions),
            labels=self.labels[picked],
            clean=None if self.clean is None else self.clean[picked],
        )

    def bytes_of(self, index: int) -> bytes:
        """Return the encoded bytes of a sample; raise BadImage if they cannot be read."""
        try:
            return self.read(index)
        except OSError as error:
            raise BadImage(f"cannot be read ({error.strerror or error})") from error

    def pixels(self, index: int, frame: Frame) -> Array:
        """Decode one image to (height, width, channels) uint8."""
        return decode(self.bytes_of(index), frame)


def describe_unusable(unusable: Sequence[Unusable]) -> str:
    """Return the number of unusable files and rows, and the first of them, in one line."""
    first = f"{unusable[0].name}: {unusable[0].reason}"
    count = "1 unusable file or row: " if len(unusable) == 1 else f"{len(unusable):,} unusable files or rows, first: "
    return printable(count + first)


def file_stamp(file: Path) -> str:
    """Return size and modification time of a file, which change when it is rewritten."""
    found = file.stat()
    return f"{found.st_size} {found.st_mtime_ns}"


def common_frame(pictures: Pictures, size: int | None = None) -> Frame:
    """Return the frame for a set, from the headers of up to 1,000 images at even intervals.

    If all images have one size of at most 224 pixels, they keep it. Otherwise they become squares whose side is the
    median of the shorter sides, at most 224, or `size` if given. The set is grayscale if all of these images are.
    """
    if not len(pictures):
        raise InputError("the dataset has no images")
    headers: list[Frame] = []
    for index in range(0, len(pictures), -(-len(pictures) // MAX_HEADERS)):
        try:
            headers.append(read_header(pictures.bytes_of(index)))
        except BadImage:
            continue  # reported when it is decoded
    if not headers:
        raise InputError(f"none of the images can be read; the first is {pictures.names[0]}")
    channels = max(found.channels for found in headers)
    if size is not None:
        return Frame(size, size, channels)
    height, width = headers[0].height, headers[0].width
    if all((found.height, found.width) == (height, width) for found in headers) and max(height, width) <= LARGEST_SIDE:
        return Frame(height, width, channels)
    sides = sorted(min(found.height, found.width) for found in headers)
    side = min(LARGEST_SIDE, sides[len(sides) // 2])
    return Frame(side, side, channels)


def read_header(content: bytes) -> Frame:
    """Return the upright size and the channels of an image without decoding its pixels."""
    with opened(content) as image:
        width, height = image.size
        if image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8):  # rotated by 90 degrees
            width, height = height, width
        return Frame(height, width, 1 if image.mode in GRAY else 3)


def decode(content: bytes, frame: Frame) -> Array:
    """Decode an image to (height, width, channels) uint8."""
    with opened(content) as image:
        image.load()
        upright = ImageOps.exif_transpose(image)
        plain = eight_bits(upright, "L" if frame.channels == 1 else "RGB")
        if plain.size != (frame.width, frame.height):
            plain = plain.resize((frame.width, frame.height), Image.Resampling.BILINEAR)
        return np.asarray(plain, dtype=np.uint8).reshape(frame.height, frame.width, frame.channels)


def fast_decode(content: bytes, frame: Frame) -> Array:
    """Decode an image to (height, width, channels) uint8, a JPEG file at a reduced size if possible."""
    if content.startswith(b"\xff\xd8"):
        try:
            found = _by_simplejpeg(content, frame) if simplejpeg else _by_pillow(content, frame)
            if found is not None:
                return _resize(*found, frame)
        except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError):
            pass  # `decode` succeeds or gives the reason
    return decode(content, frame)


def decode_into(out: Array, pictures: Pictures, index: Sequence[int], frame: Frame) -> None:
    """Decode samples into the rows of an array, (len(index), height, width, channels) uint8."""
    for row, sample in zip(out, index, strict=True):
        try:
            row[:] = fast_decode(pictures.bytes_of(sample), frame)
        except BadImage as error:
            raise InputError(
                f"{pictures.names[sample]}: {error}; `labelsieve check DATA` lists all unusable images, "
                "--skip-bad ignores them"
            ) from error


def _resize(pixels: Array, height: float, width: float, frame: Frame) -> Array:
    """Resize the first height x width of (H, W, C) pixels with anti-aliasing, to the same pixels as `decode`."""
    if pixels.shape[:2] == (frame.height, frame.width):
        return pixels
    image = Image.fromarray(pixels[..., 0] if frame.channels == 1 else pixels)
    size, box = (frame.width, frame.height), (0.0, 0.0, width, height)
    scaled = np.array(image.resize(size, Image.Resampling.BILINEAR, box))
    return scaled.reshape(frame.height, frame.width, frame.channels)


def reduction(height: int, width: int, frame: Frame) -> int:
    """Return the largest of 1, 2, 4 and 8 by which an image can be reduced and still cover the frame."""
    return next(by for by in (8, 4, 2, 1) if by == 1 or (height >= by * frame.height and width >= by * frame.width))


@contextmanager
def opened(content: bytes) -> Iterator[Image.Image]:
    """Open an encoded image; convert any exception that Pillow raises while it is open to BadImage."""
    if not content:
        raise BadImage("the file is empty")
    try:
        with _open_with_exif(content) as image:
            yield image
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage("not an image of a known format") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise BadImage("too many pixels (over 89 million)") from None
    except Exception as error:  # the type depends on the format
        raise BadImage(f"cannot be decoded ({first_line(error, 120)})") from error


def _open_with_exif(content: bytes) -> Image.Image:
    """Open an image and read its EXIF data without Pillow's warnings about it."""
    with WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        image.getexif()
        return image


def eight_bits(image: Image.Image, mode: str) -> Image.Image:
    """Convert to eight bits per channel, on white if transparent."""
    if image.mode in ("F", "I"):
        raise BadImage(f"the pixels are 32-bit numbers (mode {image.mode}); save it with 8 bits")
    if image.mode in SIXTEEN_BITS:
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert(mode)


def _by_simplejpeg(content: bytes, frame: Frame) -> ScaledPixels | None:
    """Decode a JPEG file with simplejpeg; None if `decode` must do it."""
    height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    if colours not in ("YCbCr", "Gray") or _too_large(height, width) or _rotated(content):
        return None
    by = reduction(height, width, frame)
    mode = "GRAY" if frame.channels == 1 else "RGB"
    least = {"min_height": math.ceil(height / by), "min_width": math.ceil(width / by)}
    return simplejpeg.decode_jpeg(content, mode, **least), height / by, width / by


def _by_pillow(content: bytes, frame: Frame) -> ScaledPixels | None:
    """Decode a JPEG file with Pillow's draft mode; None if `decode` must do it."""
    mode = "L" if frame.channels == 1 else "RGB"
    with JpegImagePlugin.JpegImageFile(io.BytesIO(content)) as image:
        width, height = image.size
        if image.mode not in ("L", "RGB") or _too_large(height, width) or _rotated(content):
            return None
        by = reduction(height, width, frame)
        image.draft(mode, (width // by, height // by))
        pixels = np.array(image.convert(mode))  # a copy: torch needs a writable array
    return pixels.reshape(*pixels.shape[:2], frame.channels), height / by, width / by


def _too_large(height: int, width: int) -> bool:
    return height * width > (Image.MAX_IMAGE_PIXELS or 0)


def _rotated(content: bytes) -> bool:
    """Return whether the EXIF data of a JPEG file specifies a rotation."""
    if not _has_exif(content):
        return False
    with JpegImagePlugin.JpegImageFile(io.BytesIO(content)) as image:
        return bool(image.getexif().get(ORIENTATION, 1) != 1)


def _has_exif(content: bytes) -> bool:
    """Return whether a segment before the pixels can contain an orientation, without parsing it."""
    at = 2
    while content[at] == 0xFF and content[at + 1] != EXIF_OR_XMP:
        if content[at + 1] == START_OF_PIXELS:
            return False
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return True
