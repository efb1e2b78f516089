"""Map of the samples: which are shown, and where."""

import json
from dataclasses import replace

import numpy as np

from labelsieve.audit import map as maps
from labelsieve.audit.files import summary, write_audit
from labelsieve.audit.findings import findings_from_guesses
from labelsieve.audit.guesses import guesses_from_probs
from labelsieve.audit.map import map_samples, plane, principal_components, sample_map
from labelsieve.noise import pair
from tests.audit.simulated import true_class_predictions


def found(count):
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.3), count=count)
    return findings_from_guesses(guesses_from_probs(labels, probs), [f"class {k}" for k in range(10)])


def test_principal_components_of_points_on_a_cross():
    rows = np.array([[10.0, 8, 9], [4, 8, 9], [7, 8, 14], [7, 8, 4]])  # centre: 7, 8, 9
    # by hand: most variance along the third column (50), then along the first (18)
    np.testing.assert_allclose(principal_components(rows), [[0, 3], [0, -3], [5, 0], [-5, 0]], atol=1e-6)


def test_principal_components_of_few_samples_or_features():
    rows = np.random.default_rng(0).normal(size=(30, 5)) * [9, 5, 1, 1, 1]
    wide = np.concatenate([rows, np.zeros((30, 60))], 1)  # more features than samples
    np.testing.assert_allclose(principal_components(wide), principal_components(rows), atol=1e-9)
    line = principal_components(np.arange(4.0)[:, None])
    np.testing.assert_allclose(np.abs(line), [[1.5, 0], [0.5, 0], [0.5, 0], [1.5, 0]])
    assert np.isfinite(plane(np.ones((1, 3)))).all() and np.isfinite(plane(np.zeros((4, 3)))).all()


def test_all_suspects_are_shown_up_to_a_limit_and_the_rest_is_spread_evenly(monkeypatch):
    findings = found(6000)
    suspects = set(np.flatnonzero(findings.issues).tolist())
    monkeypatch.setattr(maps, "MAX_SUSPECTS", len(suspects))
    shown = map_samples(findings)
    assert len(shown) == maps.MAX_POINTS == len(set(shown.tolist())) and suspects <= set(shown.tolist())
    rest = np.array(sorted(set(shown.tolist()) - suspects))
    halves = [(rest < 3000).sum(), (rest >= 3000).sum()]
    assert abs(halves[0] - halves[1]) < 0.1 * len(rest)
    monkeypatch.setattr(maps, "MAX_SUSPECTS", 100)
    fewer = map_samples(findings)
    assert set(fewer.tolist()) & suspects == set(findings.order[:100].tolist()) and len(fewer) == maps.MAX_POINTS
    assert len(map_samples(found(300))) == 300


def test_map_has_a_column_for_each_property():
    findings = found(300)
    drawn = sample_map(findings, np.random.default_rng(0).normal(size=(300, 20)))
    columns = [drawn[name] for name in ("index", "id", "given", "suggested", "is_label_issue", "x", "y")]
    assert {len(column) for column in columns} == {300} and drawn["samples"] == 300
    assert drawn["given"] == findings.labels.tolist() and drawn["is_label_issue"] == findings.issues.tolist()
    places = np.array([drawn["x"], drawn["y"]])
    assert places.min() == 0 and places.max() == 1000 and np.ptp(places, axis=1).max() == 1000


def test_map_is_written_and_removed_with_the_audit(tmp_path):
    findings, features = found(300), np.random.default_rng(0).normal(size=(300, 20))
    write_audit(findings, tmp_path, {}, features=features)
    assert json.loads((tmp_path / "map.json").read_text())["index"] == list(range(300))
    write_audit(findings, tmp_path, {})
    assert not (tmp_path / "map.json").exists()


def test_summary_counts_suspects_by_given_and_suggested_label():
    findings = found(12)
    labels, suggested = np.array([0, 0, 0, 1, 2, 0, *range(6)]), np.array([1, 1, 2, 0, 2, 1, *range(6)])
    marked = np.array([True, True, True, True, False, False] + [False] * 6)
    counted = summary(replace(findings, labels=labels, suggested=suggested, issues=marked), None, {})["confusions"]
    assert [(row["given"], row["suggested"], row["suspects"]) for row in counted] == [
        ("class 0", "class 1", 2),
        ("class 0", "class 2", 1),
        ("class 1", "class 0", 1),
    ]
