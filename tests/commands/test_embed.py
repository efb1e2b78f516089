"""labelsieve embed: files of features that other commands read."""

import json

import numpy as np
import pytest

from labelsieve.cli import execute
from labelsieve.data import ReadOptions, load_data
from labelsieve.features.backbones import find_backbone
from labelsieve.features.embed import load_embedded

SMALL = ["--size", "32"]


def test_file_is_read_as_it_was_computed(folder, tmp_path, capsys):
    out = tmp_path / "new" / "fruit.npz"
    assert execute(["embed", str(folder), *SMALL, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert f"{out}: images with 2,560 features of lite0+lite2 at 32 pixels, 60 for train and 15 for test" in shown
    backbone = find_backbone("lite0+lite2", size=32)
    read, computed = load_data(str(out)), load_embedded(str(folder), ReadOptions(), backbone)
    for name in ("train", "test"):
        one, other = getattr(read, name), getattr(computed, name)
        assert one.images.equal(other.images) and one.labels.equal(other.labels)
        assert list(one.names) == list(other.names) and tuple(one.classes) == tuple(other.classes)
    with np.load(out) as arrays:
        assert arrays["features"].dtype == np.float16 and json.loads(str(arrays["backbone"])) == backbone.about()
    assert execute(["embed", str(folder), *SMALL, "--out", str(out)]) == 0  # its own file is replaced
    assert not list(out.parent.glob(".*"))


def test_true_labels_are_kept(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (8, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", images=images, labels=np.arange(8) % 2, clean_labels=np.arange(8) // 4)
    assert execute(["embed", str(tmp_path / "d.npz"), *SMALL, "--out", str(tmp_path / "f.npz")]) == 0
    train = load_data(str(tmp_path / "f.npz")).train
    assert train.clean.tolist() == (np.arange(8) // 4).tolist() and train.shape == (2560,)


def test_texts_and_files_that_are_skipped(tmp_path, capsys):
    table = tmp_path / "t.csv"
    table.write_text("question,label\nwhere is my card,a\n,b\nsend money,b\n")
    out = str(tmp_path / "f.npz")
    assert execute(["embed", str(table), "--text-column", "question", "--out", out]) == 2
    assert "--skip-bad" in capsys.readouterr().err
    assert execute(["embed", str(table), "--text-column", "question", "--skip-bad", "--out", out]) == 0
    shown = capsys.readouterr().out
    assert "skipped 1 unusable file or row: t.csv:3" in shown and "384 features of minilm, 2 for train" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "features.csv"], "--out must be a .npz file, got features.csv"),
        (["--out", "x.npz", "--backbone", "wordllama"], "contains images, but the backbone wordllama encodes texts"),
        (["--out", "x.npz", "--workers", "0"], "--workers must be at least 1, got 0"),
        (["--out", "x.npz", "--on", "there"], "unknown --on 'there'; use here, ray, ray:ADDRESS or ray://HOST:PORT"),
        (["--out", "mine.npz"], "mine.npz exists and was not written by labelsieve embed; name another file"),
    ],
)
def test_mistakes_are_explained(folder, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", features=np.ones((2, 2)))
    assert execute(["embed", str(folder), *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "x.npz").exists()


def test_missing_backbone_is_named(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("labelsieve.catalogue.find_spec", lambda name: None)
    assert execute(["embed", str(folder), "--out", str(tmp_path / "x.npz")]) == 2
    assert "no backbone for images is installed; run pip install 'labelsieve[photos]'" in capsys.readouterr().err
