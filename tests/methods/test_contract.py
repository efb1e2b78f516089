"""The contract of methods: what every method must do with every criterion."""

from fractions import Fraction
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from labelsieve.catalogue import methods
from labelsieve.core import CRITERIA, CriteriaOL, CrossEntropy, Method, Select
from labelsieve.core.select import constant_share
from labelsieve.methods import METHODS, Problem, make
from labelsieve.methods.cores import ConfidenceRegularized
from labelsieve.methods.elr import EarlyLearning
from labelsieve.methods.f_correction import ForwardCorrection
from labelsieve.methods.gce import GeneralizedCrossEntropy
from labelsieve.methods.sl import SymmetricCrossEntropy
from tests.methods.examples import COMBINATIONS, batch, built, predictor, ready, step
from tests.methods.loops import loss_of, random_batch

every_combination = pytest.mark.parametrize(("name", "criterion"), COMBINATIONS, ids=lambda value: str(value))
every_method = pytest.mark.parametrize("name", METHODS)
pytestmark = pytest.mark.filterwarnings("ignore:dmi cannot learn")


# Six samples with label 0, and their order by each criterion if three quarters of the wrong labels of class 0 come from
# class 1 and one quarter from class 2. Computed by hand: p(0) for ol, -(0.75 p(1) + 0.25 p(2)) for pl, their sum for
# all, and p(0) - max(p(1), p(2)) for margin. Of a criterion without an entry, the order is that of its scores.
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


def copy_of_state(method):
    return {key: value.clone() for key, value in method.state_dict().items()}


def unchanged(method, before):
    return all(torch.equal(before[key], value) for key, value in method.state_dict().items())


@every_combination
def test_state_does_not_change_in_eval_mode(name, criterion):
    method = ready(name, criterion).eval()
    before = copy_of_state(method)
    logits, labels, index = batch(method)
    method.regularizer = None
    method(logits, labels, index)
    assert unchanged(method, before)


@every_combination
def test_non_finite_step_does_not_change_the_state(name, criterion):
    method = ready(name, criterion)
    before = copy_of_state(method)
    logits, labels, index = batch(method)
    result = method.step(logits * float("nan"), labels, index)
    method.observe(result, labels, index, torch.zeros(method.networks, dtype=torch.bool))
    after = {key: value for key, value in method.state_dict().items() if not key.endswith("steps")}
    assert all(torch.equal(before[key], value) for key, value in after.items())


@every_combination
@pytest.mark.parametrize("size", [1, 7, 128])
@pytest.mark.parametrize("classes", [2, 10, 200])
def test_any_batch_size_and_number_of_classes(name, criterion, size, classes):
    method = ready(name, criterion, classes=classes, size=size)
    for epoch in (1, 2):
        method.start_epoch(epoch)
        logits, labels, index = batch(method, epoch, size, classes)
        logits.requires_grad_()
        result = step(method, logits, labels, index)
        result.loss.backward()
        assert result.loss.isfinite() and logits.grad.isfinite().all()
        method.end_epoch(predictor(method, classes))
    assert all(value.isfinite().all() for value in method.state_dict().values())


@every_combination
def test_batch_with_a_single_class(name, criterion):
    method = ready(name, criterion)
    logits, labels, index = batch(method)
    assert step(method, logits, torch.zeros_like(labels), index).loss.isfinite()


@every_combination
def test_step_never_reads_the_device_and_keeps_its_shapes(name, criterion):
    """Fake tensors have no values, so reading one raises."""
    method = ready(name, criterion)
    with FakeTensorMode(allow_non_fake_inputs=True):
        logits = torch.randn(method.networks, 20, 5, requires_grad=True)
        labels, index = torch.zeros(20, dtype=torch.long), torch.zeros(20, dtype=torch.long)
        result = step(method, logits, labels, index)
        result.loss.backward()
        assert result.loss.shape == () and result.decision.weight.shape == (method.networks, 20)
        assert result.decision.target.shape == (method.networks, 20) and logits.grad.shape == logits.shape


@every_combination
def test_step_compiles_to_one_graph_and_equals_eager(name, criterion):
    torch._dynamo.reset()
    eager, traced = ready(name, criterion), ready(name, criterion)
    compiled = torch.compile(lambda *b: step(traced, *b).loss, backend="eager", fullgraph=True)
    for seed in range(2):
        b = batch(eager, seed)
        assert torch.equal(compiled(*b), step(eager, *b).loss)
    assert unchanged(traced, eager.state_dict())


@every_combination
def test_loaded_state_continues_the_training(name, criterion):
    one, other = ready(name, criterion), built(name, criterion)
    step(one, *batch(one, 3))
    other.start_round(0)
    other.load_state_dict(one.state_dict())
    for method in (one, other):
        method.start_epoch(2)
    for seed in (4, 5):
        assert torch.equal(step(one, *batch(one, seed)).loss, step(other, *batch(one, seed)).loss)


def num_kept_by_criterion(name, criterion):
    """Check that the first of the six samples by the criterion are kept, and return their number."""
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
    scores = select.criterion(probs.expand(method.networks, 6, 3), labels, index)[0]
    kept = ORDERS.get(criterion, scores.argsort(descending=True, stable=True).tolist())[: select.num_kept(6)]
    assert selected[0].nonzero().squeeze(1).tolist() == sorted(kept)
    assert (decision.weight[selected == 0] == 0).all()
    return len(kept)


@every_method
@pytest.mark.parametrize("criterion", CRITERIA)
def test_every_criterion_decides_what_is_kept(name, criterion):
    """Some samples are left out."""
    assert num_kept_by_criterion(name, criterion) < 6


def keeping(share, ignored=None):
    """Return a custom recipe that keeps this share."""

    def recipe(p, criterion=CriteriaOL):
        """Keep a share."""
        keep = partial(constant_share, share)
        return Method(CrossEntropy(), [Select((ignored or criterion)(p.num_classes, 1), keep, warmup=p.warmup)])

    return recipe


def test_custom_method_may_keep_another_share(monkeypatch):
    for share, kept in ((Fraction(3, 4), 5), (Fraction(1, 3), 2)):
        monkeypatch.setitem(METHODS, "mine", keeping(share))
        assert [num_kept_by_criterion("mine", criterion) for criterion in ORDERS] == [kept] * 4


def test_method_that_ignores_its_criterion_fails_the_contract(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", keeping(Fraction(1, 2), ignored=CriteriaOL))
    num_kept_by_criterion("mine", "ol")
    for criterion in set(ORDERS) - {"ol"}:
        with pytest.raises(AssertionError):
            num_kept_by_criterion("mine", criterion)


@every_combination
def test_other_labels_give_another_loss(name, criterion):
    method = ready(name, criterion)
    logits, labels, index = batch(method, size=100)
    assert method.step(logits, labels, index).loss != method.step(logits, labels.flip(0), index).loss


@every_method
def test_noise_rate_zero_drops_nothing(name):
    method = ready(name, "all", rate=0.0)
    logits, labels, index = batch(method)
    weight = method.step(logits, labels, index).decision.weight
    plain = ready(name, rate=0.0)
    assert torch.equal(weight, plain.step(logits, labels, index).decision.weight)


@every_method
def test_every_method_has_a_summary_and_requires_its_index(name):
    assert methods()[name].summary.endswith(".")
    method = ready(name)
    logits, labels, _ = batch(method)
    if method.needs_index:
        with pytest.raises(ValueError, match="pass index="):
            method.step(logits, labels)
    else:
        assert method.step(logits, labels).loss.isfinite()


@pytest.mark.parametrize(
    "loss",
    [
        SymmetricCrossEntropy(1, 0),
        GeneralizedCrossEntropy(1e-5),
        ForwardCorrection(4, warmup=0, estimate="stack"),
        EarlyLearning(4, 12, strength=0.0, beta=0.7),
        ConfidenceRegularized(4, beta=0.0, start=0, full=1),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_loss_is_cross_entropy_at_its_neutral_setting(loss):
    logits, target, weight, labels = random_batch()
    expected = F.cross_entropy(logits[0], labels).item()
    assert loss_of(loss, logits, target, weight, labels).item() == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize(
    ("name", "options"), [("lccn", {}), ("gce", {"k": 0.5}), ("mentornet-prop", {"update": "repredict"})]
)
def test_missing_predictions_are_an_error(name, options):
    method = make(name, Problem(5, 0.4, 1, 40), **options)
    method.start_epoch(0)
    with pytest.raises(ValueError, match=r"pass predict= to loss_fn\.epochs"):
        method.start_epoch(1)
