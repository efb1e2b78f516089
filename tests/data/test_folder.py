"""Image folders: layouts, and files that are not samples."""

import os
import unicodedata
from pathlib import Path

import pytest
import torch

from labelsieve.data import folder as image_folder
from labelsieve.data.folder import read_folder
from labelsieve.data.images import Frame, Unusable, common_frame
from labelsieve.data.load import decode_all
from tests.data.builders import dot, put, put_all, refusal


def test_one_folder_per_class(tmp_path):
    put_all(tmp_path, ["dog/b.PNG", "dog/a.jpg", "cat/2.jpeg", "cat/10.webp", "cat/more/deep/1.TIFF", "readme.txt"])
    put(tmp_path / "cat/10.webp", dot(7))
    train, test, valid, bad = read_folder(tmp_path)[:4]
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


def test_test_labels_use_the_classes_of_training(tmp_path):
    put_all(tmp_path, ["train/a/1.png", "train/b/1.png", "train/c/1.png", "test/c/1.png", "test/a/1.png"])
    assert read_folder(tmp_path).test.labels.tolist() == [0, 2]


def test_samples_are_sorted_by_path_and_keep_their_labels(tmp_path):
    put_all(tmp_path, ["a/1.png", "a b/1.png", "a!/1.png"])  # a slash sorts behind a blank: "a b/1" < "a/1"
    train = read_folder(tmp_path).train
    assert train.classes == ("a", "a b", "a!") == tuple(sorted(train.classes))
    assert list(train.names) == ["a b/1.png", "a!/1.png", "a/1.png"] and train.labels.tolist() == [1, 2, 0]


def test_order_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    put_all(tmp_path, [f"{name}/{number}.png" for name in "ab" for number in range(9)])
    put(tmp_path / "a/x.txt")
    forward, plain = read_folder(tmp_path), image_folder.visible_entries
    monkeypatch.setattr(
        image_folder, "visible_entries", lambda *at: sorted(plain(*at), key=lambda entry: entry.name, reverse=True)
    )
    backward = read_folder(tmp_path)
    assert forward.train.names == backward.train.names and forward.unusable == backward.unusable
    assert torch.equal(forward.train.labels, backward.train.labels)


def test_files_of_operating_systems_are_ignored(tmp_path):
    put_all(tmp_path, ["a/1.png", "b/1.png"])
    put_all(tmp_path, ["a/.DS_Store", "a/._1.png", "a/Thumbs.db", "b/desktop.ini", "a/.ipynb_checkpoints/1.png"])
    put_all(tmp_path, [".git/1.png", "__MACOSX/a/1.png", "a/__MACOSX/1.png", ".DS_Store"])
    train, _, _, bad = read_folder(tmp_path)[:4]
    assert list(train.names) == ["a/1.png", "b/1.png"] and train.classes == ("a", "b") and bad == []


def test_files_that_are_not_images_are_unusable(tmp_path):
    put_all(tmp_path, ["a/1.png", "b/1.png", "a/notes.TXT", "a/noise", "b/x/photo.heic", "b/drawing.svg", "stray.jpg"])
    bad = read_folder(tmp_path).unusable
    assert bad == [
        Unusable("a/noise", "not an image file (no suffix)"),
        Unusable("a/notes.TXT", "not an image file (suffix .txt)"),
        Unusable("b/drawing.svg", "not an image file (suffix .svg)"),
        Unusable("b/x/photo.heic", "not an image file (suffix .heic)"),
        Unusable("stray.jpg", "not inside a class folder"),
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
            ["no images of 'dog'", "'dog/a.txt': not an image file"],
        ),
        (["cat/1.png", "dog/.DS_Store", "eel/.x"], ["no images of 'dog', 'eel'"]),
        (["Cat/1.png", "cat/1.png"], ["'Cat' and 'cat'", "rename one"]),
        (["train/a/1.png", "train/b/1.png", "test/c/1.png"], ["'c'", "not in the training split", "a, b"]),
        (["train/cat/1.png", "train/b/1.png", "test/Cat/1.png"], ["'Cat'", "did you mean cat?"]),
        (["train/a/1.png", "train/b/1.png", "test/a/.x"], ["test has no images"]),
        (["train/a/1.png", "train/b/1.png", "Training/a/1.png"], ["'Training' and 'train'", "remove one"]),
        (["train/a/1.png", "train/b/1.png", "val/a/1.png", "valid/a/1.png"], ["'val' and 'valid'", "remove one"]),
        (["train/a/1.png", "test/a/1.png"], ["only one class folder, 'a'"]),
        (["train/1.png", "test/1.png"], ["no class folders"]),
        (["test/a/1.png", "val/a/1.png"], ["'test', 'val' but no folder train"]),
        (["train/a/1.png", "train/b/1.png", "bus/1.png"], ["'train' next to 'bus'", "rename"]),
    ],
)
def test_error_names_the_fault_of_a_folder(tmp_path, names, words):
    message = refusal(read_folder, put_all(tmp_path, names))
    assert all(word in message for word in words), message


def test_class_names_that_differ_in_unicode_form_are_an_error(tmp_path):
    put_all(tmp_path, [unicodedata.normalize(form, "café") + "/1.png" for form in ("NFC", "NFD")])
    assert "'cafe\\u0301' and 'caf\\xe9'" in refusal(read_folder, tmp_path)


def test_a_class_may_be_called_train(tmp_path):
    put_all(tmp_path, ["bus/1.png", "train/1.png", "train/steam/2.png", "tram/1.png"])
    train = read_folder(tmp_path).train
    assert train.classes == ("bus", "train", "tram") and train.labels.tolist() == [0, 1, 1, 2]


def test_folders_next_to_train_and_test_are_ignored(tmp_path):
    put_all(tmp_path, ["train/a/1.png", "train/b/1.png", "test/a/1.png", "extra/a/1.png", "labels.csv"])
    train, test, valid, bad = read_folder(tmp_path)[:4]
    assert (len(train), len(test), valid, bad) == (2, 1, None, [])


def test_root_must_be_a_folder(tmp_path):
    put(tmp_path / "file")
    assert "Not a directory" in refusal(read_folder, tmp_path / "file")
    assert "No such file" in refusal(read_folder, tmp_path / "gone")


def test_error_names_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    put_all(tmp_path, ["a/1.png", "b/1.png"])
    plain = os.scandir

    def refuse(path):
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert f"cannot list the folder {tmp_path / 'b'}: Permission denied" in refusal(read_folder, tmp_path)


def test_only_links_to_files_inside_are_followed(tmp_path):
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
    train, _, _, bad = read_folder(root)[:4]
    assert list(train.names) == ["a/1.png", "a/absolute.png", "a/inside.png", "a/sub/2.png", "b/1.png"]
    assert train.classes == ("a", "b")
    assert {name: reason.split(";")[0] for name, reason in bad} == {
        "a/gone.png": "a broken or cyclic link",
        "a/out.png": "a link to a place outside the folder",
        "a/self.png": "a broken or cyclic link",
        "a/up": "a link to a folder",
        "b/to_a": "a link to a folder",
        "c": "a link to a place outside the folder",
        "d": "a link to a folder",
        "e": "a broken or cyclic link",
    }


def test_root_may_be_a_link(tmp_path):
    put_all(tmp_path / "real", ["a/1.png", "b/1.png"])
    (tmp_path / "real/a/2.png").symlink_to("1.png")
    (tmp_path / "link").symlink_to("real")
    assert len(read_folder(tmp_path / "link").train) == 3


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("train", "same folder"),
        ("../outside", "is not a folder inside"),
        (".", "is not a folder inside"),
        ("nothing", "is not a folder inside"),
        ("test", "is not a folder inside"),
    ],
)
def test_linked_test_folder_must_be_inside_the_root(tmp_path, target, words):
    put_all(tmp_path / "outside", ["a/1.png"])
    root = put_all(tmp_path / "root", ["train/a/1.png", "train/b/1.png"])
    (root / "test").symlink_to(target)
    assert words in refusal(read_folder, root)


def test_pipes_and_devices_are_never_opened(tmp_path):
    put_all(tmp_path, ["a/1.png", "b/1.png"])
    os.mkfifo(tmp_path / "a/pipe.png")
    (tmp_path / "a/zero.png").symlink_to("/dev/zero")
    (tmp_path / "a/to_pipe.png").symlink_to("pipe.png")
    train, _, _, bad = read_folder(tmp_path)[:4]  # opening one of them would never return
    assert len(train) == 2
    assert [name for name, _ in bad] == ["a/pipe.png", "a/to_pipe.png", "a/zero.png"]
    assert bad[0].reason == "a pipe, socket or device" and "pipe" in bad[1].reason


def test_names_with_any_bytes_are_listed_and_read(tmp_path):
    names = ["new\nline.png", "\x1b[2J.png", "\N{CAT FACE}.png", "e\u0301.png", "\xe9.png", "x" * 251 + ".png", " .png"]
    put_all(tmp_path, [f"a/{name}" for name in names] + ["b/1.png"])
    put(tmp_path / os.fsdecode(b"b\xff/\xfe\xff.png"), dot(9))
    put(tmp_path / os.fsdecode(b"b\xff/\xfe\xff.t\xffxt"))
    train, _, _, bad = read_folder(tmp_path)[:4]
    assert len(train) == len(names) + 2 and train.classes == ("a", "b", os.fsdecode(b"b\xff"))
    images, unread = decode_all(train, Frame(2, 2, 1))
    assert unread == [] and images.images[-1].unique().tolist() == [9]
    assert bad == [
        Unusable(os.fsdecode(b"b\xff/\xfe\xff.t\xffxt"), os.fsdecode(b"not an image file (suffix .t\xffxt)"))
    ]


def test_files_are_listed_without_stat(tmp_path, monkeypatch):
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


def test_all_undecodable_images_are_reported_at_once(tmp_path):
    put_all(tmp_path, [f"a/{number:03}.png" for number in range(50)] + ["b/1.png"])
    put(tmp_path / "a/010.png", b"")
    put(tmp_path / "a/020.png", b"hello")
    (tmp_path / "a/030.png").unlink()
    (tmp_path / "a/030.png").mkdir()  # a folder by the name of an image
    train = read_folder(tmp_path).train
    (tmp_path / "a/040.png").unlink()  # it vanishes after it was listed
    kept, bad = decode_all(train, common_frame(train))
    assert bad == [
        Unusable("a/010.png", "the file is empty"),
        Unusable("a/020.png", "not an image of a known format"),
        Unusable("a/040.png", "cannot be read (No such file or directory)"),
    ]
    assert len(kept) == 47 and kept.labels.tolist() == [0] * 46 + [1]
