"""Near-duplicates with different labels, and the twin of each sample."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.audit.others import OtherIssues, conflicting, remarks, twins, verdict_on
from tests.audit.simulated import other_issues


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


def test_remarks_name_the_twin_and_its_label():
    others = other_issues(6, groups=[(0, 2), (3, 4)], outliers=(4, 5))
    found = remarks(others, np.array([0, 0, 1, 1, 1, 0]), ["cat", "dog"], [f"{k}.jpg" for k in range(6)])
    assert found[0] == (
        "Near-duplicate of 2.jpg, which is labelled dog: at least one of the two labels is probably wrong."
    )
    assert found[1] == ""
    assert found[3] == "Near-duplicate of 4.jpg, with the same label."
    assert found[4] == "Near-duplicate of 3.jpg, with the same label. It resembles none of the classes."
    assert found[5] == "It resembles none of the classes."


def test_verdict_counts_both_kinds():
    labels = np.array([0, 1, 0, 0, 1, 1, 1])
    assert verdict_on(other_issues(7, groups=[(0, 2)]), labels) == ""
    assert verdict_on(other_issues(7, outliers=[3]), labels) == "1 sample resembles none of the classes."
    assert verdict_on(other_issues(7, groups=[(0, 1), (2, 3)], outliers=[5, 6]), labels) == (
        "2 samples are near-duplicates of others with another label; 2 samples resemble none of the classes."
    )
