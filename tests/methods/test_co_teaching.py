"""Co-teaching, Co-teaching+ and JoCoR against loops written from their papers."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from labelsieve.methods import Problem, make
from labelsieve.methods.co_teaching import CriteriaJoint, JointLoss
from tests.methods.loops import (
    BATCH,
    CLASSES,
    cross_entropy,
    loss_of,
    made_up_training,
    random_batch,
    run,
    smallest,
    softmax,
)


def test_co_teaching_equals_the_reference_loop():
    labels, steps = made_up_training(0, epochs=6, networks=2)
    done = run(make("co-teaching", Problem(CLASSES, 0.4, 0), ramp=4), labels, steps)
    for (epoch, index, logits), step in zip(steps, done, strict=True):
        count = math.ceil(round(BATCH * (1 - 0.4 * min(1, (epoch + 1) / 4)), 9))
        probs = softmax(logits)
        losses = [[cross_entropy(probs[n, i], labels[index[i]]) for i in range(BATCH)] for n in (0, 1)]
        picks = [smallest(losses[n], count) for n in (0, 1)]
        expected = [np.mean([losses[0][i] for i in picks[1]]), np.mean([losses[1][i] for i in picks[0]])]
        assert step.losses.tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("empty", ["skip", "everything"])
def test_co_teaching_plus_equals_the_reference_loop(empty):
    labels, steps = made_up_training(1, epochs=6, networks=2, spread=0.3)
    for number, (_, _, logits) in enumerate(steps):
        if number % 5 == 4:
            logits[1] = logits[0]  # the networks agree on everything
    method = make("co-teaching+", Problem(CLASSES, 0.4, 0), ramp=4, init_epoch=2, empty=empty)
    skipped = 0
    for (epoch, index, logits), step in zip(steps, run(method, labels, steps), strict=True):
        probs = softmax(logits)
        losses = [[cross_entropy(probs[n, i], labels[index[i]]) for i in range(BATCH)] for n in (0, 1)]
        candidates = list(range(BATCH))
        if epoch >= 2:
            candidates = [i for i in range(BATCH) if probs[0, i].argmax() != probs[1, i].argmax()]
        if not candidates and empty == "everything":
            candidates = list(range(BATCH))
        if not candidates:
            assert not step.decision.active.any() and (step.losses == 0).all()
            skipped += 1
            continue
        count = math.ceil(round(len(candidates) * (1 - 0.4 * min(1, (epoch + 1) / 4)), 9))
        picks = [[candidates[j] for j in smallest([losses[n][i] for i in candidates], count)] for n in (0, 1)]
        expected = [np.mean([losses[0][i] for i in picks[1]]), np.mean([losses[1][i] for i in picks[0]])]
        assert step.losses.tolist() == pytest.approx(expected, rel=1e-4)
    assert (skipped > 0) == (empty == "skip")


def test_co_teaching_of_identical_networks_is_mentornet():
    labels, steps = made_up_training(7, epochs=3)
    doubled = [(epoch, index, np.repeat(logits, 2, 0)) for epoch, index, logits in steps]
    for criterion in ("ol", "all"):
        two = run(make("co-teaching", Problem(CLASSES, 0.4, 0), criterion, ramp=1), labels, doubled)
        single = run(make("mentornet", Problem(CLASSES, 0.4, 0), criterion), labels, steps)
        for a, b in zip(two, single, strict=True):
            assert torch.allclose(a.losses, b.losses.expand(2))


def test_swapping_the_networks_swaps_the_losses():
    labels, steps = made_up_training(8, epochs=3, networks=2)
    swapped = [(epoch, index, logits[::-1].copy()) for epoch, index, logits in steps]
    for name in ("co-teaching", "co-teaching+", "jocor"):
        problem = Problem(CLASSES, 0.4, 1)
        for a, b in zip(
            run(make(name, problem), labels, steps), run(make(name, problem), labels, swapped), strict=True
        ):
            assert torch.allclose(a.losses, b.losses.flip(0), atol=1e-6)


def test_jocor_loss_and_criterion_computed_by_hand():
    logits, target, weight, labels = random_batch(networks=2)
    p, q = logits.softmax(-1)
    apart = (p * (p / q).log() + q * (q / p).log()).sum(-1)
    entropy = F.cross_entropy(logits[0], labels, reduction="none") + F.cross_entropy(
        logits[1], labels, reduction="none"
    )
    joint = 0.2 * entropy + 0.8 * apart
    assert loss_of(JointLoss(0.8), logits, target, weight, labels).sum().item() == pytest.approx(joint.mean().item())
    scores = CriteriaJoint(4, agreement=0.8)(logits.softmax(-1), labels)
    assert torch.allclose(scores, -joint.expand(2, -1), atol=1e-5)
