"""Finished runs count again only as long as their files hold what they were trained on: real files, real runs."""

import csv

import numpy as np
import pytest

from labelsieve.cli import execute
from labelsieve.runs.data import files_of
from labelsieve.runs.spec import Experiment

QUICK = [
    "--methods",
    "default",
    "--seeds",
    "1",
    "--noise-rate",
    "0",
    "--epochs",
    "1",
    "--warmup",
    "0",
    "--model",
    "small",
]


def write(path, seed, count=60):
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    images = random.integers(0, 255, size=(count, 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=labels, test_images=images[:12], test_labels=labels[:12])


def write_labels(path, labels):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["index", "label"], *enumerate(labels)])


@pytest.fixture
def compared(tmp_path):
    """A comparison of one run, and its command."""
    write(tmp_path / "mine.npz", seed=0)
    command = ["compare", str(tmp_path / "mine.npz"), *QUICK, "--out", str(tmp_path / "out")]
    assert execute(command) == 0
    return command


def test_data_that_changed_is_refused(compared, tmp_path, capsys):
    assert execute(compared) == 0  # the same again
    write(tmp_path / "mine.npz", seed=1)
    capsys.readouterr()
    assert execute(compared) == 2
    said = capsys.readouterr().err
    assert "mine.npz changed since" in said and "name another --out, or remove that folder" in said
    write(tmp_path / "mine.npz", seed=0)
    assert execute(compared) == 0


def test_data_that_changed_is_refused_when_more_is_asked_for(compared, tmp_path, capsys):
    write(tmp_path / "mine.npz", seed=1)
    more = [word if word != "default" else "default,mentornet" for word in compared]
    assert execute(more) == 2
    assert "mine.npz changed since" in capsys.readouterr().err
    assert len(list((tmp_path / "out").glob("*/done"))) == 1  # nothing was trained on the new data beside the old


def test_labels_that_changed_are_refused(compared, tmp_path, capsys):
    labels = tmp_path / "labels.csv"
    write_labels(labels, np.arange(60) % 3)
    command = [*compared, "--labels", str(labels)]
    assert execute(command) == 0
    write_labels(labels, np.arange(1, 61) % 3)
    assert execute(command) == 2
    assert f"{labels} changed since" in capsys.readouterr().err


def test_only_files_that_are_here_are_looked_at(compared, tmp_path):
    """Records may be read where the data is not."""
    assert files_of(Experiment(data=str(tmp_path / "mine.npz"))) == [str(tmp_path / "mine.npz")]
    assert files_of(Experiment(data=str(tmp_path / "gone.npz"))) == []
    assert files_of(Experiment(data=str(tmp_path / "mine.npz"), labels=str(tmp_path / "gone.csv"))) == []
    assert files_of(Experiment(data="fashion")) == []
