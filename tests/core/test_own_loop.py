"""The custom training loop of docs/own_loop.md with every method, and errors and warnings about wrong loops."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import labelsieve
from labelsieve import core
from labelsieve.catalogue import ORDER
from labelsieve.core.method import constant_lr
from labelsieve.methods import METHODS, Problem, make

PAGE = (Path(__file__).parents[2] / "docs" / "own_loop.md").read_text(encoding="utf-8")
CENTRES = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)) * 3


def blobs(count=192, seed=0):
    """Return three clusters of points, with 30% of the labels moved to the next class."""
    random = torch.Generator().manual_seed(seed)
    true = torch.arange(count) % 3
    x = CENTRES[true] + torch.randn(count, 8, generator=random)
    wrong = torch.rand(count, generator=random) < 0.3
    return x, torch.where(wrong, (true + 1) % 3, true), true


def loop_of_the_page():
    """Return the function `train` of the page."""
    space = {}
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(code, space)
    return space["train"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_in_the_loop_of_the_page(name):
    torch.manual_seed(0)
    x, y, true = blobs()
    network, method = loop_of_the_page()(name, x, y, lambda: nn.Linear(8, 3), 0.3, epochs=6, warmup=3, lr=0.05)
    right = (network(x).argmax(-1) == true).float().mean()
    assert right > (0.3 if name == "vat" else 0.5)  # the radius of vat is for images; chance is 0.33
    assert method.epoch == -1


def test_table_of_the_page_has_the_needs_of_each_method():
    rows = re.findall(r"^\| ([\w+-]+) \|.*\|$", PAGE, re.M)
    assert set(ORDER) <= set(rows)  # other methods may describe their needs on their own page only
    for name in set(METHODS).intersection(rows):
        method = make(name, Problem(3, 0.3, num_samples=4))
        networks, rounds = (str(count) * (count > 1) for count in (method.networks, method.num_rounds))
        needs = [
            method.needs_index,
            networks,
            rounds,
            bool(method.parameter_groups()),
            method.lr_scale is not constant_lr,
            method.needs_predictions,
            method.regularizer is not None,
            method.drop_last,
        ]
        cells = [{True: "✓", False: ""}.get(need, need) for need in needs]
        assert f"| {' | '.join([name, *cells])} |" in PAGE
    assert make("gce", Problem(3, 0.3, num_samples=4), k=0.5).needs_predictions
    assert make("mentornet-prop", Problem(3, 0.3), update="repredict").needs_predictions


def started(name="mentornet-prop", epoch=0, warmup=0, rate=0.4, classes=3, **options):
    method = make(name, Problem(classes, rate, warmup, num_samples=20), **options)
    method.start_epoch(epoch)
    return method


def batch(size=12, classes=3, seed=0):
    random = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(size, classes, generator=random), torch.randint(classes, (size,), generator=random)


def warnings_of(function):
    """Return the messages of the warnings that a function causes."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function()
    return [str(each.message) for each in found]


def test_validation_loss_under_no_grad_does_not_change_the_state():
    logits, labels = batch()
    method = started()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    with torch.no_grad():
        assert method(logits, labels) == method.step(logits, labels).loss
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


@pytest.mark.parametrize(("name", "table"), [("mentornet-prop", "penalty"), ("f-correction", "transition")])
def test_starting_the_current_epoch_again_changes_nothing(name, table):
    first, second = batch(seed=1), batch(seed=2)
    once, twice = started(name), started(name)
    for method in (once, twice):
        method(*first)
        if method is twice:
            method.start_epoch(0)
        method(*second)
        method.start_epoch(1)
    assert torch.equal(once.tables()[table], twice.tables()[table])
    assert not torch.equal(once.tables()[table], started(name).tables()[table])


@pytest.mark.parametrize("name", ["mentornet-prop", "f-correction", "cores", "co-teaching", "selfie", "active-bias"])
def test_state_saved_within_an_epoch_continues_there(name):
    options = {"warmup": 2} if name == "selfie" else {"warmup": 1}
    steps = [batch(seed=seed) for seed in range(8)]
    index = torch.arange(12)

    def learn(method, some):
        twice = method.networks == 2
        losses = [method(torch.stack([z, -z]) if twice else z, y, index) for z, y in some]
        return [loss.item() for loss in losses]

    whole = started(name, **options)
    for epoch in range(3):
        whole.start_epoch(epoch)
        learn(whole, steps[:4])
    resumed = started(name, **options)
    resumed.load_state_dict(whole.state_dict())
    assert learn(resumed, steps[4:6]) == learn(whole, steps[4:6])  # start_epoch was not called
    for method in (whole, resumed):
        method.start_epoch(3)
    assert learn(resumed, steps[6:]) == learn(whole, steps[6:])


def test_too_small_batches_cause_one_warning():
    method = started()
    few = warnings_of(lambda: [method(*batch(2)) for _ in range(5)])
    assert few == [
        "batch size 2 is too small for this noise rate: the kept share rounds up to the whole batch, so no sample is "
        "left out; use at least 3 samples per batch (gradient accumulation does not help)"
    ]
    last_of_an_epoch = started()
    assert not warnings_of(lambda: [last_of_an_epoch(*batch(size)) for size in (12, 2, 12, 2, 1, 12)])
    warming_up, without_noise, ramping = started(warmup=1), started(rate=0.0), started("co-teaching")
    assert not warnings_of(lambda: [warming_up(*batch(2)) for _ in range(5)])
    assert not warnings_of(lambda: [without_noise(*batch(2)) for _ in range(5)])
    logits, labels = batch(12)  # 97% of 12 are kept in the first epoch of the ramp, 60% at its end
    assert not warnings_of(lambda: [ramping(torch.stack([logits, -logits]), labels) for _ in range(5)])


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 1 / 3, 0.4, 0.5, 0.7, 0.99])
def test_smallest_batch_with_a_dropped_sample(rate):
    (select,) = started(rate=rate).weigh
    least = next((size for size in range(1, 200) if select.num_kept(size) < size), 0)
    assert select.smallest_batch() == least


@pytest.mark.parametrize("name", METHODS)
def test_only_the_first_batch_of_an_epoch_reads_the_device(name, monkeypatch):
    """On a GPU every read waits for the device."""
    method = make(name, Problem(3, 0.4, warmup=1, num_samples=12))
    logits, labels = batch()
    logits = logits.expand(method.networks, -1, -1) if method.networks > 1 else logits
    index, model = torch.arange(12), nn.Linear(8, 3)
    probs = logits.softmax(-1)
    more = {"model": model, "inputs": torch.randn(12, 8)} if method.regularizer else {}
    method.start_epoch(0)
    method.end_epoch(lambda: iter([(probs, labels, index)]))
    method.start_epoch(1)
    method(logits, labels, index, **more)
    for module in (core.criteria, core.method, core.select):
        monkeypatch.setattr(module, "host_decides", lambda values: False)  # as on a GPU
    reads = []
    for way in ("item", "tolist", "__int__", "__index__", "__float__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, way, lambda tensor, way=way: reads.append(way) or 0)
    for _ in range(3):
        method(logits, labels, index, **more)
    assert not reads


def test_parameters_without_an_optimizer_cause_a_warning():
    def epochs(method, groups):
        weights = nn.Linear(3, 3)
        optimizer = torch.optim.SGD([{"params": weights.parameters()}, *groups], lr=0.1, momentum=0.9, nesterov=True)
        for epoch in range(3):
            method.start_epoch(epoch)
            logits, labels = batch()
            for _ in range(2):  # gradient accumulation
                method(weights(logits), labels, torch.arange(12)).backward()
            optimizer.step()

    without_groups = started("sop")
    assert warnings_of(lambda: epochs(without_groups, [])) == [
        "no optimizer updates the method's own parameters: add loss_fn.parameter_groups() to the optimizer "
        "(torch.optim.SGD accepts them as they are)"
    ]
    with_groups = started("sop")
    assert not warnings_of(lambda: epochs(with_groups, with_groups.parameter_groups()))


def test_parameter_groups_have_no_momentum_or_decay():
    method = started("sop")
    rest = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))]}], lr=0.1, momentum=0.9, weight_decay=0.1)
    for group in method.parameter_groups():
        rest.add_param_group(group)
    assert [(g["momentum"], g["weight_decay"]) for g in rest.param_groups] == [(0.9, 0.1), (0, 0), (0, 0)]


def test_probabilities_instead_of_logits_cause_a_warning():
    logits, labels = batch()
    method = started()
    assert warnings_of(lambda: [method(logits.softmax(-1), labels) for _ in range(2)]) == [
        "logits look like probabilities: remove the softmax from the model"
    ]
    assert not warnings_of(lambda: [started()(given, labels) for given in (logits, F.one_hot(labels, 3).float())])


@pytest.mark.parametrize("networks", [1, 2])
def test_logits_that_are_not_finite_cause_a_warning(networks):
    """Without a warning, a sample that the network cannot compute would be left out in every epoch."""
    logits, labels = batch()
    method = started("mentornet-prop" if networks == 1 else "co-teaching")
    given = torch.stack([logits, logits]) if networks == 2 else logits.clone()
    given[..., 3, 1], given[..., 5, :] = torch.nan, torch.inf
    (message,) = warnings_of(lambda: [method(given, labels) for _ in range(2)])
    assert message.startswith(f"the logits of 2 of {len(labels)} samples are NaN or infinite, the first at position 3 ")
    logits[..., 0] = -torch.inf  # a class that is excluded
    assert not warnings_of(lambda: started()(logits, labels))


def test_warnings_name_the_line_of_the_caller():
    logits, labels = batch()
    with pytest.warns(match="logits look like probabilities") as found:
        started()(logits.softmax(-1), labels)
    assert found[0].filename == __file__


def test_training_in_eval_mode_causes_a_warning():
    logits, labels = batch()
    logits.requires_grad_()
    assert warnings_of(lambda: started().eval()(logits, labels)) == [
        "the loss is in eval mode and does not update its state: call loss_fn.train() before training"
    ]
    with torch.no_grad():
        assert not warnings_of(lambda: started().eval()(logits.detach(), labels))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((2, 3)), torch.zeros(2)), "logits must be a torch tensor, got ndarray"),
        ((torch.zeros(2, 3), [0, 1]), "labels must be a torch tensor, got list"),
        ((torch.zeros(2, 3), None), "labels must be a torch tensor, got NoneType"),
        ((torch.zeros(2, 3), torch.tensor([0, 1]), [0, 1]), "index must be a torch tensor, got list"),
        (
            (torch.tensor([0, 1]), torch.zeros(2, 3), torch.tensor([0, 1])),
            "labels must be integers, got torch.float32",
        ),
        (
            (torch.zeros(2, 1), torch.tensor([0, 1]), torch.tensor([0, 1])),
            "logits for two classes must be (B, 2), got one value per sample",
        ),
        ((torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([[0], [1]])), "index must be (B) like the labels"),
        ((torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([0])), "index must be (B) like the labels"),
        ((torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([0, 20])), "from 0 to 19 (num_samples is 20), got 20"),
        ((torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([0, -1])), "from 0 to 19 (num_samples is 20), got -1"),
        ((torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([4, 4])), "index contains a sample twice"),
        ((torch.zeros(2, 4), torch.tensor([0, 1]), torch.tensor([0, 1])), "made for 3 classes, the logits have 4"),
    ],
)
def test_wrong_arguments_are_an_error(arguments, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        started("elr")(*arguments)


@pytest.mark.parametrize("name", ["f-correction", "elr", "sop", "cores", "lccn", "selfie", "mentornet", "dmi"])
def test_wrong_number_of_classes_is_an_error_for_every_part(name):
    logits, labels = batch(classes=5)
    with pytest.raises(ValueError, match="the method was made for 3 classes, the logits have 5"):
        started(name, warmup=1)(logits, labels.clamp(max=2), torch.arange(12))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"noise_rate": None}, "noise_rate must be in [0, 1), got None; labelsieve.estimate_noise estimates"),
        ({"noise_rate": "auto"}, "noise_rate must be in [0, 1), got 'auto'"),
        ({"noise_rate": 1.0}, "noise_rate must be in [0, 1), got 1.0"),
        ({"noise_rate": float("nan")}, "noise_rate must be in [0, 1), got nan"),
        ({"num_classes": 1}, "num_classes must be an integer of at least 2, got 1"),
        ({"num_classes": 10.0}, "num_classes must be an integer of at least 2, got 10.0"),
        ({"warmup": None}, "warmup must be an integer of at least 0, got None"),
    ],
)
def test_invalid_problem_is_an_error(wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Problem(**{"num_classes": 3, "noise_rate": 0.2} | wrong)


def test_index_outside_the_trusted_samples_is_an_error():
    method = started()
    method.weigh[0].trust(torch.ones(10, dtype=torch.bool))
    with pytest.raises(ValueError, match=re.escape("from 0 to 9 (num_samples is 10), got 10")):
        method(*batch(12), torch.arange(12))


def test_start_round_ends_the_current_epoch():
    method = started()
    method.start_round(1)
    assert method.epoch == -1


def test_problem_accepts_numpy_numbers():
    method = make("selfie", Problem(np.int64(3), np.float32(0.25), np.int64(20), num_samples=np.int64(5)))
    method.start_epoch(20)
    assert method.weigh[0].num_kept(4) == 3


def test_epochs_are_counted_from_0():
    with pytest.raises(ValueError, match="counted from 0, got -1"):
        started(epoch=-1)
    with pytest.raises(TypeError, match="float"):
        started(epoch=2.5)


def test_second_training_with_the_same_method_causes_a_warning():
    method = started()
    assert not warnings_of(lambda: [method.start_epoch(epoch) for epoch in (1, 1, 2, 4)])
    assert warnings_of(lambda: [method.start_epoch(epoch) for epoch in (0, 1, 0)]) == [
        "epoch 0 after epoch 4: a loss stores the state of one training; make a new one for another training, or "
        "pass start= to loss_fn.epochs to continue"
    ]
    again = started(epoch=3)
    again.start_round(1)
    assert not warnings_of(lambda: again.start_epoch(0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_works_in_half_precision(name, dtype):
    method = make(name, Problem(3, 0.3, warmup=1, num_samples=20)).to(dtype)
    own = torch.optim.SGD(method.parameter_groups() or [nn.Parameter(torch.zeros(1))], lr=0.1)
    logits, labels = batch()

    def predict():
        probs = logits.softmax(-1)
        yield probs.expand(method.networks, -1, -1), labels, torch.arange(12)
        yield probs[:8].expand(method.networks, -1, -1), labels[:8], torch.arange(12, 20)

    for epoch in range(3):
        method.start_epoch(epoch)
        given = logits.to(dtype).expand(method.networks, -1, -1).clone().requires_grad_()
        if method.regularizer is None:
            loss = method(given, labels, torch.arange(12))
            loss.backward()
            assert loss.isfinite() and given.grad.isfinite().all()
            own.step()
        method.end_epoch(predict)


def test_unknown_attribute_explains_how_methods_are_made():
    with pytest.raises(AttributeError, match=re.escape("labelsieve.SieveLoss('selfie', num_classes=10")):
        _ = labelsieve.selfie
