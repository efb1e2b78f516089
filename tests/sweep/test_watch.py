"""The display of a sweep: progress from the run folders, lines and screen."""

import io
import time
from dataclasses import replace

from labelsieve.paper.tables import experiment
from labelsieve.runs.execute import epochs_of
from labelsieve.runs.spec import Experiment
from labelsieve.sweep import watch
from labelsieve.sweep.sweep import folder_of


def test_progress_is_read_from_the_folders(tmp_path):
    every = [experiment("cifar10", "selfie", "pair", 0.4, seed=seed) for seed in range(4)]
    folder_of(every[0], tmp_path).mkdir()
    (folder_of(every[0], tmp_path) / "done").touch()
    for e, lines, owner in ((every[1], 130, "123"), (every[2], 10, "")):
        folder = folder_of(e, tmp_path)
        folder.mkdir()
        (folder / "record.jsonl").write_text('{"event": "epoch"}\n' * lines)
        (folder / "lock").write_text(owner)
    found = watch.standing(every, tmp_path, time.time() - 5)
    assert str(found) == "1 of 4 runs done, 1 running, 2 waiting"
    assert found.running == {"cifar10, pair 40%, selfie:history=15, seed 1": "round 2/3, epoch 30/100"}
    assert (found.epochs, found.epochs_done) == (1200, 300 + 130 + 10)
    assert watch.describe_resumed(every, tmp_path) == "resuming 2 of 4 runs from their last epochs"
    assert watch.describe_resumed(every[:2], tmp_path) == "resuming 1 of 2 runs from their last epochs"
    assert [watch.describe_resumed(some, tmp_path) for some in (every[3:], every[:1])] == ["", ""]
    assert watch.standing(every, tmp_path, time.time() + 60).running == {}  # locked by an earlier process
    assert watch.seconds_left(1200, 400, 600, 10.0) == 30.0 and watch.seconds_left(1200, 400, 400, 10.0) is None


def test_epochs_of_methods_with_several_rounds():
    patrini = Experiment(method="f-correction", options=(("estimate", "patrini"),), epochs=10, warmup=3)
    assert epochs_of(patrini) == 20 and watch.position(patrini, 14) == "round 2/2, epoch 4/10"
    assert epochs_of(replace(patrini, options=())) == 10
    assert epochs_of(replace(patrini, method="selfie", options=())) == 30
    assert epochs_of(replace(patrini, options=(("unknown", 1),))) == 10


def test_line_is_printed_for_a_finished_run_and_every_30_seconds(capsys, monkeypatch):
    lines, clock = watch.Lines(), [0.0]
    monkeypatch.setattr(watch.time, "time", lambda: clock[0])
    for clock[0], done in ((100.0, 0), (101.0, 0), (102.0, 1), (120.0, 1), (140.0, 1)):
        lines.show(watch.Standing(3, done, {}, 30, 0), "")
    assert capsys.readouterr().err.splitlines() == [
        "0 of 3 runs done, 0 running, 3 waiting",
        "1 of 3 runs done, 0 running, 2 waiting",
        "1 of 3 runs done, 0 running, 2 waiting",
    ]


def test_screen_shows_running_experiments():
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with watch.Screen(console) as screen:
        screen.show(watch.Standing(3, 1, {"[mine], seed 0": "epoch 5/12"}, 36, 17), ", about 20 s left")
    said = console.file.getvalue()
    assert "1 of 3 runs done, 1 running, 1 waiting, about 20 s left" in said and "[mine], seed 0" in said
