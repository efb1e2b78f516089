"""Generalized cross-entropy and pruning."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from labelsieve.methods import Problem, make
from labelsieve.methods.gce import GeneralizedCrossEntropy
from tests.methods.loops import (
    BATCH,
    CLASSES,
    SAMPLES,
    loss_of,
    loss_of_sample,
    made_up_training,
    random_batch,
    run,
    softmax,
)


def test_value_and_gradient_computed_by_hand():
    """q = .7: p = .7 costs .31563, p = .5 costs .54918; the gradient is p^q times that of cross-entropy."""
    assert loss_of_sample(GeneralizedCrossEntropy(0.7), [0.7, 0.2, 0.1], 0) == pytest.approx(0.31563, abs=1e-5)
    assert loss_of_sample(GeneralizedCrossEntropy(0.7), [0.5, 0.4, 0.1], 0) == pytest.approx(0.54918, abs=1e-5)
    assert loss_of_sample(GeneralizedCrossEntropy(0.7, k=0.5), [0.5, 0.4, 0.1], 0) == pytest.approx(0, abs=1e-6)
    logits = torch.randn(1, 1, 3, requires_grad=True)
    target = torch.tensor([[1]])
    (ours,) = torch.autograd.grad(
        GeneralizedCrossEntropy(0.7)(logits, target, torch.ones(1, 1), target[0], None), logits
    )
    (plain,) = torch.autograd.grad(F.cross_entropy(logits[0], target[0]), logits)
    assert torch.allclose(ours, logits.softmax(-1)[0, 0, 1] ** 0.7 * plain, atol=1e-6)


def test_loss_is_divided_by_the_batch_size():
    logits, target, weight, labels = random_batch()
    weight[0, 6:] = 0
    half = loss_of(GeneralizedCrossEntropy(0.7), logits, target, weight, labels)
    first = loss_of(GeneralizedCrossEntropy(0.7), logits[:, :6], target[:, :6], weight[:, :6], labels[:6])
    assert torch.allclose(half, first / 2)


def test_truncated_gce_prunes_like_the_reference_loop():
    labels, steps = made_up_training(9, epochs=6)
    start = softmax(2 * np.random.default_rng(1).normal(size=(SAMPLES, CLASSES)))

    def predict():
        return iter([(torch.from_numpy(start)[None].float(), torch.from_numpy(labels), torch.arange(SAMPLES))])

    method = make("gce", Problem(CLASSES, 0.4, 0, SAMPLES), k=0.5, prune_from=3, prune_every=2)
    sure = start[np.arange(SAMPLES), labels] > 0.5
    for (epoch, index, logits), step in zip(steps, run(method, labels, steps, predict), strict=True):
        kept = sure[index] if epoch >= 3 else np.ones(BATCH, dtype=bool)
        assert step.decision.weight[0].bool().tolist() == kept.tolist()
        p = softmax(logits)[0][np.arange(BATCH), labels[index]]
        expected = (kept * ((1 - p**0.7) - (1 - 0.5**0.7)) / 0.7).sum() / BATCH
        assert step.loss.item() == pytest.approx(expected, rel=1e-3, abs=1e-5)
