"""What speaks for or against a label, compared with results by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.review.evidence import (
    MOST_GROUPS,
    compared_columns,
    nearest,
    robust_scale,
    strongest_words,
    sure_examples,
    telling_words,
    unit_rows,
    words_of,
)
from labelsieve.review.suspects import Judged


def judged(index, given="cat", suggested=None, quality=1.0, doubtful=False, near=(), typical=1.0):
    return Judged(index, str(index), given, suggested or given, quality, doubtful, tuple(near), typical)


def test_sure_examples_have_no_doubt_and_are_not_copies():
    all_samples = [
        judged(0, quality=0.5),
        judged(1, quality=0.9),
        judged(2, quality=0.9, typical=0.5),
        judged(3, quality=1.0, doubtful=True),
        judged(4, quality=1.0, suggested="dog"),
        judged(5, quality=0.95, near=[6]),
        judged(6, quality=0.94, near=[5]),
        judged(7, "dog", quality=0.1),
    ]
    assert sure_examples(all_samples, 3) == {"cat": [5, 1, 2], "dog": [7]}
    assert sure_examples(all_samples, 9)["cat"] == [5, 1, 2, 0]


def test_nearest_rows_by_hand():
    unit = unit_rows(np.array([[2.0, 0], [0, 3], [1, 1], [0, 0]]))
    assert [place for place, _ in nearest(unit, 2, 2)] == [0, 1]
    assert nearest(unit, 0, 1) == [(2, pytest.approx(np.sqrt(2 - np.sqrt(2)), abs=1e-6))]
    assert len(nearest(unit, 0, 10)) == 3 and nearest(unit[:1], 0, 4) == []


@given(st.integers(2, 12), st.integers(0, 10**6))
def test_nearest_rows_equal_sorted_distances(count, seed):
    unit = unit_rows(np.random.default_rng(seed).normal(size=(count, 3)))
    found = nearest(unit, 0, 5)
    distances = np.sort(np.linalg.norm(unit[1:] - unit[0], axis=1))[:5]
    assert np.allclose([distance for _, distance in found], distances, atol=1e-3)


def test_unusual_columns_come_first_by_robust_score():
    given_class = np.array([[1.0, 10, 5, 0], [2, 10, 5, 0], [3, 10, 5, 0], [4, 11, 5, 0], [5, 90, 5, 0]])
    middle, spread = robust_scale(given_class)
    assert middle.tolist() == [3, 10, 5, 0]
    assert spread[0] == pytest.approx(1.4826) and spread[1] == pytest.approx(0.7413)  # quartiles 10 and 11
    assert spread[2:].tolist() == [0, 0]
    suggested = np.array([[8.0, 1, 6, 0]])
    columns = compared_columns("abcd", np.array([4.4826, 20, 5, 1.0]), given_class, suggested)
    assert [column.name for column in columns] == ["d", "b", "a", "c"]
    assert columns[0].score == 99 and columns[1].score == pytest.approx(10 / 0.7413)
    assert columns[2].score == pytest.approx(1) and columns[3].score == 0
    assert [column.unusual for column in columns] == [True, True, False, False]
    assert columns[2][:4] == ("a", 4.4826, 3.0, 8.0)


def test_words_of_a_text():
    text = "Don't pay, pay üben!"
    assert [text[slice(*span)] for span in words_of(text)] == ["Don't", "pay", "pay", "üben"]
    assert words_of("...") == [] == words_of("")


@given(scores=st.lists(st.integers(-9, 9), max_size=4 * MOST_GROUPS))
def test_long_texts_are_searched_for_the_strongest_groups(scores):
    words = [(2 * k, 2 * k + 1) for k in range(len(scores))]
    calls = []

    def contributions(spans):
        calls.append(len(spans))
        return np.array([sum(scores[start // 2 : (end + 1) // 2]) for start, end in spans], float)

    found = telling_words(words, contributions)
    assert all(word.score == scores[word.start // 2] for word in found) and found == sorted(found)
    if len(words) <= 2 * MOST_GROUPS:
        assert found == strongest_words(words, np.array(scores, float)) and len(calls) == bool(words)
    else:
        size = -(-len(words) // MOST_GROUPS)
        groups = [sum(scores[k : k + size]) for k in range(0, len(scores), size)]
        places = {word.start // 2 // size for word in found}
        assert places <= {groups.index(max(groups)), groups.index(min(groups))}


@pytest.mark.parametrize("words", [65, 600, 5000, 100_000])
def test_long_texts_need_few_predictions(words):
    counts = []
    random = np.random.default_rng(0)

    def contributions(spans):
        counts.append(len(spans))
        return random.normal(size=len(spans))

    assert telling_words([(2 * k, 2 * k + 1) for k in range(words)], contributions)
    assert counts[-1] <= 2 * MOST_GROUPS and all(count <= MOST_GROUPS for count in counts[:-1]) and len(counts) <= 5


def test_telling_words_are_those_with_a_large_contribution():
    parts = [(0, 5), (6, 9), (11, 14), (15, 19)]
    assert strongest_words(parts, np.array([1.5, -3.0, 0.2, 0.46])) == [(0, 5, 1.5), (6, 9, -3.0), (15, 19, 0.46)]
    assert strongest_words(parts[:1], np.zeros(1)) == [] == strongest_words([], np.empty(0))
