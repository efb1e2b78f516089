"""Audit of a run: its files, moved data, runs without statistics, and rendered samples."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from labelsieve.auto.audit import given_rate, selects
from labelsieve.catalogue import ORDER
from labelsieve.cli import execute
from labelsieve.data.labels import read_label_file
from labelsieve.methods import METHODS
from labelsieve.noise import corrupt, pair
from labelsieve.runs.read import read_run


def blob_images(count, seed):
    """Return images of four classes that differ in the bright quarter, and their classes."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 4
    images = random.integers(0, 120, (count, 8, 8), dtype=np.uint8)
    for k in range(4):
        images[labels == k, 4 * (k // 2) : 4 * (k // 2) + 4, 4 * (k % 2) : 4 * (k % 2) + 4] += 90
    return images, labels


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train on a .npz file with pair noise; return the folder, the true classes and the noisy labels."""
    folder = tmp_path_factory.mktemp("audit")
    images, labels = blob_images(600, 0)
    noisy_labels = corrupt(torch.from_numpy(labels), pair(4, 0.3), 0).numpy()
    np.savez(folder / "data.npz", images=images, labels=noisy_labels, classes=np.array(["a", "b", "=c", "d"]))
    options = (
        "--noise-rate 0.3 --test 0.1 --valid 0.1 --epochs 8 --warmup 2 --model small --lr 0.05 --batch 128 --threads 1"
    )
    arguments = ["train", str(folder / "data.npz"), *options.split(), "--device", "cpu", "--out", str(folder / "run")]
    assert execute(arguments) == 0
    return folder, labels, noisy_labels


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_run_is_audited(trained, capsys):
    folder, clean, given_labels = trained
    assert execute(["audit", str(folder / "run"), "--export", "corrected", "--export", "cleanlab"]) == 0
    said = capsys.readouterr().out
    out = folder / "run" / "audit"
    rows = read_csv(out / "labels.csv")
    assert sorted(int(row["index"]) for row in rows) == list(range(600))  # including held-out and test samples
    names = ["a", "b", "'=c", "d"]
    assert all(names[given_labels[int(row["index"])]] == row["given_label"] for row in rows)
    unseen = [row for row in rows if row["why"].endswith(" The model was not trained on it.")]
    assert len(unseen) == 54 + 60  # held-out and test samples
    wrong = np.array([clean[int(row["index"])] != given_labels[int(row["index"])] for row in rows])
    assert wrong[: wrong.sum()].mean() > 0.9
    issues = np.array([row["is_label_issue"] == "true" for row in rows])
    assert wrong[issues].mean() > 0.9 and issues.sum() > 0.8 * wrong.sum()
    found = json.loads((out / "summary.json").read_bytes())
    assert found["samples"] == 600 and found["issues"] == issues.sum() and found["classes"] == ["a", "b", "=c", "d"]
    rate = found["noise_rate"]
    assert rate["low"] <= wrong.mean() <= rate["high"]
    assert np.allclose(np.sum(found["noise_matrix"], 1), 1, atol=1e-4) and len(found["penalty"]) == 4
    assert said.startswith(found["verdict"]) and found["made"]["method"] == "mentornet-prop"
    gallery = [json.loads(line) for line in (out / "gallery.jsonl").read_text().splitlines()]
    assert [line["index"] for line in gallery] == [int(row["index"]) for row in rows[: len(gallery)]]
    assert len(gallery) == issues.sum() + 200 and all(line["is_label_issue"] for line in gallery[: issues.sum()])
    assert all((out / line["image"]).is_file() for line in gallery)
    assert "corrected.csv contains suggestions that nobody reviewed: a training on it confirms them" in said
    fixed = read_label_file(out / "corrected.csv", found["classes"], 600).labels
    assert (fixed.numpy() == clean).mean() > 0.95 > (given_labels == clean).mean()
    again = ["train", str(folder / "data.npz"), "--labels", str(out / "corrected.csv"), "--noise-rate", "0.05"]
    assert execute([*again, "--epochs", "2", "--warmup", "1", "--dry-run"]) == 0


def test_run_without_sample_statistics_is_refused(trained, tmp_path, capsys):
    folder, *_ = trained
    old = tmp_path / "old"
    old.mkdir()
    for name in ("spec.json", "record.jsonl", "model.safetensors", "tables.safetensors"):
        (old / name).write_bytes((folder / "run" / name).read_bytes())
    (old / "done").touch()
    assert execute(["audit", str(old), "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert "old has no samples.safetensors" in message and "train again" in message and message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_moved_data_is_accepted_and_other_data_is_refused(trained, tmp_path, capsys):
    folder, *_ = trained
    (folder / "data.npz").rename(tmp_path / "moved.npz")
    try:
        assert execute(["audit", str(folder / "run"), "--out", str(tmp_path / "out")]) == 2
        message = capsys.readouterr().err
        assert "data.npz" in message and "--data" in message and message.count("\n") == 1
        moved = ["--data", str(tmp_path / "moved.npz")]
        assert execute(["audit", str(folder / "run"), "--out", str(tmp_path / "out"), *moved]) == 0
        images, labels = blob_images(600, 1)
        np.savez(tmp_path / "other.npz", images=images, labels=labels, classes=np.array(["a", "b", "=c", "d"]))
        other = ["--data", str(tmp_path / "other.npz")]
        assert execute(["audit", str(folder / "run"), "--out", str(tmp_path / "out"), *other]) == 2
        assert "fingerprint" in capsys.readouterr().err
    finally:
        (tmp_path / "moved.npz").rename(folder / "data.npz")


def test_gallery_shows_rows_of_tables_and_upright_images(tmp_path, capsys):
    random = np.random.default_rng(0)
    lines = [f"{k}.png,{random.normal(3 * (k % 2)):.3f},{random.normal():.3f},{'ab'[k % 2]}" for k in range(60)]
    (tmp_path / "rows.csv").write_text("id,x,y,label\n" + "\n".join(lines), encoding="utf-8")
    small = ["--noise-rate", "0.1", "--epochs", "2", "--warmup", "1", "--threads", "1", "--device", "cpu"]
    assert execute(["train", str(tmp_path / "rows.csv"), *small, "--out", str(tmp_path / "table")]) == 0
    assert execute(["audit", str(tmp_path / "table")]) == 0
    line = json.loads((tmp_path / "table" / "audit" / "gallery.jsonl").read_text().splitlines()[0])
    assert set(line["row"]) == {"x", "y"}
    for k in range(24):
        (tmp_path / "images" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 60, (20, 40, 3), dtype=np.uint8) + np.uint8(150 * (k % 2))
        exif = Image.Exif()
        exif[0x0112] = 6  # rotated
        Image.fromarray(pixels).save(tmp_path / "images" / "ab"[k % 2] / f"{k}.jpg", exif=exif)
    assert execute(["train", str(tmp_path / "images"), *small, "--model", "small", "--out", str(tmp_path / "run")]) == 0
    assert execute(["audit", str(tmp_path / "run"), "--export", "fiftyone"]) == 0
    line = json.loads((tmp_path / "run" / "audit" / "gallery.jsonl").read_text().splitlines()[0])
    with Image.open(tmp_path / "run" / "audit" / line["image"]) as image:
        assert image.size == (120, 240)
    assert line["id"].startswith(("a/", "b/"))


def test_given_rate_is_only_that_of_the_user(trained):
    run = read_run(trained[0] / "run")
    assert given_rate(run) == 0.3 and given_rate(replace(run, start={"chosen": {}})) == 0  # chosen by a probe
    assert given_rate(replace(run, spec={**run.spec, "method": "gce"})) == 0  # does not select by the rate


def test_selects_asks_the_method(monkeypatch):
    """New methods need not be registered anywhere else."""
    monkeypatch.setitem(METHODS, "mine", METHODS["mentornet"])
    monkeypatch.setitem(METHODS, "plain", METHODS["default"])
    assert selects("mine", None) and not selects("plain", None) and selects("plain", "ol")
    selecting = {name for name in ORDER if selects(name, None)}
    pairs = {name + also for name in ("mentornet", "selfie") for also in ("", "-prop")}
    assert selecting == pairs | {"co-teaching", "co-teaching+", "sl-prop", "jocor"}
