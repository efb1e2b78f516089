"""Findings: what an audit says about the labels, read from the files that it left."""

import base64
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from labelsieve.errors import InputError
from labelsieve.files import audit_folder
from labelsieve.review.decisions import Reviewed, reviewed
from labelsieve.runs.read import Array
from labelsieve.text import rounded

MOST_PICTURE_BYTES = 4_300_000  # as text in the page; samples after that go without their picture


@dataclass(frozen=True)
class Estimate:
    """A share with its interval, all between 0 and 1."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class ClassNoise:
    """How many of the labels of one class look wrong."""

    name: str
    samples: int
    wrong: Estimate
    issues: int


@dataclass(frozen=True)
class Suspect:
    """A sample of the gallery, and what it looks like."""

    id: str
    given: str
    suggested: str
    quality: float
    is_issue: bool
    why: str
    image: str = ""  # as a data: address
    text: str = ""
    row: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Findings:
    """An audit."""

    samples: int
    issues: int
    classes: list[str]
    wrong: Estimate
    per_class: list[ClassNoise]
    noise_matrix: Array | None  # (K, K): row given label, column estimated true class; not there for very many classes
    penalty: Array | None
    verdict: str
    made: dict[str, Any]
    basis: str  # what the estimates rest on, in a sentence
    gallery: list[Suspect]  # the most suspicious first
    decided: int  # labels that a person had decided on before the run
    reviewed: Reviewed

    @property
    def suspects(self) -> list[Suspect]:
        """Those whose label is marked as probably wrong."""
        return [each for each in self.gallery if each.is_issue]

    @property
    def beyond(self) -> list[Suspect]:
        """The most suspicious of those that are not marked."""
        return [each for each in self.gallery if not each.is_issue]


def read_findings(run: Path, most: int) -> Findings | None:
    """The audit in a run's folder, or in its own, with at most so many samples to show; None where there is none."""
    path = audit_folder(run) / "summary.json"
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_bytes())
        classes = [str(name) for name in summary["classes"]]
        penalty = summary.get("penalty")
        if len(summary["per_class"]) != len(classes):
            raise ValueError(f"per_class has {len(summary['per_class'])} rows, not {len(classes)}")
        return Findings(
            int(summary["samples"]),
            int(summary["issues"]),
            classes,
            estimate(summary["noise_rate"]),
            [
                ClassNoise(str(row["class"]), int(row["samples"]), estimate(row), int(row["issues"]))
                for row in summary["per_class"]
            ],
            None if summary["noise_matrix"] is None else square(summary["noise_matrix"], len(classes)),
            None if penalty is None else square(penalty, len(classes)),
            str(summary.get("verdict", "")),
            dict(summary.get("made", {})),
            str(summary.get("basis", "")),
            read_suspects(path.with_name("gallery.jsonl"), most),
            int(summary.get("decided", 0)),
            reviewed(run, path.with_name("gallery.jsonl")),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise unusable(path, error) from error


def unusable(path: Path, error: Exception) -> InputError:
    reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return InputError(f"cannot read {path}: {reason}; make it again with labelsieve audit")


def estimate(row: dict[str, Any]) -> Estimate:
    return Estimate(number(row["estimate"]), number(row["low"]), number(row["high"]))


def number(value: Any) -> float:
    if not math.isfinite(float(value)):
        raise ValueError(f"{value} is not a number")
    return float(value)


def square(rows: list[list[float]], classes: int) -> Array:
    matrix = np.array(rows, dtype=float)
    if matrix.shape != (classes, classes):
        raise ValueError(f"a table of {classes} classes cannot have the shape {matrix.shape}")
    return matrix


def read_suspects(path: Path, most: int) -> list[Suspect]:
    """The first samples of the gallery."""
    if not path.exists():
        return []
    try:
        with path.open("rb") as file:
            return list(with_pictures([dict(json.loads(line)) for line in islice(file, most)], path.parent))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise unusable(path, error) from error


def with_pictures(rows: list[dict[str, Any]], folder: Path) -> Iterator[Suspect]:
    """Suspects with their pictures inside, as long as there is room."""
    room = MOST_PICTURE_BYTES
    for row in rows:
        image = picture(folder, row["image"]) if row.get("image") else ""
        room -= len(image)
        yield Suspect(
            str(row["id"]),
            str(row["given_label"]),
            str(row["suggested_label"]),
            number(row["label_quality"]),
            bool(row["is_label_issue"]),
            str(row["why"]),
            image if room >= 0 else "",
            str(row.get("text") or ""),
            dict(row.get("row") or {}),
        )


def picture(folder: Path, name: str) -> str:
    """A WEBP file of the audit as a data: address; nothing else is ever put into the page."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        return ""
    content = path.read_bytes()
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP":
        return ""
    return "data:image/webp;base64," + base64.b64encode(content).decode()


MOST_TEXT, MOST_COLUMNS, MOST_VALUE = 400, 12, 80  # of a sample


@dataclass(frozen=True)
class Card:
    """A sample of the gallery; long texts are cut."""

    sample: Suspect
    quality: str
    text: str
    columns: list[tuple[str, str]]
    more: int  # columns that are not shown


def cards(suspects: Iterable[Suspect]) -> list[Card]:
    return [
        Card(
            suspect,
            readable(suspect.quality),
            cut(suspect.text, MOST_TEXT),
            [(name, cut(str(rounded(value)), MOST_VALUE)) for name, value in list(suspect.row.items())[:MOST_COLUMNS]],
            max(len(suspect.row) - MOST_COLUMNS, 0),
        )
        for suspect in suspects
    ]


def readable(quality: float) -> str:
    """Two digits that matter, and no powers of ten."""
    if quality < 0.0001:
        return "0" if quality <= 0 else "under 0.0001"
    return f"{quality:.{max(2, 1 - math.floor(math.log10(quality)))}f}"


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"


def counted(names: Iterable[str]) -> list[tuple[str, int]]:
    """Each name with its count, most first."""
    return sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))
