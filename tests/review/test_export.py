"""Export of reviewed labels."""

import csv

import pytest

from labelsieve.cli import execute
from labelsieve.data.labels import read_label_file
from labelsieve.review.decisions import Decision, DecisionLog
from labelsieve.review.export import export_labels, retrain_command
from labelsieve.review.session import closing_lines
from labelsieve.review.state import ReviewState
from tests.review.conftest import CLASSES, make_audited_run, make_decision, read_labels


def test_exported_file_is_readable_as_a_label_file(run, tmp_path, capsys):
    log = DecisionLog(run / "review" / "decisions.jsonl")
    for made in (
        make_decision(39, "accept", "dog"),
        make_decision(38, "other", "cat"),
        make_decision(37, "unsure"),
        make_decision(36, "keep"),
        make_decision(35, "accept", "cat"),
        make_decision(35, "undo"),
    ):
        log.append(lambda past, made=made: [made])
    out = tmp_path / "reviewed.csv"
    state = ReviewState(run)
    assert state.counts() == (3, 1, 2, 31)
    assert "3 decided (2 changed), 1 unsure, 31 suspects left" in closing_lines(state)[0]
    assert execute(["review", str(run), "--export", str(out)]) == 0
    assert "40 labels, 2 changed; 3 decided, 1 unsure\n" in capsys.readouterr().out
    expected = {i: CLASSES[i % 3] for i in range(40)} | {39: "dog", 38: "cat"}
    assert read_labels(out) == expected
    numbers = [CLASSES.index(expected[i]) for i in range(40)]
    names = [f"{CLASSES[i % 3]}/{i}.png" for i in range(40)]
    assert read_label_file(out, CLASSES, 40, names).labels.tolist() == numbers
    assert read_label_file(out, CLASSES, 40).labels.tolist() == numbers


def test_export_overwrites_only_its_own_files(run, tmp_path, capsys):
    DecisionLog(run / "review" / "decisions.jsonl").append(lambda past: [make_decision(39, "accept", "dog")])
    out = tmp_path / "reviewed.csv"
    for mine in ("index;name;label;decided\n", "index,name,label\n0,a.png,cat\n"):
        out.write_text(mine)
        assert execute(["review", str(run), "--export", str(out)]) == 2
        assert f"{out} exists and was not written by labelsieve" in capsys.readouterr().err and out.read_text() == mine
    out.unlink()
    assert [execute(["review", str(run), "--export", str(out)]) for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("names", [[str(i) for i in range(40)], ["same"] * 40])
def test_names_without_information_are_omitted(tmp_path, names):
    run = make_audited_run(tmp_path / "run", names=names)
    made = Decision(39, names[39], "accept", "dog", "now", "t")
    DecisionLog(run / "review" / "decisions.jsonl").append(lambda past: [made])
    export_labels(run, tmp_path / "r.csv")
    assert (tmp_path / "r.csv").read_text().startswith("index,label,decided,given_label\n0,cat,false,cat\n")


def test_unusual_names_survive_the_export(tmp_path):
    classes = ["a,b", 'q"q', "line\nbreak", "sep\u2028\x0b", "=1+1", "'-quoted", " spaced "]
    names = [f"{name}/{i}" for i, name in enumerate(classes * 3)]
    run = make_audited_run(tmp_path / "run", 21, 21, classes, names)
    state = ReviewState(run)
    state.decide({"index": 4, "decision": "other", "label": "line\nbreak", "over": None, "since": 0, "tab": "t"})
    export_labels(run, tmp_path / "r.csv")
    labels = read_label_file(tmp_path / "r.csv", classes, 21, names).labels.tolist()
    assert labels == [2 if i == 4 else i % 7 for i in range(21)]
    with (tmp_path / "r.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not any(cell[:1] in tuple("=+-@\t\r\n") and cell for cell in cells)  # spreadsheets run none of them


def test_export_errors_are_one_line(run, tmp_path, capsys):
    def error(*arguments):
        code = execute(["review", *map(str, arguments)])
        err = capsys.readouterr().err
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
        return err

    assert "has no decisions" in error(run, "--export", tmp_path / "r.csv")
    assert not (tmp_path / "r.csv").exists()
    assert ".csv" in error(run, "--export", tmp_path / "r.npy")
    DecisionLog(run / "review" / "decisions.jsonl").append(
        lambda past: [Decision(3, "x.png", "keep", None, "now", "t")]
    )
    assert "belongs to other data: sample 3 was 'x.png'" in error(run, "--export", tmp_path / "r.csv")
    assert "there is no folder" in error(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    assert "is neither a run (it has no spec.json) nor an audit" in error(tmp_path / "bare")
    assert "--port must be" in error(make_audited_run(tmp_path / "other"), "--port", "80", "--no-browser")


def test_retrain_command_is_the_recorded_one_with_new_labels_and_folder(tmp_path):
    name = str(tmp_path / "my run")
    typed = "labelsieve train 'my photos' --labels a.csv --out x --skip-bad --noise pair"
    words = retrain_command(name, f"{typed} --rate 0.4 --exact-noise --set floor=0.5", {}, "r.csv")
    options = ["--skip-bad", "--set", "floor=0.5", "--labels", "r.csv", "--out", f"{name}-reviewed"]
    assert words == ["labelsieve", "train", "my photos", *options]
    (tmp_path / "my run-reviewed").mkdir()
    assert retrain_command(name, typed, {}, "r.csv")[-1] == f"{name}-reviewed-2"
    assert retrain_command(f"{name}-reviewed", typed, {}, "r.csv")[-1] == f"{name}-reviewed-2"
    assert retrain_command("run", "", {"data": "d", "skip_bad": True}, "r.csv")[2:4] == ["d", "--skip-bad"]
