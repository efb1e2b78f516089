"""Learner: undone updates and steps with a second pass."""

import copy
from dataclasses import replace
from math import isfinite

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from labelsieve.methods import Problem, make
from labelsieve.models.networks import make_networks
from labelsieve.train import fit
from labelsieve.train.step import Learner
from tests.train.test_loop import TRAINING, densenet, make_method, network_maker


def test_network_without_samples_to_learn_from_is_unchanged(noisy_blobs):
    """Co-teaching+ with two equal networks: they never disagree, so there is no update, not even by weight decay."""
    method = make("co-teaching+", Problem(4, 0.3, 0))
    single = make_networks(densenet, 1, 0)[0]
    twins = torch.nn.ModuleList([single, copy.deepcopy(single)])
    twins.forward = lambda x: torch.stack([twins[0](x), twins[1](x)])
    for module in twins.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # no dropout, so the networks stay equal
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
        if isinstance(module, nn.Dropout):
            module.p = 0.0
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


def test_each_network_learns_from_a_second_pass_over_what_the_other_selected(noisy_blobs):
    """Compare co-teaching with a plain loop of two networks."""
    nets = make_networks(densenet, 2, 0)
    for module in nets.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    bare = [copy.deepcopy(network).train() for network in nets]
    method = make("co-teaching", Problem(4, 0.3, 0), ramp=1)
    method.start_epoch(0)
    learner = Learner(nets.train(), method, replace(TRAINING, forward="second"))
    settings = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    optimizers = [torch.optim.SGD(network.parameters(), **settings) for network in bare]
    for start in (0, 32, 64):
        index = torch.arange(start, start + 32)
        x, y = noisy_blobs.inputs(index), noisy_blobs.labels[index]
        learner.step(x, y, index)
        with torch.no_grad():
            scores = [copy.deepcopy(network)(x).softmax(-1)[torch.arange(32), y] for network in bare]
        kept = [score.argsort(descending=True)[:23] for score in scores]  # ceil(0.7 * 32)
        for network, optimizer, rows in zip(bare, optimizers, reversed(kept), strict=True):
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    for network, other in zip(nets, bare, strict=True):
        for name, value in other.state_dict().items():
            torch.testing.assert_close(network.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_second_pass_learns_from_selected_and_corrected_samples(noisy_blobs):
    """SELFIE: six samples that were not selected have a corrected label; they are learnt with it, in the same pass."""
    nets = make_networks(densenet, 1, 0)
    for module in nets.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    bare = copy.deepcopy(nets[0]).train()
    method = make("selfie", Problem(4, 0.5, 1, num_samples=len(noisy_blobs)), history=1)
    method.start_epoch(1)
    index = torch.arange(32)
    x, y = noisy_blobs.inputs(index), noisy_blobs.labels[:32]
    with torch.no_grad():
        order = copy.deepcopy(bare)(x).softmax(-1)[index, y].argsort(descending=True)
    clean, corrected = order[:16], order[16:22]
    target = y.clone()
    target[corrected] = (y[corrected] + 1) % 4
    method.relabel.corrected[corrected] = target[corrected].to(method.relabel.corrected.dtype)
    learner = Learner(nets.train(), method, replace(TRAINING, forward="second"))
    assert learner.num_learned(32) is None
    weight = learner.step(x, y, index).step.decision.weight[0]
    rows = torch.cat([clean, corrected])
    assert weight.nonzero().flatten().tolist() == rows.sort().values.tolist()
    F.cross_entropy(bare(x[rows]), target[rows]).backward()
    torch.optim.SGD(bare.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4).step()
    for name, value in bare.state_dict().items():
        torch.testing.assert_close(nets[0].state_dict()[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["co-teaching", "co-teaching+", "selfie", "selfie-prop"])
def test_methods_with_a_selection_train_with_a_second_pass(name, noisy_blobs):
    rows = {}
    for forward in ("one", "second"):
        method, training = make_method(name), replace(TRAINING, forward=forward, epochs=4)
        make_round = network_maker(count=method.networks)
        rows[forward] = fit(make_round, method, noisy_blobs, noisy_blobs, training=training).rows
    assert isfinite(rows["second"][-1]["train_loss"])
    assert rows["one"][-1]["train_loss"] != rows["second"][-1]["train_loss"]
    if "selfie" in name:  # the warm-up keeps all samples, in one pass
        assert [row["train_loss"] for row in rows["one"][:2]] == [row["train_loss"] for row in rows["second"][:2]]


def test_the_second_pass_has_two_samples_if_one_is_kept():
    learner = Learner(make_networks(densenet, 1, 0), make("mentornet", Problem(4, 0.6, 0)), TRAINING)
    learner.method.start_epoch(0)
    assert learner.num_learned(2) == 2
    learner.training = replace(TRAINING, forward="second")
    assert [learner.num_learned(count) for count in (1, 2, 10)] == [1, 2, 4]


@pytest.mark.parametrize("name", ["vat", "active-bias", "jocor", "lccn"])
def test_second_pass_needs_a_method_that_only_selects(name):
    with pytest.raises(ValueError, match="a second pass over the kept samples needs"):
        make_method(name).num_kept(32)
