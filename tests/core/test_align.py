"""Aligned predictions: by hand, and what they are for."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve import Problem, make
from labelsieve.core.criteria import CriteriaOL
from labelsieve.core.select import MEMORY, Align, Select, aligned


def seen(align, probs, labels, valid=None):
    probs, labels = torch.tensor([probs]), torch.tensor(labels)
    align.observe(probs, labels, None, torch.ones(1, len(labels), dtype=torch.bool) if valid is None else valid)
    return align


def test_by_hand():
    """Weights 1/2, 2 and 1 make 0.25, 0.6 and 0.2 of 0.5, 0.3 and 0.2."""
    predicted, observed = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.5, 0.25]])
    found = aligned(torch.tensor([[[0.5, 0.3, 0.2]]]), predicted, observed)
    assert found[0, 0].tolist() == pytest.approx([0.25 / 1.05, 0.6 / 1.05, 0.2 / 1.05])


def test_running_means_by_hand():
    """Two samples of 2 classes: 1 - exp(-2 / 128) of the mean is new."""
    align = seen(Align(2), [[0.9, 0.1], [0.7, 0.3]], [1, 1])
    new = 1 - math.exp(-2 / (MEMORY * 2))
    assert align.predicted[0].tolist() == pytest.approx([0.5 + 0.3 * new, 0.5 - 0.3 * new])
    assert align.observed[0].tolist() == pytest.approx([0.5 - 0.5 * new, 0.5 + 0.5 * new])
    one = seen(Align(2), [[0.9, 0.1]], [0])
    assert one.predicted[0, 0].item() == pytest.approx(0.5 + 0.4 * (1 - math.exp(-1 / (MEMORY * 2))))
    align.start_round(1)
    assert align.predicted.tolist() == align.observed.tolist() == [[0.5, 0.5]]


def test_what_did_not_happen_does_not_count():
    align = seen(Align(2), [[math.nan, math.nan], [0.7, 0.3]], [0, 1], torch.tensor([[False, True]]))
    alone = seen(Align(2), [[0.7, 0.3]], [1])
    assert torch.equal(align.predicted, alone.predicted) and torch.equal(align.observed, alone.observed)
    before = align.predicted.clone()
    assert torch.equal(seen(align, [[0.9, 0.1]], [0], torch.tensor([[False]])).predicted, before)


shares = st.lists(st.floats(0.01, 1), min_size=3, max_size=3).map(lambda found: [one / sum(found) for one in found])


@given(shares, st.lists(st.integers(0, 2), min_size=1, max_size=30))
def test_one_prediction_for_all_becomes_what_is_observed(prediction, labels):
    align = Align(3)
    for _ in range(2000 // len(labels)):
        seen(align, [prediction] * len(labels), labels)
    wanted = torch.bincount(torch.tensor(labels), minlength=3) / len(labels)
    assert torch.allclose(align(torch.tensor([[prediction]]))[0, 0], wanted, atol=0.02)


@given(st.lists(shares, min_size=1, max_size=20), st.integers(0, 2))
def test_predictions_stay_predictions(predictions, label):
    align = seen(Align(3), predictions, [label] * len(predictions))
    found = align(torch.tensor([predictions]))
    assert torch.allclose(found.sum(-1), torch.ones(1, len(predictions)), atol=1e-5) and (found >= 0).all()


def test_a_class_that_is_mistaken_for_its_twin_is_kept():
    """Class 0 is predicted as 1, and 4 in 10 labels of either class are the other; the right labels come first."""
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


def test_a_class_that_nobody_has_is_no_danger():
    align = Align(3)
    for _ in range(3000):
        seen(align, [[0.0, 0.0, 1.0]] * 20, [0] * 10 + [1] * 10)
    found = align(torch.tensor([[[0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]]))
    assert found.isfinite().all() and found[0, 1].tolist() == pytest.approx([0.5, 0.5, 0.0])


@pytest.mark.parametrize("name", ["mentornet", "mentornet-prop", "sl-prop"])
def test_it_is_an_option_and_off_by_default(name):
    problem = Problem(4, 0.4)
    assert make(name, problem).weigh[0].align is None
    assert isinstance(make(name, problem, align=True).weigh[0].align, Align)
