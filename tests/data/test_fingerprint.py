"""source_fingerprint: raw data is identified without decoding an image."""

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelsieve.data import ReadOptions, load, source_fingerprint
from labelsieve.data.folder import labelled_files
from labelsieve.data.sets import Listing
from labelsieve.errors import InputError


def fingerprint(path: Path, **reading: str) -> str | None:
    return source_fingerprint(str(path), ReadOptions(**reading))


def write_image(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(path)


@pytest.fixture(autouse=True)
def no_decoding(monkeypatch):
    def fail(*_):
        raise AssertionError("an image was decoded")

    for name in ("decode", "fast_decode", "read_header"):
        monkeypatch.setattr(f"labelsieve.data.images.{name}", fail)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png", "dog/deep/2.png")):
        write_image(tmp_path / "photos" / name, number)
    return tmp_path / "photos"


@pytest.fixture
def table(photos: Path) -> Path:
    path = photos.parent / "table.csv"
    rows = [(f"photos/{name}", name[:3]) for name in ("cat/1.png", "cat/2.png", "dog/1.png")]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("image", "label"), *rows])
    return path


def remove(photos: Path) -> None:
    (photos / "cat/2.png").unlink()


def rename(photos: Path) -> None:
    (photos / "cat/2.png").rename(photos / "cat/3.png")


def move(photos: Path) -> None:
    (photos / "cat/2.png").rename(photos / "dog/2.png")


def append(photos: Path) -> None:
    with (photos / "cat/2.png").open("ab") as file:
        file.write(b" ")


def rewrite_in_place(photos: Path) -> None:
    path = photos / "cat/2.png"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"?")
    os.utime(path, ns=(0, 1))  # a coarse clock may give the time that it had


def touch(photos: Path) -> None:
    os.utime(photos / "cat/2.png", ns=(0, 1))


def test_an_untouched_folder_keeps_its_fingerprint(photos):
    before = fingerprint(photos)
    assert before is not None and before == fingerprint(photos)
    shutil.copytree(photos, photos.parent / "copy", copy_function=shutil.copy2)
    assert before == fingerprint(photos.parent / "copy")


@pytest.mark.parametrize("change", [remove, rename, move, append, rewrite_in_place, touch])
def test_a_changed_file_changes_the_fingerprint_of_a_folder(photos, change):
    before = fingerprint(photos)
    change(photos)
    assert fingerprint(photos) not in (before, None)


def test_an_added_image_or_class_changes_the_fingerprint_and_a_hidden_file_does_not(photos):
    before = fingerprint(photos)
    (photos / "cat/.DS_Store").touch()
    assert fingerprint(photos) == before
    write_image(photos / "cat/3.png")
    image_added = fingerprint(photos)
    (photos / "owl").mkdir()
    assert len({before, image_added, fingerprint(photos)}) == 3


@pytest.mark.parametrize("change", [remove, append, touch])
def test_a_changed_image_changes_the_fingerprint_of_a_table(photos, table, change):
    before = fingerprint(table)
    assert before is not None and before == fingerprint(table)
    change(photos)
    assert fingerprint(table) not in (before, None)


def test_a_label_and_the_choice_of_columns_change_the_fingerprint_of_a_table(table):
    before = fingerprint(table)
    assert fingerprint(table, label="label") != before
    stat = table.stat()
    table.write_bytes(table.read_bytes().replace(b"2.png,cat", b"2.png,dog"))
    os.utime(table, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert table.stat().st_size == stat.st_size and fingerprint(table) != before


def test_a_changed_image_that_is_linked_to_changes_the_fingerprint(photos):
    (photos / "dog/link.png").symlink_to(photos / "cat/1.png")
    before = fingerprint(photos)
    (photos / "dog/link.png").unlink()
    (photos / "dog/link.png").symlink_to(photos / "cat/2.png")
    assert fingerprint(photos) not in (before, None)


def test_a_file_that_cannot_be_examined_gives_none(photos):
    (photos / "dog/link.png").symlink_to(photos / "nowhere.png")
    assert fingerprint(photos) is None


def test_arrays_are_identified_by_their_file(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, images=np.zeros((4, 2, 2), np.uint8), labels=np.array([0, 1, 0, 1]))
    before = fingerprint(path)
    assert before is not None and before == fingerprint(path)
    os.utime(path, ns=(0, 1))
    assert fingerprint(path) not in (before, None)


def test_embedded_data_has_a_constant_fingerprint():
    assert (
        source_fingerprint("fashion", ReadOptions()) == source_fingerprint("fashion", ReadOptions(size=20)) is not None
    )


def test_data_that_is_not_there_raises_as_when_it_is_loaded(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        fingerprint(tmp_path / "nothing.csv")


def parquet(path: Path, images: list[object], labels: list[int]) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"image": images, "label": labels}), path)
    return path


def test_parquet_with_embedded_images_is_identified_by_its_file(photos):
    content = [(photos / name).read_bytes() for name in ("cat/1.png", "dog/1.png")]
    for number, images in enumerate((content, [{"bytes": each, "path": "x.png"} for each in content])):
        path = parquet(photos.parent / f"{number}.parquet", images, [0, 1])
        before = fingerprint(path)
        assert before is not None and before == fingerprint(path)
        os.utime(path, ns=(0, 1))
        assert fingerprint(path) not in (before, None)


def test_parquet_with_paths_instead_of_bytes_gives_none(photos):
    images = [{"bytes": None, "path": "photos/cat/1.png"}, {"bytes": b"image", "path": "photos/dog/1.png"}]
    assert fingerprint(parquet(photos.parent / "cells.parquet", images, [0, 1])) is None


def test_parquet_with_a_column_of_paths_covers_the_image_files(photos):
    path = parquet(photos.parent / "paths.parquet", ["photos/cat/2.png", "photos/dog/1.png"], [0, 1])
    before = fingerprint(path)
    append(photos)
    assert fingerprint(path) not in (before, None)
    shards = photos.parent / "shards"
    shards.mkdir()
    parquet(shards / "a.parquet", [str(photos / "cat/2.png"), str(photos / "dog/1.png")], [0, 1])
    before = fingerprint(shards)
    append(photos)
    assert fingerprint(shards) not in (before, None)


def test_files_named_by_a_new_format_are_examined(tmp_path, monkeypatch):
    """A format is not self-contained unless it says so: images that it names elsewhere count."""
    write_image(tmp_path / "elsewhere" / "a.png")
    (tmp_path / "mine.list").write_text("a.png 0")

    def read_list(path: Path) -> Listing:
        return Listing(labelled_files(tmp_path / "elsewhere", ["a.png"], [0], ("x", "y")))

    known = load._Format(lambda path: path.suffix == ".list", read_list)
    monkeypatch.setattr(load, "FILE_FORMATS", (*load.FILE_FORMATS, known))
    before = fingerprint(tmp_path / "mine.list")
    assert before is not None and before == fingerprint(tmp_path / "mine.list")
    write_image(tmp_path / "elsewhere" / "a.png", seed=1)
    assert fingerprint(tmp_path / "mine.list") != before


def test_changed_text_and_other_text_column_count(tmp_path):
    table = tmp_path / "texts.csv"
    table.write_text("text,title,label\none,1st,a\ntwo,2nd,b\n")
    first = fingerprint(table)
    assert first is not None and fingerprint(table, text="title") not in (None, first)
    os.utime(table, ns=(1, 1))
    table.write_text("text,title,label\none,1st,a\nzwo,2nd,b\n")
    assert fingerprint(table) not in (None, first)


def test_file_of_features_counts(photos, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 2)))
    np.save(tmp_path / "b.npy", np.zeros((4, 2)))
    first, other = (fingerprint(photos, features=str(tmp_path / name)) for name in ("a.npy", "b.npy"))
    assert len({first, other, fingerprint(photos), None}) == 4
    os.utime(tmp_path / "a.npy", ns=(1, 1))
    assert fingerprint(photos, features=str(tmp_path / "a.npy")) not in (None, first)
