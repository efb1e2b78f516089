"""Learner: undone updates and steps with a second pass."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from labelsieve.methods import Problem, make
from labelsieve.models.networks import make_networks
from labelsieve.train.step import Learner
from tests.train.test_loop import TRAINING, densenet, make_method, network_maker


def test_network_without_samples_to_learn_from_is_unchanged(noisy_blobs):
    """Co-teaching+ with two equal networks: they never disagree, so there is no update, not even by weight decay."""
    method = make("co-teaching+", Problem(4, 0.3, 0))
    single = make_networks(densenet, 1, 0)[0]
    twins = torch.nn.ModuleList([single, copy.deepcopy(single)])
    twins.forward = lambda x: torch.stack([twins[0](x), twins[1](x)])
    for module in twins.modules():
        if hasattr(module, "rate"):
            module.rate = 0.0  # no dropout, so the networks stay equal
    learner = Learner(twins, method, TRAINING)
    state = [*twins.parameters(), *twins.buffers()]
    before = [tensor.clone() for tensor in state]
    outcome = learner.step(noisy_blobs.inputs(torch.arange(32)), noisy_blobs.labels[:32], torch.arange(32))
    assert outcome.finite.all() and not outcome.step.decision.active.any()
    state = [*twins.parameters(), *twins.buffers()]
    assert all(torch.equal(tensor, then) for tensor, then in zip(state, before, strict=True))


def test_step_that_is_not_finite_changes_nothing(noisy_blobs):
    nets, method = network_maker()(0), make_method()
    learner = Learner(nets, method, TRAINING)
    good, index = noisy_blobs.inputs(torch.arange(32)), torch.arange(32)
    learner.step(good, noisy_blobs.labels[:32], index)
    momenta = [optimizer.state[p]["momentum_buffer"] for optimizer in learner.optimizers for p in nets.parameters()]
    state = [*nets.state_dict().values(), *method.state_dict().values(), *momenta]
    before = [tensor.clone() for tensor in state]
    outcome = learner.step(good * float("nan"), noisy_blobs.labels[:32], index)
    assert not outcome.finite.any()
    assert all(torch.equal(tensor, then) for tensor, then in zip(state, before, strict=True))
    assert learner.step(good, noisy_blobs.labels[:32], index).finite.all()
    assert not all(torch.equal(tensor, then) for tensor, then in zip(state, before, strict=True))


def test_second_pass_learns_only_from_the_kept_samples(noisy_blobs):
    """Compare with a plain loop: select in one pass, discard its batch-norm statistics, learn from another."""
    nets, bare = make_networks(densenet, 1, 0), make_networks(densenet, 1, 0)[0]
    for module in (*nets.modules(), *bare.modules()):
        if hasattr(module, "rate"):
            module.rate = 0.0
    method = make("mentornet", Problem(4, 0.3, 0))
    method.start_epoch(0)
    learner = Learner(nets.train(), method, replace(TRAINING, forward="second"))
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    for start in (0, 32, 64):
        index = torch.arange(start, start + 32)
        x, y = noisy_blobs.inputs(index), noisy_blobs.labels[index]
        outcome = learner.step(x, y, index)
        with torch.no_grad():
            confidence = copy.deepcopy(bare).train()(x).softmax(-1)[torch.arange(32), y]
        kept = confidence.argsort(descending=True)[:23].sort().values  # ceil(0.7 * 32)
        assert outcome.step.decision.weight[0].nonzero().flatten().tolist() == kept.tolist()
        F.cross_entropy(bare.train()(x[kept]), y[kept]).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, value in bare.state_dict().items():
        torch.testing.assert_close(nets[0].state_dict()[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["co-teaching", "selfie", "vat", "active-bias"])
def test_second_pass_needs_a_known_number_of_kept_samples(name):
    with pytest.raises(ValueError, match="needs a method with one network that only selects"):
        make_method(name).num_kept(32)
