"""Finished runs, read from their folders. Nothing here needs torch."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelsieve.errors import InputError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Run:
    """One finished run."""

    spec: dict[str, Any]
    epochs: list[dict[str, Any]]
    end: dict[str, Any]
    tables: dict[str, Array]

    @property
    def method(self) -> str:
        criterion = self.spec["criterion"]
        return f"{self.spec['method']} ({criterion})" if criterion else str(self.spec["method"])

    def series(self, name: str) -> list[float]:
        return [epoch[name] for epoch in self.epochs]


def read_run(path: Path, with_tables: bool = True) -> Run:
    """A run folder that is done."""
    from safetensors.numpy import load_file

    try:
        if not (path / "done").exists():
            raise InputError(f"{path} is not a finished run")
        rows = [json.loads(line) for line in (path / "record.jsonl").read_text(encoding="utf-8").splitlines()]
        spec = read_spec(path)
        epochs = [row for row in rows if row["event"] == "epoch"]
        tables = path / "tables.safetensors"  # committed records go without
        return Run(spec, epochs, rows[-1], load_file(tables) if with_tables and tables.exists() else {})
    except (OSError, ValueError, KeyError) as error:
        raise error if isinstance(error, InputError) else InputError(f"cannot read the run {path}: {error}") from error


def read_scores(path: Path) -> dict[str, Array]:
    """Every sample's scores that a run kept."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read the scores {path}: {error}") from error


def read_spec(path: Path) -> dict[str, Any]:
    """What a run folder says it is."""
    try:
        return dict(json.loads((path / "spec.json").read_bytes())["experiment"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {path / 'spec.json'}: {error}") from error


def finished_runs(*roots: Path) -> list[Path]:
    """The folders of all finished runs below these, those of the first root first, each root's by name."""
    return [
        done.parent for root in roots for done in sorted(root.rglob("done")) if (done.parent / "spec.json").exists()
    ]


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs grouped by method, each group in the order of its seeds."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    return {method: sorted(group, key=lambda run: run.spec["seed"]) for method, group in groups.items()}
