"""Small run folders to be damaged, the commands that read them, and what these should give.

Three runs are made once per process: a finished one with audit and review, a half-finished one with two checkpoints,
and an automatic one with all its stages. `outcome` runs a command on a copy and returns its result.
"""

import atexit
import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from labelsieve.review.decisions import Decision, DecisionLog, decisions_path
from labelsieve.train.loop import StopFlag
from tests.conftest import save_blobs, without_resumes
from tests.fuzz.confined import check_bounds, quietly, run_confined
from tests.fuzz.record import note

PLAIN = ("--noise-rate", "0.2", "--model", "small", "--epochs", "3", "--warmup", "1", "--lr", "0.05", "--batch", "32")
AUTO = ("--model", "small", "--epochs", "2", "--warmup", "1", "--lr", "0.05", "--batch", "32")
DELIVERED = ("model.safetensors", "samples.safetensors", "tables.safetensors")


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    errors: str
    result: Any  # what it wrote, without durations


@cache
def place() -> Path:
    """Return the folder of this process."""
    folder = Path(tempfile.mkdtemp(prefix="labelsieve-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    save_blobs(folder / "data.npz", 100, wrong=0.2, test=20)
    return folder


def training(kind: str, out: Path) -> list[str]:
    """Return the command that makes a run."""
    options = AUTO if kind == "automatic" else PLAIN
    return ["train", str(place() / "data.npz"), *options, "--threads", "1", "--out", str(out)]


@cache
def seed_run(kind: str) -> Path:
    """Return a run folder: finished, half or automatic."""
    run = place() / kind / "run"
    if kind == "half":
        stop = _StopAfter(2)
        with contextlib.suppress(KeyboardInterrupt):
            stop.train(training(kind, run))
        assert (run / "checkpoints").is_dir() and not (run / "done").exists()
        return run
    assert quietly(training(kind, run))[0] == 0
    if kind == "finished":
        assert quietly(["audit", str(run)])[0] == 0
        _review(run)
    return run


class _StopAfter:
    """Stops a training after a number of epochs, as Ctrl-C does."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def train(self, argv: list[str]) -> None:
        check = StopFlag.check

        def checked(flag: StopFlag, where: str) -> None:
            if f"({self.left} completed)" in where:
                raise KeyboardInterrupt
            check(flag, where)

        StopFlag.check = checked  # type: ignore[method-assign]
        try:
            quietly(argv)
        finally:
            StopFlag.check = check  # type: ignore[method-assign]


def _review(run: Path) -> None:
    """Decide about the first five samples of the gallery."""
    lines = (run / "audit" / "gallery.jsonl").read_text().splitlines()[:5]
    log = DecisionLog(decisions_path(run))
    for number, row in enumerate(map(json.loads, lines)):
        label = row["suggested_label"] if number % 2 else None
        made = Decision(row["index"], row["id"], "accept" if label else "keep", label, "2026-01-01", "tab")
        log.append(lambda so_far, made=made: [made])


def _files(*names: str) -> Callable[[Path], Any]:
    return lambda run: {name: (run / name).read_bytes() for name in names}


def _trained(run: Path) -> Any:
    folders = [run, *sorted(done.parent for done in run.rglob("*/done"))]
    return {
        str(folder.relative_to(run)): [
            without_resumes(folder),
            *((folder / name).read_bytes() for name in DELIVERED),
        ]
        for folder in folders
    }


def _data() -> str:
    return str(place() / "data.npz")


# name -> (arguments for a run, what it gives)
COMMANDS: dict[str, tuple[Callable[[Path], list[str]], Callable[[Path], Any]]] = {
    "train": (lambda run: training(run.parent.name, run), _trained),
    "predict": (lambda run: ["predict", str(run), _data(), "--out", str(run / "p.csv")], _files("p.csv")),
    "audit": (
        lambda run: ["audit", str(run), "--out", str(run.parent / "out")],
        _files(*(f"../out/{name}" for name in ("labels.csv", "gallery.jsonl", "summary.json"))),
    ),
    "report": (lambda run: ["report", str(run), "--out", str(run / "page.html")], _files("page.html")),
    "export": (lambda run: ["review", str(run), "--export", str(run / "r.csv")], _files("r.csv")),
}


def copy_of(kind: str) -> Path:
    """Return a fresh copy of a run, always at the same path."""
    run = place() / "copies" / kind / "run"
    shutil.rmtree(run.parent, ignore_errors=True)
    shutil.copytree(seed_run(kind), run)
    return run


def outcome(command: str, run: Path) -> Outcome:
    """Run a command on a run, with bounded time and memory, and return what it did."""
    arguments, result = COMMANDS[command]
    found = run_confined(arguments(run))
    check_bounds(found, command)
    note("limits", commands=1, most_cpu_seconds=found.seconds, most_megabytes=found.megabytes)
    return Outcome(found.code, found.errors, result(run) if found.code == 0 else None)


@cache
def expected(command: str, kind: str) -> Outcome:
    """Return what a command does with an undamaged run."""
    run = copy_of(kind)
    arguments, result = COMMANDS[command]
    code, _, errors = quietly(arguments(run))  # in this process, which imports what its children need
    return Outcome(code, errors, result(run) if code == 0 else None)
