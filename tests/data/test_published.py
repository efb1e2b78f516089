"""Published datasets in their published layouts, except CIFAR."""

import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from labelsieve.data import ReadOptions, load_data, source_fingerprint
from labelsieve.data import published as animal10n
from labelsieve.data import published as clothing1m
from labelsieve.data.cifar import is_cifar
from labelsieve.data.folder import read_folder
from labelsieve.data.images import BadImage, Frame, Pictures, Unusable, read_header
from labelsieve.data.load import decode_all, find
from labelsieve.data.published import (
    FASHION_CLASSES,
    FASHION_FILE,
    PHOTOS_FILE,
    TINY_FRAME,
    is_animal10n,
    is_animal10n_binary,
    is_clothing1m,
    is_tiny_imagenet,
    read_animal10n,
    read_animal10n_binary,
    read_clothing1m,
    read_key_labels,
    read_photos,
    read_tiny_imagenet,
    subsampled,
)
from labelsieve.errors import InputError
from tests.data.builders import WNIDS, animals, clothing, put, put_all, refusal, tiny_imagenet
from tests.data.test_cifar import RNG, ten_binary, write_folder


def test_embedded_data_is_balanced_and_small():
    train, test, _ = load_data("fashion")
    assert train.images.shape == (6000, 1, 28, 28) and test.images.shape == (1000, 1, 28, 28)
    assert train.labels.bincount().tolist() == [600] * 10 and test.labels.bincount().tolist() == [100] * 10
    assert tuple(train.classes) == FASHION_CLASSES and train.clean is None
    assert FASHION_FILE.stat().st_size < 3.3e6
    assert FASHION_FILE.with_name("fashion_mnist.LICENSE").read_text().count("MIT License") == 1


def test_damaged_embedded_data_is_an_error(tmp_path, monkeypatch):
    with np.load(FASHION_FILE) as file:
        arrays = dict(file)
    arrays["train_labels"][0] ^= 1
    np.savez(tmp_path / "damaged.npz", **arrays)
    monkeypatch.setattr("labelsieve.data.published.FASHION_FILE", tmp_path / "damaged.npz")
    with pytest.raises(InputError, match="damaged: install labelsieve again"):
        load_data("fashion")


def test_embedded_photographs_are_balanced_and_small():
    train, test, valid, unusable, kind, _ = find("photos", ReadOptions())
    assert isinstance(train, Pictures) and isinstance(test, Pictures)
    assert (valid, unusable, kind) == (None, (), "embedded photographs")
    assert train.classes == test.classes == ("dress", "longsleeve", "pants", "shoes", "shorts", "t-shirt")
    assert train.labels.bincount().tolist() == [50] * 6 and test.labels.bincount().tolist() == [15] * 6
    assert train.names[0] == "train/000.webp" and test.names[-1] == "test/089.webp"
    frames = [read_header(split.read(index)) for split in (train, test) for index in range(len(split))]
    assert {min(frame.height, frame.width) for frame in frames} == {128} and {frame.channels for frame in frames} == {3}
    contents = [split.read(index) for split in (train, test) for index in range(len(split))]
    assert len(set(contents)) == 390
    assert PHOTOS_FILE.stat().st_size < 2e6
    assert "CC0 1.0" in PHOTOS_FILE.with_name("photos.LICENSE").read_text()


def test_embedded_photographs_are_loaded_as_data(tmp_path):
    sets = load_data("photos", ReadOptions(size=16))
    assert sets.train.shape == sets.test.shape == (3, 16, 16) and len(sets.train) == 300
    again = pickle.loads(pickle.dumps(read_photos().train.at([7])))
    assert again.read(0) == read_photos().train.read(7) and again.names == ["train/007.webp"]
    assert source_fingerprint("photos", ReadOptions()) not in (None, source_fingerprint("fashion", ReadOptions()))


def test_archive_of_photographs_is_a_table_of_image_paths(tmp_path):
    with zipfile.ZipFile(PHOTOS_FILE) as archive:
        archive.extractall(tmp_path)
    extracted, embedded = find(str(tmp_path / "photos.csv"), ReadOptions()), read_photos()
    assert not extracted.unusable
    for one, other in zip(extracted.splits().values(), embedded.splits().values(), strict=True):
        assert one.names == other.names and torch.equal(one.labels, other.labels) and one.classes == other.classes


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-5], lambda content: content.replace(b"t-shirt", b"t-shert")]
)
def test_damaged_photographs_are_an_error(tmp_path, monkeypatch, damage):
    (tmp_path / "photos.zip").write_bytes(damage(PHOTOS_FILE.read_bytes()))
    monkeypatch.setattr("labelsieve.data.published.PHOTOS_FILE", tmp_path / "photos.zip")
    with pytest.raises(InputError, match="damaged: install labelsieve again"):
        load_data("photos")


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


def test_tiny_imagenet_as_published(tmp_path):
    root = tiny_imagenet(tmp_path)
    assert is_tiny_imagenet(root)
    train, test, valid, bad = read_tiny_imagenet(root)[:4]
    assert train.classes == ("n01443537 goldfish", "n01629819 European fire salamander", "n02124075")
    assert train.names[0] == "train/n01443537/images/n01443537_0.JPEG" and train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert list(test.names) == [f"val/images/val_{number}.JPEG" for number in range(4)]
    assert test.labels.tolist() == [2, 0, 1, 2]  # the order of wnids.txt does not matter
    assert (valid, bad) == (None, [])
    images, unread = decode_all(train, TINY_FRAME)
    assert images.images.shape == (6, 3, 64, 64) and unread == []


def test_tiny_imagenet_without_words(tmp_path):
    assert read_tiny_imagenet(tiny_imagenet(tmp_path, words=False)).train.classes == tuple(sorted(WNIDS))


def test_tiny_imagenet_matches_images_and_annotations(tmp_path):
    root = tiny_imagenet(tmp_path)
    put(root / "val/images/extra.JPEG")
    put(root / "val/images/val_1.txt")
    (root / "val/images/val_2.JPEG").unlink()
    listing = read_tiny_imagenet(root)
    assert len(listing.test) == 3 and listing.test.labels.tolist() == [2, 0, 2]
    assert listing.unusable == [
        Unusable("val/images/extra.JPEG", "no line in val/val_annotations.txt"),
        Unusable("val/images/val_1.txt", "not an image file (suffix .txt)"),
        Unusable("val/images/val_2.JPEG", "listed in val/val_annotations.txt, but missing"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("val/val_annotations.txt", b"val_0.JPEG n02124075\n", ["val_annotations.txt:1", "a tab"]),
        ("val/val_annotations.txt", b"\nval_0.JPEG\tn99999999\t0\n", ["val_annotations.txt:2", "n99999999"]),
        (
            "val/val_annotations.txt",
            b"val_0.JPEG\tn02124075\nval_0.JPEG\tn01443537\n",
            ["val_annotations.txt:2", "earlier line"],
        ),
        ("val/val_annotations.txt", b"gone.JPEG\tn02124075\n", ["no image in"]),
        ("val/val_annotations.txt", b"\xff\xfe\x00\n", ["val_annotations.txt:1"]),
        ("wnids.txt", b"n02124075\n../../etc\n", ["wnids.txt", "'../../etc'"]),
        ("wnids.txt", b"", ["0 classes"]),
        ("wnids.txt", b"n02124075\nn00000001\n", ["missing 'train/n00000001/images'", "expected wnids.txt"]),
    ],
)
def test_damaged_tiny_imagenet_is_an_error(tmp_path, name, content, words):
    put(tiny_imagenet(tmp_path) / name, content)
    message = refusal(read_tiny_imagenet, tmp_path)
    assert all(word in message for word in words), message


def test_error_lists_all_missing_files_of_tiny_imagenet(tmp_path):
    put(tmp_path / "wnids.txt")
    message = refusal(read_tiny_imagenet, tmp_path)
    assert "missing 'train', 'val/images', 'val/val_annotations.txt'; expected wnids.txt" in message
    assert not is_tiny_imagenet(tmp_path)


def test_tiny_imagenet_class_without_images_is_an_error(tmp_path):
    root = tiny_imagenet(tmp_path)
    for file in (root / "train/n01629819/images").iterdir():
        file.unlink()
    assert "n01629819/images has no images" in refusal(read_tiny_imagenet, root)


def test_every_second_pixel_is_kept():
    images = torch.arange(64 * 64).view(1, 1, 64, 64)
    small = subsampled(images)
    assert small.shape == (1, 1, 32, 32)
    assert small[0, 0, 3, 5] == 6 * 64 + 10 and small[0, 0, 31, 31] == 62 * 64 + 62


def test_animal10n_as_published(tmp_path):
    put_all(tmp_path, ["training/9_2.jpg", "training/0_10.jpg", "training/3_17.jpg", "testing/3_0.jpg"])
    assert is_animal10n(tmp_path)
    train, test, valid, bad = read_animal10n(tmp_path)[:4]
    assert list(train.names) == ["training/0_10.jpg", "training/3_17.jpg", "training/9_2.jpg"]
    assert train.labels.tolist() == [0, 3, 9] and test.labels.tolist() == [3] and (valid, bad) == (None, [])
    assert [train.classes[label] for label in train.labels.tolist()] == ["cat", "coyote", "guinea pig"]
    assert len(animal10n.ANIMAL_CLASSES) == 10 and train.classes == test.classes == animal10n.ANIMAL_CLASSES


def test_animal10n_names_without_a_label_are_unusable(tmp_path):
    good = ["training/1_1.jpg", "testing/1_1_2.jpg"]
    odd = ["10_3.jpg", "x_1.jpg", "_1.jpg", "3-1.jpg", "-1_2.jpg", "٣_1.jpg"]
    put_all(tmp_path, [*good, *(f"training/{name}" for name in odd), "testing/notes.txt"])
    train, test, _, bad = read_animal10n(tmp_path)[:4]
    assert (len(train), len(test)) == (1, 1)
    assert [name for name, _ in bad] == sorted([*(f"training/{name}" for name in odd), "testing/notes.txt"])
    assert "0 to 9 and an underscore" in bad[-1].reason


def test_other_folders_are_not_animal10n(tmp_path):
    assert not is_animal10n(tmp_path)
    assert "missing 'training', 'testing'; expected the folders" in refusal(read_animal10n, tmp_path)
    put_all(tmp_path, ["training/0_cat/1.jpg", "training/1_dog/1.jpg", "testing/0_cat/1.jpg"])
    assert not is_animal10n(tmp_path) and len(read_folder(tmp_path).train) == 2
    assert "no images named by label" in refusal(read_animal10n, tmp_path)


@pytest.mark.parametrize("below", ["", "annotations"])
def test_clothing1m_as_published(tmp_path, below):
    root = clothing(tmp_path, below)
    assert is_clothing1m(root)
    train, test, valid, bad = read_clothing1m(root)[:4]
    assert list(train.names) == ["images/2/22/c.jpg", "images/0/00/a.jpg", "images/1/11/b.jpg"]
    assert train.labels.tolist() == [0, 3, 13] and train.clean is None  # its noisy label, not its clean one
    assert (valid.labels.tolist(), test.labels.tolist(), bad) == ([1], [12], [])
    assert [train.classes[label] for label in (0, 3, 8, 13)] == ["T-Shirt", "Chiffon", "Down Coat", "Underwear"]
    assert len(clothing1m.CLOTHING_CLASSES) == 14
    assert train.pixels(0, Frame(1, 1, 1)).item() == 5
    with pytest.raises(BadImage, match="No such file"):
        train.pixels(1, Frame(1, 1, 1))


def test_clothing1m_with_windows_line_ends(tmp_path):
    text = "images/0/00/a.jpg 3\r\nimages/1/11/b.jpg 13\r\nimages/2/22/c.jpg 0\r\n\r\n"
    keys = "\ufeffimages/0/00/a.jpg\r\n"
    train = read_clothing1m(clothing(tmp_path, noisy_label_kv=text, noisy_train_key_list=keys)).train
    assert list(train.names) == ["images/0/00/a.jpg"] and train.labels.tolist() == [3]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"noisy_label_kv": "images/x.jpg 14\n"}, ["noisy_label_kv.txt:1", "0 to 13, got 'images/x.jpg 14'"]),
        ({"noisy_label_kv": "images/x.jpg 1\nimages/y.jpg -1\n"}, ["noisy_label_kv.txt:2", "got 'images/y.jpg -1'"]),
        ({"noisy_label_kv": "images/x.jpg 1.0\n"}, ["got 'images/x.jpg 1.0'"]),
        ({"noisy_label_kv": "images/x.jpg ٣\n"}, ["noisy_label_kv.txt:1"]),
        ({"clean_label_kv": "images/x.jpg\n"}, ["clean_label_kv.txt:1", "got 'images/x.jpg'"]),
        ({"clean_label_kv": "images/x.jpg 1 2\n"}, ["clean_label_kv.txt:1", "a path, a space and a label"]),
        ({"clean_label_kv": "images/x.jpg 1\nimages/x.jpg 2\n"}, ["clean_label_kv.txt:2", "earlier line"]),
        ({"clean_label_kv": "\udcff\udcfe"}, ["clean_label_kv.txt:1"]),
        (
            {"noisy_train_key_list": "\nimages/z.jpg\n"},
            ["noisy_train_key_list.txt:2", "no label in noisy_label_kv.txt"],
        ),
        ({"noisy_train_key_list": "images/3/33/d.jpg\n"}, ["no label in noisy_label_kv.txt"]),
        ({"clean_val_key_list": "images/z.jpg\n"}, ["clean_val_key_list.txt:1", "no label in clean_label_kv.txt"]),
        ({"clean_test_key_list": ""}, ["clean_test_key_list.txt lists no images"]),
        ({"clean_test_key_list": None, "clean_label_kv": None}, ["'clean_label_kv.txt', 'clean_test_key_list.txt'"]),
    ],
)
def test_error_names_the_line_of_damaged_clothing1m(tmp_path, changed, words):
    message = refusal(read_clothing1m, clothing(tmp_path, **changed))
    assert all(word in message for word in words), message


@pytest.mark.parametrize("key", ["/etc/passwd", "images/../../x.jpg", "../x.jpg", "images/a\0.jpg", "C:/x.jpg"])
def test_clothing1m_reads_only_below_images(tmp_path, key):
    root = clothing(tmp_path, noisy_label_kv=f"{key} 1\n", noisy_train_key_list=f"{key}\n")
    assert "noisy_train_key_list.txt:1" in (message := refusal(read_clothing1m, root)) and "below images" in message


def test_other_folders_are_not_clothing1m(tmp_path):
    assert not is_clothing1m(tmp_path)
    assert "'images', 'noisy_label_kv.txt', " in refusal(read_clothing1m, tmp_path)


def test_many_label_lines_are_read(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("".join(f"images/{k % 10}/{k % 97:02}/{k},{k}.jpg {k % 14}\n" for k in range(200_000)))
    assert len(read_key_labels(path)) == 200_000


def test_tiny_imagenet_at_32_pixels_is_subsampled(tmp_path):
    tiny_imagenet(tmp_path / "tiny")
    whole, half = (load_data(str(tmp_path / "tiny"), ReadOptions(size=size)) for size in (None, 32))
    assert whole.train.images.shape[1:] == (3, 64, 64) and len(whole.test)
    assert torch.equal(half.train.images, whole.train.images[..., ::2, ::2])
    assert torch.equal(half.test.images, whole.test.images[..., ::2, ::2])


def test_binary_animal10n_batches_are_read_in_order(tmp_path):
    files = {
        "data_batch_10.bin": animals(2, first=5),
        "data_batch_2.bin": animals(2, first=3),
        "data_batch_1.bin": animals(3),
        "test_batch.bin": animals(12),
    }
    folder = write_folder(tmp_path / "animals", files)
    assert is_animal10n_binary(folder) and not is_cifar(folder)
    train, test, *_ = read_animal10n_binary(folder)
    assert train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6] and test.labels.tolist() == [*range(10), 0, 1]
    assert train.images.shape == (7, 3, 64, 64) and train.images.dtype == torch.uint8
    assert train.images[4, :, 63, 0].tolist() == [14, 24, 34]
    assert train.classes[3] == "coyote" and test.classes[9] == "guinea pig" and len(set(train.classes)) == 10


def test_binary_animal10n_pixels_are_in_row_order(tmp_path):
    pixels = RNG.integers(0, 256, (3, 64, 64), dtype=np.uint8)
    record = struct.pack(">II", 7, 8) + pixels.tobytes()
    folder = write_folder(tmp_path, {"data_batch_1.bin": record, "test_batch.bin": record})
    train, *_ = read_animal10n_binary(folder)
    assert train.images[0].tolist() == pixels.tolist() and train.labels.tolist() == [8]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (
            "data_batch_2.bin",
            animals(3)[:-1],
            "is truncated: 36,887 bytes are not a multiple of the record size",
        ),
        ("data_batch_2.bin", b"", "is truncated: 0 bytes"),
        ("test_batch.bin", struct.pack("<II", 1, 1) + bytes(12288), "label 16777216 at position 0"),
        ("test_batch.bin", struct.pack(">II", 1, 10) + bytes(12288), "label 10 at position 0"),
    ],
)
def test_error_names_a_damaged_animal10n_file(tmp_path, name, content, reason):
    files = {"data_batch_1.bin": animals(2), "data_batch_2.bin": animals(2), "test_batch.bin": animals(2)}
    folder = write_folder(tmp_path, {**files, name: content})
    assert is_animal10n_binary(folder)
    message = refusal(read_animal10n_binary, folder)
    assert str(folder / name) in message and reason in message


def test_binary_animal10n_needs_both_splits(tmp_path):
    assert not is_animal10n_binary(tmp_path / "gone") and not is_animal10n_binary(tmp_path)
    assert "has no data_batch_1.bin" in refusal(read_animal10n_binary, tmp_path)
    write_folder(tmp_path, {"data_batch_1.bin": animals(1)})
    assert "has no test_batch.bin" in refusal(read_animal10n_binary, tmp_path)
    cifar_folder = write_folder(tmp_path / "cifar-10-batches-bin", ten_binary())
    assert not is_animal10n_binary(cifar_folder)
