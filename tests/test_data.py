"""The embedded data and a person's own arrays."""

import numpy as np
import pytest
import torch
from PIL import Image

from labelsieve.data import load_data
from labelsieve.data.labels import read_label_file, write_labels
from labelsieve.data.load import CLASSES, FILE
from labelsieve.data.sets import standardise
from labelsieve.errors import InputError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (12, 5, 4), dtype=np.uint8)
LABELS = np.arange(12) % 3


def write(path, **arrays):
    np.savez(path, **{"images": IMAGES, "labels": LABELS, **arrays})
    return str(path)


def test_embedded_data_is_balanced_and_small():
    train, test, _ = load_data("fashion")
    assert train.images.shape == (6000, 1, 28, 28) and test.images.shape == (1000, 1, 28, 28)
    assert train.labels.bincount().tolist() == [600] * 10 and test.labels.bincount().tolist() == [100] * 10
    assert tuple(train.classes) == CLASSES and train.clean is None
    assert FILE.stat().st_size < 3.3e6
    assert FILE.with_name("fashion_mnist.LICENSE").read_text().count("MIT License") == 1


def test_embedded_data_that_is_damaged_is_refused(tmp_path, monkeypatch):
    with np.load(FILE) as file:
        arrays = dict(file)
    arrays["train_labels"][0] ^= 1
    np.savez(tmp_path / "damaged.npz", **arrays)
    monkeypatch.setattr("labelsieve.data.load.FILE", tmp_path / "damaged.npz")
    with pytest.raises(InputError, match="damaged: install labelsieve again"):
        load_data("fashion")


def test_standardised_images_have_no_mean_and_unit_deviation():
    images = torch.from_numpy(IMAGES)[:, None]
    x = standardise(images)
    assert torch.allclose(x.mean((1, 2, 3)), torch.zeros(12), atol=1e-6)
    assert torch.allclose(x.std((1, 2, 3), correction=0), torch.ones(12), atol=1e-6)
    assert (standardise(torch.full((1, 3, 4, 4), 9, dtype=torch.uint8)) == 0).all()
    nearly_flat = torch.zeros(1, 1, 20, 20, dtype=torch.uint8)
    nearly_flat[0, 0, 0, 0] = 1  # deviation 0.04994 is under 1/sqrt(400): divided by 0.05 instead
    assert standardise(nearly_flat).max().item() == pytest.approx((1 - 1 / 400) / 0.05)


def test_npz_with_and_without_a_test_set(tmp_path):
    train, test, _ = load_data(write(tmp_path / "a.npz"))
    assert train.images.shape == (12, 1, 5, 4) and test is None and list(train.classes) == ["0", "1", "2"]
    assert torch.equal(train.images[3, 0], torch.from_numpy(IMAGES[3]))
    colour = RNG.integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    arrays = {"images": np.repeat(IMAGES[..., None], 3, 3), "test_images": colour, "test_labels": np.array([3, 0])}
    train, test, _ = load_data(write(tmp_path / "b.npz", **arrays, classes=np.array(["a", "b", "c", "d"])))
    assert test.images.shape == (2, 3, 5, 4) and list(test.classes) == ["a", "b", "c", "d"]
    assert torch.equal(test.images[1, 2], torch.from_numpy(colour[1, :, :, 2]))


def test_fortran_order_and_other_byte_orders_are_the_same_data(tmp_path):
    plain, _, _ = load_data(write(tmp_path / "a.npz"))
    odd, _, _ = load_data(write(tmp_path / "b.npz", images=np.asfortranarray(IMAGES), labels=LABELS.astype(">i4")))
    assert torch.equal(plain.images, odd.images) and torch.equal(plain.labels, odd.labels)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"images": IMAGES[:5]}, "5 images but 12 labels"),
        ({"images": IMAGES.astype(np.float32)}, "must be uint8.* got float32"),
        ({"images": IMAGES[0]}, "must be uint8, 0 to 255, of shape"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "no samples"),
        ({"labels": LABELS - 1}, "label -1 at position 0 .* out of range: there are 2 classes"),
        ({"labels": LABELS, "classes": np.array(["a", "b"])}, "label 2 at position 2 .* 2 classes, 0 to 1"),
        ({"labels": LABELS / 2}, "whole numbers, got float64 0.5 at 1"),
        ({"labels": np.eye(12) / 2}, r"labels\[0\] is not one-hot"),
        ({"labels": np.array(["a"] * 12)}, "only the class 'a'"),
        ({"images": np.array([{}] * 12)}, "array 'images' holds no plain arrays but Python objects"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_by_name(tmp_path, arrays, reason):
    path = write(tmp_path / "mine.npz", **arrays)
    with pytest.raises(InputError, match=reason) as caught:
        load_data(path)
    assert "mine.npz" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut short"])
def test_files_that_cannot_be_read_are_refused_by_name(tmp_path, content):
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read .*mine\.npz"):
        load_data(str(path))


def test_a_file_without_labels_says_what_it_has(tmp_path):
    np.savez(tmp_path / "mine.npz", x=IMAGES)
    with pytest.raises(InputError, match=r"has no 'images' \(it has: x\)"):
        load_data(str(tmp_path / "mine.npz"))


@pytest.mark.parametrize(("source", "reason"), [("fashon", "one of: fashion"), ("gone.npz", "cannot read gone.npz")])
def test_data_that_is_not_there(source, reason):
    with pytest.raises(InputError, match=reason):
        load_data(source)


def test_label_files_are_read_back_as_written(tmp_path):
    labels = torch.tensor([2, 0, 1, 1])
    write_labels(tmp_path / "labels.csv", labels, ["a,b", 'quo"te', "ü"])
    assert torch.equal(read_label_file(tmp_path / "labels.csv", ["a,b", 'quo"te', "ü"], 4).labels, labels)
    np.save(tmp_path / "labels.npy", labels.numpy())
    assert torch.equal(read_label_file(tmp_path / "labels.npy", ["a", "b", "c"], 4).labels, labels)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("index,label\n0,a\n1,b\n", "has 2 labels but the data has 3"),
        ("index,label\n0,a\n1,b\n2,dog\n", r"labels\.csv:4: 'dog' is no class; there are: a, b"),
        ("index,label\n0,a\n1,b\n2,7\n", "label 7 at position 2 .* out of range"),
        ("index,label\n0,a\n1\n2,b\n", r"labels\.csv:3: None is no class"),
        ("name\na\nb\na\n", "no column 'label'"),
        ("", "no column 'label'"),
    ],
)
def test_label_files_that_cannot_be_used_are_refused_by_line(tmp_path, text, reason):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_label_file(tmp_path / "labels.csv", ["a", "b"], 3)


def test_a_label_file_without_labels_says_what_to_do(tmp_path):
    (tmp_path / "truth.csv").write_text("name,true\na.png,cat\n")
    with pytest.raises(InputError, match=r"truth\.csv has no column 'label' \(it has: name, true\); call the one"):
        read_label_file(tmp_path / "truth.csv", ("cat", "dog"), 1)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_label_files_of_spreadsheets(tmp_path, separator):
    path = tmp_path / "labels.csv"
    text = "index,name,label,note\n1,b.png,Mäntel,\n0,a.png,Été,x\n".replace(",", separator)
    path.write_text(text, encoding="utf-8-sig")
    assert read_label_file(path, ("Mäntel", "Été"), 2).labels.tolist() == [1, 0]
    assert read_label_file(path, ("Mäntel", "Été"), 2, ("b.png", "a.png")).labels.tolist() == [0, 1]
    for encoding, fix in {"cp1252": r"line 2, byte 0xe4.; save it as UTF-8", "utf-16": "is UTF-16 text"}.items():
        path.write_text(text, encoding=encoding)
        with pytest.raises(InputError, match=fix) as caught:
            read_label_file(path, ("Mäntel", "Été"), 2)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"cannot read .*gone\.csv"):
        read_label_file(tmp_path / "gone.csv", ("a", "b"), 2)


def test_label_files_go_by_their_index_and_numbers_may_be_names(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("index,label\n3,c\n2,b\n1,a\n0,a\n")
    assert read_label_file(path, ("a", "b", "c"), 4).labels.tolist() == [0, 0, 1, 2]
    path.write_text("index,label\n0,a\n0,b\n")
    with pytest.raises(InputError, match=r"labels\.csv:3: sample 0 is there twice: as b, in line 2 as a; keep one"):
        read_label_file(path, ("a", "b"), 2)
    path.write_text("index,label\n0,a\n2,b\n")
    with pytest.raises(InputError, match="must name 0 to 1, each once"):
        read_label_file(path, ("a", "b"), 2)
    path.write_text("label\n0\n1\n2\n")
    with pytest.raises(InputError, match=r"labels\.csv:2: '0' is no class; there are: 1, 2, 3"):
        read_label_file(path, ("1", "2", "3"), 3)
    assert read_label_file(path, ("a", "b", "c"), 3).labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("9,x.png,b\n", r"labels\.csv:5: x\.png is there twice: as b, in line 2 as a; keep one"),
        ("9,x.png,a\n", r"labels\.csv:5: x\.png is there twice, the same in line 2; keep one"),
        ("9,-y.png,b\n", r"labels\.csv:5: -y\.png is there twice, the same in line 3"),  # there with an apostrophe
    ],
)
def test_a_label_file_with_two_lines_for_a_sample_is_refused(tmp_path, more, says):
    path = tmp_path / "labels.csv"
    lines = "index,name,label\n0,x.png,a\n1,'-y.png,b\n7,other.png,a\n"
    path.write_text(lines)
    assert read_label_file(path, ("a", "b"), 2, ("-y.png", "x.png")).labels.tolist() == [1, 0]
    path.write_text(lines + more)
    with pytest.raises(InputError, match=says):
        read_label_file(path, ("a", "b"), 2, ("-y.png", "x.png"))


def test_samples_of_the_same_name_go_by_their_index(tmp_path):
    names = ("x.png", "y.png", "x.png")
    write_labels(tmp_path / "labels.csv", torch.tensor([0, 1, 1]), ("a", "b"), names)
    assert read_label_file(tmp_path / "labels.csv", ("a", "b"), 3, names).labels.tolist() == [0, 1, 1]
    (tmp_path / "short.csv").write_text("name,label\nx.png,b\ny.png,a\n")
    assert read_label_file(tmp_path / "short.csv", ("a", "b"), 3, names).labels.tolist() == [1, 0, 1]


def test_a_published_dataset_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELSIEVE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"no cifar10 in .*: put cifar-10-batches-py there .*LABELSIEVE_DATA"):
        load_data("cifar10")
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "animal-10n" / split / name).mkdir(parents=True)
            for number in range(2):
                pixels = np.full((8, 8, 3), 40 * number, dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "animal-10n" / split / name / f"{number}.png")
    assert load_data("animal10n").train.classes == ("cat", "dog")
