"""What a person decided stays decided: in the label file, in training, and in every later audit."""

import csv
import json
import shlex
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.audit.findings import DECIDED, findings_of
from labelsieve.audit.guesses import guesses_of, sure_of
from labelsieve.auto.judge import noise_among
from labelsieve.cli import execute
from labelsieve.core.criteria import CriteriaOL
from labelsieve.core.select import Select
from labelsieve.data.labels import read_label_file
from labelsieve.errors import InputError
from labelsieve.noise import corrupt, pair
from labelsieve.report.audit import read_findings
from labelsieve.report.words import next_steps
from labelsieve.review.desk import Desk
from labelsieve.review.export import train_again
from labelsieve.review.session import again
from labelsieve.runs.folder import read_json
from labelsieve.runs.read import read_run, read_samples
from tests.conftest import blobs

QUICK = "--noise-rate 0.3 --valid 0.2 --epochs 6 --warmup 2 --model small --lr 0.05 --batch 32 --threads 1 --device cpu"


def read_rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# The file


@pytest.mark.parametrize("yes", ["true", "TRUE", "1", "yes", "WAHR", " Vrai "])
@pytest.mark.parametrize("no", ["false", "", "0", "FALSCH"])
def test_a_label_file_says_what_was_decided_in_any_order(tmp_path, yes, no):
    path = tmp_path / "labels.csv"
    path.write_text(f"index,label,decided,note\n2,b,{yes},x\n0,a,{no},y\n1,b,{no},z\n")
    labels, decided = read_label_file(path, ["a", "b"], 3)
    assert labels.tolist() == [0, 1, 1] and decided.tolist() == [False, False, True]


def test_a_label_file_needs_no_such_column_and_may_have_others(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("label,who\na,me\nb,you\n")
    labels, decided = read_label_file(path, ["a", "b"], 2)
    assert labels.tolist() == [0, 1] and decided is None
    path.write_text("label,decided\na,true\nb,on Monday\n")
    with pytest.raises(InputError, match=r"labels\.csv:3: the column 'decided' holds 'on Monday'; write true or false"):
        read_label_file(path, ["a", "b"], 2)


# The audit


@given(st.integers(2, 7), st.integers(0, 10_000))
def test_guesses_about_decided_samples_are_certain_and_the_others_stay(classes, seed):
    random = np.random.default_rng(seed)
    labels, decided = random.integers(classes, size=20), random.random(20) < 0.5
    guesses = guesses_of(labels, random.dirichlet(np.ones(classes), 20).astype(np.float32))
    sure = sure_of(guesses, decided)
    assert (sure.confidence[decided] == 1).all() and (sure.likeliest[decided, 0] == labels[decided]).all()
    assert (sure.likelihood[decided].sum(1) == 1).all()
    assert all(len(set(row)) == len(row) and max(row) < classes for row in sure.likeliest.tolist())
    for name in ("confidence", "likeliest", "likelihood"):
        assert (getattr(sure, name)[~decided] == getattr(guesses, name)[~decided]).all()


def test_decided_labels_are_no_issues_and_not_counted_as_wrong():
    labels = np.arange(400) % 4
    true = np.where(np.arange(400) < 80, (labels + 1) % 4, labels)  # the first 80 look wrong
    guesses = guesses_of(labels, (0.9 * np.eye(4)[true] + 0.025).astype(np.float32))
    before = findings_of(guesses, "abcd")
    decided = np.arange(400) < 60
    after = findings_of(sure_of(guesses, decided), "abcd")
    assert before.issues[:80].all() and before.noise.rate.estimate > 0.17
    assert after.issues.tolist() == [60 <= index < 80 for index in range(400)]
    assert after.noise.rate.estimate < 0.07 and all(share.estimate < 0.09 for share in after.noise.per_class)
    assert (after.suggested[decided] == labels[decided]).all() and (after.quality[decided] == 1).all()
    assert [reason == DECIDED for reason in after.why] == decided.tolist()


def test_held_out_samples_that_were_decided_count_as_right():
    labels = np.arange(600) % 3
    true = np.where(np.arange(600) % 5 == 0, (labels + 1) % 3, labels)  # a fifth looks wrong
    guesses = guesses_of(labels, (0.94 * np.eye(3)[true] + 0.02).astype(np.float32))
    assert noise_among(guesses).rate.estimate == pytest.approx(0.2, abs=0.02)
    seen = noise_among(sure_of(guesses, np.arange(600) < 300))
    assert seen.rate.estimate == pytest.approx(0.1, abs=0.02) and seen.rate.low < 0.1 < seen.rate.high
    assert noise_among(sure_of(guesses, np.arange(600) < 590)).rate.estimate < 0.01
    assert noise_among(guesses.at(slice(40))) is None


# The training


def test_what_is_trusted_is_kept_first():
    probs = torch.tensor([[[0.1, 0.9], [0.6, 0.4], [0.7, 0.3], [0.8, 0.2]]])  # (1, 4, 2)
    labels, index = torch.zeros(4, dtype=torch.int64), torch.tensor([5, 4, 1, 0])
    select = Select(CriteriaOL(2), lambda epoch: Fraction(1, 2))
    assert select(probs, labels, index).tolist() == [[0, 0, 1, 1]]
    select.trust(torch.arange(6) == 5)
    assert select(probs, labels, index).tolist() == [[1, 0, 0, 1]] and select.needs_index
    assert "trusted" not in select.state_dict()


# The command that goes on


def test_the_command_is_the_recorded_one_with_the_labels_and_a_new_folder(tmp_path):
    name, typed = (
        str(tmp_path / "my run"),
        "labelsieve train 'my photos' --labels a.csv --out x --skip-bad --noise pair",
    )
    words = train_again(name, f"{typed} --rate 0.4 --exact-noise --set floor=0.5", {}, "r.csv")
    options = ["--skip-bad", "--set", "floor=0.5", "--labels", "r.csv", "--out", f"{name}-reviewed"]
    assert words == ["labelsieve", "train", "my photos", *options]
    (tmp_path / "my run-reviewed").mkdir()
    assert train_again(name, typed, {}, "r.csv")[-1] == f"{name}-reviewed-2"
    assert train_again(f"{name}-reviewed", typed, {}, "r.csv")[-1] == f"{name}-reviewed-2"
    assert train_again("run", "", {"data": "d", "skip_bad": True}, "r.csv")[2:4] == ["d", "--skip-bad"]


# From the first run to the third


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """A run, a review of its suspects that keeps some wrong labels, and a run with the labels that came of it."""
    folder = tmp_path_factory.mktemp("rounds")
    clean = blobs(400, 0)
    noisy = corrupt(clean.labels, pair(4, 0.3), 0)
    np.savez(folder / "data.npz", images=clean.images.permute(0, 2, 3, 1).numpy(), labels=noisy.numpy())
    train = ["train", str(folder / "data.npz"), *QUICK.split()]
    assert execute([*train, "--out", str(folder / "one")]) == 0 and execute(["audit", str(folder / "one")]) == 0
    desk = Desk(folder / "one")
    suspects = sorted(desk.marked)
    kinds = {
        index: ("accept", "unsure", "accept", "accept", "unsure", "keep")[place % 6]
        for place, index in enumerate(suspects)
    }
    for index, kind in kinds.items():
        desk.decide({"index": index, "decision": kind, "over": None, "since": 0, "tab": "t"})
    assert execute(["review", str(folder / "one"), "--export", str(folder / "reviewed.csv")]) == 0
    train += ["--labels", str(folder / "reviewed.csv")]
    assert execute([*train, "--out", str(folder / "two")]) == 0
    return folder, kinds, train


def test_the_suspects_of_the_second_round_are_others(rounds, capsys):
    folder, kinds, _ = rounds
    sure = {index for index, kind in kinds.items() if kind != "unsure"}
    assert {int(row["index"]) for row in read_rows(folder / "reviewed.csv") if row["decided"] == "true"} == sure
    assert set(np.flatnonzero(read_samples(folder / "two")["decided"]).tolist()) == sure
    capsys.readouterr()
    assert execute(["audit", str(folder / "two")]) == 0
    assert f"\n{len(sure):,} labels were decided on by a person and count as right\n" in capsys.readouterr().out
    rows = {int(row["index"]): row for row in read_rows(folder / "two" / "audit" / "labels.csv")}
    assert all(rows[i]["is_label_issue"] == "false" and rows[i]["why"] == DECIDED for i in sure)
    marked = {index for index, row in rows.items() if row["is_label_issue"] == "true"}
    unsure = kinds.keys() - sure
    assert len(marked & unsure) > 0.5 * len(unsure)  # they are still suspects; the kept ones, as wrong, are not
    shown = [json.loads(line) for line in (folder / "two" / "audit" / "gallery.jsonl").read_text().splitlines()]
    assert not sure & {row["index"] for row in shown} and marked <= {row["index"] for row in shown}
    rate = read_json(folder / "two" / "audit" / "summary.json")["noise_rate"]
    assert abs(rate["estimate"] - len(unsure) / 400) < 0.045  # the kept ones do not count
    assert execute(["report", str(folder / "two")]) == 0
    page = (folder / "two" / "report.html").read_text()
    assert DECIDED not in page
    assert f"<li>{len(sure):,} labels were decided on by a person before this run and count as right.</li>" in page
    assert "gone through" not in page  # there is no review of this run yet


def test_the_report_knows_how_far_the_review_came(rounds):
    folder, kinds, _ = rounds
    assert execute(["report", str(folder / "one")]) == 0
    page = (folder / "one" / "report.html").read_text()
    changed = sum(kind == "accept" for kind in kinds.values())
    gone = f"{len(kinds):,} of the {len(kinds):,} suspects were gone through in the review, {changed:,} labels changed."
    assert f"<li>{gone}</li>" in page and "decided on by a person" not in page
    assert "Go through the suspects" not in page and "Write down what you decided" in page


def test_report_and_review_name_the_same_command_and_it_works(rounds, capsys):
    folder, _, _ = rounds
    run = folder / "one"
    reviewed = run / "review" / "reviewed.csv"
    words = again(run, reviewed)
    told = read_findings(run, 0)
    assert words.replace(str(folder / "data.npz"), "DATA") in [  # the page names no folders of this machine
        shlex.join(map(unquoted, step)) for _, step in next_steps(str(run), read_run(run), told)
    ]
    assert execute(["review", str(run), "--export", str(reviewed)]) == 0
    capsys.readouterr()
    assert execute([*shlex.split(words)[1:], "--dry-run"]) == 0
    assert f"folder:  {run}-reviewed\n" in capsys.readouterr().out


def unquoted(word):
    return shlex.split(word)[0]


def test_decided_labels_are_learnt_from(rounds):
    folder, kinds, _ = rounds
    samples, kept = read_samples(folder / "two"), [index for index, kind in kinds.items() if kind == "keep"]
    learnt = [index for index in kept if samples["seen"][index]]
    assert (samples["mean_selected"][learnt] == 1).all()
    left_out = [i for i, kind in kinds.items() if kind == "unsure" and samples["seen"][i]]
    assert samples["mean_selected"][left_out].mean() < 0.8


def test_a_label_file_that_is_gone_or_written_anew_does_not_matter_to_the_audit(rounds, tmp_path, capsys):
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


def test_other_decisions_are_another_run(rounds, capsys):
    folder, _, train = rounds
    was = (folder / "reviewed.csv").read_bytes()
    try:
        (folder / "reviewed.csv").write_bytes(was.replace(b",true", b",false", 1))
        assert execute([*train, "--out", str(folder / "two")]) == 2
    finally:
        (folder / "reviewed.csv").write_bytes(was)
    assert "is another run: it was trained on data and labels of fingerprint" in capsys.readouterr().err


def test_corrected_labels_say_that_they_take_no_notice_of_decisions(rounds, capsys):
    folder, kinds, _ = rounds
    for export, says in ((["--export", "corrected"], True), (["--export", "cleanlab"], False)):
        capsys.readouterr()
        assert execute(["audit", str(folder / "one"), *export]) == 0
        hint = f"takes no notice of the {len(kinds):,} decisions in {folder / 'one'}/review: labelsieve review "
        assert (hint in capsys.readouterr().out) is says


def test_the_third_round_knows_the_decisions_of_the_first(rounds, tmp_path):
    folder, kinds, _ = rounds
    assert execute(["audit", str(folder / "two"), "--export", "corrected"]) == 0
    sure = {index for index, kind in kinds.items() if kind != "unsure"}
    fixed = read_rows(folder / "two" / "audit" / "corrected.csv")
    assert {int(row["index"]) for row in fixed if row["decided"] == "true"} == sure
    desk = Desk(folder / "two")
    index = next(iter(desk.suspects))
    desk.decide({"index": index, "decision": "keep", "over": None, "since": 0, "tab": "t"})
    assert execute(["review", str(folder / "two"), "--export", str(tmp_path / "r.csv")]) == 0
    assert {int(r["index"]) for r in read_rows(tmp_path / "r.csv") if r["decided"] == "true"} == {*sure, index}
