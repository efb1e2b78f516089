"""Add what was tried to a record in JSON, call by call: counts are summed, and limits ("most ...") are maxima.

The tests write to the file that LABELSIEVE_FUZZ_RECORD names, `python -m tests.fuzz.kills` to that of --record.
"""

import fcntl
import json
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from labelsieve.files import write_atomically

ROOT = Path(__file__).parents[2]
ENVIRONMENT = "LABELSIEVE_FUZZ_RECORD"
FAILURES = "failures"


def note(kind: str, **counts: float) -> None:
    """Add counts to the record that the environment names; do nothing without one."""
    if os.environ.get(ENVIRONMENT):
        add(Path(os.environ[ENVIRONMENT]), kind, **counts)


def add(file: Path, kind: str, failure: str = "", **counts: float) -> dict[str, Any]:
    """Add counts of a kind, or a failure, to a record, and return it."""
    with file.with_name(f"{file.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        return _add(file, kind, failure, counts)


def _add(file: Path, kind: str, failure: str, counts: dict[str, float]) -> dict[str, Any]:
    record = json.loads(file.read_text()) if file.exists() else {"commits": [], "kinds": {}, FAILURES: []}
    versions = {"python": platform.python_version(), **{name: version(name) for name in ("torch", "numpy")}}
    record |= {"machine": f"{os.cpu_count()} cores, {platform.machine()}", "versions": versions}
    record["commits"] = sorted({*record["commits"], _commit()})
    known = record["kinds"].setdefault(kind, {})
    for name, count in counts.items():
        words = name.replace("_", " ")
        value = max(known.get(words, 0), count) if words.startswith("most ") else known.get(words, 0) + count
        known[words] = round(value, 2)
    record[FAILURES] += [f"{kind}: {failure}"] if failure else []
    write_atomically(file, (json.dumps(record, indent=1) + "\n").encode())
    return record


@cache
def _commit() -> str:
    """Return the commit of this clone, marked if tracked files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
