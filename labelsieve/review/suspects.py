"""Files of an audit that a review needs: the gallery of suspects, the class names and the given labels."""

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError
from labelsieve.files import read_verified
from labelsieve.runs.read import audit_folder, read_audit_summary, refuse_no_audit
from labelsieve.text import format_quality, rounded, unescape_cell

IMAGE_TYPES = {".webp": "image/webp", ".png": "image/png", ".jpg": "image/jpeg"}


@dataclass(frozen=True)
class Sample:
    """A sample with its content."""

    index: int
    id: str
    given: str
    image: Path | None
    text: str | None
    row: dict[str, Any] | None

    def for_page(self) -> dict[str, Any]:
        """Return the fields as JSON values: whether there is an image instead of its path, and rounded numbers."""
        row = self.row and {name: rounded(value) for name, value in self.row.items()}
        return {**vars(self), "image": self.image is not None, "row": row}


@dataclass(frozen=True)
class Suspect(Sample):
    """A sample of the gallery; `is_issue` is false for those that follow the suspects."""

    suggested: str
    quality: float  # 0 to 1
    is_issue: bool
    why: str
    listed: tuple[str, ...]  # kinds of issues for which the sample is shown: label, near_duplicate, outlier
    outlier_score: float  # 0 to 1, low for outliers
    twin: Sample | None  # a near-duplicate

    def for_page(self) -> dict[str, Any]:
        """Return the fields as JSON values, with those of the twin, and the quality as it is displayed."""
        shown = {"shown_quality": format_quality(self.quality), "twin": self.twin and self.twin.for_page()}
        return {**super().for_page(), **shown}


@dataclass(frozen=True, order=True)
class Judged:
    """A training sample as the audit judged it."""

    index: int
    id: str
    given: str
    suggested: str
    quality: float  # 0 to 1
    doubtful: bool  # an issue of any kind
    near_duplicates: tuple[int, ...]
    outlier_score: float  # 0 to 1, low for outliers


def read_gallery(run: Path) -> list[Suspect]:
    """Return the samples of the gallery, most suspicious first; those that are listed for other issues come last."""
    path = audit_folder(run) / "gallery.jsonl"
    lines = (line for line in _read(path, run).split(b"\n") if line.strip())
    suspects: list[Suspect] = []
    for line in lines:
        try:
            suspects.append(_suspect(json.loads(line, parse_constant=str), path.parent))  # NaN is displayed as "NaN"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            place, reason = f"{path}:{len(suspects) + 1}", f"{error} is missing" if type(error) is KeyError else error
            raise InputError(f"{place} is not a sample ({reason}); run labelsieve audit again") from error
    if len({suspect.index for suspect in suspects}) < len(suspects):
        raise InputError(f"{path} contains a sample twice; run labelsieve audit {run} again")
    return suspects


def read_class_names(run: Path) -> Sequence[str]:
    """Return the names of all classes."""
    return [str(name) for name in read_audit_summary(run, "classes")["classes"]]


def read_judged(run: Path) -> list[Judged]:
    """Return every training sample as the audit judged it, in the order of the data."""
    path = audit_folder(run) / "labels.csv"
    text = _read(path, run).decode("utf-8-sig", errors="surrogateescape")
    try:
        rows = sorted(map(_judged, csv.DictReader(io.StringIO(text, newline=""))))
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}; run labelsieve audit {run} again") from error
    if len(rows) != read_audit_summary(run, "samples")["samples"]:  # a missing seal would not show it
        raise InputError(f"{path} has {len(rows):,} rows, unlike summary.json; run labelsieve audit {run} again")
    if [each.index for each in rows] != list(range(len(rows))):
        raise InputError(f"{path} contains a sample twice; run labelsieve audit {run} again")
    return rows


def _judged(row: Mapping[str, str]) -> Judged:
    """Return a row of labels.csv; only index, id and given label are needed."""
    kinds = ("is_label_issue", "is_near_duplicate_issue", "is_outlier_issue")
    return Judged(
        int(row["index"]),
        unescape_cell(row["id"]),
        unescape_cell(row["given_label"]),
        unescape_cell(row.get("suggested_label") or row["given_label"]),
        float(row.get("label_quality") or 0),
        any((row.get(kind) or "").lower() == "true" for kind in kinds),
        tuple(json.loads(row.get("near_duplicate_sets") or "[]")),
        float(row.get("outlier_score") or 1),
    )


def _read(path: Path, run: Path) -> bytes:
    refuse_no_audit(path, run)
    return read_verified(path)


def _suspect(fields: Mapping[str, Any], folder: Path) -> Suspect:
    sample = _sample(fields, folder)
    quality, suggested, twin = float(fields["label_quality"]), fields["suggested_label"], fields.get("twin")
    if not isinstance(suggested, str):
        raise ValueError("suggested_label must be a string")
    if not math.isfinite(quality):
        raise ValueError(f"label_quality is {quality}")
    return Suspect(
        **vars(sample),
        suggested=suggested,
        quality=quality,
        is_issue=fields.get("is_label_issue") is True,
        why=str(fields.get("why") or ""),
        listed=tuple(map(str, fields.get("listed", ["label"]))),
        outlier_score=float(fields.get("outlier_score", 1)),
        twin=None if twin is None else _sample(twin, folder),
    )


def _sample(fields: Mapping[str, Any], folder: Path) -> Sample:
    name, given, index = (fields[key] for key in ("id", "given_label", "index"))
    if type(index) is not int or index < 0 or not isinstance(name, str) or not isinstance(given, str):
        raise ValueError("index must be an integer, id and labels must be strings")
    text, row = fields.get("text"), fields.get("row")
    return Sample(
        index,
        name,
        given,
        _image_path(folder, fields["image"]) if isinstance(fields.get("image"), str) else None,
        None if text is None else str(text),
        {str(column): value for column, value in row.items()} if isinstance(row, dict) else None,
    )


def _image_path(folder: Path, name: str) -> Path | None:
    """Return the path of an image, or None if it is not an image inside the folder."""
    path = folder / name
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    return path if inside and path.suffix in IMAGE_TYPES else None
