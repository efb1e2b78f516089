"""Progress of a training: the live line of a terminal, and plain lines elsewhere."""

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from labelsieve.progress import Counting, LiveLine, Pace, PlainLines, Plan, speed
from tests.conftest import LONG_WAIT, save_blobs


class Clock:
    """A clock that advances by two seconds with every reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


PROBE = Plan(4, part="stage 1 of 2, probe", later=6)  # below, an epoch has 10 steps


def after(watcher, steps, total=40):
    for done in range(1, steps + 1):
        watcher.step(done, total)
    return watcher


def test_live_line_shows_place_speed_and_remaining_time():
    live = LiveLine(PROBE, Clock())
    assert live.line() == "starting"
    assert after(live, 1).line() == "stage 1 of 2, probe, epoch 1/4, step 1/10"  # one step does not tell the speed
    # 37 steps of the probe and 60 of the training are left, two seconds each
    assert after(LiveLine(PROBE, Clock()), 3).line() == (
        "stage 1 of 2, probe, epoch 1/4, step 3/10, 0.5 steps/s, about 3 min left in total"
    )
    training = Plan(6, earlier=4)
    assert after(LiveLine(training, Clock()), 58, 60).line() == "epoch 6/6, step 8/10, 0.5 steps/s, about 4 s left"
    assert after(LiveLine(training, Clock()), 60, 60).line() == "epoch 6/6, step 10/10, 0.5 steps/s"


def test_speed_of_a_resumed_run_is_measured_from_its_first_new_step():
    live = LiveLine(Plan(4, rounds=2), Clock())
    for done in (71, 72):
        live.step(done, 80)
    assert live.line() == "round 2/2, epoch 4/4, step 2/10, 0.5 steps/s, about 16 s left"


@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 20), st.integers(0, 9), st.integers(0, 9), st.data())
def test_every_step_has_a_place(epochs, rounds, steps, earlier, later, data):
    plan = Plan(epochs, rounds, earlier=earlier, later=later)
    total = epochs * rounds * steps
    done = data.draw(st.integers(1, total))
    numbers = [int(n) for n in re.findall(r"(\d+)/", plan.place(done, total))]
    number = numbers.pop(0) if rounds > 1 else 1
    assert ((number - 1) * epochs + numbers[0] - 1) * steps + numbers[1] == done
    assert plan.whole(done, total) == (done + earlier * steps, total + (earlier + later) * steps)


def test_speeds_are_formatted():
    assert [speed(s) for s in (12, 2, 0.4, 0.05, 0.0004)] == [
        "12 s per step",
        "0.5 steps/s",
        "2.5 steps/s",
        "20 steps/s",
        "2,500 steps/s",
    ]
    pace = Pace(Clock())
    assert pace.seconds is None
    pace.step(5)
    assert pace.seconds is None


def test_plain_lines_are_one_per_epoch(capsys):
    lines = PlainLines(PROBE, Clock())
    after(lines, 10)
    assert capsys.readouterr().out == ""
    lines.epoch({"epoch": 1, "train_loss": 0.5, "valid_error": 12.0, "seconds": 20.0})
    assert capsys.readouterr().out == (
        "stage 1 of 2, probe, epoch 1/4: loss 0.500, valid error 12.00%, 20.0 s, about 3 min left in total\n"
    )


@pytest.mark.parametrize("width", [60, 80, 200])
def test_live_line_fits_a_terminal_of_any_width(width):
    live = after(LiveLine(PROBE, Clock()), 23)
    live.epoch({"epoch": 2, "train_loss": 0.5, "valid_error": 12.0, "seconds": 20.0})
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as shown:
        console.print(live.drawn())
    lines = shown.get().splitlines()
    assert len(lines) == 2 and all(len(line) <= width for line in lines)
    assert "probe, epoch 3/4" in lines[0] and "epoch 2: loss" in lines[1]


def test_items_are_counted_in_a_line_every_half_minute(capsys):
    with Counting("embedding", "images", clock=Clock()) as counting:
        for done in range(0, 4000, 100):
            counting.step(done, 4000)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[0] == "embedding: 700 of 4,000 images, 25 images/s, about 2 min left"


def test_items_are_counted_in_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with Counting("embedding", "texts", clock=Clock()) as counting:
        counting.step(1, 90)
        counting.step(5, 90)
        (task,) = counting.bar.tasks
        assert (task.completed, task.total, task.description) == (5, 90, "embedding: 5 of 90 texts, 2 texts/s")


def test_terminal_shows_steps_during_an_epoch(tmp_path):
    """Run until the line has shown a step with speed and remaining time, however long that takes."""
    data = save_blobs(tmp_path / "d.npz", 3000)
    quick = ["--model", "small", "--epochs", "3", "--warmup", "1", "--batch", "2", "--threads", "1"]
    command = [sys.executable, "-m", "labelsieve", "train", str(data), *quick, "--out", str(tmp_path / "run")]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    wanted = r"stage 1 of \d, plain judges( 1/\d+)?, epoch \d/\d, step \d+/\d+, .+, about [\w. ]+ left in total"
    shown, end = "", time.monotonic() + LONG_WAIT
    try:
        while not re.search(wanted, shown):
            assert process.poll() is None and time.monotonic() < end, shown
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 65536).decode(errors="replace")
        assert "\x1b[" in shown  # a live line, not plain lines
    finally:
        process.kill()
        process.wait()
        os.close(ours)
