"""Results of an audit, read from summary.json and gallery.jsonl for the report."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from labelsieve.audit.estimate import Interval
from labelsieve.errors import InputError
from labelsieve.files import parse_json, read_verified, verified
from labelsieve.review.decisions import ReviewProgress, review_progress
from labelsieve.review.suspects import Sample, Suspect, read_gallery
from labelsieve.runs.read import Array, audit_folder, read_audit_summary
from labelsieve.text import rounded

MAX_IMAGE_BYTES = 4_300_000  # of all images as base64; later samples are shown without an image
MAX_TEXT, MAX_COLUMNS, MAX_VALUE = 400, 12, 80  # characters, columns and characters per value of a sample

S = TypeVar("S", bound=Sample)


@dataclass(frozen=True)
class ClassNoise:
    """Noise estimate of one class."""

    name: str
    samples: int
    noise_rate: Interval
    issues: int


@dataclass(frozen=True)
class Card(Generic[S]):
    """A sample as the page shows it, with long texts shortened."""

    sample: S
    image: str  # data: URL, empty if there is none
    text: str
    columns: list[tuple[str, str]]
    has_more_columns: bool


@dataclass(frozen=True)
class MapPoint:
    """A sample of the map, with places from 0 to 1,000 and labels as positions in the classes."""

    index: int
    id: str
    given: int
    suggested: int
    is_label_issue: bool
    x: int
    y: int


@dataclass(frozen=True)
class SampleMap:
    """Samples as points of the plane."""

    samples: int  # of which the points are some
    points: list[MapPoint]


Pair = tuple[Card[Suspect], Card[Sample]]  # near-duplicates


@dataclass(frozen=True)
class OtherCounts:
    """Numbers of near-duplicates, of those with another label, and of outliers."""

    near_duplicate: int
    near_duplicate_other_label: int
    outlier: int


@dataclass(frozen=True)
class AuditResults:
    """Results of an audit."""

    samples: int
    issues: int
    classes: list[str]
    noise_rate: Interval
    per_class: list[ClassNoise]
    noise_matrix: Array | None  # (K, K): row given label, column estimated true class; None for very many classes
    penalty: Array | None
    verdict: str
    made: dict[str, Any]  # how the audit was made
    basis: str  # sentence on the basis of the estimates
    gallery: list[Card[Suspect]]  # most suspicious first
    pairs: list[Pair]
    outliers: list[Card[Suspect]]
    others: OtherCounts | None  # None if the samples have no features
    confusions: list[tuple[str, str, int]]  # given label, suggested label, number of suspects; most common first
    map: SampleMap | None  # None if the samples have no features
    held_out_error: float | None  # of models that had not learned the labels; None if the labels were learned
    decided: int  # labels that a person had decided before the run
    progress: ReviewProgress

    @property
    def suspects(self) -> list[Card[Suspect]]:
        """Return the samples whose label is marked as probably wrong."""
        return [card for card in self.gallery if card.sample.is_issue]

    @property
    def different_pairs(self) -> list[Pair]:
        """Return the near-duplicates with different labels."""
        return [pair for pair in self.pairs if pair[0].sample.given != pair[1].sample.given]

    @property
    def equal_pairs(self) -> list[Pair]:
        """Return the near-duplicates with the same label."""
        return [pair for pair in self.pairs if pair[0].sample.given == pair[1].sample.given]


def read_audit(run: Path, limit: int) -> AuditResults | None:
    """Return the audit of a run, with at most `limit` samples of each kind to show; None if there is no audit."""
    path = audit_folder(run) / "summary.json"
    if not path.exists():
        return None
    try:
        summary = read_audit_summary(run)
        counts = summary.get("other_issues")
        suspects = read_gallery(run) if verified(path.with_name("gallery.jsonl")).exists() else []
        gallery, pairs, outliers = _shown(suspects, limit)
        return AuditResults(
            samples=int(summary["samples"]),
            issues=int(summary["issues"]),
            classes=[str(name) for name in summary["classes"]],
            noise_rate=_interval(summary["noise_rate"]),
            per_class=[
                ClassNoise(str(row["class"]), int(row["samples"]), _interval(row), int(row["issues"]))
                for row in summary["per_class"]
            ],
            noise_matrix=_matrix(summary["noise_matrix"]),
            penalty=_matrix(summary.get("penalty")),
            verdict=str(summary["verdict"]),
            made=dict(summary.get("made", {})),
            basis=str(summary.get("basis", "")),
            gallery=gallery,
            pairs=pairs,
            outliers=outliers,
            others=counts and OtherCounts(**{field.name: int(counts[field.name]) for field in fields(OtherCounts)}),
            confusions=[
                (str(row["given"]), str(row["suggested"]), int(row["suspects"]))
                for row in summary.get("confusions", [])
            ],
            map=_read_map(path.with_name("map.json"), len(summary["classes"])),
            held_out_error=summary.get("held_out_error"),
            decided=int(summary.get("decided", 0)),
            progress=review_progress(run),
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"cannot read {path}: {reason}; run labelsieve audit again") from error


def _read_map(path: Path, classes: int) -> SampleMap | None:
    """Return the samples of map.json; None if there is no such file, or no sample in it."""
    if not verified(path).exists():
        return None
    try:
        columns = parse_json(read_verified(path))
        rows = zip(*(columns[field.name] for field in fields(MapPoint)), strict=True)
        points = [
            MapPoint(int(index), str(name), int(given), int(suggested), bool(issue), int(x), int(y))
            for index, name, given, suggested, issue, x, y in rows
        ]
        if any(not (0 <= k < classes) for point in points for k in (point.given, point.suggested)):
            raise ValueError("a label is not among the classes")
        return SampleMap(int(columns["samples"]), points) if points else None
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {path}: {error}; run labelsieve audit again") from error


def _interval(row: dict[str, Any]) -> Interval:
    return Interval(float(row["estimate"]), float(row["low"]), float(row["high"]))


def _matrix(rows: list[list[float]] | None) -> Array | None:
    return None if rows is None else np.array(rows, dtype=float)


def _shown(samples: Sequence[Suspect], limit: int) -> tuple[list[Card[Suspect]], list[Pair], list[Card[Suspect]]]:
    """Return at most `limit` cards for suspect labels, pairs of near-duplicates, and cards for outliers."""
    suspects = [sample for sample in samples if "label" in sample.listed][:limit]
    outliers = sorted((sample for sample in samples if "outlier" in sample.listed), key=lambda one: one.outlier_score)
    cards = _Cards()
    gallery = [cards.make(sample) for sample in suspects]
    pairs = [(cards.make(one), cards.make(other)) for one, other in near_duplicate_pairs(samples)[:limit]]
    return gallery, pairs, [cards.make(sample) for sample in outliers[:limit]]


def near_duplicate_pairs(samples: Iterable[Suspect]) -> list[tuple[Suspect, Sample]]:
    """Return each sample that is listed as near-duplicate with its twin, every pair once; different labels first."""
    pairs: dict[frozenset[int], tuple[Suspect, Sample]] = {}
    for sample in samples:
        if sample.twin is not None and "near_duplicate" in sample.listed:
            pairs.setdefault(frozenset({sample.index, sample.twin.index}), (sample, sample.twin))
    return sorted(pairs.values(), key=lambda pair: pair[0].given == pair[1].given)


class _Cards:
    """Maker of cards, with images as long as these fit into MAX_IMAGE_BYTES."""

    def __init__(self) -> None:
        self.remaining = MAX_IMAGE_BYTES

    def make(self, sample: S) -> Card[S]:
        """Return the card of a sample."""
        image = _data_url(sample.image) if sample.image else ""
        self.remaining -= len(image)
        row = sample.row or {}
        return Card(
            sample,
            image if self.remaining >= 0 else "",
            _shortened(sample.text or "", MAX_TEXT),
            [(name, _shortened(str(rounded(value)), MAX_VALUE)) for name, value in list(row.items())[:MAX_COLUMNS]],
            len(row) > MAX_COLUMNS,
        )


def _data_url(path: Path) -> str:
    """Return a WebP image as a data: URL; empty for any other file."""
    content = path.read_bytes() if verified(path).is_file() else b""
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP":
        return ""
    return "data:image/webp;base64," + base64.b64encode(content).decode()


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "…"
