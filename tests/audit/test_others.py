"""Near-duplicates with different labels, and the twin of each sample."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.audit.others import OtherIssues, conflicting, twins


def near_duplicates(groups, sets):
    """Return these near-duplicates, without outliers."""
    count = len(groups)
    return OtherIssues(np.array(groups), sets, np.ones(count), np.zeros(count, bool), np.ones(count))


def test_samples_without_near_duplicates_have_no_twin():
    others = near_duplicates([-1, -1], [[], []])
    assert not others.near_duplicates.any()
    assert twins(others, np.array([0, 1])).tolist() == [-1, -1]


def test_groups_with_one_label_do_not_conflict():
    groups, labels = np.array([0, -1, 0, 3, 3, -1]), np.array([2, 1, 2, 0, 1, 0])
    assert conflicting(groups, labels).tolist() == [False, False, False, True, True, False]


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 2)), min_size=4, max_size=12))
def test_conflicting_groups_hold_different_labels(rows):
    names, labels = [name for name, _ in rows], np.array([label for _, label in rows])
    groups = np.array([-1 if name < 0 else names.index(name) for name in names])
    expected = [g >= 0 and len({y for h, y in rows if h == g}) > 1 for g, _ in rows]
    assert conflicting(groups, labels).tolist() == expected


def test_twin_is_the_nearest_with_another_label():
    others = near_duplicates([0, 0, 0, 0], [[1, 2, 3], [0, 2], [0, 1], [0]])
    assert twins(others, np.array([0, 0, 1, 0])).tolist() == [2, 2, 0, 2]  # sample 3 does not list sample 2
    assert twins(others, np.array([0, 0, 0, 0])).tolist() == [1, 0, 0, 0]
