"""Small datasets and an automatic run, shared by the tests of automatic training."""

import numpy as np
import pytest
from PIL import Image

from labelsieve.cli import execute
from tests.conftest import save_blobs

SAMPLES = 600
COLORS = {"blue": (40, 60, 200), "green": (60, 180, 70), "red": (200, 50, 60)}
QUICK = ["--model", "small", "--epochs", "12", "--warmup", "4", "--batch", "32", "--lr", "0.05", "--threads", "1"]


@pytest.fixture(scope="session")
def noisy_file(tmp_path_factory):
    """Return a file of easy images, 30% of whose labels are that of the next class."""
    return save_blobs(tmp_path_factory.mktemp("data") / "blobs.npz", SAMPLES, wrong=0.3, test=200)


@pytest.fixture(scope="session")
def auto_run(noisy_file, tmp_path_factory):
    """Return a finished automatic run on these images."""
    out = tmp_path_factory.mktemp("runs") / "auto"
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(out)]) == 0
    return out


def save_photos(root, gray=False, per_class=24):
    """Write small photographs of coloured patterns; every fourth green one lies in the folder of the blue."""
    random = np.random.default_rng(0)
    for split, count in (("train", per_class), ("test", 6)):
        for name, color in COLORS.items():
            for number in range(count):
                moved = split == "train" and name == "green" and number % 4 == 0
                folder = root / split / ("blue" if moved else name)
                folder.mkdir(parents=True, exist_ok=True)
                pixels = np.clip(np.array(color) + random.normal(0, 40, (70, 80, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels[:, :, 0] if gray else pixels).save(folder / f"{name}{number}.jpg")
    return root
