"""Samples from the data of a run: pictures of any format, texts, rows, and that nothing else is ever served."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageStat

from labelsieve.data import ReadOptions
from labelsieve.data.images import BadImage
from labelsieve.review.contents import _features_of, displayable, open_contents
from labelsieve.review.state import RequestError, ReviewState
from labelsieve.review.suspects import read_judged
from labelsieve.runs.spec import Experiment
from tests.conftest import blobs
from tests.review.conftest import CLASSES, Client, add_data, make_audited_run, make_photo_run, make_photographs

SHOWN_IN_BROWSERS = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}


@pytest.fixture(scope="module")
def photo_run(tmp_path_factory):
    return make_photo_run(tmp_path_factory.mktemp("photos"))


def same_picture(content: bytes, expected: Image.Image) -> bool:
    """Return whether an encoded picture looks like an image, up to its size and compression."""
    found = Image.open(io.BytesIO(content)).convert("RGB")
    small = [image.resize((150, 150), Image.Resampling.BOX) for image in (found, expected)]
    ratio = found.width / found.height / (expected.width / expected.height)
    return abs(ratio - 1) < 0.01 and max(ImageStat.Stat(ImageChops.difference(*small)).mean) < 10


def test_images_of_any_format_become_what_browsers_show(tmp_path):
    expected = make_photographs(tmp_path / "cat")
    for name, image in expected.items():
        content = (tmp_path / "cat" / name).read_bytes()
        for side in (320, 2048, 8192):
            picture = displayable(content, side)
            shown = Image.open(io.BytesIO(picture.content))
            assert picture.content_type == SHOWN_IN_BROWSERS[shown.format] and shown.mode in ("L", "RGB", "P"), name
            upright = (picture.width, picture.height)
            assert upright == image.size and max(shown.size) == min(side, max(image.size)), (name, side)
            unchanged = picture.content == content
            rotated = name == "b-turned.jpg" and unchanged  # browsers rotate it themselves
            assert rotated or same_picture(picture.content, image), (name, side)
    for name in ("f-palette.png", "i-small.webp", "k-plain.jpg"):  # nothing is lost by another encoding
        content = (tmp_path / "cat" / name).read_bytes()
        assert displayable(content, 2048).content == content


@pytest.mark.parametrize("content", [b"", b"root:x:0:0", b"\x89PNG\r\n\x1a\n" + bytes(50), b"%!PS-Adobe"])
def test_what_is_no_image_is_never_returned(content):
    with pytest.raises(BadImage):
        displayable(content, 2048)


def test_pictures_are_found_by_index_alone(photo_run, serve):
    run, expected = photo_run
    client = Client(serve(run).url)
    for index, (name, image) in enumerate(expected.items()):  # class cat comes first
        status, content, headers = client.send(f"/pictures/{index}?size=full")
        assert status == 200 and headers["Content-Type"] in SHOWN_IN_BROWSERS.values()
        assert name == "b-turned.jpg" or same_picture(content, image), name
        answer = client.get(f"/details/{index}")[1]
        assert answer["size"] == list(image.size) and answer["problem"] == ""
        small = Image.open(io.BytesIO(client.send(f"/pictures/{index}?size=small")[1]))
        assert max(small.size) <= 320
    tries = ["/pictures/36", "/pictures/-1", "/pictures/../../etc/passwd", "/pictures/0.jpg", "/pictures/%2e%2e/x"]
    tries += ["/details/36", "/details/x", f"/pictures/{run}", "/photos/cat/a-large.jpg", "/pictures//etc/hosts"]
    for path in tries:
        assert client.send(path)[0] == 404, path
    assert client.send("/pictures/0?size=huge")[0] == 400
    assert client.send("/details/0?run=1")[0] == client.send("/samples?run=x")[0] == 404


def test_files_that_are_no_images_are_not_served(tmp_path):
    (tmp_path / "secret.jpg").write_bytes(b"root:x:0:0")
    Image.new("RGB", (8, 8)).save(tmp_path / "good.jpg")
    (tmp_path / "data.csv").write_text("image,label\nsecret.jpg,cat\ngood.jpg,dog\n")
    run = make_audited_run(tmp_path / "run", 2, 2, names=["secret.jpg", "good.jpg"], text="no thumbnail")
    state = ReviewState(add_data(run, data=str(tmp_path / "data.csv")))
    with pytest.raises(RequestError, match="not an image"):
        state.picture(0, "full")
    assert "cannot be shown: not an image" in state.details(0)["problem"]
    assert state.picture(1, "full")[1] == "image/jpeg"


def test_data_that_is_gone_or_has_changed_is_named(tmp_path):
    run, _ = make_photo_run(tmp_path)
    data, index = tmp_path / "photos" / "dog", 12
    names = sorted(path.name for path in data.iterdir())
    state = ReviewState(run)
    assert state.details(index)["problem"] == "" and state.material().judged[index].id == f"dog/{names[0]}"
    thumbnail = state.thumbnail_image(index)
    state = ReviewState(run)
    state.prepare()
    (data / names[0]).unlink()
    assert "cannot be read (No such file" in state.details(index)["problem"]
    assert state.picture(index, "full") == thumbnail
    Image.effect_noise((640, 480), 200).save(data / names[1])  # written after the audit
    assert "it has changed since the audit" in state.details(13)["problem"]
    assert state.picture(13, "full") == state.thumbnail_image(13)
    with Image.open(data / names[2]) as image:
        image.save(run / "audit" / "thumbs" / "14.webp")
    os.utime(data / names[2])  # touched, but the same picture
    assert state.details(14)["problem"] == "" and state.picture(14, "full")[1] == "image/jpeg"
    (tmp_path / "photos").rename(tmp_path / "moved")
    gone = ReviewState(run)
    assert "The data cannot be opened (cannot read" in gone.details(15)["problem"]
    assert gone.picture(15, "full") == gone.thumbnail_image(15) and gone.details(15)["examples"] == {
        "cat": [],
        "dog": [],
    }
    assert ReviewState(run, str(tmp_path / "moved")).details(15)["problem"] == ""


def test_arrays_and_cells_of_tables_are_pictures(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=pixels, labels=np.arange(6) % 3)
    run = make_audited_run(tmp_path / "arrays", 6, 6, names=[str(k) for k in range(6)])
    state = ReviewState(add_data(run, data=str(tmp_path / "data.npz")))
    content, content_type = state.picture(4, "full")
    assert content_type == "image/png" and np.array_equal(np.asarray(Image.open(io.BytesIO(content))), pixels[4])

    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    cells = [{"bytes": displayable_png(pixels[k]), "path": None} for k in range(6)]
    table = arrow.table({"image": cells, "label": [CLASSES[k % 3] for k in range(6)]})
    parquet.write_table(table, tmp_path / "data.parquet")
    names = [f"data.parquet:{k}" for k in range(6)]
    run = make_audited_run(tmp_path / "cells", 6, 6, names=names)
    state = ReviewState(add_data(run, data=str(tmp_path / "data.parquet")))
    shown = Image.open(io.BytesIO(state.picture(5, "full")[0]))
    assert np.array_equal(np.asarray(shown), pixels[5]) and state.details(5)["problem"] == ""


def displayable_png(pixels) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_examples_and_neighbours(photo_run):
    run, _ = photo_run
    state = ReviewState(run)
    found = state.details(30)
    labels = {each.index: each for each in read_judged(run)}
    sure = {name: [one["index"] for one in found["examples"][name]] for name in ("cat", "dog")}
    assert sure == {"cat": [0, 3], "dog": [1, 4]}  # the labels of highest quality
    assert [one["index"] for one in state.details(3)["examples"]["cat"]] == [0]  # not the sample itself
    features = np.load(run.parent / "features.npy")
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    order = np.argsort(-(unit @ unit[30]), kind="stable")
    expected = [int(k) for k in order if k != 30][:8]
    assert [one["index"] for one in found["neighbours"]] == expected
    assert all(one["given"] == labels[one["index"]].given for one in found["neighbours"])
    distance = np.linalg.norm(unit[30] - unit[expected[0]])
    assert found["neighbours"][0]["distance"] == pytest.approx(distance, abs=1e-3)


def test_rows_and_texts_that_changed_are_shown_as_audited(tmp_path):
    (tmp_path / "table.csv").write_text("a,b,label\n" + "".join(f"{k},{k % 2},{CLASSES[k % 3]}\n" for k in range(12)))
    names = [f"table.csv:{k + 2}" for k in range(12)]
    run = make_audited_run(tmp_path / "run", 12, 12, names=names, row={"a": 7.0, "b": 1.0})
    state = ReviewState(add_data(run, data=str(tmp_path / "table.csv")))
    assert [each["name"] for each in state.details(7)["columns"]] == ["a", "b"]
    changed = state.details(8)
    assert changed["columns"] is None and "has changed since the audit" in changed["problem"]
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(f"text {k},{CLASSES[k % 3]}\n" for k in range(12)))
    names = [f"texts.csv:{k + 2}" for k in range(12)]
    run = make_audited_run(tmp_path / "texts", 12, 12, names=names, text="text 5")
    state = ReviewState(add_data(run, data=str(tmp_path / "texts.csv")))
    assert state.details(5)["text"] == "text 5" and state.details(5)["problem"] == ""
    assert state.details(6)["text"] is None and "has changed" in state.details(6)["problem"]


def test_places_are_found_by_name_after_others_were_removed(tmp_path):
    run, _ = make_photo_run(tmp_path)
    removed = sorted((tmp_path / "photos" / "cat").iterdir())[0]
    removed.unlink()
    contents = open_contents(run, read_judged(run))
    assert 0 not in contents and 1 in contents
    assert contents.picture(8, "full").content == (tmp_path / "photos" / "cat" / "i-small.webp").read_bytes()
    with pytest.raises(BadImage, match="no longer in the data"):
        contents.picture(0, "full")


def test_memory_for_pictures_is_bounded(photo_run, monkeypatch):
    monkeypatch.setattr("labelsieve.review.contents.CACHED_BYTES", 300_000)
    run, _ = photo_run
    contents = open_contents(run, read_judged(run))
    sizes = [len(contents.picture(index, "full").content) for index in range(12)]
    assert sum(sizes) > 300_000 and contents._cached == sum(len(each.content) for each in contents._pictures.values())
    assert contents._cached <= max(300_000, sizes[-1])


def test_details_are_json_without_surprises(photo_run):
    run, _ = photo_run
    answer = json.loads(json.dumps(ReviewState(run).details(3)))
    assert set(answer) == {"index", "problem", "size", "text", "words", "columns", "examples", "neighbours"}


def test_audit_without_data_has_nothing_to_open(tmp_path):
    run = make_audited_run(tmp_path / "run", 6, 6, text="a text")
    (run / "audit").rename(tmp_path / "found")  # an audit that belongs to no run
    state = ReviewState(tmp_path / "found")
    assert state.details(5)["problem"] == "" and state.details(5)["neighbours"] == []


def test_features_that_are_not_cached_are_named(monkeypatch, capsys):
    monkeypatch.setattr("labelsieve.review.contents._known_features", lambda *arguments: None)
    for backbone, said in (("lite0", "the features of lite0 are not in the cache; set LABELSIEVE_CACHE"), (None, "")):
        found = _features_of(Path("run"), blobs(0, 0), [], ReadOptions(), Experiment("photos", backbone=backbone))
        assert found is None and (said in capsys.readouterr().err if said else not capsys.readouterr().err)
