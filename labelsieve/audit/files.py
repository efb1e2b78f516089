"""Files of an audit: labels.csv, labels.parquet, summary.json, gallery.jsonl with thumbnails, map.json, seal, exports.

`write_audit` writes them all and prints a summary. The exports are files for cleanlab, Label Studio and FiftyOne, and a
label file with corrected labels.
"""

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from labelsieve.audit.estimate import Interval
from labelsieve.audit.findings import Findings, span
from labelsieve.audit.guesses import Array
from labelsieve.audit.map import sample_map
from labelsieve.audit.others import NONE, OtherIssues
from labelsieve.files import SUMS, disk_error, refuse_links, refuse_others, write_atomically, write_seal
from labelsieve.text import csv_file, escape_cell, format_quality, label_file, percent, printable

Views = Mapping[int, Mapping[str, Any]]  # by position: the contents of a sample, under one of VIEW_KINDS
Render = Callable[[Sequence[int], Path], Views]  # renders samples; thumbnails go into the folder

COLUMNS = ("index", "id", "given_label", "suggested_label", "label_quality", "is_label_issue", "why")
OTHER_COLUMNS = (  # if the samples have features
    *("is_near_duplicate_issue", "near_duplicate_score", "near_duplicate_sets"),
    *("is_outlier_issue", "outlier_score"),
)
MAX_MATRIX_CLASSES = 1000  # the summary of more classes has no matrices
GALLERY_ISSUES = 2000  # at most
GALLERY_OTHERS = 200  # samples after the issues
GALLERY_KIND = 200  # near-duplicates, and outliers
THUMBNAIL_SIDE = 256  # pixels of the longer side
THUMBNAIL_BYTES = 16_000  # at most, so that a page with 200 of them is small
THUMBNAIL_QUALITIES = (80, 60, 40)  # of WebP, tried in turn
MAX_CONFUSIONS = 100  # pairs of classes in the summary
PRINTED_CLASSES = 30
PRINTED_SAMPLES = 10
PRINTED_PAIRS = 5
PRINTED_TEXT = 100  # characters
VIEW_KINDS = ("image", "text", "row")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
LABEL_STUDIO_FILES = "/data/local-files/?d="  # prefix of files below Label Studio's document root


def write_audit(
    findings: Findings,
    out: Path,
    made: Mapping[str, Any],
    *,
    penalty: Array | None = None,
    render: Render | None = None,
    texts: Sequence[str] | None = None,
    features: Array | None = None,
    export: Sequence[str] = (),
) -> None:
    """Write all files of an audit, the summary and the seal last, and print the result.

    `made` holds facts about the audit for summary.json, `penalty` (K, K) the penalty labels of the run, `texts` (n) the
    samples themselves if they are texts, `features` (n, F) those that map.json is drawn from, `export` the names of
    additional formats (keys of EXPORTS).
    """
    exports = [EXPORTS[name][0] for name in export]
    written = [(*COLUMNS, *besides, *text) for besides in ((), OTHER_COLUMNS) for text in ((), ("text",))]
    refuse_links(out)
    refuse_others(out / "labels.csv", *map(",".join, written))
    if not (out / "labels.csv").exists():  # no audit is here: it would have written this file first
        for name in ("labels.parquet", "gallery.jsonl", "map.json", "summary.json", *exports):
            refuse_others(out / name)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for mark in (SUMS, "summary.json"):  # without them, the files of an interrupted audit do not count
            (out / mark).unlink(missing_ok=True)
        for old in (out / "thumbs").glob("[0-9]*.webp"):
            old.unlink()
        shown = gallery_kinds(findings)
        pictured = dict.fromkeys([*shown, *(int(findings.twins[k]) for k in shown if findings.twins[k] != NONE)])
        views = render(list(pictured), out / "thumbs") if render else {}
    except OSError as error:
        raise disk_error(out, error) from error
    write_atomically(out / "labels.csv", labels_csv(findings, texts))
    table = labels_parquet(findings, texts)
    if table is not None:
        write_atomically(out / "labels.parquet", table)
    else:
        (out / "labels.parquet").unlink(missing_ok=True)
    write_atomically(out / "gallery.jsonl", gallery_jsonl(findings, shown, views))
    if features is not None:
        write_atomically(out / "map.json", json.dumps(sample_map(findings, features)).encode())
    else:
        (out / "map.json").unlink(missing_ok=True)
    for name in export:
        file, content = EXPORTS[name]
        write_atomically(out / file, content(findings, views))
    facts = summary(findings, penalty, made)
    write_atomically(out / "summary.json", _json_bytes(facts))
    images = (view["image"] for view in views.values() if "image" in view)
    places = [] if features is None else ["map.json"]
    write_seal(out / SUMS, ["labels.csv", "gallery.jsonl", "summary.json", *places, *images])
    print(terminal_summary(findings, facts, texts))
    print(f"\n{len(findings):,} samples in {out}: {', '.join(['labels.csv', *exports])}")


def labels_csv(findings: Findings, texts: Sequence[str] | None = None) -> bytes:
    """Return a .csv table of all samples, the most suspicious first, with a column for their texts (n) if given."""
    rows = _sample_rows(findings, findings.order.tolist())
    columns = (*COLUMNS, *_other_columns(findings))
    if texts is None:
        return _csv_bytes(columns, rows)
    return _csv_bytes((*columns, "text"), ({**row, "text": texts[row["index"]]} for row in rows))


def labels_parquet(findings: Findings, texts: Sequence[str] | None = None) -> bytes | None:
    """Return the table of all samples as Parquet; None without pyarrow."""
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
    if others := findings.others:
        sets = [list(others.near_duplicate_sets[i]) for i in order.tolist()]
        columns |= {
            "is_near_duplicate_issue": others.near_duplicates[order],
            "near_duplicate_score": others.near_duplicate_score[order],
            "near_duplicate_sets": arrow.array(sets, type=arrow.list_(arrow.int64())),
            "is_outlier_issue": others.outliers[order],
            "outlier_score": others.outlier_score[order],
        }
    if texts is not None:
        columns["text"] = [texts[i] for i in order.tolist()]
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(columns), sink)
    return bytes(sink.getvalue())


def summary(findings: Findings, penalty: Array | None, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of summary.json."""
    count = len(findings.classes)
    sizes = np.bincount(findings.labels, minlength=count).tolist()
    issues = np.bincount(findings.labels[findings.issues], minlength=count).tolist()
    small = count <= MAX_MATRIX_CLASSES
    return {
        "samples": len(findings),
        "issues": int(findings.issues.sum()),
        "decided": 0 if findings.decided is None else int(findings.decided.sum()),
        "other_issues": findings.others and _other_counts(findings, findings.others),
        "classes": list(findings.classes),
        "noise_rate": _interval_row(findings.noise.rate),
        "sample_dependent": round(findings.noise.sample_dependent, 6),
        "per_class": [
            {"class": name, "samples": n, **_interval_row(share), "issues": m}
            for name, n, share, m in zip(findings.classes, sizes, findings.noise.per_class, issues, strict=True)
        ],
        "noise_matrix": findings.noise.matrix.round(6).tolist() if small else None,
        "penalty": penalty.astype(float).round(6).tolist() if penalty is not None and small else None,
        "confusions": _confusions(findings),
        "verdict": findings.verdict,
        "basis": findings.basis,
        "held_out_error": findings.held_out_error,
        "made": dict(made),
    }


def _confusions(findings: Findings) -> list[dict[str, Any]]:
    """Return the numbers of suspects by given and suggested label, the most common pairs first."""
    classes = np.stack([findings.labels, findings.suggested], 1)[findings.issues]  # (issues, 2)
    pairs, counts = np.unique(classes, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MAX_CONFUSIONS]
    return [
        {"given": findings.classes[given], "suggested": findings.classes[suggested], "suspects": count}
        for (given, suggested), count in zip(pairs[order].tolist(), counts[order].tolist(), strict=True)
    ]


def _other_counts(findings: Findings, others: OtherIssues) -> dict[str, int]:
    """Return the numbers of near-duplicates, of those with another label, and of outliers."""
    return {
        "near_duplicate": int(others.near_duplicates.sum()),
        "near_duplicate_other_label": int(findings.conflicting.sum()),
        "outlier": int(others.outliers.sum()),
    }


def gallery_kinds(findings: Findings) -> dict[int, list[str]]:
    """Return the positions of the samples in the gallery, and the kinds of issues for which each of them is listed.

    The kind "label" comes first, the most suspicious first: the issues and the next 200 samples or, if there are more
    than 2,000 issues, the first 2,000 of them. At most 200 samples of each other kind follow: near-duplicates, with
    another label first, and outliers. Samples that a person decided on are left out.
    """
    issues = int(findings.issues.sum())
    count = GALLERY_ISSUES if issues > GALLERY_ISSUES else issues + GALLERY_OTHERS
    left = np.ones(len(findings), bool) if findings.decided is None else ~findings.decided
    kinds = {int(index): ["label"] for index in findings.order[left[findings.order]][:count]}
    if others := findings.others:
        by_severity = np.lexsort([others.near_duplicate_score, ~findings.conflicting])
        duplicates = by_severity[(others.near_duplicates & left)[by_severity]][:GALLERY_KIND]
        by_distance = np.argsort(others.outlier_score, kind="stable")
        outliers = by_distance[(others.outliers & left)[by_distance]][:GALLERY_KIND]
        for kind, found in (("near_duplicate", duplicates), ("outlier", outliers)):
            for index in found.tolist():
                kinds.setdefault(index, []).append(kind)
    return kinds


def gallery_jsonl(findings: Findings, kinds: Mapping[int, Sequence[str]], views: Views) -> bytes:
    """Return the samples of the gallery as lines of JSON, with their contents and their twins."""
    lines = []
    for row in _sample_rows(findings, kinds):
        if findings.others:
            row["listed"] = list(kinds[row["index"]])
        if (twin := int(findings.twins[row["index"]])) != NONE:
            label = findings.classes[findings.labels[twin]]
            row["twin"] = {"index": twin, "id": findings.ids[twin], "given_label": label, **views.get(twin, {})}
        lines.append(json.dumps({**row, **views.get(row["index"], {})}) + "\n")
    return "".join(lines).encode()


def terminal_summary(findings: Findings, facts: Mapping[str, Any], texts: Sequence[str] | None = None) -> str:
    """Return verdict, noise per class and the most suspicious samples, as text; `facts`: contents of summary.json."""
    width = min(30, max(len(printable(name)) for name in (*findings.classes, "label")))
    lines = [printable(findings.verdict), "", f"{'label':{width}}  samples      wrong  range                suspects"]
    shares = sorted(zip(facts["per_class"], findings.noise.per_class, strict=True), key=lambda row: -row[1].estimate)
    for row, share in shares[:PRINTED_CLASSES]:
        name, wrong = printable(row["class"])[:width], percent(share.estimate)
        lines.append(f"{name:{width}}  {row['samples']:7,}  {wrong:>9}  {span(share):19}  {row['issues']:8,}")
    lines += ["", "range: contains the true share in about nine of ten data sets"]
    lines += [printable(findings.basis)] if findings.basis else []
    if facts["decided"]:
        lines += [f"{facts['decided']:,} labels were decided on by a person and count as correct"]
    lines += _pairs_with_different_labels(findings)
    order = findings.order if findings.decided is None else findings.order[~findings.decided[findings.order]]
    lines += ["", "most suspicious samples, with the probability that the label is correct:"] if len(order) else []
    for number, row in enumerate(_sample_rows(findings, order[:PRINTED_SAMPLES].tolist()), 1):
        lines.append(printable(f"{number:2}.  {format_quality(row['label_quality']):8}  {row['id']}  {row['why']}"))
        if texts is not None:
            text = printable(" ".join(texts[row["index"]].split()))
            lines.append(f"     {text if len(text) <= PRINTED_TEXT else text[: PRINTED_TEXT - 1] + '…'}")
    return "\n".join(lines)


def _pairs_with_different_labels(findings: Findings) -> list[str]:
    """Return lines that name the first near-duplicates with different labels, after an empty line; none without any."""
    found = [(k, int(findings.twins[k])) for k in np.flatnonzero(findings.conflicting).tolist()]
    pairs = {(min(pair), max(pair)) for pair in found}
    if not pairs:
        return []
    given = [findings.classes[label] for label in findings.labels.tolist()]
    named = [[printable(f"{findings.ids[k]} ({given[k]})") for k in pair] for pair in sorted(pairs)[:PRINTED_PAIRS]]
    shown = ["  ".join(pair) for pair in named]
    more = [f"and {len(pairs) - PRINTED_PAIRS:,} more"] if len(pairs) > PRINTED_PAIRS else []
    return ["", "near-duplicates with different labels:", *shown, *more]


def thumbnail(pixels: Array) -> bytes:
    """Return an image (height, width, channels) in uint8 as WebP of at most 16,000 bytes.

    A large image is scaled down to 256 pixels; a small one is enlarged by an integer factor without interpolation.
    """
    pixels = pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, axis=2)
    height, width = thumbnail_size(*pixels.shape[:2])
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    factor = THUMBNAIL_SIDE // max(height, width)
    if factor > 1:
        enlarged = image.resize((width * factor, height * factor), Image.Resampling.NEAREST)
        if len(content := _webp(enlarged, 80, lossless=True)) <= THUMBNAIL_BYTES:
            return content
    return _small_webp(image)


def _small_webp(image: Image.Image) -> bytes:
    """Return an image as WebP of at most 16,000 bytes, with lower quality and then smaller if necessary."""
    for quality in THUMBNAIL_QUALITIES:
        if len(content := _webp(image, quality)) <= THUMBNAIL_BYTES:
            return content
    return _small_webp(image.reduce(2))


def _webp(image: Image.Image, quality: int, lossless: bool = False) -> bytes:
    content = io.BytesIO()
    image.save(content, "WEBP", quality=quality, lossless=lossless)
    return content.getvalue()


def thumbnail_size(height: int, width: int) -> tuple[int, int]:
    """Return the size of an image scaled down to at most 256 pixels, with its aspect ratio."""
    scale = min(1.0, THUMBNAIL_SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _cleanlab(findings: Findings, views: Views) -> bytes:
    """Return a .csv table in the order of the data with the columns of cleanlab's label issues and other issues.

    The score has both of cleanlab's names, label_quality and label_score.
    """
    of_labels = ("is_label_issue", "label_quality", "label_score", "given_label", "predicted_label")
    columns = (*of_labels, *_other_columns(findings))
    rows = _sample_rows(findings, range(len(findings)))
    renamed = ({**row, "label_score": row["label_quality"], "predicted_label": row["suggested_label"]} for row in rows)
    return _csv_bytes(columns, renamed)


def _label_studio(findings: Findings, views: Views) -> bytes:
    """Return tasks for Label Studio, the most suspicious first, with the suggestions as pre-annotations.

    The labelling configuration needs <Choices name="label" toName="image"> (or "text", "row"). There is a task for
    every issue in the gallery.
    """
    wanted = [int(index) for index in findings.order if findings.issues[index] and (not views or int(index) in views)]
    return _json_bytes([_label_studio_task(row, views.get(row["index"], {})) for row in _sample_rows(findings, wanted)])


def _label_studio_task(row: Mapping[str, Any], view: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Label Studio task of one sample."""
    kind = next((name for name in VIEW_KINDS if name in view), "text")
    content = view.get(kind, row["id"])
    if kind == "image":
        file = row["id"] if row["id"].lower().endswith(IMAGE_SUFFIXES) else content  # else the thumbnail
        content = LABEL_STUDIO_FILES + quote(file, errors="surrogateescape")
    names = ("index", "id", "given_label", "label_quality", "why", *OTHER_COLUMNS)
    facts = {name: row[name] for name in names if name in row}
    value = {"choices": [row["suggested_label"]]}
    choice = {"from_name": "label", "to_name": kind, "type": "choices", "value": value}
    prediction = {"model_version": "labelsieve", "score": round(1 - row["label_quality"], 6), "result": [choice]}
    return {"data": {**facts, kind: content}, "predictions": [prediction]}


def _fiftyone(findings: Findings, views: Views) -> bytes:
    """Return labels.json of a FiftyOneImageClassificationDataset with the given labels and the findings as attributes.

    Images are named by their paths without suffix, as the format requires.
    """
    names = ("index", "suggested_label", "label_quality", "is_label_issue", "why", *_other_columns(findings))
    labels = {
        str(PurePosixPath(row["id"]).with_suffix("")) if row["id"].lower().endswith(IMAGE_SUFFIXES) else row["id"]: {
            "label": int(findings.labels[row["index"]]),
            "attributes": {name: row[name] for name in names},
        }
        for row in _sample_rows(findings, range(len(findings)))
    }
    return _json_bytes({"classes": list(findings.classes), "labels": labels})


def _corrected(findings: Findings, views: Views) -> bytes:
    """Return a label file for `labelsieve train --labels` with the suggested label for every issue."""
    decided = findings.decided
    before = None
    if decided is not None and findings.before is not None:
        before = _names(findings, np.where(decided, findings.before, findings.corrected))
    flags = None if decided is None else decided.tolist()
    return label_file(_names(findings, findings.corrected), findings.ids, flags, before)


def _names(findings: Findings, labels: Array) -> list[str]:
    """Return the class names of labels (n)."""
    return [findings.classes[label] for label in labels.tolist()]


EXPORTS: dict[str, tuple[str, Callable[[Findings, Views], bytes]]] = {
    "cleanlab": ("cleanlab.csv", _cleanlab),
    "label-studio": ("label-studio.json", _label_studio),
    "fiftyone": ("labels.json", _fiftyone),
    "corrected": ("corrected.csv", _corrected),
}


def _other_columns(findings: Findings) -> tuple[str, ...]:
    """Return the columns on issues besides wrong labels."""
    return OTHER_COLUMNS if findings.others else ()


def _sample_rows(findings: Findings, indices: Iterable[int]) -> Iterable[dict[str, Any]]:
    """Yield a row with the values of COLUMNS for each sample, and of OTHER_COLUMNS if it has features."""
    for index in indices:
        row = {
            "index": int(index),
            "id": findings.ids[index],
            "given_label": findings.classes[findings.labels[index]],
            "suggested_label": findings.classes[findings.suggested[index]],
            "label_quality": round(float(findings.quality[index]), 6),
            "is_label_issue": bool(findings.issues[index]),
            "why": findings.why[index],
        }
        if others := findings.others:
            row |= {
                "is_near_duplicate_issue": bool(others.near_duplicates[index]),
                "near_duplicate_score": round(float(others.near_duplicate_score[index]), 6),
                "near_duplicate_sets": list(others.near_duplicate_sets[index]),
                "is_outlier_issue": bool(others.outliers[index]),
                "outlier_score": round(float(others.outlier_score[index]), 6),
            }
        yield row


def _csv_bytes(columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a .csv file whose cells no spreadsheet interprets as formulas."""
    return csv_file(chain([columns], ([_csv_cell(line[column]) for column in columns] for line in lines)))


def _csv_cell(value: Any) -> Any:
    """Return a value as it is written to a .csv file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return json.dumps(value)
    return escape_cell(value) if isinstance(value, str) else value


def _json_bytes(value: Any) -> bytes:
    """Return a value as an indented JSON file."""
    return (json.dumps(value, indent=1) + "\n").encode()


def _interval_row(interval: Interval) -> dict[str, float]:
    """Return an interval as a rounded dictionary."""
    return {name: round(value, 6) for name, value in interval._asdict().items()}
