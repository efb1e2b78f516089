"""What of the decisions in a run's folder stands, read without the review that wrote them."""

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from labelsieve.errors import InputError
from labelsieve.files import disk_error, sync_folder


class Reviewed(NamedTuple):
    """How far the suspects were gone through."""

    gone: int
    changed: int  # those of them that have another label now


def last_lines(said: Iterable[tuple[int, str]]) -> dict[int, int]:
    """For each sample of (index, decision) lines the number, from 1, of the last line that was not taken back."""
    lines: dict[int, list[int]] = {}
    for number, (index, decision) in enumerate(said, 1):
        of_sample = lines.setdefault(index, [])
        if decision != "undo":
            of_sample.append(number)
        elif of_sample:
            of_sample.pop()
    return {index: numbers[-1] for index, numbers in lines.items() if numbers}


def standing_on_disk(place: Path) -> dict[int, str | None]:
    """What was said last of each sample: its new label, None where it keeps the given one."""
    path = place / "review" / "decisions.jsonl"
    if not path.exists():
        return {}
    try:
        said = [
            json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]
        ]  # one that was cut short does not count
        last = last_lines((int(each["index"]), each["decision"]) for each in said)
        return {index: said[number - 1]["label"] for index, number in last.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {path}: {error}; mend it or move it away") from error


def reviewed(place: Path, gallery: Path) -> Reviewed:
    """How many of the marked samples in the gallery were gone through, and how many got another label."""
    labels = standing_on_disk(place)
    if not labels or not gallery.exists():
        return Reviewed(0, 0)
    with gallery.open("rb") as file:
        given = {row["index"]: row["given_label"] for row in map(json.loads, file) if row["is_label_issue"]}
    gone = [labels[index] in (None, label) for index, label in given.items() if index in labels]
    return Reviewed(len(gone), gone.count(False))


KINDS = ("keep", "accept", "other", "unsure", "undo")
RELABELS = ("accept", "other")
UNDECIDED = ("unsure",)


@dataclass(frozen=True)
class Decision:
    """One line of decisions.jsonl."""

    index: int
    id: str
    decision: str
    label: str | None  # the new label, where there is one
    time: str
    tab: str

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def parsed(line: bytes) -> Decision:
    """The decision of a line; ValueError if it is none."""
    fields = json.loads(line)
    if not isinstance(fields, dict) or not all(name in fields for name in Decision.__annotations__):
        raise ValueError("not the fields of a decision")
    decision = Decision(**{name: fields[name] for name in Decision.__annotations__})
    if type(decision.index) is not int or decision.decision not in KINDS:
        raise ValueError("not a decision")
    if not all(isinstance(text, str) for text in (decision.id, decision.time, decision.tab)):
        raise ValueError("not the values of a decision")
    if isinstance(decision.label, str) != (decision.decision in RELABELS):
        raise ValueError("accept and other have a label, the rest have none")
    return decision


def standing(decisions: Iterable[Decision]) -> dict[int, int]:
    """For each decided sample the number, from 1, of the line that counts: the last one that was not taken back."""
    return last_lines((decision.index, decision.decision) for decision in decisions)


def state(decisions: Sequence[Decision]) -> dict[int, Decision]:
    """What was said last about each sample, unsure or decided."""
    return {index: decisions[number - 1] for index, number in standing(decisions).items()}


def unsure_of(decided: Mapping[int, Decision]) -> set[int]:
    """The samples that somebody looked at without deciding."""
    return {index for index, decision in decided.items() if decision.decision in UNDECIDED}


def changed_labels(decided: Mapping[int, Decision], given: Mapping[int, str]) -> dict[int, str]:
    """The new labels, of the samples whose label is another than the given one."""
    return {
        index: decision.label
        for index, decision in decided.items()
        if decision.label is not None and decision.label != given[index]
    }


class DecisionLog:
    """A file that is only appended to, by any number of threads and processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._decisions: list[Decision] = []
        self._read = 0  # bytes
        self._here = threading.RLock()  # file locks are between open files, this is between the threads that share one

    def decisions(self) -> Sequence[Decision]:
        """All decisions so far, also those that other processes wrote."""
        with self._here:
            if not self.path.exists():
                self._decisions, self._read = [], 0
                return ()
            with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as handle:
                return self._caught_up(handle)

    def append(self, decide: Callable[[Sequence[Decision]], Decision]) -> Sequence[Decision]:
        """Write what `decide` makes of all decisions so far; nobody else writes in between."""
        with self._here, self._locked(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as handle:
            decision = decide(self._caught_up(handle))
            write_line(handle, decision.line())
            if self._read == 0:  # the file is new, and so may be its folder
                sync_folder(self.path.parent)
                sync_folder(self.path.parent.parent)
            return self._caught_up(handle)

    def mend(self) -> None:
        """Finish or remove a last line that was cut."""
        if self.path.exists() and not ends_whole(self.path):
            with self._here, self._locked(os.O_RDWR | os.O_APPEND, fcntl.LOCK_EX) as handle:
                self._caught_up(handle)

    @contextmanager
    def _locked(self, flags: int, lock: int) -> Iterator[int]:
        try:
            if flags & os.O_CREAT:
                self.path.parent.mkdir(exist_ok=True)
            handle = os.open(self.path, flags, 0o644)
            try:
                fcntl.flock(handle, lock)
                if flags & os.O_APPEND:
                    mend(handle)
                yield handle
            finally:
                os.close(handle)
        except OSError as error:
            raise disk_error(self.path, error) from error

    def _caught_up(self, handle: int) -> Sequence[Decision]:
        size = os.fstat(handle).st_size
        if size < self._read:  # somebody put another file in its place
            self._decisions, self._read = [], 0
        *whole, _ = os.pread(handle, size - self._read, self._read).split(b"\n")
        new = [self._parsed(line, number) for number, line in enumerate(whole, len(self._decisions) + 1)]
        self._decisions = [*self._decisions, *new]
        self._read += sum(len(line) + 1 for line in whole)
        return self._decisions

    def _parsed(self, line: bytes, number: int) -> Decision:
        try:
            return parsed(line)
        except ValueError as error:
            raise InputError(f"{self.path}:{number} is no decision ({error}); mend or remove that line") from error


def ends_whole(path: Path) -> bool:
    content = path.read_bytes()
    return not content or content.endswith(b"\n")


def mend(handle: int) -> None:
    """Let the file end with a whole line. Nobody was told that an unfinished one is saved."""
    size = os.fstat(handle).st_size
    if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
        return
    content = os.pread(handle, size, 0)
    end = content.rfind(b"\n") + 1
    try:
        parsed(content[end:])
    except ValueError:
        os.ftruncate(handle, end)
    else:
        os.write(handle, b"\n")  # only its end was missing
    os.fsync(handle)


def write_line(handle: int, line: bytes) -> None:
    """Append a line and wait until the disk has it; if it cannot, nothing of it stays."""
    size = os.fstat(handle).st_size
    try:
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    except OSError:
        with suppress(OSError):
            os.ftruncate(handle, size)
        raise
