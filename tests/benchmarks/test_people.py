"""Benchmark of labels given by people: noise and figures by hand, and tables from the record."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.people import (
    RESULTS,
    REVIEWED,
    annotated,
    calibration,
    details,
    drawn,
    hoc,
    instance_dependent,
    moved,
    pooled_calibration,
    reviewed_table,
    summary,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
ROWS = [json.loads(line) for line in RESULTS.read_text().splitlines()]


@pytest.fixture(scope="module")
def clusters():
    """Return features (n, F) and classes of clusters that hardly overlap."""
    draw = np.random.default_rng(0)
    true = np.arange(1200) % 4
    return (draw.normal(size=(4, 20))[true] * 4 + draw.normal(size=(1200, 20))).astype(np.float32), true


@pytest.mark.parametrize(("name", "table"), [("summary", summary), ("details", details)])
def test_tables_are_those_of_the_record(name, table):
    shown = PAGE.split(f"<!-- people: {name} -->\n")[1].split("\n<!-- people: end -->")[0]
    assert shown == table(ROWS)


def test_table_of_partial_reviews_is_that_of_the_record():
    page = (ROOT / "docs" / "decisions" / "042-partly-reviewed-labels.md").read_text(encoding="utf-8")
    shown = page.split("<!-- people: reviewed -->\n")[1].split("\n<!-- people: end -->")[0]
    assert shown == reviewed_table(json.loads(REVIEWED.read_text())["cells"])


def test_sentences_on_ranges_and_calibration_are_true():
    text = " ".join(PAGE.split())
    for role in ("validation", "confirmation"):
        part = [row for row in ROWS if row["role"] == role]
        ranges = [(row["labelsieve"]["estimate"], row["wrong"]) for row in part]
        inside = sum(low <= wrong <= high for (_, low, high), wrong in ranges)
        assert f"in {inside} of {len(part)} {role} cells" in text
    error, stated, right = pooled_calibration(part)
    assert f"have a mean of {100 * stated:.1f}%, and {100 * right:.1f}% of them are right" in text
    assert f"the calibration error is {error:.3f}" in text


@pytest.mark.parametrize("kind", ["pair", "mixed", "symmetric", "instance", "annotator"])
def test_rate_of_noise_is_that_requested(clusters, kind):
    features, true = clusters
    given = moved(true, kind, 0.2, features, 1)
    assert (given != true).mean() == pytest.approx(0.2, abs=0.04) and given.min() >= 0 and given.max() < 4


def test_directions_of_noise(clusters):
    features, true = clusters
    given = moved(true, "pair", 0.4, features, 0)
    assert set(((given - true) % 4).tolist()) == {0, 1}
    given = moved(true, "one-way", 0.4, features, 0)
    assert ((given != true) <= (true % 2 == 0)).all() and (given != true).any()
    assert (moved(true, "none", 0.0, features, 0) == true).all()


def test_errors_depend_on_the_sample():
    """An annotator errs near the boundary of two classes; instance-dependent rates do not depend on it."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(4000, 32)).astype(np.float32)
    score = features.sum(1)
    true = (score > 0).astype(int)
    near = np.abs(score) < np.median(np.abs(score))
    wrong = annotated(true, features, 2, 0.2, np.random.default_rng(1)) != true
    assert wrong[near].mean() > 1.5 * wrong[~near].mean()
    wrong = instance_dependent(true, features, 2, 0.2, np.random.default_rng(1)) != true
    assert wrong[near].mean() == pytest.approx(wrong[~near].mean(), abs=0.05)


def test_calibration_by_hand():
    found = calibration(np.array([0.05, 0.05, 0.95, 0.95]), np.array([True, False, True, True]))
    assert found["calibration_error"] == pytest.approx((2 * 0.45 + 2 * 0.05) / 4)
    assert found["low"] == [2, pytest.approx(0.05), 0.5]


def test_drawn_classes_follow_the_shares():
    found = drawn(np.tile([0.2, 0.5, 0.3], (20_000, 1)), np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(found) / len(found), [0.2, 0.5, 0.3], atol=0.02)


def test_neighbours_show_the_noise_rate_of_clusters(clusters):
    features, true = clusters
    for rate in (0.0, 0.3):
        given = moved(true, "symmetric", rate, features, 0)
        assert hoc(features, given, 4) == pytest.approx((given != true).mean(), abs=0.05)


def test_readme_quotes_the_record():
    found = {row["cell"]: row for row in ROWS if row["cell"] in ("worst efficientnet_b1", "aggregate efficientnet_b1")}
    worst, aggregate = (found[f"{name} efficientnet_b1"] for name in ("worst", "aggregate"))

    def both(read, digits):
        return " and ".join(f"{read(row):.{digits}f}" for row in (worst, aggregate))

    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    wrong, ours = (
        both(read, 1) for read in (lambda r: 100 * r["wrong"], lambda r: 100 * r["labelsieve"]["estimate"][0])
    )
    decision = both(lambda row: row["labelsieve"]["f1"], 2)
    assert f"estimates {ours}% where {wrong}% are wrong, with an F1 of {decision}" in readme
    peer = both(lambda row: 100 * row["cleanlab"]["estimate"], 1), both(lambda row: row["cleanlab"]["f1"], 2)
    assert f"(cleanlab: {peer[0]}%, {peer[1]};" in readme
