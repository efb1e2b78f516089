"""Settings and small data that many tests share."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported: kernels run on the CPU
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some virtual CPUs claim AMX and trap on it
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", ".hypothesis")

import numpy as np
import pytest
import torch
from hypothesis import settings

from labelsieve.data import Labelled
from labelsieve.noise import corrupt, pair
from tests.browser import browser

__all__ = ["browser"]  # a fixture of all tests

settings.register_profile("labelsieve", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("labelsieve")
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would children


def blobs(count: int, seed: int, classes: int = 4, side: int = 8) -> Labelled:
    """Images that a small network can tell apart: a bright spot whose place is the class, in noise."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = random.integers(0, 120, (count, 1, side, side))
    images[np.arange(count), 0, labels % side, 2 * labels % side] = 255
    names = [f"class {k}" for k in range(classes)]
    return Labelled(torch.from_numpy(images.astype(np.uint8)), torch.from_numpy(labels), names)


@pytest.fixture
def noisy_blobs() -> Labelled:
    clean = blobs(203, 0)
    return clean.relabelled(corrupt(clean.labels, pair(4, 0.3), seed=0))


@pytest.fixture
def test_blobs() -> Labelled:
    return blobs(100, 1)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A file of such images with a test set."""
    train, test = blobs(203, 0), blobs(60, 1)
    path = tmp_path / "data.npz"
    np.savez(
        path,
        images=train.images.permute(0, 2, 3, 1).numpy(),
        labels=train.labels.numpy(),
        test_images=test.images.permute(0, 2, 3, 1).numpy(),
        test_labels=test.labels.numpy(),
    )
    return str(path)


def killed_after_an_epoch(command: list[str], record: Path) -> None:
    """Start this and kill it (-9) as soon as that record has an epoch."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 200
    while not (record.exists() and b'"epoch"' in record.read_bytes()):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (record.parent / "done").exists()
