"""Nearest neighbours, near-duplicates and outliers among features."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelsieve.audit.others import NONE, conflicting, twins
from labelsieve.features import neighbours as module
from labelsieve.features.neighbours import (
    chance_ratio,
    class_distances,
    connected,
    exact_copies,
    find_other_issues,
    intrinsic_dimension,
    limit_of_search,
    near_duplicates,
    nearest_neighbours,
)


def gaussian(samples, dimension, seed=0):
    """Return points spread in all directions of a space."""
    return np.random.default_rng(seed).normal(size=(samples, dimension)).astype(np.float32)


def photographs(samples=1000, classes=5, seed=0):
    """Return features that look like those of a network: not negative, with a direction per class; and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, samples)
    mixing = rng.normal(size=(30, 256))
    hidden = rng.normal(size=(classes, 30))[labels] + 0.8 * rng.normal(size=(samples, 30))
    return np.maximum(hidden @ mixing, 0).astype(np.float32), labels


def found(features, labels=None):
    return find_other_issues(torch.from_numpy(features), np.zeros(len(features), int) if labels is None else labels)


@given(st.integers(6, 40), st.integers(1, 5), st.integers(3, 50), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_neighbours_equal_those_of_all_distances(samples, count, block, seed):
    features = gaussian(samples, 8, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        index, distance = nearest_neighbours(torch.from_numpy(features), count)
    unit = features.astype(np.float64) / np.linalg.norm(features, axis=1, keepdims=True)
    every = np.linalg.norm(unit[:, None] - unit, axis=2)
    np.fill_diagonal(every, np.inf)
    assert np.allclose(distance, np.sort(every, axis=1)[:, :count], atol=1e-5)
    assert np.allclose(np.take_along_axis(every, index, 1), distance, atol=1e-5)
    assert (index != np.arange(samples)[:, None]).all()


def test_copies_name_the_first_of_their_kind():
    first, copies = exact_copies(
        torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 6.0], [1.0, 2.0], [0.0, 1.0], [-0.0, 1.0]])
    )
    assert first.tolist() == [0, 1, 2, 4]
    assert copies.tolist() == [0, 1, 2, 0, 3, 3]


def test_short_distances_are_exact():
    angles = np.array([0, 1e-5, 3e-5, 1e-4, 1.0, 2.0])
    points = np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
    index, distance = nearest_neighbours(torch.from_numpy(points), 3)
    assert index[0].tolist() == [1, 2, 3]
    assert distance[0] == pytest.approx([1e-5, 3e-5, 1e-4], rel=0.02)


@pytest.mark.parametrize("dimension", [2, 5, 10])
def test_dimension_of_a_subspace_is_estimated(dimension):
    plane = np.linalg.qr(gaussian(100, dimension + 1, 1))[0].T  # directions in it have one dimension less
    _, distance = nearest_neighbours(torch.from_numpy(gaussian(3000, dimension + 1) @ plane), 100)
    assert intrinsic_dimension(distance) == pytest.approx(dimension, rel=0.25)


def test_chance_explains_as_many_near_neighbours_as_expected():
    radii = np.sort(
        np.sqrt(np.random.default_rng(0).random((20_000, 100))), axis=1
    )  # points in a disc, seen from its centre
    limit = chance_ratio(50, 20, 2)
    assert (radii[:, 0] / radii[:, 19] < limit).mean() == pytest.approx(0.5 / 50, rel=0.2)  # half a sample of 50
    assert chance_ratio(1000, 20, 100) == 0.5


@given(st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=12))
def test_connected_samples_share_their_lowest_position(pairs):
    one, other = (np.array([pair[side] for pair in pairs], int) for side in (0, 1))
    expected = []
    for sample in range(15):
        reached, before = {sample}, set()
        while reached != before:
            before = set(reached)
            reached |= {b for a, b in pairs if a in before} | {a for a, b in pairs if b in before}
        expected.append(min(reached) if any(sample in pair for pair in pairs) else -1)
    assert connected(15, one, other).tolist() == expected


@pytest.mark.parametrize("dimension", [2, 3, 6, 30, 300])
def test_random_data_has_no_near_duplicates(dimension):
    counts = [int(found(gaussian(1000, dimension, seed)).near_duplicates.sum()) for seed in range(4)]
    assert np.mean(counts) <= 2  # one pair in two sets is expected by chance


@pytest.mark.parametrize("copies", [1, 5, 15, 30])
def test_near_duplicates_are_found_however_many_there_are(copies):
    features, _ = photographs(200)
    rng = np.random.default_rng(1)
    altered = [features + 0.1 * features.std() * rng.normal(size=features.shape) for _ in range(copies)]
    everything = np.concatenate([features, *altered]).astype(np.float32)
    others = found(everything)
    assert others.near_duplicates.mean() > 0.99
    same = others.groups.reshape(copies + 1, 200)
    assert (same == same[0]).mean() > 0.99
    assert len(set(same[0].tolist())) > 195


def test_few_near_duplicates_are_found_with_their_twins():
    features, labels = photographs()
    chosen, rng = np.arange(0, 100, 5), np.random.default_rng(1)
    altered = features[chosen] + 0.15 * features.std() * rng.normal(size=(len(chosen), features.shape[1]))
    everything = np.concatenate([features, altered]).astype(np.float32)
    given_labels = np.concatenate([labels, (labels[chosen] + 1) % 5])
    others = found(everything, given_labels)
    expected = np.isin(np.arange(len(everything)), [*chosen, *range(1000, 1020)])
    assert (others.near_duplicates == expected).all()
    assert (conflicting(others.groups, given_labels) == expected).all()
    assert twins(others, given_labels)[1000:].tolist() == chosen.tolist()
    assert others.near_duplicate_score[expected].max() < others.near_duplicate_score[~expected].min()
    assert [list(each) for each in others.near_duplicate_sets[1000:]] == [[one] for one in chosen]


def test_exact_copies_are_listed_first_and_score_zero():
    features, _ = photographs(200)
    near = features[:1] * (1 + 0.05 * np.random.default_rng(2).normal(size=features[:1].shape))
    others = found(np.concatenate([features, features[:3], near, features[:1]]).astype(np.float32))
    assert others.groups[[0, 200, 203, 204]].tolist() == [0, 0, 0, 0]
    assert [list(others.near_duplicate_sets[k]) for k in (0, 203, 1)] == [[200, 204, 203], [0, 200, 204], [201]]
    assert others.near_duplicate_score[[0, 1, 2, 200, 201, 204]].tolist() == [0] * 6
    assert 0 < others.near_duplicate_score[203] < 0.5
    assert others.near_duplicates.sum() == 8


def test_sets_of_many_copies_list_the_first_ten():
    others = found(np.repeat(gaussian(50, 10), 30, axis=0))
    assert others.groups.tolist() == np.repeat(np.arange(0, 1500, 30), 30).tolist()
    assert {len(each) for each in others.near_duplicate_sets} == {10}
    assert not any(k in each for k, each in enumerate(others.near_duplicate_sets))


def test_few_samples_have_only_exact_copies():
    features = gaussian(30, 4)
    others = found(np.concatenate([features, features[:1]]))
    assert np.flatnonzero(others.near_duplicates).tolist() == [0, 30]
    assert not others.outliers.any()


def test_a_pair_counts_only_if_it_is_near_for_both():
    index = np.tile(np.arange(1, 11), (11, 1))
    index[np.arange(1, 11), np.arange(10)] = 0  # every other sample, in any order
    distance = np.tile(np.linspace(0.9, 1, 10), (11, 1))
    distance[0] = np.linspace(0.09, 0.1, 10)  # sample 0 lies in a crowd, in which nothing is unusually near
    groups, ratio = near_duplicates(index, distance)
    assert (groups == -1).all()
    assert ratio.min() > 0.5


def class_distance(sample, index, distance, labels, groups):
    """Return the distance of one sample from its nearest class, computed plainly."""
    found = [distance[-1]]
    for label in set(labels.tolist()):
        needed = min(10, max(1, int((labels == label).sum()) // 2))
        others = [place for place in range(len(index)) if groups[sample] < 0 or groups[index[place]] != groups[sample]]
        near = [distance[place] for place in others if labels[index[place]] == label]
        found += near[needed - 1 : needed]
    return min(found)


@given(st.integers(10, 60), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_class_distance_is_that_of_the_tenth_nearest_with_one_label(samples, classes, seed):
    rng = np.random.default_rng(seed)
    labels, groups = rng.integers(0, classes, samples), rng.integers(-1, 4, samples)
    index, distance = nearest_neighbours(torch.from_numpy(gaussian(samples, 3, seed)), samples // 2)
    rows = enumerate(zip(index, distance, strict=True))
    expected = [class_distance(sample, *row, labels, groups) for sample, row in rows]
    assert class_distances(index, distance, labels, groups).tolist() == expected


@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_samples_of_no_class_are_outliers_even_if_they_resemble_each_other(wrong):
    features, labels = photographs(1500)
    rng = np.random.default_rng(3)
    strange = np.maximum(rng.normal(size=30) @ rng.normal(size=(30, 256)) + 4 * rng.normal(size=(12, 256)), 0)
    moved = rng.random(len(labels)) < wrong
    given_labels = np.concatenate([np.where(moved, (labels + 1) % 5, labels), np.arange(12) % 5])
    others = found(np.concatenate([features, strange]).astype(np.float32), given_labels)
    assert others.outliers[1500:].all()
    assert others.outliers[:1500].mean() < 0.01
    assert others.outlier_score[others.outliers].max() < others.outlier_score[~others.outliers].min()


def test_scores_are_between_0_and_1_and_equal_features_have_no_outliers():
    for features in (photographs(300)[0], np.ones((100, 5), np.float32), np.zeros((3, 5), np.float32)):
        others = found(features)
        for score in (others.near_duplicate_score, others.outlier_score):
            assert score.shape == (len(features),)
            assert ((score >= 0) & (score <= 1)).all()
    assert found(np.ones((100, 5), np.float32)).groups.tolist() == [0] * 100
    assert not found(np.ones((100, 5), np.float32)).outliers.any()


def test_copies_of_a_strange_picture_make_no_class():
    features, labels = photographs(1000)
    rng = np.random.default_rng(3)
    strange = np.maximum(4 * rng.normal(size=256), 0) * (1 + 0.05 * rng.normal(size=(25, 256)))
    given_labels = np.concatenate([labels, np.zeros(25, int)])  # all with the same label
    others = found(np.concatenate([features, strange]).astype(np.float32), given_labels)
    assert others.outliers[1000:].all() and others.near_duplicates[1000:].all()


def test_only_exact_copies_are_found_among_very_many_samples(monkeypatch):
    features = torch.from_numpy(gaussian(300, 8))
    features[7] = features[3]  # an exact copy
    features[11] = features[5] * 1.0001 + 1e-4  # nearly one
    labels = np.arange(300) % 3
    both = find_other_issues(features, labels)
    assert limit_of_search(300) == "" and both.groups[11] == both.groups[5] != NONE
    monkeypatch.setattr("labelsieve.features.neighbours.MOST_SAMPLES", 200)
    found = find_other_issues(features, labels)
    assert found.groups[7] == found.groups[3] != NONE and found.groups[11] == NONE and not found.outliers.any()
    assert "300 samples are more than 200" in limit_of_search(300)
