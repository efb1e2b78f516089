"""The last training of an automatic run: all samples, the suspects under corrected labels, its model delivered."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import labelsieve
from labelsieve.audit.findings import Findings
from labelsieve.auto.audit import findings_in
from labelsieve.cli import execute
from labelsieve.files import delivered
from labelsieve.report.page import report
from labelsieve.report.words import model_error
from labelsieve.runs.execute import prepare
from labelsieve.runs.find import unfinished
from labelsieve.runs.read import TESTED, finished_runs, read_run, read_samples
from labelsieve.runs.spec import Experiment
from tests.conftest import blobs, killed_after_an_epoch

QUICK = [
    "--model",
    "small",
    "--epochs",
    "6",
    "--warmup",
    "2",
    "--batch",
    "32",
    "--lr",
    "0.05",
    "--threads",
    "1",
    "--valid",
    "0.2",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Easy images, 30% of whose labels are that of the next class."""
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    train = blobs(600, 0)
    wrong = np.random.default_rng(0).random(600) < 0.3
    labels = np.where(wrong, (train.labels.numpy() + 1) % 4, train.labels.numpy())
    np.savez(path, images=train.images.permute(0, 2, 3, 1).numpy(), labels=labels)
    return path


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "auto"
    assert execute(["train", str(data), *QUICK, "--test", "0.2", "--out", str(out)]) == 0
    return out


def test_all_samples_are_learnt_from_with_the_suspects_corrected(run, data):
    samples = read_samples(run)
    findings = findings_in(run, samples, read_run(run).classes)
    assert 0.1 < findings.issues.mean() < 0.5
    last = read_samples(run / "final")
    learnt = last["split"] != TESTED
    assert not findings.unknown and (last["label"][learnt] == findings.corrected[learnt]).all()
    assert read_run(run).final.start["samples"] == learnt.sum() == 480
    spec = read_run(run / "final").spec
    assert (spec["method"], spec["noise_rate"], spec["choose"], spec["valid"]) == ("default", 0.0, "last", 0.0)


def test_what_is_tested_on_is_the_same_and_keeps_its_labels(run, data):
    before, last = read_samples(run), read_samples(run / "final")
    tested = before["split"] == TESTED
    assert (tested == (last["split"] == TESTED)).all() and tested.sum() == 120
    with np.load(data) as arrays:
        assert (last["label"][tested] == arrays["labels"][tested]).all()


def test_its_model_is_the_one_delivered(run, data, tmp_path, capsys):
    assert delivered(run) == run / "final" and delivered(run / "final") == run / "final"
    with np.load(data) as arrays:
        images = arrays["images"][:50]
    said = labelsieve.load(run).predict_proba(images)
    assert (said == labelsieve.load(run / "final").predict_proba(images)).all()
    assert (said != labelsieve.load(run / "model.safetensors").predict_proba(images)).any()
    done = read_run(run)
    assert done.delivered is done.final and finished_runs(run.parent) == [run]
    error = done.final.epochs[-1]["test_error"]
    assert f"is wrong on {error:.1f}% of the test" in model_error(done, "samples")
    page = report([run], tmp_path / "page.html", 10).read_text()
    assert "trained on all 480, with labels that the audit corrected: that one is delivered" in page
    assert f"is wrong on {error:.1f}% of the test" in page and "test, model delivered" in page


def test_the_same_command_again_changes_nothing(run, data, capsys):
    before = {path: path.stat().st_mtime_ns for path in (run / "final").iterdir() if path.name != "lock"}
    assert execute(["train", str(data), *QUICK, "--test", "0.2", "--out", str(run)]) == 0
    assert f"already trained: {run / 'final'}" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (run / "final").iterdir() if path.name != "lock"}


def test_who_names_a_method_or_says_no_gets_none(data, tmp_path, capsys):
    for name, options in (("named", ["--method", "mentornet"]), ("refused", ["--no-final"])):
        out = tmp_path / name
        assert execute(["train", str(data), *QUICK, *options, "--out", str(out)]) == 0
        assert not (out / "final").exists() and not (out / "corrected.npy").exists()
        assert delivered(out) == out and read_run(out).delivered.spec["method"].startswith("mentornet")
        assert execute(["train", str(data), *QUICK, *options, "--dry-run"]) == 0
        assert "corrected" not in capsys.readouterr().out
    assert execute(["train", str(data), *QUICK, "--dry-run"]) == 0
    assert (
        "ms, 2 probes of 2 and 6 epochs that do not select, as many epochs from corrected labels: about"
        in capsys.readouterr().out
    )


def test_labels_of_a_class_that_the_model_may_not_know_stay(run, data, tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    shutil.copytree(run, out, ignore=shutil.ignore_patterns("final", "corrected.npy"))
    monkeypatch.setattr(Findings, "unknown", ["1\x1b[2J"])
    monkeypatch.setattr(Findings, "believed", property(lambda findings: findings.labels))
    assert execute(["train", str(data), *QUICK, "--test", "0.2", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "beware: most labels of 1" in said and "they stay as they are" in said and "\x1b" not in said
    assert "0 of them under corrected labels" in said
    assert (np.load(out / "corrected.npy") == read_samples(run)["label"]).all()


def test_cut_in_it_the_same_command_ends_in_the_same_bits(run, data, tmp_path):
    out = tmp_path / "cut"
    command = [sys.executable, "-m", "labelsieve", "train", str(data), *QUICK, "--test", "0.2", "--out", str(out)]
    killed_after_an_epoch(command, out / "final" / "record.jsonl")
    assert "of its last training; go on with: labelsieve train" in unfinished(out)
    assert execute(command[3:]) == 0
    assert unfinished(out) == ""
    for name in ("corrected.npy", "final/model.safetensors", "model.safetensors"):
        assert (out / name).read_bytes() == (run / name).read_bytes()


def test_without_it_the_run_is_not_done(run, tmp_path):
    cut = tmp_path / "cut"
    (cut / "final").mkdir(parents=True)
    for name in ("spec.json", "record.jsonl", "done"):
        (cut / name).write_bytes((run / name).read_bytes())
    assert "lacks its last training, from corrected labels: wait if it is still running, else go on" in unfinished(cut)
    assert execute(["predict", str(cut), "new"]) == execute(["report", str(cut)]) == 2


def test_corrected_labels_are_laid_over_what_is_learnt_from_alone(tmp_path):
    corrected = np.random.default_rng(0).integers(0, 10, 6000)
    np.save(tmp_path / "corrected.npy", corrected)
    asked = {"model": "small", "noise": "pair", "rate": 0.4, "epochs": 2, "warmup": 1, "valid": 0.1}
    plain = prepare(Experiment(**asked))
    taught = prepare(Experiment(**asked, corrected=str(tmp_path / "corrected.npy")))
    assert (taught.train.labels.numpy() == corrected[taught.places.train]).all()
    assert torch.equal(taught.train.clean, plain.train.clean)  # noise is what corrupted the data, not the correction
    assert torch.equal(taught.valid.labels, plain.valid.labels)
    assert taught.fingerprint != plain.fingerprint


def test_corrected_labels_of_other_data_are_refused(tmp_path, capsys):
    np.save(tmp_path / "corrected.npy", np.zeros(5, int))
    with pytest.raises(labelsieve.errors.InputError, match=r"corrected\.npy has 5 labels but the data has 6,000"):
        prepare(Experiment(model="small", corrected=str(tmp_path / "corrected.npy")))


def test_a_decided_label_is_not_corrected(run, data, tmp_path):
    with np.load(data) as arrays:
        labels = arrays["labels"]
    suspects = np.flatnonzero(findings_in(run, read_samples(run), read_run(run).classes).issues)[:20]
    lines = [f"{i},{label},{str(i in suspects).lower()}" for i, label in enumerate(labels)]
    (tmp_path / "reviewed.csv").write_text("\n".join(["index,label,decided", *lines]) + "\n")
    out = tmp_path / "run"
    assert execute(["train", str(data), *QUICK, "--labels", str(tmp_path / "reviewed.csv"), "--out", str(out)]) == 0
    corrected = np.load(out / "corrected.npy")
    assert (corrected[suspects] == labels[suspects]).all() and (corrected != labels).mean() > 0.1


def test_a_run_that_was_moved_is_still_done(run, data, tmp_path, capsys):
    moved = tmp_path / "moved"
    subprocess.run(["cp", "-r", str(run), str(moved)], check=True)
    assert json.loads((moved / "final" / "spec.json").read_text())["experiment"]["corrected"].startswith(str(run))
    assert execute(["train", str(data), *QUICK, "--test", "0.2", "--out", str(moved)]) == 0
    assert f"already trained: {moved / 'final'}" in capsys.readouterr().out
