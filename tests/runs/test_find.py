"""Finding runs: messages about runs that are still training or were interrupted."""

import json
import shlex

import pytest

from labelsieve.cli import execute, parse
from labelsieve.errors import InputError
from labelsieve.report.page import write_report
from labelsieve.runs.find import newest_training, refuse_unfinished, unfinished
from tests.conftest import held_after_epoch, save_blobs
from tests.made_runs import make_run

QUICK = ["--model", "small", "--epochs", "6", "--warmup", "2", "--batch", "32", "--threads", "1", "--no-report"]
READERS = (
    ["report"],
    ["audit"],
    ["review", "--no-browser"],
    ["review", "--export", "reviewed.csv"],
    ["predict", "new"],
)


def message_of_all_readers(run, capsys):
    """Return the one line with which every command that reads runs refuses this one."""
    lines = set()
    for name, *options in READERS:
        assert execute([name, str(run), *options]) == 2
        lines.add(capsys.readouterr().err)
    (line,) = lines
    assert line.startswith(f"error: {run} ") and line.count("\n") == 1
    return line


def test_running_and_interrupted_runs_are_described_until_they_are_resumed(tmp_path, capsys):
    data, run = save_blobs(tmp_path / "my blobs.npz", 400), tmp_path / "run"  # its name needs quotes
    argv = ["train", str(data), *QUICK, "--out", str(run)]
    command = shlex.join(["labelsieve", *argv])
    places = (
        (run / "plain" / "1", "2 epochs of plain training 1"),
        (run / "selecting" / "1", "6 epochs of selecting training 1"),
        (run, "6 epochs of the training"),
    )
    for folder, place in places:
        with held_after_epoch(folder / "record.jsonl", argv):
            line = message_of_all_readers(run, capsys)
            assert f" is still running (1 of {place} finished); wait until it has ended\n" in line
        line = message_of_all_readers(run, capsys)
        assert f" was interrupted after 1 of {place}; resume it with: {command}\n" in line
    assert execute(argv) == 0
    refuse_unfinished(run)
    assert execute(["report", str(run)]) == 0


def test_run_with_finished_judges_only(tmp_path):
    make_run(tmp_path / "run" / "plain" / "1")
    assert "only earlier stages are; wait if it is still running, else run the command that" in unfinished(
        tmp_path / "run"
    )


def test_incomplete_lines_do_not_count_as_epochs(tmp_path):
    run = make_run(tmp_path / "run", done=False)
    with (run / "record.jsonl").open("a") as file:
        file.write('{"event": "epoch", "epo')
    assert "was interrupted after 6 of 12 epochs of the training; run the command that" in unfinished(run)
    rows = [{"event": "start"}, {"event": "epoch", "round": 1, "epoch": 12}, {"event": "epoch", "round": 2, "epoch": 3}]
    (run / "record.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "after 3 of 12 epochs in round 2 of the training" in unfinished(run)
    (run / "record.jsonl").unlink()
    assert "after 0 of 12 epochs of the training" in unfinished(run)
    (run / "spec.json").write_text("{")
    with pytest.raises(InputError, match=r"spec\.json is damaged: the file is not JSON"):
        unfinished(run)


def test_finished_runs_and_other_folders_are_not_unfinished(tmp_path):
    assert unfinished(tmp_path) == unfinished(tmp_path / "nowhere") == unfinished(make_run(tmp_path / "run")) == ""


def test_newest_training_is_that_of_the_latest_stage(tmp_path):
    assert newest_training(tmp_path) is None
    for folder in ("network/2", "plain/2", "plain/10", "selecting/1", "second/1", "."):
        place = tmp_path / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "spec.json").touch()
        assert newest_training(tmp_path) == place


def test_report_of_several_runs_includes_unfinished_ones_with_epochs(tmp_path):
    done, cut = make_run(tmp_path / "done"), make_run(tmp_path / "cut", done=False)
    make_run(tmp_path / "judging" / "plain" / "1", done=False)
    assert "unfinished, 6 epochs done" in write_report([done, cut], tmp_path / "r.html", 5).read_text()
    for paths in ([cut], [cut, cut], [done, tmp_path / "judging"]):
        with pytest.raises(InputError, match="was interrupted after"):
            write_report(paths, tmp_path / "no.html", 5)
    assert not (tmp_path / "no.html").exists()


def test_command_line_names_what_was_typed_without_the_dry_run():
    typed = ["train", "photos", "--set=lam=2", "--set", "floor=0.1", "--out", "my runs/a", "--dry-run", "--no-nesterov"]
    _, options = parse(typed)
    assert options.command_line == (
        "labelsieve train photos --set lam=2 --set floor=0.1 --out 'my runs/a' --no-nesterov"
    )
    assert options.dry_run and parse(shlex.split(options.command_line)[1:])[1].set == ["lam=2", "floor=0.1"]
