"""Decisions: what people said about samples, and what of it stands."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from labelsieve.report.reviewed import last_lines

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
