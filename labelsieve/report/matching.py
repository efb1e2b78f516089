"""Which finished run is an experiment's, wherever it ran and whatever its folder is called."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError

BESIDE_THE_RESULT = ("device", "precision", "threads", "cache", "workers", "scores")  # where it ran, what was kept
Spec = dict[str, Any]


def key(spec: Mapping[str, Any]) -> str:
    """All of a specification that changes the result, so that equal means the same experiment."""
    return json.dumps({name: value for name, value in spec.items() if name not in BESIDE_THE_RESULT}, sort_keys=True)


def finished(*roots: Path, complete: Callable[[Spec], Spec] = dict, holding: str = "done") -> dict[str, Path]:
    """Every finished run below these folders that holds a file of this name; of equal ones, the first.

    `complete` brings specifications of all ages into one shape.
    """
    found: dict[str, Path] = {}
    for root in roots:
        for path in sorted(done.parent for done in root.rglob("done")):
            if (path / "spec.json").exists() and (path / holding).exists():
                found.setdefault(key(complete(read_spec(path))), path)
    return found


def read_spec(path: Path) -> Spec:
    try:
        return dict(json.loads((path / "spec.json").read_bytes())["experiment"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {path / 'spec.json'}: {error}") from error
