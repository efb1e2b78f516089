"""Criteria and penalty labels: values computed by hand, reference loops and properties."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.core.criteria import (
    FIXED_POINT,
    CriteriaALL,
    CriteriaOL,
    CriteriaPL,
    add_predictions,
    fixed_point,
    penalty_labels,
    uniform_penalty,
)

ALL_VALID = torch.ones(1, 1, dtype=torch.bool)


def random_batch(seed, classes, size, scale=3.0, dtype=torch.float32):
    random = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(1, size, classes, generator=random, dtype=dtype)
    return logits.softmax(-1), torch.randint(classes, (size,), generator=random)


def penalty_by_loop(probs, labels, classes):
    """Return the penalty labels by eq. 9-11, sample by sample."""
    rows = np.zeros((classes, classes))
    for p, label in zip(probs, labels, strict=True):
        rows[label] += p
    for k in range(classes):
        rows[k, k] = 0
        total = rows[k].sum()
        rows[k] = rows[k] / total if total > 0 else np.where(np.arange(classes) == k, 0, 1 / (classes - 1))
    return rows


batches = st.builds(
    random_batch,
    st.integers(0, 10**6),
    st.integers(2, 12),
    st.integers(1, 40),
    st.sampled_from([0.0, 1.0, 5.0, 100.0, 1000.0]),
)


def test_scores_computed_by_hand():
    probs = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]])
    labels = torch.tensor([0, 1])
    criterion = CriteriaALL(3, lam=0.5)
    criterion.penalty.copy_(torch.tensor([[0, 0.9, 0.1], [0.2, 0, 0.8], [0.5, 0.5, 0]]))
    assert torch.allclose(CriteriaOL(3)(probs, labels), torch.tensor([[0.7, 0.3]]))
    assert torch.allclose(CriteriaPL.forward(criterion, probs, labels), torch.tensor([[-0.19, -0.50]]))
    assert torch.allclose(criterion(probs, labels), torch.tensor([[0.7 - 0.5 * 0.19, 0.3 - 0.5 * 0.50]]))


def test_penalty_labels_of_figure_3():
    """Mixed noise of 24% + 16% and perfect predictions: 0.60 for the dominant class, 0.05 for the others."""
    from labelsieve.noise import mixed

    matrix = mixed(10, 0.4, dominant=0.6)  # rows are true classes, which a perfect network predicts
    by_observed = fixed_point(matrix.T).unsqueeze(0)
    penalty = penalty_labels(by_observed, uniform_penalty(10))[0]
    assert penalty[6, 5] == pytest.approx(0.60)  # most wrong labels 6 come from class 5
    assert penalty[6, 2] == pytest.approx(0.05)
    assert penalty[6, 6] == 0


@given(batches)
def test_stacked_penalty_equals_the_reference_loop(batch):
    probs, labels = batch
    classes = probs.shape[-1]
    criterion = CriteriaPL(classes)
    criterion.observe(probs, labels, None, ALL_VALID.expand(probs.shape[:2]))
    criterion.end_epoch(None)
    expected = penalty_by_loop(fixed_point(probs[0]).double().numpy() / FIXED_POINT, labels.numpy(), classes)
    assert np.allclose(criterion.penalty[0].numpy(), expected, atol=1e-6)


@given(batches)
def test_penalty_rows_sum_to_one_with_zero_diagonal(batch):
    probs, labels = batch
    criterion = CriteriaPL(probs.shape[-1])
    criterion.observe(probs, labels, None, ALL_VALID.expand(probs.shape[:2]))
    criterion.end_epoch(None)
    assert torch.isfinite(criterion.penalty).all() and (criterion.penalty >= 0).all()
    assert (criterion.penalty.diagonal(dim1=-2, dim2=-1) == 0).all()
    assert torch.allclose(criterion.penalty.sum(-1), torch.ones(1, probs.shape[-1]), atol=1e-6)
    sums = fixed_point(probs.double()).sum(1, keepdim=True).expand(1, probs.shape[-1], -1).contiguous()
    exact = penalty_labels(sums, uniform_penalty(probs.shape[-1]).double())
    assert torch.allclose(exact.sum(-1), torch.ones(1, dtype=torch.float64), atol=1e-12)


@given(batches, st.randoms(use_true_random=False))
def test_sums_do_not_depend_on_order_or_batches(batch, random):
    probs, labels = batch
    size = len(labels)
    order = list(range(size))
    random.shuffle(order)
    cut = random.randint(0, size)
    whole, split = CriteriaPL(probs.shape[-1]), CriteriaPL(probs.shape[-1])
    whole.stack(probs, labels, ALL_VALID.expand(probs.shape[:2]))
    for part in (order[:cut], order[cut:]):
        split.stack(probs[:, part], labels[part], torch.ones(1, len(part), dtype=torch.bool))
    assert torch.equal(whole.sums, split.sums) and torch.equal(whole.columns, split.columns)


@given(batches, st.randoms(use_true_random=False))
def test_permuting_the_classes_permutes_the_penalty_and_keeps_the_scores(batch, random):
    probs, labels = batch
    classes = probs.shape[-1]
    q = list(range(classes))
    random.shuffle(q)
    inverse = torch.tensor(q).argsort()
    plain, renamed = CriteriaALL(classes), CriteriaALL(classes)
    for criterion, p, y in ((plain, probs, labels), (renamed, probs[..., inverse], torch.tensor(q)[labels])):
        criterion.stack(p, y, ALL_VALID.expand(p.shape[:2]))
        criterion.end_epoch(None)
    assert torch.equal(renamed.penalty[0][q][:, q], plain.penalty[0])
    assert torch.allclose(renamed(probs[..., inverse], torch.tensor(q)[labels]), plain(probs, labels), atol=1e-6)


@given(batches, st.sampled_from([0.25, 1.0, 2.0]))
def test_uniform_penalty_keeps_the_order_of_ol(batch, lam):
    """The paper's theorem: ALL = (1 + lam/(K-1)) OL - lam/(K-1), so a gap in OL is a gap in ALL."""
    probs, labels = batch[0].double(), batch[1]
    classes = probs.shape[-1]
    criterion = CriteriaALL(classes, lam=lam).double()
    observed, both = CriteriaOL(classes)(probs, labels)[0], criterion(probs, labels)[0]
    assert torch.allclose(both, (1 + lam / (classes - 1)) * observed - lam / (classes - 1), atol=1e-6)
    gap = observed[:, None] - observed[None, :] > 1e-6
    assert (both[:, None] > both[None, :])[gap].all()


@given(batches, st.floats(0, 4))
def test_all_of_two_classes_is_a_linear_function_of_ol(batch, lam):
    """The penalty label of a class can only be the other class: ALL = (1 + lam) OL - lam."""
    probs, labels = random_batch(len(batch[1]), 2, 30)
    criterion = CriteriaALL(2, lam=lam)
    criterion.stack(probs, labels, ALL_VALID.expand(probs.shape[:2]))
    criterion.end_epoch(None)
    assert torch.equal(criterion.penalty[0], torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    observed = CriteriaOL(2)(probs, labels)
    assert torch.allclose(criterion(probs, labels), (1 + lam) * observed - lam, atol=1e-5)


@given(batches)
def test_lambda_zero_is_ol_bit_for_bit(batch):
    probs, labels = batch
    criterion = CriteriaALL(probs.shape[-1], lam=0.0)
    criterion.stack(probs, labels, ALL_VALID.expand(probs.shape[:2]))
    criterion.end_epoch(None)
    assert torch.equal(criterion(probs, labels), CriteriaOL(probs.shape[-1])(probs, labels))


@given(batches, st.floats(0, 2))
def test_all_lies_between_minus_lambda_and_ol(batch, lam):
    probs, labels = batch
    criterion = CriteriaALL(probs.shape[-1], lam=lam)
    criterion.stack(probs, labels, ALL_VALID.expand(probs.shape[:2]))
    criterion.end_epoch(None)
    scores = criterion(probs, labels)
    assert (scores <= CriteriaOL(probs.shape[-1])(probs, labels)).all()
    assert (scores >= -lam - 1e-6).all()


def test_unseen_class_keeps_its_row():
    criterion = CriteriaPL(3)
    criterion.stack(torch.tensor([[[0.1, 0.8, 0.1]]]), torch.tensor([0]), ALL_VALID)
    criterion.end_epoch(None)
    first = criterion.penalty.clone()
    assert torch.allclose(first[0, 0], torch.tensor([0, 8 / 9, 1 / 9]))
    assert torch.equal(first[0, 1:], uniform_penalty(3)[0, 1:])
    criterion.stack(torch.tensor([[[0.6, 0.1, 0.3]]]), torch.tensor([1]), ALL_VALID)
    criterion.end_epoch(None)
    assert torch.equal(criterion.penalty[0, 0], first[0, 0])
    assert not torch.equal(criterion.penalty[0, 1], first[0, 1])


def test_row_without_probability_outside_its_class_is_kept():
    """A logit gap of 105 leaves a probability of exactly 0 for the other classes in float32."""
    probs = torch.tensor([[[0.0, 0.0, 200.0]]]).softmax(-1)
    criterion = CriteriaPL(3)
    criterion.stack(probs, torch.tensor([2]), ALL_VALID)
    criterion.end_epoch(None)
    assert torch.equal(criterion.penalty, uniform_penalty(3))


def test_repredict_uses_only_predictions_at_the_end_of_the_epoch():
    during, after = random_batch(0, 4, 30), random_batch(1, 4, 30)
    repredict, stacked = CriteriaPL(4, update="repredict"), CriteriaPL(4)
    repredict.start_epoch(0)
    repredict.observe(*during, None, ALL_VALID.expand(1, 30))
    repredict.end_epoch(lambda: iter([(*after, torch.arange(30))]))
    repredict.start_epoch(1)
    stacked.stack(*after, ALL_VALID.expand(1, 30))
    stacked.end_epoch(None)
    assert torch.equal(repredict.penalty, stacked.penalty)


def test_repredict_without_predictions_is_an_error():
    criterion = CriteriaPL(4, update="repredict")
    criterion.start_epoch(0)
    criterion.end_epoch(None)
    with pytest.raises(ValueError, match=r"predict= to loss_fn\.epochs"):
        criterion.start_epoch(1)


def test_column_weight_raises_rarely_predicted_classes():
    """The columns sum to 1.1, 0.6 and 0.3, so class 2 has 1.1/0.3 times the weight of class 0."""
    probs, labels = torch.tensor([[[0.6, 0.3, 0.1], [0.5, 0.3, 0.2]]]), torch.tensor([0, 1])
    for compensate in ("epoch", "iteration"):
        criterion = CriteriaPL(3, compensate=compensate)
        criterion.stack(probs, labels, ALL_VALID.expand(1, 2))
        criterion.end_epoch(None)
        row = criterion.penalty_of(torch.tensor([0]))[0, 0]
        weighted = torch.tensor([0.0, 0.3 / 0.6, 0.1 / 0.3])
        assert torch.allclose(row, weighted / weighted.sum(), atol=1e-6)


def test_column_weight_changes_in_every_iteration():
    probs, labels = random_batch(0, 3, 20)
    criterion = CriteriaPL(3, compensate="iteration")
    criterion.stack(probs, labels, ALL_VALID.expand(1, 20))
    criterion.end_epoch(None)
    before = criterion.penalty_of(labels).clone()
    criterion.stack(torch.tensor([[[0.01, 0.01, 0.98]]]).expand(1, 20, 3), labels, ALL_VALID.expand(1, 20))
    assert not torch.allclose(criterion.penalty_of(labels), before)
    assert torch.allclose(criterion.penalty_of(labels).sum(-1), torch.ones(1, 20))


@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1000, 10_000])
def test_any_number_of_classes(classes):
    probs, labels = random_batch(0, classes, 16)
    criterion = CriteriaALL(classes)
    criterion.stack(probs, labels, ALL_VALID.expand(1, 16))
    criterion.end_epoch(None)
    assert criterion(probs, labels).isfinite().all()
    assert torch.allclose(criterion.penalty.sum(-1), torch.ones(1, classes), atol=1e-5)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: CriteriaPL(1), "at least 2 classes"),
        (lambda: CriteriaPL(10_001), "limit of 10,000"),
        (lambda: CriteriaALL(3, lam=-1), "lam"),
        (lambda: CriteriaALL(3, lam=float("nan")), "lam"),
        (lambda: CriteriaPL(3, update="never"), "stack, repredict"),
        (lambda: CriteriaPL(3, compensate="always"), "off, epoch, iteration"),
    ],
)
def test_invalid_arguments_are_an_error(make, reason):
    with pytest.raises(ValueError, match=reason):
        make()


def test_predictions_that_are_not_valid_are_not_added():
    """Neither those that are not finite, nor those of a network that was not updated."""
    probs = torch.tensor([[[0.25, 0.75], [0.5, 0.5], [float("nan")] * 2, [1.0, 0.0]]])
    labels, sums = torch.tensor([0, 0, 1, 1]), torch.zeros(1, 2, 2, dtype=torch.int64)
    valid = torch.tensor([[True, False, False, True]])
    added = add_predictions(sums, probs, labels, valid)
    expected = torch.tensor([[[0.25, 0.75], [0, 0], [0, 0], [1.0, 0.0]]]) * FIXED_POINT
    assert added.equal(expected.long()) and sums.equal(expected[:, [0, 3]].long())
