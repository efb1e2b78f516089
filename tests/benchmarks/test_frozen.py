"""Benchmark of heads on frozen features: shares by hand, and the tables of the documentation."""

import json
from pathlib import Path

import numpy as np

from benchmarks import finetune
from benchmarks.frozen import RECORD, found, tables

ROOT = Path(__file__).parents[2]


def test_shares_of_doubted_and_wrong_labels():
    wrong = np.array([True, True, False, False, False])
    doubted = np.array([True, False, True, True, False])
    assert found(wrong, doubted, np.array([3, 1, 0, 2, 4])) == {
        "doubted": 0.6,
        "precision": 0.3333,
        "recall": 0.5,
        "first": 0.5,  # 1 of 3 and 1
    }
    assert found(np.zeros(5, bool), doubted, np.arange(5)) == {"doubted": 0.6, "precision": 0, "recall": 0}


def test_tables_of_the_documentation_match_the_record():
    text = (ROOT / "docs" / "auto.md").read_text(encoding="utf-8")
    assert tables(json.loads(RECORD.read_text())["rows"]) in text


def test_table_of_fine_tuning_is_that_of_the_record():
    rows = [json.loads(line) for line in finetune.RESULTS.read_text().splitlines()]
    page = (ROOT / "docs" / "auto.md").read_text(encoding="utf-8")
    shown = page.split("<!-- finetune: table -->\n")[1].split("\n<!-- finetune: end -->")[0]
    assert shown == finetune.table(rows) and shown.count("\n") == 3
