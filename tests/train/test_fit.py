"""fit: equal to a bare loop, exact after a cut, unharmed by a step that is not finite."""

import copy
import os
import signal
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from labelsieve import METHODS, Problem, make
from labelsieve.data.sets import standardise
from labelsieve.errors import Diverged, Stopped
from labelsieve.models import DenseNet
from labelsieve.models.networks import make_networks
from labelsieve.runtime import derive, generator
from labelsieve.train import Checkpoints, Record, Training, fit
from labelsieve.train.loop import independent_batches
from labelsieve.train.step import Learner
from tests.conftest import blobs

TRAINING = Training(epochs=6, batch=32, lr=0.05, seed=3)


def densenet():
    return DenseNet(1, 4, depth=7, growth=4)


def networks(make_one=densenet, seed=3, count=1):
    """A maker that fit can call, and that remembers what it made last."""

    def make_round(number):
        make_round.made = make_networks(make_one, count, seed, number)
        return make_round.made

    return make_round


def method(name="mentornet-prop", warmup=2, **options):
    return make(name, Problem(4, 0.3, warmup, num_samples=203), **options)


def trajectory(rows):
    return [{key: row[key] for key in row if key != "seconds"} for row in rows if row["event"] != "resume"]


class StopAt:
    """A watcher that breaks off after a step or after a whole epoch, both counted from the start of all rounds."""

    def __init__(self, *, step=None, epochs=None):
        self.at_step, self.at_epochs = step, epochs

    def step(self, done, total):
        if done == self.at_step:
            raise InterruptedError

    def epoch(self, row):
        if TRAINING.epochs * (row.get("round", 1) - 1) + row["epoch"] == self.at_epochs:
            raise InterruptedError


def test_default_equals_a_bare_loop_bit_for_bit(noisy_blobs, test_blobs):
    ours = networks()
    result = fit(ours, method("default"), noisy_blobs, test_blobs, training=TRAINING)

    model = networks()(0)[0]
    random = torch.Generator()
    for module in model.modules():
        if hasattr(module, "generator"):
            module.generator = random
    settings = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4, "fused": True}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **settings)
    errors = []
    for epoch in range(6):
        optimizer.param_groups[0]["lr"] = 0.05 * (0.2 ** ((epoch >= 3) + (epoch >= 4.5)))
        random.manual_seed(derive(3, "dropout", 0, epoch))
        model.train()
        for index in torch.randperm(203, generator=generator(3, "batches", 0, epoch)).split(32):
            logits = model(standardise(noisy_blobs.images[index]))
            loss = F.cross_entropy(logits, noisy_blobs.labels[index], reduction="none").sum() / len(index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        wrong = model(standardise(test_blobs.images)).argmax(1) != test_blobs.labels
        errors.append(100 * wrong.sum().item() / 100)

    assert [row["test_error"] for row in result.rows] == errors
    for name, value in model.state_dict().items():
        assert torch.equal(ours.made.state_dict()[f"0.{name}"], value), name


def test_zero_noise_rate_trains_as_default_bit_for_bit(noisy_blobs):
    plain, selecting = networks(), networks()
    fit(plain, method("default"), noisy_blobs, training=TRAINING)
    fit(selecting, make("mentornet-prop", Problem(4, 0.0, 0)), noisy_blobs, training=TRAINING)
    assert all(torch.equal(value, selecting.made.state_dict()[key]) for key, value in plain.made.state_dict().items())


def test_rows_hold_what_was_measured(noisy_blobs, test_blobs):
    result = fit(networks(), method(), noisy_blobs, test_blobs, training=TRAINING)
    assert [row["epoch"] for row in result.rows] == [1, 2, 3, 4, 5, 6]
    assert [row["lr"] for row in result.rows] == pytest.approx([0.05, 0.05, 0.05, 0.01, 0.01, 0.002])
    noise_rate = (noisy_blobs.clean != noisy_blobs.labels).double().mean().item()
    assert result.rows[0]["precision"] == pytest.approx(1 - noise_rate)
    assert result.rows[0]["kept"] == [1, 1, 1, 1]
    share = sum(k * n for k, n in zip(result.rows[2]["kept"], noisy_blobs.labels.bincount().tolist(), strict=True))
    kept = 6 * 23 + 8  # ceil(0.7 * 32) of six whole batches and ceil(0.7 * 11) of the last
    assert share == pytest.approx(kept, abs=0.1)
    assert all(0 <= row["test_error"] <= 100 and row["seconds"] >= 0 for row in result.rows)
    assert result.chosen.epoch == 6
    assert torch.equal(result.tables["penalty"], result.chosen.tables["penalty"])


def test_the_held_out_noisy_split_chooses_the_epoch(noisy_blobs):
    train, valid = noisy_blobs.at(torch.arange(150)), noisy_blobs.at(torch.arange(150, 203))
    nets = networks()
    result = fit(nets, method(), train, valid=valid, training=TRAINING)
    errors = [row["valid_error"] for row in result.rows]
    assert result.chosen.epoch == errors.index(min(errors)) + 1
    nets.made.load_state_dict(result.chosen.networks)
    wrong = nets.made.eval()(valid.inputs(torch.arange(53))).argmax(-1) != valid.labels
    assert 100 * wrong.sum().item() / 53 == min(errors)


def run_with_cuts(folder, noisy, test, cuts, **options):
    """Train in a folder, broken off at each cut and taken up again with fresh objects."""
    folder.mkdir()
    record = Record(folder / "record.jsonl")
    for cut in [*cuts, None]:
        meth = method(**options)
        nets = networks(count=meth.networks)
        arguments = {
            "training": TRAINING,
            "record": record,
            "checkpoints": Checkpoints(folder / "checkpoints"),
            "valid": test,
            "watcher": cut,
        }
        if cut is None:
            result = fit(nets, meth, noisy, test, **arguments)
        else:
            with pytest.raises(InterruptedError):
                fit(nets, meth, noisy, test, **arguments)
    state = {
        **nets.made.state_dict(),
        **{f"method {k}": v for k, v in meth.state_dict().items()},
        **result.chosen.networks,
        **{f"samples {k}": v for k, v in result.samples.items()},
    }
    return trajectory(record.rows()), state, result


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"update": "repredict"},
        {"compensate": "iteration"},
        *({"name": name} for name in METHODS if name not in ("mentornet-prop", "default")),
        {"name": "f-correction", "estimate": "patrini"},
        {"name": "gce", "k": 0.3, "prune_from": 3, "prune_every": 1},
        {"name": "co-teaching", "criterion": "all"},
    ],
    ids=lambda options: " ".join(map(str, options.values())) or "mentornet-prop",
)
def test_a_run_that_was_cut_ends_as_one_that_was_not(tmp_path, noisy_blobs, test_blobs, options):
    rounds = method(**options).rounds
    whole = run_with_cuts(tmp_path / "whole", noisy_blobs, test_blobs, [], **options)
    cuts = [StopAt(step=3), StopAt(epochs=1), StopAt(step=21), StopAt(step=22), StopAt(epochs=6)]
    if rounds > 1:
        cuts += [StopAt(step=43), StopAt(epochs=8), StopAt(step=42 * rounds), StopAt(epochs=6 * rounds)]
    pieces = run_with_cuts(tmp_path / "pieces", noisy_blobs, test_blobs, cuts, **options)
    assert pieces[0] == whole[0] and len(whole[0]) == 6 * rounds
    assert all(torch.equal(value, whole[1][key]) for key, value in pieces[1].items())
    assert pieces[2].chosen.epoch == whole[2].chosen.epoch


@pytest.mark.parametrize(
    ("lost", "after"),
    [("networks", 4), ("momentum", 4), ("method/weigh.0.criterion.penalty", 4), ("chosen/networks", 6), ("samples", 4)],
)
def test_the_comparison_sees_what_a_checkpoint_loses(tmp_path, noisy_blobs, test_blobs, lost, after, monkeypatch):
    """A control of the test above: it must fail for every part of the state that is dropped."""
    whole = run_with_cuts(tmp_path / "whole", noisy_blobs, test_blobs, [])
    found = Checkpoints.newest

    def forgetful(self):
        checkpoint = found(self)
        if checkpoint:
            for name, tensor in checkpoint[0].items():
                if name.startswith(lost):
                    tensor.zero_()
        return checkpoint

    monkeypatch.setattr(Checkpoints, "newest", forgetful)
    pieces = run_with_cuts(tmp_path / "pieces", noisy_blobs, test_blobs, [StopAt(epochs=after)])
    same = pieces[0] == whole[0] and all(torch.equal(value, whole[1][key]) for key, value in pieces[1].items())
    assert not same


def test_rounds_start_anew_and_only_the_last_is_delivered(noisy_blobs, test_blobs):
    started = []
    make_one = networks()

    def spy(number):
        started.append(make_one(number).state_dict()["0.classifier.weight"].clone())
        return make_one.made

    result = fit(spy, method("selfie"), noisy_blobs, test_blobs, training=TRAINING)
    assert len(started) == 3 and not torch.equal(started[0], started[1])
    assert [(row["round"], row["epoch"]) for row in result.rows] == [(r, e) for r in (1, 2, 3) for e in range(1, 7)]
    assert torch.equal(result.chosen.networks["0.classifier.weight"], make_one.made.state_dict()["0.classifier.weight"])


def test_patrini_estimates_the_transition_between_its_rounds(noisy_blobs):
    meth = method("f-correction", estimate="patrini")
    result = fit(networks(), meth, noisy_blobs, training=TRAINING)
    assert len(result.rows) == 12
    assert not torch.equal(result.tables["transition"][0], torch.eye(4))
    assert torch.allclose(result.tables["transition"].sum(-1), torch.ones(1, 4))


def test_a_network_without_anything_to_learn_is_left_as_it_is(noisy_blobs):
    """Co-teaching+ on twins that never disagree: no update, not even weight decay, and no alarm."""
    meth = make("co-teaching+", Problem(4, 0.3, 0))
    single = make_networks(densenet, 1, 0)[0]
    twins = torch.nn.ModuleList([single, copy.deepcopy(single)])
    twins.forward = lambda x: torch.stack([twins[0](x), twins[1](x)])
    for module in twins.modules():
        if hasattr(module, "rate"):
            module.rate = 0.0  # no dropout: the twins stay twins
    learner = Learner(twins, meth, TRAINING)
    state = [*twins.parameters(), *twins.buffers()]
    before = [tensor.clone() for tensor in state]
    outcome = learner.step(noisy_blobs.inputs(torch.arange(32)), noisy_blobs.labels[:32], torch.arange(32))
    assert outcome.finite.all() and not outcome.step.decision.active.any()
    state = [*twins.parameters(), *twins.buffers()]
    assert all(torch.equal(tensor, then) for tensor, then in zip(state, before, strict=True))


def test_dmi_leaves_an_incomplete_last_batch_out(noisy_blobs):
    steps = []

    class Spy(StopAt):
        def step(self, done, total):
            steps.append((done, total))

    fit(networks(), method("dmi", warmup=1), noisy_blobs, training=TRAINING, watcher=Spy())
    assert steps[-1] == (36, 36)  # six whole batches of 203 samples, six epochs


def test_a_damaged_checkpoint_is_not_used(tmp_path, noisy_blobs, test_blobs):
    whole = run_with_cuts(tmp_path / "whole", noisy_blobs, test_blobs, [])

    class Damage(StopAt):
        def epoch(self, row):
            if row["epoch"] == 3:
                path = tmp_path / "pieces" / "checkpoints" / "000003.safetensors"
                content = bytearray(path.read_bytes())
                content[len(content) // 2] ^= 1
                path.write_bytes(content)
            super().epoch(row)

    with pytest.warns(UserWarning, match=r"000003\.safetensors is damaged"):
        pieces = run_with_cuts(tmp_path / "pieces", noisy_blobs, test_blobs, [Damage(epochs=3)])
    assert pieces[0] == whole[0]


def test_a_step_that_is_not_finite_changes_nothing(noisy_blobs):
    nets, meth = networks()(0), method()
    learner = Learner(nets, meth, TRAINING)
    good, index = noisy_blobs.inputs(torch.arange(32)), torch.arange(32)
    learner.step(good, noisy_blobs.labels[:32], index)
    momenta = [optimizer.state[p]["momentum_buffer"] for optimizer in learner.optimizers for p in nets.parameters()]
    state = [*nets.state_dict().values(), *meth.state_dict().values(), *momenta]
    before = [tensor.clone() for tensor in state]
    outcome = learner.step(good * float("nan"), noisy_blobs.labels[:32], index)
    assert not outcome.finite.any()
    assert all(torch.equal(tensor, then) for tensor, then in zip(state, before, strict=True))
    assert learner.step(good, noisy_blobs.labels[:32], index).finite.all()
    assert not all(torch.equal(tensor, then) for tensor, then in zip(state, before, strict=True))


def test_divergence_stops_the_run_with_one_line_and_keeps_the_checkpoint(tmp_path, noisy_blobs):
    from dataclasses import replace

    checkpoints = Checkpoints(tmp_path / "checkpoints")
    fit(networks(), method(), noisy_blobs, training=replace(TRAINING, epochs=1), checkpoints=checkpoints)
    with pytest.raises(Diverged, match=r"not finite in epoch 2, step \d+; that step changed nothing") as caught:
        fit(
            networks(),
            method(),
            noisy_blobs,
            training=replace(TRAINING, lr=1e30),
            checkpoints=checkpoints,
        )
    assert "\n" not in str(caught.value)
    assert checkpoints.newest()[1]["epochs_done"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_a_step_boundary(noisy_blobs, number):
    class SendAt(StopAt):
        steps = 0

        def step(self, done, total):
            SendAt.steps += 1
            if done == 7 + 2:
                os.kill(os.getpid(), number)

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as caught:
        fit(networks(), method(), noisy_blobs, training=TRAINING, watcher=SendAt())
    assert caught.value.exit_code == 128 + number
    assert SendAt.steps == 7 + 2
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 63, 65])
def test_every_sample_is_used_once_but_for_a_last_batch_of_one(count):
    """33 and 65 leave one sample over, which batch-norm cannot take."""
    seen = []
    data = blobs(count, 0)

    class Spy(StopAt):
        def step(self, done, total):
            seen.append(done)

    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    fit(
        networks(lambda: network),
        method(),
        data,
        training=Training(epochs=1, batch=32, lr=0.01),
        watcher=Spy(),
    )
    assert len(seen) == -(-count // 32)
    if count % 32 == 1 and count > 1:
        seen.clear()
        fit(networks(), method(), data, training=Training(epochs=1, batch=32, lr=0.01), watcher=Spy())
        assert len(seen) == count // 32


@pytest.mark.parametrize(("samples", "batch"), [(50_000, 128), (203, 32), (20, 32), (7, 7), (1, 4)])
def test_independent_batches_hold_no_sample_twice(samples, batch):
    size = min(batch, samples)
    order = independent_batches(samples, batch, generator(0, "batches"))
    batches = order.view(-1, size)
    assert len(batches) == -(-samples // batch) and order.min() >= 0 and order.max() < samples
    assert all(len(set(one.tolist())) == size for one in batches)
    if samples > 1000:
        assert abs(len(order.unique()) / samples - 0.632) < 0.01  # 1 - 1/e are seen at all


def test_independent_batches_train_and_are_drawn_anew(noisy_blobs):
    training = replace(TRAINING, sampler="independent")
    rows = fit(networks(), method(), noisy_blobs, training=training).rows
    assert trajectory(rows) == trajectory(fit(networks(), method(), noisy_blobs, training=training).rows)
    assert trajectory(rows) != trajectory(fit(networks(), method(), noisy_blobs, training=TRAINING).rows)


def test_a_second_pass_learns_from_the_kept_samples_alone(noisy_blobs):
    """Against a loop by hand: decide on one pass, forget its batch-norm statistics, learn from another."""
    nets, bare = make_networks(densenet, 1, 0), make_networks(densenet, 1, 0)[0]
    for module in (*nets.modules(), *bare.modules()):
        if hasattr(module, "rate"):
            module.rate = 0.0
    meth = make("mentornet", Problem(4, 0.3, 0))
    meth.start_epoch(0)
    learner = Learner(nets.train(), meth, replace(TRAINING, forward="second"))
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


@pytest.mark.parametrize("name", ["co-teaching", "selfie", "vat", "active-bias"])
def test_a_second_pass_is_refused_where_the_kept_are_not_known_before(name):
    with pytest.raises(ValueError, match="methods of one network that only select"):
        method(name).kept(32)
