"""Early-learning regularization against a loop written from the paper."""

import math

import numpy as np
import pytest

from labelsieve.methods import Problem, make
from tests.methods.loops import BATCH, CLASSES, SAMPLES, cross_entropy, made_up_training, run, softmax


def test_loss_equals_the_reference_loop():
    labels, steps = made_up_training(6, epochs=5)
    done = run(make("elr", Problem(CLASSES, 0.4, 0, SAMPLES), strength=3.0, beta=0.7), labels, steps)
    targets = np.zeros((SAMPLES, CLASSES))
    for (_, index, logits), step in zip(steps, done, strict=True):
        probs = softmax(logits)[0].clip(1e-4, 1 - 1e-4)
        total = 0
        for i, s in enumerate(index):
            targets[s] = 0.7 * targets[s] + 0.3 * probs[i] / probs[i].sum()
            total += cross_entropy(softmax(logits)[0, i], labels[s]) + 3 * math.log(1 - (targets[s] * probs[i]).sum())
        assert step.loss.item() == pytest.approx(total / BATCH, rel=1e-4)
