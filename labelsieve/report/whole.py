"""whole: the record of a run, read line by line; that of a finished one must be all there and agree with itself."""

import json
import math
from collections.abc import Sequence
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError

Row = dict[str, Any]
NEEDED = ("method", "criterion", "seed", "epochs")  # of a specification, to be told of at all


def errors(rows: Sequence[Row]) -> dict[str, float]:
    """The test errors that are talked about, of the last round: the paper's best, and the honest last."""
    last_round = rows[-1].get("round")
    every = [row["test_error"] for row in rows if "test_error" in row and row.get("round") == last_round]
    if not every:
        return {}
    return {"best": min(every), "last": every[-1], "last_ten": sum(every[-10:]) / len(every[-10:])}


def damaged(file: Path, what: str) -> InputError:
    """What to say of a file in a run's folder that is not as it was written."""
    mend = f"put it back from version control, or delete the folder {file.parent} and run the command again"
    return InputError(f"{file} is damaged: {what}; {mend}")


def read_head(path: Path) -> dict[str, Any]:
    """What spec.json in a run's folder holds: the specification under `experiment`, and what is beside it."""
    file = path / "spec.json"
    head = json_object(file, content(file), "it")
    spec = head.get("experiment")
    if not isinstance(spec, dict):
        raise damaged(file, "it has no experiment")
    if lacking := [name for name in NEEDED if name not in spec]:
        raise damaged(file, f"its experiment lacks {', '.join(lacking)}")
    return head


def read_rows(path: Path) -> list[Row]:
    """The lines of a run's record; one that was cut short does not count."""
    file = path / "record.jsonl"
    lines = content(file).split(b"\n")[:-1]
    rows = [json_object(file, line, f"line {number}") for number, line in enumerate(lines, 1)]
    for number, row in enumerate(rows, 1):
        if "event" not in row:
            raise damaged(file, f"line {number} has no event")
    return rows


def refuse_parts(path: Path, spec: dict[str, Any], rows: Sequence[Row]) -> None:
    """Refuse the record of a finished run that lacks something, or whose last line is not what its epochs give."""
    try:
        what = fault(spec, rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"a value in it cannot be used ({type(error).__name__}: {error})"
    if what:
        raise damaged(path / "record.jsonl", what)


def fault(spec: dict[str, Any], rows: Sequence[Row]) -> str:
    """What is wrong with the record of a finished run; empty if nothing is."""
    events = [row["event"] for row in rows]
    if events[:1] != ["start"]:
        return "its first line is not the start"
    if events[-1] != "end":
        return f"it breaks off after line {len(events)}, without the end"
    if strange := set(events[1:-1]) - {"epoch", "resume"}:
        return f"it has a line {sorted(map(str, strange))[0]!r} in the middle"
    epochs = [row for row in rows if row["event"] == "epoch"]
    return gap(spec, epochs) or disagreement(spec, epochs, rows[-1])


def gap(spec: dict[str, Any], epochs: Sequence[Row]) -> str:
    """The first epoch that is not where it should be, if there is one."""
    if not epochs:
        return "it has no epochs"
    options: Row = {"rounds": epochs[-1].get("round", 1), **dict(spec.get("options", ()))}
    rounds: int = options["rounds"]
    found = [(row.get("round", 1), row["epoch"]) for row in epochs]
    for wanted, there in zip_longest(product(range(1, rounds + 1), range(1, spec["epochs"] + 1)), found):
        if wanted is None:
            return f"epoch {there[1]} is one too many"
        if there != wanted:
            of_round = f" of round {wanted[0]}" if rounds > 1 else ""
            return f"epoch {wanted[1]} of {spec['epochs']}{of_round} is missing or not in its place"
    return ""


def disagreement(spec: dict[str, Any], epochs: Sequence[Row], end: Row) -> str:
    """What the last line says otherwise than the epochs do."""
    if end.get("chosen_epoch") not in range(1, spec["epochs"] + 1):
        return f"its last line names no epoch from 1 to {spec['epochs']} as chosen"
    given = errors(epochs)
    for name in ("best", "last", "last_ten"):
        told, real = end.get(name), given.get(name)
        if (told is None) != (real is None) or (told is not None and not math.isclose(told, real or 0.0)):
            return f"its last line says {name} {told}, its epochs {real}"
    return ""


def json_object(file: Path, text: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise damaged(file, f"{where} is no JSON") from error
    if not isinstance(found, dict):
        raise damaged(file, f"{where} is no JSON object")
    return found


def content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise damaged(file, "it is not there") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
