"""Determinant-based mutual information."""

import math

import pytest
import torch
import torch.nn.functional as F

from labelsieve.methods.dmi import Determinant
from tests.methods.loops import loss_of, random_batch


def test_value_computed_by_hand():
    """Rows (.9, .1), (.8, .2) labelled 0 and (.3, .7), (.4, .6) labelled 1: det 2.0 / loss -ln 2.001... of U = Y'P."""
    logits = torch.tensor([[[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]]]).log()
    target = torch.tensor([[0, 0, 1, 1]])
    loss = Determinant(2, start=0)(logits, target, torch.ones(1, 4), target[0], None)
    assert loss.item() == pytest.approx(-math.log(2.001), abs=1e-5) == pytest.approx(-0.69365, abs=1e-5)


def test_permuting_the_labels_does_not_change_the_loss():
    """Other labels multiply U by a transition matrix: the loss moves by a constant, here for a relabelling."""
    logits, target, weight, labels = random_batch()
    swapped = torch.tensor([1, 0, 3, 2])[target]
    loss = Determinant(4, start=0)
    assert torch.allclose(loss_of(loss, logits, target, weight, labels), loss_of(loss, logits, swapped, weight, labels))


def test_many_classes_give_a_finite_loss_and_gradient():
    """Its determinant is about 10^200: neither it nor its gradient may overflow."""
    target = (torch.arange(4000) % 200).unsqueeze(0)
    logits = (torch.randn(1, 4000, 200) + 6 * F.one_hot(target, 200)).requires_grad_()
    loss = Determinant(200, start=0)(logits, target, torch.ones(1, 4000), target[0], None)
    loss.sum().backward()
    assert loss.isfinite().all() and logits.grad.isfinite().all() and logits.grad.abs().sum() > 0


def test_batch_without_every_class_causes_a_warning_and_no_gradient():
    logits, target, weight, labels = random_batch(classes=20)
    logits.requires_grad_()
    with pytest.warns(UserWarning, match="cannot learn from 12 samples of 20 classes"):
        loss = loss_of(Determinant(20, start=0), logits, target, weight, labels)
    loss.sum().backward()
    assert loss.item() == pytest.approx(-math.log(0.001)) and (logits.grad == 0).all()


def test_loss_is_cross_entropy_during_the_warmup():
    logits, target, weight, labels = random_batch()
    loss = Determinant(4, start=2)
    assert loss_of(loss, logits, target, weight, labels).item() == pytest.approx(
        F.cross_entropy(logits[0], labels).item()
    )
    loss.start_epoch(2)
    assert loss_of(loss, logits, target, weight, labels).item() < F.cross_entropy(logits[0], labels).item()
