"""A sample as a small picture."""

import io
from typing import Any

import numpy as np
from PIL import Image

Array = np.ndarray[Any, Any]
SIDE = 96  # pixels, the longer side


def fitted(height: int, width: int) -> tuple[int, int]:
    """The size that an image is shown in: at most 96 pixels, aspect kept; a smaller one as it is."""
    scale = min(1.0, SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def thumbnail(pixels: Array) -> bytes:
    """(height, width, channels) uint8 as WebP; a small image is enlarged by a whole factor, pixel by pixel."""
    pixels = pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, axis=2)
    height, width = fitted(*pixels.shape[:2])
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    factor = SIDE // max(height, width)
    if factor > 1:
        image = image.resize((width * factor, height * factor), Image.Resampling.NEAREST)
    content = io.BytesIO()
    image.save(content, "WEBP", quality=85, lossless=factor > 1)
    return content.getvalue()
