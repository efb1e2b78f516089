"""Fixtures of the tests of this room."""

import pytest
import torch

from labelsieve.data.images import FileReader, Pictures
from tests.data.builders import COUNT, jpeg_bytes, picture, smooth


@pytest.fixture
def pictures(tmp_path) -> Pictures:
    root = tmp_path / "images"
    root.mkdir()
    names = [f"{number}.{'png' if number % 7 == 0 else 'jpg'}" for number in range(COUNT)]
    for number, name in enumerate(names):
        kind = "PNG" if name.endswith("png") else "JPEG"
        (root / name).write_bytes(jpeg_bytes(smooth(20 + number % 9, 18, number), kind))
    labels = torch.arange(COUNT) % 4
    return Pictures([str(root / name) for name in names], FileReader(root, names), labels, ("a", "b", "c", "d"))


@pytest.fixture
def folder(tmp_path):
    """Return a folder with three classes of twenty images and a test split."""
    for split, count in (("train", 20), ("test", 5)):
        for number, name in enumerate(("apple", "pear", "plum")):
            place = tmp_path / "fruit" / split / name
            place.mkdir(parents=True)
            for index in range(count):
                picture(number, 1000 * len(split) + 100 * number + index).save(place / f"{index:03}.png")
    return tmp_path / "fruit"
