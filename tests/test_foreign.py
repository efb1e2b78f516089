"""Audits of anybody's probabilities: the files that they are read from, and what comes after them."""

import csv
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labelsieve.audit.inputs import is_header, numbers_of, read_given, read_probabilities
from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.review.desk import Desk
from labelsieve.review.session import farewell
from labelsieve.text import rounded
from tests.made_runs import make_audit, make_run

NAMES = ["red", "green", "blue"]  # not in the order of the alphabet


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """90 samples whose classifier knows the truth; every tenth label is wrong."""
    monkeypatch.chdir(tmp_path)
    true = np.arange(90) % 3
    given = np.where(np.arange(90) % 10 == 0, (true + 1) % 3, true)
    probs = np.full((90, 3), 0.04)
    probs[np.arange(90), true] = 0.92
    np.save("y.npy", np.array(NAMES)[given])
    np.save("p.npy", probs)
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    texts = [f"=text {i}, <b>{'long ' * 50}</b>" for i in range(90)]
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["words", "label", *(f"p_{name}" for name in NAMES)])
        writer.writerows([texts[i], NAMES[given[i]], *probs[i]] for i in range(90))
    return tmp_path


AUDIT = ["audit", "--labels", "t.csv", "--pred-probs", "t.csv", "--text", "t.csv:words", "--out", "found"]


def refused(capsys, *argv):
    assert execute(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and "pickle" not in said
    return said


# What is not written over


def test_the_audit_writes_over_no_file_of_ones_own(folder, capsys):
    mine = [*AUDIT[:-1], "."]
    labels = Path("labels.csv")
    labels.write_text("id,label\n1,red\n")
    assert "labels.csv is there already" in refused(capsys, *mine) and labels.read_text() == "id,label\n1,red\n"
    labels.unlink()
    Path("corrected.csv").write_text("mine")
    assert "corrected.csv is there already" in refused(capsys, *mine, "--export", "corrected")
    Path("corrected.csv").unlink()
    assert [execute([*mine, "--export", "corrected"]) for _ in range(2)] == [0, 0]
    assert execute([*mine[:5], "--out", "."]) == 0  # without texts, over one with them


# The way on


def test_the_audit_shows_its_texts_and_names_the_next_steps(folder, capsys):
    assert execute(AUDIT) == 0
    out = capsys.readouterr().out
    assert "labelsieve report found\n" in out and "labelsieve review found\n" in out
    shown = [line for line in out.splitlines() if line.startswith("       =text ")]
    assert len(shown) == 10 and all(line.endswith("…") and len(line) <= 107 for line in shown)
    with (folder / "found" / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert all(row["text"].startswith(f"'=text {row['index']}, ") for row in rows)  # no spreadsheet runs it


def test_the_report_of_an_audit_without_a_run(folder, capsys):
    assert execute(AUDIT) == 0 and execute(["report", "found", "--gallery", "12"]) == 0
    assert capsys.readouterr().out.endswith("report: found/report.html\n")
    text = (folder / "found" / "report.html").read_text(encoding="utf-8")
    assert json.loads((folder / "found" / "summary.json").read_bytes())["verdict"] in text
    assert "<h1>The labels of <bdi>t.csv</bdi></h1>" in text and "Audit <bdi>found</bdi>" in text
    assert text.count("<blockquote") == 12 and "&lt;b&gt;long" in text
    assert "Labels that look wrong" in text and text.count('class="heat"') == 1
    assert "<span>review</span> <span>found</span>" in text
    for of_a_run in ('id="training"', "penalty", "<polyline", "<span>predict</span>", "epochs", "delivered model"):
        assert of_a_run not in text
    assert "The file labels.csv lists every sample" in text and "Nothing was trained" in text


def test_the_report_shows_rows_and_says_where_it_can_train(folder):
    rows = "".join(f"{i}.25,{NAMES[i % 3]}\n" for i in range(90))
    (folder / "rows.csv").write_text("length,label\n" + rows)
    argv = ["audit", "--labels", "t.csv", "--pred-probs", "t.csv", "--data", "rows.csv", "--out", "found"]
    assert execute(argv) == 0 and execute(["report", "found"]) == 0
    text = (folder / "found" / "report.html").read_text(encoding="utf-8")
    assert "<dt><bdi>length</bdi></dt><dd><bdi>40.25</bdi></dd>" in text
    assert "<span>train</span> <span>rows.csv</span>" in text
    desk = Desk(folder / "found")
    desk.decide({"index": 40, "decision": "accept", "over": None, "since": 0, "tab": "t"})
    assert farewell(desk)[-1].split()[:4] == ["labelsieve", "train", "rows.csv", "--labels"]


def test_classes_are_called_as_in_the_data_so_that_it_can_be_trained_on(folder, capsys):
    """Labels by number: the file that a review writes must fit the data."""
    (folder / "rows.csv").write_text("x,label\n" + "".join(f"{i},{'abc'[i % 3]}\n" for i in range(90)))
    np.save("numbers.npy", np.arange(90) % 3)
    argv = ["audit", "--labels", "numbers.npy", "--pred-probs", "p.npy", "--data", "rows.csv", "--out", "found"]
    assert execute(argv) == 0 and capsys.readouterr().out.startswith("columns are taken as: a, b, c; say --classes")
    assert json.loads((folder / "found" / "summary.json").read_bytes())["classes"] == ["a", "b", "c"]
    assert execute([*argv, "--classes", "names.txt"]) == 0 and "taken as" not in capsys.readouterr().out


def test_samples_that_nobody_named_are_not_shown_and_the_way_to_see_them_is_said(folder, capsys):
    assert execute(["audit", "--labels", "t.csv", "--pred-probs", "t.csv", "--out", "found"]) == 0
    assert "by --text or --data" in capsys.readouterr().out
    assert execute(["report", "found"]) == 0
    text = (folder / "found" / "report.html").read_text(encoding="utf-8")
    assert "with --text or --data shows them" in text and "no picture" not in text and text.count('class="card') == 90


def test_more_classes_than_a_matrix_is_kept_of(folder):
    """The summary of over 1,000 classes has no noise matrix; all else is shown."""
    assert execute(AUDIT) == 0
    summary = json.loads((folder / "found" / "summary.json").read_bytes())
    (folder / "found" / "summary.json").write_text(json.dumps({**summary, "noise_matrix": None}))
    assert execute(["report", "found"]) == 0
    text = (folder / "found" / "report.html").read_text(encoding="utf-8")
    assert "Labels that look wrong" in text and 'class="heat"' not in text


def test_an_audit_with_a_run_is_shown_by_the_run_and_one_without_alone(folder, capsys):
    assert execute(AUDIT) == 0
    run = make_run(folder / "run")
    make_audit(run)
    capsys.readouterr()
    assert "name the run, run, instead" in refused(capsys, "report", "run/audit")
    assert "name the run, run, instead" in refused(capsys, "review", "run/audit")
    assert "found is an audit without a run, which is shown alone" in refused(capsys, "report", "run", "found")
    (folder / "bare").mkdir()
    for command in ("report", "review"):
        assert "bare is neither a run" in refused(capsys, command, "bare")
        assert "there is no folder none" in refused(capsys, command, "none")
    (folder / "bare" / "summary.json").write_text("{}")
    assert "bare/summary.json" in refused(capsys, "report", "bare")


def test_decisions_lie_in_the_folder_and_change_exactly_their_labels(folder, capsys):
    assert execute(AUDIT) == 0
    desk = Desk(folder / "found")
    assert desk.marked == set(range(0, 90, 10)) and desk.suspects[10].text.startswith("=text 10,")
    for index, kind, label in ((10, "accept", None), (20, "keep", None), (30, "other", "blue")):
        desk.decide({"index": index, "decision": kind, "label": label, "over": None, "since": 0, "tab": "t"})
    assert (folder / "found" / "review" / "decisions.jsonl").read_text().count("\n") == 3
    assert not any("labelsieve train" in line for line in farewell(desk))  # it knows of no data to train on
    assert execute(["review", "found", "--export", "reviewed.csv"]) == 0
    after, before = read_given(folder / "reviewed.csv"), read_given(folder / "t.csv")
    assert np.flatnonzero(after != before).tolist() == [10, 30] and after[10] == NAMES[10 % 3] and after[30] == "blue"
    assert execute(["audit", "--labels", "reviewed.csv", "--pred-probs", "t.csv", "--out", "again"]) == 0
    said = refused(capsys, *("audit", "--labels", "reviewed.csv", "--pred-probs", "t.csv", "--out", "found"))
    assert "found/review holds decisions about other labels" in said
    assert execute(AUDIT) == 0  # the same labels again


def test_the_page_is_served_from_the_folder_of_an_audit(folder):
    assert execute(AUDIT) == 0
    command = [sys.executable, "-m", "labelsieve", "review", str(folder / "found"), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as server:
        said = server.stdout.readline()
        server.send_signal(signal.SIGINT)
        after = server.stdout.read()
    assert said.startswith("9 suspects to look at: http://127.0.0.1:") and server.returncode == 0
    assert after.endswith(f"no decisions were made\nbegin again: labelsieve review {folder / 'found'}\n")


# The files


def test_an_assumed_order_of_the_columns_is_said(folder, capsys):
    argv = ["audit", "--labels", "y.npy", "--pred-probs", "p.npy", "--out", "found"]
    line = "columns are taken as: blue, green, red; say --classes if that is not so\n"
    assert execute(argv) == 0 and capsys.readouterr().out.startswith(line)
    assert execute([*argv, "--classes", "names.txt"]) == 0 and "taken as" not in capsys.readouterr().out
    assert execute(AUDIT) == 0 and "taken as" not in capsys.readouterr().out  # the header says it
    np.save("two.npy", np.full((90, 2), 0.5))
    said = refused(capsys, "audit", "--labels", "y.npy", "--pred-probs", "two.npy", "--out", "o")
    assert "y.npy has 3 classes, the probabilities 2 columns" in said


def test_every_kind_of_file_gives_the_same_audit(folder):
    given, probs = np.load("y.npy"), np.load("p.npy")
    np.savez("y.npz", given)
    np.savez_compressed("p.npz", probs)
    (folder / "column.csv").write_text("\n".join(given))
    (folder / "named.csv").write_text("id;Label\n" + "\n".join(f"{i};{word}" for i, word in enumerate(given)))
    np.savetxt("bare.csv", probs, delimiter=",")
    lines = [",".join(["", *NAMES]), *(",".join(map(str, [i, *row])) for i, row in enumerate(probs))]
    (folder / "pandas.csv").write_text("\n".join(lines))
    german = [";".join(NAMES), *(";".join(f"{x:.2f}".replace(".", ",") for x in row) for row in probs)]
    (folder / "german.csv").write_text("\n".join(german))
    for name in ("y.npy", "y.npz", "column.csv", "named.csv", "t.csv"):
        assert read_given(folder / name).tolist() == given.tolist()
    for name, named in {"p.npy": 0, "p.npz": 0, "bare.csv": 0, "pandas.csv": 1, "german.csv": 1, "t.csv": 1}.items():
        found, names = read_probabilities(folder / name)
        assert names == (tuple(NAMES) if named else None) and np.allclose(found, probs)
    assert isinstance(read_probabilities(folder / "p.npy")[0], np.memmap)  # large files stay on the disk


def test_what_is_no_such_file_is_one_line_that_says_what_is(folder, capsys):
    np.savez("two.npz", a=np.zeros(2), b=np.zeros(2))
    np.save("objects.npy", np.array([1, "a", None], dtype=object), allow_pickle=True)
    (folder / "wrong.npy").write_text("a,b\n0.5,0.5\n")
    (folder / "empty.csv").write_text("")
    (folder / "words.csv").write_text("a,b\n0.5,half\n")
    (folder / "ragged.csv").write_text("a,b\n0.5\n")
    (folder / "twice.csv").write_text("a,a\n0.5,0.5\n")

    def labels(name):
        return refused(capsys, "audit", "--labels", name, "--pred-probs", "p.npy", "--out", "o")

    def probs(name):
        return refused(capsys, "audit", "--labels", "y.npy", "--pred-probs", name, "--out", "o")

    for name in ("names.txt", "wrong.npy", "two.npz", "none.npy"):
        assert name in labels(name) and "a .csv file with one column or a column named label" in labels(name)
        assert name in probs(name) and "a .csv file with a column per class" in probs(name)
    for name in ("objects.npy", "empty.csv"):
        assert name in labels(name) and name in probs(name)
    (folder / "header.csv").write_text("label\n")
    assert "header.csv has a header but no labels" in labels("header.csv")
    assert "none named label" in labels("words.csv")
    assert "words.csv:2 holds 'half' where a probability is expected" in probs("words.csv")
    assert "ragged.csv:2 has 1 cells" in probs("ragged.csv") and "a class twice" in probs("twice.csv")
    assert not (folder / "o").exists()


@pytest.mark.parametrize(
    ("cells", "header"),
    [
        ("a b", True),
        ("0 1 2", True),
        ("1 2", True),
        ("0 1", True),
        ("1 0", False),
        ("0 1 0", False),
        ("0.5 0.5", False),
    ],
)
def test_a_header_by_hand(cells, header):
    assert is_header(cells.split()) == header


def test_labels_mean_the_names_or_else_the_columns(tmp_path):
    def found(labels, names, count=3):
        numbers, named, guessed = numbers_of(np.array(labels), names, tmp_path / "y", count)
        return numbers.tolist(), named, guessed

    assert found(["b", "a"], ("b", "a"), 2) == ([0, 1], ("b", "a"), False)
    assert found([1, 3], ("1", "2", "3")) == ([0, 2], ("1", "2", "3"), False)
    assert found([0, 2], ("1", "2", "3")) == ([0, 2], ("1", "2", "3"), False)
    assert found(["2", "0"], None) == ([2, 0], ("0", "1", "2"), False)
    assert found(["b", "a"], None, 2) == ([1, 0], ("a", "b"), True)
    with pytest.raises(InputError, match="'c' is none of the classes"):
        found(["a", "c"], ("a", "b"), 2)


# Numbers


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float(np.float32(13.09)), "13.09"),
        (float(np.float32(4.13)), "4.13"),
        (-0.5130000114440918, "-0.513"),
        (1234567.0, "1234567"),
        (1234567.25, "1234570"),
        (2.0, "2"),
        (1.23456789e-05, "1.23457e-05"),
        (7, "7"),
        ("13.09000015", "13.09000015"),
        (True, "True"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_are_shown_as_people_read_them(value, shown):
    assert str(rounded(value)) == shown


def test_rows_in_report_and_review_have_no_digits_that_nobody_wrote(folder):
    (folder / "rows.csv").write_text("length,label\n" + "".join(f"{i}.09,{NAMES[i % 3]}\n" for i in range(90)))
    argv = ["audit", "--labels", "t.csv", "--pred-probs", "t.csv", "--data", "rows.csv", "--out", "found"]
    assert execute(argv) == 0 and execute(["report", "found"]) == 0
    text = (folder / "found" / "report.html").read_text(encoding="utf-8")
    assert text.count("<dt><bdi>length</bdi></dt>") == 90 == len(re.findall(r"<dd><bdi>\d+\.09</bdi></dd>", text))
    opening = Desk(folder / "found").opening()
    assert {suspect["index"]: suspect["row"] for suspect in opening["suspects"]} == {
        i: {"length": float(f"{i}.09")} for i in range(90)
    }
