"""Selection: exact counts, ties, what is not finite, and the properties of a top share."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.core.criteria import CriteriaOL, Criterion
from labelsieve.core.select import Select, exact_fraction, kept_share, ranks, with_floor, within_share

finite_scores = st.lists(st.sampled_from([-1.0, -0.25, 0.0, 0.5, 0.5001, 1.0]), min_size=1, max_size=30)


def share_of(rate: float) -> torch.Tensor:
    return torch.tensor(kept_share(rate).as_integer_ratio())


def kept_count(batch, share):
    kept = within_share(torch.arange(batch), batch, share)
    assert kept[: int(kept.sum())].all()
    return kept.sum()


def top(scores, count):
    return ranks(scores) < count


def test_counts_are_exact_for_every_batch_and_every_whole_percent():
    for percent in range(100):
        share = share_of(percent / 100)
        for batch in range(1, 513):
            exact = max(1, math.ceil((1 - Fraction(percent, 100)) * batch))
            assert int(kept_count(batch, share)) == exact, (batch, percent)


@pytest.mark.parametrize(("rate", "kept"), [(0.1, 116), (0.2, 103), (0.3, 90), (0.4, 77), (0.6, 52), (0.08, 118)])
def test_counts_of_the_papers_batches(rate, kept):
    assert int(kept_count(128, share_of(rate))) == kept


def test_count_where_floating_point_is_wrong():
    assert 10 * (1 - 0.7) > 3  # would round up to 4
    assert int(kept_count(10, share_of(0.7))) == 3
    assert int(kept_count(512, share_of(0.1 + 0.2))) == 359  # 0.30000000000000004


def test_earlier_of_equals_first_and_not_finite_last():
    scores = torch.tensor([[0.5, float("nan"), 0.5, float("inf"), 0.1, -float("inf"), 0.5]])
    assert top(scores, torch.tensor(2)).tolist() == [[True, False, True, False, False, False, False]]
    assert top(scores, torch.tensor(4)).tolist() == [[True, False, True, False, True, False, True]]
    assert top(scores, torch.tensor(5)).tolist() == [[True, True, True, False, True, False, True]]
    assert top(scores, torch.tensor(7)).all()


def test_equal_scores_are_taken_from_the_front_however_many():
    selected = top(torch.full((1, 5000), 0.25), torch.tensor(77))[0]
    assert selected[:77].all() and not selected[77:].any()


@given(finite_scores, st.integers(1, 30))
def test_top_is_the_stable_sort(scores, count):
    count = min(count, len(scores))
    wanted = set(sorted(range(len(scores)), key=lambda i: -scores[i])[:count])
    selected = top(torch.tensor([scores]), torch.tensor(count))[0]
    assert set(selected.nonzero().squeeze(1).tolist()) == wanted


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30, unique=True), st.randoms(use_true_random=False))
def test_permuting_the_batch_permutes_the_selection(scores, random):
    order = list(range(len(scores)))
    random.shuffle(order)
    count = torch.tensor(random.randint(1, len(scores)))
    scores = torch.tensor([scores])
    assert torch.equal(top(scores[:, order], count), top(scores, count)[:, order])


@given(finite_scores, st.integers(0, 98))
def test_a_smaller_rate_keeps_a_superset(scores, percent):
    few, many = (
        top(torch.tensor([scores]), kept_count(len(scores), share_of(p / 100))) for p in (percent + 1, percent)
    )
    assert (many | ~few).all()


def test_rows_of_several_networks_are_ranked_apart():
    scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    assert top(scores, torch.tensor(1)).tolist() == [[True, False, False], [False, False, True]]


def test_everything_counts_during_warm_up():
    probs, labels = torch.rand(1, 10, 4).softmax(-1), torch.randint(4, (10,))
    select = Select(CriteriaOL(4), lambda epoch: Fraction(1, 2), warmup=2)
    kept = []
    for epoch in range(4):
        select.start_epoch(epoch)
        kept.append(int(select(probs, labels, None).sum()))
    assert kept == [10, 10, 5, 5]


def test_a_schedule_may_change_with_the_epoch():
    select = Select(CriteriaOL(4), lambda epoch: 1 - Fraction(2, 5) * min(1, Fraction(epoch + 1, 15)))
    counts = []
    for epoch in range(16):
        select.start_epoch(epoch)
        counts.append(int(kept_count(128, select.share)))
    assert counts == [125, 122, 118, 115, 111, 108, 105, 101, 98, 94, 91, 88, 84, 81, 77, 77]


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5, float("nan")])
def test_a_noise_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match=r"noise rate must be in \[0, 1\)"):
        kept_share(rate)


def test_a_floor_keeps_the_best_of_every_label():
    """Ten samples, 6 kept: label 1 would lose all its four; with a floor of a half it keeps floor(0.3 * 4) = 1."""
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.3, 0.2, 0.1]])
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    rank = with_floor(ranks(scores), labels, torch.tensor([3, 10]))
    assert within_share(rank, 10, torch.tensor([6, 10])).tolist() == [[True] * 5 + [False, True] + [False] * 3]
    assert torch.equal(with_floor(ranks(scores), labels, torch.tensor([0, 1])), ranks(scores))
    half = within_share(with_floor(ranks(scores), labels, torch.tensor([1, 2])), 10, torch.tensor([6, 10]))
    assert half[0, 6:].tolist() == [True, True, False, False]  # exactly two of four


class Given(Criterion):
    """Scores that are known beforehand."""

    def __init__(self, scores):
        super().__init__(4)
        self.scores = scores

    def forward(self, probs, labels):
        return self.scores


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3)), min_size=1, max_size=40), st.integers(0, 9))
def test_no_label_gets_less_than_its_floor(samples, tenths):
    scores, labels = (torch.tensor(column) for column in zip(*samples, strict=True))
    share, floor = Fraction(10 - tenths, 10), Fraction(1, 2)
    select = Select(Given(scores.unsqueeze(0)), lambda epoch: share, floor=floor)
    weight = select(torch.zeros(1, len(samples), 4), labels, None)[0]
    assert weight.sum() == max(1, math.ceil(share * len(samples)))
    for label in labels.unique().tolist():
        mine = labels == label
        assert weight[mine].sum() >= math.floor(floor * share * mine.sum().item())


def test_a_floor_of_many_digits_keeps_what_it_should():
    """Of 111 samples 42 are kept; label 1, all behind label 0, keeps floor(0.7333 * 0.3765 * 40) = 11 of its 40."""
    scores = torch.cat([torch.ones(71), torch.linspace(0.5, 0.1, 40)]).unsqueeze(0)
    labels = torch.tensor([0] * 71 + [1] * 40)
    select = Select(Given(scores), lambda epoch: 1 - exact_fraction(0.623456789), floor=exact_fraction(0.733333333))
    kept = select(torch.zeros(1, 111, 4), labels, None)[0]
    assert kept.sum() == math.ceil(0.376543211 * 111) == 42
    assert kept[71:].tolist() == [1.0] * 11 + [0.0] * 29
