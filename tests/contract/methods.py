"""What the contract tests share: every method with every criterion it admits, ready to use."""

import torch

from labelsieve import METHODS, Problem, make
from labelsieve.core import CRITERIA

SAMPLES = 300
WITH_OPTION = ("mentornet align", "mentornet-prop align", "sl-prop align")  # a method, and an option that is True
COMBINATIONS = [(name, criterion) for name in (*METHODS, *WITH_OPTION) for criterion in (None, *CRITERIA)]


def batch(method, seed=0, size=20, classes=5, scale=2.0):
    """Logits (N, B, K), labels and index."""
    random = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(method.networks, size, classes, generator=random)
    labels = torch.randint(classes, (size,), generator=random)
    return logits, labels, torch.randperm(SAMPLES, generator=random)[:size]


def built(name, criterion=None, rate=0.4, classes=5, **options):
    method, *also = name.split()
    problem = Problem(classes, rate, warmup=1, num_samples=SAMPLES)
    return make(method, problem, criterion, **dict.fromkeys(also, True), **options)


def predictor(method, classes):
    logits, labels, _ = batch(method, 77, SAMPLES, classes)
    return lambda: iter([(logits.softmax(-1), labels, torch.arange(SAMPLES))])


def ready(name, criterion=None, rate=0.4, classes=5, size=20, **options):
    """A method in its second epoch, the first after the warm-up."""
    method = built(name, criterion, rate, classes, **options)
    method.start_round(0)
    method.start_epoch(0)
    step(method, *batch(method, 50, size, classes))
    method.end_epoch(predictor(method, classes))
    method.start_epoch(1)
    return method


def step(method, logits, labels, index):
    """A whole step, remembered."""
    done = method.step(logits, labels, index)
    method.observe(done, labels, index)
    return done
