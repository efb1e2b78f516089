"""labelsieve noise --paper: the published list fits the committed runs, and only the published labels are written."""

import csv
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from labelsieve.cli import execute
from labelsieve.data.labels import read_label_file
from labelsieve.noise import corrupt, pair
from labelsieve.paper import noise_files
from labelsieve.paper.noise_files import NoiseCell, draw_labels, list_of, noise_cells, published
from labelsieve.runs.find import known_runs
from labelsieve.runs.read import read_run

RESULTS = Path(__file__).parents[2] / "results"
CLASSES = [str(k) for k in range(10)]


def test_list_has_every_cell_of_the_tables_and_seed_that_adds_noise():
    assert list(published()) == [*noise_cells("cifar10"), *noise_cells("cifar100")]
    assert {(cell.noise, cell.rate) for cell in noise_cells("cifar10")} == {
        *(("pair", rate) for rate in (0.1, 0.2, 0.3, 0.4)),
        *(("symmetry", rate) for rate in (0.2, 0.4, 0.6)),
        ("mixed", 0.4),
    }
    assert len({digest for _, digest in published().values()}) == len(published()) == 48


def test_committed_runs_trained_on_as_many_wrong_labels_as_the_list_says():
    compared = 0
    for spec, path in known_runs(RESULTS).items():
        about = dict(spec)
        cell = NoiseCell(about["data"], about["noise"] or "", about["rate"], about["seed"])
        if cell in published():
            realised = read_run(path, with_tables=False).start["noise"]["realised_rate"]
            assert round(50_000 * realised) == published()[cell][0], path
            compared += 1
    assert compared > 150


def test_labels_and_digest_are_those_of_the_noise_command():
    labels = torch.randint(10, (500,), generator=torch.Generator().manual_seed(0))
    (made,) = draw_labels([NoiseCell("cifar10", "pair", 0.4, 2)], labels, 10)
    expected = corrupt(labels, pair(10, 0.4), seed=2)
    assert torch.equal(made.labels, expected) and made.wrong == (expected != labels).sum()
    assert made.digest == hashlib.sha256(bytes(expected.tolist())).hexdigest()[:32]
    assert made.row == ("cifar10", "pair", "0.4", "2", str(made.wrong), made.digest)
    assert made.cell.file == "cifar10-pair-40-seed2.npy"


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """CIFAR-10's files with other labels and black images; returns the training labels."""
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    monkeypatch.setenv("LABELSIEVE_DATA", str(tmp_path / "data"))
    random = np.random.default_rng(0)
    every = random.integers(10, size=(6, 10_000))
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for name, labels in zip(names, every.tolist(), strict=True):
        content = {b"data": np.zeros((10_000, 3072), np.uint8), b"labels": labels}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    meta = {b"label_names": [k.encode() for k in CLASSES], b"num_vis": 3072, b"num_cases_per_batch": 10_000}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return torch.from_numpy(every[:5].reshape(-1))


def test_other_labels_are_refused_and_nothing_is_written(cifar, tmp_path, capsys):
    assert execute(["noise", "cifar10", "--paper", "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "are not the published ones" in error
    assert not (tmp_path / "out").exists()
    assert execute(["noise", "fashion", "--paper", "--out", str(tmp_path / "out")]) == 2
    assert "--paper needs cifar10 or cifar100" in capsys.readouterr().err


def test_files_are_read_by_labels_and_listed(cifar, tmp_path, monkeypatch, capsys):
    made = list(draw_labels(noise_cells("cifar10"), cifar, 10))
    monkeypatch.setattr(noise_files, "published", lambda: {one.cell: (one.wrong, one.digest) for one in made})
    assert execute(["noise", "cifar10", "--paper", "--out", str(tmp_path / "out")]) == 0
    assert "24 label files" in capsys.readouterr().out
    for one in made[::5]:
        overlay = read_label_file(tmp_path / "out" / one.cell.file, CLASSES, 50_000)
        assert torch.equal(overlay.labels, one.labels)
    content = (tmp_path / "out" / "cifar10-noise.csv").read_bytes()
    assert content == list_of(made)
    assert [row["digest"] for row in csv.DictReader(content.decode().splitlines())] == [one.digest for one in made]
