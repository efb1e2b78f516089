"""The report of labelsieve check."""

import pytest

from labelsieve.data.check import check
from labelsieve.errors import InputError
from tests.data.builders import picture


def test_check_reports_contents_and_all_faults(folder, capsys):
    check(str(folder))
    report = capsys.readouterr().out
    assert "train: 60 samples of 3 classes: apple 20, pear 20, plum 20" in report
    assert "test: 15 samples of 3 classes" in report and "sizes: 16 x 16 (60)" in report
    assert "all samples can be used" in report
    (folder / "train" / "apple" / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing")
    (folder / "train" / "pear" / "empty.png").touch()
    (folder / "train" / "plum" / "notes.txt").write_text("plums")
    copied = (folder / "train" / "apple" / "003.png").read_bytes()
    (folder / "test" / "pear" / "copied.png").write_bytes(copied)
    (folder / "train" / "plum" / "copied.png").write_bytes(copied)
    with pytest.raises(InputError, match=r"3 files or rows of .* cannot be used"):
        check(str(folder))
    report = capsys.readouterr().out
    bad = [line for line in report.splitlines() if line.startswith("bad: ")]
    assert len(bad) == 3 and all(name in "".join(bad) for name in ("cut.jpg", "empty.png", "notes.txt"))
    leak = "  train/apple/003.png, test/pear/copied.png\n"
    assert f"1 sample is in train and in test: the error on test will be too low\n{leak}" in report
    twice = "  train/apple/003.png, train/plum/copied.png\n"
    assert f"1 sample of train occurs more than once, 1 with different labels\n{twice}" in report


def test_check_reports_sizes_and_imbalance(tmp_path, capsys):
    for number, (name, count) in enumerate({"few": 3, "many": 10}.items()):
        (tmp_path / "mine" / name).mkdir(parents=True)
        for index in range(count):
            side = 16 + index if name == "many" else 16
            picture(number, index, side).save(tmp_path / "mine" / name / f"{index}.png")
    check(str(tmp_path / "mine"))
    report = capsys.readouterr().out
    assert "  imbalanced: many has 10 samples, few 3, 3.3 times as many\n" in report
    assert "  sizes: 10 different, heights 16 to 25, widths 16 to 25, most common 16 x 16 (4)\n" in report
    assert "only folders" not in report
    (tmp_path / "mine" / "many" / "9.png").unlink()
    check(str(tmp_path / "mine"))
    assert "imbalanced" not in capsys.readouterr().out  # three times as many is not


def test_check_reports_class_folders_that_contain_only_folders(folder, tmp_path, capsys):
    above = tmp_path / "above"
    above.mkdir()
    (folder / "train").rename(above / "fruit")
    (folder / "test").rename(above / "new")
    check(str(above))
    line = "  only folders in fruit, new: if these are the classes, pass the folder that contains them\n"
    assert line in capsys.readouterr().out
    (above / "new").rename(folder / "val")
    check(str(above / "fruit"))
    assert "only folders" not in capsys.readouterr().out


def test_check_describes_texts(tmp_path, capsys):
    (tmp_path / "train.csv").write_text("text,intent\none,a\nthree,b\none,b\n")
    (tmp_path / "test.csv").write_text("text,intent\nthree,b\n")
    check(str(tmp_path))
    report = capsys.readouterr().out
    assert f"{tmp_path}: a table of texts for each split\n" in report
    assert "train: 3 samples of 2 classes: a 1, b 2\n  texts of 3 to 5 characters, median 3\n" in report
    assert "  train.csv:3, test.csv:2\n" in report
    assert "1 sample of train occurs more than once, 1 with different labels\n  train.csv:2, train.csv:4\n" in report
    (tmp_path / "train.csv").write_text("text,intent\none,a\none,a\n" + "two,a\ntwo,b\n")
    check(str(tmp_path))
    listed = "  train.csv:4, train.csv:5\n  train.csv:2, train.csv:3\n"  # different labels first
    assert f"2 samples of train occur more than once, 1 with different labels\n{listed}" in capsys.readouterr().out
    (tmp_path / "test.csv").write_text("text,intent\n,b\nfour,a\n")
    with pytest.raises(InputError, match="1 file or row"):
        check(str(tmp_path))
    assert "bad: test.csv:2: no text; add one or remove the row" in capsys.readouterr().out
