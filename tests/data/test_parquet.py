"""Parquet files and datasets written by save_to_disk."""

import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import numpy as np
import pytest
import torch

from labelsieve.data.images import BadImage, Pictures, common_frame
from labelsieve.data.load import decode_all
from labelsieve.data.parquet import is_saved_dataset, read_parquet
from labelsieve.data.sets import Labelled, Texts
from labelsieve.errors import InputError
from tests.data.builders import pictures, png, refused, shades, table

pa = pytest.importorskip("pyarrow")


pq = pytest.importorskip("pyarrow.parquet")


def written(path, columns, **options):
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
    return path


def huggingface(names):
    info = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    return {b"huggingface": json.dumps(info).encode()}


def cells(count):
    return pa.array([{"bytes": png(k), "path": f"{k}.png"} for k in range(count)])


def test_images_in_a_struct_with_named_classes(tmp_path):
    columns = pa.table({"image": cells(6), "label": [0, 2, 2, 0, -1, 7]})
    path = written(tmp_path / "a.parquet", columns.replace_schema_metadata(huggingface(["x", "y", "z"])))
    train, test, valid, bad = read_parquet(path)[:4]
    assert train.classes == ("x", "y", "z") and train.labels.tolist() == [0, 2, 2, 0] and (test, valid) == (None, None)
    assert shades(train) == [0, 1, 2, 3] and train.names[3] == "a.parquet:3"
    assert [row.name for row in bad] == ["a.parquet:4", "a.parquet:5"] and "out of range" in bad[1].reason


def test_row_groups_are_read_on_demand_and_readers_can_be_pickled(tmp_path):
    path = written(
        tmp_path / "a.parquet", {"img": [png(k) for k in range(100)], "label": ["a", "b"] * 50}, row_group_size=7
    )
    train, *_ = read_parquet(path)
    assert not train.read.kept
    again = pickle.loads(pickle.dumps(train))
    assert again.read(99) == png(99) and again.read(0) == png(0) and len(again.read.kept) == 2
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(train.read, range(100))) == [png(k) for k in range(100)]
    assert shades(train.at([50, 3])) == [50, 3]


def test_shards_are_joined_or_define_splits(tmp_path):
    one, many = tmp_path / "one", tmp_path / "many"
    one.mkdir()
    many.mkdir()
    for shard in range(3):
        rows = {"image": [png(10 * shard), png(10 * shard + 1)], "label": [0, 1]}
        written(one / f"part-{shard}.parquet", rows)
        written(many / f"{('train', 'test', 'validation')[shard]}-00000-of-00001.parquet", rows)
    train, test, _, _ = read_parquet(one)[:4]
    assert shades(train) == [0, 1, 10, 11, 20, 21] and test is None and train.names[4] == "part-2.parquet:0"
    train, test, valid, _ = read_parquet(many)[:4]
    assert shades(train) == [0, 1] and shades(test) == [10, 11] and shades(valid) == [20, 21]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (pa.array([3, 5, 3], pa.uint8()), ("3", "5")),
        (pa.array(["b", "a", "b"]), ("a", "b")),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ("a", "b")),
        (pa.array([True, False, True]), ("false", "true")),
        (pa.array([1.0, 0.0, 1.0]), ("0", "1")),
        (pa.array([Decimal("1.0"), Decimal("0.0"), Decimal("1.0")]), ("0", "1")),
        (pa.array(["b", "a", "b"], pa.large_string()), ("a", "b")),
    ],
)
def test_labels_of_a_column_of_any_type(tmp_path, labels, classes):
    train, *_ = read_parquet(written(tmp_path / "a.parquet", {"x": [1, 2, 3], "label": labels}))
    assert train.classes == classes and len(train.labels.unique()) == 2 and train.labels[0] == train.labels[2]


def test_numbers_of_any_type(tmp_path):
    columns = {
        "f": [0.5, 1.5, None, float("nan"), 2.5],
        "i": [1, 2, 3, 4, 5],
        "b": [True, False, True, True, True],
        "d": [Decimal("1.25")] * 5,
        "u": pa.array([2**63 + 2**40] * 5, pa.uint64()),
        "label": ["a", "b", "a", "a", None],
    }
    train, _, _, bad = read_parquet(written(tmp_path / "a.parquet", columns))[:4]
    assert train.images.tolist() == [[0.5, 1, 1, 1.25, 2**63 + 2**40], [1.5, 2, 0, 1.25, 2**63 + 2**40]]
    assert [row.name for row in bad] == ["a.parquet:2", "a.parquet:3", "a.parquet:4"]
    assert "'f' contains nan" in bad[0].reason and "no label" in bad[2].reason


def test_paths_in_parquet(tmp_path):
    pictures(tmp_path, "a.png", "b.png")
    path = written(tmp_path / "a.parquet", {"path": ["a.png", "b.png", "c.png", None], "label": list("xyxx")})
    train, _, _, bad = read_parquet(path)[:4]
    assert shades(train) == [0, 1] and [row.name for row in bad] == ["a.parquet:2", "a.parquet:3"]


def test_cells_without_an_image_are_unusable(tmp_path):
    pictures(tmp_path, "here.png")
    image = [{"bytes": b"no image", "path": None}, {"bytes": None, "path": "here.png"}, {"bytes": None, "path": None}]
    image += [None, {"bytes": None, "path": "../x.png"}]
    train, *_ = read_parquet(written(tmp_path / "a.parquet", {"image": image, "label": list("ababa")}))
    labelled, bad = decode_all(train, common_frame(train))
    assert len(labelled) == 1 and [row.name for row in bad] == [f"a.parquet:{k}" for k in (0, 2, 3, 4)]


IMAGE = {"image": [b"1", b"2"]}


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"x": [1, 2], "name": ["a", "b"]}, "has no column 'label'"),
        ({**IMAGE, "label": [[1], [1, 2]]}, "column 'label' has the type list.*labels are"),
        ({**IMAGE, "label": pa.array([1, 2], pa.timestamp("s"))}, "column 'label' has the type timestamp"),
        ({"x": [[1], [1, 2]], "label": [0, 1]}, "column 'x' has the type list.*numbers"),
        ({"x": [{"a": 1}, {"a": 2}], "label": [0, 1]}, "column 'x' has the type struct.*numbers"),
        ({"x": pa.array([1, 2], pa.timestamp("s")), "label": [0, 1]}, "column 'x' has the type timestamp"),
        ({"x": ["a", "b"], "label": [0, 1]}, "column 'x' has the type string"),
        (
            {"image": [{"path": "a"}, {"path": "b"}], "label": [0, 1]},
            "column 'image' has the type struct.*images are encoded bytes",
        ),
        ({"image": [[1], [2]], "label": [0, 1]}, "column 'image' has the type list"),
        ({"x": pa.array([], pa.int64()), "label": pa.array([], pa.int64())}, "none of the 0 rows"),
        ({**IMAGE, "label": pa.array([None, None], pa.int64())}, "none of the 2 rows"),
        ({**IMAGE, "label": pa.array([2**63, 0], pa.uint64())}, "a.parquet:0: the label is too large"),
        ({**IMAGE, "label": [1.5, 0.0]}, "a.parquet:0: label 1.5 is not an integer"),
        ({**IMAGE, "label": [0, 0]}, "only the class '0'"),
        ({**IMAGE, "label": ["x" * 100_000, "X" * 100_000]}, "look like one class"),
        ({"x": pa.array([b"1" * 16] * 2, pa.uuid()), "label": [0, 1]}, "column 'x' has the type .*uuid"),
    ],
)
def test_parquet_columns_of_wrong_types_are_an_error(tmp_path, columns, reason):
    refused(read_parquet, written(tmp_path / "a.parquet", columns), reason)


def test_duplicate_columns_in_parquet(tmp_path):
    columns = pa.Table.from_arrays([pa.array([1, 2]), pa.array([1, 2]), pa.array([0, 1])], names=["x", "x", "label"])
    refused(read_parquet, written(tmp_path / "a.parquet", columns), "two columns 'x'")


def test_int96_timestamps_are_not_numbers(tmp_path):
    columns = {"x": pa.array([1, 2], pa.timestamp("ns")), "label": [0, 1]}
    path = written(tmp_path / "a.parquet", columns, use_deprecated_int96_timestamps=True)
    refused(read_parquet, path, "column 'x' has the type timestamp")


def test_invalid_utf8_labels_are_an_error(tmp_path):
    wrong = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff\xfe", b"a"]).buffers())
    refused(read_parquet, written(tmp_path / "a.parquet", {**IMAGE, "label": wrong}), "cannot read")


def test_many_row_groups(tmp_path):
    path = written(
        tmp_path / "a.parquet", {"image": [b"x%d" % k for k in range(2000)], "label": [0, 1] * 1000}, row_group_size=1
    )
    train, *_ = read_parquet(path)
    assert train.read(1999) == b"x1999" and len(train) == 2000


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", b"PAR1" + b"\0" * 100 + b"PAR1", b"PARE" * 40])
def test_other_files_are_not_parquet(tmp_path, content):
    refused(read_parquet, table(tmp_path, content, "a.parquet"), "cannot read")


def test_damaged_parquet_is_an_error(tmp_path):
    labels = [str(k % 7) + "x" * 50 for k in range(5000)]
    path = written(tmp_path / "a.parquet", {"x": list(range(5000)), "label": labels}, compression="zstd")
    whole = path.read_bytes()
    for cut in (10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        refused(read_parquet, path, "cannot read")
    path.write_bytes(whole[:4] + b"\xaa" * 2000 + whole[2004:])
    refused(read_parquet, path, "cannot read")


def test_damaged_page_of_images_raises_bad_image(tmp_path):
    content = bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8))
    columns = {"image": [content, content[::-1]], "label": [0, 1]}
    path = written(tmp_path / "a.parquet", columns, compression="zstd", use_dictionary=False)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xaa" * 3000 + whole[3004:])
    train, *_ = read_parquet(path)
    with pytest.raises(BadImage, match="cannot be read"):
        train.bytes_of(0)


def test_shards_need_equal_columns(tmp_path):
    written(tmp_path / "a.parquet", {"x": [1, 2], "label": [0, 1]})
    written(tmp_path / "b.parquet", {"x": [1.0, 2.0], "label": [0, 1]})
    refused(read_parquet, tmp_path, "the columns of .*b.parquet differ from .*a.parquet: x double instead of x int64")
    parted = tmp_path / "parted"
    (parted / "label=0").mkdir(parents=True)
    written(parted / "label=0" / "a.parquet", {"x": [1, 2]})
    refused(read_parquet, parted, "not a folder that directly contains .parquet")
    refused(read_parquet, tmp_path / "gone.parquet", "no such file")


def test_error_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    path = written(tmp_path / "a.parquet", {"x": [1, 2], "label": [0, 1]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"reading Parquet needs pyarrow: pip install 'labelsieve\[parquet\]'"):
        read_parquet(path)


def saved(folder, shards, features=None):
    """Write a folder as save_to_disk does."""
    folder.mkdir(parents=True)
    names = [f"data-{k:05d}-of-{len(shards):05d}.arrow" for k in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, shard.schema) as stream:
            stream.write_table(shard, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features or {}}))
    return folder


def image_rows(first, labels):
    image = pa.array([{"bytes": png(first + k), "path": None} for k in range(len(labels))])
    return pa.table({"image": image, "label": labels})


def test_a_saved_dataset(tmp_path):
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    folder = saved(tmp_path / "mine", [image_rows(0, [0, 1, 1]), image_rows(3, [1, 0])], features)
    assert is_saved_dataset(folder) and not is_saved_dataset(tmp_path)
    train, test, valid, bad = read_parquet(folder)[:4]
    assert train.classes == ("cat", "dog") and train.labels.tolist() == [0, 1, 1, 1, 0] and not bad
    assert shades(pickle.loads(pickle.dumps(train))) == [0, 1, 2, 3, 4] and (test, valid) == (None, None)
    assert train.names[3] == "data-00001-of-00002.arrow:0"


def test_a_saved_dict_of_datasets(tmp_path):
    folder = tmp_path / "mine"
    for place, split in enumerate(("train", "validation", "test")):
        rows = image_rows(10 * place, [0, 1]).replace_schema_metadata(huggingface(["cat", "dog"]))
        saved(folder / split, [rows])
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation", "test"]}))
    train, test, valid, _ = read_parquet(folder)[:4]
    assert shades(train) == [0, 1] and shades(test) == [20, 21] and shades(valid) == [10, 11]
    assert test.classes == ("cat", "dog")


def test_saved_numbers(tmp_path):
    rows = pa.table({"x": [1.0, 2.0, None], "label": ["a", "b", "a"]})
    train, _, _, bad = read_parquet(saved(tmp_path / "mine", [rows]))[:4]
    assert train.images.tolist() == [[1], [2]] and [row.name for row in bad] == ["data-00000-of-00001.arrow:2"]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("state.json", b"{", "not valid JSON"),
        ("state.json", b"[]", "not a JSON object"),
        ("state.json", b"\xff", "not valid JSON"),
        ("state.json", b"{}", "no list of data files"),
        ("state.json", b'{"_data_files": [{"filename": "../x"}]}', "has no file '../x'"),
        ("state.json", b'{"_data_files": [{"filename": "gone.arrow"}]}', "has no file 'gone.arrow'"),
        ("state.json", b'{"_data_files": [3]}', "has no file 3"),
        ("state.json", b'{"_indices_data_files": [1], "_data_files": []}', "flatten_indices"),
        ("dataset_dict.json", b"{}", "no list of splits"),
        ("dataset_dict.json", b'{"splits": ["../x"]}', "has no folder '../x'"),
        ("data-00000-of-00001.arrow", b"", "cannot read"),
        ("data-00000-of-00001.arrow", b"\xff\xff\xff\xff\x10\0\0\0 not arrow", "cannot read"),
    ],
)
def test_damaged_saved_datasets_are_an_error(tmp_path, file, content, reason):
    folder = saved(tmp_path / "mine", [image_rows(0, [0, 1])])
    (folder / file).write_bytes(content)
    refused(read_parquet, folder, reason)


def test_truncated_saved_stream_is_an_error(tmp_path):
    folder = saved(tmp_path / "mine", [image_rows(0, [0, 1, 0, 1])])
    file = next(folder.glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:-400])
    refused(read_parquet, folder, "cannot read .*arrow")


def test_dataset_dict_needs_a_training_split(tmp_path):
    saved(tmp_path / "mine" / "extra", [image_rows(0, [0, 1])])
    (tmp_path / "mine" / "dataset_dict.json").write_text('{"splits": ["extra"]}')
    refused(read_parquet, tmp_path / "mine", "has no split train")


@pytest.mark.parametrize("path", ["/etc/hostname", "../outside.png", "folder", "gone.png"])
def test_cell_paths_must_be_inside_the_folder_of_the_table(path, tmp_path):
    pytest.importorskip("pyarrow")
    from labelsieve.data.parquet import cell_bytes

    table = tmp_path / "table"
    (table / "folder").mkdir(parents=True)
    (tmp_path / "outside.png").write_bytes(b"x")
    (table / "inside.png").write_bytes(b"y")
    assert cell_bytes({"bytes": None, "path": "inside.png"}, table) == b"y"
    with pytest.raises(OSError, match=r"no image|not a file in"):
        cell_bytes({"bytes": None, "path": path}, table)


def test_texts_in_parquet(tmp_path):
    columns = {"id": [1, 2, 3, 4], "Sentence": ["one", None, " ", "vier"], "intent": ["a", "b", "b", "b"]}
    train, _, _, bad, kind, _ = read_parquet(written(tmp_path / "a.parquet", columns))
    assert isinstance(train, Texts) and train.texts == ["one", "vier"] and train.classes == ("a", "b")
    assert [each.name for each in bad] == ["a.parquet:1", "a.parquet:2"] and "no text" in bad[0].reason
    assert kind == "a Parquet table of texts"
    named = written(tmp_path / "b.parquet", {"tongue": pa.array(["eins", "zwei"], pa.large_string()), "label": [0, 1]})
    train = read_parquet(named, text="tongue").train
    assert isinstance(train, Texts) and train.texts == ["eins", "zwei"]
    refused(read_parquet, named, "column 'label' cannot be both text and label", text="label")
    refused(read_parquet, named, "'tongue' has the type large_string.*pass --text-column")
    refused(read_parquet, written(tmp_path / "c.parquet", {"text": [1, 2], "label": [0, 1]}), "texts are", text="text")


def test_images_come_before_texts(tmp_path):
    train = read_parquet(written(tmp_path / "a.parquet", {**IMAGE, "text": ["x", "y"], "label": [0, 1]})).train
    assert isinstance(train, Pictures)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float16(), 2), pa.list_(pa.float32(), 2)]
)
def test_column_of_lists_is_a_column_of_features(tmp_path, kind):
    rows = [[1, 2], [3, 4], None, [5, float("nan")], [6, 7], [8, 9]]
    vectors = pa.array(
        [None if row is None else np.array(row, kind.value_type.to_pandas_dtype()) for row in rows], kind
    )
    columns = pa.table({"length": [1] * 6, "embedding": vectors, "label": ["a", "b", "a", "a", "a", "b"]})
    train, _, _, bad = read_parquet(written(tmp_path / "a.parquet", columns, row_group_size=2))[:4]
    assert isinstance(train, Labelled) and train.images.tolist() == [[1, 2], [3, 4], [6, 7], [8, 9]]
    assert train.images.dtype == torch.float32 and train.original is None
    assert train.columns == ("embedding[0]", "embedding[1]") and train.labels.tolist() == [0, 1, 0, 1]
    assert [each.name for each in bad] == ["a.parquet:2", "a.parquet:3"]
    assert bad[0].reason == "column 'embedding' has 0 numbers, other rows have 2"
    assert bad[1].reason == "column 'embedding[1]' contains nan, which is too large or not finite"


def test_features_of_texts_keep_the_texts(tmp_path):
    columns = {"text": ["one", "two", "", "four"], "v": [[1.0], [2.0], [3.0], [4.0]], "label": ["a", "b", "a", "b"]}
    train, _, _, bad = read_parquet(written(tmp_path / "a.parquet", columns))[:4]
    assert isinstance(train, Labelled) and isinstance(train.original, Texts)
    assert train.original.texts == ["one", "two", "four"] and train.images.tolist() == [[1], [2], [4]]
    assert train.original.names == train.names and [each.name for each in bad] == ["a.parquet:2"]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"v": [[1.0], [2.0]], "w": [[1.0], [2.0]], "label": [0, 1]}, "two columns of lists, 'v' and 'w'; remove one"),
        ({"v": pa.array([[], []], pa.list_(pa.float32())), "label": [0, 1]}, "lists of column 'v' are empty"),
    ],
)
def test_unsuitable_columns_of_lists_are_an_error(tmp_path, columns, reason):
    refused(read_parquet, written(tmp_path / "a.parquet", columns), reason)


def test_saved_texts_and_embeddings(tmp_path):
    datasets = pytest.importorskip("datasets")
    labels = datasets.ClassLabel(names=["late", "lost"])
    kinds = {
        "text": datasets.Value("string"),
        "label": labels,
        "embeddings": datasets.Sequence(datasets.Value("float32")),
    }
    rows = {"text": ["one", "two"], "label": [1, 0], "embeddings": [[1, 2], [3, 4]]}
    whole = datasets.Dataset.from_dict(rows, datasets.Features(kinds))
    datasets.DatasetDict({"train": whole, "test": whole.select([1])}).flatten_indices().save_to_disk(tmp_path / "both")
    train, test = read_parquet(tmp_path / "both")[:2]
    assert isinstance(train, Labelled) and isinstance(test, Labelled) and isinstance(test.original, Texts)
    assert train.images.tolist() == [[1, 2], [3, 4]] and train.classes == ("late", "lost")
    assert test.images.tolist() == [[3, 4]] and test.original.texts == ["two"] and test.labels.tolist() == [0]
    whole.remove_columns("embeddings").save_to_disk(tmp_path / "texts")
    found = read_parquet(tmp_path / "texts").train
    assert isinstance(found, Texts) and found.texts == ["one", "two"] and found.labels.tolist() == [1, 0]
