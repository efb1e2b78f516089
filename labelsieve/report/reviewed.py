"""What of the decisions in a run's folder stands, read without the review that wrote them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from labelsieve.errors import InputError


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


def standing(place: Path) -> dict[int, str | None]:
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
    labels = standing(place)
    if not labels or not gallery.exists():
        return Reviewed(0, 0)
    with gallery.open("rb") as file:
        given = {row["index"]: row["given_label"] for row in map(json.loads, file) if row["is_label_issue"]}
    gone = [labels[index] in (None, label) for index, label in given.items() if index in labels]
    return Reviewed(len(gone), gone.count(False))
