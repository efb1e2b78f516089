"""fit: equality with a plain loop, exact resuming, checkpoints, signals and the order of samples."""

import json
import os
import signal
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from labelsieve.data.sets import standardise
from labelsieve.errors import Diverged, Stopped
from labelsieve.methods import METHODS, Problem, make
from labelsieve.models import DenseNet
from labelsieve.models.networks import make_networks
from labelsieve.runtime import derive, generator
from labelsieve.train import Checkpoints, Record, Training, fit
from labelsieve.train.loop import independent_batches
from tests.conftest import blobs

TRAINING = Training(epochs=6, batch=32, lr=0.05, seed=3)


def densenet():
    return DenseNet(1, 4, depth=7, growth=4)


def network_maker(make_one=densenet, seed=3, count=1):
    """Return a function for fit that creates networks and keeps the latest ones."""

    def make_round(number):
        make_round.latest = make_networks(make_one, count, seed, number)
        return make_round.latest

    return make_round


def make_method(name="mentornet-prop", warmup=2, **options):
    return make(name, Problem(4, 0.3, warmup, num_samples=203), **options)


def read_lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def trajectory(rows):
    """Return the rows of epochs without their times."""
    return [{key: row[key] for key in row if key != "seconds"} for row in rows if row["event"] != "resume"]


class StopAt:
    """A watcher that interrupts after a step or an epoch, both counted over all rounds."""

    def __init__(self, *, step=None, epochs=None):
        self.at_step, self.at_epochs = step, epochs

    def step(self, done, total):
        if done == self.at_step:
            raise InterruptedError

    def epoch(self, row):
        if TRAINING.epochs * (row.get("round", 1) - 1) + row["epoch"] == self.at_epochs:
            raise InterruptedError


def test_default_equals_a_plain_loop_bit_for_bit(noisy_blobs, test_blobs):
    ours = network_maker()
    result = fit(ours, make_method("default"), noisy_blobs, test_blobs, training=TRAINING)

    model = network_maker()(0)[0]
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
        assert torch.equal(ours.latest.state_dict()[f"0.{name}"], value), name


def test_noise_rate_zero_equals_default_bit_for_bit(noisy_blobs):
    plain, selecting = network_maker(), network_maker()
    fit(plain, make_method("default"), noisy_blobs, training=TRAINING)
    fit(selecting, make("mentornet-prop", Problem(4, 0.0, 0)), noisy_blobs, training=TRAINING)
    assert all(
        torch.equal(value, selecting.latest.state_dict()[key]) for key, value in plain.latest.state_dict().items()
    )


def test_rows_contain_the_measurements(noisy_blobs, test_blobs):
    result = fit(network_maker(), make_method(), noisy_blobs, test_blobs, training=TRAINING)
    assert [row["epoch"] for row in result.rows] == [1, 2, 3, 4, 5, 6]
    assert [row["lr"] for row in result.rows] == pytest.approx([0.05, 0.05, 0.05, 0.01, 0.01, 0.002])
    noise_rate = (noisy_blobs.clean != noisy_blobs.labels).double().mean().item()
    assert result.rows[0]["precision"] == pytest.approx(1 - noise_rate)
    assert result.rows[0]["kept"] == [1, 1, 1, 1]
    share = sum(k * n for k, n in zip(result.rows[2]["kept"], noisy_blobs.labels.bincount().tolist(), strict=True))
    kept = 6 * 23 + 8  # ceil(0.7 * 32) of six full batches and ceil(0.7 * 11) of the last
    assert share == pytest.approx(kept, abs=0.1)
    assert all(0 <= row["test_error"] <= 100 and row["seconds"] >= 0 for row in result.rows)
    assert result.chosen.epoch == 6
    assert torch.equal(result.tables["penalty"], result.chosen.tables["penalty"])


def test_held_out_split_chooses_the_epoch(noisy_blobs):
    train, valid = noisy_blobs.at(torch.arange(150)), noisy_blobs.at(torch.arange(150, 203))
    nets = network_maker()
    result = fit(nets, make_method(), train, valid=valid, training=TRAINING)
    errors = [row["valid_error"] for row in result.rows]
    assert result.chosen.epoch == errors.index(min(errors)) + 1
    nets.latest.load_state_dict(result.chosen.networks)
    wrong = nets.latest.eval()(valid.inputs(torch.arange(53))).argmax(-1) != valid.labels
    assert 100 * wrong.sum().item() / 53 == min(errors)


def run_interrupted(folder, noisy, test, stops, forward="one", **options):
    """Train in a folder, interrupted at each stop and resumed with new objects."""
    folder.mkdir()
    record = Record(folder / "record.jsonl")
    for stop_at in [*stops, None]:
        method = make_method(**options)
        nets = network_maker(count=method.networks)
        arguments = {
            "training": replace(TRAINING, forward=forward),
            "record": record,
            "checkpoints": Checkpoints(folder / "checkpoints"),
            "valid": test,
            "watcher": stop_at,
        }
        if stop_at is None:
            result = fit(nets, method, noisy, test, **arguments)
        else:
            with pytest.raises(InterruptedError):
                fit(nets, method, noisy, test, **arguments)
    state = {
        **nets.latest.state_dict(),
        **{f"method {k}": v for k, v in method.state_dict().items()},
        **result.chosen.networks,
        **{f"samples {k}": v for k, v in result.samples.items()},
    }
    return trajectory(read_lines(record.path)), state, result


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
        {"name": "selfie", "forward": "second"},
    ],
    ids=lambda options: " ".join(map(str, options.values())) or "mentornet-prop",
)
def test_resumed_run_equals_uninterrupted_run(tmp_path, noisy_blobs, test_blobs, options):
    rounds = make_method(**{key: options[key] for key in options if key != "forward"}).num_rounds
    uninterrupted = run_interrupted(tmp_path / "uninterrupted", noisy_blobs, test_blobs, [], **options)
    stops = [StopAt(step=3), StopAt(epochs=1), StopAt(step=21), StopAt(step=22), StopAt(epochs=6)]
    if rounds > 1:
        stops += [StopAt(step=43), StopAt(epochs=8), StopAt(step=42 * rounds), StopAt(epochs=6 * rounds)]
    resumed = run_interrupted(tmp_path / "resumed", noisy_blobs, test_blobs, stops, **options)
    assert resumed[0] == uninterrupted[0] and len(uninterrupted[0]) == 6 * rounds
    assert all(torch.equal(value, uninterrupted[1][key]) for key, value in resumed[1].items())
    assert resumed[2].chosen.epoch == uninterrupted[2].chosen.epoch


@pytest.mark.parametrize(
    ("lost", "after"),
    [("networks", 4), ("momentum", 4), ("method/weigh.0.criterion.penalty", 4), ("chosen/networks", 6), ("samples", 4)],
)
def test_comparison_detects_a_lost_part_of_the_state(tmp_path, noisy_blobs, test_blobs, lost, after, monkeypatch):
    """Check the test above: it fails for every part of the state that is lost."""
    uninterrupted = run_interrupted(tmp_path / "uninterrupted", noisy_blobs, test_blobs, [])
    found = Checkpoints.newest

    def lossy(self):
        checkpoint = found(self)
        if checkpoint:
            for name, tensor in checkpoint[0].items():
                if name.startswith(lost):
                    tensor.zero_()
        return checkpoint

    monkeypatch.setattr(Checkpoints, "newest", lossy)
    resumed = run_interrupted(tmp_path / "resumed", noisy_blobs, test_blobs, [StopAt(epochs=after)])
    same = resumed[0] == uninterrupted[0] and all(
        torch.equal(value, uninterrupted[1][key]) for key, value in resumed[1].items()
    )
    assert not same


def test_rounds_start_with_new_networks_and_the_last_is_delivered(noisy_blobs, test_blobs):
    started = []
    make_one = network_maker()

    def spy(number):
        started.append(make_one(number).state_dict()["0.classifier.weight"].clone())
        return make_one.latest

    result = fit(spy, make_method("selfie"), noisy_blobs, test_blobs, training=TRAINING)
    assert len(started) == 3 and not torch.equal(started[0], started[1])
    assert [(row["round"], row["epoch"]) for row in result.rows] == [(r, e) for r in (1, 2, 3) for e in range(1, 7)]
    assert torch.equal(
        result.chosen.networks["0.classifier.weight"], make_one.latest.state_dict()["0.classifier.weight"]
    )


def test_patrini_estimates_the_transition_between_rounds(noisy_blobs):
    method = make_method("f-correction", estimate="patrini")
    result = fit(network_maker(), method, noisy_blobs, training=TRAINING)
    assert len(result.rows) == 12
    assert not torch.equal(result.tables["transition"][0], torch.eye(4))
    assert torch.allclose(result.tables["transition"].sum(-1), torch.ones(1, 4))


def test_dmi_drops_an_incomplete_last_batch(noisy_blobs):
    steps = []

    class Spy(StopAt):
        def step(self, done, total):
            steps.append((done, total))

    fit(network_maker(), make_method("dmi", warmup=1), noisy_blobs, training=TRAINING, watcher=Spy())
    assert steps[-1] == (36, 36)  # six full batches of 203 samples, six epochs


def test_damaged_checkpoint_is_skipped(tmp_path, noisy_blobs, test_blobs):
    uninterrupted = run_interrupted(tmp_path / "uninterrupted", noisy_blobs, test_blobs, [])

    class Damage(StopAt):
        def epoch(self, row):
            if row["epoch"] == 3:
                path = tmp_path / "resumed" / "checkpoints" / "000003.safetensors"
                content = bytearray(path.read_bytes())
                content[len(content) // 2] ^= 1
                path.write_bytes(content)
            super().epoch(row)

    with pytest.warns(UserWarning, match=r"000003\.safetensors is damaged"):
        resumed = run_interrupted(tmp_path / "resumed", noisy_blobs, test_blobs, [Damage(epochs=3)])
    assert resumed[0] == uninterrupted[0]


def test_divergence_raises_one_line_and_keeps_the_checkpoint(tmp_path, noisy_blobs):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    fit(network_maker(), make_method(), noisy_blobs, training=replace(TRAINING, epochs=1), checkpoints=checkpoints)
    with pytest.raises(Diverged, match=r"not finite in epoch 2, step \d+, and the step was undone") as caught:
        fit(
            network_maker(),
            make_method(),
            noisy_blobs,
            training=replace(TRAINING, lr=1e30),
            checkpoints=checkpoints,
        )
    assert "\n" not in str(caught.value)
    assert checkpoints.newest()[1]["epochs_done"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_between_two_steps(noisy_blobs, number):
    class SendAt(StopAt):
        steps = 0

        def step(self, done, total):
            SendAt.steps += 1
            if done == 7 + 2:
                os.kill(os.getpid(), number)

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as caught:
        fit(network_maker(), make_method(), noisy_blobs, training=TRAINING, watcher=SendAt())
    assert caught.value.exit_code == 128 + number
    assert SendAt.steps == 7 + 2
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 63, 65])
def test_every_sample_is_used_once_except_a_last_batch_of_one(count):
    """33 and 65 leave a batch of one sample, which batch-norm cannot process."""
    seen = []
    data = blobs(count, 0)

    class Spy(StopAt):
        def step(self, done, total):
            seen.append(done)

    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    fit(
        network_maker(lambda: network),
        make_method(),
        data,
        training=Training(epochs=1, batch=32, lr=0.01),
        watcher=Spy(),
    )
    assert len(seen) == -(-count // 32)
    if count % 32 == 1 and count > 1:
        seen.clear()
        fit(network_maker(), make_method(), data, training=Training(epochs=1, batch=32, lr=0.01), watcher=Spy())
        assert len(seen) == count // 32


@pytest.mark.parametrize(("samples", "batch"), [(50_000, 128), (203, 32), (20, 32), (7, 7), (1, 4)])
def test_independent_batches_contain_no_sample_twice(samples, batch):
    size = min(batch, samples)
    order = independent_batches(samples, batch, generator(0, "batches"))
    batches = order.view(-1, size)
    assert len(batches) == -(-samples // batch) and order.min() >= 0 and order.max() < samples
    assert all(len(set(one.tolist())) == size for one in batches)
    if samples > 1000:
        assert abs(len(order.unique()) / samples - 0.632) < 0.01  # a share of 1 - 1/e appears


def test_independent_batches_are_reproducible(noisy_blobs):
    training = replace(TRAINING, sampler="independent")
    rows = fit(network_maker(), make_method(), noisy_blobs, training=training).rows
    assert trajectory(rows) == trajectory(fit(network_maker(), make_method(), noisy_blobs, training=training).rows)
    assert trajectory(rows) != trajectory(fit(network_maker(), make_method(), noisy_blobs, training=TRAINING).rows)
