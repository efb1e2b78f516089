"""Per-sample statistics: by hand, for every method, and without a trace in anything else."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from labelsieve import Problem, make
from labelsieve.core.method import Decision, Step
from labelsieve.models.networks import make_networks
from labelsieve.train import Training, fit
from labelsieve.train.counters import Tally
from labelsieve.train.evaluate import evidence
from tests.contract.methods import COMBINATIONS, batch, ready
from tests.train.test_fit import densenet

pytestmark = pytest.mark.filterwarnings("ignore:dmi cannot learn")


def step(probs, weight):
    probs = torch.tensor(probs)
    networks, size, _ = probs.shape
    decision = Decision(torch.zeros(networks, size, dtype=torch.long), torch.tensor(weight))
    return Step(probs.sum(), torch.zeros(networks), probs, decision)


def test_the_sums_by_hand():
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
def test_nothing_is_gathered_before_the_method_begins(name, options):
    tally = Tally(make(name, Problem(3, 0.2, 5, num_samples=4), **options), 4, torch.device("cpu"))
    for epoch, seen in ((0, 0), (4, 0), (5, 1)):
        tally.start_epoch(epoch)
        tally.add(step([[[0.7, 0.2, 0.1]]], [[1.0]]), torch.tensor([True]), torch.tensor([0]), torch.tensor([3]))
        assert tally.seen[3] == seen


def test_two_networks_are_averaged():
    tally = Tally(make("co-teaching", Problem(3, 0.2, 0)), 2, torch.device("cpu"))
    probs = [[[0.7, 0.2, 0.1]], [[0.5, 0.3, 0.2]]]
    tally.add(step(probs, [[1.0], [0.0]]), torch.tensor([True, True]), torch.tensor([0]), torch.tensor([1]))
    assert tally.sums["margin"].tolist() == pytest.approx([0, 0.35])
    assert tally.sums["selected"].tolist() == [0, 0.5]


def test_a_prediction_that_is_not_finite_is_left_out():
    tally = Tally(make("default", Problem(3, 0.0)), 2, torch.device("cpu"))
    probs = [[[float("nan")] * 3, [0.6, 0.3, 0.1]]]
    tally.add(step(probs, [[1.0, 1.0]]), torch.tensor([True]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    assert tally.seen.tolist() == [0, 1] and tally.sums["margin"].tolist() == pytest.approx([0, 0.3])


def test_what_an_older_version_saved_can_be_gone_on_from():
    tally = Tally(make("default", Problem(3, 0.0)), 2, torch.device("cpu"))
    older = {"observed": 4.0, "margin": 3.0, "score": 2.0, "selected": 1.0, "seen": 5.0}
    tally.load({name: torch.full((2,), value) for name, value in older.items()})
    assert {name: tensor[1].item() for name, tensor in tally.tensors().items()} == {
        "margin": 3,
        "selected": 1,
        "seen": 5,
    }


@pytest.mark.parametrize(("name", "criterion"), COMBINATIONS, ids=str)
def test_every_method_gives_finite_sums_and_no_read(name, criterion):
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


def test_training_gathers_each_sample_once_an_epoch_since_the_selection_began(noisy_blobs):
    training = Training(epochs=4, batch=32, lr=0.05)
    method = make("mentornet-prop", Problem(4, 0.3, 1, num_samples=203))
    result = fit(lambda number: make_networks(densenet, 1, 0, number), method, noisy_blobs, training=training)
    assert set(result.samples) == {"margin", "selected", "seen"}
    assert result.samples["seen"].tolist() == [3] * 203
    assert result.samples["selected"].sum() == 3 * (6 * 23 + 8)  # 70% of 32 and of the last 11, rounded up


def test_evidence_is_what_the_network_says(noisy_blobs):
    networks = make_networks(densenet, 2, 0, 0)
    found = evidence(networks, noisy_blobs, Training())
    probs = networks.eval()(noisy_blobs.inputs(torch.arange(203))).softmax(-1).mean(0)
    assert torch.equal(found["label"].long(), noisy_blobs.labels)
    torch.testing.assert_close(found["likelihood"].sum(1), torch.ones(203))  # 4 classes, all of them are kept
    assert torch.equal(found["likeliest"][:, 0].long(), probs.argmax(1))
    torch.testing.assert_close(found["confidence"], probs[torch.arange(203), noisy_blobs.labels])
