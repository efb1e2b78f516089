"""Find finished runs by their specification, and describe unfinished ones."""

import fcntl
import os
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from labelsieve.catalogue import methods, options_of
from labelsieve.errors import InputError
from labelsieve.files import DONE, refuse_links
from labelsieve.runs.read import STAGE_FOLDERS, finished_runs, in_use, plain_command, read_spec
from labelsieve.runs.record import read_head, read_rows
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
    defaults = options_of(method) if method in methods() else {}
    return tuple(sorted((name, v) for name, v in options.items() if name not in defaults or defaults[name] != v))


def known_runs(*roots: Path, holding: str = DONE) -> dict[Identity, Path]:
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
    if folder is None or (run / DONE).exists():
        return ""
    command = _command(folder, run)
    resume = f"resume it with: {command}" if command else "run the command that started it again"
    if folder != run and (folder / DONE).exists():
        return f"{run} is not trained yet, only earlier stages are; wait if it is still running, else {resume}"
    name = "the training" if folder == run else f"{folder.parent.name} training {folder.name}"
    progress = f"{_epochs_reached(folder)} of {name}"
    if _is_locked(folder / "lock"):
        return f"{run} is still running ({progress} finished); wait until it has ended"
    return f"{run} was interrupted after {progress}; {resume}"


def newest_training(run: Path) -> Path | None:
    """Return the folder of the stage that was started last, or None if there is no run."""
    refuse_links(run)
    if (run / "spec.json").exists():
        return run
    for name in reversed(STAGE_FOLDERS):
        started = [spec.parent for spec in (run / name).glob("*/spec.json") if spec.parent.name.isdecimal()]
        if started:
            return max(started, key=lambda folder: int(folder.name))
    return None


def _epochs_reached(folder: Path) -> str:
    """Return how far a training has come: 3 of 60 epochs."""
    epochs = read_spec(folder)["epochs"]
    rows = [{"epoch": 0}, *(read_rows(folder) if (folder / "record.jsonl").exists() else [])]
    last = [row for row in rows if "epoch" in row][-1]
    return f"{last['epoch']} of {epochs} epochs" + (f" in round {last['round']}" if "round" in last else "")


def _command(folder: Path, run: Path) -> str:
    """Return the command that resumes a run, if its folder names one that trains in this very folder."""
    command = plain_command(read_head(folder).get("command", ""))
    words = shlex.split(command)
    out = dict(pairwise(words)).get("--out", run.name)
    return command if Path(out).name == run.resolve().name else ""


def refuse_running(run: Path) -> None:
    """Refuse a folder in which another process is training."""
    refuse_links(run)
    if _is_locked(run / "lock"):
        raise in_use(run, (run / "lock").read_bytes())


def _is_locked(lock: Path) -> bool:
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
