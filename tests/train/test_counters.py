"""Tally: sums per sample, compared with hand computation and checked for every method."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from labelsieve.core.method import Decision, Step
from labelsieve.methods import Problem, make
from labelsieve.models.networks import make_networks
from labelsieve.train import Training, fit
from labelsieve.train.counters import Tally
from tests.methods.examples import COMBINATIONS, batch, ready
from tests.train.test_loop import densenet

pytestmark = pytest.mark.filterwarnings("ignore:dmi cannot learn")


def step(probs, weight):
    """Return a step with these probabilities and weights."""
    probs = torch.tensor(probs)
    networks, size, _ = probs.shape
    decision = Decision(torch.zeros(networks, size, dtype=torch.long), torch.tensor(weight))
    return Step(probs.sum(), torch.zeros(networks), probs, decision)


def test_sums_match_hand_computation():
    one = [[[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]]  # 1 network, 2 samples
    labels, index, finite = torch.tensor([0, 1]), torch.tensor([3, 1]), torch.tensor([True])
    tally = Tally(make("mentornet", Problem(3, 0.2, 1)), 4, torch.device("cpu"))
    tally.start_epoch(0)  # warm-up
    tally.add(step(one, [[1.0, 1.0]]), finite, labels, index)
    assert tally.seen.tolist() == [0, 0, 0, 0] and not any(sums.any() for sums in tally.sums.values())
    tally.start_epoch(1)
    for _ in range(2):
        tally.add(step(one, [[1.0, 0.0]]), finite, labels, index)
    tally.add(step(one, [[1.0, 1.0]]), torch.tensor([False]), labels, index)  # undone
    assert tally.seen.tolist() == [0, 2, 0, 2]
    torch.testing.assert_close(tally.sums["margin"], torch.tensor([0.0, -0.6, 0.0, 1.0]))
    assert tally.sums["selected"].tolist() == [0, 0, 0, 2]


@pytest.mark.parametrize(("name", "options"), [("dmi", {}), ("cores", {}), ("gce", {"k": 0.5})])
def test_warm_up_is_not_counted(name, options):
    tally = Tally(make(name, Problem(3, 0.2, 5, num_samples=4), **options), 4, torch.device("cpu"))
    for epoch, seen in ((0, 0), (4, 0), (5, 1)):
        tally.start_epoch(epoch)
        tally.add(step([[[0.7, 0.2, 0.1]]], [[1.0]]), torch.tensor([True]), torch.tensor([0]), torch.tensor([3]))
        assert tally.seen[3] == seen


def test_networks_are_averaged():
    tally = Tally(make("co-teaching", Problem(3, 0.2, 0)), 2, torch.device("cpu"))
    probs = [[[0.7, 0.2, 0.1]], [[0.5, 0.3, 0.2]]]
    tally.add(step(probs, [[1.0], [0.0]]), torch.tensor([True, True]), torch.tensor([0]), torch.tensor([1]))
    assert tally.sums["margin"].tolist() == pytest.approx([0, 0.35])
    assert tally.sums["selected"].tolist() == [0, 0.5]


def test_prediction_that_is_not_finite_is_skipped():
    tally = Tally(make("default", Problem(3, 0.0)), 2, torch.device("cpu"))
    probs = [[[float("nan")] * 3, [0.6, 0.3, 0.1]]]
    tally.add(step(probs, [[1.0, 1.0]]), torch.tensor([True]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    assert tally.seen.tolist() == [0, 1] and tally.sums["margin"].tolist() == pytest.approx([0, 0.3])


@pytest.mark.parametrize(("name", "criterion"), COMBINATIONS, ids=str)
def test_every_method_has_finite_sums_without_reading_the_device(name, criterion):
    method = ready(name, criterion)
    logits, labels, index = batch(method)
    tally = Tally(method, 300, torch.device("cpu"))
    tally.start_epoch(99)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    done = method.step(logits, labels, index)
    tally.add(done, torch.ones(method.networks, dtype=torch.bool), labels, index)
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())
    assert tally.seen.sum() == len(index)
    assert all(sums.isfinite().all() and sums.shape == (300,) for sums in tally.sums.values())
    assert (tally.sums["selected"][index] > 0).tolist() == (done.decision.weight > 0).any(0).tolist()
    with FakeTensorMode(allow_non_fake_inputs=True):  # no values: a read raises
        fake = torch.randn(method.networks, 20, 5)
        places = torch.zeros(20, dtype=torch.long)
        tally.add(method.step(fake, places, places), torch.ones(method.networks, dtype=torch.bool), places, places)


def test_fit_counts_each_sample_once_per_epoch_after_warm_up(noisy_blobs):
    training = Training(epochs=4, batch=32, lr=0.05)
    method = make("mentornet-prop", Problem(4, 0.3, 1, num_samples=203))
    result = fit(lambda number: make_networks(densenet, 1, 0, number), method, noisy_blobs, training=training)
    assert set(result.samples) == {"margin", "selected", "seen"}
    assert result.samples["seen"].tolist() == [3] * 203
    assert result.samples["selected"].sum() == 3 * (6 * 23 + 8)  # 70% of 32 and of the last 11, rounded up
