"""LCCN against a loop written from the paper."""

import numpy as np
import pytest
import torch

from labelsieve.methods import Problem, make
from labelsieve.runtime import derive
from tests.methods.loops import BATCH, CLASSES, SAMPLES, cross_entropy, made_up_training, run, softmax


def test_gibbs_sampling_equals_the_reference_loop():
    """Gibbs sampling with the same uniform draws; counts move with every sample, the transition every third step."""
    labels, steps = made_up_training(5, epochs=5)
    method = make("lccn", Problem(CLASSES, 0.4, 2, SAMPLES, seed=9), refresh=3)
    start = softmax(2 * np.random.default_rng(1).normal(size=(SAMPLES, CLASSES)))
    everything = torch.arange(SAMPLES)

    def predict():
        return iter([(torch.from_numpy(start)[None].float(), torch.from_numpy(labels), everything)])

    done = run(method, labels, steps, predict)
    latent = start.argmax(1)
    counts = np.zeros((CLASSES, CLASSES))
    for z, y in zip(latent, labels, strict=True):
        counts[z, y] += 1
    phi = (counts + 1) / (counts + 1).sum(1, keepdims=True)
    moved = 0
    for number, ((epoch, index, logits), step) in enumerate(zip(steps, done, strict=True)):
        probs = softmax(logits)[0]
        targets = labels[index].copy()
        if epoch >= 2:
            u = torch.rand(SAMPLES, generator=torch.Generator().manual_seed(derive(9, "latent") ^ epoch)).numpy()
            for i, s in enumerate(index):
                posterior = probs[i] * phi[:, labels[s]]
                targets[i] = np.searchsorted(np.cumsum(posterior), u[s] * posterior.sum(), side="right")
                counts[latent[s], labels[s]] -= 1
                counts[targets[i], labels[s]] += 1
                moved += latent[s] != targets[i]
                latent[s] = targets[i]
            if (number + 1) % 3 == 0:
                phi = (counts + 1) / (counts + 1).sum(1, keepdims=True)
        assert step.decision.target[0].tolist() == targets.tolist()
        assert step.loss.item() == pytest.approx(
            np.mean([cross_entropy(probs[i], t) for i, t in enumerate(targets)]), rel=1e-4
        )
    assert moved > 10
    assert np.allclose(method.relabel.counts.numpy(), counts) and counts.sum() == SAMPLES


def test_first_epoch_uses_the_observed_labels_without_a_warmup():
    labels, steps = made_up_training(5, epochs=3)
    start = softmax(2 * np.random.default_rng(1).normal(size=(SAMPLES, CLASSES)))

    def predict():
        return iter([(torch.from_numpy(start)[None].float(), torch.from_numpy(labels), torch.arange(SAMPLES))])

    done = run(make("lccn", Problem(CLASSES, 0.4, 0, SAMPLES)), labels, steps, predict)
    taught = [step.decision.target[0].numpy() == labels[index] for (_, index, _), step in zip(steps, done, strict=True)]
    per_epoch = SAMPLES // BATCH
    assert np.all(taught[:per_epoch]) and not np.all(taught[per_epoch:])
