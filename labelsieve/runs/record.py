"""Read spec.json and record.jsonl of a run, and check that the record of a finished run is complete and consistent."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError
from labelsieve.files import parse_json, read_verified
from labelsieve.runs.spec import experiment_from, with_defaults

Row = dict[str, Any]
REQUIRED = ("method", "criterion", "seed", "epochs")  # fields without which a specification cannot be used
HEAD_TYPES = {"data": str, "source": str, "command": str, "versions": dict}  # of spec.json, besides the experiment
ROW_TYPES: dict[str, tuple[type, ...]] = {  # of the lines of a record
    **dict.fromkeys(("epoch", "round", "samples", "classes", "parameters", "chosen_epoch"), (int,)),
    **dict.fromkeys(("train_loss", "lr", "test_error", "valid_error", "seconds", "strength"), (int, float)),
    "kept_share": (int, float),
    **dict.fromkeys(("event", "model", "device"), (str,)),
    **dict.fromkeys(("noise", "chosen", "networks", "versions"), (dict,)),
    "precision": (int, float, type(None)),
    "kept": (list,),
}


def errors(rows: Sequence[Row]) -> dict[str, float]:
    """Return best, last and mean of the last ten test errors of the last round; empty without a test set."""
    last_round = rows[-1].get("round")
    every = [row["test_error"] for row in rows if "test_error" in row and row.get("round") == last_round]
    if not every:
        return {}
    return {"best": min(every), "last": every[-1], "last_ten": sum(every[-10:]) / len(every[-10:])}


def _damaged(file: Path, reason: str) -> InputError:
    """Return the error for a damaged file in a run folder."""
    fix = f"restore it from version control, or delete the folder {file.parent} and run the command again"
    return InputError(f"{file} is damaged: {reason}; {fix}")


def read_head(path: Path) -> dict[str, Any]:
    """Return the content of spec.json: the specification under `experiment`, fingerprints, versions and command."""
    file = path / "spec.json"
    head = _json_object(file, _content(file), "the file")
    spec = head.get("experiment")
    if not isinstance(spec, dict):
        raise _damaged(file, "it has no experiment")
    if missing := [name for name in REQUIRED if name not in spec]:
        raise _damaged(file, f"its experiment has no {', '.join(missing)}")
    for name, kind in HEAD_TYPES.items():
        if not isinstance(head.get(name, kind()), kind):
            raise _damaged(file, f"its {name} cannot be used")
    try:
        experiment_from(with_defaults(spec))
    except InputError as error:
        raise _damaged(file, str(error)) from error
    return head


def read_rows(path: Path) -> list[Row]:
    """Return the lines of a run's record; an incomplete last line is ignored."""
    file = path / "record.jsonl"
    lines = _content(file).split(b"\n")[:-1]
    rows = [_json_object(file, line, f"line {number}") for number, line in enumerate(lines, 1)]
    for number, row in enumerate(rows, 1):
        if "event" not in row:
            raise _damaged(file, f"line {number} has no event")
        if wrong := [name for name, value in row.items() if not _is_usable(name, value)]:
            raise _damaged(file, f"line {number} has a {wrong[0]} that cannot be used")
        if row["event"] == "epoch" and "epoch" not in row:
            raise _damaged(file, f"line {number} has no epoch")
    return rows


def _is_usable(name: str, value: Any) -> bool:
    """Return whether a value of a line of a record has the right type."""
    known = name not in ROW_TYPES or (isinstance(value, ROW_TYPES[name]) and not isinstance(value, bool))
    return known and (name != "kept" or all(type(share) in (int, float) for share in value))


def refuse_incomplete(path: Path, spec: dict[str, Any], rows: Sequence[Row]) -> None:
    """Refuse the record of a finished run if lines are missing or its last line contradicts its epochs."""
    try:
        reason = fault(spec, rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"a value cannot be used ({type(error).__name__}: {error})"
    if reason:
        raise _damaged(path / "record.jsonl", reason)


def fault(spec: dict[str, Any], rows: Sequence[Row]) -> str:
    """Return what is wrong with the record of a finished run, or an empty string."""
    events = [row["event"] for row in rows]
    if events[:1] != ["start"]:
        return "its first line is not the start"
    if events[-1] != "end":
        return f"it ends after line {len(events)} without an end event"
    if unknown := set(events[1:-1]) - {"epoch", "resume"}:
        return f"it has an unexpected event {sorted(map(str, unknown))[0]!r}"
    epochs = [row for row in rows if row["event"] == "epoch"]
    return _missing_epoch(spec, epochs) or _contradiction(spec, epochs, rows[-1])


def _missing_epoch(spec: dict[str, Any], epochs: Sequence[Row]) -> str:
    """Return a description of the first missing, repeated or misplaced epoch, or an empty string."""
    if not epochs:
        return "it has no epochs"
    options: Row = {"rounds": epochs[-1].get("round", 1), **dict(spec.get("options", ()))}
    rounds: int = options["rounds"]
    found = [(row.get("round", 1), row["epoch"]) for row in epochs]
    for number, there in enumerate([*found, None]):
        expected = (number // spec["epochs"] + 1, number % spec["epochs"] + 1)
        if expected[0] > rounds:
            return f"epoch {there[1]} is one too many" if there else ""
        if there != expected:
            of_round = f" of round {expected[0]}" if rounds > 1 else ""
            return f"epoch {expected[1]} of {spec['epochs']}{of_round} is missing or out of order"
    return ""


def _contradiction(spec: dict[str, Any], epochs: Sequence[Row], end: Row) -> str:
    """Return how the last line contradicts the epochs, or an empty string."""
    if not 1 <= end.get("chosen_epoch", 0) <= spec["epochs"]:
        return f"its last line has no chosen_epoch from 1 to {spec['epochs']}"
    computed = errors(epochs)
    for name in ("best", "last", "last_ten"):
        written, real = end.get(name), computed.get(name)
        if (written is None) != (real is None) or (written is not None and not math.isclose(written, real or 0.0)):
            return f"its last line has {name} {written}, its epochs give {real}"
    return ""


def _json_object(file: Path, text: bytes, where: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError as error:
        raise _damaged(file, f"{where} is not JSON") from error
    if not isinstance(found, dict):
        raise _damaged(file, f"{where} is not a JSON object")
    return found


def _content(file: Path) -> bytes:
    if not file.is_file():
        raise _damaged(file, "it is not a file" if file.exists() else "it does not exist")
    return read_verified(file)
