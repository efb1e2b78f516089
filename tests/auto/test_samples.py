"""Thumbnails, texts and rows of single samples."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from labelsieve.auto.files import audit_files
from labelsieve.auto.samples import MAX_TEXT, sample_renderer, sample_texts
from labelsieve.data import Labelled, ReadOptions, load_data
from tests.conftest import blobs


def shade(folder: Path, view: dict[str, str]) -> int:
    """Return the red value in the middle of a thumbnail."""
    with Image.open(folder.parent / view["image"]) as image:
        return image.convert("RGB").getpixel((image.width // 2, image.height // 2))[0]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of six wide images with the shades 0, 40, 80, ..."""
    for number in range(6):
        place = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (600, 300), (40 * number, 0, 0)).save(place)
    return tmp_path / "photos"


def test_features_of_images_are_shown_as_images(photos, tmp_path):
    np.save(tmp_path / "f.npy", np.eye(6))
    reading = ReadOptions(features=str(tmp_path / "f.npy"))
    samples = load_data(str(photos), reading).train.at(torch.tensor([5, 0, 3]))
    names = ["b/5.png", "a/0.png", "b/1.png"]  # sorted by path: a/0, a/2, a/4, b/1, b/3, b/5
    assert samples.names == names and sample_texts(samples) is None
    views = sample_renderer(str(photos), reading, samples)([0, 2], tmp_path / "thumbs")
    assert list(views) == [0, 2]
    for index, number in ((0, 5), (2, 1)):
        assert abs(shade(tmp_path / "thumbs", views[index]) - 40 * number) < 8
    with Image.open(tmp_path / "thumbs" / "0.webp") as image:
        assert image.size == (256, 128)


def test_decoded_images_are_shown_as_in_their_files_and_unreadable_ones_are_skipped(photos, tmp_path):
    (photos / "a" / "2.png").write_bytes(b"no image")
    reading = ReadOptions(size=8, skip_bad=True)
    samples = load_data(str(photos), reading).train
    assert samples.names == ["a/0.png", "a/4.png", "b/1.png", "b/3.png", "b/5.png"]
    render = sample_renderer(str(photos), reading, samples)
    (photos / "b" / "1.png").unlink()
    views = render([1, 2, 4], tmp_path / "thumbs")
    assert list(views) == [1, 4] and abs(shade(tmp_path / "thumbs", views[1]) - 160) < 8
    with Image.open(tmp_path / "thumbs" / "1.webp") as image:
        assert image.size == (256, 128)


def test_features_of_texts_are_shown_as_texts(tmp_path):
    (tmp_path / "t.csv").write_text(f"text,label\none,a\n{'x' * 3000},b\nthree,a\n")
    np.save(tmp_path / "f.npy", np.eye(3))
    reading = ReadOptions(features=str(tmp_path / "f.npy"))
    samples = load_data(str(tmp_path / "t.csv"), reading).train
    views = sample_renderer(str(tmp_path / "t.csv"), reading, samples)([2, 1], tmp_path / "thumbs")
    assert views == {2: {"text": "three"}, 1: {"text": "x" * MAX_TEXT}}
    assert sample_texts(samples.at(torch.tensor([2, 0]))) == ["three", "one"]


def test_features_of_arrays_are_shown_as_images(tmp_path):
    images = blobs(4, 0)
    samples = Labelled(torch.eye(4), images.labels, images.classes, original=images)
    views = sample_renderer("nothing", ReadOptions(), samples)([3], tmp_path / "thumbs")
    assert views == {3: {"image": "thumbs/3.webp"}} and (tmp_path / "thumbs" / "3.webp").exists()


def test_features_alone_are_shown_as_rows(tmp_path):
    (tmp_path / "t.csv").write_text("x,z,label\n1,2,a\n3,4,b\n")
    samples = load_data(str(tmp_path / "t.csv")).train
    render = sample_renderer(str(tmp_path / "t.csv"), ReadOptions(), samples)
    assert render([1], tmp_path / "thumbs") == {1: {"row": {"x": 3, "z": 4}}} and sample_texts(samples) is None


def test_audit_of_probabilities_shows_a_table_of_texts(tmp_path):
    texts = [f"text {row}" for row in range(40)]
    labels = np.arange(40) % 2
    rows = [f"{text},{'ab'[label]}\n" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(rows))
    probs = np.where(np.eye(2)[labels] > 0, 0.95, 0.05)
    probs[7] = [0.99, 0.01]  # its label is b
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "probs.npy", probs)
    files = {"pred_probs": tmp_path / "probs.npy", "data": str(tmp_path / "t.csv")}
    audit_files(tmp_path / "labels.npy", tmp_path / "audit", **files)
    first = json.loads((tmp_path / "audit" / "gallery.jsonl").read_text().splitlines()[0])
    assert first["id"] == "t.csv:9" and first["text"] == "text 7" and first["suggested_label"] == "a"
    assert "text 7" in (tmp_path / "audit" / "labels.csv").read_text().splitlines()[1]
