"""The kernels of a training step compared with the plain operations, by Triton's interpreter, without a GPU."""

import copy
from fractions import Fraction

import pytest
import torch

from labelsieve.core.method import Decision, Step
from labelsieve.methods import METHODS, Problem, make
from labelsieve.models.densenet import DenseNet
from labelsieve.models.networks import make_networks
from labelsieve.train import Training, step
from labelsieve.train.counters import Meters, Tally
from labelsieve.train.step import Learner, Outcome

pytest.importorskip("triton", reason="Triton has no wheels for this machine")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the interpreter, at NaN and infinity


@pytest.fixture(scope="module")
def kernels():
    """Return the module with interpreted kernels."""
    if torch.cuda.is_available():
        pytest.skip("tests/test_gpu.py tests the compiled kernels")
    from labelsieve.train import kernels

    return kernels


def batch(count, classes, networks=1, seed=0):
    random = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(networks, count, classes, generator=random)
    return logits, torch.randint(classes, (count,), generator=random)


def selecting(name, classes, **options):
    """Return a method in an epoch that selects, with penalty labels from random predictions."""
    method = make(name, Problem(classes, 0.3, 1), **options)
    method.start_epoch(0)
    logits, labels = batch(200, classes, seed=9)
    method(logits[0], labels)
    method.start_epoch(1)
    return method


CASES = [
    ("default", {}, 20, 10),
    ("mentornet", {}, 128, 10),
    ("mentornet-prop", {}, 33, 3),
    ("mentornet-prop", {"criterion": "pl"}, 16, 100),
    ("mentornet-prop", {}, 100, 101),
]


@pytest.mark.parametrize(("name", "options", "count", "classes"), CASES)
def test_decision_loss_and_gradient_match_the_method(kernels, name, options, count, classes):
    method = selecting(name, classes, **options)
    logits, labels = batch(count, classes)
    logits[0, 3] = float("nan")  # comes last
    logits[0, 5, 1] = float("-inf")
    logits[0, 7:11] = logits[0, 7]  # equal scores where labels are equal
    if name == "default":
        logits[0, 3] = 0
    assert kernels.decides(method, count, classes)
    leaf = logits.clone().requires_grad_()
    expected = method.step(leaf, labels)
    expected.loss.backward()
    found, gradient = kernels.decide(method, logits, labels)
    assert torch.equal(found.decision.weight, expected.decision.weight)
    assert torch.equal(found.decision.target, expected.decision.target)
    torch.testing.assert_close(found.probs, expected.probs, equal_nan=True)
    torch.testing.assert_close(found.losses, expected.losses.detach())
    torch.testing.assert_close(found.loss, expected.loss.detach())
    torch.testing.assert_close(gradient, leaf.grad)
    twin = copy.deepcopy(method)
    for applied in (True, False, True):
        method.observe(found, labels, None, torch.tensor([applied]))
        kernels.observe(twin, found, labels, torch.tensor([applied]))
    assert all(torch.equal(a, b) for a, b in zip(method.state_dict().values(), twin.state_dict().values(), strict=True))


def test_step_that_is_not_finite_has_a_loss_that_is_not_finite(kernels):
    logits, labels = batch(8, 4)
    logits[0, 2, 1] = float("inf")
    assert not kernels.decide(make("default", Problem(4, 0.0)), logits, labels)[0].losses.isfinite().any()


def test_only_plain_selections_are_decided(kernels):
    assert {name for name in METHODS if kernels.decides(make(name, Problem(10, 0.4, 5, 128)), 128, 10)} == {
        "default",
        "mentornet",
        "mentornet-prop",
    }
    plain = make("mentornet-prop", Problem(10, 0.4, 0))
    assert not kernels.decides(plain, 129, 10) and not kernels.decides(plain, 128, 11)
    assert not kernels.decides(make("default", Problem(129, 0.0)), 128, 129)
    for options in ({"align": True}, {"floor": 0.5}, {"criterion": "margin"}):
        assert not kernels.decides(make("mentornet-prop", Problem(10, 0.4, 0), **options), 128, 10)
    plain.weigh[0].trust(torch.ones(300, dtype=torch.bool))
    assert not kernels.decides(plain, 128, 10)


@pytest.mark.parametrize(("networks", "classes", "clean_known"), [(1, 10, True), (2, 3, True), (2, 200, False)])
def test_statistics_match_meters_and_tally(kernels, networks, classes, clean_known):
    device = torch.device("cpu")
    method = make("co-teaching" if networks == 2 else "mentornet", Problem(classes, 0.3, 0))
    ours, plain = ((Meters(networks, classes, device), Tally(method, 90, device)) for _ in range(2))
    position = torch.tensor(5)
    for number, (finite, enabled) in enumerate([(True, 0), (True, 1), (False, 1), (True, 1)]):
        logits, labels = batch(40, classes, networks, number)
        probs = logits.softmax(-1)
        if number == 3:
            probs[-1, 4] = float("nan")
        weight = (torch.rand(networks, 40) < 0.6).float()
        clean, index = torch.randint(classes, (40,)), torch.randperm(90)[:40]
        target = labels.expand(networks, 40) if number % 2 else torch.randint(classes, (networks, 40))
        losses = torch.rand(networks)
        good = torch.tensor([True] * (networks - 1) + [finite])
        outcome = Outcome(Step(losses.sum(), losses, probs, Decision(target, weight)), good)
        for _, tally in (ours, plain):
            tally.enabled.fill_(enabled)
        known = clean if clean_known else None
        kernels.count(*ours, position, outcome, labels, known, index)
        plain[0].add(outcome, labels, known)
        plain[1].add(outcome.step, good, labels, index)
    assert position == 5 + 4 * 40
    assert ours[0].read(clean_known) == plain[0].read(clean_known)
    for name, sums in plain[1].tensors().items():
        torch.testing.assert_close(ours[1].tensors()[name], sums, atol=1e-6, rtol=0)


def test_batch_is_taken_at_the_position(kernels):
    order, labels, clean = torch.randperm(50), torch.randint(9, (50,)), torch.randint(9, (50,))
    index, taken, true = kernels.take(order, torch.tensor(7), 30, labels, clean)
    assert torch.equal(index, order[7:37]) and torch.equal(taken, labels[index]) and torch.equal(true, clean[index])
    assert kernels.take(order, torch.tensor(0), 5, labels, None)[2] is None


@pytest.mark.parametrize("nesterov", [True, False])
def test_update_equals_sgd_of_torch(kernels, nesterov):
    torch.manual_seed(0)
    flat, settings = torch.randn(3000), {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": nesterov}
    twin = torch.nn.Parameter(flat.clone())
    momentum, rate = torch.zeros(3000), torch.tensor(0.1)
    theirs = torch.optim.SGD([twin], lr=0.1, **settings)
    ours = torch.optim.SGD([torch.nn.Parameter(flat)], lr=rate, **settings)
    for number in range(5):
        gradient = torch.randn(3000)
        pieces = [gradient[:1000].clone(), gradient[1000:].clone()]
        weight, losses = torch.zeros(1, 40), torch.ones(1)
        weight[0, 33] = number != 2  # no sample to learn from in step 2
        if number == 1:
            pieces[1][-1] = float("nan")
        if number == 3:
            losses[0] = float("inf")
        applied = number in (0, 4)
        step_ = Step(losses[0], losses, torch.empty(0), Decision(weight, weight))
        finite, learns = kernels.update([flat], [pieces], [momentum], step_, [ours])
        assert (finite.item(), learns.item()) == (number not in (1, 3), applied)
        if applied:
            twin.grad = gradient
            theirs.step()
        torch.testing.assert_close(flat, twin.detach(), atol=1e-6, rtol=1e-6)
    now, then = torch.arange(5), torch.zeros(5, dtype=torch.int64)
    kernels.restore(now, then, torch.tensor(True))
    assert now[3] == 3
    kernels.restore(now, then, torch.tensor(False))
    assert not now.any()


def test_steps_of_a_learner_match_those_without_kernels(kernels, monkeypatch):
    """Four steps of the fused network, of which one is undone, compared with plain layers and operations."""
    from labelsieve.models import fused

    def train(with_kernels):
        networks = make_networks(lambda: DenseNet(3, 4, depth=7, growth=4, dropout=0.0), 1, 0).train()
        if with_kernels:
            monkeypatch.setattr(step, "step_kernels", lambda device: kernels)
            monkeypatch.setattr(step, "_flattens", lambda network, training: True)
            networks[0].forward = lambda x: fused.logits(networks[0], x, torch.float32)
        method = make("mentornet-prop", Problem(4, 0.3, 0))
        method.start_epoch(0)
        learner = Learner(networks, method, Training(lr=0.05))
        assert (learner.parameters[0] is not None) == with_kernels
        losses = []
        random = torch.Generator().manual_seed(1)
        for number in range(4):
            x, y = torch.randn(12, 3, 8, 8, generator=random), torch.randint(4, (12,), generator=random)
            x = x * float("nan") if number == 2 else x
            outcome = learner.step(x, y, torch.arange(12))
            assert outcome.finite.item() == (number != 2)
            if number != 2:  # plain layers pass NaN on, the fused ones to their gradients only
                losses.append(outcome.step.losses.detach())
        return torch.cat(losses), [*networks.state_dict().values(), *method.state_dict().values()]

    (losses, state), (losses_kernels, state_kernels) = train(False), train(True)
    torch.testing.assert_close(losses_kernels, losses, atol=1e-4, rtol=1e-4)
    for tensor, twin in zip(state_kernels, state, strict=True):
        assert (tensor.double() - twin.double()).norm() <= 1e-3 * twin.double().norm() + 1e-6


def test_shares_stay_exact(kernels):
    """0.7 of 10 samples are 7, although the product of floats is above 7."""
    method = make("mentornet", Problem(4, 0.3, 0))
    method.start_epoch(0)
    assert method.weigh[0].kept_share == Fraction(7, 10)
    logits, labels = batch(10, 4)
    assert kernels.decide(method, logits, labels)[0].decision.weight.sum() == 7
