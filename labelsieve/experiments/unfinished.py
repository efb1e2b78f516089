"""unfinished: what is the matter with a run that is not done, and what to do about it, in a line."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError
from labelsieve.files import FINAL, delivered
from labelsieve.report.records import AGAIN, LONGER, NETWORK, PLAIN, PROBE


def refuse_unfinished(run: Path) -> None:
    """Say so if a run is still being trained or was cut; not for the process that trains it."""
    if reason := unfinished(run):
        raise InputError(reason)


def unfinished(run: Path) -> str:
    """The line; empty for a run that is done, and for a folder without a run."""
    folder = newest(run)
    if folder is None or (delivered(run) / "done").exists():
        return ""
    again = command_of(folder)
    go_on = f"go on with: {again}" if again else "the command that began it goes on with it"
    if folder != run and (folder / "done").exists():
        return f"{run} is not trained yet, only its probes are done: wait if it is still running, else {go_on}"
    if folder == run and (folder / "done").exists():
        return f"{run} lacks its last training, from corrected labels: wait if it is still running, else {go_on}"
    name = {run: "the training", run / FINAL: "its last training"}.get(folder, f"its probe {folder.name}")
    place = f"{reached(folder)} of {name}"
    if in_use(folder / "lock"):
        later = ", the training itself follows" if name.startswith("its probe") else ""
        return f"{run} is still running: {place} done{later}; wait until it has ended"
    return f"{run} stopped before it was done, after {place}; {go_on}"


def newest(run: Path) -> Path | None:
    """The training that was begun last: the run's last one, the run itself, or a probe of it; None if none was."""
    for folder in (run / FINAL, run):
        if (folder / "spec.json").exists():
            return folder
    for name in (LONGER, PLAIN, AGAIN, PROBE, NETWORK):
        begun = [spec.parent for spec in (run / name).glob("*/spec.json")]
        if begun:
            return max(begun, key=lambda folder: int(folder.name))
    return None


def reached(folder: Path) -> str:
    """How far it came: 3 of 60 epochs"""
    epochs = spec_of(folder).get("experiment", {}).get("epochs", "?")
    lines = content(folder / "record.jsonl").split(b"\n")[:-1]  # a line that was cut short does not count
    rows = [json.loads(line) for line in lines if b'"event": "epoch"' in line]
    last = rows[-1] if rows else {"epoch": 0}
    return f"{last['epoch']} of {epochs} epochs" + (f" in round {last['round']}" if "round" in last else "")


def command_of(folder: Path) -> str:
    """What was typed to begin it, where a command line began it."""
    return str(spec_of(folder).get("command", ""))


def spec_of(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(content(folder / "spec.json")))
    except (ValueError, TypeError) as error:
        raise InputError(f"cannot read {folder / 'spec.json'}: {error}") from error


def content(path: Path) -> bytes:
    """Of a file that may not be there yet."""
    try:
        return path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def in_use(lock: Path) -> bool:
    """Whether a living process holds the lock; it goes with its process, however that ends."""
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
