"""A step on a CPU, which shares one log_softmax and skips masks, against the operations of all other devices."""

import copy
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from labelsieve.core import CrossEntropy, Method, Weigh
from labelsieve.core.criteria import FIXED_POINT, add_predictions, fixed_point
from labelsieve.methods import Problem, make

METHODS = [
    ("default", {}),
    ("mentornet", {}),
    ("mentornet-prop", {}),
    ("mentornet-prop", {"lam": 0.3, "align": True, "floor": 0.5}),
    ("mentornet-prop", {"compensate": "iteration"}),
    ("co-teaching", {"ramp": 1}),
    ("co-teaching+", {"ramp": 1, "init_epoch": 0}),
    ("active-bias", {}),
    ("active-bias", {"criterion": "all"}),
    ("selfie-prop", {}),
]
INFINITE = float("inf")


def batch(kind, seed, samples=24, classes=5):
    random = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=random)
    labels = torch.randint(classes, (samples,), generator=random)
    if kind == "ties":
        logits, labels = logits[:3].repeat(samples // 3, 1), labels[:3].repeat(samples // 3)
    if kind == "far":  # probabilities of 0 and 1
        logits *= 100
    if kind == "impossible":
        logits[:, 0] = -INFINITE
        labels.clamp_(min=1)
    if kind == "not finite":
        logits[4], logits[9, 2], logits[11] = float("nan"), INFINITE, -INFINITE
    return logits, labels


@contextmanager
def as_elsewhere():
    """Compute as on a GPU: from logits, and without reading values."""
    with (
        patch.object(CrossEntropy, "log_softmax", lambda self, logits: None),
        patch("torch.compiler.is_compiling", lambda: True),
    ):
        yield


def trained(name, options, kind, rate=0.4, *, general):
    """Return losses, gradients and weights of six steps in two epochs, and the state after them."""
    options = dict(options)
    method = make(name, Problem(5, rate, warmup=1, num_samples=24), options.pop("criterion", None), **options)
    steps = []
    with as_elsewhere() if general else nullcontext():
        for epoch in range(3):
            method.start_epoch(epoch)
            for seed in range(2):
                logits, labels = batch(kind, seed)
                logits = logits + 0.1 * torch.arange(method.networks).view(-1, 1, 1)  # each network differs
                logits = torch.stack([logits[n].roll(n, -1) for n in range(method.networks)]).requires_grad_()
                step = method.step(logits, labels, torch.arange(24))
                step.loss.backward()
                method.observe(step, labels, torch.arange(24))
                steps.append((step.loss.detach(), logits.grad, step.decision.weight, step.probs))
    return steps, method.state_dict()


@pytest.mark.parametrize("kind", ["random", "ties", "far", "impossible", "not finite"])
@pytest.mark.parametrize(("name", "options"), METHODS)
def test_step_is_that_of_the_general_operations(name, options, kind):
    (fast, state), (general, expected) = (trained(name, options, kind, general=way) for way in (False, True))
    for (loss, gradient, weight, probs), (true_loss, true_gradient, true_weight, true_probs) in zip(
        fast, general, strict=True
    ):
        assert torch.equal(weight > 0, true_weight > 0)
        torch.testing.assert_close((weight, probs), (true_weight, true_probs), rtol=1e-5, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(loss, true_loss, rtol=1e-5, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(gradient, true_gradient, rtol=1e-5, atol=1e-7, equal_nan=True)
    for key, value in expected.items():
        scale = FIXED_POINT if value.dtype == torch.int64 and key.endswith(("sums", "columns")) else 1
        torch.testing.assert_close(state[key].double() / scale, value.double() / scale, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["default", "mentornet", "mentornet-prop"])
@pytest.mark.parametrize("kind", ["random", "far", "not finite"])
def test_loss_and_gradient_are_those_of_torch_bit_for_bit_if_all_are_kept(name, kind):
    method = make(name, Problem(5, 0.0, warmup=0))
    method.start_epoch(0)
    logits, labels = batch(kind, 0)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss, expected = method.step(ours, labels).loss, F.cross_entropy(theirs, labels)
    loss.backward()
    expected.backward()
    for one, other in ((loss.detach(), expected.detach()), (ours.grad, theirs.grad)):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32)) or (one.isnan() == other.isnan()).all()
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def test_gradient_can_be_scaled_and_taken_twice():
    method = make("mentornet-prop", Problem(5, 0.4, warmup=0))
    method.start_epoch(0)
    logits, labels = batch("random", 0)
    loss = method(logits.requires_grad_(), labels)
    (once,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (scaled,) = torch.autograd.grad(3 * loss, logits)
    torch.testing.assert_close(3 * once, scaled)


class Halves(Weigh):
    """Weights of 0, 1/2 and 1."""

    def forward(self, probs, labels, index):
        return (torch.arange(probs.shape[1]) % 3 / 2).expand(probs.shape[:-1])


def test_own_weights_that_are_not_only_zero_and_one_count():
    method = Method(CrossEntropy(), [Halves()])
    method.start_epoch(0)
    logits, labels = batch("random", 0)
    weight = torch.arange(24) % 3 / 2
    expected = (F.cross_entropy(logits, labels, reduction="none") * weight).sum() / weight.sum()
    torch.testing.assert_close(method.step(logits, labels).loss, expected)


@pytest.mark.parametrize("networks", [1, 2])
def test_sums_of_valid_predictions_are_those_with_a_mask(networks):
    probs = batch("random", 0)[0].softmax(-1).expand(networks, -1, -1)
    labels = batch("random", 0)[1]
    valid = torch.ones(networks, 24, dtype=torch.bool)
    sums = torch.zeros(networks, 5, 5, dtype=torch.int64)
    masked = sums.clone()
    added = add_predictions(sums, probs, labels, valid)
    with as_elsewhere():
        assert torch.equal(add_predictions(masked, probs, labels, valid), added)
    assert torch.equal(sums, masked) and torch.equal(added, fixed_point(probs))
    valid[0, 3] = False
    without = sums.clone()
    spoilt = probs.clone()
    spoilt[0, 3] = float("nan")
    add_predictions(without, spoilt, labels, valid)
    expected = 2 * sums
    expected[0, labels[3]] -= added[0, 3]
    assert torch.equal(without, expected)


def test_a_copy_of_a_method_uses_its_own_parts():
    method = make("mentornet-prop", Problem(5, 0.4, warmup=0))
    twin = copy.deepcopy(method)
    for each in (method, twin):
        each.start_epoch(0)
    twin.weigh[0].criterion.penalty.copy_(torch.eye(5).roll(1, 1))
    logits, labels = batch("random", 0)
    assert not torch.equal(method.step(logits, labels).decision.weight, twin.step(logits, labels).decision.weight)
