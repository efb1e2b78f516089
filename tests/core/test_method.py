"""Method: the loss of a batch, its state, and errors about wrong arguments."""

import pickle

import pytest
import torch
import torch.nn.functional as F

from labelsieve.methods import METHODS, Problem, make


def batch(seed=0, size=20, classes=5, scale=2.0):
    random = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(size, classes, generator=random)
    return logits, torch.randint(classes, (size,), generator=random)


def started(name, criterion=None, rate=0.4, classes=5, **options):
    method = make(name, Problem(classes, rate, warmup=0), criterion, **options)
    method.start_epoch(0)
    return method


def test_loss_of_mentornet_is_that_of_the_kept_samples():
    logits, labels = batch()
    kept = F.cross_entropy(logits, labels, reduction="none").argsort()[:12]
    assert torch.allclose(started("mentornet")(logits, labels), F.cross_entropy(logits[kept], labels[kept]))


def test_gradient_is_zero_for_dropped_samples_and_that_of_the_subset_for_kept_ones():
    logits, labels = batch()
    logits.requires_grad_()
    method = started("mentornet-prop")
    method(logits, labels).backward()
    kept = method.step(logits, labels).decision.weight[0] > 0
    subset = logits.detach()[kept].requires_grad_()
    F.cross_entropy(subset, labels[kept]).backward()
    assert (logits.grad[~kept] == 0).all()
    assert torch.allclose(logits.grad[kept], subset.grad, atol=1e-7)


def test_penalty_labels_change_the_selection():
    """Wrong labels 0 come from class 1: samples that look like class 1 are kept by OL and dropped by ALL."""
    method = started("mentornet-prop", rate=0.5, classes=3)
    probs = torch.tensor([[0.45, 0.50, 0.05], [0.40, 0.05, 0.55], [0.44, 0.51, 0.05], [0.42, 0.06, 0.52]])
    labels = torch.zeros(4, dtype=torch.long)
    from_class_1 = torch.tensor([[0.5, 0.5, 0.0]]).log()
    before = method.step(probs.log(), labels).decision.weight[0]
    method(from_class_1, labels[:1])
    method.start_epoch(1)
    after = method.step(probs.log(), labels).decision.weight[0]
    assert before.tolist() == [1, 0, 1, 0] and after.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("name", "criterion"), [("mentornet", None), ("mentornet-prop", None), ("mentornet", "pl"), ("default", "margin")]
)
def test_zero_noise_rate_is_plain_training_bit_for_bit(name, criterion):
    logits, labels = batch()
    plain = started("default")(logits, labels)
    assert torch.equal(started(name, criterion, rate=0.0)(logits, labels), plain)


def test_lambda_zero_selects_as_mentornet_bit_for_bit():
    plain, zero = started("mentornet"), started("mentornet-prop", lam=0.0)
    for epoch in range(3):
        for method in (plain, zero):
            method.start_epoch(epoch)
        for seed in range(4):
            assert torch.equal(plain(*batch(seed)), zero(*batch(seed)))


@pytest.mark.filterwarnings("ignore:the logits of")
def test_dropped_non_finite_sample_leaves_loss_and_gradient_finite():
    logits, labels = batch()
    logits[3] = float("nan")
    logits[5, labels[5]] = -float("inf")
    method = started("mentornet-prop")
    loss = method(logits.requires_grad_(), labels)
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()
    method.start_epoch(1)
    assert method.tables()["penalty"].isfinite().all()


@pytest.mark.filterwarnings("ignore:the logits of")
def test_non_finite_batch_does_not_change_the_state():
    method = started("mentornet-prop")
    before = {key: value.clone() for key, value in method.state_dict().items()}
    loss = method(torch.full((8, 5), float("nan")), torch.zeros(8, dtype=torch.long))
    assert not loss.isfinite()
    assert all(torch.equal(before[key], value) for key, value in method.state_dict().items())


def test_half_precision_logits_are_scored_in_float32():
    model = torch.nn.Linear(16, 5)
    x, labels = torch.randn(64, 16), torch.randint(5, (64,))
    method = started("mentornet-prop")
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
        loss = method(logits, labels)
    loss.backward()
    assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32
    assert method.step(logits, labels).probs.dtype == torch.float32
    assert model.weight.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_integer_type(dtype):
    logits, labels = batch()
    assert torch.equal(started("mentornet-prop")(logits, labels.to(dtype)), started("mentornet-prop")(logits, labels))


@pytest.mark.filterwarnings("ignore:the logits of")
def test_inputs_are_not_changed():
    logits, labels = batch()
    logits[0] = float("nan")
    copies = logits.clone(), labels.clone()
    started("mentornet-prop")(logits, labels)
    assert torch.equal(logits.nan_to_num(7), copies[0].nan_to_num(7)) and torch.equal(labels, copies[1])


def test_wrong_shapes_are_an_error():
    with pytest.raises(ValueError, match=r"logits must be \(B, K\) and labels \(B\), got \(4, 5\) and \(3,\)"):
        started("default")(torch.randn(4, 5), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize(("labels", "wrong"), [([0, 5], 5), ([-1, 4], -1), ([1, -100], -100)])
def test_labels_outside_the_classes_are_an_error(labels, wrong):
    with pytest.raises(ValueError, match=f"labels must be from 0 to 4, got {wrong}$"):
        started("default")(torch.randn(2, 5), torch.tensor(labels))


def test_missing_start_epoch_is_an_error():
    method = make("mentornet-prop", Problem(5, 0.4))
    with pytest.raises(ValueError, match="start_epoch"):
        method(*batch())


def test_wrong_number_of_classes_and_float_labels_are_an_error():
    with pytest.raises(ValueError, match="made for 4 classes, the logits have 5"):
        started("mentornet", classes=4)(*batch())
    with pytest.raises(ValueError, match=r"integers, got torch\.float32"):
        started("mentornet")(batch()[0], batch()[1].float())


def test_predictions_of_one_network_may_omit_the_network_axis():
    one, other = (started("mentornet-prop", update="repredict") for _ in range(2))
    probs, labels = batch()[0].softmax(-1), batch()[1]
    one.end_epoch(lambda: iter([(probs, labels, torch.arange(20))]))
    other.end_epoch(lambda: iter([(probs[None], labels, torch.arange(20))]))
    assert torch.equal(one.tables()["penalty"], other.tables()["penalty"])


@pytest.mark.parametrize("name", METHODS)
def test_methods_can_be_pickled(name):
    method = make(name, Problem(5, 0.4, 2, num_samples=20))
    again = pickle.loads(pickle.dumps(method))
    for each in (method, again):
        each.start_epoch(1)
    logits = batch()[0].expand(method.networks, 20, 5)
    losses = [each.step(logits, batch()[1], torch.arange(20)).loss for each in (method, again)]
    assert torch.equal(*losses)
