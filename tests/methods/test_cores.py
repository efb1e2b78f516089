"""CORES²: the confidence term, the prior and the sieve."""

import math

import numpy as np
import pytest
import torch

from labelsieve.methods import Problem, make
from labelsieve.methods.cores import ConfidenceRegularized
from tests.methods.loops import BATCH, CLASSES, loss_of_sample, made_up_training, run, softmax


def test_value_computed_by_hand():
    loss = ConfidenceRegularized(3, beta=2.0, start=0, full=1)
    loss.start_epoch(1)
    mean = -(math.log(0.7) + math.log(0.2) + math.log(0.1)) / 3
    assert loss_of_sample(loss, [0.7, 0.2, 0.1], 0) == pytest.approx(0.35667 - 2 * mean, abs=1e-4)


def test_beta_rises_linearly():
    loss = ConfidenceRegularized(4, beta=2.0, start=2, full=6)
    betas = []
    for epoch in range(8):
        loss.start_epoch(epoch)
        betas.append(loss.beta.item())
    assert betas == [0, 0, 0, 0.5, 1, 1.5, 2, 2]


def test_prior_counts_every_sample_until_the_sieve_starts():
    loss = ConfidenceRegularized(2, beta=2.0, start=0, full=2)
    probs, labels = torch.tensor([[[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]]), torch.tensor([0, 1, 1, 1])
    priors = []
    for epoch in range(4):
        loss.start_epoch(epoch)
        priors.append(loss.prior.tolist())
        loss.observe(probs, labels, None, torch.ones(1, 4, dtype=torch.bool))
        loss.end_epoch(None)
    assert priors == [[0.5, 0.5], [0.25, 0.75], [0.25, 0.75], [0.5, 0.5]]  # the sieve drops two of the three ones


def test_sieve_keeps_losses_up_to_the_mean_over_labels():
    labels, steps = made_up_training(10, epochs=4)
    method = make("cores", Problem(CLASSES, 0.4, 2))
    for (epoch, index, logits), step in zip(steps, run(method, labels, steps), strict=True):
        logs = -np.log(softmax(logits)[0])
        kept = logs[np.arange(BATCH), labels[index]] <= logs.mean(1)
        assert step.decision.weight[0].bool().tolist() == (kept if epoch >= 2 else np.ones(BATCH, bool)).tolist()
