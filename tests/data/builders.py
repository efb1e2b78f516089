"""Build images, folders and tables for the tests of this room."""

import io
import struct
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from labelsieve.data.images import (
    Frame,
    Pictures,
    common_frame,
)
from labelsieve.data.load import decode_all
from labelsieve.data.sets import Streamed
from labelsieve.errors import InputError


def encoded(pixels, kind="PNG", mode=None, **options):
    file = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(np.asarray(pixels, dtype=np.uint8))
    (image.convert(mode) if mode else image).save(file, kind, **options)
    return file.getvalue()


def dot(value=0):
    """Return a grayscale PNG of 2×2 pixels."""
    return encoded(np.full((2, 2), value))


def put(path, content=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dot() if content is None else content)
    return path


def put_all(root, names):
    for name in names:
        put(root / name)
    return root


def refusal(read, root):
    """Return the message of the error that a reader raises for a folder."""
    with pytest.raises(InputError) as caught:
        read(root)
    message = str(caught.value)
    assert str(root) in message and "\n" not in message and len(message) < 500
    return message


WNIDS = ("n02124075", "n01443537", "n01629819")


def tiny_imagenet(root, words=True):
    """Write the published layout with three classes, two images each and four validation images."""
    for label, wnid in enumerate(WNIDS):
        for number in range(2):
            mode = "L" if (label, number) == (1, 0) else "RGB"
            image = Image.new("RGB", (64, 64), (60 * label, 0, 0)).convert(mode)
            put(root / f"train/{wnid}/images/{wnid}_{number}.JPEG", encoded(image, "JPEG"))
        put(root / f"train/{wnid}/{wnid}_boxes.txt", b"x\t0\t0\t63\t63\n")
    lines = [f"val_{number}.JPEG\t{WNIDS[number % 3]}\t0\t32\t44\t62\n" for number in range(4)]
    put_all(root, [f"val/images/val_{number}.JPEG" for number in range(4)] + ["test/images/test_0.JPEG"])
    put(root / "val/val_annotations.txt", "".join(lines).encode())
    put(root / "wnids.txt", "\n".join(WNIDS).encode())
    if words:
        text = "n01443537\tgoldfish, Carassius auratus\nn01629819\tEuropean fire salamander, Salamandra\nn09\tx\n"
        put(root / "words.txt", text.encode())
    return root


NOISY = {"images/0/00/a.jpg": 3, "images/1/11/b.jpg": 13, "images/2/22/c.jpg": 0}


CLEAN = {"images/0/00/a.jpg": 4, "images/3/33/d.jpg": 1, "images/4/44/e.jpg": 12}


def clothing(root, below="", **changed):
    """Write the published lists, with changes."""
    texts = {
        "noisy_label_kv": "".join(f"{key} {label}\n" for key, label in NOISY.items()),
        "clean_label_kv": "".join(f"{key} {label}\n" for key, label in CLEAN.items()),
        "noisy_train_key_list": "images/2/22/c.jpg\nimages/0/00/a.jpg\nimages/1/11/b.jpg\n",
        "clean_train_key_list": "images/0/00/a.jpg\n",
        "clean_val_key_list": "images/3/33/d.jpg\n",
        "clean_test_key_list": "images/4/44/e.jpg\n",
    }
    for name, text in (texts | changed).items():
        if text is not None:
            put(root / below / f"{name}.txt", text.encode("utf-8", "surrogateescape"))
    put(root / "images/2/22/c.jpg", dot(5))
    return root


def png(shade):
    """Return a grayscale PNG of one shade."""
    content = io.BytesIO()
    Image.new("L", (4, 3), shade).save(content, "PNG")
    return content.getvalue()


def table(folder, text, name="mine.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def pictures(folder, *names):
    for shade, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(shade))


def shades(read):
    """Return the shade of each image of a set."""
    labelled, bad = decode_all(read, common_frame(read))
    assert not bad
    return labelled.images[:, 0, 0, 0].tolist()


def refused(read, path, reason, **columns):
    with pytest.raises(InputError, match=reason) as caught:
        read(path, **columns)
    message = str(caught.value)
    assert path.name in message and "\n" not in message and len(message) < 700
    return message


FRAME = Frame(12, 10, 3)


COUNT = 50


def smooth(height: int, width: int, seed: int, channels: int = 3) -> np.ndarray:
    """Return a random image with mostly coarse structure that all channels share, like a photo."""
    random = np.random.default_rng(seed)
    waves = np.fft.rfft2(
        random.normal(size=(height, width, 1)) + 0.3 * random.normal(size=(height, width, 3)), axes=(0, 1)
    )
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))[..., None]
    pixels = np.fft.irfft2(waves / (frequency + 2 / width) ** 1.5, (height, width), axes=(0, 1))
    scaled = np.clip(128 + 50 * (pixels - pixels.mean()) / pixels.std(), 0, 255).astype(np.uint8)
    return scaled if channels == 3 else scaled[..., 0]


def jpeg_bytes(pixels: np.ndarray, kind: str = "JPEG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def streamed(pictures: Pictures, **options) -> Streamed:
    return Streamed(pictures, FRAME, pictures.labels, pictures.classes, pictures.clean, **options)


def batches(data: Streamed, order: torch.Tensor, size: int) -> list[torch.Tensor]:
    results, first = [], 0
    for count in data.staged(order, size):
        results.append(data.inputs(order[first : first + count]).clone())
        first += count
    return results


def decoding_threads() -> int:
    return sum(thread.name.startswith("decode") for thread in threading.enumerate())


def picture(number, index, side=16):
    """Return a noisy square with a bright bar whose position is the class."""
    pixels = np.random.default_rng(index).integers(0, 100, (side, side, 3)).astype(np.uint8)
    pixels[4 * number : 4 * number + 3] = 250
    return Image.fromarray(pixels)


def animals(count, first=0):
    """Return records whose label is their number modulo 10 and whose channels are 10, 20 and 30 plus it."""
    records = []
    for number in range(first, first + count):
        channels = b"".join(bytes([tens + number % 200]) * 4096 for tens in (10, 20, 30))
        records.append(struct.pack(">II", 100_000 + number, number % 10) + channels)
    return b"".join(records)


class Runs:
    """An object whose pickle calls a function when it is loaded."""

    def __init__(self, *order):
        self.order = order

    def __reduce__(self):
        return self.order


def touch(path):
    return f"touch {path}"
