"""load_data: find, list and decode."""

import tracemalloc

import numpy as np
import pytest
import torch

from labelsieve.data import Labelled, ReadOptions, load_data
from labelsieve.data.check import check
from labelsieve.data.images import Pictures
from labelsieve.data.load import find, stratified
from labelsieve.data.sets import Texts
from labelsieve.errors import InputError
from tests.data.builders import picture


def test_error_suggests_a_similar_path(tmp_path, monkeypatch):
    (tmp_path / "Meine Bilder" / "Käfer & Kleider").mkdir(parents=True)
    (tmp_path / "kaefer.csv").touch()
    monkeypatch.chdir(tmp_path)
    cases = {
        "Meine Bilder/kafer und kleider": "Meine Bilder/Käfer & Kleider",
        "Meine Bilde/Käfer & Kleider": "Meine Bilder/Käfer & Kleider",
        "käfer.csv": "kaefer.csv",
        "meine bilder": "Meine Bilder",
    }
    for typed, meant in cases.items():
        if not (tmp_path / typed).exists():
            with pytest.raises(InputError, match=f"did you mean {meant}\\?"):
                load_data(typed)
    for typed in ("somewhere/else", "other.csv", "Meine Bilder/nothing"):
        with pytest.raises(InputError, match="; pass a folder of images"):
            load_data(typed)


def test_mixed_sizes_and_modes_are_converted_to_one_frame(tmp_path):
    for number, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        for index, (side, mode) in enumerate([(20, "RGB"), (30, "L"), (40, "RGBA"), (25, "P"), (31, "CMYK")]):
            suffix = "jpg" if mode == "CMYK" else "png"
            picture(number, index, side).convert(mode).save(tmp_path / name / f"{index}.{suffix}")
    train = load_data(str(tmp_path)).train
    assert train.images.shape == (10, 3, 30, 30) and train.names[0].endswith("0.png")
    assert load_data(str(tmp_path), ReadOptions(size=8)).train.images.shape == (10, 3, 8, 8)


def test_stratified_split_keeps_every_class():
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 2 + [3])
    train, test = stratified(labels, 0.2, seed=1)
    assert labels[test].bincount().tolist() == [10, 2, 1] and sorted([*train.tolist(), *test.tolist()]) == list(
        range(63)
    )
    assert torch.equal(stratified(labels, 0.2, seed=1)[1], test)
    assert not torch.equal(stratified(labels, 0.2, seed=2)[1], test)


def test_embedded_data_has_a_test_set():
    sets = load_data("fashion")
    assert (len(sets.train), len(sets.test), sets.valid) == (6000, 1000, None)


def test_rewritten_table_is_decoded_again(folder, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = sorted((folder / "train").rglob("*.png"))
    table, reading = tmp_path / "fruit.parquet", ReadOptions(stream=True, cache=str(tmp_path / "cache"), workers=1)

    def write(contents):
        pq.write_table(pa.table({"image": contents, "label": [file.parent.name for file in files]}), table)
        data = load_data(str(table), reading).train
        next(data.staged(torch.tensor([5]), 1))
        return data.inputs(torch.tensor([5])).clone()

    contents = [file.read_bytes() for file in files]
    before = write(contents)
    assert torch.equal(write(contents), before)
    contents[5] = files[50].read_bytes()  # not one of the fifty of sixty whose bytes are looked at
    assert not torch.equal(write(contents), before)


@pytest.mark.parametrize(("source", "reason"), [("fashon", "one of: fashion"), ("gone.npz", "cannot read gone.npz")])
def test_missing_data_is_an_error(source, reason):
    with pytest.raises(InputError, match=reason):
        load_data(source)


ROWS = np.arange(75 * 4, dtype=np.float32).reshape(75, 4) / 8  # exact in half precision


def write_npy(path):
    np.save(path / "f.npy", ROWS.astype(np.float16))
    return path / "f.npy"


def write_npz(path):
    np.savez(path / "f.npz", features=ROWS[:60].astype(np.float16), test_features=ROWS[60:])
    return path / "f.npz"


def write_only_table(path):
    np.savez(path / "g.npz", ids=np.arange(75), vectors=ROWS.astype(np.float64))
    return path / "g.npz"


def write_lists(path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), 4)
    pq.write_table(pa.table({"id": range(75), "vector": lists}), path / "f.parquet", row_group_size=10)
    return path / "f.parquet"


def write_columns(path):
    """Write shards with labels, which are not features."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (path / "shards").mkdir()
    for name, rows in (("train-0", ROWS[:25]), ("train-1", ROWS[25:60]), ("test-0", ROWS[60:])):
        columns = {"label": [9.0] * len(rows), **{f"f{k}": rows[:, k] for k in range(4)}}
        pq.write_table(pa.table(columns), path / "shards" / f"{name}.parquet")
    return path / "shards"


def write_saved_dataset(path):
    datasets = pytest.importorskip("datasets")
    splits = {"train": ROWS[:60], "test": ROWS[60:]}
    found = {name: datasets.Dataset.from_dict({"embeddings": rows.tolist()}) for name, rows in splits.items()}
    datasets.DatasetDict(found).save_to_disk(path / "saved")
    return path / "saved"


@pytest.mark.parametrize(
    "write", [write_npy, write_npz, write_only_table, write_lists, write_columns, write_saved_dataset]
)
def test_features_of_a_file_replace_the_images(folder, tmp_path, write):
    plain = find(str(folder), ReadOptions())
    sets = load_data(str(folder), ReadOptions(features=str(write(tmp_path))))
    for split, original, rows in ((sets.train, plain.train, ROWS[:60]), (sets.test, plain.test, ROWS[60:])):
        assert isinstance(split, Labelled) and isinstance(split.original, Pictures) and isinstance(original, Pictures)
        assert split.images.dtype == torch.float32 and np.array_equal(split.images.numpy(), rows)
        assert split.names == split.original.names == original.names and split.columns is None
        assert torch.equal(split.labels, original.labels) and split.classes == ("apple", "pear", "plum")


def test_features_for_texts_and_for_a_training_set_alone(tmp_path):
    (tmp_path / "t.csv").write_text("text,label,true_label\none,a,a\ntwo,b,a\nthree,b,b\n")
    np.savez(tmp_path / "f.npz", features=np.eye(3), test_features=np.eye(3))
    train, test, _ = load_data(str(tmp_path / "t.csv"), ReadOptions(features=str(tmp_path / "f.npz")))
    assert isinstance(train, Labelled) and test is None and torch.equal(train.images, torch.eye(3))
    assert isinstance(train.original, Texts) and train.original.texts == ["one", "two", "three"]
    assert train.clean is not None and train.clean.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"features": np.zeros((4, 2))}, "f.npz has 4 rows of features but .*t.csv has 3 train samples; one row per"),
        ({"features": np.zeros(3)}, r"numbers of shape \(n, columns\), got float64 \(3,\)"),
        ({"features": np.array([["a"]] * 3)}, "must be numbers"),
        (
            {"features": np.array([[0, 1], [2, 3], [4, np.inf]])},
            "row 2, column 1 contains inf, which is too large or not finite",
        ),
        ({"features": np.full((3, 1), 1e300)}, "row 0, column 0 contains .*300, which is too large"),
        (
            {"a": np.zeros((3, 2)), "b": np.zeros((3, 2))},
            r"no array 'features', and not exactly one .*\(arrays: a, b\)",
        ),
        (
            {"features": np.zeros((3, 2)), "names": np.array(["t.csv:2", "t.csv:4", "t.csv:3"])},
            "row 1 is for t.csv:4, but sample 1 of .*t.csv is t.csv:3; compute the features again",
        ),
    ],
)
def test_unsuitable_features_are_an_error(tmp_path, arrays, reason):
    (tmp_path / "t.csv").write_text("text,label\none,a\ntwo,b\nthree,b\n")
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(InputError, match=reason):
        load_data(str(tmp_path / "t.csv"), ReadOptions(features=str(tmp_path / "f.npz")))


def test_error_counts_the_rows_of_all_splits(folder, tmp_path):
    reading = ReadOptions(features=str(tmp_path / "f.npz"))
    np.savez(tmp_path / "f.npz", features=ROWS[:60])
    with pytest.raises(
        InputError, match=r"has 60 rows of features but .* has 60 train and 15 test samples; .*train, test"
    ):
        load_data(str(folder), reading)
    np.savez(tmp_path / "f.npz", features=ROWS[:60], test_features=ROWS[:14])
    with pytest.raises(InputError, match="has 60 train and 14 test rows of features but"):
        load_data(str(folder), reading)
    np.savez(tmp_path / "f.npz", features=ROWS[:60], test_features=ROWS[:15, :3])
    with pytest.raises(InputError, match="the splits have different numbers of features"):
        load_data(str(folder), reading)
    (folder / "train" / "pear" / "notes.txt").touch()
    np.save(tmp_path / "f.npy", ROWS[:10])
    with pytest.raises(InputError, match="15 test samples, not counting 1 unusable ones"):
        load_data(str(folder), ReadOptions(features=str(tmp_path / "f.npy")))


def test_error_for_lists_of_different_lengths_names_the_row(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "t.csv").write_text("text,label\none,a\ntwo,b\nthree,b\n")
    reading = ReadOptions(features=str(tmp_path / "f.parquet"))
    pq.write_table(pa.table({"v": [[1.0, 2.0], [3.0], [4.0, 5.0]]}), tmp_path / "f.parquet")
    with pytest.raises(InputError, match=r"f.parquet: row 1: column 'v' has 1 numbers, other rows have 2; correct it"):
        load_data(str(tmp_path / "t.csv"), reading)
    pq.write_table(pa.table({"name": ["x", "y", "z"], "label": [1, 2, 3]}), tmp_path / "f.parquet")
    with pytest.raises(InputError, match=r"needs one column of lists .*\(columns: name, label\)"):
        load_data(str(tmp_path / "t.csv"), reading)


@pytest.mark.parametrize(("name", "fault"), [("none.npy", "no such file"), ("t.csv", "unknown format")])
def test_error_names_the_formats_of_features(tmp_path, name, fault):
    (tmp_path / "t.csv").write_text("text,label\none,a\ntwo,b\n")
    with pytest.raises(InputError, match=f"cannot read the features .*{name}: {fault}; pass a .npy, .npz or .parquet"):
        load_data(str(tmp_path / "t.csv"), ReadOptions(features=str(tmp_path / name)))


def test_size_and_features_exclude_each_other(folder, tmp_path):
    with pytest.raises(InputError, match="--size does not change the features"):
        load_data(str(folder), ReadOptions(features=str(write_npy(tmp_path)), size=4))


def test_memory_for_features_is_one_copy(tmp_path):
    """A .npy file is memory-mapped and converted part by part."""
    count, width = 40_000, 100
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"t{row},{'ab'[row % 2]}\n" for row in range(count)))
    np.save(tmp_path / "f.npy", np.ones((count, width), np.float64))
    listed = find(str(tmp_path / "t.csv"), ReadOptions())  # imports and caches
    tracemalloc.start()
    try:
        find(str(tmp_path / "t.csv"), ReadOptions())
        without = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        train = load_data(str(tmp_path / "t.csv"), ReadOptions(features=str(tmp_path / "f.npy"))).train
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    copied = 4 * count * width
    assert len(train) == len(listed.train) and copied < peak < without + 1.5 * copied


def test_check_reports_features(folder, tmp_path, capsys):
    check(str(folder), ReadOptions(features=str(write_npy(tmp_path))))
    report = capsys.readouterr().out
    assert f"{folder}: a folder of images with features\n" in report and "sizes: 4 columns (60)" in report
