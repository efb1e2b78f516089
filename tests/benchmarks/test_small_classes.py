"""Benchmark of small classes: cells by their definition, and the table from the record."""

from pathlib import Path

import numpy as np

from benchmarks.record import read_rows
from benchmarks.small_classes import LARGE, RESULTS, SMALL, cells, table

DECISION = Path(__file__).parents[2] / "docs" / "decisions" / "036-linear-heads-in-two-rounds.md"


def test_table_is_that_of_the_record():
    shown = DECISION.read_text(encoding="utf-8").split("<!-- small classes: table -->\n")[1]
    assert shown.split("\n<!-- small classes: end -->")[0] == table(read_rows(RESULTS))


def test_cells_have_small_classes_and_as_many_wrong_labels_as_they_say():
    true = np.repeat(np.arange(10), 200)
    for cell in cells(true, 10):
        sizes = np.bincount(true[cell.index], minlength=10)
        wrong = cell.given != true[cell.index]
        if cell.name == "60% of a class wrong":
            crowded = cell.given[wrong][0]
            assert (cell.given[wrong] == crowded).all() and wrong[cell.given == crowded].mean().round(2) == 0.6
            continue
        size = int(cell.name.split()[0])
        assert all(sizes[k] == (size if k in SMALL else LARGE) for k in range(10))
        assert 0.08 < wrong.mean() < 0.22 if "wrong" in cell.name else not wrong.any()
