"""Files of an audit: hostile names, exports, thumbnails, and the figures in docs/audit.md."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelsieve.audit.files import (
    COLUMNS,
    EXPORTS,
    OTHER_COLUMNS,
    gallery_kinds,
    labels_csv,
    labels_parquet,
    summary,
    terminal_summary,
    thumbnail,
    write_audit,
)
from labelsieve.audit.findings import findings_from_guesses
from labelsieve.audit.guesses import guesses_from_probs, with_decided
from labelsieve.auto.files import audit_files
from labelsieve.data.labels import read_label_file
from labelsieve.errors import InputError
from labelsieve.noise import pair
from labelsieve.review.decisions import decisions_path
from labelsieve.text import unescape_cell
from tests.audit.simulated import other_issues, true_class_predictions

ROOT = Path(__file__).parents[2]
HOSTILE = [
    "=cmd|' /C calc'!A0",
    "+1",
    "-2",
    "@x",
    "\tx",
    "'=x",
    "''@y",
    "<script>",
    'a,b\n"c',
    "d\re\r\nf",
    "\x1b[2J",
    "Ω",
    "'plain",
    "",
]


def hostile_findings():
    count = len(HOSTILE)
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.3), count=300, classes=count)
    return findings_from_guesses(
        guesses_from_probs(labels, probs), HOSTILE, [f"{HOSTILE[i % count]}{i}" for i in range(300)]
    )


def test_hostile_names_survive_every_file(tmp_path):
    findings = hostile_findings()
    rows = list(csv.DictReader(io.StringIO(labels_csv(findings).decode(), newline="")))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 300
    for row in rows:
        for name in ("id", "given_label", "suggested_label", "why"):
            assert not row[name].startswith(("=", "+", "-", "@", "\t", "\r"))
        index = int(row["index"])
        assert unescape_cell(row["id"]) == findings.ids[index]
        assert unescape_cell(row["given_label"]) == HOSTILE[findings.labels[index]]
        assert row["is_label_issue"] in ("true", "false") and 0 <= float(row["label_quality"]) <= 1
    assert [float(row["label_quality"]) for row in rows] == sorted(float(row["label_quality"]) for row in rows)
    path = tmp_path / "corrected.csv"
    path.write_bytes(EXPORTS["corrected"][1](findings, {}))
    assert read_label_file(path, HOSTILE, 300, findings.ids).labels.tolist() == findings.corrected.tolist()
    assert path.read_bytes().count(b"\r\n") == path.read_bytes().count(b"e\r\nf")  # lines end in \n
    assert "\x1b" not in terminal_summary(findings, summary(findings, None, {}))


def test_corrected_labels_contain_those_before_the_decisions(tmp_path):
    """Else the next training judges the labels after a review."""
    given, probs, true = true_class_predictions(lambda k: pair(k, 0.3), count=300)
    decided = np.arange(300) < 100
    labels = np.where(decided, true, given)
    first = guesses_from_probs(given, probs)
    second = with_decided(guesses_from_probs(labels, probs), decided)
    findings = findings_from_guesses(first, [f"c{k}" for k in range(10)], second=second)
    path = tmp_path / "corrected.csv"
    path.write_bytes(EXPORTS["corrected"][1](findings, {}))
    found = read_label_file(path, findings.classes, 300, findings.ids)
    assert found.labels.tolist() == findings.corrected.tolist() and found.decided.tolist() == decided.tolist()
    assert found.before.tolist() == np.where(decided, given, findings.corrected).tolist()


def test_parquet_holds_the_same_table():
    parquet = pytest.importorskip("pyarrow.parquet")
    findings = hostile_findings()
    table = parquet.read_table(io.BytesIO(labels_parquet(findings)))
    assert tuple(table.column_names) == COLUMNS
    assert table["index"].to_pylist() == findings.order.tolist()
    assert table["is_label_issue"].to_pylist() == findings.issues[findings.order].tolist()


def test_exports_have_the_expected_format():
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.3), count=300)
    names = [f"class {k}" for k in range(10)]
    findings = findings_from_guesses(
        guesses_from_probs(labels, probs), names, [f"some folder/{i}.png" for i in range(300)]
    )
    views = {index: {"image": f"thumbs/{index}.webp"} for index in range(300)}
    made = {name: make(findings, views) for name, (_, make) in EXPORTS.items()}
    rows = list(csv.DictReader(io.StringIO(made["cleanlab"].decode())))
    assert list(rows[0]) == ["is_label_issue", "label_quality", "label_score", "given_label", "predicted_label"]
    assert [row["given_label"] for row in rows] == [names[k] for k in labels]
    tasks = json.loads(made["label-studio"])
    assert len(tasks) == findings.issues.sum() > 0
    for task in tasks:
        (prediction,) = task["predictions"]
        (result,) = prediction["result"]
        assert result["to_name"] in task["data"] and result["type"] == "choices" and 0 <= prediction["score"] <= 1
        (choice,) = result["value"]["choices"]
        assert choice in names and choice != task["data"]["given_label"]
        assert task["data"]["image"] == f"/data/local-files/?d=some%20folder/{task['data']['index']}.png"
    fiftyone = json.loads(made["fiftyone"])
    assert fiftyone["classes"] == names
    assert [fiftyone["labels"][f"some folder/{i}"]["label"] for i in range(300)] == labels.tolist()


def findings_with_others(decided=()):
    """Return findings about 600 samples: two pairs of near-duplicates, one of them with different labels; outliers."""
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.2), count=600)
    names = [f"class {k}" for k in range(10)]
    assert labels[0] != labels[1]
    same = int(np.flatnonzero(labels == labels[3])[1])
    others = other_issues(600, groups=[(0, 1), (3, same)], outliers=[5])
    guesses = guesses_from_probs(labels, probs)
    if decided:
        guesses = with_decided(guesses, np.isin(np.arange(600), decided))
    return findings_from_guesses(guesses, names, [f"{k}.png" for k in range(600)], others=others)


def test_columns_of_other_issues_are_those_of_datalab():
    parquet = pytest.importorskip("pyarrow.parquet")
    findings = findings_with_others()
    one, other = np.flatnonzero(findings.conflicting).tolist()
    rows = list(csv.DictReader(io.StringIO(labels_csv(findings, ["words"] * 600).decode())))
    assert tuple(rows[0]) == (*COLUMNS, *OTHER_COLUMNS, "text")
    assert OTHER_COLUMNS == (
        "is_near_duplicate_issue", "near_duplicate_score", "near_duplicate_sets", "is_outlier_issue", "outlier_score"
    )  # fmt: skip
    by_index = {int(row["index"]): [row[name] for name in OTHER_COLUMNS] for row in rows}
    assert by_index[one] == ["true", "0.25", f"[{other}]", "false", "0.9375"]
    assert by_index[5] == ["false", "0.875", "[]", "true", "0.625"]
    table = parquet.read_table(io.BytesIO(labels_parquet(findings)))
    assert tuple(table.column_names) == (*COLUMNS, *OTHER_COLUMNS)
    place = table["index"].to_pylist().index(one)
    assert [table[name][place].as_py() for name in OTHER_COLUMNS] == [True, 0.25, [other], False, 0.9375]
    made = {name: make(findings, {}) for name, (_, make) in EXPORTS.items()}
    cleanlab = list(csv.DictReader(io.StringIO(made["cleanlab"].decode())))
    assert [cleanlab[one][name] for name in OTHER_COLUMNS] == by_index[one]
    attributes = json.loads(made["fiftyone"])["labels"]["5"]["attributes"]
    assert [attributes[name] for name in OTHER_COLUMNS] == [False, 0.875, [], True, 0.625]
    assert set(OTHER_COLUMNS) <= json.loads(made["label-studio"])[0]["data"].keys()
    counts = {"near_duplicate": 4, "near_duplicate_other_label": 2, "outlier": 1}
    assert summary(findings, None, {})["other_issues"] == counts
    printed = terminal_summary(findings, summary(findings, None, {}))
    given = [findings.classes[findings.labels[k]] for k in (one, other)]
    assert f"near-duplicates with different labels:\n{one}.png ({given[0]})  {other}.png ({given[1]})\n" in printed


def test_an_interrupted_second_audit_does_not_count(tmp_path, monkeypatch):
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.3), count=300)
    for name, array in {"labels": labels, "other": labels[::-1], "probs": probs}.items():
        np.save(tmp_path / f"{name}.npy", array)
    out = tmp_path / "out"

    def audit(name):
        audit_files(tmp_path / f"{name}.npy", out, pred_probs=tmp_path / "probs.npy")

    audit("labels")
    decisions_path(out).parent.mkdir()
    decisions_path(out).touch()
    for step in ("labels_csv", "gallery_jsonl"):  # before the first file is replaced, and after it
        monkeypatch.setattr(f"labelsieve.audit.files.{step}", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            audit("labels")
        assert not (out / "summary.json").exists() and not (out / "sha256sums").exists()
        monkeypatch.undo()
        with pytest.raises(InputError, match="out/review holds decisions about other labels"):
            audit("other")
    audit("labels")  # its own files are no obstacle
    assert (out / "summary.json").exists()


def test_terminal_lists_no_decided_samples():
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.3), count=40, classes=4)
    decided = np.arange(40) >= 3
    found = findings_from_guesses(with_decided(guesses_from_probs(labels, probs), decided), list("abcd"))
    shown = terminal_summary(found, summary(found, None, {}))
    assert shown.count("\n 3.") == 1 and "\n 4." not in shown and "You decided" not in shown
    found = findings_from_guesses(with_decided(guesses_from_probs(labels, probs), decided | True), list("abcd"))
    assert "most suspicious" not in terminal_summary(found, summary(found, None, {}))


def test_five_pairs_with_different_labels_are_printed():
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.2), count=200)
    different = [(k, k + 1) for k in range(0, 200, 2) if labels[k] != labels[k + 1]][:7]
    guesses, others = guesses_from_probs(labels, probs), other_issues(200, groups=different)
    findings = findings_from_guesses(guesses, [str(k) for k in range(10)], others=others)
    lines = terminal_summary(findings, summary(findings, None, {})).split("\n")
    first = lines.index("near-duplicates with different labels:") + 1
    assert lines[first] == "  ".join(f"{k} ({labels[k]})" for k in different[0])
    assert lines[first + 5 : first + 7] == ["and 2 more", ""]


def test_gallery_lists_every_kind_with_twins(tmp_path, capsys):
    findings = findings_with_others()
    one, other = np.flatnonzero(findings.conflicting).tolist()
    asked = []

    def render(indices, folder):
        asked.extend(indices)
        return {index: {"text": f"text {index}"} for index in indices}

    write_audit(findings, tmp_path / "audit", {}, render=render)
    gallery = tmp_path / "audit" / "gallery.jsonl"
    rows = {row["index"]: row for row in map(json.loads, gallery.read_text().splitlines())}
    assert list(rows) == list(gallery_kinds(findings)) and len(asked) == len(set(asked))
    assert "near_duplicate" in rows[one]["listed"] and "outlier" in rows[5]["listed"]
    expected = {"index": other, "id": f"{other}.png", "given_label": findings.classes[findings.labels[other]]}
    assert rows[one]["twin"] == {**expected, "text": f"text {other}"}
    listed = [k for k, row in rows.items() if "label" in row["listed"]]
    assert listed == findings.order[: findings.issues.sum() + 200].tolist()
    assert "labels.csv" in capsys.readouterr().out
    write_audit(replace(findings, others=None), tmp_path / "audit", {})  # the same folder, without features
    assert not any({"twin", "listed"} & json.loads(line).keys() for line in gallery.read_text().splitlines())
    write_audit(findings, tmp_path / "audit", {})


def test_decided_samples_are_in_no_list_of_the_gallery():
    findings = findings_with_others(decided=(3, 5))
    kinds = gallery_kinds(findings)
    assert not {3, 5} & kinds.keys() and findings.why[5] == "You decided on this label."
    assert kinds[int(findings.twins[3])][-1] == "near_duplicate"


def test_thumbnails_keep_the_aspect_ratio():
    def size(*shape):
        return Image.open(io.BytesIO(thumbnail(np.zeros(shape, np.uint8)))).size

    assert size(28, 28, 1) == (252, 252) and size(400, 100, 3) == (64, 256) and size(160, 150, 3) == (150, 160)
    random = np.random.default_rng(0).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    shown = np.asarray(Image.open(io.BytesIO(thumbnail(random))).convert("RGB"))
    assert np.array_equal(shown, random.repeat(32, 0).repeat(32, 1))


@pytest.mark.parametrize("side", [90, 250, 256, 700])
def test_thumbnails_of_noise_are_small_files(side):
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)  # compresses worst
    assert len(thumbnail(noise)) <= 16_000


SCORES = (
    "posterior and margin of training",
    "confidence in the label, delivered network",
    "Criteria_ALL, mean of training",
)


def documented_rows():
    """Yield the rows of the table in docs/audit.md, from the record: means over the seeds."""
    record = json.loads((ROOT / "benchmarks" / "results" / "audit_scores.json").read_text())
    for noise, rate in dict.fromkeys((row["noise"], row["rate"]) for row in record):
        rows = [row for row in record if (row["noise"], row["rate"]) == (noise, rate)]
        wrong, issues = (f"{100 * np.mean([row[name] for row in rows]):.1f}%" for name in ("wrong", "issues"))
        rates = [row["noise_rate"] for row in rows]
        found, low, high = (100 * np.mean([r[end] for r in rates]) for end in ("estimate", "low", "high"))
        kind = f"{noise} {100 * rate:.0f}%" if noise else "none"
        cells = [kind, wrong, f"{found:.1f}% ({low:.1f} to {high:.1f})", issues]
        if noise:
            cells += [f"{100 * np.mean([row[name] for row in rows]):.0f}%" for name in ("precision", "recall")]
            cells += [f"{np.mean([row['scores'][s]['average_precision'] for row in rows]):.3f}" for s in SCORES]
        yield f"| {' | '.join(cells)} |"


def test_figures_of_the_documentation_match_the_records():
    text = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    lines = list(documented_rows())
    assert len(lines) == 5
    for line in lines:
        assert line in text
    memory = json.loads((ROOT / "benchmarks" / "results" / "audit_memory.json").read_text())
    assert f"{memory['figures']['label_quality, posterior']['peak_mb']} MB" in text
