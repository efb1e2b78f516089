"""A folder of images, shared by the tests of the commands."""

import numpy as np
import pytest
from PIL import Image

QUICK = [
    "--epochs",
    "2",
    "--warmup",
    "1",
    "--batch",
    "32",
    "--noise-rate",
    "0.2",
    "--device",
    "cpu",
    "--threads",
    "1",
    "--no-report",
]
SMALL = ["--model", "small", *QUICK]


def picture(number, index, side=16):
    """Return a grey square with a bright bar whose position is the class."""
    pixels = np.random.default_rng(index).integers(0, 100, (side, side, 3)).astype(np.uint8)
    pixels[4 * number : 4 * number + 3] = 250
    return Image.fromarray(pixels)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with three classes of twenty images, and a test split."""
    for split, count in (("train", 20), ("test", 5)):
        for number, name in enumerate(("apple", "pear", "plum")):
            place = tmp_path / "fruit" / split / name
            place.mkdir(parents=True)
            for index in range(count):
                picture(number, 1000 * len(split) + 100 * number + index).save(place / f"{index:03}.png")
    return tmp_path / "fruit"
