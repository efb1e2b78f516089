"""Helpers for tests of methods: batches, a made-up training, and reference computations in NumPy."""

import math

import numpy as np
import torch

CLASSES, SAMPLES, BATCH = 5, 40, 10


def made_up_training(seed, epochs, networks=1, spread=1.0):
    """Return the labels of all samples and the steps of a training: (epoch, index, logits (N, B, K))."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, SAMPLES)
    base = 2 * random.normal(size=(networks, SAMPLES, CLASSES))
    steps = []
    for epoch in range(epochs):
        order = random.permutation(SAMPLES)
        for step in range(SAMPLES // BATCH):
            index = order[step * BATCH : (step + 1) * BATCH]
            steps.append((epoch, index, base[:, index] + spread * random.normal(size=(networks, BATCH, CLASSES))))
    return labels, steps


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cross_entropy(probs, label):
    return -math.log(probs[label])


def run(method, labels, steps, predict=None):
    """Return the Step of every batch."""
    done, last = [], -1
    method.start_round(0)
    for epoch, index, logits in steps:
        if epoch != last:
            if last >= 0:
                method.end_epoch(predict)
            method.start_epoch(epoch)
            last = epoch
        at = torch.from_numpy(index)
        y = torch.from_numpy(labels[index])
        step = method.step(torch.from_numpy(logits).float(), y, at)
        method.observe(step, y, at)
        done.append(step)
    return done


def smallest(losses, count):
    """Return the positions of the smallest losses."""
    return sorted(range(len(losses)), key=lambda i: losses[i])[:count]


def random_batch(seed=0, classes=4, networks=1):
    """Return logits (N, 12, K), target, weight and labels."""
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(networks, 12, classes, generator=random)
    labels = torch.randint(classes, (12,), generator=random)
    return logits, labels.expand(networks, 12), torch.ones(networks, 12), labels


def loss_of(loss, logits, target, weight, labels):
    """Return the loss of a batch with index 0, 1, ..."""
    return loss(logits, target, weight, labels, torch.arange(len(labels)))


def loss_of_sample(loss, probs, label):
    """Return the loss of one sample with these probabilities."""
    logits = torch.tensor([[probs]]).log()
    target = torch.tensor([[label]])
    return loss(logits, target, torch.ones(1, 1), target[0], None).item()
