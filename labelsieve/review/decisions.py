"""Decisions about suspect labels: the append-only file review/decisions.jsonl, and which of its lines are in effect."""

import errno
import fcntl
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from labelsieve.errors import InputError
from labelsieve.files import digest_of, disk_error, parse_json, read_verified, sync_folder
from labelsieve.runs.read import audit_folder

DECISIONS = ("keep", "accept", "other", "unsure", "undo")
RELABELLING = ("accept", "other")  # decisions that carry a new label
MAX_NAME_LENGTH = 64  # characters of a tab, an action or a reviewer
REQUIRED = ("index", "id", "decision", "label", "time", "tab")  # older lines have only these


@dataclass(frozen=True)
class Decision:
    """One line of decisions.jsonl."""

    index: int
    id: str
    decision: str
    label: str | None  # the new label of "accept" and "other"
    time: str
    tab: str
    reviewer: str = ""  # name of the person; empty if unknown
    action: str = ""  # shared by the decisions of one action on several samples

    def line(self) -> bytes:
        """Return the line that is appended to the file, with a check of its content."""
        fields = asdict(self)
        return json.dumps({**fields, "check": _check_of(fields)}).encode() + b"\n"


class ReviewProgress(NamedTuple):
    """Number of suspects with a decision, and number of those whose label changed."""

    reviewed: int
    changed: int


class Agreement(NamedTuple):
    """The agreement of two reviewers on the labels of samples that both decided."""

    one: str
    other: str
    both: int  # samples that both decided
    equal: int  # of these, samples with equal labels
    kappa: float  # Cohen's kappa: 1 is full agreement, 0 that of chance


class DecisionLog:
    """Append-only file of decisions, shared by any number of threads and processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._decisions: list[Decision] = []
        self._bytes_read = 0
        self._lock = threading.RLock()  # flock excludes other processes, this excludes other threads

    def decisions(self) -> Sequence[Decision]:
        """Return all decisions, including those that other processes wrote."""
        with self._lock:
            if not self.path.exists():
                self._decisions, self._bytes_read = [], 0
                return ()
            with self._locked_file(os.O_RDONLY, fcntl.LOCK_SH) as handle:
                return self._read_new(handle)

    def append(self, decide: Callable[[Sequence[Decision]], Sequence[Decision]]) -> Sequence[Decision]:
        """Append the decisions that `decide` returns for all previous ones, and flush once; other writers wait."""
        with self._lock, self._locked_file(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as handle:
            decisions = decide(self._read_new(handle))
            if not decisions:
                return self._decisions
            _append_lines(handle, b"".join(decision.line() for decision in decisions))
            if self._bytes_read == 0:  # the file is new, and its folder may be new
                sync_folder(self.path.parent)
                sync_folder(self.path.parent.parent)
            return self._read_new(handle)

    def repair(self) -> None:
        """Complete or remove an incomplete last line."""
        content = self.path.read_bytes() if self.path.exists() else b""
        if content and not content.endswith(b"\n"):
            with self._lock, self._locked_file(os.O_RDWR | os.O_APPEND, fcntl.LOCK_EX) as handle:
                self._read_new(handle)

    @contextmanager
    def _locked_file(self, flags: int, lock: int) -> Iterator[int]:
        try:
            if flags & os.O_CREAT:
                self.path.parent.mkdir(exist_ok=True)
            handle = os.open(self.path, flags, 0o644)
            try:
                fcntl.flock(handle, lock)
                if flags & os.O_APPEND:
                    _repair_last_line(handle)
                yield handle
            finally:
                os.close(handle)
        except OSError as error:
            if flags == os.O_RDONLY:
                raise InputError(f"cannot read {self.path}: {error.strerror}") from error
            raise disk_error(self.path, error) from error

    def _read_new(self, handle: int) -> Sequence[Decision]:
        """Parse the complete lines that were added since the last call."""
        size = os.fstat(handle).st_size
        if size < self._bytes_read:  # the file was replaced
            self._decisions, self._bytes_read = [], 0
        *complete, _ = os.pread(handle, size - self._bytes_read, self._bytes_read).split(b"\n")
        decisions = list(self._decisions)
        for line in complete:
            try:
                decisions.append(_parse_decision(line))
            except ValueError as error:
                place = f"{self.path}:{len(decisions) + 1}"
                raise InputError(f"{place} is not a decision ({error}); correct or remove the line") from error
        self._decisions = decisions
        self._bytes_read += sum(len(line) + 1 for line in complete)
        return decisions


def decisions_path(run: Path) -> Path:
    """Return the path of the decisions about a run's suspects."""
    return run / "review" / "decisions.jsonl"


def read_decisions(run: Path) -> dict[int, Decision]:
    """Return the decisions in effect about a run's samples, by sample index."""
    return effective_decisions(DecisionLog(decisions_path(run)).decisions())


def review_progress(run: Path) -> ReviewProgress:
    """Count the suspects of a run's gallery that were reviewed, and those that got a different label."""
    decisions, gallery = read_decisions(run), audit_folder(run) / "gallery.jsonl"
    if not decisions or not gallery.exists():
        return ReviewProgress(0, 0)
    rows = map(json.loads, read_verified(gallery).splitlines())
    suspects = {row["index"]: row["given_label"] for row in rows if row["is_label_issue"]}
    reviewed = {index: decision for index, decision in decisions.items() if index in suspects}
    return ReviewProgress(len(reviewed), len(changed_labels(reviewed, suspects)))


def effective_lines(decisions: Sequence[Decision]) -> dict[int, int]:
    """Return, by sample index, the line number (from 1) of the last decision that was not undone."""
    return {index: numbers[-1] for index, numbers in _standing_lines(decisions).items()}


def _standing_lines(decisions: Sequence[Decision]) -> dict[int, list[int]]:
    """Return, by sample index, the line numbers of all decisions that were not undone.

    An undo takes back the last decision of the same reviewer; of anybody, if this reviewer has made none.
    """
    lines: dict[int, list[int]] = {}
    for number, decision in enumerate(decisions, 1):
        of_sample = lines.setdefault(decision.index, [])
        if decision.decision != "undo":
            of_sample.append(number)
        elif of_sample:
            own = [line for line in of_sample if decisions[line - 1].reviewer == decision.reviewer]
            of_sample.remove((own or of_sample)[-1])
    return {index: numbers for index, numbers in lines.items() if numbers}


def effective_decisions(decisions: Sequence[Decision]) -> dict[int, Decision]:
    """Return, by sample index, the last decision that was not undone; "unsure" is one of them."""
    return {index: decisions[number - 1] for index, number in effective_lines(decisions).items()}


def decisions_by_reviewer(decisions: Sequence[Decision]) -> dict[int, dict[str, Decision]]:
    """Return, by sample index and name, the last decision of each reviewer that was not undone."""
    return {
        index: {decisions[number - 1].reviewer: decisions[number - 1] for number in numbers}
        for index, numbers in _standing_lines(decisions).items()
    }


def disagreements(decisions: Sequence[Decision], given: Mapping[int, str]) -> dict[int, dict[str, Decision]]:
    """Return the samples to which reviewers would give different labels, with the decision of each reviewer.

    `given` has the given labels by sample index. Who is unsure has no opinion.
    """
    opinions = {index: _sure(each) for index, each in decisions_by_reviewer(decisions).items() if index in given}
    return {
        index: each
        for index, each in opinions.items()
        if len({decided_label(decision, given[index]) for decision in each.values()}) > 1
    }


def agreements(decisions: Sequence[Decision], given: Mapping[int, str]) -> list[Agreement]:
    """Return how often each two reviewers agree, for all that decided about the same samples."""
    labels: dict[str, dict[int, str]] = {}  # by reviewer and sample index
    for index, each in decisions_by_reviewer(decisions).items():
        for reviewer, decision in _sure(each).items() if index in given else ():
            labels.setdefault(reviewer, {})[index] = decided_label(decision, given[index])
    found = []
    for one, other in combinations(sorted(labels), 2):
        pairs = [(label, labels[other][index]) for index, label in labels[one].items() if index in labels[other]]
        if pairs:
            found.append(Agreement(one, other, len(pairs), sum(a == b for a, b in pairs), cohens_kappa(pairs)))
    return found


def cohens_kappa(pairs: Sequence[tuple[str, str]]) -> float:
    """Return Cohen's kappa of the labels that two people gave to the same samples."""
    equal = sum(one == other for one, other in pairs) / len(pairs)
    first, second = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    chance = sum(count * second[label] for label, count in first.items()) / len(pairs) ** 2
    return 1.0 if chance == 1 else (equal - chance) / (1 - chance)


def decided_label(decision: Decision, given: str) -> str:
    """Return the label of a sample according to a decision, from its given label."""
    return given if decision.label is None else decision.label


def _sure(decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    return {reviewer: decision for reviewer, decision in decisions.items() if decision.decision != "unsure"}


def changed_labels(decisions: Mapping[int, Decision], given: Mapping[int, str]) -> dict[int, str]:
    """Return the new label of each sample whose label differs from its given label."""
    labels = {index: decision.label for index, decision in decisions.items() if decision.label is not None}
    return {index: label for index, label in labels.items() if label != given[index]}


def _parse_decision(line: bytes) -> Decision:
    """Parse one line of decisions.jsonl; raise ValueError if it is not a decision."""
    fields = parse_json(line)
    if not isinstance(fields, dict) or not all(name in fields for name in REQUIRED):
        raise ValueError("fields are missing")
    decision = Decision(**{name: fields[name] for name in Decision.__annotations__ if name in fields})
    if fields.get("check", _check_of(asdict(decision))) != _check_of(asdict(decision)):  # older versions wrote none
        raise ValueError("it is damaged")
    if type(decision.index) is not int or decision.decision not in DECISIONS:
        raise ValueError("index or decision is invalid")
    texts = (decision.id, decision.time, decision.tab, decision.reviewer, decision.action)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("id, time, tab, reviewer and action must be strings")
    if isinstance(decision.label, str) != (decision.decision in RELABELLING):
        raise ValueError("accept and other need a label, the other decisions have none")
    return decision


def _check_of(fields: Mapping[str, object]) -> str:
    """Return a short digest of the fields of a decision."""
    return digest_of(json.dumps(fields).encode())[:16]


def _repair_last_line(handle: int) -> None:
    """Complete the last line if only its newline is missing, otherwise remove it: it was never reported as saved."""
    size = os.fstat(handle).st_size
    if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
        return
    content = os.pread(handle, size, 0)
    end = content.rfind(b"\n") + 1
    try:
        _parse_decision(content[end:])
    except ValueError:
        os.ftruncate(handle, end)
    else:
        os.write(handle, b"\n")
    os.fsync(handle)


def _append_lines(handle: int, lines: bytes) -> None:
    """Append lines and flush them to the disk; remove what was written of them if that fails."""
    size = os.fstat(handle).st_size
    try:
        if os.write(handle, lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    except OSError:
        with suppress(OSError):
            os.ftruncate(handle, size)
        raise
