"""What every method must do, whatever its criterion."""

from fractions import Fraction
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from labelsieve import METHODS, Method
from labelsieve.core import CRITERIA, CriteriaOL, CrossEntropy, Select
from labelsieve.core.select import constant_share
from labelsieve.methods import summary
from tests.contract.methods import COMBINATIONS, batch, built, predictor, ready, step

every_combination = pytest.mark.parametrize(("name", "criterion"), COMBINATIONS, ids=lambda value: str(value))
every_method = pytest.mark.parametrize("name", METHODS)
pytestmark = pytest.mark.filterwarnings("ignore:dmi cannot learn")


# Six samples labelled 0, and their order by each criterion, the cleanest first, when class 0 is polluted 3:1 by classes
# 1 and 2. By hand: p(0) for ol, 0.75 p(1) + 0.25 p(2) from below for pl, their difference for all, and for margin p(0)
# minus the larger of the others.
PROBS = [
    [0.51, 0.45, 0.04],
    [0.23, 0.49, 0.28],
    [0.11, 0.16, 0.73],
    [0.22, 0.07, 0.71],
    [0.10, 0.37, 0.53],
    [0.12, 0.03, 0.85],
]
ORDERS = {
    "ol": [0, 1, 3, 5, 2, 4],
    "pl": [3, 5, 2, 0, 4, 1],
    "all": [0, 3, 5, 2, 1, 4],
    "margin": [0, 1, 4, 3, 2, 5],
}


def copied(method):
    return {key: value.clone() for key, value in method.state_dict().items()}


def unchanged(method, before):
    return all(torch.equal(before[key], value) for key, value in method.state_dict().items())


@every_combination
def test_nothing_is_observed_in_eval(name, criterion):
    method = ready(name, criterion).eval()
    before = copied(method)
    logits, labels, index = batch(method)
    method.regularizer = None
    method(logits, labels, index)
    assert unchanged(method, before)


@every_combination
def test_a_step_that_is_not_finite_is_not_remembered(name, criterion):
    method = ready(name, criterion)
    before = copied(method)
    logits, labels, index = batch(method)
    done = method.step(logits * float("nan"), labels, index)
    method.observe(done, labels, index, torch.zeros(method.networks, dtype=torch.bool))
    after = {key: value for key, value in method.state_dict().items() if not key.endswith("steps")}
    assert all(torch.equal(before[key], value) for key, value in after.items())


@every_combination
@pytest.mark.parametrize("size", [1, 7, 128])
@pytest.mark.parametrize("classes", [2, 10, 200])
def test_any_batch_and_any_number_of_classes(name, criterion, size, classes):
    method = ready(name, criterion, classes=classes, size=size)
    for epoch in (1, 2):
        method.start_epoch(epoch)
        logits, labels, index = batch(method, epoch, size, classes)
        logits.requires_grad_()
        done = step(method, logits, labels, index)
        done.loss.backward()
        assert done.loss.isfinite() and logits.grad.isfinite().all()
        method.end_epoch(predictor(method, classes))
    assert all(value.isfinite().all() for value in method.state_dict().values())


@every_combination
def test_a_batch_of_one_class_alone(name, criterion):
    method = ready(name, criterion)
    logits, labels, index = batch(method)
    assert step(method, logits, torch.zeros_like(labels), index).loss.isfinite()


@every_combination
def test_a_step_never_reads_the_device_nor_changes_its_shapes(name, criterion):
    """Under fake tensors there are no values: a read raises."""
    method = ready(name, criterion)
    with FakeTensorMode(allow_non_fake_inputs=True):
        logits = torch.randn(method.networks, 20, 5, requires_grad=True)
        labels, index = torch.zeros(20, dtype=torch.long), torch.zeros(20, dtype=torch.long)
        done = step(method, logits, labels, index)
        done.loss.backward()
        assert done.loss.shape == () and done.decision.weight.shape == (method.networks, 20)
        assert done.decision.target.shape == (method.networks, 20) and logits.grad.shape == logits.shape


@every_combination
def test_a_step_is_one_graph_and_equals_eager(name, criterion):
    torch._dynamo.reset()
    eager, traced = ready(name, criterion), ready(name, criterion)
    compiled = torch.compile(lambda *b: step(traced, *b).loss, backend="eager", fullgraph=True)
    for seed in range(2):
        b = batch(eager, seed)
        assert torch.equal(compiled(*b), step(eager, *b).loss)
    assert unchanged(traced, eager.state_dict())


@every_combination
def test_state_survives_a_checkpoint(name, criterion):
    one, other = ready(name, criterion), built(name, criterion)
    step(one, *batch(one, 3))
    other.start_round(0)
    other.load_state_dict(one.state_dict())
    for method in (one, other):
        method.start_epoch(2)
    for seed in (4, 5):
        assert torch.equal(step(one, *batch(one, seed)).loss, step(other, *batch(one, seed)).loss)


def honours(name, criterion):
    """That it keeps, of six samples, the first by the criterion, as many as its own share says; returns how many."""
    probs = torch.tensor(PROBS)  # penalty label of class 0: 0, 0.75, 0.25
    labels, index = torch.zeros(6, dtype=torch.long), torch.arange(200, 206)
    options = {"init_epoch": 99} if name == "co-teaching+" else {}
    method = built(name, criterion, rate=0.5, classes=3, **options)
    method.start_round(0)
    method.start_epoch(0)
    polluted = torch.tensor([[[0.2, 0.6, 0.2]]]).log().expand(method.networks, 1, 3)
    step(method, polluted, labels[:1], torch.tensor([0]))
    method.end_epoch(predictor(method, 3))
    method.start_epoch(20)
    decision = method.step(probs.log().expand(method.networks, 6, 3), labels, index).decision
    (select,) = [part for part in method.weigh if isinstance(part, Select)]
    selected = select(probs.expand(method.networks, 6, 3), labels, index)
    kept = ORDERS[criterion][: select.kept(6)]
    assert selected[0].nonzero().squeeze(1).tolist() == sorted(kept)
    assert (decision.weight[selected == 0] == 0).all()
    return len(kept)


@every_method
@pytest.mark.parametrize("criterion", ORDERS)
def test_every_criterion_is_honoured(name, criterion):
    """No criterion is silently ignored: each has an order of its own, and something is left out."""
    assert set(ORDERS) == set(CRITERIA) and honours(name, criterion) < 6


def keeping(share, ignored=None):
    """A method of somebody's own, that keeps this share."""

    def recipe(p, criterion=CriteriaOL):
        """Mine."""
        keep = partial(constant_share, share)
        return Method(CrossEntropy(), [Select((ignored or criterion)(p.num_classes, 1), keep, warmup=p.warmup)])

    return recipe


def test_a_method_may_keep_a_share_of_its_own(monkeypatch):
    for share, kept in ((Fraction(3, 4), 5), (Fraction(1, 3), 2)):
        monkeypatch.setitem(METHODS, "mine", keeping(share))
        assert [honours("mine", criterion) for criterion in ORDERS] == [kept] * 4


def test_a_method_that_ignores_its_criterion_is_found(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", keeping(Fraction(1, 2), ignored=CriteriaOL))
    honours("mine", "ol")
    for criterion in set(ORDERS) - {"ol"}:
        with pytest.raises(AssertionError):
            honours("mine", criterion)


@every_combination
def test_observed_samples_change_with_their_labels(name, criterion):
    """The labels reach the loss: other labels, another loss."""
    method = ready(name, criterion)
    logits, labels, index = batch(method, size=100)
    assert method.step(logits, labels, index).loss != method.step(logits, labels.flip(0), index).loss


@every_method
def test_keeping_everything_is_the_method_without_selection(name):
    """ε = 0 with a criterion drops nothing."""
    method = ready(name, "all", rate=0.0)
    logits, labels, index = batch(method)
    weight = method.step(logits, labels, index).decision.weight
    plain = ready(name, rate=0.0)
    assert torch.equal(weight, plain.step(logits, labels, index).decision.weight)


@every_method
def test_every_method_has_a_summary_and_an_index_rule(name):
    assert summary(name).endswith(".")
    method = ready(name)
    logits, labels, _ = batch(method)
    if method.needs_index:
        with pytest.raises(ValueError, match="pass index="):
            method.step(logits, labels)
    else:
        assert method.step(logits, labels).loss.isfinite()
