"""Label files."""

import numpy as np
import pytest
import torch

from labelsieve.data.labels import read_label_file, write_labels
from labelsieve.errors import InputError
from tests.test_files import read_in_background


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
        ("index,label\n0,a\n1,b\n2,dog\n", r"labels\.csv:4: 'dog' is not a class; classes: a, b"),
        ("index,label\n0,a\n1,b\n2,7\n", "label 7 at position 2 .* out of range"),
        ("index,label\n0,a\n1\n2,b\n", r"labels\.csv:3 has 1 cell, but the header has 2; correct"),
        ("index,label\n0,a\n1,b,c\n2,b\n", r"labels\.csv:3 has 3 cells, but the header has 2; correct"),
        ("name\na\nb\na\n", "no column 'label'"),
        ("", r"labels\.csv is empty"),
    ],
)
def test_error_names_the_line_of_a_label_file(tmp_path, text, reason):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_label_file(tmp_path / "labels.csv", ["a", "b"], 3)


def test_label_file_without_label_column_is_an_error(tmp_path):
    (tmp_path / "truth.csv").write_text("name,true\na.png,cat\n")
    with pytest.raises(InputError, match=r"truth\.csv has no column 'label' \(columns: name, true\); rename the one"):
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


def test_index_orders_the_rows_and_class_names_may_be_numbers(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("index,label\n3,c\n2,b\n1,a\n0,a\n")
    assert read_label_file(path, ("a", "b", "c"), 4).labels.tolist() == [0, 0, 1, 2]
    path.write_text("index,label\n0,a\n0,b\n")
    with pytest.raises(
        InputError, match=r"labels\.csv:3: second row for sample 0 \('b' here, 'a' in line 2\); remove one"
    ):
        read_label_file(path, ("a", "b"), 2)
    path.write_text("index,label\n0,a\n2,b\n")
    with pytest.raises(InputError, match="must contain 0 to 1, each once"):
        read_label_file(path, ("a", "b"), 2)
    path.write_text("label\n0\n1\n2\n")
    with pytest.raises(InputError, match=r"labels\.csv:2: '0' is not a class; classes: 1, 2, 3"):
        read_label_file(path, ("1", "2", "3"), 3)
    assert read_label_file(path, ("a", "b", "c"), 3).labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("9,x.png,b\n", r"labels\.csv:5: second row for x\.png \('b' here, 'a' in line 2\); remove one"),
        ("9,x.png,a\n", r"labels\.csv:5: second row for x\.png \('a' here, 'a' in line 2\)"),
        (
            "9,-y.png,b\n",
            r"labels\.csv:5: second row for -y\.png \('b' here, 'b' in line 3\)",
        ),  # there with an apostrophe
    ],
)
def test_two_rows_for_one_sample_are_an_error(tmp_path, more, message):
    path = tmp_path / "labels.csv"
    lines = "index,name,label\n0,x.png,a\n1,'-y.png,b\n7,other.png,a\n"
    path.write_text(lines)
    assert read_label_file(path, ("a", "b"), 2, ("-y.png", "x.png")).labels.tolist() == [1, 0]
    path.write_text(lines + more)
    with pytest.raises(InputError, match=message):
        read_label_file(path, ("a", "b"), 2, ("-y.png", "x.png"))


def test_samples_with_equal_names_are_identified_by_index(tmp_path):
    names = ("x.png", "y.png", "x.png")
    write_labels(tmp_path / "labels.csv", torch.tensor([0, 1, 1]), ("a", "b"), names)
    assert read_label_file(tmp_path / "labels.csv", ("a", "b"), 3, names).labels.tolist() == [0, 1, 1]
    (tmp_path / "short.csv").write_text("name,label\nx.png,b\ny.png,a\n")
    assert read_label_file(tmp_path / "short.csv", ("a", "b"), 3, names).labels.tolist() == [1, 0, 1]


def test_header_is_read_as_in_tables(tmp_path):
    """Blank lines before it and spaces around its names do not count."""
    (tmp_path / "labels.csv").write_text("\nindex, label\n1,a\n0,b\n\n2,a\n")
    assert read_label_file(tmp_path / "labels.csv", ["a", "b"], 3).labels.tolist() == [1, 0, 0]


def test_interrupted_writing_leaves_no_partial_file(tmp_path, monkeypatch):
    path = tmp_path / "labels.csv"
    write_labels(path, torch.tensor([0, 1]), ["a", "b"])
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda handle: 1 / 0)
    for name in ("labels.csv", "labels.npy"):
        with pytest.raises(ZeroDivisionError):
            write_labels(tmp_path / name, torch.tensor([1, 1]), ["a", "b"])
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["labels.csv", "labels.npy"])
def test_label_files_are_written_to_pipes(tmp_path, name):
    received = read_in_background(tmp_path / name)
    write_labels(tmp_path / name, torch.tensor([0, 1]), ["a", "b"])
    (tmp_path / f"copy-{name}").write_bytes(received())
    assert read_label_file(tmp_path / f"copy-{name}", ["a", "b"], 2).labels.tolist() == [0, 1]
