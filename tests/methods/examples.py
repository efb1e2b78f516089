"""Every method with every criterion, ready for a training step."""

import torch

from labelsieve.core import CRITERIA
from labelsieve.methods import METHODS, Problem, make

SAMPLES = 300
WITH_OPTION = ("mentornet align", "mentornet-prop align", "sl-prop align")  # a method and an option set to True
COMBINATIONS = [(name, criterion) for name in (*METHODS, *WITH_OPTION) for criterion in (None, *CRITERIA)]


def batch(method, seed=0, size=20, classes=5, scale=2.0):
    """Return logits (N, B, K), labels and index."""
    random = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(method.networks, size, classes, generator=random)
    labels = torch.randint(classes, (size,), generator=random)
    return logits, labels, torch.randperm(SAMPLES, generator=random)[:size]


def built(name, criterion=None, rate=0.4, classes=5, **options):
    """Return a method; words after its name are options set to True."""
    method, *flags = name.split()
    problem = Problem(classes, rate, warmup=1, num_samples=SAMPLES)
    return make(method, problem, criterion, **dict.fromkeys(flags, True), **options)


def predictor(method, classes):
    """Return a `predict` function for end_epoch."""
    logits, labels, _ = batch(method, 77, SAMPLES, classes)
    return lambda: iter([(logits.softmax(-1), labels, torch.arange(SAMPLES))])


def ready(name, criterion=None, rate=0.4, classes=5, size=20, **options):
    """Return a method in its second epoch, the first after the warm-up."""
    method = built(name, criterion, rate, classes, **options)
    method.start_round(0)
    method.start_epoch(0)
    step(method, *batch(method, 50, size, classes))
    method.end_epoch(predictor(method, classes))
    method.start_epoch(1)
    return method


def step(method, logits, labels, index):
    """Return a step after the state was updated."""
    result = method.step(logits, labels, index)
    method.observe(result, labels, index)
    return result
