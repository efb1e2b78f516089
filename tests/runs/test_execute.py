"""Executing a run: its files, exact resuming after kills and signals, finished runs, full disks, divergence."""

import errno
import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelsieve.cli import execute
from labelsieve.runs import data as run_data
from labelsieve.runs.execute import is_finished, run
from labelsieve.runs.read import read_run, read_samples
from labelsieve.runs.spec import Experiment
from tests.conftest import (
    LONG_WAIT,
    held_after_epoch,
    kill_after_epoch,
    read_rows,
    save_blobs,
    start_interrupted,
    without_resumes,
)

NOISE = ["--noise", "pair", "--rate", "0.3"]
QUICK = [
    *("--epochs", "2", "--warmup", "1", "--lr", "0.02", "--batch", "32"),
    *("--threads", "1", "--model", "small", "--no-report"),
]
RESULTS = ("tables.safetensors", "samples.safetensors", "model.safetensors")


@pytest.fixture
def data(tmp_path):
    return save_blobs(tmp_path / "data.npz", 150, test=40)


@pytest.fixture
def trained(data, tmp_path):
    out = tmp_path / "run"
    assert execute(["train", str(data), *NOISE, *QUICK, "--out", str(out)]) == 0
    return out


def modified(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != "lock"}


def test_run_folder_is_complete(trained):
    names = {"done", "lock", "record.jsonl", "request.json", "spec.json", *RESULTS}
    assert {path.name for path in trained.iterdir()} == names
    start, *epochs, end = read_rows(trained, timed=True)
    assert [start["event"], *[e["event"] for e in epochs], end["event"]] == ["start", "epoch", "epoch", "end"]
    realised = np.array(start["noise"]["realised"])
    assert realised.sum() == 150 and 1 - np.trace(realised) / 150 == pytest.approx(start["noise"]["realised_rate"])
    assert {"train_loss", "test_error", "precision", "kept", "lr", "seconds"} <= epochs[0].keys()
    assert end["last"] == epochs[-1]["test_error"]
    tables = read_run(trained).tables
    assert tables["last/penalty"].shape == (1, 4, 4) and (tables["noise"] == realised).all()
    head = json.loads((trained / "spec.json").read_text())
    assert head["experiment"]["method"] == "mentornet-prop" and head["versions"]["torch"] and head["source"]


def test_finished_run_is_not_repeated(trained, data, capsys):
    before = modified(trained)
    assert execute(["train", str(data), *NOISE, *QUICK, "--out", str(trained)]) == 0
    assert "already trained" in capsys.readouterr().out and modified(trained) == before


def test_finished_run_is_recognised_without_decoding(tmp_path, monkeypatch):
    data = save_blobs(tmp_path / "data.npz", 60)
    experiment = Experiment(data=str(data), model="small", epochs=2, warmup=1, batch=32)
    assert not is_finished(experiment, tmp_path / "run") and run(experiment, tmp_path / "run")
    monkeypatch.setattr(run_data, "load_data", lambda *_, **__: pytest.fail("the data was decoded"))
    assert is_finished(experiment, tmp_path / "run") and not run(experiment, tmp_path / "run")


def test_run_of_an_older_version_without_a_source_is_still_finished(trained, data, capsys):
    """Older versions wrote neither the fingerprint of the files nor the request nor digests."""
    (trained / "done").write_bytes(b"")
    head = json.loads((trained / "spec.json").read_text())
    del head["source"]
    (trained / "spec.json").write_text(json.dumps(head))
    (trained / "request.json").unlink()
    before = modified(trained)
    assert execute(["train", str(data), *NOISE, *QUICK, "--out", str(trained)]) == 0
    assert "already trained" in capsys.readouterr().out
    after = modified(trained)
    assert after.pop("request.json") and after == before  # the next time, it is recognised at once


def test_interrupted_run_of_an_older_version_is_resumed_bit_for_bit(trained, data, tmp_path):
    out = tmp_path / "old"
    argv = ["train", str(data), *NOISE, *QUICK, "--out", str(out)]
    kill_after_epoch(out / "record.jsonl", argv, steps=1)
    head = json.loads((out / "spec.json").read_text())
    del head["source"], head["command"]
    (out / "spec.json").write_text(json.dumps(head))
    assert execute(argv) == 0
    assert without_resumes(out) == without_resumes(trained) and len(read_rows(out)) == len(read_rows(trained)) + 1
    assert all((out / name).read_bytes() == (trained / name).read_bytes() for name in RESULTS)


def test_changed_or_moved_data(trained, data, capsys):
    moved = data.rename(data.with_name("moved.npz"))
    argv = ["train", str(moved), *NOISE, *QUICK, "--out", str(trained)]
    assert execute(argv) == 0 and "already trained" in capsys.readouterr().out
    with np.load(moved) as file:
        arrays = dict(file)
    arrays["images"][0, 0, 0] ^= 1
    np.savez(moved, **arrays)
    before = modified(trained)
    assert execute(argv) == 2
    error = capsys.readouterr().err
    assert "the data or labels changed since" in error and error.count("\n") == 1
    assert modified(trained) == before


def test_folder_of_another_run_is_left_alone(trained, data, capsys):
    before = modified(trained)
    assert execute(["train", str(data), "--noise", "pair", "--rate", "0.2", *QUICK, "--out", str(trained)]) == 2
    error = capsys.readouterr().err
    assert "holds another run: it was trained with --rate 0.3, not with --rate 0.2; name another --out" in error
    assert modified(trained) == before


def test_run_starts_from_the_model_of_another(trained, data, tmp_path, capsys):
    out = tmp_path / "second"
    argv = ["train", str(data), *NOISE, *QUICK, "--init", str(trained), "--out", str(out)]
    argv[argv.index("--lr") + 1] = "1e-12"
    assert execute(argv) == 0
    assert read_run(out).epochs[0]["test_error"] == read_run(trained).end["last"]
    given = ["train", str(data), "--noise-rate", "0.3", *QUICK, "--init", str(trained)]
    for options, message in ((["--model", "densenet-25-12"], "same --model"), (["--method", "co-teaching"], "differ")):
        assert execute([*given, *options]) == 2
        assert message in capsys.readouterr().err


def test_killed_run_is_resumed_bit_for_bit(data, tmp_path, capsys):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    argv = ["train", str(data), *NOISE, *QUICK, "--epochs", "20", "--warmup", "7", "--valid", "0.2", "--out"]
    assert execute([*argv, str(whole)]) == 0
    for epochs, steps in ((1, 0), (6, 2), (9, 0)):  # without steps: before the checkpoint is written
        kill_after_epoch(pieces / "record.jsonl", [*argv, str(pieces)], epochs, steps)
    capsys.readouterr()
    assert execute([*argv, str(pieces)]) == 0
    shown = capsys.readouterr().out
    assert "epoch 9/20" in shown and "epoch 20/20" in shown and "epoch 8/20" not in shown
    assert without_resumes(pieces) == without_resumes(whole) == read_rows(whole)
    assert sum(row["event"] == "resume" for row in read_rows(pieces)) == 2  # the first kill left no checkpoint
    assert all((pieces / name).read_bytes() == (whole / name).read_bytes() for name in RESULTS)


@pytest.mark.parametrize(("name", "shown"), [("SIGINT", "Ctrl-C"), ("SIGTERM", "SIGTERM")])
def test_signal_ends_a_run_that_can_be_resumed(data, tmp_path, name, shown):
    out = tmp_path / "run"
    argv = ["train", str(data), *NOISE, *QUICK, "--epochs", "4", "--out", str(out)]
    process = start_interrupted(name, out / "record.jsonl", argv, epochs=2, steps=1)
    _, error = process.communicate(timeout=LONG_WAIT)
    assert process.returncode == 128 + signal.Signals[name]
    assert error.startswith(f"error: stopped by {shown}") and error.count("\n") == 1
    assert (out / "checkpoints").exists() and not (out / "done").exists()
    assert execute(argv) == 0 and len(read_run(out).epochs) == 4


def test_run_folder_in_use_is_refused(data, tmp_path, capsys):
    out = tmp_path / "run"
    argv = ["train", str(data), *NOISE, *QUICK, "--out", str(out)]
    with held_after_epoch(out / "record.jsonl", argv) as process:
        assert execute(argv) == 2
        error = capsys.readouterr().err
        assert f"in use by process {process.pid}; wait for it" in error and error.count("\n") == 1


def test_run_survives_a_full_disk(data, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    argv = ["train", str(data), *NOISE, *QUICK, "--out", str(out)]
    rename, calls = Path.replace, []

    def full(self, target):
        calls.append(target)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", full)
    assert execute(argv) == 4
    assert "the disk is full" in capsys.readouterr().err
    assert not list(out.rglob("*.tmp"))
    assert execute(argv) == 0
    assert len(read_run(out).epochs) == 2


def test_divergence_is_one_line_and_exit_code_3(data, tmp_path, capsys):
    argv = ["train", str(data), "--noise-rate", "0.1", *QUICK, "--out", str(tmp_path / "run"), "--lr", "1e30"]
    assert execute(argv) == 3
    error = capsys.readouterr().err
    assert "training diverged" in error and "ower --lr" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((150, 3, 20, 24), np.uint8)}, "channels first"),
        ({"test_images": np.zeros((40, 9, 8), np.uint8)}, "the test images have shape (1, 9, 8)"),
        ({"test_labels": None}, "has no array 'test_labels'"),
    ],
)
def test_unsuitable_images_are_refused(data, change, message, tmp_path, capsys):
    with np.load(data) as file:
        arrays = {**file, **change}
    np.savez(data, **{key: value for key, value in arrays.items() if value is not None})
    assert execute(["train", str(data), "--noise-rate", "0.1", *QUICK, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_images_too_small_for_the_network_are_refused(tmp_path, capsys):
    np.savez(tmp_path / "tiny.npz", images=np.zeros((9, 1, 1), np.uint8), labels=np.arange(9) % 3)
    command = ["train", str(tmp_path / "tiny.npz"), "--noise-rate", "0.1", "--model", "densenet-25-12"]
    assert execute([*command, "--out", str(tmp_path / "run")]) == 2
    assert "densenet-25-12 cannot process images of 1 x 1 pixels with 1 channels" in capsys.readouterr().err


def test_scores_of_requested_epochs_are_saved(tmp_path):
    experiment = Experiment(data=str(save_blobs(tmp_path / "d.npz", 60)), model="small", epochs=2, warmup=1, batch=32)
    run(replace(experiment, scores=(2,)), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").glob("scores-*")] == ["scores-2.safetensors"]
    assert len(read_samples(tmp_path / "run")["label"]) == 60
