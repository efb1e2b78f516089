"""Runs, read from their folders. Nothing here needs torch."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from labelsieve.errors import InputError
from labelsieve.files import FINAL, stranger
from labelsieve.report.whole import read_head, read_rows, refuse_parts

Array = np.ndarray[Any, Any]
NETWORK = "network"  # folder, in a run's, of the trainings that try out networks
PROBE, AGAIN, PLAIN, LONGER = "probe", "again", "plain", "longer"  # and of those that judge its labels
PARTS = {NETWORK, PROBE, AGAIN, PLAIN, LONGER, FINAL}
TRAINED, HELD_OUT, TESTED = 0, 1, 2  # what `split` says of a sample


@dataclass(frozen=True)
class Run:
    """One run, finished or as far as it came."""

    spec: dict[str, Any]
    epochs: list[dict[str, Any]]
    end: dict[str, Any]  # empty as long as it is not finished
    tables: dict[str, Array]
    start: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)  # unknown without a delivered model
    command: str = ""  # what was typed to begin it, where that is known
    final: "Run | None" = None  # its last training, from corrected labels, whose model it delivers

    @property
    def method(self) -> str:
        criterion = self.spec["criterion"]
        return f"{self.spec['method']} ({criterion})" if criterion else str(self.spec["method"])

    @property
    def delivered(self) -> "Run":
        """The training whose model it delivers."""
        return self.final or self

    def series(self, name: str) -> list[float]:
        return [epoch[name] for epoch in self.epochs]


def read_run(path: Path, with_tables: bool = True) -> Run:
    """A run folder that is done."""
    if not (path / "done").exists():
        raise InputError(f"{path} is not a finished run") if path.is_dir() else stranger(path)
    return read_progress(path, with_tables)


def read_progress(path: Path, with_tables: bool = True) -> Run:
    """A run folder, done or not."""
    if not (path / "spec.json").is_file():
        raise InputError(f"{path} is not a run folder: it has no spec.json; name a folder that labelsieve train made")
    head, rows = read_head(path), read_rows(path)
    spec, done = head["experiment"], (path / "done").exists()
    if done:
        refuse_parts(path, spec, rows)
    try:
        tables = path / "tables.safetensors"  # committed records go without
        return Run(
            spec,
            [row for row in rows if row["event"] == "epoch"],
            rows[-1] if done else {},
            load_file(tables) if with_tables and done and tables.exists() else {},
            next((row for row in rows if row["event"] == "start"), {}),
            head.get("versions", {}),
            class_names(path / "model.safetensors"),
            head.get("command", ""),
            read_progress(path / FINAL, False) if (path / FINAL / "done").exists() else None,
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(f"cannot read the run {path}: {error}") from error


def class_names(model: Path) -> list[str]:
    """The classes that a delivered model tells apart; only the head of its file is read."""
    if not model.exists():
        return []
    with safe_open(model, framework="numpy") as file:
        return list(json.loads(file.metadata()["labelsieve"])["classes"])


def read_scores(path: Path) -> dict[str, Array]:
    """Every sample's scores that a run kept."""
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read the scores {path}: {error}") from error


def read_spec(path: Path) -> dict[str, Any]:
    """What a run folder says it is."""
    return dict(read_head(path)["experiment"])


def finished_runs(*roots: Path) -> list[Path]:
    """The folders of all finished runs below these, but no parts of runs; root by root, each root's by name."""
    return [
        done.parent
        for root in roots
        for done in sorted(root.rglob("done"))
        if (done.parent / "spec.json").exists() and not PARTS & {*done.relative_to(root).parts}
    ]


def read_samples(path: Path) -> dict[str, Array] | None:
    """What a run left of every single sample, or None if it is of a version that left nothing."""
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


def starved(run: Run) -> list[str]:
    """The classes of which far less was learnt in the end than of others, with the share that was kept of them."""
    least = 0.6 * (1 - run.spec["noise_rate"])
    last = run.epochs[-1].get("kept") or []
    there = [any(row["kept"][place] for row in run.epochs) for place, _ in enumerate(last)]  # else it has no samples
    every = zip(run.classes, last, there, strict=False)
    return [f"{name} ({100 * share:.0f}%)" for name, share, known in every if known and share < least]
