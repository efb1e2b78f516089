"""The data of an experiment: held-out folds, corrected labels, and files that changed since a run was trained."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.runs.data import Shelf, files_of, gather, held_out, source_fingerprint_of
from labelsieve.runs.spec import Experiment
from tests.conftest import save_blobs

QUICK = [
    *("--methods", "default", "--seeds", "1", "--noise-rate", "0", "--epochs", "1"),
    *("--warmup", "0", "--model", "small"),
]


@given(st.integers(10, 400), st.integers(0, 9))
def test_folds_do_not_overlap(samples, seed):
    parts = [held_out(samples, 0.2, seed, fold) for fold in range(4)]
    assert all(torch.cat(part).sort().values.equal(torch.arange(samples)) for part in parts)
    every = torch.cat([held for _, held in parts])
    assert len(every.unique()) == len(every) == 4 * round(0.2 * samples)


def test_fold_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="no fold 5 of 20 of 100 samples"):
        held_out(100, 0.2, 0, 5)


def test_labels_of_a_reviewer_do_not_make_the_old_ones_true(tmp_path):
    """Labels in a file are not known to be correct, so the original labels of the user's data are not the truth."""
    data = str(save_blobs(tmp_path / "data.npz", 120))
    np.save(tmp_path / "y.npy", np.zeros(120, np.int64))
    experiment = Experiment(data=data, labels=str(tmp_path / "y.npy"), model="small", warmup=1)
    assert gather(experiment, Shelf()).train.clean is None
    assert gather(replace(experiment, labels=None, noise="pair", rate=0.1), Shelf()).train.clean is not None
    np.save(tmp_path / "y.npy", np.zeros(6000, np.int64))
    assert gather(replace(experiment, data="fashion"), Shelf()).train.clean is not None


def test_corrected_labels_apply_to_training_samples_only(tmp_path):
    corrected = np.random.default_rng(0).integers(0, 10, 6000)
    np.save(tmp_path / "corrected.npy", corrected)
    shelf, experiment = Shelf(), Experiment(noise="pair", rate=0.4, epochs=2, warmup=1, valid=0.1)
    plain = gather(experiment, shelf)
    changed = gather(replace(experiment, corrected=str(tmp_path / "corrected.npy")), shelf)
    assert (changed.train.labels.numpy() == corrected[changed.places.train]).all()
    assert torch.equal(changed.train.clean, plain.train.clean)  # the noise of the data, not the correction
    assert torch.equal(changed.valid.labels, plain.valid.labels)
    assert changed.fingerprint != plain.fingerprint


def test_corrected_labels_of_other_data_are_refused(tmp_path):
    np.save(tmp_path / "corrected.npy", np.zeros(5, int))
    with pytest.raises(InputError, match=r"corrected\.npy has 5 labels but the data has 6,000"):
        gather(Experiment(corrected=str(tmp_path / "corrected.npy")), Shelf())


def test_source_fingerprint_covers_all_files(tmp_path):
    data, labels = save_blobs(tmp_path / "data.npz", 40), tmp_path / "y.npy"
    np.save(labels, np.zeros(40, np.int64))
    experiment = Experiment(data=str(data))
    with_labels = replace(experiment, labels=str(labels))
    before = [source_fingerprint_of(each) for each in (experiment, with_labels)]
    assert None not in before and before[0] != before[1]
    np.save(labels, np.ones(40, np.int64))
    assert source_fingerprint_of(experiment) == before[0] and source_fingerprint_of(with_labels) != before[1]
    save_blobs(data, 41)
    assert source_fingerprint_of(experiment) != before[0]
    assert source_fingerprint_of(replace(experiment, labels=str(tmp_path / "gone.npy"))) is None


def write(path, seed, count=60):
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    images = random.integers(0, 255, size=(count, 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=labels, test_images=images[:12], test_labels=labels[:12])


def write_labels(path, labels):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["index", "label"], *enumerate(labels)])


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Train one run with compare; return its data, its command and its output folder."""
    folder = tmp_path_factory.mktemp("comparison")
    data, out = folder / "mine.npz", folder / "out"
    write(data, seed=0)
    command = ["compare", str(data), *QUICK, "--out", str(out)]
    assert execute(command) == 0
    return data, command, out


def test_changed_data_is_refused(comparison, capsys):
    data, command, out = comparison
    assert execute(command) == 0
    write(data, seed=1)
    more_methods = [word if word != "default" else "default,mentornet" for word in command]
    for again in (command, more_methods):
        capsys.readouterr()
        assert execute(again) == 2
        error = capsys.readouterr().err
        assert "mine.npz changed since" in error and "name another --out, or remove that folder" in error
    assert len(list(out.glob("*/done"))) == 1  # none on the new data
    write(data, seed=0)
    assert execute(command) == 0


def test_changed_labels_are_refused(comparison, tmp_path, capsys):
    _, command, _ = comparison
    labels = tmp_path / "labels.csv"
    write_labels(labels, np.arange(60) % 3)
    command = [*command, "--labels", str(labels)]
    assert execute(command) == 0
    write_labels(labels, np.arange(1, 61) % 3)
    assert execute(command) == 2
    assert f"{labels} changed since" in capsys.readouterr().err


def test_only_existing_files_are_compared(tmp_path):
    """Records can be read where the data is missing."""
    write(tmp_path / "mine.npz", seed=0)
    assert files_of(Experiment(data=str(tmp_path / "mine.npz"))) == [str(tmp_path / "mine.npz")]
    assert files_of(Experiment(data=str(tmp_path / "gone.npz"))) == []
    assert files_of(Experiment(data=str(tmp_path / "mine.npz"), labels=str(tmp_path / "gone.csv"))) == []
    assert files_of(Experiment(data="fashion")) == []
