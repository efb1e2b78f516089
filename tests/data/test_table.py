"""CSV and TSV files."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.auto.samples import read_texts
from labelsieve.data import ReadOptions, load_data
from labelsieve.data.columns import assign_columns
from labelsieve.data.images import Pictures, Unusable
from labelsieve.data.load import find
from labelsieve.data.sets import Labelled, Texts
from labelsieve.data.table import (
    MAX_LENGTH,
    read_records,
    read_table,
    read_table_folder,
    read_unlabelled_table,
    read_unlabelled_texts,
)
from labelsieve.errors import InputError
from tests.data.builders import pictures, refused, shades, table


def test_paths_and_words(tmp_path):
    pictures(tmp_path, "a.png", "b/c.png", "d.png")
    path = table(tmp_path, f"path,label,note\na.png,dog,x\n./b/c.png,cat,\n{tmp_path / 'd.png'},dog,y\n")
    train, test, valid, bad = read_table(path)[:4]
    assert isinstance(train, Pictures) and (test, valid, bad) == (None, None, [])
    assert train.classes == ("cat", "dog") and train.labels.tolist() == [1, 0, 1]
    assert train.names[1] == "./b/c.png" and shades(train) == [0, 1, 2]


def test_numbers_and_splits(tmp_path):
    text = "id,x,y,Label,Split,clean_label\n" + "7,1,2.5,a,TRAIN,a\n8,-3e2,4,b,train,a\n9,5,6,a,Test,a\n9,0,1,b,val,b\n"
    train, test, valid, bad = read_table(table(tmp_path, text))[:4]
    assert isinstance(train, Labelled) and train.columns == ("x", "y") and not bad
    assert train.images.dtype == torch.float32 and train.images.tolist() == [[1, 2.5], [-300, 4]]
    assert train.labels.tolist() == [0, 1] and train.clean.tolist() == [0, 0] and train.names[0] == "mine.csv:2"
    assert test.images.tolist() == [[5, 6]] and valid.labels.tolist() == [1] and valid.names == ["mine.csv:5"]


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
def test_separators_encodings_and_line_ends_give_equal_tables(tmp_path, text):
    train, _, _, bad = read_table(table(tmp_path, text))[:4]
    assert train.images.tolist() == [[1], [2]] and train.labels.tolist() == [0, 1]
    assert train.classes == ("a", "b") and not bad


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("x,label\n", "a header but no rows"),
        ("x,name\n1,a\n", "has no column 'label' .columns: x, name."),
        ("x,x,label\n1,2,a\n", "two columns 'x'"),
        ("label,target,x\na,b,1\n", "both 'label' and 'target' could be the label column"),
        ('"a\nb",label\n1,x\n', "none of the 1 rows|only the class"),
        ('"a\nb",c\n1,x\n', r"columns: a\\nb, c"),
        ("label\na\nb\n", "no inputs"),
        ("id,label\n1,a\n2,b\n", "no inputs"),
        ("x,label\n1;a\n", r"mine.csv:2 has 1 cell, but the header has 2"),
        ("x,label\n1,a\n2,b,c\n", r"mine.csv:3 has 3 cells, but the header has 2"),
        ('x,label\n1,a\n2,"b\n3,a\n', r"mine.csv:3: a quoted cell is not closed"),
        ('x,label\n1,a\n2,"b"b\n', r"mine.csv:3: a quoted cell"),
        ("x,label\n1,a\0\n", r"mine.csv:2 contains a NUL byte"),
        (
            "x,label\n1,caf\u00e9\n".encode("latin-1"),
            r"not UTF-8 text .line 2, byte 0xe9.; save it as UTF-8 .*, or convert it: iconv",
        ),
        (PLAIN.encode("utf-16"), "is UTF-16 text; convert it: iconv"),
        (PLAIN.encode("utf-16-le"), "contains a NUL byte"),
        (b"x,label\n1,\xc3", "not UTF-8 text"),
        ("x,label\n" + "1" * (MAX_LENGTH + 1) + ",a\n", r"mine.csv:2 is longer than"),
        ('x,label\n1,"' + ("a" * 1000 + "\n") * 17_000 + '"\n', r"mine.csv:2: .* too long"),
        ("x,label\n1,a\n2,01\n", "mix numbers"),
        ("x,label\n1,01\n3,1\n", "'01' and '1' look like one class"),
        ("x,label\n1,1.0\n3,1\n", "'1.0' and '1' look like one class"),
        ("x,label\n1, a\n3,a\n", "' a' and 'a' look like one class"),
        ("x,label\n1,1\n3,1.5\n", r"mine.csv:3: label '1.5' is not an integer"),
        ("x,label\n1,1\n3,123456789012345678901234567890\n", r"mine.csv:3: the label is too large"),
        ("x,label\n1,1\n3,cat\n", "mix numbers .'1'. and words .'cat'."),
        ("x,label\n1,a\n2,a\n", "only the class 'a'"),
        (
            "x,y,label\n1,2,a\n3,zz,b\n5,6,a\n",
            "^mine.csv:3: column 'y' contains 'zz', which is not a number.*; without 1 unusable row, .*only the class",
        ),
        (
            "x,label\n1,a\n2,\n3,NA\n",
            "^mine.csv:3: no label.*; without 2 unusable rows, .*only the class",
        ),
        ("x,label\n" + "".join(f"{k},n{k}\n" for k in range(30)), "seems to be an id"),
        ("x,label\n1,\n2,NA\n", "none of the 2 rows can be used; mine.csv:2: no label"),
        ("name,label\nbob,a\nliz,b\n", "none of the 2 rows .* column 'name' contains 'bob', which is not a number"),
        ("x,label,split\n1,a,test\n2,b,test\n", "no usable row has the split train"),
        (
            "x,label,split\n1,a,train\n2,b,train\n3,c,test\n",
            "mine.csv:4 in the test .* no training row has",
        ),
        ("path,label\nno.png,a\nnot.png,b\n", "none of the 2 rows"),
    ],
)
def test_error_names_the_line_of_a_bad_table(tmp_path, text, reason):
    refused(read_table, table(tmp_path, text), reason)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"label": "lable"}, "has no column 'lable' .did you mean label"),
        ({"image": "picture"}, "has no column 'picture'"),
        ({"label": "x", "image": "x"}, "cannot be both"),
    ],
)
def test_unknown_columns_are_an_error(tmp_path, columns, reason):
    refused(read_table, table(tmp_path, PLAIN), reason, **columns)


def test_columns_can_be_chosen(tmp_path):
    pictures(tmp_path, "a.png", "b.png")
    path = table(tmp_path, "label,pic,kind\n0,a.png,x\n0,b.png,y\n")
    train, *_ = read_table(path, label="kind", image="pic")
    assert train.classes == ("x", "y") and train.names == ["a.png", "b.png"]


def test_folder_or_missing_file_is_not_a_table(tmp_path):
    refused(read_table, tmp_path, "cannot read")
    refused(read_table, tmp_path / "gone.csv", "cannot read .*No such file")


def test_all_unusable_rows_are_reported_at_once(tmp_path):
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
    train, _, _, bad = read_table(table(tmp_path, "x,label\n" + "\n".join(rows) + "\n"))[:4]
    assert train.images.flatten().tolist() == [1, 6, 7] and train.labels.tolist() == [0, 1, 0]
    assert train.names == ["mine.csv:2", "mine.csv:7", "mine.csv:14"]
    assert [name for name, _ in bad] == [f"mine.csv:{line}" for line in (3, 4, 5, 6, 8, 9, 10, 11, 12, 13)]
    reasons = [reason for _, reason in bad]
    assert "'two', which is not a number" in reasons[0] and "no label" in reasons[1] and "'=1+1'" in reasons[8]
    assert "contains inf" in reasons[4] and "contains nan" in reasons[5] and "contains inf" in reasons[6]


def test_unusable_paths_are_reported(tmp_path):
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
    train, _, _, bad = read_table(table(home, "path,label,split\n" + "\n".join(lines)))[:4]
    assert train.names == ["a.png", "b.png", "./a.png"]
    expected = ["not a file", "is outside", "is outside", "is a URL", "no image path", "not a file"]
    expected += ["has the label 'y' here and 'x' in mine.csv:2", "use / in paths", "not a file"]
    expected += ["unknown split 'holdout'", "not a file"]
    assert len(bad) == len(expected)
    for row, reason in zip(bad, expected, strict=True):
        assert isinstance(row, Unusable) and reason in row.reason and "\n" not in row.reason and len(row.reason) < 400
    assert [row.name for row in bad][:3] == ["mine.csv:4", "mine.csv:5", "mine.csv:6"]


def test_duplicate_rows_are_kept(tmp_path):
    train, _, _, bad = read_table(table(tmp_path, PLAIN + "1,a\n"))[:4]
    assert len(train) == 3 and not bad


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_raise_input_error(tmp_path_factory, content):
    path = table(tmp_path_factory.mktemp("any"), b"x,label\n1,a\n2,b\n" + content)
    try:
        read_table(path)
    except InputError as error:
        assert "\n" not in str(error)


def test_column_names_are_compared_a_linear_number_of_times():
    class Name(str):
        compared = 0

        def __eq__(self, other):
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    columns = [Name(f"c{k}") for k in range(20_000)] + [Name("label")]
    roles = assign_columns(columns, "mine.csv", None, None)
    assert roles.label == "label" and len(roles.numbers) == 20_000 and Name.compared < 20 * len(columns)


def test_wide_tables_are_read_and_indexed(tmp_path):
    wide = ",".join(f"c{k}" for k in range(10_000)) + ",label\n"
    rows = (",".join([str(row)] * 10_000) + f",{'ab'[row % 2]}\n" for row in range(4))
    train, *_ = read_table(table(tmp_path, wide + "".join(rows)))
    assert train.images.shape == (4, 10_000)
    train, *_ = read_table(table(tmp_path, "x,c,label\n1,0.1,a\n3,0.1,b\n5,0.1,a\n"))
    part = train.at(torch.tensor([2, 0]))
    assert part.images[:, 0].tolist() == [5, 1] and part.names == ["mine.csv:4", "mine.csv:2"]


def test_error_says_how_to_choose_the_label_column(tmp_path):
    (tmp_path / "t.csv").write_text("x;Art der Sache\n1;a\n2;b\n")
    with pytest.raises(InputError, match="choose the label column, such as --label-column 'Art der Sache'"):
        load_data(str(tmp_path / "t.csv"))


def test_decimal_comma_is_reported(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("x;label\n11,25;a\n-2,5e3;b\n")
    with pytest.raises(InputError, match=r"contains '11,25', which has a decimal comma; .*11\.25"):
        load_data(str(tmp_path / "t.csv"))
    (tmp_path / "new.csv").write_text('x\n3\n"4,5"\n')
    with pytest.raises(InputError, match=r"new\.csv:3: column 'x' contains '4,5', which has a decimal comma"):
        read_unlabelled_table(tmp_path / "new.csv", ("a", "b"), None, ("x",))
    (tmp_path / "old.csv").write_bytes("x;größe\n1;2\n".encode("cp1252"))
    with pytest.raises(InputError, match="save it as UTF-8"):
        read_unlabelled_table(tmp_path / "old.csv", ("a", "b"), None, ("x",))


TEXTS = 'text,category\n"Where, then, is it?",lost\n"two\nlines",late\n42,lost\n'


def test_texts_are_found_by_the_usual_names(tmp_path):
    train, test, valid, bad, kind, _ = read_table(table(tmp_path, TEXTS))
    assert isinstance(train, Texts) and (test, valid, bad, kind) == (None, None, [], "a table of texts")
    assert train.texts == ["Where, then, is it?", "two\nlines", "42"]
    assert train.classes == ("late", "lost") and train.labels.tolist() == [1, 0, 1]
    assert train.names == ["mine.csv:2", "mine.csv:3", "mine.csv:5"]
    with pytest.raises(InputError, match=r"^texts need a backbone: pip install 'labelsieve\[sentences\]'.*features$"):
        load_data(str(tmp_path / "mine.csv"))


@pytest.mark.parametrize(
    ("header", "text", "label"),
    [
        ("Title,CONTENT,label", "CONTENT", "label"),  # the more usual name
        ("id,length,Review,Sentiment", "Review", "Sentiment"),
        ("question,y,intent", "question", "y"),
        ("a,b,title,class,category", "title", "class"),
    ],
)
def test_text_and_label_columns_are_chosen_by_name(tmp_path, header, text, label):
    names = header.split(",")
    rows = [[f"k{row % 2}" if name == label else f"{name} {row}" for name in names] for row in range(4)]
    train = read_table(table(tmp_path, "\n".join([header, *map(",".join, rows)]))).train
    assert isinstance(train, Texts)
    assert train.texts == [f"{text} {row}" for row in range(4)] and train.labels.tolist() == [0, 1, 0, 1]


def test_text_column_can_be_named(tmp_path):
    path = table(tmp_path, "path,text,tongue,label\na.png,one,eins,a\nb.png,two,zwei,b\n")
    train = find(str(path), ReadOptions(text="tongue")).train
    assert isinstance(train, Texts) and train.texts == ["eins", "zwei"]
    refused(read_table, path, "no column 'tongu' .*tongue", text="tongu")
    refused(read_table, path, "'label' cannot be both text and label", text="label")
    refused(read_table, path, "either --image-column or --text-column", text="text", image="path")


def test_tables_of_numbers_keep_their_meaning(tmp_path):
    """Columns with the names of texts or of their labels are features if they contain numbers."""
    numbers = "text,title,category,label\n1,2,3,a\n4,nan,6,b\n7,8,9,b\n"
    train, _, _, bad = read_table(table(tmp_path, numbers))[:4]
    assert isinstance(train, Labelled) and train.columns == ("text", "title", "category")
    assert train.images.tolist() == [[1, 2, 3], [7, 8, 9]] and "'title' contains nan" in bad[0].reason
    refused(read_table, table(tmp_path, "x,category\n1,2\n3,4\n"), "has no column 'label'")
    mostly = "text,label\n" + "".join(f"{row},{'ab'[row % 2]}\n" for row in range(5)) + "six,a\n" * 4
    train, _, _, bad = read_table(table(tmp_path, mostly))[:4]
    assert isinstance(train, Labelled) and len(train) == 5 and len(bad) == 4


def test_empty_texts_are_unusable(tmp_path):
    path = table(tmp_path, "text,label\none,a\n ,b\ntwo,b\n,a\nthree,\n")
    train, _, _, bad = read_table(path)[:4]
    assert isinstance(train, Texts) and train.texts == ["one", "two"]
    empty = "no text; add one or remove the row"
    assert bad[:2] == [Unusable("mine.csv:3", empty), Unusable("mine.csv:5", empty)]
    assert bad[2] == Unusable("mine.csv:6", "no label; add one or remove the row")


def test_error_for_other_texts_names_the_option(tmp_path):
    refused(read_table, table(tmp_path, "tongue,label\nein Wort,a\nzwei Wörter,b\n"), "pass --text-column if")


def test_split_tables_of_a_folder(tmp_path):
    table(tmp_path, "text,category,split\none,a,x\ntwo,b,x\nthree,c,x\n", "train.csv")
    table(tmp_path, "category\ttext\nb\tfour\na\t\n", "Test.tsv")
    table(tmp_path, "text,category\nfive,c\n", "dev.csv")
    table(tmp_path, "anything", "notes.csv")
    train, test, valid, bad, kind, _ = find(str(tmp_path), ReadOptions())
    assert kind == "a table of texts for each split" and train.classes == ("a", "b", "c")
    assert isinstance(train, Texts) and isinstance(test, Texts) and isinstance(valid, Texts)
    assert (train.texts, test.texts, valid.texts) == (["one", "two", "three"], ["four"], ["five"])
    assert test.labels.tolist() == [1] and valid.labels.tolist() == [2]
    assert test.names == ["Test.tsv:2"] and [each.name for each in bad] == ["Test.tsv:3"]


def test_split_tables_of_numbers_and_of_image_paths(tmp_path):
    (tmp_path / "numbers").mkdir()
    table(tmp_path / "numbers", "x,z,label\n1,2,a\n3,4,b\n", "train.csv")
    table(tmp_path / "numbers", "z,x,label\n5,6,b\n", "test.csv")
    train, test = find(str(tmp_path / "numbers"), ReadOptions())[:2]
    assert isinstance(train, Labelled) and isinstance(test, Labelled)
    assert train.images.tolist() == [[1, 2], [3, 4]] and test.images.tolist() == [[6, 5]]
    pictures(tmp_path / "paths", "images/0.png", "images/1.png", "images/2.png")
    table(tmp_path / "paths", "path,label\nimages/1.png,a\nimages/0.png,b\n", "train.csv")
    table(tmp_path / "paths", "path,label\nimages/2.png,a\n", "test.csv")
    train, test = find(str(tmp_path / "paths"), ReadOptions())[:2]
    assert shades(train) == [1, 0] and shades(test) == [2]


def test_unsuitable_split_tables_are_an_error(tmp_path):
    table(tmp_path, "text,label\none,a\ntwo,b\n", "train.csv")
    table(tmp_path, "text\nfour\n", "test.csv")
    refused(
        read_table_folder, tmp_path, r"test.csv has no column 'label', but .*train.csv has; add it, or pass .*train.csv"
    )
    table(tmp_path, "text,label\nfour,c\n", "test.csv")
    refused(read_table_folder, tmp_path, "test.csv:2 in the test split has the label 'c', which no training row has")
    table(tmp_path, "text,label\nfour,a\n", "test.tsv")
    refused(read_table_folder, tmp_path, "both test.csv and test.tsv; remove one")


def test_folders_of_classes_with_a_table_are_still_folders_of_images(tmp_path):
    pictures(tmp_path, "cat/1.png", "dog/2.png")
    table(tmp_path, "path,label\ncat/1.png,x\ndog/2.png,y\n", "train.csv")
    train = find(str(tmp_path), ReadOptions()).train
    assert train.classes == ("cat", "dog")


def test_texts_without_labels(tmp_path):
    path = table(tmp_path, "id,Text\n1,one\n2, \n3,three\n")
    found, bad = read_unlabelled_texts(path, ("a", "b"), None)
    assert found.texts == ["one", "three"] and found.names == ["mine.csv:2", "mine.csv:4"]
    assert found.labels.tolist() == [0, 0] and [each.name for each in bad] == ["mine.csv:3"]
    assert read_unlabelled_texts(path, ("a", "b"), "id")[0].texts == ["1", "2", "3"]
    with pytest.raises(InputError, match="no column 'words'; pass the text column with --text-column"):
        read_unlabelled_texts(path, ("a", "b"), "words")
    with pytest.raises(InputError, match="no texts in the column 'Text'"):
        read_unlabelled_texts(table(tmp_path, "id,Text\n1,\n"), ("a", "b"), None)


def test_empty_cells_of_a_table_of_one_column_are_rows(tmp_path):
    path = table(tmp_path, '\n \ntext\nhello\n""\n\n \nworld\n')
    found, bad = read_unlabelled_texts(path, ("a", "b"), None)
    assert found.texts == ["hello", "world"] and [each.name for each in bad] == ["mine.csv:5", "mine.csv:7"]
    assert read_texts(f"{path}:text", 4) == ["hello", "", " ", "world"]
    assert read_records(table(tmp_path, '""\nred\n')) == [(1, [""]), (2, ["red"])]  # without a header
    assert read_records(table(tmp_path, "a,b\n \n1,2\n")) == [(1, ["a", "b"]), (3, ["1", "2"])]
