"""RunFolder: where one run lives, whole, locked while it is written."""

import fcntl
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from labelsieve.errors import InputError
from labelsieve.experiments.spec import BESIDE_THE_POINT, Experiment, with_defaults
from labelsieve.files import FINAL, disk_error, refuse_no_folder, write_atomically
from labelsieve.report.records import AGAIN, LONGER, NETWORK, PLAIN, PROBE
from labelsieve.train.checkpoint import Checkpoints
from labelsieve.train.record import Record

CONTENT = "fingerprint"  # of data and labels
TELLING = ("method", "noise", "rate", "noise_rate", "seed", "epochs", "criterion", "model", "lr", "batch")
NOT_TYPED = ("drops", "drop_factor", "drop_last", "fold", "choose")  # settings that no option has
HERE = threading.Lock()
ENTERED: set[Path] = set()  # file locks are between processes, this is between the threads of one


class RunFolder:
    """spec.json, record.jsonl, tables, samples and model, the scores that were asked for and, once all is there, done.

    Enter it to write: one process at a time. The lock is released when its process ends, however it ends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = Record(path / "record.jsonl")
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._lock = -1

    @property
    def done(self) -> bool:
        return (self.path / "done").exists()

    def __enter__(self) -> "RunFolder":
        self.refuse_strangers()
        with HERE:
            if self.path.absolute() in ENTERED:
                raise InputError(f"run folder {self.path} is in use by this very process; name another --out")
            ENTERED.add(self.path.absolute())
        try:
            return self._locked()
        except BaseException:
            ENTERED.discard(self.path.absolute())
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
            owner = os.read(self._lock, 100).decode(errors="replace").strip()
            os.close(self._lock)
            raise InputError(
                f"run folder {self.path} is in use by process {owner or 'unknown'}; wait for it or name another --out"
            ) from None
        os.truncate(self._lock, 0)
        os.write(self._lock, str(os.getpid()).encode())
        for left_behind in self.path.rglob(".*.tmp"):
            left_behind.unlink()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.truncate(self._lock, 0)  # nobody is in it any more
        os.close(self._lock)
        ENTERED.discard(self.path.absolute())

    def refuse_strangers(self) -> None:
        """A folder with files but no run in it, or a file, is somebody's work."""
        refuse_no_folder(self.path)
        if self.path.is_dir() and not (self.path / "spec.json").exists():
            parts = (NETWORK, PROBE, AGAIN, PLAIN, LONGER)
            probed = [name for name in parts if any((self.path / name).glob("*/lock"))]
            ours = {"lock", *probed, *([FINAL] if probed else [])}
            strangers = [p.name for p in self.path.iterdir() if p.name not in ours and p.suffix != ".tmp"]
            if strangers:
                raise InputError(f"{self.path} holds other files ({strangers[0]}); name another --out")

    def claim(self, experiment: Experiment, fingerprint: str, versions: dict[str, str], command: str = "") -> None:
        """Write the specification, or make sure that the one here is the same; `command`: what was typed."""
        path = self.path / "spec.json"
        spec = {"experiment": experiment.as_dict(), "data": fingerprint}
        if not path.exists():
            typed = {"command": command} if command else {}
            write_atomically(path, json.dumps({**spec, "versions": versions, **typed}, indent=1).encode())
            return
        for name, was, now in differences(read_json(path), spec):
            told = f"{typed_as(name, was)}, not {typed_as(name, now)}"
            raise InputError(f"{self.path} is another run: it was trained {told}; name another --out")

    def want_scores(self, epochs: Sequence[int], epochs_done: int) -> None:
        """Refuse scores of an epoch that is over and whose scores were not kept."""
        for epoch in epochs:
            if epoch <= epochs_done and not (self.path / scores_name(epoch)).exists():
                raise InputError(f"{self.path} is past epoch {epoch} and kept no scores of it; name another --out")

    def write(self, name: str, content: bytes) -> None:
        write_atomically(self.path / name, content)

    def finish(self) -> None:
        """The last act: from now on the run counts as done."""
        self.write("done", b"")
        self.checkpoints.clear()


def scores_name(epoch: int) -> str:
    return f"scores-{epoch}.safetensors"


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Where two specifications disagree: field, old and new value, the most telling first.

    What the data is counts, not where it lies.
    """
    before, after = ({**with_defaults(spec.get("experiment", {})), CONTENT: spec.get("data")} for spec in (old, new))
    differ = [
        name
        for name, value in after.items()
        if before.get(name) != value and name not in ("data", "labels", "corrected", *BESIDE_THE_POINT)
    ]
    return [(name, before.get(name), after[name]) for name in sorted(differ, key=rank)]


def rank(name: str) -> int:
    """How early a difference is told: what people change on purpose, then what follows from other settings."""
    return TELLING.index(name) if name in TELLING else len(TELLING) + (name == "options")


def typed_as(name: str, value: Any) -> str:
    """A setting in the words of the command line."""
    if name == CONTENT:
        return f"on data and labels of fingerprint {value}"
    option = "--set" if name == "options" else name if name in NOT_TYPED else f"--{name.replace('_', '-')}"
    if value is None or value is False or value in ("", []):
        return f"without {option}"
    if name == "options":
        return "with " + " ".join(f"{option} {key}={chosen}" for key, chosen in value)
    return f"with {option}" if value is True else f"with {option} {value}"


def read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
