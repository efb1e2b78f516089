"""Settings, small datasets and helpers that many tests share."""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported: kernels run on the CPU
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some virtual CPUs claim AMX and trap on it
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", ".hypothesis")
if "LABELSIEVE_CACHE" not in os.environ:  # features are shared by the tests, and removed at the end
    os.environ["LABELSIEVE_CACHE"] = tempfile.mkdtemp(prefix="labelsieve-tests-")
    atexit.register(shutil.rmtree, os.environ["LABELSIEVE_CACHE"], ignore_errors=True)

import numpy as np
import pytest
import torch
from hypothesis import settings

from labelsieve.data import Labelled
from labelsieve.noise import corrupt, pair
from tests.browser import browser

__all__ = ["browser"]  # a fixture of all tests

LONG_WAIT = 600  # seconds; a limit against hanging, far above what a busy machine needs

settings.register_profile("labelsieve", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("labelsieve")
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it, and so would children


def blobs(count: int, seed: int, classes: int = 4, side: int = 8) -> Labelled:
    """Return noisy images that a small network can classify: the position of a bright spot is the class."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = random.integers(0, 120, (count, 1, side, side))
    images[np.arange(count), 0, labels % side, 2 * labels % side] = 255
    names = [f"class {k}" for k in range(classes)]
    return Labelled(torch.from_numpy(images.astype(np.uint8)), torch.from_numpy(labels), names)


def save_blobs(path: Path, count: int, wrong: float = 0.0, channels: int = 1, test: int = 0) -> Path:
    """Write blobs to a .npz file; a share of the labels is that of the next class."""
    train = blobs(count, 0)
    labels = train.labels.numpy()
    labels = np.where(np.random.default_rng(0).random(count) < wrong, (labels + 1) % 4, labels)
    arrays = {"images": train.images.permute(0, 2, 3, 1).numpy().repeat(channels, axis=3), "labels": labels}
    if test:
        held = blobs(test, 1)
        images = held.images.permute(0, 2, 3, 1).numpy().repeat(channels, axis=3)
        arrays |= {"test_images": images, "test_labels": held.labels.numpy()}
    np.savez(path, **arrays)
    return path


@pytest.fixture
def noisy_blobs() -> Labelled:
    clean = blobs(203, 0)
    return clean.relabelled(corrupt(clean.labels, pair(4, 0.3), seed=0))


@pytest.fixture
def test_blobs() -> Labelled:
    return blobs(100, 1)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Return a file of blobs with a test set."""
    return str(save_blobs(tmp_path / "data.npz", 203, test=60))


def read_rows(run: Path, timed: bool = False) -> list[dict[str, Any]]:
    """Return the lines of a record without durations, which differ between equal runs."""
    rows = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if timed or name != "seconds"} for row in rows]


def without_resumes(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a record that do not depend on interruptions."""
    return [row for row in read_rows(run) if row["event"] != "resume"]


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[Any]") -> None:
    """Wait until a condition holds, as long as the process lives."""
    end = time.monotonic() + LONG_WAIT
    while not condition():
        assert process.poll() is None, f"the process ended early with code {process.returncode}"
        assert time.monotonic() < end, "the process hangs"
        time.sleep(0.01)


def start_interrupted(
    name: str, record: Path, argv: list[str], epochs: int = 1, steps: int = 0
) -> "subprocess.Popen[str]":
    """Start a command that sends itself a signal when a record has a number of epochs and some steps more are done."""
    script = [sys.executable, "-P", str(Path(__file__).with_name("interrupted.py"))]
    command = [*script, name, str(record), str(epochs), str(steps), *argv]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_after_epoch(record: Path, argv: list[str], epochs: int = 1, steps: int = 0) -> None:
    """Run a command and kill it (-9) when a record has a number of epochs and some steps more are done."""
    process = start_interrupted("SIGKILL", record, argv, epochs, steps)
    _, errors = process.communicate(timeout=LONG_WAIT)
    assert process.returncode == -signal.SIGKILL, errors
    assert not (record.parent / "done").exists()


@contextmanager
def held_after_epoch(record: Path, argv: list[str]) -> "Iterator[subprocess.Popen[str]]":
    """Hold a command as soon as a record has an epoch, and kill it at the end."""
    process = start_interrupted("SIGSTOP", record, argv)
    try:
        stopped = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        wait_until(lambda: os.waitid(os.P_PID, process.pid, stopped) is not None, process)
        yield process
    finally:
        process.kill()
        process.communicate()
