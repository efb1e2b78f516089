"""Records of finished runs: those in results/ are complete, and damaged ones are refused in one line."""

import json
import shutil
from pathlib import Path

import pytest

from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.runs.read import finished_runs, read_run
from labelsieve.runs.record import errors, fault
from tests.made_runs import make_run

ROOT = Path(__file__).parents[2]
RUN = ROOT / "results" / "cifar10" / "e05f281db43d"  # default, pair noise at 40%, 100 epochs
CELL = ["--dataset", "cifar10", "--noise", "pair", "--rate", "0.4", "--methods", "default"]


def test_every_committed_record_is_complete():
    every = finished_runs(ROOT / "results")
    assert len(every) > 200 and RUN in every
    for path in every:
        read_run(path, with_tables=False)


def first_fifty(lines):
    return lines[:50]


def twenty_and_the_end(lines):
    return [*lines[:21], lines[-1]]


def other_best(value):
    return lambda lines: [*lines[:-1], json.dumps({**json.loads(lines[-1]), "best": value})]


FAULTS = {
    "it ends after line 50 without an end event": first_fifty,
    "epoch 21 of 100 is missing or out of order": twenty_and_the_end,
    "its last line has best 1.0, its epochs give 17.86": other_best(1.0),
    "a value cannot be used (TypeError": other_best("abc"),
    "its last line has best None, its epochs give 17.86": other_best(None),
    "its first line is not the start": lambda lines: lines[1:],
    "line 1 is not JSON": lambda lines: [lines[0][:40], *lines[1:]],
    "line 2 is not a JSON object": lambda lines: [lines[0], "[]", *lines[2:]],
    "line 3 has no event": lambda lines: [*lines[:2], "{}", *lines[3:]],
    "epoch 4 of 100 is missing or out of order": lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]],
    "epoch 7 of 100 is missing": lambda lines: [*lines[:7], *lines[6:]],
    "epoch 101 is one too many": lambda lines: [
        *lines[:-1],
        json.dumps({**json.loads(lines[-2]), "epoch": 101}),
        lines[-1],
    ],
    "it has an unexpected event 'end'": lambda lines: [*lines[:-1], lines[-1], lines[-1]],
    "its last line has no chosen_epoch from 1 to 100": lambda lines: [
        *lines[:-1],
        lines[-1].replace('h": 100', 'h": 101'),
    ],
}


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(RUN, tmp_path / "res" / "run"))


def message_of_both_readers(folder, capsys):
    """Return the one line with which both commands that read records refuse this one."""
    results = ["--results", str(folder.parent)]
    page = folder.parents[1] / "results.md"
    lines = []
    for command in (["table", "2", "--show", *CELL, *results], ["results", *results, "--out", str(page)]):
        assert execute(command) == 2
        lines.append(capsys.readouterr().err)
    assert lines[0] == lines[1] and lines[0].count("\n") == 1 and not page.exists()
    return lines[0]


@pytest.mark.parametrize("what", FAULTS)
def test_damaged_record_is_refused_in_one_line(what, copy, capsys):
    file = copy / "record.jsonl"
    file.write_text("\n".join(FAULTS[what](file.read_text().splitlines())) + "\n")
    line = message_of_both_readers(copy, capsys)
    assert f"{file} is damaged: " in line and what in line
    assert f"restore it from version control, or delete the folder {copy} and run the command again" in line


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("record.jsonl", "", "its first line is not the start"),
        ("record.jsonl", None, "it does not exist"),
        ("spec.json", "[]", "the file is not a JSON object"),
        ("spec.json", "{", "the file is not JSON"),
        ("spec.json", "{}", "it has no experiment"),
        ("spec.json", '{"experiment": {"method": "default", "seed": 0}}', "its experiment has no criterion, epochs"),
    ],
)
def test_missing_or_invalid_file_is_named(name, content, what, copy, capsys):
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_text(content)
    assert f"{copy / name} is damaged: {what}; restore it" in message_of_both_readers(copy, capsys)


def rows(rounds, epochs):
    every = [
        {"event": "epoch", "round": r, "epoch": e, "test_error": 10.0 * r + e}
        for r in range(1, rounds + 1)
        for e in range(1, epochs + 1)
    ]
    return [{"event": "start"}, *every, {"event": "end", "chosen_epoch": epochs, **errors(every)}]


def test_every_round_must_have_all_epochs():
    spec = {"epochs": 4, "options": [["rounds", 3]]}
    complete = rows(3, 4)
    assert fault(spec, complete) == "" and complete[-1]["best"] == 31.0
    assert "epoch 3 of 4 of round 2 is missing" in fault(spec, [row for row in complete if row is not complete[7]])
    assert "epoch 1 of 4 of round 3 is missing" in fault(spec, rows(2, 4))
    assert (
        fault({"epochs": 4, "options": []}, complete) == ""
    )  # without the option, the record determines the number of rounds


def test_run_without_test_set_has_no_test_errors(tmp_path):
    run = make_run(tmp_path / "run", test=False)
    assert "best" not in read_run(run).end
    file = run / "record.jsonl"
    file.write_text(file.read_text().replace('"chosen_epoch": 12', '"chosen_epoch": 12, "best": 3.0'))
    with pytest.raises(InputError, match="its last line has best 3"):
        read_run(run)
