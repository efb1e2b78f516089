"""Active Bias against a loop written from the paper."""

import math

import numpy as np
import pytest
import torch

from labelsieve.methods import Problem, make
from labelsieve.methods.active_bias import ActiveBias
from tests.methods.loops import BATCH, CLASSES, SAMPLES, cross_entropy, made_up_training, run, softmax


def test_weights_equal_the_reference_loop():
    labels, steps = made_up_training(4, epochs=6)
    done = run(make("active-bias", Problem(CLASSES, 0.0, 2, SAMPLES)), labels, steps)
    past = {i: [] for i in range(SAMPLES)}
    for (epoch, index, logits), step in zip(steps, done, strict=True):
        probs = softmax(logits)[0]
        weights = np.ones(BATCH)
        if epoch >= 2:
            for i, s in enumerate(index):
                v, n = np.var(past[s]), len(past[s])
                weights[i] = math.sqrt(v + v * v / (n - 1)) + 0.2
            weights *= BATCH / weights.sum()
        expected = np.mean([weights[i] * cross_entropy(probs[i], labels[s]) for i, s in enumerate(index)])
        assert step.loss.item() == pytest.approx(expected, rel=1e-4)
        for i, s in enumerate(index):
            past[s].append(probs[i, labels[s]])


def test_weight_computed_by_hand():
    """History (.1, .5, .9, .4): variance .081875, weight .290016 + .2 before scaling."""
    part = ActiveBias(2)
    for p in (0.1, 0.5, 0.9, 0.4):
        probs = torch.tensor([[[p, 1 - p]]])
        part.observe(probs, torch.tensor([0]), torch.tensor([0]), torch.ones(1, 1, dtype=torch.bool))
    assert (part.squares / part.count)[0, 0].item() == pytest.approx(0.081875)
    both = part(torch.zeros(1, 2, 2), torch.tensor([0, 0]), torch.tensor([0, 1]))[0]
    assert (both[0] / both[1]).item() == pytest.approx(0.490016 / 0.2, rel=1e-5)
    assert both.sum().item() == pytest.approx(2)
