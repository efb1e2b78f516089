"""Folders of images: the published layouts, what must not become a sample, and how odd images are decoded."""

import io
import os
import struct
import time
import unicodedata
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from labelsieve.data import folder as image_folder
from labelsieve.data import published as animal10n
from labelsieve.data import published as clothing1m
from labelsieve.data.folder import read_folder
from labelsieve.data.images import Bad, BadImage, Files, Frame, Pictures, decode, frame_of, header
from labelsieve.data.load import in_memory
from labelsieve.data.published import (
    TINY_FRAME,
    is_animal10n,
    is_clothing1m,
    is_tiny_imagenet,
    labels_in,
    read_animal10n,
    read_clothing1m,
    read_tiny_imagenet,
    subsampled,
)
from labelsieve.errors import InputError


def encoded(pixels, kind="PNG", mode=None, **options):
    file = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(np.asarray(pixels, dtype=np.uint8))
    (image.convert(mode) if mode else image).save(file, kind, **options)
    return file.getvalue()


def dot(value=0):
    """A gray PNG of 2×2 pixels."""
    return encoded(np.full((2, 2), value))


def put(path, content=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dot() if content is None else content)
    return path


def put_all(root, names):
    for name in names:
        put(root / name)
    return root


def refusal(read, root):
    """The one line with which a folder is refused."""
    with pytest.raises(InputError) as caught:
        read(root)
    message = str(caught.value)
    assert str(root) in message and "\n" not in message and len(message) < 500
    return message


# one folder per class


def test_one_folder_per_class(tmp_path):
    put_all(tmp_path, ["dog/b.PNG", "dog/a.jpg", "cat/2.jpeg", "cat/10.webp", "cat/more/deep/1.TIFF", "readme.txt"])
    put(tmp_path / "cat/10.webp", dot(7))
    train, test, valid, bad = read_folder(tmp_path)
    assert list(train.names) == ["cat/10.webp", "cat/2.jpeg", "cat/more/deep/1.TIFF", "dog/a.jpg", "dog/b.PNG"]
    assert train.labels.tolist() == [0, 0, 0, 1, 1] and train.labels.dtype == torch.int64
    assert train.classes == ("cat", "dog") and train.clean is None
    assert (test, valid, bad) == (None, None, [])
    assert train.pixels(0, Frame(1, 1, 1)).tolist() == [[[7]]]


@pytest.mark.parametrize(
    ("names", "held_out"),
    [
        (("train", "test", "val"), ("test", "valid")),
        (("Training", "TESTING", "validation"), ("test", "valid")),
        (("TRAIN", "Valid"), ("valid",)),
        (("training", "testing"), ("test",)),
        (("train",), ()),
    ],
)
def test_folders_of_training_test_and_validation(tmp_path, names, held_out):
    for name in names:
        put_all(tmp_path / name, ["b/1.png", "a/1.png"] if name == names[0] else ["b/2.png"])
    listing = read_folder(tmp_path)
    assert list(listing.train.names) == [f"{names[0]}/a/1.png", f"{names[0]}/b/1.png"]
    assert listing.train.labels.tolist() == [0, 1]
    for kind, name in zip(held_out, names[1:], strict=True):  # a class that is missing there is fine
        split = getattr(listing, kind)
        assert list(split.names) == [f"{name}/b/2.png"] and split.labels.tolist() == [1]
        assert split.classes == ("a", "b")
    assert (listing.test is None) == ("test" not in held_out) and (listing.valid is None) == ("valid" not in held_out)


def test_the_order_of_the_test_folders_is_that_of_training(tmp_path):
    put_all(tmp_path, ["train/a/1.png", "train/b/1.png", "train/c/1.png", "test/c/1.png", "test/a/1.png"])
    assert read_folder(tmp_path).test.labels.tolist() == [0, 2]


def test_samples_are_sorted_by_path_and_keep_their_labels(tmp_path):
    put_all(tmp_path, ["a/1.png", "a b/1.png", "a!/1.png"])  # a slash sorts behind a blank: "a b/1" < "a/1"
    train = read_folder(tmp_path).train
    assert train.classes == ("a", "a b", "a!") == tuple(sorted(train.classes))
    assert list(train.names) == ["a b/1.png", "a!/1.png", "a/1.png"] and train.labels.tolist() == [1, 2, 0]


def test_the_order_does_not_come_from_the_file_system(tmp_path, monkeypatch):
    put_all(tmp_path, [f"{name}/{number}.png" for name in "ab" for number in range(9)])
    put(tmp_path / "a/x.txt")
    forward, plain = read_folder(tmp_path), image_folder.entries
    monkeypatch.setattr(
        image_folder, "entries", lambda *at: sorted(plain(*at), key=lambda entry: entry.name, reverse=True)
    )
    backward = read_folder(tmp_path)
    assert forward.train.names == backward.train.names and forward.bad == backward.bad
    assert torch.equal(forward.train.labels, backward.train.labels)


def test_what_systems_leave_behind_is_no_sample(tmp_path):
    put_all(tmp_path, ["a/1.png", "b/1.png"])
    put_all(tmp_path, ["a/.DS_Store", "a/._1.png", "a/Thumbs.db", "b/desktop.ini", "a/.ipynb_checkpoints/1.png"])
    put_all(tmp_path, [".git/1.png", "__MACOSX/a/1.png", "a/__MACOSX/1.png", ".DS_Store"])
    train, _, _, bad = read_folder(tmp_path)
    assert list(train.names) == ["a/1.png", "b/1.png"] and train.classes == ("a", "b") and bad == []


def test_files_that_are_no_images_are_named(tmp_path):
    put_all(tmp_path, ["a/1.png", "b/1.png", "a/notes.TXT", "a/noise", "b/x/photo.heic", "b/drawing.svg", "stray.jpg"])
    bad = read_folder(tmp_path).bad
    assert bad == [
        Bad("a/noise", "it is no image file (no suffix)"),
        Bad("a/notes.TXT", "it is no image file (suffix .txt)"),
        Bad("b/drawing.svg", "it is no image file (suffix .svg)"),
        Bad("b/x/photo.heic", "it is no image file (suffix .heic)"),
        Bad("stray.jpg", "it lies in no class folder"),
    ]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], ["no class folders", "at least two"]),
        (["1.png", "2.png"], ["no class folders"]),
        (["cat/1.png"], ["only one class folder, 'cat'"]),
        (["cat/1.png", ".git/1.png"], ["only one class folder, 'cat'"]),
        (
            ["cat/1.png", "cat/x.txt", *(f"dog/{name}.txt" for name in "cab")],
            ["no images of 'dog'", "'dog/a.txt': it is no image file"],
        ),
        (["cat/1.png", "dog/.DS_Store", "eel/.x"], ["no images of 'dog', 'eel'"]),
        (["Cat/1.png", "cat/1.png"], ["'Cat' and 'cat'", "rename one"]),
        (["train/a/1.png", "train/b/1.png", "test/c/1.png"], ["'c'", "unknown in training", "a, b"]),
        (["train/cat/1.png", "train/b/1.png", "test/Cat/1.png"], ["'Cat'", "did you mean cat?"]),
        (["train/a/1.png", "train/b/1.png", "test/a/.x"], ["test has no images"]),
        (["train/a/1.png", "train/b/1.png", "Training/a/1.png"], ["'Training' and 'train'", "keep one"]),
        (["train/a/1.png", "train/b/1.png", "val/a/1.png", "valid/a/1.png"], ["'val' and 'valid'", "keep one"]),
        (["train/a/1.png", "test/a/1.png"], ["only one class folder, 'a'"]),
        (["train/1.png", "test/1.png"], ["no class folders"]),
        (["test/a/1.png", "val/a/1.png"], ["'test', 'val' but no folder train"]),
        (["train/a/1.png", "train/b/1.png", "bus/1.png"], ["'train' beside 'bus'", "rename"]),
    ],
)
def test_folders_that_cannot_be_used_say_why(tmp_path, names, words):
    message = refusal(read_folder, put_all(tmp_path, names))
    assert all(word in message for word in words), message


def test_twins_by_unicode_are_refused_so_that_one_sees_the_difference(tmp_path):
    put_all(tmp_path, [unicodedata.normalize(form, "café") + "/1.png" for form in ("NFC", "NFD")])
    assert "'cafe\\u0301' and 'caf\\xe9'" in refusal(read_folder, tmp_path)


def test_a_class_may_be_called_train(tmp_path):
    put_all(tmp_path, ["bus/1.png", "train/1.png", "train/steam/2.png", "tram/1.png"])
    train = read_folder(tmp_path).train
    assert train.classes == ("bus", "train", "tram") and train.labels.tolist() == [0, 1, 1, 2]


def test_folders_beside_train_and_test_are_not_read(tmp_path):
    put_all(tmp_path, ["train/a/1.png", "train/b/1.png", "test/a/1.png", "extra/a/1.png", "labels.csv"])
    train, test, valid, bad = read_folder(tmp_path)
    assert (len(train), len(test), valid, bad) == (2, 1, None, [])


def test_a_root_that_is_no_folder(tmp_path):
    put(tmp_path / "file")
    assert "Not a directory" in refusal(read_folder, tmp_path / "file")
    assert "No such file" in refusal(read_folder, tmp_path / "gone")


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    put_all(tmp_path, ["a/1.png", "b/1.png"])
    plain = os.scandir

    def refuse(path):
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert f"cannot list the folder {tmp_path / 'b'}: Permission denied" in refusal(read_folder, tmp_path)


def test_links_are_followed_to_files_inside_alone(tmp_path):
    root = put_all(tmp_path / "root", ["a/1.png", "b/1.png", "a/sub/2.png"])
    outside = put(tmp_path / "outside/secret.png")
    (root / "a/inside.png").symlink_to("../b/1.png")
    (root / "a/absolute.png").symlink_to(root / "b/1.png")
    (root / "a/out.png").symlink_to(outside)
    (root / "a/up").symlink_to("..")
    (root / "a/self.png").symlink_to("self.png")
    (root / "a/gone.png").symlink_to("nothing.png")
    (root / "b/to_a").symlink_to("../a")
    (root / "c").symlink_to(outside.parent)
    (root / "d").symlink_to("a")
    (root / "e").symlink_to("e")
    train, _, _, bad = read_folder(root)
    assert list(train.names) == ["a/1.png", "a/absolute.png", "a/inside.png", "a/sub/2.png", "b/1.png"]
    assert train.classes == ("a", "b")
    assert {name: reason.split(";")[0] for name, reason in bad} == {
        "a/gone.png": "it is a link that leads nowhere or in a circle",
        "a/out.png": "it is a link that leads out of the folder",
        "a/self.png": "it is a link that leads nowhere or in a circle",
        "a/up": "it is a link to a folder",
        "b/to_a": "it is a link to a folder",
        "c": "it is a link that leads out of the folder",
        "d": "it is a link to a folder",
        "e": "it is a link that leads nowhere or in a circle",
    }


def test_the_root_itself_may_be_a_link(tmp_path):
    put_all(tmp_path / "real", ["a/1.png", "b/1.png"])
    (tmp_path / "real/a/2.png").symlink_to("1.png")
    (tmp_path / "link").symlink_to("real")
    assert len(read_folder(tmp_path / "link").train) == 3


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("train", "same folder"),
        ("../outside", "does not lead to a folder inside"),
        (".", "does not lead to a folder inside"),
        ("nothing", "does not lead to a folder inside"),
        ("test", "does not lead to a folder inside"),
    ],
)
def test_a_test_folder_that_is_a_link(tmp_path, target, words):
    put_all(tmp_path / "outside", ["a/1.png"])
    root = put_all(tmp_path / "root", ["train/a/1.png", "train/b/1.png"])
    (root / "test").symlink_to(target)
    assert words in refusal(read_folder, root)


def test_pipes_and_devices_are_never_opened(tmp_path):
    put_all(tmp_path, ["a/1.png", "b/1.png"])
    os.mkfifo(tmp_path / "a/pipe.png")
    (tmp_path / "a/zero.png").symlink_to("/dev/zero")
    (tmp_path / "a/to_pipe.png").symlink_to("pipe.png")
    start = time.monotonic()
    train, _, _, bad = read_folder(tmp_path)
    assert time.monotonic() - start < 5 and len(train) == 2
    assert [name for name, _ in bad] == ["a/pipe.png", "a/to_pipe.png", "a/zero.png"]
    assert bad[0].reason == "it is a pipe, a socket or a device" and "pipe" in bad[1].reason


def test_names_with_any_bytes_are_listed_and_read(tmp_path):
    names = ["new\nline.png", "\x1b[2J.png", "\N{CAT FACE}.png", "e\u0301.png", "\xe9.png", "x" * 251 + ".png", " .png"]
    put_all(tmp_path, [f"a/{name}" for name in names] + ["b/1.png"])
    put(tmp_path / os.fsdecode(b"b\xff/\xfe\xff.png"), dot(9))
    put(tmp_path / os.fsdecode(b"b\xff/\xfe\xff.t\xffxt"))
    train, _, _, bad = read_folder(tmp_path)
    assert len(train) == len(names) + 2 and train.classes == ("a", "b", os.fsdecode(b"b\xff"))
    images, unread = in_memory(train, Frame(2, 2, 1))
    assert unread == [] and images.images[-1].unique().tolist() == [9]
    assert bad == [Bad(os.fsdecode(b"b\xff/\xfe\xff.t\xffxt"), os.fsdecode(b"it is no image file (suffix .t\xffxt)"))]


def test_files_are_listed_without_a_look_at_each(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(1000):
            (tmp_path / name / f"{number}.jpg").touch()
    looked: list[Path] = []
    for call in ("stat", "lstat"):
        plain = getattr(os, call)
        monkeypatch.setattr(os, call, lambda path, *a, _plain=plain, **k: looked.append(path) or _plain(path, *a, **k))
    assert len(read_folder(tmp_path).train) == 2000
    assert len(looked) < 200


def test_bad_images_are_all_named_in_one_pass(tmp_path):
    put_all(tmp_path, [f"a/{number:03}.png" for number in range(50)] + ["b/1.png"])
    put(tmp_path / "a/010.png", b"")
    put(tmp_path / "a/020.png", b"hello")
    (tmp_path / "a/030.png").unlink()
    (tmp_path / "a/030.png").mkdir()  # a folder by the name of an image
    train = read_folder(tmp_path).train
    (tmp_path / "a/040.png").unlink()  # it vanishes after it was listed
    kept, bad = in_memory(train, frame_of(train))
    assert bad == [
        Bad("a/010.png", "the file is empty"),
        Bad("a/020.png", "it is no image of a known format"),
        Bad("a/040.png", "it cannot be read (No such file or directory)"),
    ]
    assert len(kept) == 47 and kept.labels.tolist() == [0] * 46 + [1]


# Tiny ImageNet

WNIDS = ("n02124075", "n01443537", "n01629819")


def tiny_imagenet(root, words=True):
    """The published layout with three classes, two images each and four validation images."""
    for label, wnid in enumerate(WNIDS):
        for number in range(2):
            mode = "L" if (label, number) == (1, 0) else "RGB"
            image = Image.new("RGB", (64, 64), (60 * label, 0, 0)).convert(mode)
            put(root / f"train/{wnid}/images/{wnid}_{number}.JPEG", encoded(image, "JPEG"))
        put(root / f"train/{wnid}/{wnid}_boxes.txt", b"x\t0\t0\t63\t63\n")
    lines = [f"val_{number}.JPEG\t{WNIDS[number % 3]}\t0\t32\t44\t62\n" for number in range(4)]
    put_all(root, [f"val/images/val_{number}.JPEG" for number in range(4)] + ["test/images/test_0.JPEG"])
    put(root / "val/val_annotations.txt", "".join(lines).encode())
    put(root / "wnids.txt", "\n".join(WNIDS).encode())
    if words:
        text = "n01443537\tgoldfish, Carassius auratus\nn01629819\tEuropean fire salamander, Salamandra\nn09\tx\n"
        put(root / "words.txt", text.encode())
    return root


def test_tiny_imagenet_as_published(tmp_path):
    root = tiny_imagenet(tmp_path)
    assert is_tiny_imagenet(root)
    train, test, valid, bad = read_tiny_imagenet(root)
    assert train.classes == ("n01443537 goldfish", "n01629819 European fire salamander", "n02124075")
    assert train.names[0] == "train/n01443537/images/n01443537_0.JPEG" and train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert list(test.names) == [f"val/images/val_{number}.JPEG" for number in range(4)]
    assert test.labels.tolist() == [2, 0, 1, 2]  # the order of wnids.txt does not matter
    assert (valid, bad) == (None, [])
    images, unread = in_memory(train, TINY_FRAME)
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
    assert listing.bad == [
        Bad("val/images/extra.JPEG", "it has no line in val/val_annotations.txt"),
        Bad("val/images/val_1.txt", "it is no image file (suffix .txt)"),
        Bad("val/images/val_2.JPEG", "it is in val/val_annotations.txt but not there"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("val/val_annotations.txt", b"val_0.JPEG n02124075\n", ["val_annotations.txt:1", "a tab"]),
        ("val/val_annotations.txt", b"\nval_0.JPEG\tn99999999\t0\n", ["val_annotations.txt:2", "'n99999999'"]),
        (
            "val/val_annotations.txt",
            b"val_0.JPEG\tn02124075\nval_0.JPEG\tn01443537\n",
            ["val_annotations.txt:2", "further up"],
        ),
        ("val/val_annotations.txt", b"gone.JPEG\tn02124075\n", ["none of the images"]),
        ("val/val_annotations.txt", b"\xff\xfe\x00\n", ["val_annotations.txt:1"]),
        ("wnids.txt", b"n02124075\n../../etc\n", ["wnids.txt:2", "'../../etc'"]),
        ("wnids.txt", b"", ["names 0 classes"]),
        ("wnids.txt", b"n02124075\nn00000001\n", ["'train/n00000001/images' missing", "it should have wnids.txt"]),
    ],
)
def test_tiny_imagenet_that_is_damaged(tmp_path, name, content, words):
    put(tiny_imagenet(tmp_path) / name, content)
    message = refusal(read_tiny_imagenet, tmp_path)
    assert all(word in message for word in words), message


def test_tiny_imagenet_says_all_that_is_missing(tmp_path):
    put(tmp_path / "wnids.txt")
    message = refusal(read_tiny_imagenet, tmp_path)
    assert "'train', 'val/images', 'val/val_annotations.txt' missing; it should have wnids.txt" in message
    assert not is_tiny_imagenet(tmp_path)


def test_a_class_without_images_in_tiny_imagenet(tmp_path):
    root = tiny_imagenet(tmp_path)
    for file in (root / "train/n01629819/images").iterdir():
        file.unlink()
    assert "n01629819/images has no images" in refusal(read_tiny_imagenet, root)


def test_every_second_pixel_is_kept():
    images = torch.arange(64 * 64).view(1, 1, 64, 64)
    small = subsampled(images)
    assert small.shape == (1, 1, 32, 32)
    assert small[0, 0, 3, 5] == 6 * 64 + 10 and small[0, 0, 31, 31] == 62 * 64 + 62


# ANIMAL-10N


def test_animal10n_as_published(tmp_path):
    put_all(tmp_path, ["training/9_2.jpg", "training/0_10.jpg", "training/3_17.jpg", "testing/3_0.jpg"])
    assert is_animal10n(tmp_path)
    train, test, valid, bad = read_animal10n(tmp_path)
    assert list(train.names) == ["training/0_10.jpg", "training/3_17.jpg", "training/9_2.jpg"]
    assert train.labels.tolist() == [0, 3, 9] and test.labels.tolist() == [3] and (valid, bad) == (None, [])
    assert [train.classes[label] for label in train.labels.tolist()] == ["cat", "coyote", "guinea pig"]
    assert len(animal10n.CLASSES) == 10 and train.classes == test.classes == animal10n.CLASSES


def test_animal10n_names_without_a_label_are_bad(tmp_path):
    good = ["training/1_1.jpg", "testing/1_1_2.jpg"]
    odd = ["10_3.jpg", "x_1.jpg", "_1.jpg", "3-1.jpg", "-1_2.jpg", "٣_1.jpg"]
    put_all(tmp_path, [*good, *(f"training/{name}" for name in odd), "testing/notes.txt"])
    train, test, _, bad = read_animal10n(tmp_path)
    assert (len(train), len(test)) == (1, 1)
    assert [name for name, _ in bad] == sorted([*(f"training/{name}" for name in odd), "testing/notes.txt"])
    assert "0 to 9 and an underscore" in bad[-1].reason


def test_what_is_not_animal10n(tmp_path):
    assert not is_animal10n(tmp_path)
    assert "'training', 'testing' missing; it should have the folders" in refusal(read_animal10n, tmp_path)
    put_all(tmp_path, ["training/0_cat/1.jpg", "training/1_dog/1.jpg", "testing/0_cat/1.jpg"])
    assert not is_animal10n(tmp_path) and len(read_folder(tmp_path).train) == 2
    assert "no images named by label" in refusal(read_animal10n, tmp_path)


# Clothing1M

NOISY = {"images/0/00/a.jpg": 3, "images/1/11/b.jpg": 13, "images/2/22/c.jpg": 0}
CLEAN = {"images/0/00/a.jpg": 4, "images/3/33/d.jpg": 1, "images/4/44/e.jpg": 12}


def clothing(root, below="", **changed):
    """The published lists; one of them may be changed."""
    texts = {
        "noisy_label_kv": "".join(f"{key} {label}\n" for key, label in NOISY.items()),
        "clean_label_kv": "".join(f"{key} {label}\n" for key, label in CLEAN.items()),
        "noisy_train_key_list": "images/2/22/c.jpg\nimages/0/00/a.jpg\nimages/1/11/b.jpg\n",
        "clean_train_key_list": "images/0/00/a.jpg\n",
        "clean_val_key_list": "images/3/33/d.jpg\n",
        "clean_test_key_list": "images/4/44/e.jpg\n",
    }
    for name, text in (texts | changed).items():
        if text is not None:
            put(root / below / f"{name}.txt", text.encode("utf-8", "surrogateescape"))
    put(root / "images/2/22/c.jpg", dot(5))
    return root


@pytest.mark.parametrize("below", ["", "annotations"])
def test_clothing1m_as_published(tmp_path, below):
    root = clothing(tmp_path, below)
    assert is_clothing1m(root)
    train, test, valid, bad = read_clothing1m(root)
    assert list(train.names) == ["images/2/22/c.jpg", "images/0/00/a.jpg", "images/1/11/b.jpg"]
    assert train.labels.tolist() == [0, 3, 13] and train.clean is None  # its noisy label, not its clean one
    assert (valid.labels.tolist(), test.labels.tolist(), bad) == ([1], [12], [])
    assert [train.classes[label] for label in (0, 3, 8, 13)] == ["T-Shirt", "Chiffon", "Down Coat", "Underwear"]
    assert len(clothing1m.CLASSES) == 14
    assert train.pixels(0, Frame(1, 1, 1)).item() == 5
    with pytest.raises(BadImage, match="No such file"):
        train.pixels(1, Frame(1, 1, 1))


def test_clothing1m_with_line_ends_of_windows(tmp_path):
    text = "images/0/00/a.jpg 3\r\nimages/1/11/b.jpg 13\r\nimages/2/22/c.jpg 0\r\n\r\n"
    keys = "\ufeffimages/0/00/a.jpg\r\n"
    train = read_clothing1m(clothing(tmp_path, noisy_label_kv=text, noisy_train_key_list=keys)).train
    assert list(train.names) == ["images/0/00/a.jpg"] and train.labels.tolist() == [3]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"noisy_label_kv": "images/x.jpg 14\n"}, ["noisy_label_kv.txt:1", "0 to 13, got '14'"]),
        ({"noisy_label_kv": "images/x.jpg 1\nimages/y.jpg -1\n"}, ["noisy_label_kv.txt:2", "got '-1'"]),
        ({"noisy_label_kv": "images/x.jpg 1.0\n"}, ["got '1.0'"]),
        ({"noisy_label_kv": "images/x.jpg ٣\n"}, ["noisy_label_kv.txt:1"]),
        ({"clean_label_kv": "images/x.jpg\n"}, ["clean_label_kv.txt:1", "got 'images/x.jpg'"]),
        ({"clean_label_kv": "images/x.jpg 1 2\n"}, ["clean_label_kv.txt:1", "a path, a space and a label"]),
        ({"clean_label_kv": "images/x.jpg 1\nimages/x.jpg 2\n"}, ["clean_label_kv.txt:2", "further up"]),
        ({"clean_label_kv": "\udcff\udcfe"}, ["clean_label_kv.txt:1"]),
        (
            {"noisy_train_key_list": "\nimages/z.jpg\n"},
            ["noisy_train_key_list.txt:2", "no label in noisy_label_kv.txt"],
        ),
        ({"noisy_train_key_list": "images/3/33/d.jpg\n"}, ["no label in noisy_label_kv.txt"]),
        ({"clean_val_key_list": "images/z.jpg\n"}, ["clean_val_key_list.txt:1", "no label in clean_label_kv.txt"]),
        ({"clean_test_key_list": ""}, ["clean_test_key_list.txt names no images"]),
        ({"clean_test_key_list": None, "clean_label_kv": None}, ["'clean_label_kv.txt', 'clean_test_key_list.txt'"]),
    ],
)
def test_clothing1m_that_is_damaged_is_refused_by_line(tmp_path, changed, words):
    message = refusal(read_clothing1m, clothing(tmp_path, **changed))
    assert all(word in message for word in words), message


@pytest.mark.parametrize("key", ["/etc/passwd", "images/../../x.jpg", "../x.jpg", "images/a\0.jpg", "C:/x.jpg"])
def test_clothing1m_reads_below_images_alone(tmp_path, key):
    root = clothing(tmp_path, noisy_label_kv=f"{key} 1\n", noisy_train_key_list=f"{key}\n")
    assert "noisy_train_key_list.txt:1" in (message := refusal(read_clothing1m, root)) and "below images" in message


def test_what_is_not_clothing1m(tmp_path):
    assert not is_clothing1m(tmp_path)
    assert "'images', 'noisy_label_kv.txt', " in refusal(read_clothing1m, tmp_path)


def test_many_lines_are_read_in_no_time(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("".join(f"images/{k % 10}/{k % 97:02}/{k},{k}.jpg {k % 14}\n" for k in range(200_000)))
    start = time.process_time()
    assert len(labels_in(path)) == 200_000
    assert time.process_time() - start < 3  # a million in 15 s on a slow machine, in 1 s on others


# odd images

RAMP = np.add.outer(np.arange(40) * 3, np.arange(60) * 2).astype(np.uint8)  # (40, 60)
COLOUR = np.stack([RAMP, 255 - RAMP, RAMP // 2], axis=-1)
JPEG = encoded(np.random.default_rng(0).integers(0, 256, (40, 60, 3)), "JPEG", quality=95)
WHOLE = Frame(40, 60, 3)


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, depth, colour, rows):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PROGRAM = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n%%EOF\n"  # EPS, which Ghostscript would run
SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'
BROKEN_CHECKSUM = (lambda whole: whole[:-17] + bytes([whole[-17] ^ 0xFF]) + whole[-16:])(encoded(COLOUR))
FLOATS = encoded(Image.fromarray(RAMP.astype(np.float32)), "TIFF")
WHOLE_NUMBERS = encoded(Image.fromarray(RAMP.astype(np.int32)), "TIFF")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b"not an image\n", "no image of a known format", id="text"),
        pytest.param(SVG, "no image of a known format", id="svg"),
        pytest.param(b"\0\0\0\x18ftypheic" + bytes(40), "no image of a known format", id="heic"),
        pytest.param(PROGRAM, "no image of a known format", id="eps"),
        pytest.param(JPEG[: len(JPEG) // 10], "cannot be decoded|known format", id="cut at 10 %"),
        pytest.param(JPEG[: len(JPEG) // 2], "cannot be decoded", id="cut at 50 %"),
        pytest.param(JPEG[: len(JPEG) * 9 // 10], "cannot be decoded", id="cut at 90 %"),
        pytest.param(JPEG[: len(JPEG) * 99 // 100], "cannot be decoded", id="cut at 99 %"),
        pytest.param(BROKEN_CHECKSUM, "cannot be decoded", id="bad checksum"),
        pytest.param(encoded(COLOUR)[:60], "cannot be decoded", id="cut PNG"),
        pytest.param(FLOATS, "32-bit numbers .mode F.; save it with 8 bits", id="float TIFF"),
        pytest.param(WHOLE_NUMBERS, "32-bit numbers .mode I.", id="int32 TIFF"),
        pytest.param(png(11_000, 11_000, 8, 2, b"\0" * 100), "too many pixels", id="bomb of 121 million"),
        pytest.param(png(14_000, 14_000, 8, 2, b"\0" * 100), "too many pixels", id="bomb of 196 million"),
    ],
)
def test_images_that_cannot_be_decoded_say_why(content, reason):
    start = time.monotonic()
    with pytest.raises(BadImage, match=reason) as caught:
        decode(content, WHOLE)
    assert time.monotonic() - start < 2 and "\n" not in str(caught.value)


def test_the_format_is_told_by_the_content_not_by_the_name(tmp_path):
    put_all(tmp_path, ["a/1.jpg", "b/1.jpg"])
    put(tmp_path / "a/1.jpg", encoded(COLOUR))
    assert (read_folder(tmp_path).train.pixels(0, WHOLE) == COLOUR).all()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF"])
def test_formats_without_loss_come_out_as_they_are(kind):
    assert (decode(encoded(COLOUR, kind), WHOLE) == COLOUR).all()
    assert (decode(encoded(RAMP, kind), Frame(40, 60, 1))[..., 0] == RAMP).all()


def test_a_lossless_webp(tmp_path):
    assert (decode(encoded(COLOUR, "WEBP", lossless=True), WHOLE) == COLOUR).all()


def test_sixteen_bits_keep_the_upper_eight():
    deep = (RAMP.astype(np.uint16) << 8) + 99
    gray = png(60, 40, 16, 0, b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep))
    assert (decode(gray, Frame(40, 60, 1))[..., 0] == RAMP).all() and header(gray).gray
    assert (decode(gray, WHOLE) == RAMP[..., None]).all()
    colour = (COLOUR.astype(np.uint16) << 8) + 99
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in colour)
    assert (decode(png(60, 40, 16, 2, rows), WHOLE) == COLOUR).all()
    assert (decode(encoded(Image.fromarray(deep), "TIFF"), WHOLE) == RAMP[..., None]).all()


def test_cmyk_becomes_rgb():
    plain = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # full magenta and yellow are red
    red = decode(encoded(plain, "JPEG", quality=100), Frame(8, 8, 3))[4, 4]
    assert red[0] > 250 and red[1] < 5 and red[2] < 5


def test_transparency_is_laid_on_white():
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 0, 0])
    palette.putdata([0, 1])
    content = encoded(palette, "PNG", transparency=1)
    assert decode(content, Frame(1, 2, 3)).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    by_bytes = encoded(palette, "PNG", transparency=bytes([255, 0]))
    assert decode(by_bytes, Frame(1, 2, 3)).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    gray = encoded(Image.merge("LA", (Image.new("L", (1, 1), 100), Image.new("L", (1, 1), 0))))
    assert decode(gray, Frame(1, 1, 1)).item() == 255 and header(gray).gray
    half = encoded(Image.new("RGBA", (1, 1), (0, 0, 0, 51)))  # a fifth of black on white
    assert decode(half, Frame(1, 1, 3)).tolist() == [[[204, 204, 204]]]
    solid = encoded(Image.new("LA", (1, 1), (100, 255)))
    assert decode(solid, Frame(1, 1, 1)).item() == 100


def test_one_bit_is_black_and_white():
    bits = encoded(Image.fromarray(RAMP > 100))
    assert (decode(bits, Frame(40, 60, 1))[..., 0] == np.where(RAMP > 100, 255, 0)).all() and header(bits).gray


@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_of_several_frames_the_first_is_taken(kind):
    first, second = Image.new("RGB", (4, 4), (255, 0, 0)), Image.new("RGB", (4, 4), (0, 255, 0))
    content = encoded(first, kind, save_all=True, append_images=[second, second])
    assert (decode(content, Frame(4, 4, 3)) == (255, 0, 0)).all()


@pytest.mark.parametrize(("turned", "upright"), [(3, -2), (6, -1), (8, 1)])
def test_photos_come_out_upright(turned, upright):
    exif = Image.Exif()
    exif[0x0112] = turned
    content = encoded(COLOUR, "PNG", exif=exif)
    expected = np.rot90(COLOUR, upright)
    found = header(content)
    assert (found.height, found.width) == expected.shape[:2]
    assert (decode(content, Frame(found.height, found.width, 3)) == expected).all()
    photo = encoded(COLOUR, "JPEG", quality=100, subsampling=0, exif=exif)
    assert abs(decode(photo, Frame(found.height, found.width, 3)).astype(int) - expected).mean() < 2


def test_damaged_exif_data_does_no_harm():
    for exif in (b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff"):
        content = encoded(COLOUR, "JPEG", exif=exif)
        assert decode(content, WHOLE).shape == (40, 60, 3) and header(content).width == 60


def test_the_thinnest_and_the_smallest_image():
    thin = encoded(np.repeat(np.array([[0], [200]], dtype=np.uint8), 10_000, axis=0))  # 20,000 rows
    assert decode(thin, Frame(2, 2, 1))[..., 0].tolist() == pytest.approx(np.array([[0, 0], [200, 200]]), abs=40)
    wide = encoded(np.full((1, 20_000), 50))
    assert (decode(wide, Frame(8, 8, 1)) == 50).all()
    assert (decode(dot(9), Frame(3, 5, 3)) == 9).all() and decode(encoded([[7]]), Frame(1, 1, 1)).item() == 7


def test_a_set_is_gray_only_if_all_of_it_is(tmp_path):
    put_all(tmp_path, ["a/1.png", "b/1.png"])
    assert frame_of(read_folder(tmp_path).train) == Frame(2, 2, 1)
    put(tmp_path / "b/1.png", encoded(COLOUR[:2, :2]))
    assert frame_of(read_folder(tmp_path).train) == Frame(2, 2, 3)


def test_a_set_without_images_has_no_frame(tmp_path):
    with pytest.raises(InputError, match="no images"):
        frame_of(Pictures([], Files(tmp_path, []), torch.zeros(0, dtype=torch.int64), ("a", "b")))


def test_the_frame_comes_from_a_thousand_headers_at_most():
    looked: list[int] = []
    read = lambda index: looked.append(index) or dot()  # noqa: E731
    names = [str(index) for index in range(1999)]
    frame_of(Pictures(names, read, torch.zeros(1999, dtype=torch.int64), ("a", "b")))
    assert looked == list(range(0, 1999, 2))


def test_random_damage_is_a_bad_image_or_an_image():
    random = np.random.default_rng(1)
    exif = Image.Exif()
    exif[0x0112] = 6
    first = Image.fromarray(COLOUR)
    kinds = [
        encoded(COLOUR, "JPEG", exif=exif),
        encoded(COLOUR, "PNG", exif=exif),
        encoded(first, "GIF", save_all=True, append_images=[first.rotate(90)]),
        encoded(COLOUR, "TIFF", compression="tiff_lzw"),
        encoded(COLOUR, "WEBP"),
        encoded(COLOUR, "BMP"),
        encoded(COLOUR, "PPM"),
    ]
    for whole in kinds:
        for _ in range(60):
            damaged = bytearray(whole)
            for place in random.integers(0, min(len(damaged), 400), 3):
                damaged[place] = random.integers(0, 256)
            try:
                assert decode(bytes(damaged), WHOLE).shape == (40, 60, 3)
                header(bytes(damaged))
            except BadImage as error:
                assert str(error) and "\n" not in str(error)
