"""An audit as files: a table for people, one for programs, a summary, and the lines of a gallery."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from labelsieve.audit.estimate import Interval
from labelsieve.audit.findings import Findings
from labelsieve.text import guarded, printable

Array = np.ndarray[Any, Any]
COLUMNS = ("index", "id", "given_label", "suggested_label", "label_quality", "is_label_issue", "why")
LARGEST_MATRIX = 1000  # classes
SHOWN, BEYOND = 2000, 200  # issues in the gallery at most, and samples after them


def rows(findings: Findings, order: Iterable[int]) -> Iterable[dict[str, Any]]:
    """A sample a row, as the columns are named."""
    for index in order:
        yield {
            "index": int(index),
            "id": findings.ids[index],
            "given_label": findings.classes[findings.labels[index]],
            "suggested_label": findings.classes[findings.suggested[index]],
            "label_quality": round(float(findings.quality[index]), 6),
            "is_label_issue": bool(findings.issues[index]),
            "why": findings.why[index],
        }


def csv_bytes(columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> bytes:
    """A .csv file whose texts no spreadsheet runs."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(line[column]) for column in columns] for line in lines)
    return text.getvalue().encode("utf-8", "surrogateescape")


def cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return guarded(value) if isinstance(value, str) else value


def labels_csv(findings: Findings, texts: Sequence[str] | None = None) -> bytes:
    """Every sample, the most suspicious first; with its text, if the samples are `texts`."""
    every = rows(findings, findings.order.tolist())
    if texts is None:
        return csv_bytes(COLUMNS, every)
    return csv_bytes((*COLUMNS, "text"), ({**row, "text": texts[row["index"]]} for row in every))


def labels_parquet(findings: Findings, texts: Sequence[str] | None = None) -> bytes | None:
    """The same as Parquet, where pyarrow is there."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        return None
    order = findings.order
    names = np.array([printable(name) for name in findings.classes], dtype=object)
    columns = {
        "index": order.astype(np.int64),
        "id": [printable(findings.ids[i]) for i in order.tolist()],
        "given_label": names[findings.labels[order]].tolist(),
        "suggested_label": names[findings.suggested[order]].tolist(),
        "label_quality": findings.quality[order],
        "is_label_issue": findings.issues[order],
        "why": [printable(findings.why[i]) for i in order.tolist()],
    }
    if texts is not None:
        columns["text"] = [texts[i] for i in order.tolist()]
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(columns), sink)
    return bytes(sink.getvalue())


def summary(findings: Findings, penalty: Array | None, made: Mapping[str, Any]) -> dict[str, Any]:
    """The whole in numbers and a sentence."""
    count = len(findings.classes)
    sizes = np.bincount(findings.labels, minlength=count).tolist()
    issues = np.bincount(findings.labels[findings.issues], minlength=count).tolist()
    small = count <= LARGEST_MATRIX
    return {
        "samples": len(findings),
        "issues": int(findings.issues.sum()),
        "decided": 0 if findings.decided is None else int(findings.decided.sum()),
        "classes": list(findings.classes),
        "noise_rate": as_dict(findings.noise.rate),
        "per_class": [
            {"class": name, "samples": n, **as_dict(share), "issues": m}
            for name, n, share, m in zip(findings.classes, sizes, findings.noise.per_class, issues, strict=True)
        ],
        "noise_matrix": findings.noise.matrix.round(6).tolist() if small else None,
        "penalty": penalty.astype(float).round(6).tolist() if penalty is not None and small else None,
        "verdict": findings.verdict,
        "basis": findings.basis,
        "made": dict(made),
    }


def as_dict(interval: Interval) -> dict[str, float]:
    return {name: round(value, 6) for name, value in interval._asdict().items()}


def shown(findings: Findings) -> list[int]:
    """The samples of the gallery: all issues up to 2,000; if there are no more, the next 200 after them.

    What a person decided on is not shown again.
    """
    issues = int(findings.issues.sum())
    count = SHOWN if issues > SHOWN else issues + BEYOND
    order = findings.order if findings.decided is None else findings.order[~findings.decided[findings.order]]
    return [int(index) for index in order[:count]]


def json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def gallery(findings: Findings, views: Mapping[int, Mapping[str, Any]]) -> bytes:
    """A line per shown sample: its row, and how it is shown."""
    every = [{**row, **views.get(row["index"], {})} for row in rows(findings, shown(findings))]
    return "".join(json.dumps(row) + "\n" for row in every).encode()


SIDE = 96  # pixels, the longer side


def fitted(height: int, width: int) -> tuple[int, int]:
    """The size that an image is shown in: at most 96 pixels, aspect kept; a smaller one as it is."""
    scale = min(1.0, SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def thumbnail(pixels: Array) -> bytes:
    """(height, width, channels) uint8 as WebP; a small image is enlarged by a whole factor, pixel by pixel."""
    pixels = pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, axis=2)
    height, width = fitted(*pixels.shape[:2])
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    factor = SIDE // max(height, width)
    if factor > 1:
        image = image.resize((width * factor, height * factor), Image.Resampling.NEAREST)
    content = io.BytesIO()
    image.save(content, "WEBP", quality=85, lossless=factor > 1)
    return content.getvalue()


CONTROL = "label"  # the name of the choices in Label Studio's set-up
KINDS = ("image", "text", "row")  # what a sample can be shown as
PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
LOCAL_FILES = "/data/local-files/?d="  # how Label Studio names files below its document root


def cleanlab(findings: Findings, views: Mapping[int, Mapping[str, Any]]) -> bytes:
    """A table in the order of the data with the columns of cleanlab's label issues, both its names of the score."""
    columns = ("is_label_issue", "label_quality", "label_score", "given_label", "predicted_label")
    lines = [
        {**row, "label_score": row["label_quality"], "predicted_label": row["suggested_label"]}
        for row in rows(findings, range(len(findings)))
    ]
    return csv_bytes(columns, lines)


def label_studio(findings: Findings, views: Mapping[int, Mapping[str, Any]]) -> bytes:
    """Tasks for Label Studio, the most suspicious first: the suggestion is the pre-annotation.

    They go with <Choices name="label" toName="image"> (or text, row) in the project's set-up, and are made of the
    issues that are in the gallery.
    """
    wanted = [int(index) for index in findings.order if findings.issues[index] and (not views or int(index) in views)]
    return json_bytes([task(row, views.get(row["index"], {})) for row in rows(findings, wanted)])


def task(row: Mapping[str, Any], view: Mapping[str, Any]) -> dict[str, Any]:
    kind = next((name for name in KINDS if name in view), "text")
    content = view.get(kind, row["id"])
    if kind == "image":
        file = row["id"] if row["id"].lower().endswith(PICTURES) else content  # else the thumbnail
        content = LOCAL_FILES + quote(file, errors="surrogateescape")
    facts = ("index", "id", "given_label", "label_quality", "why")
    choice = {"from_name": CONTROL, "to_name": kind, "type": "choices", "value": {"choices": [row["suggested_label"]]}}
    prediction = {"model_version": "labelsieve", "score": round(1 - row["label_quality"], 6), "result": [choice]}
    return {"data": {**{name: row[name] for name in facts}, kind: content}, "predictions": [prediction]}


def fiftyone(findings: Findings, views: Mapping[int, Mapping[str, Any]]) -> bytes:
    """The labels.json of a FiftyOneImageClassificationDataset: the given label of each image, and what was found.

    Images are named by their paths without the ending, as that format wants it.
    """
    found = ("index", "suggested_label", "label_quality", "is_label_issue", "why")
    labels = {
        str(PurePosixPath(row["id"]).with_suffix("")) if row["id"].lower().endswith(PICTURES) else row["id"]: {
            "label": int(findings.labels[row["index"]]),
            "attributes": {name: row[name] for name in found},
        }
        for row in rows(findings, range(len(findings)))
    }
    return json_bytes({"classes": list(findings.classes), "labels": labels})


def corrected(findings: Findings, views: Mapping[int, Mapping[str, Any]]) -> bytes:
    """A label file for `labelsieve train --labels`: every issue has the suggested label; what was decided stays so."""
    known = findings.decided
    named = any(name != str(index) for index, name in enumerate(findings.ids))
    columns = ["index", *(["name"] if named else []), "label", *(["decided"] if known is not None else [])]
    lines = [
        {
            "index": index,
            "name": findings.ids[index],
            "label": findings.classes[label],
            "decided": known is not None and bool(known[index]),
        }
        for index, label in enumerate(findings.corrected.tolist())
    ]
    return csv_bytes(columns, lines)


EXPORTS: dict[str, tuple[str, Callable[[Findings, Mapping[int, Mapping[str, Any]]], bytes]]] = {
    "cleanlab": ("cleanlab.csv", cleanlab),
    "label-studio": ("label-studio.json", label_studio),
    "fiftyone": ("labels.json", fiftyone),
    "corrected": ("corrected.csv", corrected),
}
