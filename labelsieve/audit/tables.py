"""An audit as files: a table for people, one for programs, a summary, and the lines of a gallery."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from labelsieve.audit.estimate import Interval
from labelsieve.audit.findings import Findings
from labelsieve.cells import guarded, printable

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
