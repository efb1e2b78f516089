"""labelsieve train on runs with damaged files: what is made again, what is refused, and who may train at a time."""

import shutil

import pytest

from labelsieve.review.decisions import decisions_path
from labelsieve.runs.data import Shelf
from labelsieve.train.checkpoint import Checkpoints
from tests.conftest import held_after_epoch
from tests.fuzz.confined import quietly
from tests.fuzz.seeds import copy_of, expected, outcome, training


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_damaged_audit_is_made_again():
    run = copy_of("automatic")
    before = (run / "audit" / "labels.csv").read_bytes()
    flip(run / "audit" / "labels.csv")
    code, _, errors = quietly(training("automatic", run))
    assert code == 0 and "labels.csv is damaged; the labels are audited again\n" in errors
    assert (run / "audit" / "labels.csv").read_bytes() == before


def test_damaged_stage_is_named_and_made_again_on_request():
    run = copy_of("automatic")
    flip(run / "plain" / "3" / "samples.safetensors")
    assert outcome("audit", run).code == 2
    found = outcome("train", run)
    assert found.code == 2 and f"delete {run}/plain/3/done and run the same command" in found.errors
    (run / "plain" / "3" / "done").unlink()
    assert "plain/3/done is missing" in outcome("audit", run).errors
    found = outcome("train", run)
    assert found.code == 0 and found.result == expected("train", "automatic").result
    assert outcome("audit", run).result == expected("audit", "automatic").result  # with a new seal


def test_missing_model_is_made_again_from_a_checkpoint_that_is_left(monkeypatch):
    run = copy_of("half")
    monkeypatch.setattr(Checkpoints, "clear", lambda self: None)  # as if it were killed right after it has finished
    assert outcome("train", run).code == 0 and (run / "checkpoints").exists()
    monkeypatch.undo()
    (run / "model.safetensors").unlink()
    found = outcome("train", run)
    assert "model.safetensors is missing; it is made again from the last checkpoint" in found.errors
    assert found.result == expected("train", "half").result and not (run / "checkpoints").exists()


def test_missing_model_without_a_checkpoint_is_named():
    run = copy_of("finished")
    (run / "model.safetensors").unlink()
    errors = outcome("train", run).errors
    assert (
        f"model.safetensors is missing; restore it, or delete {run}/done and run the same command to train again"
        in errors
    )
    (run / "done").unlink()
    assert outcome("train", run).result == expected("train", "finished").result


def test_checkpoints_left_by_a_kill_after_the_end_are_removed():
    run = copy_of("finished")
    shutil.copytree(copy_of("half") / "checkpoints", run / "checkpoints")
    assert outcome("train", run).code == 0 and not (run / "checkpoints").exists()


def test_cut_labels_are_not_exported():
    run = copy_of("finished")
    labels = run / "audit" / "labels.csv"
    lines = labels.read_bytes().splitlines(keepends=True)
    labels.write_bytes(b"".join(lines[: len(lines) // 2]))
    found = outcome("export", run)
    assert found.code == 2 and "labels.csv is damaged" in found.errors and not (run / "r.csv").exists()


def test_changed_decision_is_refused():
    run = copy_of("finished")
    log = decisions_path(run)
    log.write_bytes(log.read_bytes().replace(b'"keep"', b'"unsure"', 1))
    found = outcome("export", run)
    assert found.code == 2 and "decisions.jsonl:1 is not a decision (it is damaged)" in found.errors


def test_second_process_is_refused_before_any_decoding(tmp_path, monkeypatch):
    run = tmp_path / "automatic" / "run"
    argv = training("automatic", run)
    monkeypatch.setattr(Shelf, "load", lambda *given: pytest.fail("data was decoded"))
    with held_after_epoch(run / "plain" / "2" / "record.jsonl", argv) as process:
        code, _, errors = quietly(argv)
    assert code == 2 and f"in use by process {process.pid}; wait for it or name another --out\n" in errors
