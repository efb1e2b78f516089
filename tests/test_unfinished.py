"""A run that is still training, or was cut: one line says what is the matter and what to do."""

import json
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from labelsieve.cli import execute, retyped, train, usual_options
from labelsieve.commands.options import Streaming, Training
from labelsieve.errors import InputError
from labelsieve.report.page import report
from labelsieve.runs.find import refuse_unfinished, unfinished
from tests.conftest import blobs
from tests.made_runs import make_run

QUICK = ["--model", "small", "--epochs", "6", "--warmup", "2", "--batch", "32", "--threads", "1"]
LOOK = (["report"], ["audit"], ["review", "--no-browser"], ["review", "--export", "reviewed.csv"], ["predict", "new"])


@pytest.fixture
def data(tmp_path):
    """Its name needs quoting."""
    path = tmp_path / "my blobs.npz"
    train = blobs(400, 0)
    np.savez(path, images=train.images.permute(0, 2, 3, 1).numpy(), labels=train.labels.numpy())
    return path


@contextmanager
def held_at(record: Path, argv: list[str]):
    """A training that is stopped in its tracks once it has written an epoch, and killed in the end."""
    process = subprocess.Popen([sys.executable, "-m", "labelsieve", *argv], stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while not (record.exists() and b'"event": "epoch"' in record.read_bytes()):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.005)
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.wait()


def said(run: Path, capsys) -> str:
    """The one line that all commands say of it."""
    lines = set()
    for name, *options in LOOK:
        assert execute([name, str(run), *options]) == 2
        lines.add(capsys.readouterr().err)
    (line,) = lines
    assert line.startswith(f"error: {run} ") and line.count("\n") == 1
    return line


def test_running_and_cut_in_the_probe_and_in_the_training(data, tmp_path, capsys):
    run = tmp_path / "run"
    argv = ["train", str(data), *QUICK, "--out", str(run)]
    go_on = shlex.join(["labelsieve", *argv])
    places = ((run / "probe" / "1", "4 epochs of its probe 1"), (run, "6 epochs of the training"))
    for folder, place in places:
        with held_at(folder / "record.jsonl", argv):
            line = said(run, capsys)
            assert "is still running: " in line and f" of {place} done" in line
            assert line.strip().endswith("; wait until it has ended")
            assert (", the training itself follows" in line) is (folder != run)
        line = said(run, capsys)
        assert "stopped before it was done, after " in line and f" of {place}; go on with: " in line
        again = line.strip().partition("go on with: ")[2]
        assert sorted(shlex.split(again)) == sorted(shlex.split(go_on))
    assert execute(shlex.split(again)[1:]) == 0
    refuse_unfinished(run)
    assert execute(["report", str(run)]) == 0


def test_between_probe_and_training_nobody_can_tell(tmp_path):
    make_run(tmp_path / "run" / "probe" / "1")
    line = unfinished(tmp_path / "run")
    assert "only its probes are done: wait if it is still running, else the command that began it goes on" in line


def test_how_far_it_came_is_counted_from_whole_lines(tmp_path):
    run = make_run(tmp_path / "run", done=False)
    with (run / "record.jsonl").open("a") as file:
        file.write('{"event": "epoch", "epo')
    assert "stopped before it was done, after 6 of 12 epochs of the training; the command that" in unfinished(run)
    rows = [{"event": "start"}, {"event": "epoch", "round": 1, "epoch": 12}, {"event": "epoch", "round": 2, "epoch": 3}]
    (run / "record.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "after 3 of 12 epochs in round 2 of the training" in unfinished(run)
    (run / "record.jsonl").unlink()
    assert "after 0 of 12 epochs of the training" in unfinished(run)
    (run / "spec.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot read .*spec\.json"):
        unfinished(run)


def test_no_run_and_a_finished_one_are_not_unfinished(tmp_path):
    assert unfinished(tmp_path) == unfinished(tmp_path / "nowhere") == unfinished(make_run(tmp_path / "run")) == ""


def test_beside_a_finished_run_an_unfinished_one_is_shown_but_not_one_that_has_only_its_probe(tmp_path):
    done, cut = make_run(tmp_path / "done"), make_run(tmp_path / "cut", done=False)
    make_run(tmp_path / "probing" / "probe" / "1", done=False)
    assert "unfinished, 6 epochs done" in report([done, cut], tmp_path / "r.html", 5).read_text()
    for paths in ([cut], [cut, cut], [done, tmp_path / "probing"]):
        with pytest.raises(InputError, match="stopped before it was done"):
            report(paths, tmp_path / "no.html", 5)
    assert not (tmp_path / "no.html").exists()


def test_a_command_is_typed_again_as_it_was_meant():
    given = {
        **usual_options(train),
        "set": ("lam=2", "floor=0.1"),
        "out": Path("my runs/a"),
        "dry_run": True,
        "reading": Streaming(skip_bad=True),
        "training": Training(epochs=3, nesterov=False),
    }
    typed = "labelsieve train photos --set lam=2 --set floor=0.1 --out 'my runs/a' --skip-bad --epochs 3 --no-nesterov"
    assert retyped("train", "photos", given) == typed
