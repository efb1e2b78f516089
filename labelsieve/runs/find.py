"""Find finished runs by their specification, and describe unfinished ones."""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError
from labelsieve.runs.read import STAGE_FOLDERS, finished_runs, read_json, read_spec, refuse_older
from labelsieve.runs.spec import NOT_IN_NAME, with_defaults

MACHINE_FIELDS = ("device", "precision", "threads", *NOT_IN_NAME)  # where and how a run was computed
Identity = tuple[tuple[str, Any], ...]


def identity(spec: Mapping[str, Any]) -> Identity:
    """Return all of a specification that changes the result; equal identities mean the same experiment.

    Pretrained weights are identified by file name. Of a run to start from, only its presence counts.
    """
    whole = {name: value for name, value in with_defaults(dict(spec)).items() if name not in MACHINE_FIELDS}
    whole["options"] = _changed_options(whole["method"], dict(whole["options"]))
    whole["weights"] = whole["weights"] and Path(whole["weights"]).name
    whole["init"] = whole["init"] is not None
    return tuple(sorted((name, tuple(v) if isinstance(v, list) else v) for name, v in whole.items()))


def _changed_options(method: str, options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the options that differ from the defaults of the method."""
    from labelsieve.methods import METHODS, options_of  # imports torch, which reports do without

    defaults = options_of(method) if method in METHODS else {}
    return tuple(sorted((name, v) for name, v in options.items() if name not in defaults or defaults[name] != v))


def known_runs(*roots: Path, holding: str = "done") -> dict[Identity, Path]:
    """Return the folder of every finished run below the roots that contains a file of the given name.

    Of several runs with one identity, the first is returned: by root, then by folder name.
    """
    found: dict[Identity, Path] = {}
    for path in finished_runs(*roots):
        if (path / holding).exists():
            found.setdefault(identity(read_spec(path)), path)
    return found


def refuse_unfinished(run: Path) -> None:
    """Refuse a run that is still training or was interrupted."""
    if reason := unfinished(run):
        raise InputError(reason)


def unfinished(run: Path) -> str:
    """Describe an unfinished run in one line; return an empty string for a finished run or no run at all."""
    folder = newest_training(run)
    if folder is None or (run / "done").exists():
        return ""
    command = _head(folder).get("command", "")
    resume = f"resume it with: {command}" if command else "run the command that started it again"
    if folder != run and (folder / "done").exists():
        return f"{run} is not trained yet, only earlier stages are; wait if it is still running, else {resume}"
    name = "the training" if folder == run else f"{folder.parent.name} training {folder.name}"
    progress = f"{_epochs_reached(folder)} of {name}"
    if _in_use(folder / "lock"):
        return f"{run} is still running ({progress} finished); wait until it has ended"
    return f"{run} was interrupted after {progress}; {resume}"


def newest_training(run: Path) -> Path | None:
    """Return the folder of the stage that was started last, or None if there is no run."""
    refuse_older(run)
    if (run / "spec.json").exists():
        return run
    for name in reversed(STAGE_FOLDERS):
        started = [spec.parent for spec in (run / name).glob("*/spec.json")]
        if started:
            return max(started, key=lambda folder: int(folder.name))
    return None


def _epochs_reached(folder: Path) -> str:
    """Return how far a training has come: 3 of 60 epochs."""
    epochs = _head(folder).get("experiment", {}).get("epochs", "?")
    record = folder / "record.jsonl"
    try:
        lines = record.read_bytes().split(b"\n")[:-1] if record.exists() else []  # an incomplete line does not count
    except OSError as error:
        raise InputError(f"cannot read {record}: {error.strerror}") from error
    rows = [json.loads(line) for line in lines if b'"event": "epoch"' in line]
    last = rows[-1] if rows else {"epoch": 0}
    return f"{last['epoch']} of {epochs} epochs" + (f" in round {last['round']}" if "round" in last else "")


def _head(folder: Path) -> dict[str, Any]:
    return read_json(folder / "spec.json")


def _in_use(lock: Path) -> bool:
    """Return whether a living process holds the lock."""
    try:
        handle = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
