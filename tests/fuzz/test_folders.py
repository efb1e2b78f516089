"""Damaged run folders: every command gives the right result or one line that names the file, never anything else."""

import json
import os
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labelsieve.train.checkpoint import Checkpoints
from tests.fuzz.damage import DAMAGES, Damage, kinds_of_files
from tests.fuzz.record import note
from tests.fuzz.seeds import COMMANDS, copy_of, expected, outcome, seed_run

EXAMPLES = int(os.environ.get("LABELSIEVE_FUZZ", "0"))  # examples per test; 0: a few, always the same ones
LIMITS = settings(
    max_examples=EXAMPLES or 6,
    derandomize=not EXAMPLES,
    suppress_health_check=list(HealthCheck),
    database=None,
)
SHORTENED = ("cut", "empty", "zeros", "delete")  # a shorter log of decisions is one of an earlier moment


def refuses(found) -> bool:
    """Return whether a command ended with one line and exit code 2, or 4 for a full disk."""
    lines = [line for line in found.errors.splitlines() if line.startswith("error: ")]
    return found.code in (2, 4) and len(lines) == 1 and found.errors.endswith(lines[0] + "\n")


def check(command: str, kind: str, damage: Damage) -> None:
    wanted = expected(command, kind)
    run = copy_of(kind)
    name = damage.apply(run)
    found = outcome(command, run)
    if found.code == 0:
        lost = "decisions.jsonl" in name and damage.kind in SHORTENED and command in ("export", "report", "train")
        assert wanted.code == 0 and (found.result == wanted.result or lost), f"{command} silently differs: {name}"
    else:
        assert refuses(found), f"{command} after damage to {name}: {found.code}, {found.errors}"
        assert str(run) in found.errors, f"{command} does not name a file of {run}: {found.errors}"
    note(f"damages to a run, {kind}, {command}", damages=1, refused=found.code != 0, right_result=found.code == 0)


@pytest.mark.parametrize("command", COMMANDS)
@LIMITS
@given(damage=DAMAGES)
def test_finished_run(command, damage):
    check(command, "finished", damage)


@LIMITS
@given(damage=DAMAGES)
def test_half_finished_run(damage):
    check("train", "half", damage)


@settings(LIMITS, max_examples=EXAMPLES or 4)
@given(damage=DAMAGES, command=st.sampled_from(["train", "audit", "report", "predict"]))
def test_automatic_run(command, damage):
    check(command, "automatic", damage)


def test_one_bit_flips_of_a_manifest_are_refused_or_harmless():
    """Every bit of a manifest with LABELSIEVE_FUZZ, else one in 37."""
    folder = copy_of("half") / "checkpoints"
    newest = sorted(folder.glob("*.json"))[-1]
    content, checkpoints = newest.read_bytes(), Checkpoints(folder)
    facts = checkpoints.newest()[1]
    before = json.loads(sorted(folder.glob("*.json"))[0].read_bytes())
    refused, step = 0, 1 if EXAMPLES else 37
    for bit in range(0, 8 * len(content), step):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        newest.write_bytes(flipped)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = checkpoints.newest()[1]
        if found != facts:
            refused += 1
            assert found["epochs_done"] == before["epochs_done"] and len(said) == 1, bit
    flips = len(range(0, 8 * len(content), step))
    note("one-bit flips of a manifest", flips=flips, refused=refused, harmless=flips - refused)
    assert refused > 0.9 * flips


def test_without_the_checks_the_property_fails(monkeypatch):
    """Check the tests above: a changed weight would change predictions in silence."""
    monkeypatch.setattr("labelsieve.files._fault", lambda file, digest: "")
    run = seed_run("finished")
    model = kinds_of_files(run).index([run / "model.safetensors"])
    size = (run / "model.safetensors").stat().st_size
    with pytest.raises(AssertionError, match="silently differs"):
        for place in range(size - 3, size - 800, -4):  # bits of exponents
            check("predict", "finished", Damage("flip", model, place, 6))


@pytest.mark.parametrize("number", range(14))
def test_report_names_a_deleted_file(number):
    """Each file of a finished run in turn; a report without its gallery or map would be a silent difference."""
    check("report", "finished", Damage("delete", number))


def test_damages_reach_every_kind_of_file():
    """Thumbnails are most of the files: a choice among files would hardly ever damage anything else."""
    run = copy_of("finished")
    kinds = len(kinds_of_files(run))
    assert kinds == 14 and len(list(run.glob("audit/thumbs/*"))) == 100
    names = {Damage("cut", number).apply(run) for number in range(kinds)}
    assert len(names) == kinds and {"model.safetensors", "audit/labels.csv", "review/decisions.jsonl"} < names
    assert Damage("flip", 0).apply(run) != Damage("flip", kinds * 3 + 4).apply(run)


def test_the_runs_are_what_they_are_called():
    assert (seed_run("finished") / "audit" / "sha256sums").exists()
    assert len(list((seed_run("half") / "checkpoints").glob("*.json"))) == 2
    assert len(list(seed_run("automatic").rglob("done"))) == 5 + 5 + 5 + 1
    for kind, command in (("finished", "export"), ("half", "train"), ("automatic", "audit")):
        assert expected(command, kind).code == 0
