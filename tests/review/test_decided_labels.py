"""Labels decided by a person: in the label file, in training, and in later audits, reports and reviews."""

import csv
import json
import shlex
from fractions import Fraction

import numpy as np
import pytest
import torch

from labelsieve.audit.findings import DECIDED
from labelsieve.audit.guesses import guesses_from_probs, with_decided
from labelsieve.auto.judge import noise_of_guesses
from labelsieve.cli import execute
from labelsieve.core.criteria import CriteriaOL
from labelsieve.core.select import Select
from labelsieve.data.labels import read_label_file
from labelsieve.errors import InputError
from labelsieve.noise import corrupt, pair
from labelsieve.report.audit import read_audit
from labelsieve.report.words import next_steps
from labelsieve.review.export import retrain_line
from labelsieve.review.state import ReviewState
from labelsieve.runs.read import read_json, read_run, read_samples
from tests.conftest import blobs

QUICK = "--noise-rate 0.3 --valid 0.2 --epochs 6 --warmup 2 --model small --lr 0.05 --batch 32 --threads 1 --device cpu"


def read_rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("yes", ["true", "TRUE", "1", "yes", "WAHR", " Vrai "])
@pytest.mark.parametrize("no", ["false", "", "0", "FALSCH"])
def test_label_file_marks_decided_labels_in_any_order(tmp_path, yes, no):
    path = tmp_path / "labels.csv"
    path.write_text(f"index,label,decided,note\n2,b,{yes},x\n0,a,{no},y\n1,b,{no},z\n")
    labels, decided, before = read_label_file(path, ["a", "b"], 3)
    assert labels.tolist() == [0, 1, 1] and decided.tolist() == [False, False, True] and before is None


def test_column_decided_is_optional(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("label,who\na,me\nb,you\n")
    labels, decided, _ = read_label_file(path, ["a", "b"], 2)
    assert labels.tolist() == [0, 1] and decided is None
    path.write_text("label,decided\na,true\nb,on Monday\n")
    with pytest.raises(InputError, match=r"labels\.csv:3: column 'decided' contains 'on Monday'; use true or false"):
        read_label_file(path, ["a", "b"], 2)


def test_labels_before_the_decisions_are_read_if_every_row_has_one(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("index,label,decided,given_label\n1,b,true,a\n0,a,false,a\n")
    assert read_label_file(path, ["a", "b"], 2).before.tolist() == [0, 0]
    path.write_text("index,label,decided,given_label\n1,b,true,\n0,a,false,a\n")
    assert read_label_file(path, ["a", "b"], 2).before is None
    path.write_text("index,label,decided,given_label\n1,b,true,c\n0,a,false,a\n")
    with pytest.raises(InputError, match=r"labels\.csv:2: 'c' is not a class"):
        read_label_file(path, ["a", "b"], 2)


def test_decided_held_out_samples_count_as_right():
    labels = np.arange(600) % 3
    true = np.where(np.arange(600) % 5 == 0, (labels + 1) % 3, labels)  # a fifth looks wrong
    guesses = guesses_from_probs(labels, (0.94 * np.eye(3)[true] + 0.02).astype(np.float32))
    assert noise_of_guesses(guesses).rate.estimate == pytest.approx(0.2, abs=0.02)
    seen = noise_of_guesses(with_decided(guesses, np.arange(600) < 300))
    assert seen.rate.estimate == pytest.approx(0.1, abs=0.02) and seen.rate.low < 0.1 < seen.rate.high
    assert noise_of_guesses(with_decided(guesses, np.arange(600) < 590)).rate.estimate < 0.01
    assert noise_of_guesses(guesses.at(slice(40))) is None


def test_trusted_samples_are_selected_first():
    probs = torch.tensor([[[0.1, 0.9], [0.6, 0.4], [0.7, 0.3], [0.8, 0.2]]])  # (1, 4, 2)
    labels, index = torch.zeros(4, dtype=torch.int64), torch.tensor([5, 4, 1, 0])
    select = Select(CriteriaOL(2), lambda epoch: Fraction(1, 2))
    assert select(probs, labels, index).tolist() == [[0, 0, 1, 1]]
    select.trust(torch.arange(6) == 5)
    assert select(probs, labels, index).tolist() == [[1, 0, 0, 1]] and select.needs_index
    assert "trusted" not in select.state_dict()


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """Make a run, review its suspects (some wrong labels are kept), and make a second run on the reviewed labels."""
    folder = tmp_path_factory.mktemp("rounds")
    clean = blobs(400, 0)
    noisy = corrupt(clean.labels, pair(4, 0.3), 0)
    np.savez(folder / "data.npz", images=clean.images.permute(0, 2, 3, 1).numpy(), labels=noisy.numpy())
    train = ["train", str(folder / "data.npz"), *QUICK.split()]
    assert execute([*train, "--out", str(folder / "one")]) == 0 and execute(["audit", str(folder / "one")]) == 0
    state = ReviewState(folder / "one")
    suspects = sorted(state.suspects)
    kinds = {
        index: ("accept", "unsure", "accept", "accept", "unsure", "keep")[rank % 6]
        for rank, index in enumerate(suspects)
    }
    for index, kind in kinds.items():
        state.decide({"index": index, "decision": kind, "over": None, "since": 0, "tab": "t"})
    assert execute(["review", str(folder / "one"), "--export", str(folder / "reviewed.csv")]) == 0
    train += ["--labels", str(folder / "reviewed.csv")]
    assert execute([*train, "--out", str(folder / "two")]) == 0
    return folder, kinds, train


def test_decided_labels_are_no_suspects_of_the_second_run(rounds, capsys):
    folder, kinds, _ = rounds
    sure = {index for index, kind in kinds.items() if kind != "unsure"}
    assert {int(row["index"]) for row in read_rows(folder / "reviewed.csv") if row["decided"] == "true"} == sure
    assert set(np.flatnonzero(read_samples(folder / "two")["decided"]).tolist()) == sure
    capsys.readouterr()
    assert execute(["audit", str(folder / "two")]) == 0
    assert f"\n{len(sure):,} labels were decided on by a person and count as correct\n" in capsys.readouterr().out
    rows = {int(row["index"]): row for row in read_rows(folder / "two" / "audit" / "labels.csv")}
    assert all(rows[i]["is_label_issue"] == "false" and rows[i]["why"] == DECIDED for i in sure)
    marked = {index for index, row in rows.items() if row["is_label_issue"] == "true"}
    unsure = kinds.keys() - sure
    assert len(marked & unsure) > 0.5 * len(unsure)  # unsure samples stay suspects, kept ones do not
    shown = [json.loads(line) for line in (folder / "two" / "audit" / "gallery.jsonl").read_text().splitlines()]
    assert not sure & {row["index"] for row in shown} and marked <= {row["index"] for row in shown}
    rate = read_json(folder / "two" / "audit" / "summary.json")["noise_rate"]
    assert abs(rate["estimate"] - len(unsure) / 400) < 0.045  # kept labels do not count as wrong
    assert execute(["report", str(folder / "two")]) == 0
    page = (folder / "two" / "report.html").read_text()
    assert DECIDED not in page
    assert f"<li>{len(sure):,} labels were decided by a person before this run and count as correct.</li>" in page
    assert "suspects were reviewed" not in page  # this run was not reviewed yet


def test_report_shows_the_progress_of_the_review(rounds):
    folder, kinds, _ = rounds
    assert execute(["report", str(folder / "one")]) == 0
    page = (folder / "one" / "report.html").read_text()
    changed = sum(kind == "accept" for kind in kinds.values())
    progress = f"{len(kinds):,} of {len(kinds):,} suspects reviewed; labels changed: {changed:,}."
    assert f"<li>{progress}</li>" in page and "decided by a person" not in page
    assert "Review the suspects" not in page and "Export the reviewed labels" in page


def test_report_and_review_print_the_same_working_command(rounds, capsys):
    folder, _, _ = rounds
    run = folder / "one"
    reviewed = run / "review" / "reviewed.csv"
    command = retrain_line(run, reviewed)
    steps = next_steps(str(run), read_run(run), read_audit(run, 0))
    assert command.replace(str(folder / "data.npz"), "DATA") in [  # the page shows no folders of this machine
        shlex.join(step) for _, step in steps
    ]
    assert execute(["review", str(run), "--export", str(reviewed)]) == 0
    capsys.readouterr()
    assert execute([*shlex.split(command)[1:], "--dry-run"]) == 0
    assert f"folder:  {run}-reviewed\n" in capsys.readouterr().out


def test_decided_labels_are_used_for_training(rounds):
    folder, kinds, _ = rounds
    samples, kept = read_samples(folder / "two"), [index for index, kind in kinds.items() if kind == "keep"]
    learnt = [index for index in kept if samples["seen"][index]]
    assert (samples["mean_selected"][learnt] == 1).all()
    left_out = [i for i, kind in kinds.items() if kind == "unsure" and samples["seen"][i]]
    assert samples["mean_selected"][left_out].mean() < 0.8


def test_audit_does_not_need_the_label_file(rounds, tmp_path, capsys):
    folder, _, _ = rounds
    assert execute(["audit", str(folder / "two"), "--out", str(tmp_path / "before")]) == 0
    was = (folder / "reviewed.csv").read_bytes()
    try:
        (folder / "reviewed.csv").write_bytes(was.replace(b",true", b",false"))
        assert execute(["audit", str(folder / "two"), "--out", str(tmp_path / "anew")]) == 0
        (folder / "reviewed.csv").unlink()
        assert execute(["audit", str(folder / "two"), "--out", str(tmp_path / "gone")]) == 0
    finally:
        (folder / "reviewed.csv").write_bytes(was)
    for name in ("anew", "gone"):
        assert (tmp_path / name / "labels.csv").read_bytes() == (tmp_path / "before" / "labels.csv").read_bytes()


def test_changed_decisions_are_another_run(rounds, capsys):
    folder, _, train = rounds
    was = (folder / "reviewed.csv").read_bytes()
    try:
        (folder / "reviewed.csv").write_bytes(was.replace(b",true", b",false", 1))
        assert execute([*train, "--out", str(folder / "two")]) == 2
    finally:
        (folder / "reviewed.csv").write_bytes(was)
    assert "the data or labels changed since" in capsys.readouterr().err


def test_corrected_export_hints_at_decisions(rounds, capsys):
    folder, kinds, _ = rounds
    for export, says in ((["--export", "corrected"], True), (["--export", "cleanlab"], False)):
        capsys.readouterr()
        assert execute(["audit", str(folder / "one"), *export]) == 0
        hint = f"corrected.csv ignores the {len(kinds):,} decisions in {folder / 'one'}/review; to apply them: "
        assert (hint in capsys.readouterr().out) is says


def test_third_run_knows_the_decisions_of_the_first(rounds, tmp_path):
    folder, kinds, _ = rounds
    assert execute(["audit", str(folder / "two"), "--export", "corrected"]) == 0
    sure = {index for index, kind in kinds.items() if kind != "unsure"}
    fixed = read_rows(folder / "two" / "audit" / "corrected.csv")
    assert {int(row["index"]) for row in fixed if row["decided"] == "true"} == sure
    state = ReviewState(folder / "two")
    index = next(iter(state.samples))
    state.decide({"index": index, "decision": "keep", "over": None, "since": 0, "tab": "t"})
    assert execute(["review", str(folder / "two"), "--export", str(tmp_path / "r.csv")]) == 0
    assert {int(r["index"]) for r in read_rows(tmp_path / "r.csv") if r["decided"] == "true"} == {*sure, index}
