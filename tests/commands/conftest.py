"""Short trainings and a folder of images, shared by the tests of the commands."""

from tests.data.builders import picture
from tests.data.conftest import folder

__all__ = ["folder", "picture"]  # a fixture, and what it is made of

QUICK = [
    *("--epochs", "2", "--warmup", "1", "--batch", "32", "--noise-rate", "0.2"),
    *("--device", "cpu", "--threads", "1", "--no-report"),
]
SMALL = ["--model", "small", *QUICK]
