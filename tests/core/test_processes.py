"""Custom training loops in several processes: the batch of a step is the union of the batches of all processes."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labelsieve.core.processes import Processes, all_processes, first_places, gather_predictions
from labelsieve.methods import METHODS, Problem, make
from labelsieve.models.networks import Networks
from tests.together import together

PAGE = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text(encoding="utf-8")
COUNT, BATCH, CLASSES = 60, 24, 3  # the last batch has 12 samples
WITH_THREE = ("mentornet-prop", "selfie", "dmi", "sop")
OPTIONS = {"gce": {"k": 0.3, "prune_every": 1}, "selfie": {"rounds": 1}, "selfie-prop": {"rounds": 1}}


def points():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(COUNT, 8, generator=random)
    return x, (x[:, :CLASSES] + torch.randn(COUNT, CLASSES, generator=random)).argmax(1)


def made(name, **problem):
    return make(name, Problem(CLASSES, 0.4, 1, num_samples=COUNT, **problem), **OPTIONS.get(name, {}))


def networks_of(method):
    networks = Networks(nn.Linear(8, CLASSES) for _ in range(method.networks))
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in networks.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random))
    return networks


def loop(name, epochs=3, save_at=None, load=None, everywhere=False):
    """Train with DistributedDataParallel, each process with its rows; return losses and states.

    Save the states of the first process after step `save_at`, or load them before the step after it. `everywhere`: the
    predictions of each process are those of all samples, else of its share.
    """
    processes, (x, y) = all_processes(), points()
    method = made(name)
    networks = networks_of(method)
    model = DistributedDataParallel(networks) if processes.count > 1 else networks
    optimizer = torch.optim.SGD([{"params": networks.parameters()}, *method.parameter_groups()], lr=0.5)

    def predict():
        rows = slice(None) if everywhere else processes.rows(COUNT)
        for index in torch.arange(COUNT)[rows].split(13):
            yield networks(x[index]).softmax(-1), y[index], index

    losses, done = [], 0
    for epoch in range(epochs):
        order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            done += 1
            if load is not None and done <= load["step"]:
                continue
            if load is not None and done == load["step"] + 1:
                networks.load_state_dict(load["networks"])
                method.load_state_dict(load["method"])
            method.start_epoch(epoch)
            index = batch[processes.rows(len(batch))]
            inputs = x[index]
            loss = method(model(inputs), y[index], index, model=networks, inputs=inputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if done == save_at:
                states = {"networks": networks.state_dict(), "method": method.state_dict()}
                load_later = {"step": done, **{key: copied(value) for key, value in states.items()}}
        if load is None or done > load["step"]:
            method.end_epoch(predict)
    saved = load_later if save_at else None
    return losses, {**copied(networks.state_dict()), **copied(method.state_dict())}, saved


def copied(state):
    return {name: value.clone() for name, value in state.items()}


def every_loop():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "dmi cannot learn")
        found = {name: loop(name) for name in (METHODS if all_processes().count < 3 else WITH_THREE)}
    found["everywhere"] = loop("lccn", everywhere=True)
    whole = loop("mentornet-prop", save_at=4)  # in the middle of the second epoch
    found["whole"], found["resumed"] = whole, loop("mentornet-prop", load=all_processes().from_first(whole[2]))
    return found


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loops")
    return {count: together(count, folder / str(count), every_loop) for count in (1, 2, 3)}


def close(one, other):
    for name, value in one.items():
        scale = 2**36 if name.endswith(("sums", "columns")) else 1
        assert torch.allclose(value.double(), other[name].double(), atol=1e-5 * scale, rtol=1e-5), name


@pytest.mark.parametrize(
    ("name", "count"),
    [*((name, 2) for name in METHODS if name != "vat"), *((name, 3) for name in WITH_THREE)],
)
def test_loop_in_several_processes_equals_one_with_the_union_of_their_batches(loops, name, count):
    """Except vat, which draws a direction in each process."""
    (losses, state, _), (spread, states, _) = loops[1][0][name], loops[count][0][name]
    assert spread == pytest.approx(losses, abs=1e-5)
    close(state, states)


@pytest.mark.parametrize("count", [2, 3])
def test_state_is_the_same_in_every_process(loops, count):
    for name, (losses, state, _) in loops[count][0].items():
        for rank in range(1, count):
            others, states, _ = loops[count][rank][name]
            assert all(torch.equal(state[key], states[key]) for key in state), name
            assert name == "vat" or losses == others


def test_each_process_may_predict_all_samples_or_a_share(loops):
    close(loops[1][0]["lccn"][1], loops[3][0]["everywhere"][1])


def test_state_of_the_first_process_continues_the_training_everywhere(loops):
    """Saved in the middle of an epoch by one process and loaded by all."""
    for rank in range(2):
        (losses, whole, _), (rest, resumed, _) = loops[2][rank]["whole"], loops[2][rank]["resumed"]
        assert rest == losses[4:] and all(torch.equal(whole[key], resumed[key]) for key in whole)


def uneven(name):
    """Pass batches of different sizes, with a sample that two processes have; return loss, gradient and warnings."""
    rank, (x, y) = all_processes().rank, points()
    method = made(name)
    method.start_epoch(1 if name == "mentornet" else 0)
    index = (torch.arange(5), torch.arange(4, 12), torch.arange(12, 12))[rank]  # 5, 8 and no samples; 4 is in two
    logits = x[index, :CLASSES].requires_grad_()
    loss = method(logits, y[index], index)
    loss.backward()
    same = torch.arange(5)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(4):
            method(x[same, :CLASSES].requires_grad_(), y[same], same)
    return loss.item(), logits.grad, [str(each.message) for each in found]


def test_batches_may_differ_in_size_and_repeat_samples(tmp_path):
    (x, y), index = points(), torch.arange(12)
    for name in ("elr", "mentornet"):
        results = together(3, tmp_path / name, uneven, name)
        method = made(name)
        method.start_epoch(1 if name == "mentornet" else 0)
        if name == "mentornet":
            index = torch.cat([torch.arange(5), torch.arange(4, 12)])  # samples without a stored value count twice
        logits = x[index, :CLASSES].requires_grad_()
        loss = method(logits, y[index], index)
        loss.backward()
        gradient = torch.cat([part for _, part, _ in results]) / 3  # DistributedDataParallel takes the mean
        if name == "elr":
            assert not gradient[5].any()  # the second one of a repeated sample
            gradient = torch.cat([gradient[:5], gradient[6:]])
        assert torch.allclose(gradient, logits.grad, atol=1e-6)
        for value, _, found in results:
            assert value == pytest.approx(loss.item(), abs=1e-6)
            repeated = [line for line in found if line.startswith("several processes pass the same positions")]
            assert len(repeated) == (name == "elr") and len(found) == len(repeated)


def separate():
    """Return the loss of a method that selects in its own batch, and of one in eval mode."""
    rank, (x, y) = all_processes().rank, points()
    index = torch.arange(12) + 12 * rank
    alone, together_ = made("mentornet", distributed=False), made("mentornet").eval()
    values = []
    for method in (alone, together_):
        method.start_epoch(1)
        if rank == 0 or method is alone:  # eval mode does not wait for other processes
            values.append(method(x[index, :CLASSES].detach(), y[index]).item())
    return values


def test_processes_can_train_separately(tmp_path):
    first, second = together(2, tmp_path, separate)
    (x, y), own = points(), []
    for rank in range(2):
        method, index = made("mentornet"), torch.arange(12) + 12 * rank
        method.start_epoch(1)
        own.append(method(x[index, :CLASSES], y[index]).item())
    assert first == pytest.approx([own[0], own[0]]) and second == pytest.approx([own[1]])


def test_first_places():
    assert first_places(torch.tensor([3, 1, 3, 0, 1])).tolist() == [0, 1, 3]


def test_one_process_predicts_as_it_is():
    batches = [(torch.ones(1, 2, 3), torch.zeros(2), torch.arange(2))]
    assert list(gather_predictions(lambda: iter(batches), Processes())) == batches


def loop_of_the_page(code):
    space = {}
    exec(code, space)
    x, y = points()
    torch.manual_seed(0)
    network, method = space["train"]("mentornet-prop", x, y, nn.Linear(8, CLASSES), 0.3, epochs=3, warmup=1, batch=16)
    return {**copied(network.state_dict()), **copied(method.state_dict())}


def test_documentation_example_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    first, second = together(2, tmp_path, loop_of_the_page, code)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert first["weigh.0.criterion.penalty"].std() > 0.1
