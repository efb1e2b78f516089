"""The delivered training of an automatic run: all samples with corrected labels."""

import json
import shutil

import numpy as np
import pytest

from labelsieve.audit.findings import Findings
from labelsieve.auto import train as train_module
from labelsieve.auto.audit import findings_of_run, samples_as_given
from labelsieve.cli import execute
from labelsieve.report.page import write_report
from labelsieve.report.words import model_error
from labelsieve.runs.find import unfinished
from labelsieve.runs.read import TESTED, finished_runs, read_run, read_samples
from tests.conftest import kill_after_epoch, save_blobs

QUICK = ["--model", "small", "--epochs", "6", "--warmup", "2", "--batch", "32", "--lr", "0.05", "--threads", "1"]
SPLITS = ["--valid", "0.2", "--test", "0.2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a file of easy images, 30% of whose labels are that of the next class."""
    return save_blobs(tmp_path_factory.mktemp("data") / "blobs.npz", 600, wrong=0.3)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "auto"
    assert execute(["train", str(data), *QUICK, *SPLITS, "--out", str(out)]) == 0
    return out


def test_suspect_labels_are_corrected(run):
    findings = findings_of_run(run, samples_as_given(run), read_run(run).classes)
    assert 0.1 < findings.issues.mean() < 0.5
    last = read_samples(run)
    used = last["split"] != TESTED
    assert not len(findings.unreliable_classes) and (last["label"][used] == findings.corrected[used]).all()
    assert read_run(run).start["samples"] == used.sum() == 480
    spec = read_run(run).spec
    assert (spec["method"], spec["noise_rate"], spec["choose"], spec["valid"]) == ("default", 0.0, "last", 0.0)


def test_test_set_is_the_same_and_keeps_its_labels(run, data):
    before, last = samples_as_given(run), read_samples(run)
    tested = before["split"] == TESTED
    assert (tested == (last["split"] == TESTED)).all() and tested.sum() == 120
    with np.load(data) as arrays:
        assert (last["label"][tested] == arrays["labels"][tested]).all()


def test_report_says_what_was_learned(run, tmp_path):
    done = read_run(run)
    assert finished_runs(run.parent) == [run]
    error = done.epochs[-1]["test_error"]
    assert f"is wrong on {error:.1f}% of the test" in model_error(done, "samples")
    page = write_report([run], tmp_path / "page.html", 10).read_text()
    assert "method default, 6 epochs, on labels corrected by the audit" in page
    assert f"is wrong on {error:.1f}% of the test" in page


def test_requested_method_or_no_final_learns_the_given_labels(data, tmp_path, capsys):
    argv = ["train", str(data), *QUICK, "--valid", "0.2"]
    for name, options in (("named", ["--method", "mentornet"]), ("refused", ["--no-final"])):
        out = tmp_path / name
        assert execute([*argv, *options, "--out", str(out)]) == 0
        done = read_run(out)
        assert not (out / "corrected.npy").exists() and done.spec["corrected"] is None
        assert done.spec["method"].startswith("mentornet") and done.spec["noise_rate"] > 0.1
        capsys.readouterr()
        assert execute([*argv, *options, "--dry-run"]) == 0
        assert "all samples with corrected labels" not in capsys.readouterr().out
    assert execute([*argv, "--dry-run"]) == 0
    assert "train the delivered model on all samples with corrected labels (1 training of 6" in capsys.readouterr().out


def test_labels_of_unreliable_classes_are_kept(run, data, tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    for folder in ("plain", "selecting"):
        shutil.copytree(run / folder, out / folder)
    monkeypatch.setattr(Findings, "unreliable_classes", np.array([1]))
    monkeypatch.setattr(Findings, "training_labels", property(lambda findings: findings.labels))
    monkeypatch.setattr(train_module, "findings_of_run", with_hostile_names)
    assert execute(["train", str(data), *QUICK, *SPLITS, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "warning: most labels of 1\\x1b[2J look wrong; the model may not have learned this class, so" in shown
    assert "\x1b" not in shown
    assert shown.count("0 of 480 labels corrected") == 2
    assert (np.load(out / "corrected.npy") == samples_as_given(run)["label"]).all()


def with_hostile_names(path, samples, classes):
    return findings_of_run(path, samples, [f"{name}\x1b[2J" for name in classes])


def test_interrupted_training_is_resumed_bit_for_bit(run, data, tmp_path):
    out = tmp_path / "cut"
    argv = ["train", str(data), *QUICK, *SPLITS, "--out", str(out)]
    kill_after_epoch(out / "record.jsonl", argv)
    assert "interrupted after 1 of 6 epochs of the training; resume it with: labelsieve train" in unfinished(out)
    assert execute(argv) == 0
    assert unfinished(out) == ""
    for name in ("corrected.npy", "model.safetensors"):
        assert (out / name).read_bytes() == (run / name).read_bytes()


def test_decided_labels_are_not_corrected(run, data, tmp_path):
    with np.load(data) as arrays:
        labels = arrays["labels"]
    suspects = np.flatnonzero(findings_of_run(run, samples_as_given(run), read_run(run).classes).issues)[:20]
    lines = [f"{i},{label},{str(i in suspects).lower()}" for i, label in enumerate(labels)]
    (tmp_path / "reviewed.csv").write_text("\n".join(["index,label,decided", *lines]) + "\n")
    out = tmp_path / "run"
    argv = ["train", str(data), *QUICK, "--valid", "0.2", "--labels", str(tmp_path / "reviewed.csv")]
    assert execute([*argv, "--out", str(out)]) == 0
    corrected = np.load(out / "corrected.npy")
    assert (corrected[suspects] == labels[suspects]).all() and (corrected != labels).mean() > 0.1


def test_moved_run_is_still_finished(run, data, tmp_path, capsys):
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    (moved / "request.json").unlink()
    assert json.loads((moved / "spec.json").read_text())["experiment"]["corrected"].startswith(str(run))
    assert execute(["train", str(data), *QUICK, *SPLITS, "--out", str(moved)]) == 0
    assert f"already trained: {moved}" in capsys.readouterr().out
    assert execute(["audit", str(moved), "--out", str(tmp_path / "audit")]) == 0
