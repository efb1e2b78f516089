"""Suspects: what an audit left to be looked at."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError
from labelsieve.files import audit_folder, stranger
from labelsieve.text import rounded, unguarded

IMAGE_TYPES = {".webp": "image/webp", ".png": "image/png", ".jpg": "image/jpeg"}


@dataclass(frozen=True)
class Suspect:
    """A sample whose label looks wrong, or is the next to look at, and what to show of it."""

    index: int
    id: str
    given: str
    suggested: str
    quality: float | None
    is_issue: bool
    why: str
    image: Path | None
    text: str | None
    row: dict[str, Any] | None

    def shown(self) -> dict[str, Any]:
        """For the page; of an image only that there is one, of numbers what people read."""
        row = self.row and {name: rounded(value) for name, value in self.row.items()}
        return {**vars(self), "image": self.image is not None, "row": row}


def read_gallery(run: Path) -> list[Suspect]:
    """The suspects, worst first."""
    path = audit_folder(run) / "gallery.jsonl"
    lines = _content(path, run).split(b"\n")
    suspects = [_suspect(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not suspects:
        raise InputError(f"{path} shows no samples; there is nothing to review")
    seen: dict[int, int] = {}
    for place, suspect in enumerate(suspects):
        if suspect.index in seen:
            raise InputError(f"{path} shows sample {suspect.index} twice; run labelsieve audit {run} again")
        seen[suspect.index] = place
    return suspects


def read_classes(run: Path) -> Sequence[str]:
    """The names of all classes."""
    path = audit_folder(run) / "summary.json"
    try:
        classes = json.loads(_content(path, run))["classes"]
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise ValueError("its classes are not a list of names")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {path}: {error}; run labelsieve audit {run} again") from error
    return classes


def read_given(run: Path) -> dict[int, tuple[str, str]]:
    """Name and given label of every training sample, by its index."""
    path = audit_folder(run) / "labels.csv"
    text = _content(path, run).decode("utf-8-sig", errors="surrogateescape")
    try:
        table = csv.DictReader(io.StringIO(text, newline=""))
        rows = [(int(row["index"]), unguarded(row["id"]), unguarded(row["given_label"])) for row in table]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}; run labelsieve audit {run} again") from error
    given = {index: (name, label) for index, name, label in sorted(rows)}
    if len(given) < len(rows):
        raise InputError(f"{path} has a sample twice; run labelsieve audit {run} again")
    return given


def _content(path: Path, run: Path) -> bytes:
    if not (path.parent.is_dir() or (run / "spec.json").exists()):
        raise stranger(run)
    if not path.is_file():
        raise InputError(f"{run} has no {path.relative_to(run)}: run labelsieve audit {run} first")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _suspect(line: bytes, path: Path, number: int) -> Suspect:
    try:
        fields = json.loads(line, parse_constant=str)  # NaN is shown as such
        return _from_fields(fields, path.parent)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}:{number} is no sample ({error}); run labelsieve audit again") from error


def _from_fields(fields: Mapping[str, Any], folder: Path) -> Suspect:
    texts = {name: fields[name] for name in ("id", "given_label", "suggested_label")}
    if type(fields["index"]) is not int or fields["index"] < 0 or not all(isinstance(t, str) for t in texts.values()):
        raise ValueError("index must be a whole number, id and labels must be texts")
    quality, text, row = fields.get("label_quality"), fields.get("text"), fields.get("row")
    return Suspect(
        fields["index"],
        texts["id"],
        texts["given_label"],
        texts["suggested_label"],
        float(quality) if isinstance(quality, int | float) and math.isfinite(quality) else None,
        fields.get("is_label_issue") is True,
        str(fields.get("why") or ""),
        picture(folder, fields["image"]) if isinstance(fields.get("image"), str) else None,
        None if text is None else str(text),
        {str(name): value for name, value in row.items()} if isinstance(row, dict) else None,
    )


def picture(folder: Path, name: str) -> Path | None:
    """The image of that name, if it is one and lies in the folder."""
    path = folder / name
    inside = path.resolve().is_relative_to(folder.resolve())
    return path if inside and path.suffix in IMAGE_TYPES else None
