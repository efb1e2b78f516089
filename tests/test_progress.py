"""What a person sees while a training runs."""

import os
import pty
import re
import select
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from labelsieve.progress import LiveLine, Pace, PlainLines, Plan, speed
from tests.conftest import blobs


class Clock:
    """Goes on by two seconds a look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


PROBE = Plan(4, part="probe", later=6)  # 10 steps an epoch below


def after(watcher, steps, total=40):
    for done in range(1, steps + 1):
        watcher.step(done, total)
    return watcher


def test_within_the_first_epoch_it_says_where_it_is_how_fast_and_how_long_all_takes():
    live = LiveLine(PROBE, Clock())
    assert live.line() == "starting"
    assert after(live, 1).line() == "probe, epoch 1/4, step 1/10"  # one step says nothing of the speed
    # by hand: 37 steps are left of the probe and 60 of the training, two seconds each
    assert after(LiveLine(PROBE, Clock()), 3).line() == (
        "probe, epoch 1/4, step 3/10, 0.5 steps/s, about 3 min left in all"
    )
    training = Plan(6, earlier=4)
    assert after(LiveLine(training, Clock()), 58, 60).line() == "epoch 6/6, step 8/10, 0.5 steps/s, about 4 s left"
    assert after(LiveLine(training, Clock()), 60, 60).line() == "epoch 6/6, step 10/10, 0.5 steps/s"


def test_a_resumed_run_is_measured_from_where_it_goes_on():
    live = LiveLine(Plan(4, rounds=2), Clock())
    for done in (71, 72):
        live.step(done, 80)
    assert live.line() == "round 2/2, epoch 4/4, step 2/10, 0.5 steps/s, about 16 s left"


@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 20), st.integers(0, 9), st.integers(0, 9), st.data())
def test_every_step_has_its_place(epochs, rounds, steps, earlier, later, data):
    plan = Plan(epochs, rounds, earlier=earlier, later=later)
    total = epochs * rounds * steps
    done = data.draw(st.integers(1, total))
    numbers = [int(n) for n in re.findall(r"(\d+)/", plan.place(done, total))]
    number = numbers.pop(0) if rounds > 1 else 1
    assert ((number - 1) * epochs + numbers[0] - 1) * steps + numbers[1] == done
    whole = plan.whole(done, total)
    assert whole == (done + earlier * steps, total + (earlier + later) * steps)


def test_speeds_in_words():
    assert [speed(s) for s in (12, 2, 0.4, 0.05, 0.0004)] == [
        "12 s a step",
        "0.5 steps/s",
        "2.5 steps/s",
        "20 steps/s",
        "2,500 steps/s",
    ]
    pace = Pace(Clock())
    assert pace.seconds is None
    pace.step(5)
    assert pace.seconds is None


def test_elsewhere_it_is_one_plain_line_an_epoch(capsys):
    lines = PlainLines(PROBE, Clock())
    after(lines, 10)
    assert capsys.readouterr().out == ""
    row = {"epoch": 1, "train_loss": 0.5, "valid_error": 12.0, "seconds": 20.0}
    lines.epoch(row)
    assert capsys.readouterr().out == (
        "probe, epoch 1/4: loss 0.500, valid error 12.00%, 20.0 s, about 3 min left in all\n"
    )


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_a_terminal_of_any_width(width):
    live = after(LiveLine(PROBE, Clock()), 23)
    live.epoch({"epoch": 2, "train_loss": 0.5, "valid_error": 12.0, "seconds": 20.0})
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as shown:
        console.print(live.drawn())
    lines = shown.get().splitlines()
    assert len(lines) == 2 and all(len(line) <= width for line in lines)
    assert "probe, epoch 3/4" in lines[0] and "epoch 2: loss" in lines[1]


def test_a_real_terminal_sees_steps_before_the_first_epoch_is_over(tmp_path):
    train = blobs(3000, 0)
    np.savez(tmp_path / "d.npz", images=train.images.permute(0, 2, 3, 1).numpy(), labels=train.labels.numpy())
    quick = ["--model", "small", "--epochs", "3", "--warmup", "1", "--batch", "2", "--threads", "1"]
    command = [sys.executable, "-m", "labelsieve", "train", str(tmp_path / "d.npz"), *quick]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run")], stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    seen, end = "", time.monotonic() + 60
    try:
        while not re.search(
            r"probe( 1/\d+)?, epoch 1/\d, step \d+/\d+, [\d,.]+ steps/s, about [\w. ]+ left in all", seen
        ):
            assert process.poll() is None and time.monotonic() < end, seen
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 65536).decode(errors="replace")
        record = tmp_path / "run" / "probe" / "1" / "record.jsonl"
        assert b'"event": "epoch"' not in record.read_bytes()  # it moved while the first epoch was under way
    finally:
        process.kill()
        process.wait()
        os.close(ours)
