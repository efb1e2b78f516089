"""Read run folders: specification, record, tables, per-sample statistics, and the layout of automatic runs.

A run folder holds spec.json, record.jsonl, and once it is finished tables.safetensors, samples.safetensors,
model.safetensors and done, which lists them with their digests (`labelsieve.files`). The folder of an automatic run
also holds the folders of its other stages, and audit/ with the files of its audit. Every file is checked when it is
read, and a folder is data: nothing in it leads out of it. Nothing here imports torch.
"""

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from labelsieve.errors import InputError
from labelsieve.files import DONE, how_to_mend, parse_json, read_seal, refuse_links, verified
from labelsieve.runs.record import read_head, read_rows, refuse_incomplete

Array = np.ndarray[Any, Any]
# Folders of the stages of an automatic run, in the order in which they are trained; the run itself lies above them.
NETWORK, PLAIN, SELECTING, SECOND, HEADS, HEAD = "network", "plain", "selecting", "second", "heads", "head"
STAGE_FOLDERS = (NETWORK, PLAIN, SELECTING, SECOND, HEADS, HEAD)
CORRECTED = "corrected.npy"  # labels that the second round and the delivered model learn, in their folders
JUDGMENT, TARGETS = "judgment.safetensors", "targets.npy"  # in the folder of the heads
RESULTS = ("tables.safetensors", "samples.safetensors", "model.safetensors")  # committed records lack all of them
TRAINED, HELD_OUT, TESTED = 0, 1, 2  # values of `split` in samples.safetensors
FEW_KEPT = 0.6  # a class is neglected if less than this part of the usual share of its samples is kept


@dataclass(frozen=True)
class Run:
    """One run, finished or not."""

    spec: dict[str, Any]
    epochs: list[dict[str, Any]]
    end: dict[str, Any]  # empty until the run is finished
    tables: dict[str, Array]
    start: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)  # empty without a delivered model
    command: str = ""  # the command line that started it, if known

    @property
    def method(self) -> str:
        criterion = self.spec["criterion"]
        return f"{self.spec['method']} ({criterion})" if criterion else str(self.spec["method"])

    def series(self, name: str) -> list[float]:
        """Return a value of every epoch."""
        return [epoch[name] for epoch in self.epochs]


def read_run(path: Path, with_tables: bool = True) -> Run:
    """Read the folder of a finished run."""
    if not (path / DONE).exists():
        raise InputError(f"{path} is not a finished run") if (path / "spec.json").exists() else not_a_run(path)
    return read_progress(path, with_tables)


def read_progress(path: Path, with_tables: bool = True) -> Run:
    """Read the folder of a run that may be unfinished."""
    refuse_no_run(path)
    head, rows = read_head(path), read_rows(path)
    spec, done = head["experiment"], (path / DONE).exists()
    if done:
        refuse_incomplete(path, spec, rows)
        refuse_missing(path)
    with _reading(f"the run {path}"):
        tables = path / "tables.safetensors"  # committed records have none
        return Run(
            spec,
            [row for row in rows if row["event"] == "epoch"],
            rows[-1] if done else {},
            load_file(verified(tables)) if with_tables and done and tables.exists() else {},
            next((row for row in rows if row["event"] == "start"), {}),
            head.get("versions", {}),
            _class_names(path / "model.safetensors"),
            plain_command(head.get("command", "")),
        )


@contextmanager
def _reading(what: str, fix: str = "") -> Iterator[None]:
    """Turn the errors of a file that cannot be read, or holds something else, into an InputError."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(f"cannot read {what}: {error}{fix}") from error


def _class_names(model: Path) -> list[str]:
    """Return the class names stored in the header of a delivered model."""
    if not model.exists():
        return []
    with safe_open(verified(model), framework="numpy") as file:
        return list(map(str, parse_json(file.metadata()["labelsieve"])["classes"]))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    with _reading(str(path)):
        return dict(parse_json(verified(path).read_bytes()))


def read_spec(path: Path) -> dict[str, Any]:
    """Return the specification of a run."""
    return dict(read_head(path)["experiment"])


def read_scores(path: Path) -> dict[str, Array]:
    """Read the scores of every sample that a run saved after an epoch."""
    with _reading(f"the scores {path}"):
        return dict(load_file(verified(path)))


def read_samples(path: Path) -> dict[str, Array] | None:
    """Read the per-sample statistics of a run; None if it was made by a version without them."""
    return _read_tensors(path / "samples.safetensors")


def read_judgment(run: Path) -> dict[str, Array] | None:
    """Read the out-of-fold predictions of the linear heads of a run; None if it has none."""
    return _read_tensors(run / HEADS / JUDGMENT)


def _read_tensors(file: Path) -> dict[str, Array] | None:
    """Read a file of tensors; None if there never was one."""
    with _reading(str(file)):
        return load_file(file) if verified(file).exists() else None


def refuse_missing(run: Path) -> None:
    """Refuse a finished run without some of its results, or whose stages are missing or not those it was made from."""
    listed = read_seal(run / DONE)
    missing = [name for name in RESULTS if name in listed and not (run / name).exists()]
    if 0 < len(missing) < len(RESULTS):
        raise InputError(f"{run / missing[0]} is missing; {how_to_mend(run / missing[0])}")
    if not missing:
        for name in listed:
            if "/" in name:
                verified(run / name, run / DONE)


def plain_command(command: str) -> str:
    """Return the command that started a run if it is one that we would print, else an empty string.

    It comes from the folder of the run, which may be a stranger's: it must name no other program and no code to import.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    model = dict(pairwise(words)).get("--model", "")
    plain = shlex.join(words) == command and command.isprintable() and words[:2] == ["labelsieve", "train"]
    joined = any(word.startswith("--") and "=" in word for word in words)  # never printed like this
    return command if plain and not joined and ":" not in model.removeprefix("timm:") else ""


def finished_runs(*roots: Path) -> list[Path]:
    """Return the folders of all finished runs below the roots, without the stages of automatic runs, sorted by name."""
    return [
        done.parent
        for root in roots
        for done in sorted(root.rglob(DONE))
        if (done.parent / "spec.json").exists() and not {*STAGE_FOLDERS} & {*done.relative_to(root).parts}
    ]


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs by method, each group sorted by seed."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    return {method: sorted(group, key=lambda run: run.spec["seed"]) for method, group in groups.items()}


def neglected_classes(run: Run) -> list[str]:
    """Return the classes of which far fewer samples were kept in the last epoch than of others, with that share."""
    least = FEW_KEPT * (1 - run.spec["noise_rate"])
    last = run.epochs[-1].get("kept") or []
    present = [any(row["kept"][place] for row in run.epochs) for place, _ in enumerate(last)]  # else it has no samples
    every = zip(run.classes, last, present, strict=False)
    return [f"{name} ({100 * share:.0f}%)" for name, share, known in every if known and share < least]


def refuse_no_run(run: Path) -> None:
    """Raise InputError if a folder is not a run, or has links that lead out of it."""
    refuse_links(run)
    if not (run / "spec.json").is_file():
        raise InputError(f"{run} is not a run folder: it has no spec.json; name a folder that labelsieve train made")


def audit_folder(place: Path) -> Path:
    """Return the folder of audit files: audit/ in a run folder, or the folder itself for an audit without a run."""
    refuse_links(place)
    return place if is_separate_audit(place) else place / "audit"


def read_audit_summary(place: Path, *needed: str) -> dict[str, Any]:
    """Read summary.json of an audit, given its folder or that of its run; refuse one without the needed values."""
    path = audit_folder(place) / "summary.json"
    refuse_no_audit(path, place)
    with _reading(str(path), "; run labelsieve audit again"):
        found = dict(parse_json(verified(path).read_bytes()))
        if missing := [name for name in needed if name not in found]:
            raise ValueError(f"{missing[0]!r} is missing")
        return found


def refuse_no_audit(file: Path, place: Path) -> None:
    """Raise InputError if a folder lacks a file of an audit."""
    if not (file.parent.is_dir() or (place / "spec.json").exists()):
        raise not_a_run(place)
    if not file.is_file():
        raise InputError(f"{file} does not exist; run labelsieve audit {place} first")


def read_audit_origin(place: Path) -> dict[str, Any]:
    """Return what an audit was made from, as its summary says; empty if it does not."""
    return dict(read_audit_summary(place).get("made") or {})


def is_separate_audit(place: Path) -> bool:
    """Return whether a folder holds an audit that belongs to no run."""
    if not (place / "summary.json").is_file() or (place / "audit").exists() or (place / "spec.json").exists():
        return False
    run = place.resolve().parent
    if place.resolve().name == "audit" and (run / "spec.json").exists():
        raise InputError(f"{place} is the audit of a run; name the run instead: {run.name}")
    return True


def in_use(run: Path, owner: bytes) -> InputError:
    """Return the error for a run folder in which another process, named in its lock, is training."""
    process = owner[:100].decode(errors="replace").strip()
    process = process if process.isdecimal() else "unknown"
    return InputError(f"run folder {run} is in use by process {process}; wait for it or name another --out")


def not_a_run(place: Path) -> InputError:
    """Return the error for a folder that is neither a run nor an audit."""
    made = "name a folder that labelsieve train or labelsieve audit made"
    if not place.is_dir():
        return InputError(f"there is no folder {place}; {made}")
    return InputError(f"{place} is neither a run (it has no spec.json) nor an audit (it has no summary.json); {made}")
