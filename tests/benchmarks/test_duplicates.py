"""Benchmark of near-duplicates and outliers: figures by hand, alterations, and the tables of the documentation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.duplicates import (
    ALTERATIONS,
    RECORD,
    Found,
    Photos,
    as_they_are,
    copies_found,
    noise,
    strangers_found,
    stripes,
    tables,
)

ROOT = Path(__file__).parents[2]
PHOTOS = Photos(torch.zeros(6, 2), np.array([0, 0, 1, 1, 0, 1]), [])


def finder(sets, outliers=()):
    """Return a system that finds these near-duplicates, by sample, and outliers."""

    def find(features, labels):
        assert len(features) == len(labels)
        every = [sets.get(k, []) for k in range(len(labels))]
        return Found(every, np.isin(np.arange(len(labels)), list(outliers)))

    return find


def test_copies_count_if_their_photograph_is_named():
    before = np.array([False, False, False, False, True, True])  # 4 and 5 are near-duplicates without the copies
    find = finder({0: [6], 1: [7], 2: [3], 3: [2], 4: [5], 5: [4], 6: [0], 7: [2]})  # 7 is a copy of 1
    found = copies_found(PHOTOS, before, torch.zeros(3, 2), np.array([0, 1, 2]), np.zeros(3, int), find)
    assert found["recall"] == pytest.approx(1 / 3)  # 6 of 6, 7 and 8
    assert found["precision"] == pytest.approx(4 / 6)  # 0, 1, 2 and 6 of these, 3 and 7
    none = copies_found(PHOTOS, before, torch.zeros(3, 2), np.array([0, 1, 2]), np.zeros(3, int), finder({}))
    assert none == {"recall": 0, "precision": 1}


def test_strangers_and_photographs_are_counted_apart():
    found = strangers_found(PHOTOS, torch.zeros(4, 2), np.zeros(4, int), finder({}, outliers=[0, 6, 7, 8]))
    assert found == {"recall": 0.75, "flagged": pytest.approx(1 / 6)}


def test_numbers_of_the_photographs_as_they_are():
    found = finder({0: [1], 1: [0], 2: [4, 3], 3: [2], 4: [2]}, outliers=[5])(PHOTOS.features, PHOTOS.labels)
    assert as_they_are(PHOTOS, found) == {"near_duplicate": 5, "near_duplicate_other_label": 2, "outlier": 1}


def test_alterations_change_pictures_as_they_say():
    picture = stripes(np.random.default_rng(0))
    altered = {name: alter(picture) for name, alter in ALTERATIONS.items()}
    sizes = {name: made.size for name, made in altered.items() if made.size != (192, 192)}
    assert sizes == {
        "70% of the size": (134, 134),
        "5% cut off at each edge": (172, 172),
        "10% cut off at each edge": (154, 154),
    }
    assert np.array_equal(np.asarray(altered["mirrored"]), np.asarray(picture)[:, ::-1])
    assert np.asarray(altered["20% brighter"]).mean() > np.asarray(picture).mean()
    changed = [np.abs(np.asarray(altered[f"JPEG, quality {q}"], int) - np.asarray(picture)).mean() for q in (75, 40)]
    assert 0 < changed[0] < changed[1]
    assert isinstance(noise(np.random.default_rng(0)), Image.Image)


def test_tables_of_the_documentation_match_the_record():
    record = json.loads(RECORD.read_text())
    text = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    assert tables(record) in text
