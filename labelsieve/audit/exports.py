"""An audit in the formats of other tools."""

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from labelsieve.audit.findings import Findings
from labelsieve.audit.tables import csv_bytes, json_bytes, rows

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
