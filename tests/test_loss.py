"""SieveLoss: epochs and rounds, resuming, what was decided about the last batch, and errors."""

import doctest
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

import labelsieve
from labelsieve import METHODS, SieveLoss, loss
from labelsieve.core import CRITERIA, Criterion
from labelsieve.errors import InputError
from labelsieve.methods import Problem, make

CLASSES, COUNT, BATCH = 3, 24, 12


def loss_of(name="mentornet-prop", warmup=1, **options):
    return SieveLoss(name, num_classes=CLASSES, noise_rate=0.25, warmup=warmup, num_samples=COUNT, **options)


def batches():
    """Return two batches of logits (B, K), labels and positions."""
    random = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(COUNT, CLASSES, generator=random)
    labels = torch.randint(CLASSES, (COUNT,), generator=random)
    return list(zip(logits.split(BATCH), labels.split(BATCH), torch.arange(COUNT).split(BATCH), strict=True))


def shaped(loss_fn, logits):
    return torch.stack([logits, -logits]) if loss_fn.networks == 2 else logits


def predictions(loss_fn):
    def predict():
        for logits, labels, index in batches():
            yield shaped(loss_fn, logits).softmax(-1), labels, index

    return predict


def learn(loss_fn, few=None):
    """Pass the batches to the loss and return its values."""
    torch.manual_seed(0)  # vat draws from the global generator, whose state a loss does not save
    more = {"model": nn.Identity(), "inputs": torch.zeros(BATCH, CLASSES)} if loss_fn.regularizer else {}
    return [loss_fn(shaped(loss_fn, logits), labels, index, **more).item() for logits, labels, index in batches()[:few]]


def same(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_examples_of_the_docstrings_are_true():
    failed, tried = doctest.testmod(loss, extraglobs={"torch": torch, "labelsieve": labelsieve})
    assert tried >= 10 and not failed


def test_epochs_start_and_end_like_a_manual_loop():
    loss_fn, manual = loss_of(), make("mentornet-prop", Problem(CLASSES, 0.25, 1))
    values, wanted = [], []
    for epoch in loss_fn.epochs(3):
        assert loss_fn.current_epoch == epoch
        values += learn(loss_fn)
    for epoch in range(3):
        manual.start_epoch(epoch)
        wanted += [manual(logits, labels).item() for logits, labels, _ in batches()]
        manual.end_epoch()
    assert values == wanted
    assert torch.equal(loss_fn.penalty, manual.tables()["penalty"][0])


def test_last_batch_with_one_network_has_no_network_axis():
    loss_fn = loss_of(warmup=0)
    for _ in loss_fn.epochs(1):
        learn(loss_fn)
    logits, labels, _ = batches()[1]
    scores = logits.softmax(-1)[torch.arange(BATCH), labels]  # uniform penalty labels do not change the order
    wanted = torch.zeros(BATCH, dtype=torch.bool).index_fill(0, scores.argsort(descending=True)[:9], True)
    assert torch.equal(loss_fn.last.kept, wanted)
    assert torch.equal(loss_fn.last.weight, wanted.float()) and torch.equal(loss_fn.last.target, labels)
    assert isinstance(loss_fn.last.kept_share, torch.Tensor) and loss_fn.last.kept_share == 0.75
    assert loss_fn.penalty.shape == (CLASSES, CLASSES)


def test_last_batch_with_two_networks_has_a_network_axis():
    loss_fn = loss_of("co-teaching", criterion="all", ramp=1)
    for _ in loss_fn.epochs(1):
        learn(loss_fn)
    assert loss_fn.last.kept.shape == loss_fn.last.target.shape == (2, BATCH)
    assert loss_fn.last.kept_share.tolist() == [0.75, 0.75] and loss_fn.penalty.shape == (2, CLASSES, CLASSES)


def test_last_target_is_the_corrected_label():
    loss_fn = loss_of("selfie", rounds=1, history=1)
    for _ in loss_fn.epochs(2):
        learn(loss_fn)
    logits, labels, _ = batches()[1]
    assert torch.equal(loss_fn.last.target, logits.argmax(-1))  # one prediction is always consistent
    assert not torch.equal(loss_fn.last.target, labels)


@pytest.mark.filterwarnings("ignore:no optimizer updates the method's own parameters")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_resumes_after_the_epoch_of_a_loaded_state(name):
    """States are saved at the end of the body of the loop, and between two epochs."""

    def trained(loss_fn, save=None):
        saved = {}
        predict = predictions(loss_fn)
        for number in loss_fn.rounds(predict=predict):
            for epoch in loss_fn.epochs(4, predict=predict):
                saved[number, epoch] = learn(loss_fn)
                if save == (number, epoch):
                    return {key: value.clone() for key, value in loss_fn.state_dict().items()}
        return saved

    whole, last = loss_of(name), loss_of(name).num_rounds - 1
    values = trained(whole)
    for place in {(0, 1), (last, 2), (last, 3)}:
        resumed = loss_of(name)
        resumed.load_state_dict(trained(loss_of(name), place))
        assert trained(resumed) == {key: value for key, value in values.items() if key > place}
        assert same(whole, resumed)


def test_a_state_saved_in_the_middle_of_an_epoch_continues_there():
    whole, half, resumed = loss_of(), loss_of(), loss_of()
    for _ in whole.epochs(3):
        learn(whole)
    for epoch in half.epochs(3):
        learn(half, 1 if epoch == 1 else None)
        if epoch == 1:
            break
    resumed.load_state_dict(half.state_dict())
    for epoch in resumed.epochs(3, start=1):
        for logits, labels, _ in batches()[epoch == 1 :]:
            resumed(logits, labels)
    assert same(whole, resumed)


def test_a_state_of_a_finished_training_has_no_epochs_left():
    whole, again = loss_of(), loss_of()
    for _ in whole.epochs(2):
        learn(whole)
    again.load_state_dict(whole.state_dict())
    assert list(again.epochs(2)) == [] and same(whole, again)
    again.load_state_dict(whole.state_dict())
    assert list(again.epochs(4)) == [2, 3]


def test_a_second_training_starts_again_with_a_warning():
    loss_fn = loss_of()
    assert list(loss_fn.epochs(2)) == [0, 1]
    with pytest.warns(UserWarning, match="epoch 0 after epoch 1: a loss stores the state of one training"):
        assert list(loss_fn.epochs(2)) == [0, 1]
    with warnings.catch_warnings(action="error"):
        assert list(loss_fn.epochs(4, start=2)) == [2, 3]


def test_a_warm_up_that_never_ends_is_refused():
    message = (
        "the warm-up of 25 epochs is not shorter than the training of 25, so no sample would be selected or corrected; "
        "train longer, or pass a smaller warmup"
    )
    for name in ("mentornet-prop", "sl-prop", "f-correction", "cores"):
        with pytest.raises(InputError, match=re.escape(message)):
            loss_of(name, warmup=25).epochs(25)  # before the first epoch
    assert list(loss_of("default", warmup=25).epochs(2)) == [0, 1]


@pytest.mark.parametrize(
    ("make_error", "message"),
    [
        (
            lambda: loss_of("lccn").epochs(3),
            "lccn predicts the training set at the end of each epoch: pass epochs(3",
        ),
        (lambda: loss_of("selfie").epochs(3), "selfie trains the network 3 times from the start: put the epochs into"),
        (lambda: loss_of("mentornet").penalty, "mentornet has no penalty labels here: use mentornet-prop"),
        (lambda: loss_of().last, "nothing has been decided yet: pass a batch to the loss first"),
        (lambda: loss_of()(*batches()[0][:2]), "no epoch has started: use `for epoch in loss_fn.epochs(30):`"),
        (lambda: loss_of("mentornet-pro"), "unknown method 'mentornet-pro': did you mean mentornet-prop?"),
        (lambda: loss_of(lamb=1), "mentornet-prop has no option 'lamb'; its options: "),
        (
            lambda: SieveLoss("elr", num_classes=3, noise_rate=0.2),
            "elr: this method stores values per sample: pass num_samples=, the size of the training set",
        ),
        (lambda: SieveLoss("elr", num_classes=3, noise_rate=1.2), "noise_rate must be in [0, 1), got 1.2"),
    ],
)
def test_mistakes_are_named(make_error, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_error()


def test_predictions_after_the_first_round_are_required_by_patrini():
    loss_fn = loss_of("f-correction", estimate="patrini")
    with pytest.raises(ValueError, match=re.escape("pass predict= to loss_fn.rounds")):
        for _ in loss_fn.rounds():
            for _ in loss_fn.epochs(2):
                learn(loss_fn)


def trained_in_steps(loss_fn, epochs=12):
    """Return losses, gradients and kept samples of each step, and the penalty labels."""
    found = []
    for _ in loss_fn.epochs(epochs):
        for logits, labels, _ in batches():
            given = logits.clone().requires_grad_()
            value = loss_fn(given, labels)
            value.backward()
            found.append((value.detach(), given.grad, loss_fn.last.kept))
    return found, loss_fn.penalty


def test_compiles_once_for_all_epochs_and_equals_eager():
    torch._dynamo.reset()
    counters.clear()
    eager, penalty = trained_in_steps(loss_of(warmup=2))
    compiled, compiled_penalty = trained_in_steps(torch.compile(loss_of(warmup=2), backend="aot_eager", fullgraph=True))
    assert counters["stats"]["unique_graphs"] == 1
    for one, other in zip(eager, compiled, strict=True):  # in the warm-up, eager steps are those of F.cross_entropy
        for ours, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(ours, theirs)
    for one, other in zip(eager[4:], compiled[4:], strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    assert torch.equal(penalty, compiled_penalty) and not compiled[-1][2].all()


def test_a_wrong_label_after_the_first_batch_is_named():
    for name in METHODS:
        loss_fn = loss_of(name, **({"rounds": 1} if name.startswith("selfie") else {}))
        more = {"model": nn.Identity(), "inputs": torch.zeros(BATCH, CLASSES)} if loss_fn.regularizer else {}
        (logits, labels, index), (_, _, others) = batches()
        for _ in loss_fn.epochs(3, predict=predictions(loss_fn)):
            loss_fn(shaped(loss_fn, logits), labels, index, **more)
            for wrong in (CLASSES, -1, -100):
                with pytest.raises(ValueError, match=f"labels must be from 0 to 2, got {wrong}"):
                    loss_fn(shaped(loss_fn, logits), labels.index_fill(0, torch.tensor(5), wrong), others, **more)
            break


class CriteriaFirst(Criterion):
    """The samples at the first positions; for tests."""

    needs_index = True

    def __init__(self, num_classes, networks=1, num_samples=0):
        super().__init__(num_classes, networks)
        self.num_samples = num_samples

    def forward(self, probs, labels, index=None):
        return -index.float().expand(probs.shape[:-1])


def test_a_criterion_receives_the_positions_of_the_samples(monkeypatch):
    monkeypatch.setitem(CRITERIA, "first", CriteriaFirst)
    loss_fn = loss_of("mentornet", warmup=0, criterion="first")
    logits, labels, index = batches()[1]
    for _ in loss_fn.epochs(1):
        loss_fn(logits, labels, index.flip(0))
        assert loss_fn.last.kept.tolist() == [False] * 3 + [True] * 9
        with pytest.raises(ValueError, match="this method stores values per sample: pass index="):
            loss_fn(logits, labels)
    with pytest.raises(ValueError, match="mentornet: this method stores values per sample: pass num_samples="):
        SieveLoss("mentornet", num_classes=3, noise_rate=0.2, criterion="first")


@pytest.mark.filterwarnings("ignore:the logits of")
def test_samples_that_are_left_out_may_be_infinite_or_nan():
    """The loss and its gradient are those without these samples; a kept one makes both non-finite."""
    loss_fn = loss_of("mentornet", warmup=0)
    logits, labels, _ = batches()[0]
    for bad in (torch.nan, torch.inf):
        broken = logits.clone()
        broken[:3, 1] = bad
        broken.requires_grad_()
        for epoch in loss_fn.epochs(1, start=0):
            value = loss_fn(broken, labels)
            value.backward()
            assert epoch == 0 and not loss_fn.last.kept[:3].any() and loss_fn.last.kept[3:].all()
        rest = logits[3:].clone().requires_grad_()
        wanted = F.cross_entropy(rest, labels[3:])
        wanted.backward()
        torch.testing.assert_close(value, wanted)
        torch.testing.assert_close(broken.grad, torch.cat([torch.zeros(3, CLASSES), rest.grad]))
    everything = loss_of("default")
    broken = logits.clone()
    broken[0] = torch.nan
    broken.requires_grad_()
    for _ in everything.epochs(1):
        value = everything(broken, labels)
        value.backward()
        assert value.isnan() and not broken.grad[0].isfinite().all() and broken.grad[1:].isfinite().all()
