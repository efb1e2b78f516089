"""Transition matrices and noisy labels."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.errors import InputError
from labelsieve.noise import asymmetric, check_matrix, corrupt, mixed, pair, transition, transition_counts

LABELS = torch.arange(20_000) % 10


def test_pair_computed_by_hand():
    assert pair(3, 0.4).tolist() == [[0.6, 0.4, 0], [0, 0.6, 0.4], [0.4, 0, 0.6]]
    assert pair(3, 0.4, direction=-1).tolist() == [[0.6, 0, 0.4], [0.4, 0.6, 0], [0, 0.4, 0.6]]


def test_mixed_has_the_shares_of_the_paper():
    tables, figure = mixed(10, 0.4), mixed(10, 0.4, dominant=0.6)
    assert tables[4, 5] == pytest.approx(0.30) and tables[4, 7] == pytest.approx(0.0125)
    assert figure[4, 5] == pytest.approx(0.24) and figure[4, 7] == pytest.approx(0.02)
    assert mixed(100, 0.4)[4, 7] == pytest.approx(0.1 / 98)


def test_asymmetric_moves_only_the_mapped_classes():
    matrix = asymmetric(10, 0.4, {9: 1, 2: 0, 4: 7, 3: 5, 5: 3})  # similar classes of CIFAR-10
    assert matrix[9, 1] == 0.4 and matrix[3, 5] == 0.4 and matrix[5, 3] == 0.4 and matrix[0, 0] == 1


@given(st.sampled_from(["pair", "symmetry", "mixed"]), st.integers(3, 30), st.floats(0, 1))
def test_rows_sum_to_one_and_the_diagonal_is_one_minus_the_rate(kind, classes, rate):
    matrix = transition(kind, classes, rate)
    assert torch.allclose(matrix.sum(1), torch.ones(classes, dtype=torch.float64))
    assert torch.allclose(matrix.diagonal(), torch.full((classes,), 1 - rate, dtype=torch.float64))


def test_pair_of_two_classes_is_symmetry():
    assert torch.equal(transition("pair", 2, 0.3), transition("symmetry", 2, 0.3))


@pytest.mark.parametrize("kind", ["pair", "symmetry", "mixed"])
def test_drawn_labels_follow_the_matrix_within_four_sigma(kind):
    matrix = transition(kind, 10, 0.4)
    counts = transition_counts(LABELS, corrupt(LABELS, matrix, seed=3), 10).double()
    expected = 2000 * matrix
    assert ((counts - expected).abs() <= 4 * (expected * (1 - matrix)).sqrt() + 1e-9).all()
    assert ((counts == 0) | (matrix > 0)).all()  # no label with probability 0


@pytest.mark.parametrize("kind", ["pair", "symmetry", "mixed"])
def test_exact_noise_has_exact_counts(kind):
    matrix = transition(kind, 10, 0.4)
    counts = transition_counts(LABELS, corrupt(LABELS, matrix, seed=3, exact=True), 10).double()
    assert (counts.sum(1) == 2000).all()
    assert ((counts - 2000 * matrix).abs() < 1).all()
    if kind == "pair":
        assert torch.equal(counts, 2000 * matrix)


@given(st.integers(0, 40), st.floats(0, 1), st.integers(0, 99))
def test_exact_noise_keeps_the_number_of_samples_of_each_class(count, rate, seed):
    labels = torch.arange(count) % 3
    noisy = corrupt(labels, transition("symmetry", 3, rate), seed, exact=True)
    assert (transition_counts(labels, noisy, 3).sum(1) == torch.bincount(labels, minlength=3)).all()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", ["pair", "symmetry", "mixed"])
def test_rate_zero_changes_no_label(kind, exact):
    assert torch.equal(corrupt(LABELS, transition(kind, 10, 0.0), seed=1, exact=exact), LABELS)


@pytest.mark.parametrize("exact", [False, True])
def test_noise_depends_on_the_seed_only(exact):
    matrix = pair(10, 0.4)
    torch.manual_seed(1)
    first = corrupt(LABELS, matrix, seed=5, exact=exact)
    torch.manual_seed(2)
    torch.rand(100)
    assert torch.equal(first, corrupt(LABELS, matrix, seed=5, exact=exact))
    assert not torch.equal(first, corrupt(LABELS, matrix, seed=6, exact=exact))


def test_custom_matrix_is_used_unchanged():
    matrix = check_matrix(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), 2)
    assert corrupt(torch.tensor([0, 1, 0]), matrix, seed=0).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: transition("piar", 10, 0.4), "did you mean pair"),
        (lambda: transition("pair", 10, 1.4), r"in \[0, 1\]"),
        (lambda: transition("pair", 10, float("nan")), r"in \[0, 1\]"),
        (lambda: transition("pair", 1, 0.4), "at least 2 classes"),
        (lambda: transition("mixed", 2, 0.4), "at least 3 classes"),
        (lambda: transition("asymmetric", 10, 0.4), "needs a map"),
        (lambda: asymmetric(3, 0.4, {0: 5}), "outside the classes"),
        (lambda: check_matrix(torch.eye(3), 2), "must be 2 x 2, got 3 x 3"),
        (lambda: check_matrix(torch.tensor([[2.0, -1.0], [0.0, 1.0]]), 2), "negative"),
        (lambda: check_matrix(torch.tensor([[0.5, 0.6], [0.0, 1.0]]), 2), "row 0 .* sums to 1.1"),
        (lambda: corrupt(torch.tensor([0, 2]), pair(2, 0.1), seed=0), "labels must be from 0 to 1"),
    ],
)
def test_invalid_noise_is_an_error(make, reason):
    with pytest.raises(InputError, match=reason):
        make()


def test_exact_noise_of_a_matrix_whose_rows_sum_only_nearly_to_one():
    matrix = torch.tensor([[0.5000004, 0.5], [0.0, 1.0]], dtype=torch.float64)
    noisy = corrupt(torch.zeros(5_000_000, dtype=torch.int64), matrix, 0, exact=True)
    assert noisy.bincount().tolist() == [2_500_001, 2_499_999]  # 0.5000004 / 1.0000004 of five millions
