"""Files of an audit: hostile names, exports, thumbnails, and the figures in docs/audit.md."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelsieve.audit.files import COLUMNS, EXPORTS, labels_csv, labels_parquet, summary, terminal_summary, thumbnail
from labelsieve.audit.findings import findings_from_guesses
from labelsieve.audit.guesses import guesses_from_probs
from labelsieve.data.labels import read_label_file
from labelsieve.noise import pair
from labelsieve.text import unescape_cell
from tests.audit.simulated import true_class_predictions

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
    assert "\x1b" not in terminal_summary(findings, summary(findings, None, {}))


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


def test_thumbnails_keep_the_aspect_ratio():
    def size(*shape):
        return Image.open(io.BytesIO(thumbnail(np.zeros(shape, np.uint8)))).size

    assert size(28, 28, 1) == (84, 84) and size(400, 100, 3) == (24, 96) and size(60, 50, 3) == (50, 60)
    random = np.random.default_rng(0).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    shown = np.asarray(Image.open(io.BytesIO(thumbnail(random))).convert("RGB"))
    assert np.array_equal(shown, random.repeat(12, 0).repeat(12, 1))


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
