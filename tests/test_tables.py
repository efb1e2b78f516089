"""A person's own tables: CSV, Parquet and saved datasets."""

import io
import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from labelsieve.data.classes import missing, numbered
from labelsieve.data.columns import Features
from labelsieve.data.images import Bad, BadImage, Pictures, frame_of
from labelsieve.data.load import in_memory
from labelsieve.data.parquet import is_saved_dataset, read_parquet, read_saved_dataset
from labelsieve.data.table import LONGEST, read_table
from labelsieve.errors import InputError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def png(shade):
    """A gray image of one shade."""
    content = io.BytesIO()
    Image.new("L", (4, 3), shade).save(content, "PNG")
    return content.getvalue()


def table(folder, text, name="mine.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def pictures(folder, *names):
    for shade, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(shade))


def shades(read):
    """The shade of each image in a set of pictures."""
    labelled, bad = in_memory(read, frame_of(read))
    assert not bad
    return labelled.images[:, 0, 0, 0].tolist()


def refused(read, path, reason, **asked):
    with pytest.raises(InputError, match=reason) as caught:
        read(path, **asked)
    message = str(caught.value)
    assert path.name in message and "\n" not in message and len(message) < 700
    return message


# labels


@pytest.mark.parametrize(
    ("labels", "numbers", "classes"),
    [
        (["dog", "cat", "dog", "eel"], [1, 0, 1, 2], ("cat", "dog", "eel")),
        (["10", "9", "0", "9"], [2, 1, 0, 1], ("0", "9", "10")),
        (["1.0", "0.0", "2.0"], [1, 0, 2], ("0", "1", "2")),
        (["01", "02", "10"], [0, 1, 2], ("01", "02", "10")),
        ([" a", " b", " a"], [0, 1, 0], ("a", "b")),
        (["-1", "1", "1"], [0, 1, 1], ("-1", "1")),
        (["True", "False"], [1, 0], ("False", "True")),
        ([True, False, True], [1, 0, 1], ("false", "true")),
        ([7, 3.0, 7], [1, 0, 1], ("3", "7")),
        (np.array([2, 0, 1], dtype=">u2"), [2, 0, 1], ("0", "1", "2")),
        (np.array([1.0, 0.0]), [1, 0], ("0", "1")),
        (np.array([b"b", b"a"]), [1, 0], ("a", "b")),
        ([2**63 - 1, 0], [1, 0], ("0", str(2**63 - 1))),
    ],
)
def test_labels_of_any_kind_become_numbers(labels, numbers, classes):
    found = numbered(labels, "mine")
    assert found[0].tolist() == numbers and found[1] == classes and found[0].dtype == torch.int64


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (["01", "1", "2"], "'01' and '1' look like one class"),
        (["1.0", "1", "2"], "'1.0' and '1' look like one class"),
        ([" cat", "cat", "dog"], "' cat' and 'cat' look like one class"),
        (["Cat", "dog", "cat"], "'Cat' and 'cat' look like one class"),
        (["caf\u00e9", "cafe\u0301"], "look like one class"),
        (["0", "1", "1.5"], "position 2: label '1.5' is not a whole number"),
        ([0.0, 1.5], "position 1: label 1.5 is not a whole number"),
        ([0.0, float("inf")], "label inf is not a whole number"),
        (["0", "1", "9" * 25], "is too large"),
        (["0", "1", "9" * 9000], "is too large"),
        ([0, 2**63], "is too large"),
        (["0", "1", "cat"], "mix numbers .'0'. and words .'cat'."),
        (["a", 1], "mix number and str"),
        (["a", "", "b"], "position 1 has no label"),
        ([float("nan"), 1.0], "position 0 has no label"),
        (["a", "a"], "only the class 'a'"),
        ([], "no labels"),
        ([str(k) for k in range(21)], "looks like an id"),
        ([1j, 2j], "got complex"),
        ([b"\xff", b"a"], "not UTF-8"),
    ],
)
def test_labels_that_cannot_be_told_apart_are_refused(labels, reason):
    with pytest.raises(InputError, match=reason) as caught:
        numbered(labels, "mine")
    assert "mine" in str(caught.value) and len(str(caught.value)) < 300


def test_missing_labels():
    labels = ["", " ", "NA", "N/A", "NaN", "nan", "None", "null", None, float("nan"), "none", "a", 0, False]
    assert missing(labels).tolist() == [True] * 10 + [False] * 4


@given(st.lists(st.sampled_from(["ant", "bee", "cow", "dog"]), min_size=1, max_size=40))
def test_numbers_and_names_say_the_same(labels):
    if len(set(labels)) < 2:
        return
    numbers, classes = numbered(labels, "mine")
    assert [classes[k] for k in numbers] == labels and list(classes) == sorted(set(labels))


# CSV and TSV


def test_paths_and_words(tmp_path):
    pictures(tmp_path, "a.png", "b/c.png", "d.png")
    path = table(tmp_path, f"path,label,note\na.png,dog,x\n./b/c.png,cat,\n{tmp_path / 'd.png'},dog,y\n")
    train, test, valid, bad = read_table(path)
    assert isinstance(train, Pictures) and (test, valid, bad) == (None, None, [])
    assert train.classes == ("cat", "dog") and train.labels.tolist() == [1, 0, 1]
    assert train.names[1] == "./b/c.png" and shades(train) == [0, 1, 2]


def test_numbers_and_splits(tmp_path):
    text = "id,x,y,Label,Split,clean_label\n" + "7,1,2.5,a,TRAIN,a\n8,-3e2,4,b,train,a\n9,5,6,a,Test,a\n9,0,1,b,val,b\n"
    train, test, valid, bad = read_table(table(tmp_path, text))
    assert isinstance(train, Features) and train.columns == ("x", "y") and not bad
    assert train.values.dtype == torch.float32 and train.values.tolist() == [[1, 2.5], [-300, 4]]
    assert train.labels.tolist() == [0, 1] and train.clean.tolist() == [0, 0] and train.names[0] == "mine.csv:2"
    assert test.values.tolist() == [[5, 6]] and valid.labels.tolist() == [1] and valid.names == ["mine.csv:5"]


PLAIN = "x,label\n1,a\n2,b\n"


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", "|"),
        "\ufeff" + PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r"),
        PLAIN.rstrip("\n"),
        "\n\n" + PLAIN.replace("\n", "\n\n"),
        'x,"label"\n"1",a\n2,"b"\n',
        "x, label\n1, a\n 2, b\n",
        "x,CLASS\n1,a\n2,b\n",
        "x,y\n1,a\n2,b\n",
    ],
)
def test_other_ways_to_write_a_table_give_the_same(tmp_path, text):
    train, _, _, bad = read_table(table(tmp_path, text))
    assert train.values.tolist() == [[1], [2]] and train.labels.tolist() == [0, 1]
    assert train.classes == ("a", "b") and not bad


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("x,label\n", "a header but no rows"),
        ("x,name\n1,a\n", "has no column 'label' .it has: x, name."),
        ("x,x,label\n1,2,a\n", "two columns 'x'"),
        ("label,target,x\na,b,1\n", "both 'label' and 'target' could be the labels"),
        ('"a\nb",label\n1,x\n', "none of the 1 rows|only the class"),
        ('"a\nb",c\n1,x\n', r"it has: a\\nb, c"),
        ("label\na\nb\n", "nothing to tell them from"),
        ("id,label\n1,a\n2,b\n", "nothing to tell them from"),
        ("x,label\n1;a\n", r"mine.csv:2 has 1 cells where the header names 2"),
        ("x,label\n1,a\n2,b,c\n", r"mine.csv:3 has 3 cells where the header names 2"),
        ('x,label\n1,a\n2,"b\n3,a\n', r"mine.csv:3: a quoted cell is not closed"),
        ('x,label\n1,a\n2,"b"b\n', r"mine.csv:3: a quoted cell"),
        ("x,label\n1,a\0\n", r"mine.csv:2 holds a NUL byte"),
        (
            "x,label\n1,caf\u00e9\n".encode("latin-1"),
            r"not UTF-8 text .line 2, byte 0xe9.; save it as UTF-8 .*, or convert it: iconv",
        ),
        (PLAIN.encode("utf-16"), "is UTF-16 text; convert it: iconv"),
        (PLAIN.encode("utf-16-le"), "holds a NUL byte"),
        (b"x,label\n1,\xc3", "not UTF-8 text"),
        ("x,label\n" + "1" * (LONGEST + 1) + ",a\n", r"mine.csv:2 is longer than"),
        ('x,label\n1,"' + ("a" * 1000 + "\n") * 17_000 + '"\n', r"mine.csv:2: .* too long"),
        ("x,label\n1,a\n2,01\n", "mix numbers"),
        ("x,label\n1,01\n3,1\n", "'01' and '1' look like one class"),
        ("x,label\n1,1.0\n3,1\n", "'1.0' and '1' look like one class"),
        ("x,label\n1, a\n3,a\n", "' a' and 'a' look like one class"),
        ("x,label\n1,1\n3,1.5\n", r"mine.csv:3: label '1.5' is not a whole number"),
        ("x,label\n1,1\n3,123456789012345678901234567890\n", r"mine.csv:3: the label is too large"),
        ("x,label\n1,1\n3,cat\n", "mix numbers .'1'. and words .'cat'."),
        ("x,label\n1,a\n2,a\n", "only the class 'a'"),
        (
            "x,y,label\n1,2,a\n3,zz,b\n5,6,a\n",
            "^mine.csv:3: column 'y' holds 'zz', which is no number.*; without that row, .*has only the class 'a'",
        ),
        (
            "x,label\n1,a\n2,\n3,NA\n",
            "^mine.csv:3: it has no label.*; without the 2 bad rows, .*only the class",
        ),
        ("x,label\n" + "".join(f"{k},n{k}\n" for k in range(30)), "looks like an id"),
        ("x,label\n1,\n2,NA\n", "none of the 2 rows can be used; mine.csv:2: it has no label"),
        ("name,label\nbob,a\nliz,b\n", "none of the 2 rows .* column 'name' holds 'bob', which is no number"),
        ("x,label,split\n1,a,test\n2,b,test\n", "no usable row is marked as train, only as test"),
        ("x,label,split\n1,a,train\n2,b,train\n3,c,test\n", "no training row has the label 'c' of mine.csv:4"),
        ("path,label\nno.png,a\nnot.png,b\n", "none of the 2 rows"),
    ],
)
def test_tables_that_cannot_be_read_are_refused_by_line(tmp_path, text, reason):
    refused(read_table, table(tmp_path, text), reason)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"label": "lable"}, "has no column 'lable' .did you mean label"),
        ({"image": "picture"}, "has no column 'picture'"),
        ({"split": "part"}, "has no column 'part'"),
        ({"label": "x", "image": "x"}, "cannot hold both"),
    ],
)
def test_columns_that_are_not_there_are_refused(tmp_path, asked, reason):
    refused(read_table, table(tmp_path, PLAIN), reason, **asked)


def test_columns_can_be_named(tmp_path):
    pictures(tmp_path, "a.png", "b.png")
    path = table(tmp_path, "label,pic,kind,part\n0,a.png,x,train\n0,b.png,y,train\n")
    train, *_ = read_table(path, label="kind", image="pic", split="part")
    assert train.classes == ("x", "y") and train.names == ["a.png", "b.png"]


def test_a_folder_or_nothing_is_no_table(tmp_path):
    refused(read_table, tmp_path, "cannot read")
    refused(read_table, tmp_path / "gone.csv", "cannot read .*No such file")


def test_all_bad_rows_are_listed_in_one_pass(tmp_path):
    rows = [
        "1,a",
        "two,b",
        "3,",
        "4,NA",
        "5,None",
        "6,b",
        "inf,a",
        "nan,a",
        "1e300,a",
        ",b",
        "=1+1,a",
        '"1,5",a',
        "7,a",
    ]
    train, _, _, bad = read_table(table(tmp_path, "x,label\n" + "\n".join(rows) + "\n"))
    assert train.values.flatten().tolist() == [1, 6, 7] and train.labels.tolist() == [0, 1, 0]
    assert train.names == ["mine.csv:2", "mine.csv:7", "mine.csv:14"]
    assert [name for name, _ in bad] == [f"mine.csv:{line}" for line in (3, 4, 5, 6, 8, 9, 10, 11, 12, 13)]
    reasons = [reason for _, reason in bad]
    assert "'two', which is no number" in reasons[0] and "no label" in reasons[1] and "'=1+1'" in reasons[8]
    assert "holds inf" in reasons[4] and "holds nan" in reasons[5] and "holds inf" in reasons[6]


def test_paths_that_cannot_be_used_are_listed(tmp_path):
    home = tmp_path / "home"
    pictures(home, "a.png", "b.png", "sub/c.png")
    pictures(tmp_path, "out.png")
    lines = ["a.png,x,train", "b.png,y,train", "gone.png,x,train", "../out.png,x,train", "sub/../../out.png,x,train"]
    lines += ["https://host/a.png,x,train", ",x,train", "sub,x,train", "a.png,y,train", "./a.png,x,train"]
    lines += [
        "sub\\c.png,x,train",
        "n" * 5000 + ",x,train",
        "sub/c.png,x,holdout",
        str(tmp_path / "no.png") + ",x,train",
    ]
    train, _, _, bad = read_table(table(home, "path,label,split\n" + "\n".join(lines)))
    assert train.names == ["a.png", "b.png", "./a.png"]
    expected = ["not a file", "leads out", "leads out", "is a URL", "names no image", "not a file"]
    expected += ["has the label 'y' here and 'x' in mine.csv:2", "write paths with /", "not a file"]
    expected += ["'holdout' is none of train, test, val", "not a file"]
    assert len(bad) == len(expected)
    for row, reason in zip(bad, expected, strict=True):
        assert isinstance(row, Bad) and reason in row.reason and "\n" not in row.reason and len(row.reason) < 400
    assert [row.name for row in bad][:3] == ["mine.csv:4", "mine.csv:5", "mine.csv:6"]


def test_duplicate_rows_stay(tmp_path):
    train, _, _, bad = read_table(table(tmp_path, PLAIN + "1,a\n"))
    assert len(train) == 3 and not bad


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = table(tmp_path_factory.mktemp("any"), b"x,label\n1,a\n2,b\n" + content)
    try:
        read_table(path)
    except InputError as error:
        assert "\n" not in str(error)


# Parquet


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
    train, test, valid, bad = read_parquet(path)
    assert train.classes == ("x", "y", "z") and train.labels.tolist() == [0, 2, 2, 0] and (test, valid) == (None, None)
    assert shades(train) == [0, 1, 2, 3] and train.names[3] == "a.parquet:3"
    assert [row.name for row in bad] == ["a.parquet:4", "a.parquet:5"] and "out of range" in bad[1].reason


def test_row_groups_are_read_when_asked_and_survive_pickling(tmp_path):
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


def test_shards_make_one_table_or_splits(tmp_path):
    one, many = tmp_path / "one", tmp_path / "many"
    one.mkdir()
    many.mkdir()
    for shard in range(3):
        rows = {"image": [png(10 * shard), png(10 * shard + 1)], "label": [0, 1]}
        written(one / f"part-{shard}.parquet", rows)
        written(many / f"{('train', 'test', 'validation')[shard]}-00000-of-00001.parquet", rows)
    train, test, _, _ = read_parquet(one)
    assert shades(train) == [0, 1, 10, 11, 20, 21] and test is None and train.names[4] == "part-2.parquet:0"
    train, test, valid, _ = read_parquet(many)
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
    train, _, _, bad = read_parquet(written(tmp_path / "a.parquet", columns))
    assert train.values.tolist() == [[0.5, 1, 1, 1.25, 2**63 + 2**40], [1.5, 2, 0, 1.25, 2**63 + 2**40]]
    assert [row.name for row in bad] == ["a.parquet:2", "a.parquet:3", "a.parquet:4"]
    assert "'f' holds nan" in bad[0].reason and "no label" in bad[2].reason


def test_paths_in_parquet(tmp_path):
    pictures(tmp_path, "a.png", "b.png")
    train, _, _, bad = read_parquet(
        written(tmp_path / "a.parquet", {"path": ["a.png", "b.png", "c.png", None], "label": list("xyxx")})
    )
    assert shades(train) == [0, 1] and [row.name for row in bad] == ["a.parquet:2", "a.parquet:3"]


def test_a_cell_that_holds_no_image_is_named(tmp_path):
    pictures(tmp_path, "here.png")
    image = [{"bytes": b"no image", "path": None}, {"bytes": None, "path": "here.png"}, {"bytes": None, "path": None}]
    image += [None, {"bytes": None, "path": "../x.png"}]
    train, *_ = read_parquet(written(tmp_path / "a.parquet", {"image": image, "label": list("ababa")}))
    labelled, bad = in_memory(train, frame_of(train))
    assert len(labelled) == 1 and [row.name for row in bad] == [f"a.parquet:{k}" for k in (0, 2, 3, 4)]


IMAGE = {"image": [b"1", b"2"]}


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"x": [1, 2], "name": ["a", "b"]}, "has no column 'label'"),
        ({**IMAGE, "label": [[1], [1, 2]]}, "column 'label' holds list.*no label"),
        ({**IMAGE, "label": pa.array([1, 2], pa.timestamp("s"))}, "column 'label' holds timestamp"),
        ({"x": [[1.0], [1.0, 2.0]], "label": [0, 1]}, "column 'x' holds list.*no number"),
        ({"x": [{"a": 1}, {"a": 2}], "label": [0, 1]}, "column 'x' holds struct.*no number"),
        ({"x": pa.array([1, 2], pa.timestamp("s")), "label": [0, 1]}, "column 'x' holds timestamp"),
        ({"x": ["a", "b"], "label": [0, 1]}, "column 'x' holds string"),
        ({"image": [{"path": "a"}, {"path": "b"}], "label": [0, 1]}, "column 'image' holds struct.*give encoded bytes"),
        ({"image": [[1], [2]], "label": [0, 1]}, "column 'image' holds list"),
        ({"x": pa.array([], pa.int64()), "label": pa.array([], pa.int64())}, "has no rows"),
        ({**IMAGE, "label": pa.array([None, None], pa.int64())}, "none of the 2 rows"),
        ({**IMAGE, "label": pa.array([2**63, 0], pa.uint64())}, "a.parquet:0: the label is too large"),
        ({**IMAGE, "label": [1.5, 0.0]}, "a.parquet:0: label 1.5 is not a whole number"),
        ({**IMAGE, "label": [0, 0]}, "only the class '0'"),
        ({**IMAGE, "label": ["x" * 100_000, "X" * 100_000]}, "look like one class"),
        ({"x": pa.array([b"1" * 16] * 2, pa.uuid()), "label": [0, 1]}, "column 'x' holds .*uuid"),
    ],
)
def test_parquet_columns_that_cannot_be_used_are_refused(tmp_path, columns, reason):
    refused(read_parquet, written(tmp_path / "a.parquet", columns), reason)


def test_duplicate_columns_in_parquet(tmp_path):
    columns = pa.Table.from_arrays([pa.array([1, 2]), pa.array([1, 2]), pa.array([0, 1])], names=["x", "x", "label"])
    refused(read_parquet, written(tmp_path / "a.parquet", columns), "two columns 'x'")


def test_int96_is_a_time_and_no_number(tmp_path):
    columns = {"x": pa.array([1, 2], pa.timestamp("ns")), "label": [0, 1]}
    path = written(tmp_path / "a.parquet", columns, use_deprecated_int96_timestamps=True)
    refused(read_parquet, path, "column 'x' holds timestamp")


def test_text_that_is_no_text(tmp_path):
    wrong = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff\xfe", b"a"]).buffers())
    refused(read_parquet, written(tmp_path / "a.parquet", {**IMAGE, "label": wrong}), "cannot read")


def test_many_row_groups(tmp_path):
    path = written(
        tmp_path / "a.parquet", {"image": [b"x%d" % k for k in range(2000)], "label": [0, 1] * 1000}, row_group_size=1
    )
    train, *_ = read_parquet(path)
    assert train.read(1999) == b"x1999" and len(train) == 2000


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", b"PAR1" + b"\0" * 100 + b"PAR1", b"PARE" * 40])
def test_files_that_are_no_parquet(tmp_path, content):
    refused(read_parquet, table(tmp_path, content, "a.parquet"), "cannot read")


def test_damaged_parquet(tmp_path):
    labels = [str(k % 7) + "x" * 50 for k in range(5000)]
    path = written(tmp_path / "a.parquet", {"x": list(range(5000)), "label": labels}, compression="zstd")
    whole = path.read_bytes()
    for cut in (10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        refused(read_parquet, path, "cannot read")
    path.write_bytes(whole[:4] + b"\xaa" * 2000 + whole[2004:])
    refused(read_parquet, path, "cannot read")


def test_a_damaged_page_of_images_is_named_by_row(tmp_path):
    content = bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8))
    columns = {"image": [content, content[::-1]], "label": [0, 1]}
    path = written(tmp_path / "a.parquet", columns, compression="zstd", use_dictionary=False)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xaa" * 3000 + whole[3004:])
    train, *_ = read_parquet(path)
    with pytest.raises(BadImage, match="cannot be read"):
        train.bytes_of(0)


def test_folders_of_parquet_that_do_not_fit(tmp_path):
    written(tmp_path / "a.parquet", {"x": [1, 2], "label": [0, 1]})
    written(tmp_path / "b.parquet", {"x": [1.0, 2.0], "label": [0, 1]})
    refused(read_parquet, tmp_path, "b.parquet has other columns than .*a.parquet: x double instead of x int64")
    parted = tmp_path / "parted"
    (parted / "label=0").mkdir(parents=True)
    written(parted / "label=0" / "a.parquet", {"x": [1, 2]})
    refused(read_parquet, parted, "holds no .*parquet files itself")
    refused(read_parquet, tmp_path / "gone.parquet", "no such file")


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    path = written(tmp_path / "a.parquet", {"x": [1, 2], "label": [0, 1]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"reading Parquet needs pyarrow: pip install 'labelsieve\[parquet\]'"):
        read_parquet(path)


# saved datasets


def saved(folder, shards, features=None):
    """A folder as save_to_disk writes it."""
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
    train, test, valid, bad = read_saved_dataset(folder)
    assert train.classes == ("cat", "dog") and train.labels.tolist() == [0, 1, 1, 1, 0] and not bad
    assert shades(pickle.loads(pickle.dumps(train))) == [0, 1, 2, 3, 4] and (test, valid) == (None, None)
    assert train.names[3] == "data-00001-of-00002.arrow:0"


def test_a_saved_dict_of_datasets(tmp_path):
    folder = tmp_path / "mine"
    for place, split in enumerate(("train", "validation", "test")):
        rows = image_rows(10 * place, [0, 1]).replace_schema_metadata(huggingface(["cat", "dog"]))
        saved(folder / split, [rows])
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation", "test"]}))
    train, test, valid, _ = read_saved_dataset(folder)
    assert shades(train) == [0, 1] and shades(test) == [20, 21] and shades(valid) == [10, 11]
    assert test.classes == ("cat", "dog")


def test_saved_numbers(tmp_path):
    rows = pa.table({"x": [1.0, 2.0, None], "label": ["a", "b", "a"]})
    train, _, _, bad = read_saved_dataset(saved(tmp_path / "mine", [rows]))
    assert train.values.tolist() == [[1], [2]] and [row.name for row in bad] == ["data-00000-of-00001.arrow:2"]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("state.json", b"{", "no JSON"),
        ("state.json", b"[]", "no JSON object"),
        ("state.json", b"\xff", "no JSON"),
        ("state.json", b"{}", "names no data files"),
        ("state.json", b'{"_data_files": [{"filename": "../x"}]}', "has no file '../x'"),
        ("state.json", b'{"_data_files": [{"filename": "gone.arrow"}]}', "has no file 'gone.arrow'"),
        ("state.json", b'{"_data_files": [3]}', "has no file 3"),
        ("state.json", b'{"_indices_data_files": [1], "_data_files": []}', "flatten_indices"),
        ("dataset_dict.json", b"{}", "names no splits"),
        ("dataset_dict.json", b'{"splits": ["../x"]}', "has no folder '../x'"),
        ("data-00000-of-00001.arrow", b"", "cannot read"),
        ("data-00000-of-00001.arrow", b"\xff\xff\xff\xff\x10\0\0\0 not arrow", "cannot read"),
    ],
)
def test_saved_datasets_that_are_damaged(tmp_path, file, content, reason):
    folder = saved(tmp_path / "mine", [image_rows(0, [0, 1])])
    (folder / file).write_bytes(content)
    refused(read_saved_dataset, folder, reason)


def test_a_saved_stream_that_is_cut_off(tmp_path):
    folder = saved(tmp_path / "mine", [image_rows(0, [0, 1, 0, 1])])
    file = next(folder.glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:-400])
    refused(read_saved_dataset, folder, "cannot read .*arrow")


def test_a_dict_without_training_data(tmp_path):
    saved(tmp_path / "mine" / "extra", [image_rows(0, [0, 1])])
    (tmp_path / "mine" / "dataset_dict.json").write_text('{"splits": ["extra"]}')
    refused(read_saved_dataset, tmp_path / "mine", "has no split train")


def test_wide_tables_are_read_and_rows_can_be_picked(tmp_path):
    wide = ",".join(f"c{k}" for k in range(10_000)) + ",label\n"
    rows = (",".join([str(row)] * 10_000) + f",{'ab'[row % 2]}\n" for row in range(4))
    train, *_ = read_table(table(tmp_path, wide + "".join(rows)))
    assert train.values.shape == (4, 10_000)
    train, *_ = read_table(table(tmp_path, "x,c,label\n1,0.1,a\n3,0.1,b\n5,0.1,a\n"))
    assert train.at([2, 0]).values[:, 0].tolist() == [5, 1] and train.at([2]).names == ["mine.csv:4"]
