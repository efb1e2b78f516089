"""Small datasets and an automatic run, shared by the tests of automatic training."""

import pytest

from labelsieve.cli import execute
from tests.conftest import save_blobs

SAMPLES = 600
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
