"""The tools of these tests: commands are bounded, kills hit the processes that they should, and records add up."""

import itertools
import json
import random
import signal
import sys
import time
from types import SimpleNamespace

import pytest

from tests.fuzz import confined, kills
from tests.fuzz.confined import check_bounds, run_confined
from tests.fuzz.kills import Kind, kill_until_finished, launch, measured
from tests.fuzz.record import ENVIRONMENT, add, note
from tests.fuzz.seeds import COMMANDS, outcome, place

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not tell what processes use")

# Counts to 40 in a file, continuing where it ended, but waits at 20 until another file exists; in a child process if
# there is a third argument.
COUNTER = """
import pathlib, subprocess, sys
if len(sys.argv) > 3:
    sys.exit(subprocess.run(sys.orig_argv[:-1]).returncode and 1)
file, gate = map(pathlib.Path, sys.argv[1:])
while (count := len(file.read_text()) if file.exists() else 0) < 40:
    sum(range(200_000))
    if count != 20 or gate.exists():
        with file.open("a") as opened:
            opened.write("x")
"""


def spin(argv):
    while True:
        pass


def allocate(argv):
    return 0, "", str(len(bytearray(3 * 10**9)))


def fill(argv):
    return 0, "", str(sum(bytearray(b"1" * 300 * 10**6)[::4096]))


def exhaust(argv):
    try:
        bytearray(3 * 10**9)
    except MemoryError:
        return 4, "", "error: out of memory\n"
    return 0, "", ""


def test_commands_are_bounded_in_time(monkeypatch):
    monkeypatch.setattr(confined, "CPU_SECONDS", 1)
    monkeypatch.setattr(confined, "quietly", spin)
    found = run_confined([])
    assert found.code in (-signal.SIGXCPU, -signal.SIGKILL) and found.seconds < 3
    with pytest.raises(AssertionError, match="more than 1 CPU s"):
        check_bounds(found, "x")


@ON_LINUX
@pytest.mark.parametrize("command", [allocate, exhaust])
def test_commands_are_bounded_in_memory(monkeypatch, command):
    monkeypatch.setattr(confined, "quietly", command)
    found = run_confined([])
    assert found.code == (99 if command is allocate else 4) and found.megabytes < 100
    if command is exhaust:
        with pytest.raises(AssertionError, match="too much memory"):
            check_bounds(found, "x")


@ON_LINUX
def test_memory_is_measured(monkeypatch):
    monkeypatch.setattr(confined, "quietly", fill)
    assert 250 < run_confined([]).megabytes < 900
    monkeypatch.setattr(confined, "quietly", lambda argv: (0, "", ""))
    assert run_confined([]).megabytes < 50


@ON_LINUX
def test_damage_tests_bound_their_commands(monkeypatch):
    monkeypatch.setattr(confined, "quietly", exhaust)
    for command in COMMANDS:
        with pytest.raises(AssertionError, match=f"{command}: too much memory"):
            outcome(command, place() / "finished" / "run")


@ON_LINUX
@pytest.mark.parametrize("nested", [False, True])
def test_a_command_is_killed_until_it_has_finished(tmp_path, monkeypatch, nested):
    """The command itself, or the process that it has started, is killed; the counting goes on where it ended.

    How busy the machine is does not matter: the measured command waits at 20 until it has been looked at a few times,
    and the killed one waits there until it has been killed.
    """
    whole, killed, gate = (tmp_path / name for name in ("whole", "killed", "gate"))

    def victims(root, family):
        return [pid for pid, member in family.items() if (member.parent == root) == nested]

    def begin(file, gate):
        command = [sys.executable, "-c", COUNTER, str(file), str(gate), *(["nested"] if nested else [])]
        return launch(command, tmp_path / "log", tmp_path)

    looks = []

    def look(seconds):
        looks.append(whole.exists())
        if sum(looks) == 4:
            gate.touch()
        time.sleep(seconds)

    with monkeypatch.context() as patched:
        patched.setattr(kills, "time", SimpleNamespace(sleep=look))
        begun, spent = measured(begin(whole, gate), whole)
    assert 0 < begun <= spent and whole.read_text() == 40 * "x"

    gates = itertools.chain([tmp_path / "never"], itertools.repeat(gate))
    kind = Kind((), (), victims, fails=nested)
    assert kill_until_finished(kind, lambda: begin(killed, next(gates)), (begun, spent), random.Random(0)) > 0
    assert killed.read_text() == whole.read_text()


def test_records_add_up(tmp_path, monkeypatch):
    file = tmp_path / "record.json"
    note("runs", kills=1)  # names no file: nothing is written
    monkeypatch.setenv(ENVIRONMENT, str(file))
    note("runs", kills=2, most_seconds=1.25)
    note("runs", kills=3, most_seconds=0.5)
    add(file, "others", failure="differs")
    record = json.loads(file.read_text())
    assert record["kinds"] == {"runs": {"kills": 5, "most seconds": 1.25}, "others": {}}
    assert record["failures"] == ["others: differs"]
    assert len(record["commits"]) == 1 and record["versions"]["python"].startswith("3.")
