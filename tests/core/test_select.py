"""Selection: exact counts, ties, non-finite scores, the floor of each label, and aligned predictions."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.core.criteria import CriteriaOL, Criterion
from labelsieve.core.select import (
    ALIGN_MEMORY,
    Align,
    Select,
    exact_fraction,
    kept_share,
    ranks,
    ranks_with_floor,
    within_share,
)
from labelsieve.methods import Problem, make

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
def test_counts_of_a_batch_of_128(rate, kept):
    assert int(kept_count(128, share_of(rate))) == kept


def test_counts_are_not_affected_by_rounding():
    assert 10 * (1 - 0.7) > 3  # would round up to 4
    assert int(kept_count(10, share_of(0.7))) == 3
    assert int(kept_count(512, share_of(0.1 + 0.2))) == 359  # 0.30000000000000004


def test_ties_go_to_the_earlier_sample_and_non_finite_scores_come_last():
    scores = torch.tensor([[0.5, float("nan"), 0.5, float("inf"), 0.1, -float("inf"), 0.5]])
    assert top(scores, torch.tensor(2)).tolist() == [[True, False, True, False, False, False, False]]
    assert top(scores, torch.tensor(4)).tolist() == [[True, False, True, False, True, False, True]]
    assert top(scores, torch.tensor(5)).tolist() == [[True, True, True, False, True, False, True]]
    assert top(scores, torch.tensor(7)).all()


def test_equal_scores_are_kept_from_the_start_of_a_large_batch():
    selected = top(torch.full((1, 5000), 0.25), torch.tensor(77))[0]
    assert selected[:77].all() and not selected[77:].any()


@given(finite_scores, st.integers(1, 30))
def test_ranks_equal_a_stable_sort(scores, count):
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


def test_each_network_has_its_own_ranks():
    scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    assert top(scores, torch.tensor(1)).tolist() == [[True, False, False], [False, False, True]]


def test_all_samples_are_kept_during_the_warmup():
    probs, labels = torch.rand(1, 10, 4).softmax(-1), torch.randint(4, (10,))
    select = Select(CriteriaOL(4), lambda epoch: Fraction(1, 2), warmup=2)
    kept = []
    for epoch in range(4):
        select.start_epoch(epoch)
        kept.append(int(select(probs, labels, None).sum()))
    assert kept == [10, 10, 5, 5]


def test_kept_share_may_change_with_the_epoch():
    select = Select(CriteriaOL(4), lambda epoch: 1 - Fraction(2, 5) * min(1, Fraction(epoch + 1, 15)))
    counts = []
    for epoch in range(16):
        select.start_epoch(epoch)
        counts.append(int(kept_count(128, select.share)))
    assert counts == [125, 122, 118, 115, 111, 108, 105, 101, 98, 94, 91, 88, 84, 81, 77, 77]


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5, float("nan")])
def test_invalid_noise_rate_is_an_error(rate):
    with pytest.raises(ValueError, match=r"noise rate must be in \[0, 1\)"):
        kept_share(rate)


def test_floor_keeps_the_best_samples_of_every_label():
    """Of ten samples 6 are kept, none of label 1; with a floor of 0.5, floor(0.3 * 4) = 1 of its four is kept."""
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.3, 0.2, 0.1]])
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    rank = ranks_with_floor(ranks(scores), labels, torch.tensor([3, 10]))
    assert within_share(rank, 10, torch.tensor([6, 10])).tolist() == [[True] * 5 + [False, True] + [False] * 3]
    assert torch.equal(ranks_with_floor(ranks(scores), labels, torch.tensor([0, 1])), ranks(scores))
    half = within_share(ranks_with_floor(ranks(scores), labels, torch.tensor([1, 2])), 10, torch.tensor([6, 10]))
    assert half[0, 6:].tolist() == [True, True, False, False]  # two of four


class FixedScores(Criterion):
    """Return given scores."""

    def __init__(self, scores):
        super().__init__(4)
        self.scores = scores

    def forward(self, probs, labels, index=None):
        return self.scores


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3)), min_size=1, max_size=40), st.integers(0, 9))
def test_every_label_keeps_at_least_its_floor(samples, tenths):
    scores, labels = (torch.tensor(column) for column in zip(*samples, strict=True))
    share, floor = Fraction(10 - tenths, 10), Fraction(1, 2)
    select = Select(FixedScores(scores.unsqueeze(0)), lambda epoch: share, floor=floor)
    weight = select(torch.zeros(1, len(samples), 4), labels, None)[0]
    assert weight.sum() == max(1, math.ceil(share * len(samples)))
    for label in labels.unique().tolist():
        mine = labels == label
        assert weight[mine].sum() >= math.floor(floor * share * mine.sum().item())


def test_floor_with_many_digits_is_exact():
    """Of 111 samples 42 are kept; label 1, with the lowest scores, keeps floor(0.7333 * 0.3765 * 40) = 11 of its 40."""
    scores = torch.cat([torch.ones(71), torch.linspace(0.5, 0.1, 40)]).unsqueeze(0)
    labels = torch.tensor([0] * 71 + [1] * 40)
    select = Select(
        FixedScores(scores), lambda epoch: 1 - exact_fraction(0.623456789), floor=exact_fraction(0.733333333)
    )
    kept = select(torch.zeros(1, 111, 4), labels, None)[0]
    assert kept.sum() == math.ceil(0.376543211 * 111) == 42
    assert kept[71:].tolist() == [1.0] * 11 + [0.0] * 29


def observed(align, probs, labels, valid=None):
    """Return the Align part after it has observed a batch."""
    probs, labels = torch.tensor([probs]), torch.tensor(labels)
    align.observe(probs, labels, None, torch.ones(1, len(labels), dtype=torch.bool) if valid is None else valid)
    return align


def test_aligned_predictions_computed_by_hand():
    """The weights 1/2, 2 and 1 turn 0.5, 0.3 and 0.2 into 0.25, 0.6 and 0.2 before normalization."""
    align = Align(3)
    align.predicted.copy_(torch.tensor([[0.5, 0.25, 0.25]]))
    align.observed.copy_(torch.tensor([[0.25, 0.5, 0.25]]))
    found = align(torch.tensor([[[0.5, 0.3, 0.2]]]))
    assert found[0, 0].tolist() == pytest.approx([0.25 / 1.05, 0.6 / 1.05, 0.2 / 1.05])


def test_running_means_computed_by_hand():
    """Two samples of two classes have a weight of 1 - exp(-2 / 128) in the running mean."""
    align = observed(Align(2), [[0.9, 0.1], [0.7, 0.3]], [1, 1])
    new = 1 - math.exp(-2 / (ALIGN_MEMORY * 2))
    assert align.predicted[0].tolist() == pytest.approx([0.5 + 0.3 * new, 0.5 - 0.3 * new])
    assert align.observed[0].tolist() == pytest.approx([0.5 - 0.5 * new, 0.5 + 0.5 * new])
    one = observed(Align(2), [[0.9, 0.1]], [0])
    assert one.predicted[0, 0].item() == pytest.approx(0.5 + 0.4 * (1 - math.exp(-1 / (ALIGN_MEMORY * 2))))
    align.start_round(1)
    assert align.predicted.tolist() == align.observed.tolist() == [[0.5, 0.5]]


def test_invalid_samples_do_not_change_the_running_means():
    align = observed(Align(2), [[math.nan, math.nan], [0.7, 0.3]], [0, 1], torch.tensor([[False, True]]))
    alone = observed(Align(2), [[0.7, 0.3]], [1])
    assert torch.equal(align.predicted, alone.predicted) and torch.equal(align.observed, alone.observed)
    before = align.predicted.clone()
    assert torch.equal(observed(align, [[0.9, 0.1]], [0], torch.tensor([[False]])).predicted, before)


shares = st.lists(st.floats(0.01, 1), min_size=3, max_size=3).map(lambda found: [one / sum(found) for one in found])


@given(shares, st.lists(st.integers(0, 2), min_size=1, max_size=30))
def test_constant_prediction_is_aligned_to_the_label_frequencies(prediction, labels):
    align = Align(3)
    for _ in range(2000 // len(labels)):
        observed(align, [prediction] * len(labels), labels)
    wanted = torch.bincount(torch.tensor(labels), minlength=3) / len(labels)
    assert torch.allclose(align(torch.tensor([[prediction]]))[0, 0], wanted, atol=0.02)


@given(st.lists(shares, min_size=1, max_size=20), st.integers(0, 2))
def test_aligned_predictions_are_probabilities(predictions, label):
    align = observed(Align(3), predictions, [label] * len(predictions))
    found = align(torch.tensor([predictions]))
    assert torch.allclose(found.sum(-1), torch.ones(1, len(predictions)), atol=1e-5) and (found >= 0).all()


def test_class_confused_with_another_keeps_its_correct_samples():
    """Class 0 is predicted as class 1, and 4 of 10 labels of both classes are swapped; correct labels come first."""
    zeros, ones = [[0.4, 0.6]], [[0.05, 0.95]]
    probs = torch.tensor([zeros * 6 + ones * 6 + zeros * 4 + ones * 4])
    labels = torch.tensor([0] * 6 + [1] * 6 + [1] * 4 + [0] * 4)

    def kept(align):
        select = Select(CriteriaOL(2), lambda epoch: Fraction(12, 20), align=align)
        for _ in range(200 if align else 0):
            align.observe(probs, labels, None, torch.ones(1, 20, dtype=torch.bool))
        return select(probs, labels, None)[0].tolist()

    assert kept(None) == [1] * 2 + [0] * 4 + [1] * 6 + [1] * 4 + [0] * 4
    assert kept(Align(2)) == [1] * 12 + [0] * 8


def test_class_without_samples_gives_finite_predictions():
    align = Align(3)
    for _ in range(3000):
        observed(align, [[0.0, 0.0, 1.0]] * 20, [0] * 10 + [1] * 10)
    found = align(torch.tensor([[[0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]]))
    assert found.isfinite().all() and found[0, 1].tolist() == pytest.approx([0.5, 0.5, 0.0])


@pytest.mark.parametrize("name", ["mentornet", "mentornet-prop", "sl-prop"])
def test_align_is_an_option_that_is_off_by_default(name):
    problem = Problem(4, 0.4)
    assert make(name, problem).weigh[0].align is None
    assert isinstance(make(name, problem, align=True).weigh[0].align, Align)
