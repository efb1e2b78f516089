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


def read_run(path: Path) -> Run:
    """A run folder that is done."""
    from safetensors.numpy import load_file

    try:
        if not (path / "done").exists():
            raise InputError(f"{path} is not a finished run")
        rows = [json.loads(line) for line in (path / "record.jsonl").read_text(encoding="utf-8").splitlines()]
        spec = json.loads((path / "spec.json").read_bytes())["experiment"]
        epochs = [row for row in rows if row["event"] == "epoch"]
        tables = path / "tables.safetensors"  # committed records go without
        return Run(spec, epochs, rows[-1], load_file(tables) if tables.exists() else {})
    except (OSError, ValueError, KeyError) as error:
        raise error if isinstance(error, InputError) else InputError(f"cannot read the run {path}: {error}") from error


def read_samples(path: Path) -> dict[str, Array] | None:
    """What a run left of every single sample, or None if it is of a version that left nothing."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = path / "samples.safetensors"
    try:
        return load_file(file) if file.exists() else None
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"cannot read {file}: {error}") from error


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs grouped by method, each group in the order of its seeds."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    return {method: sorted(group, key=lambda run: run.spec["seed"]) for method, group in groups.items()}
