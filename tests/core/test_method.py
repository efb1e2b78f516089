"""Method: the step as a whole, in a person's own loop and under every condition it must stand."""

import pickle
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from labelsieve import METHODS, CriteriaALL, CriteriaOL, CriteriaPL, Problem, make, mentornet, mentornet_prop


def batch(seed=0, size=20, classes=5, scale=2.0):
    random = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(size, classes, generator=random)
    return logits, torch.randint(classes, (size,), generator=random)


def selecting(name, criterion=None, rate=0.4, classes=5, **options):
    method = make(name, Problem(classes, rate, warmup=0), criterion, **options)
    method.start_epoch(0)
    return method


def test_mentornet_learns_from_the_kept_samples_alone():
    logits, labels = batch()
    kept = F.cross_entropy(logits, labels, reduction="none").argsort()[:12]
    assert torch.allclose(selecting("mentornet")(logits, labels), F.cross_entropy(logits[kept], labels[kept]))


def test_dropped_samples_have_no_gradient_and_kept_ones_that_of_the_subset():
    logits, labels = batch()
    logits.requires_grad_()
    method = selecting("mentornet-prop")
    method(logits, labels).backward()
    kept = method.step(logits, labels).decision.weight[0] > 0
    subset = logits.detach()[kept].requires_grad_()
    F.cross_entropy(subset, labels[kept]).backward()
    assert (logits.grad[~kept] == 0).all()
    assert torch.allclose(logits.grad[kept], subset.grad, atol=1e-7)


def test_penalty_labels_change_what_is_kept():
    """Class 0 is polluted by class 1: what looks like class 1 is kept by OL and dropped by ALL."""
    method = selecting("mentornet-prop", rate=0.5, classes=3)
    probs = torch.tensor([[0.45, 0.50, 0.05], [0.40, 0.05, 0.55], [0.44, 0.51, 0.05], [0.42, 0.06, 0.52]])
    labels = torch.zeros(4, dtype=torch.long)
    polluted = torch.tensor([[0.5, 0.5, 0.0]]).log()
    before = method.step(probs.log(), labels).decision.weight[0]
    method(polluted, labels[:1])
    method.start_epoch(1)
    after = method.step(probs.log(), labels).decision.weight[0]
    assert before.tolist() == [1, 0, 1, 0] and after.tolist() == [0, 1, 0, 1]


AT_ONCE = {"default", "co-teaching", "co-teaching+", "sl", "gce", "vat", "elr", "sop", "jocor"}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_begins_when_the_last_of_its_parts_does(name):
    problem = Problem(5, 0.4, warmup=6, num_samples=9)
    assert make(name, problem).begins == (0 if name in AT_ONCE else 6)
    assert make(name, problem, "all").begins == (0 if name in {"co-teaching", "co-teaching+", "jocor"} else 6)


def test_options_say_when_a_method_begins():
    problem, at_once = Problem(5, 0.4, warmup=6, num_samples=9), Problem(5, 0.4, warmup=0, num_samples=9)
    assert make("gce", problem, k=0.5).begins == 6
    assert make("gce", problem, k=0.5, prune_from=40).begins == 40
    assert make("gce", at_once, k=0.5, prune_every=10).begins == 10  # nothing is pruned before the first epoch
    assert make("f-correction", problem, estimate="patrini").begins == 0  # with its second round
    assert make("f-correction", at_once).begins == make("lccn", at_once).begins == 1  # from predictions of an epoch


@pytest.mark.parametrize(
    ("name", "criterion"), [("mentornet", None), ("mentornet-prop", None), ("mentornet", "pl"), ("default", "margin")]
)
def test_zero_noise_rate_is_plain_training_bit_for_bit(name, criterion):
    logits, labels = batch()
    plain = selecting("default")(logits, labels)
    assert torch.equal(selecting(name, criterion, rate=0.0)(logits, labels), plain)


def test_lambda_zero_selects_as_mentornet_bit_for_bit():
    plain, zero = selecting("mentornet"), selecting("mentornet-prop", lam=0.0)
    for epoch in range(3):
        for method in (plain, zero):
            method.start_epoch(epoch)
        for seed in range(4):
            assert torch.equal(plain(*batch(seed)), zero(*batch(seed)))


def test_a_dropped_sample_that_is_not_finite_does_no_harm():
    logits, labels = batch()
    logits[3] = float("nan")
    logits[5, labels[5]] = -float("inf")
    method = selecting("mentornet-prop")
    loss = method(logits.requires_grad_(), labels)
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()
    method.start_epoch(1)
    assert method.tables()["penalty"].isfinite().all()


def test_a_batch_that_is_not_finite_is_not_remembered():
    method = selecting("mentornet-prop")
    before = {key: value.clone() for key, value in method.state_dict().items()}
    loss = method(torch.full((8, 5), float("nan")), torch.zeros(8, dtype=torch.long))
    assert not loss.isfinite()
    assert all(torch.equal(before[key], value) for key, value in method.state_dict().items())


def test_half_precision_logits_are_scored_in_float32():
    model = torch.nn.Linear(16, 5)
    x, labels = torch.randn(64, 16), torch.randint(5, (64,))
    method = selecting("mentornet-prop")
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
        loss = method(logits, labels)
    loss.backward()
    assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32
    assert method.step(logits, labels).probs.dtype == torch.float32
    assert model.weight.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_whole_type(dtype):
    logits, labels = batch()
    assert torch.equal(
        selecting("mentornet-prop")(logits, labels.to(dtype)), selecting("mentornet-prop")(logits, labels)
    )


def test_inputs_are_not_changed():
    logits, labels = batch()
    logits[0] = float("nan")
    copies = logits.clone(), labels.clone()
    selecting("mentornet-prop")(logits, labels)
    assert torch.equal(logits.nan_to_num(7), copies[0].nan_to_num(7)) and torch.equal(labels, copies[1])


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"logits must be \(B, K\) and labels \(B\), got \(4, 5\) and \(3,\)"):
        selecting("default")(torch.randn(4, 5), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize(("labels", "wrong"), [([0, 5], 5), ([-1, 4], -1), ([1, -100], -100)])
def test_labels_that_are_no_class_are_refused(labels, wrong):
    with pytest.raises(ValueError, match=f"labels must be from 0 to 4, got {wrong}$"):
        selecting("default")(torch.randn(2, 5), torch.tensor(labels))


def test_a_forgotten_epoch_is_noticed():
    method = make("mentornet-prop", Problem(5, 0.4))
    with pytest.raises(ValueError, match="start_epoch"):
        method(*batch())


def test_other_numbers_of_classes_and_fractions_of_labels_are_refused():
    with pytest.raises(ValueError, match="made for 4 classes, the logits have 5"):
        selecting("mentornet", classes=4)(*batch())
    with pytest.raises(ValueError, match=r"whole numbers, got torch\.float32"):
        selecting("mentornet")(batch()[0], batch()[1].float())


def test_predictions_of_one_network_may_come_without_its_axis():
    one, other = (selecting("mentornet-prop", update="repredict") for _ in range(2))
    probs, labels = batch()[0].softmax(-1), batch()[1]
    one.end_epoch(lambda: iter([(probs, labels, torch.arange(20))]))
    other.end_epoch(lambda: iter([(probs[None], labels, torch.arange(20))]))
    assert torch.equal(one.tables()["penalty"], other.tables()["penalty"])


@pytest.mark.parametrize("name", METHODS)
def test_a_method_can_be_pickled(name):
    method = make(name, Problem(5, 0.4, 2, num_samples=20))
    again = pickle.loads(pickle.dumps(method))
    for each in (method, again):
        each.start_epoch(1)
    logits = batch()[0].expand(method.networks, 20, 5)
    losses = [each.step(logits, batch()[1], torch.arange(20)).loss for each in (method, again)]
    assert torch.equal(*losses)


def test_recipes_take_criteria_as_values():
    problem = Problem(5, 0.4, warmup=0)
    logits, labels = batch()
    ours, theirs = mentornet(problem, CriteriaALL).step(logits, labels), mentornet_prop(problem).step(logits, labels)
    assert torch.equal(ours.loss, theirs.loss)
    assert mentornet(problem, partial(CriteriaALL, lam=2.0)).weigh[0].criterion.lam == 2.0
    assert isinstance(mentornet(problem).weigh[0].criterion, CriteriaOL)
    assert isinstance(mentornet(problem, CriteriaPL).weigh[0].criterion, CriteriaPL)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"name": "mentornett"}, "did you mean mentornet"),
        ({"name": "mentornet", "criterion": "alll"}, "did you mean all"),
        ({"name": "mentornet", "lam": 1.0}, "mentornet has no option 'lam'; it has: floor, align"),
        ({"name": "mentornet-prop", "lamda": 1.0}, "it has: floor, align, lam, update, compensate"),
        ({"name": "mentornet-prop", "lam": -1.0}, "lam must be a number of at least 0"),
        ({"name": "mentornet-prop", "lam": "much"}, "option lam cannot be 'much'; its default is 1.0"),
        ({"name": "mentornet-prop", "align": "yes"}, "option align cannot be 'yes'; say true or false"),
        ({"name": "mentornet-prop", "criterion": "ol", "lam": 1.0}, "with criterion ol has no option 'lam'"),
        ({"name": "selfie"}, "num_samples"),
        ({"name": "selfie", "rounds": 1.5}, "option rounds cannot be 1.5"),
        ({"name": "selfie", "history": "long"}, "option history cannot be 'long'"),
        ({"name": "selfie", "recompute": 1}, "option recompute cannot be 1"),
        ({"name": "f-correction", "estimate": "guess"}, "stack, patrini"),
        ({"name": "co-teaching", "ramp": 0}, "ramp must be at least 1"),
        ({"name": "gce", "q": 0}, "q must be in"),
        ({"name": "jocor", "agreement": 2}, "agreement must be in"),
    ],
)
def test_what_cannot_be_made_is_refused_with_a_reason(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        make(problem=Problem(5, 0.4), **arguments)
