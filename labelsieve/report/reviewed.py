"""What of the decisions in a run's folder stands, read without the review that wrote them."""

import json
from pathlib import Path
from typing import NamedTuple

from labelsieve.errors import InputError


class Reviewed(NamedTuple):
    """How far the suspects were gone through."""

    gone: int
    changed: int  # those of them that have another label now


def standing(place: Path) -> dict[int, str | None]:
    """What was said last of each sample: its new label, None where it keeps the given one."""
    path = place / "review" / "decisions.jsonl"
    said: dict[int, list[str | None]] = {}
    if not path.exists():
        return {}
    try:
        for line in path.read_bytes().split(b"\n")[:-1]:  # a line that was cut short does not count
            decision = json.loads(line)
            of_sample = said.setdefault(int(decision["index"]), [])
            if decision["decision"] != "undo":
                of_sample.append(decision["label"])
            elif of_sample:
                of_sample.pop()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {path}: {error}; mend it or move it away") from error
    return {index: labels[-1] for index, labels in said.items() if labels}


def reviewed(place: Path, gallery: Path) -> Reviewed:
    """How many of the marked samples in the gallery were gone through, and how many got another label."""
    labels = standing(place)
    if not labels or not gallery.exists():
        return Reviewed(0, 0)
    with gallery.open("rb") as file:
        given = {row["index"]: row["given_label"] for row in map(json.loads, file) if row["is_label_issue"]}
    gone = [labels[index] in (None, label) for index, label in given.items() if index in labels]
    return Reviewed(len(gone), gone.count(False))
