"""RunFolder: the folder of one run, locked while it is written."""

import fcntl
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError
from labelsieve.files import (
    DONE,
    SUMS,
    disk_error,
    faults,
    refuse_links,
    refuse_no_folder,
    write_atomically,
    write_seal,
)
from labelsieve.runs.read import CORRECTED, HEADS, JUDGMENT, STAGE_FOLDERS, in_use
from labelsieve.runs.record import read_head
from labelsieve.runs.spec import NOT_IN_NAME, Experiment, with_defaults
from labelsieve.train.checkpoint import Checkpoints, Record

REQUEST = "request.json"  # what was requested of an automatic run
FINGERPRINT = "fingerprint"  # of data and labels, listed with the settings when two runs are compared
NAMED_FIRST = (
    "method",
    "noise",
    "rate",
    "noise_rate",
    "seed",
    "epochs",
    "criterion",
    "model",
    "lr",
    "batch",
    FINGERPRINT,
)
WITHOUT_OPTION = ("drops", "drop_factor", "drop_last", "fold", "choose")  # settings without a command-line option
PATHS = ("data", "labels", "corrected")  # the fingerprint identifies their content, wherever they lie
_LOCK = threading.Lock()
_ENTERED: set[Path] = set()  # file locks exclude other processes, this set other threads of this one
_LOCKED: dict[Path, int] = {}  # folders that a thread holds for several trainings, which it may enter again


class RunFolder:
    """A run folder: spec.json, record.jsonl, tables, samples, model, requested scores and, at the end, their seal.

    Enter it to write: one process at a time. The lock is released when the process ends, however it ends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = Record(path / "record.jsonl")
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._lock = -1

    @property
    def done(self) -> bool:
        return (self.path / DONE).exists()

    def __enter__(self) -> "RunFolder":
        self.refuse_other_files()
        if _LOCKED.get(self.path.absolute()) == threading.get_ident():
            return self
        with _LOCK:
            if self.path.absolute() in _ENTERED:
                raise InputError(f"run folder {self.path} is already in use by this process; name another --out")
            _ENTERED.add(self.path.absolute())
        try:
            return self._locked()
        except BaseException:
            _ENTERED.discard(self.path.absolute())
            raise

    def _locked(self) -> "RunFolder":
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise disk_error(self.path, error) from error
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._lock, 100)
            os.close(self._lock)
            raise in_use(self.path, owner) from None
        os.truncate(self._lock, 0)
        os.write(self._lock, str(os.getpid()).encode())
        for left_behind in self.path.rglob(".*.tmp"):
            left_behind.unlink()
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock < 0:  # the folder is locked for several trainings
            return
        os.truncate(self._lock, 0)  # an empty lock file: no process is in the folder
        os.close(self._lock)
        _ENTERED.discard(self.path.absolute())

    def refuse_other_files(self) -> None:
        """Refuse a path that is a file, or a folder with files that belong to no run."""
        refuse_no_folder(self.path)
        refuse_links(self.path)
        if self.path.is_dir() and not (self.path / "spec.json").exists():
            stages = [name for name in STAGE_FOLDERS if any((self.path / name).glob("*/lock"))]
            stages += [HEADS] if (self.path / HEADS / JUDGMENT).exists() else []
            ours = {"lock", REQUEST, *stages, *([CORRECTED, f"{CORRECTED}.sha256"] if stages else [])}
            others = [p.name for p in self.path.iterdir() if p.name not in ours and p.suffix != ".tmp"]
            if others:
                raise InputError(f"{self.path} contains other files ({others[0]}); name another --out")

    def refuse_other_settings(self, experiment: Experiment) -> None:
        """Refuse a folder whose run was started with other settings."""
        path = self.path / "spec.json"
        if path.exists():
            head = read_head(self.path)
            self._refuse(differences(head, {"experiment": experiment.as_dict(), "data": head.get("data")}))

    def refuse_other_labels(self, experiment: Experiment, judged: str, now: str) -> None:
        """Refuse the folder of a head with other settings or targets, or whose judged data changed since.

        The weight decay is not compared: judging chooses it.

        Args:
            judged: Fingerprint of the data that was judged.
            now: Its fingerprint now.
        """
        if (self.path / "spec.json").exists():
            old = {**read_head(self.path), "data": judged}
            chosen = {"weight_decay": with_defaults(old["experiment"])["weight_decay"]}
            self._refuse(differences(old, {"experiment": experiment.as_dict() | chosen, "data": now}))
            if (old["experiment"].get("corrected") is None) != (experiment.corrected is None):
                how = "with" if experiment.corrected is None else "without"
                raise InputError(f"{self.path} was trained {how} corrected labels; name another --out")

    def is_finished_from(self, source: str | None) -> bool:
        """Return whether the run is finished and was trained on the files with this fingerprint."""
        return self.done and source is not None and read_head(self.path).get("source") == source

    def claim(
        self,
        experiment: Experiment,
        fingerprint: str,
        versions: dict[str, str],
        command: str = "",
        source: str | None = None,
    ) -> None:
        """Write the specification, or refuse the folder if it holds that of another run."""
        path = self.path / "spec.json"
        spec = {"experiment": experiment.as_dict(), "data": fingerprint}
        if path.exists():
            self._refuse(differences(read_head(self.path), spec))
        else:
            known = {name: value for name, value in (("source", source), ("command", command)) if value}
            write_atomically(path, json.dumps({**spec, "versions": versions, **known}, indent=1).encode())

    def _refuse(self, different: Sequence[tuple[str, Any, Any]]) -> None:
        for name, was, now in different:
            if name == FINGERPRINT:
                raise InputError(
                    f"the data or labels changed since {self.path} was trained (fingerprint {was}, now {now}); "
                    "restore them, or name another --out"
                )
            before, after = as_option(name, was), as_option(name, now)
            raise InputError(f"{self.path} holds another run: it was trained {before}, not {after}; name another --out")

    def require_scores(self, epochs: Sequence[int], epochs_done: int) -> None:
        """Refuse requested scores of epochs that are over and whose scores were not saved."""
        for epoch in epochs:
            if epoch <= epochs_done and not (self.path / scores_name(epoch)).exists():
                raise InputError(f"{self.path} is past epoch {epoch} and has no scores of it; name another --out")

    def write(self, name: str, content: bytes) -> None:
        write_atomically(self.path / name, content)

    def finish(self) -> None:
        """Mark the run as finished by the digests of its files and those of its stages, and delete its checkpoints."""
        names = ["spec.json", "record.jsonl", CORRECTED, *(file.name for file in self.path.glob("*.safetensors"))]
        seals = [self.path / HEADS / SUMS]
        seals += [seal for name in STAGE_FOLDERS for seal in (self.path / name).glob(f"*/{DONE}")]
        names += [str(seal.relative_to(self.path)) for seal in seals]
        write_seal(self.path / DONE, [name for name in names if (self.path / name).exists()])
        self.checkpoints.clear()

    def reopen_damaged(self) -> bool:
        """Return whether files of a finished run are damaged or missing, which its last checkpoint can make again.

        The run then counts as unfinished. Without a checkpoint it is refused.
        """
        found = {file: reason for file, reason in faults(self.path / DONE).items() if file.parent == self.path}
        if not found:
            if self.done:
                self.checkpoints.clear()  # left behind if the process was killed right after it had finished
            return False
        file, reason = next(iter(found.items()))
        if file.name == "spec.json" or self.checkpoints.newest() is None:
            deleted = f"the folder {self.path}" if file.name == "spec.json" else str(self.path / DONE)
            raise InputError(
                f"{file} {reason}; restore it, or delete {deleted} and run the same command to train again"
            )
        print(f"{file} {reason}; it is made again from the last checkpoint", file=sys.stderr)
        (self.path / DONE).unlink()
        return True

    def renew_seal(self) -> None:
        """Write the seal of a finished run again if stages of it were made again."""
        if any(file.parent != self.path for file in faults(self.path / DONE)):
            self.finish()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a run folder for several trainings in it; only this thread can enter it meanwhile."""
    is_new = not path.exists()
    try:
        with RunFolder(path):
            _LOCKED[path.absolute()] = threading.get_ident()
            try:
                yield
            finally:
                del _LOCKED[path.absolute()]
    finally:
        if is_new and [entry.name for entry in path.glob("*")] == ["lock"]:  # an error came before the first training
            shutil.rmtree(path)


def scores_name(epoch: int) -> str:
    return f"scores-{epoch}.safetensors"


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the fields in which two specifications differ with both values, the most informative first."""
    before, after = (
        {**with_defaults(spec.get("experiment", {})), FINGERPRINT: spec.get("data")} for spec in (old, new)
    )
    for spec in (before, after):
        spec["init"] = spec["init"] and Path(spec["init"]).name  # a run may have been moved
    ignored = (*PATHS, *NOT_IN_NAME)
    differ = [name for name, value in after.items() if before.get(name) != value and name not in ignored]
    return [(name, before.get(name), after[name]) for name in sorted(differ, key=_rank)]


def _rank(name: str) -> int:
    """Order differences: settings that users change on purpose come first, method options last."""
    return NAMED_FIRST.index(name) if name in NAMED_FIRST else len(NAMED_FIRST) + (name == "options")


def as_option(name: str, value: Any) -> str:
    """Describe a setting as the command line has it: with --epochs 12."""
    option = "--set" if name == "options" else name if name in WITHOUT_OPTION else f"--{name.replace('_', '-')}"
    if value is None or value is False or value in ("", []):
        return f"without {option}"
    if name == "options":
        return "with " + " ".join(f"{option} {key}={chosen}" for key, chosen in value)
    return f"with {option}" if value is True else f"with {option} {value}"
