"""Nearest neighbours among features, and what they show: near-duplicates, and outliers that resemble no class.

Distances are those of features scaled to length 1: sqrt(2 - 2 cos). They suit the features of pretrained networks,
whose direction represents the content; standardise the columns of tables with units of their own first.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from labelsieve.audit.guesses import Array
from labelsieve.audit.others import NONE, OtherIssues

BLOCK = 8192  # rows and columns of the similarities computed at a time: 256 MB
SHORT = 0.05  # distance below which rounding matters
MOST_NEIGHBOURS = 100
FEWEST_SAMPLES = 40  # different ones, below which only exact copies are found
MOST_SAMPLES = 200_000  # above which, too: the time of the search grows with the square of the samples
REFERENCE = 5  # the nearest fifth of the neighbours is the surroundings of a sample
HALF = 0.5  # near-duplicates are at most half as far away as the surroundings reach
EXPECTED_BY_CHANCE = 0.5  # samples with a near-duplicate in data without any
CLASS_NEIGHBOURS = 10  # samples with the same label that make a class
OUTLIER_SPREADS = 2.5  # distance of an outlier from the median, in standard deviations of the upper half
QUARTILE, DECILE = (0.75, 0.6745), (0.9, 1.2816)  # of a normal distribution: share below, standard deviations
TINY = 1e-9  # instead of dividing by 0
MOST_LISTED = 10  # near-duplicates of one sample


def find_other_issues(features: Tensor, labels: Array) -> OtherIssues:
    """Find the near-duplicates and the outliers among samples with these features (n, F) and labels (n)."""
    first, copies = exact_copies(features)
    searched = FEWEST_SAMPLES <= len(first) <= MOST_SAMPLES
    neighbours = min(MOST_NEIGHBOURS, len(first) // 4) if searched else 0
    index, distance = nearest_neighbours(features[torch.from_numpy(first).to(features.device)], neighbours)
    groups, ratio = near_duplicates(index, distance)
    outliers, score = find_outliers(index, distance, labels[first], groups)
    nearness = np.where(np.bincount(copies) > 1, 0.0, ratio.min(1, initial=1.0))  # (m)
    groups, sets = _spread_over_copies(first, copies, groups, index)
    return OtherIssues(groups, sets, nearness[copies], outliers[copies], score[copies])


def limit_of_search(samples: int) -> str:
    """Return a line that says what is not searched for among this many samples; empty if everything is."""
    if samples <= MOST_SAMPLES:
        return ""
    return (
        f"{samples:,} samples are more than {MOST_SAMPLES:,}: of near-duplicates, only exact copies are found, and no "
        "outliers; audit a part of the samples to search there"
    )


def nearest_neighbours(features: Tensor, neighbours: int) -> tuple[Array, Array]:
    """Return the k nearest other samples (n, k) of each sample, the nearest first, and their distances (n, k).

    The search is exact and symmetric: each block of similarities serves its rows and its columns.
    """
    unit = F.normalize(features.float(), dim=1)
    best = unit.new_full((len(unit), neighbours), -torch.inf)
    index = torch.zeros_like(best, dtype=torch.int64)
    starts = range(0, len(unit), BLOCK) if neighbours else ()
    for start in starts:
        for other in starts[start // BLOCK :]:
            similarity = unit[start : start + BLOCK] @ unit[other : other + BLOCK].T
            if start == other:
                similarity.fill_diagonal_(-torch.inf)
            else:
                _keep_best(best, index, similarity.T.contiguous(), other, start)
            _keep_best(best, index, similarity, start, other)
    distance = (2 - 2 * best).clamp_(min=0).sqrt_()
    _measure_short_distances(unit, index, distance)
    distance, order = distance.sort(dim=1, stable=True)
    return index.gather(1, order).cpu().numpy(), distance.cpu().numpy()


def _keep_best(best: Tensor, index: Tensor, similarity: Tensor, row: int, column: int) -> None:
    """Merge a block of similarities, whose first row and column are given, into the best (n, k) so far, in place."""
    rows = slice(row, row + len(similarity))
    found = similarity.topk(min(best.shape[1], similarity.shape[1]), dim=1)
    merged = torch.cat([best[rows], found.values], 1).topk(best.shape[1], dim=1)
    index[rows] = torch.cat([index[rows], found.indices + column], 1).gather(1, merged.indices)
    best[rows] = merged.values


def _measure_short_distances(unit: Tensor, index: Tensor, distance: Tensor) -> None:
    """Compute short distances (n, k) again from differences, in place: similarities near 1 are too coarse for them."""
    one, place = (distance < SHORT).nonzero(as_tuple=True)
    for part in torch.arange(len(one), device=one.device).split(BLOCK):
        rows, columns = one[part], place[part]
        distance[rows, columns] = (unit[rows] - unit[index[rows, columns]]).norm(dim=1)


def exact_copies(features: Tensor) -> tuple[Array, Array]:
    """Return the first position (m) of each distinct row, and for each sample (n) the index of its distinct row."""
    rows = features.float().cpu().numpy() + 0  # -0 becomes 0
    known: dict[bytes, int] = {}
    copies = np.array([known.setdefault(row.tobytes(), len(known)) for row in rows], np.int64)
    return np.unique(copies, return_index=True)[1], copies


def near_duplicates(index: Array, distance: Array) -> tuple[Array, Array]:
    """Return the group (n) of each sample among its near-duplicates, or -1, and the relative distances (n, k).

    The distance of two samples is divided by the reach of their surroundings, where these are denser. Near-duplicates
    are nearer than `chance_ratio`. The reach is the distance of a neighbour that is hardly a near-duplicate, so that
    many copies of many samples do not hide each other.
    """
    if not index.shape[1]:
        return np.full(len(index), NONE), distance
    nth = max(2, index.shape[1] // REFERENCE)
    limit = chance_ratio(len(index), nth, intrinsic_dimension(distance))
    near, far = distance[:, nth - 1], distance[:, -1]
    reach = np.maximum(np.where(near <= limit * far, far, near), TINY)  # (n) far if all of the nth are copies
    ratio = np.minimum(distance / np.minimum(reach[:, None], reach[index]), 1)  # (n, k)
    one, place = np.nonzero(ratio <= limit)
    return connected(len(index), one, index[one, place]), ratio


def chance_ratio(samples: int, nth: int, dimension: float) -> float:
    """Return the ratio of the distances of first and nth neighbour below which chance does not explain it.

    Among points that are spread evenly in a space of this dimension, the ratio is below r with probability about
    (nth - 1) r^dimension. At most HALF: real data is not spread evenly.
    """
    share = EXPECTED_BY_CHANCE / (samples * (nth - 1))
    return float(min(HALF, share ** (1 / dimension)))


def intrinsic_dimension(distance: Array) -> float:
    """Return the dimension of the space in which samples are spread, from the distances (n, k) of their neighbours.

    It is the largest of the estimates from fewer and more neighbours: gaps in the distances lower an estimate, after
    copies in the one and at the border of a class in the other.
    """
    count = distance.shape[1]
    return max(_growth_dimension(distance[:, : max(2, count // part)]) for part in (REFERENCE, 2, 1))


def _growth_dimension(distance: Array) -> float:
    """Return the power with which the number of neighbours grows with the distance (n, k); the median of the samples.

    It is measured on the farther half of the neighbours, between which and the sample all of its few copies lie.
    """
    count = distance.shape[1]
    farther = np.maximum(distance[:, count // 2 - 1 :], TINY)
    growth = np.log(farther[:, -1:] / farther[:, :-1]).mean(1)  # (n)
    expected = np.mean([(1 / np.arange(rank, count)).sum() for rank in range(count // 2, count)])  # in dimension 1
    return float(expected / max(float(np.median(growth)), TINY))


def connected(count: int, one: Array, other: Array) -> Array:
    """Return for each of `count` samples the lowest position that pairs connect it with; -1 for samples in no pair."""
    lowest = np.arange(count)
    while True:
        known = lowest.copy()
        np.minimum.at(lowest, one, known[other])
        np.minimum.at(lowest, other, known[one])
        lowest = lowest[lowest]
        if np.array_equal(lowest, known):
            break
    alone = np.ones(count, bool)
    alone[one] = alone[other] = False
    return np.where(alone, NONE, lowest)


def find_outliers(index: Array, distance: Array, labels: Array, groups: Array) -> tuple[Array, Array]:
    """Return which samples (n) resemble none of the classes, and their scores (n) from 0 to 1.

    Outliers are farther from their nearest class than the bulk of the samples from theirs. The score is the median of
    these distances, divided by the distance of the sample. `groups` (n) are those of near-duplicates.
    """
    if not index.shape[1]:
        return np.zeros(len(index), bool), np.ones(len(index))
    apart = class_distances(index, distance, labels, groups)
    middle = np.median(apart)
    spread = max((np.quantile(apart, share) - middle) / deviations for share, deviations in (QUARTILE, DECILE))
    score = np.minimum(middle / np.maximum(apart, TINY), 1)
    return (apart > middle + OUTLIER_SPREADS * spread) & (apart > middle), score


def class_distances(index: Array, distance: Array, labels: Array, groups: Array) -> Array:
    """Return the distance (n) of each sample from its nearest class: that of the tenth nearest with one label.

    Half of the class is enough if this is less. Near-duplicates of the sample do not count: copies of a picture make no
    class. Without ten of a class among the k neighbours, the farthest of these counts.
    """
    no_class = labels.max() + 1
    needed = np.append(np.clip(np.bincount(labels) // 2, 1, CLASS_NEIGHBOURS), index.shape[1] + 1)
    copies = (groups[index] == groups[:, None]) & (groups[:, None] != NONE)
    given = np.where(copies, no_class, labels[index])  # (n, k)
    order = np.argsort(given, axis=1, kind="stable")  # by label, then by distance
    given, ordered = np.take_along_axis(given, order, 1), np.take_along_axis(distance, order, 1)
    starts = np.concatenate([np.ones((len(given), 1), bool), given[:, 1:] != given[:, :-1]], 1)
    tenth = np.arange(given.shape[1]) + needed[given] - 1  # (n, k) of the class that starts here
    inside = np.minimum(tenth, given.shape[1] - 1)
    found = starts & (tenth == inside) & (np.take_along_axis(given, inside, 1) == given)
    return np.where(found, np.take_along_axis(ordered, inside, 1), distance[:, -1:]).min(1)


def _spread_over_copies(first: Array, copies: Array, groups: Array, index: Array) -> tuple[Array, list[list[int]]]:
    """Return the group (n) and the nearest near-duplicates of all samples, from those of the different ones (m).

    `first` (m) are the positions of the different samples, `copies` (n) says which of them each sample equals.
    """
    members = np.split(np.argsort(copies, kind="stable"), np.cumsum(np.bincount(copies))[:-1])
    sizes = np.bincount(copies)
    groups = np.where((groups == NONE) & (sizes > 1), np.arange(len(groups)), groups)
    nearest: list[list[int]] = []
    for place, group in enumerate(groups.tolist()):
        around = index[place][groups[index[place]] == group].tolist() if group != NONE else []
        near = [one for each in (place, *around) for one in members[each][: MOST_LISTED + 1].tolist()]
        nearest.append(near[: MOST_LISTED + 1])
    sets = [[one for one in nearest[place] if one != k][:MOST_LISTED] for k, place in enumerate(copies.tolist())]
    return np.where(groups == NONE, NONE, first[groups])[copies], sets
