"""Audit of files of labels, and of probabilities or features: accepted files, errors, report and review."""

import csv
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labelsieve import find_label_issues
from labelsieve.auto.files import class_numbers, is_header, read_labels, read_probabilities
from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.noise import pair
from labelsieve.review.session import closing_lines
from labelsieve.review.state import ReviewState
from tests.audit.simulated import true_class_predictions
from tests.made_runs import make_audit, make_run

NAMES = ["red", "green", "blue"]  # not in alphabetical order


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write labels of 90 samples, every tenth one wrong, and probabilities of a classifier of the true classes."""
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
    """Return the one line of an error with exit code 2."""
    assert execute(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and "pickle" not in said
    return said


@pytest.fixture
def files(tmp_path):
    labels, probs, clean = true_class_predictions(lambda k: pair(k, 0.3), count=400, classes=3)
    np.save(tmp_path / "y.npy", labels)
    np.save(tmp_path / "p.npy", probs.astype(np.float32))
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n", encoding="utf-8")
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(f"text {i}" for i in range(400)), encoding="utf-8")
    return tmp_path, labels, clean


def test_probabilities_are_audited(files, monkeypatch):
    folder, labels, clean = files
    monkeypatch.chdir(folder)
    arguments = ["audit", "--labels", "y.npy", "--pred-probs", "p.npy", "--classes", "names.txt"]
    assert execute([*arguments, "--text", "texts.csv:text", "--out", "out", "--export", "label-studio"]) == 0
    with (folder / "out" / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["given_label"] for row in rows} == {"red", "green", "blue"}
    wrong = [clean[int(row["index"])] != labels[int(row["index"])] for row in rows]
    assert np.mean(wrong[: sum(wrong)]) > 0.8
    flagged = sorted(int(row["index"]) for row in rows if row["is_label_issue"] == "true")
    assert flagged == np.flatnonzero(find_label_issues(labels, np.load("p.npy"))).tolist()  # out-of-sample
    line = json.loads((folder / "out" / "gallery.jsonl").read_text().splitlines()[0])
    assert line["text"] == f"text {line['index']}"
    assert json.loads((folder / "out" / "label-studio.json").read_text())[0]["data"]["text"].startswith("text ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the run to audit"),
        (["--labels", "y.npy", "--out", "out"], "name the run to audit"),
        (["nowhere"], "there is no folder nowhere"),
        (["--labels", "y.npy", "--pred-probs", "none.npy", "--out", "out"], "cannot read none.npy"),
        (["--labels", "y.npy", "--pred-probs", "y.npy", "--out", "out"], "y.npy must hold one array"),
        (["--labels", "y.npy", "--pred-probs", "p.npy", "--out", "out", "--export", "csv"], "unknown export 'csv'"),
        (["--labels", "y.npy", "--pred-probs", "p.npy", "--out", "out", "--text", "texts.csv:x"], "no column 'x'"),
        (["--labels", "y.npy", "--pred-probs", "p.npy", "--out", "out", "--classes", "y.npy"], "y.npy"),
    ],
)
def test_invalid_arguments_print_one_line(files, arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(files[0])
    assert execute(["audit", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("error: ") and said.count("\n") == 1
    assert not (files[0] / "out").exists()


def test_files_of_the_user_are_not_overwritten(folder, capsys):
    mine = [*AUDIT[:-1], "."]
    labels = Path("labels.csv")
    labels.write_text("id,label\n1,red\n")
    assert "labels.csv exists and was not written by" in refused(capsys, *mine)
    assert labels.read_text() == "id,label\n1,red\n"
    labels.unlink()
    Path("corrected.csv").write_text("mine")
    assert "corrected.csv exists and was not written by" in refused(capsys, *mine, "--export", "corrected")
    Path("corrected.csv").unlink()
    assert [execute([*mine, "--export", "corrected"]) for _ in range(2)] == [0, 0]
    assert execute([*mine[:5], "--out", "."]) == 0  # without texts, over an audit with texts


def test_texts_and_next_steps_are_printed(folder, capsys):
    assert execute(AUDIT) == 0
    out = capsys.readouterr().out
    assert "labelsieve report found\n" in out and "labelsieve review found\n" in out
    shown = [line for line in out.splitlines() if line.startswith("     =text ")]
    assert len(shown) == 10 and all(line.endswith("…") and len(line) <= 110 for line in shown)
    with (folder / "found" / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert all(row["text"].startswith(f"'=text {row['index']}, ") for row in rows)  # not a formula


def test_report_of_an_audit_without_a_run(folder, capsys):
    assert execute(AUDIT) == 0 and execute(["report", "found", "--gallery", "12"]) == 0
    assert capsys.readouterr().out.endswith("report: found/report.html\n")
    text = (folder / "found" / "report.html").read_text(encoding="utf-8")
    assert json.loads((folder / "found" / "summary.json").read_bytes())["verdict"] in text
    assert "<h1>Label report: <bdi>t.csv</bdi></h1>" in text and "Audit <bdi>found</bdi>" in text
    assert text.count("<blockquote") == 12 and "&lt;b&gt;long" in text
    assert "Labels that look wrong" in text and text.count('class="heat"') == 1
    assert "<span>review</span> <span>found</span>" in text
    for of_a_run in ('id="training"', "penalty", "<polyline", "<span>predict</span>", "epochs", "delivered model"):
        assert of_a_run not in text
    assert "The file labels.csv lists every sample" in text and "No model was delivered" in text


def test_report_shows_rows_and_the_training_command(folder):
    rows = "".join(f"{i}.25,{NAMES[i % 3]}\n" for i in range(90))
    (folder / "rows.csv").write_text("length,label\n" + rows)
    argv = ["audit", "--labels", "t.csv", "--pred-probs", "t.csv", "--data", "rows.csv", "--out", "found"]
    assert execute(argv) == 0 and execute(["report", "found"]) == 0
    text = (folder / "found" / "report.html").read_text(encoding="utf-8")
    assert "<dt><bdi>length</bdi></dt><dd><bdi>40.25</bdi></dd>" in text
    assert "<span>train</span> <span>rows.csv</span>" in text
    state = ReviewState(folder / "found")
    state.decide({"index": 40, "decision": "accept", "over": None, "since": 0, "tab": "t"})
    assert "labelsieve train rows.csv --labels" in closing_lines(state)[-1]


def test_class_names_come_from_the_data(folder, capsys):
    """With labels as numbers, the label file that a review exports must match the data."""
    (folder / "rows.csv").write_text("x,label\n" + "".join(f"{i},{'abc'[i % 3]}\n" for i in range(90)))
    np.save("numbers.npy", np.arange(90) % 3)
    argv = ["audit", "--labels", "numbers.npy", "--pred-probs", "p.npy", "--data", "rows.csv", "--out", "found"]
    assert execute(argv) == 0 and capsys.readouterr().out.startswith("assumed order of the columns: a, b, c;")
    assert json.loads((folder / "found" / "summary.json").read_bytes())["classes"] == ["a", "b", "c"]
    assert execute([*argv, "--classes", "names.txt"]) == 0 and "assumed order" not in capsys.readouterr().out


def test_hint_if_the_samples_are_not_given(folder, capsys):
    assert execute(["audit", "--labels", "t.csv", "--pred-probs", "t.csv", "--out", "found"]) == 0
    assert "add --text or --data" in capsys.readouterr().out
    assert execute(["report", "found"]) == 0
    text = (folder / "found" / "report.html").read_text(encoding="utf-8")
    assert "pass --text or --data to labelsieve audit" in text and "no picture" not in text
    assert text.count('class="card') == 90


def test_report_without_a_noise_matrix(folder):
    """The summary of more than 1,000 classes has no noise matrix."""
    assert execute(AUDIT) == 0
    summary = json.loads((folder / "found" / "summary.json").read_bytes())
    (folder / "found" / "summary.json").write_text(json.dumps({**summary, "noise_matrix": None}))
    (folder / "found" / "sha256sums").unlink()
    assert execute(["report", "found"]) == 0
    text = (folder / "found" / "report.html").read_text(encoding="utf-8")
    assert "Labels that look wrong" in text and 'class="heat"' not in text


def test_audit_of_a_run_is_refused_as_a_separate_audit(folder, capsys):
    assert execute(AUDIT) == 0
    run = make_run(folder / "run")
    make_audit(run)
    capsys.readouterr()
    assert "name the run instead: run" in refused(capsys, "report", "run/audit")
    assert "name the run instead: run" in refused(capsys, "review", "run/audit")
    assert "found is an audit without a run; report it separately" in refused(capsys, "report", "run", "found")
    (folder / "bare").mkdir()
    for command in ("report", "review"):
        assert "bare is neither a run" in refused(capsys, command, "bare")
        assert "there is no folder none" in refused(capsys, command, "none")
    (folder / "bare" / "summary.json").write_text("{}")
    assert "bare/summary.json" in refused(capsys, "report", "bare")


def test_decisions_change_exactly_their_labels(folder, capsys):
    assert execute(AUDIT) == 0
    state = ReviewState(folder / "found")
    assert state.suspects == set(range(0, 90, 10)) and state.samples[10].text.startswith("=text 10,")
    for index, kind, label in ((10, "accept", None), (20, "keep", None), (30, "other", "blue")):
        state.decide({"index": index, "decision": kind, "label": label, "over": None, "since": 0, "tab": "t"})
    assert (folder / "found" / "review" / "decisions.jsonl").read_text().count("\n") == 3
    assert not any("labelsieve train" in line for line in closing_lines(state))  # the data is unknown
    assert execute(["review", "found", "--export", "reviewed.csv"]) == 0
    after, before = read_labels(folder / "reviewed.csv"), read_labels(folder / "t.csv")
    assert np.flatnonzero(after != before).tolist() == [10, 30] and after[10] == NAMES[10 % 3] and after[30] == "blue"
    assert execute(["audit", "--labels", "reviewed.csv", "--pred-probs", "t.csv", "--out", "again"]) == 0
    said = refused(capsys, *("audit", "--labels", "reviewed.csv", "--pred-probs", "t.csv", "--out", "found"))
    assert "found/review holds decisions about other labels" in said
    assert execute(AUDIT) == 0  # unchanged labels


def test_review_page_is_served_from_the_audit_folder(folder):
    assert execute(AUDIT) == 0
    command = [sys.executable, "-m", "labelsieve", "review", str(folder / "found"), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as server:
        said = server.stdout.readline()
        server.send_signal(signal.SIGINT)
        after = server.stdout.read()
    assert said.startswith("9 suspects to review: http://127.0.0.1:") and server.returncode == 0
    assert after.endswith(f"no decisions were made\nstart again: labelsieve review {folder / 'found'}\n")


def test_assumed_order_of_the_columns_is_printed(folder, capsys):
    argv = ["audit", "--labels", "y.npy", "--pred-probs", "p.npy", "--out", "found"]
    line = "assumed order of the columns: blue, green, red; name them with --classes if this is wrong\n"
    assert execute(argv) == 0 and capsys.readouterr().out.startswith(line)
    assert execute([*argv, "--classes", "names.txt"]) == 0 and "assumed order" not in capsys.readouterr().out
    assert execute(AUDIT) == 0 and "assumed order" not in capsys.readouterr().out  # named in the header
    np.save("two.npy", np.full((90, 2), 0.5))
    said = refused(capsys, "audit", "--labels", "y.npy", "--pred-probs", "two.npy", "--out", "o")
    assert "y.npy has 3 classes, the probabilities 2 columns" in said


def test_probabilities_that_repeat_every_label_are_suspicious(folder, capsys):
    names = sorted(set(np.load("y.npy").tolist()))
    learned = np.full((90, 3), 0.01)
    learned[np.arange(90), [names.index(name) for name in np.load("y.npy").tolist()]] = 0.98
    np.save("learned.npy", learned)
    assert execute(["audit", "--labels", "y.npy", "--pred-probs", "learned.npy", "--out", "found"]) == 0
    assert "every prediction of learned.npy equals its label; if the classifier was trained" in capsys.readouterr().err
    assert execute(AUDIT) == 0 and "every prediction" not in capsys.readouterr().err


def test_all_file_formats_hold_the_same_values(folder):
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
        assert read_labels(folder / name).tolist() == given.tolist()
    for name, named in {"p.npy": 0, "p.npz": 0, "bare.csv": 0, "pandas.csv": 1, "german.csv": 1, "t.csv": 1}.items():
        found, names = read_probabilities(folder / name)
        assert names == (tuple(NAMES) if named else None) and np.allclose(found, probs)
    assert isinstance(read_probabilities(folder / "p.npy")[0], np.memmap)  # large files stay on the disk


def test_unusable_files_raise_one_line(folder, capsys):
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
def test_is_header(cells, header):
    assert is_header(cells.split()) == header


def test_labels_are_names_or_column_numbers(tmp_path):
    def found(labels, names, count=3):
        numbers, named, guessed = class_numbers(np.array(labels), names, tmp_path / "y", count)
        return numbers.tolist(), named, guessed

    assert found(["b", "a"], ("b", "a"), 2) == ([0, 1], ("b", "a"), False)
    assert found([1, 3], ("1", "2", "3")) == ([0, 2], ("1", "2", "3"), False)
    assert found([0, 2], ("1", "2", "3")) == ([0, 2], ("1", "2", "3"), False)
    assert found(["2", "0"], None) == ([2, 0], ("0", "1", "2"), False)
    assert found(["b", "a"], None, 2) == ([1, 0], ("a", "b"), True)
    with pytest.raises(InputError, match="'c' is not one of the classes"):
        found(["a", "c"], ("a", "b"), 2)


def test_rows_are_rounded_in_report_and_review(folder):
    (folder / "rows.csv").write_text("length,label\n" + "".join(f"{i}.09,{NAMES[i % 3]}\n" for i in range(90)))
    argv = ["audit", "--labels", "t.csv", "--pred-probs", "t.csv", "--data", "rows.csv", "--out", "found"]
    assert execute(argv) == 0 and execute(["report", "found"]) == 0
    text = (folder / "found" / "report.html").read_text(encoding="utf-8")
    assert text.count("<dt><bdi>length</bdi></dt>") == 90 == len(re.findall(r"<dd><bdi>\d+\.09</bdi></dd>", text))
    initial = ReviewState(folder / "found").initial()
    assert {suspect["index"]: suspect["row"] for suspect in initial["samples"]} == {
        i: {"length": float(f"{i}.09")} for i in range(90)
    }


@pytest.fixture
def embedded(folder):
    """Write features of the 90 samples: three clusters, a copy of sample 4 with another label, and an outlier."""
    random = np.random.default_rng(0)
    true = np.arange(90) % 3
    features = 6 * np.eye(3, 12)[true] + random.normal(size=(90, 12))
    features[10] = features[4]  # both green, 10 is labelled blue
    features[89] = [0] * 11 + [60]
    np.save("x.npy", features.astype(np.float16))
    return folder


FEATURES = ["audit", "--labels", "y.npy", "--features", "x.npy", "--out", "found"]


def rows_of(name):
    with (Path(name) / "labels.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_features_are_audited(embedded, capsys):
    assert execute([*FEATURES, "--text", "t.csv:words"]) == 0
    out = capsys.readouterr().out
    assert "assumed order" not in out and out.endswith("review: labelsieve review found\n")
    rows = rows_of("found")
    flagged = {int(row["index"]) for row in rows if row["is_label_issue"] == "true"}
    assert len(flagged & set(range(0, 90, 10))) >= 8 and len(flagged) <= 11
    given = np.load("y.npy")
    assert all(row["given_label"] == given[int(row["index"])] for row in rows)
    _, numbers = np.unique(given, return_inverse=True)
    found = find_label_issues(numbers, features=np.load("x.npy"))
    assert flagged == set(np.flatnonzero(found).tolist())
    by_index = {int(row["index"]): row for row in rows}
    assert by_index[10]["near_duplicate_sets"] == "[4]" and by_index[10]["is_near_duplicate_issue"] == "true"
    assert by_index[89]["is_outlier_issue"] == "true" and by_index[7]["text"].startswith("'=text 7,")
    summary = json.loads((embedded / "found" / "summary.json").read_bytes())
    assert summary["classes"] == sorted(NAMES) and summary["made"]["features"] == "x.npy"
    assert summary["other_issues"]["near_duplicate_other_label"] >= 2


def test_features_of_all_formats_give_the_same_audit(embedded, capsys):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    features = np.load("x.npy")
    names = np.array([f"photo-{index}.jpg" for index in range(90)])
    _, numbers = np.unique(np.load("y.npy"), return_inverse=True)
    data = {"labels": numbers, "classes": sorted(NAMES), "names": names}
    np.savez("x.npz", features=features, test_features=features[:5], **data)  # as labelsieve embed writes it
    parquet.write_table(pyarrow.table({"vector": list(features.astype(np.float32))}), "x.parquet")
    quality = {}
    for name in ("x.npy", "x.npz", "x.parquet"):
        assert execute(["audit", "--labels", "y.npy", "--features", name, "--out", f"of-{name}"]) == 0
        quality[name] = [(row["index"], row["label_quality"]) for row in rows_of(f"of-{name}")]
    assert quality["x.npy"] == quality["x.npz"] == quality["x.parquet"]
    assert {row["id"] for row in rows_of("of-x.npz")} == set(names)
    assert execute(["audit", "--labels", "x.npz", "--features", "x.npz", "--out", "one-file"]) == 0
    assert rows_of("one-file") == rows_of("of-x.npz")
    np.savez("bad.npz", **{**data, "labels": numbers + 1})
    assert "label 3 at position" in refused(capsys, "audit", "--labels", "bad.npz", "--features", "x.npz", "--out", "o")


def test_report_and_review_of_features(embedded):
    (embedded / "rows.csv").write_text("x,label\n" + "".join(f"{i},{NAMES[i % 3]}\n" for i in range(90)))
    assert execute([*FEATURES, "--data", "rows.csv"]) == 0 and execute(["report", "found"]) == 0
    text = (embedded / "found" / "report.html").read_text(encoding="utf-8")
    judged = "judged, by linear classifiers that were not trained on them, from the features in"
    assert judged in text and "<bdi>x.npy</bdi>" in text and "<dt><bdi>x</bdi></dt>" in text
    state = ReviewState(embedded / "found")
    assert 10 in state.samples and "Near-duplicate" in state.samples[10].why


def test_class_names_of_features(embedded):
    _, numbers = np.unique(np.load("y.npy"), return_inverse=True)
    np.save("numbers.npy", numbers)
    argv = ["audit", "--labels", "numbers.npy", "--features", "x.npy", "--out"]
    assert execute([*argv, "plain"]) == 0
    (embedded / "four.txt").write_text("\n".join([*sorted(NAMES), "violet"]))
    assert execute([*argv, "named", "--classes", "four.txt"]) == 0
    classes = [json.loads(Path(out, "summary.json").read_bytes())["classes"] for out in ("plain", "named")]
    assert classes == [["0", "1", "2"], [*sorted(NAMES), "violet"]]


def test_unusable_features_print_one_line(embedded, capsys):
    assert "give either --pred-probs or --features" in refused(capsys, *FEATURES, "--pred-probs", "p.npy")
    assert "name the run to audit" in refused(capsys, *FEATURES, "some-run")
    assert "name the run to audit" in refused(capsys, *FEATURES[:-2])

    def with_features(values, labels="y.npy"):
        np.save("other.npy", values)
        return refused(capsys, "audit", "--labels", labels, "--features", "other.npy", "--out", "o")

    features = np.load("x.npy")
    assert "90 labels but 89 rows of features" in with_features(features[:-1])
    assert "features must be numbers of shape (n, columns)" in with_features(features[0])
    features[3, 1] = np.inf
    assert "other.npy: row 3, column 1 contains inf" in with_features(features)
    argv = ("audit", "--labels", "y.npy", "--out", "o", "--features")
    assert "cannot read the features none.npy: no such file" in refused(capsys, *argv, "none.npy")
    assert "cannot read the features t.csv: unknown format" in refused(capsys, *argv, "t.csv")
    np.save("far.npy", np.where(np.arange(90) == 3, 5000, np.arange(90) % 3))
    np.save("negative.npy", np.arange(90) % 3 - 1)
    for name, message in (
        ("far.npy", "far.npy has 90 labels, of which the largest is 5,000"),
        ("negative.npy", "negative.npy must hold one array of names or of class numbers from 0"),
        ("p.npy", "p.npy must hold one array of names or of class numbers from 0"),
    ):
        assert message in refused(capsys, "audit", "--labels", name, "--features", "x.npy", "--out", "o")
    (embedded / "few.csv").write_text("x,label\n1,red\n2,green\n3,blue\n")
    assert "few.csv has 3 samples but y.npy has 90 labels" in refused(capsys, *FEATURES, "--data", "few.csv")
    assert not (embedded / "o").exists() and not (embedded / "found").exists()
