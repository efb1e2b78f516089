"""Tests that need a GPU. Without pytest, run `python tests/test_gpu.py [NAME ...]` in the root of the repository."""

import copy
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from labelsieve.core.criteria import CriteriaALL
from labelsieve.data import Labelled, load_data
from labelsieve.features.backbones import own_backbone
from labelsieve.methods import METHODS, Problem, make
from labelsieve.models import make_model
from labelsieve.models.densenet import DenseNet
from labelsieve.models.networks import make_networks
from labelsieve.noise import corrupt, pair
from labelsieve.train import Training, fit
from labelsieve.train.checkpoint import Checkpoints, Record
from labelsieve.train.counters import Meters
from labelsieve.train.graph import GraphRecorder, own_stream
from labelsieve.train.loop import Steps, set_generator
from labelsieve.train.step import Learner

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
except ImportError:  # run as a script
    pass


def batch(size=128, classes=10, shape=(3, 32, 32)):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(size, *shape, generator=random)
    return x.cuda(), torch.randint(classes, (size,), generator=random).cuda(), torch.arange(size).cuda()


def method_after_warm_up(name, options, labels, index):
    """Return a method in its first epoch after the warm-up, on the GPU."""
    method = make(name, Problem(10, 0.4, 1, num_samples=128), **options).cuda()
    probs = torch.rand(method.networks, 128, 10).softmax(-1).cuda()
    method.start_epoch(0)
    method.end_epoch(lambda: iter([(probs, labels, index)]))
    method.start_epoch(1)
    return method


@contextmanager
def no_synchronisation():
    """Let CUDA raise an error at the first synchronisation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_step_does_not_synchronise():
    x, y, index = batch()
    for name, options in METHODS_WITH_OPTIONS:
        for precision in ("fp32", "bf16"):
            method = method_after_warm_up(name, options, y, index)
            networks = make_networks(lambda: make_model("densenet-25-12", (3, 32, 32), 10), method.networks, 0)
            networks = networks.cuda().train()
            set_generator(networks, torch.Generator(x.device))
            set_generator(method, torch.Generator(x.device))
            learner = Learner(networks, method, Training(precision=precision))
            meters = Meters(method.networks, 10, x.device)
            learner.step(x, y, index)
            torch.cuda.synchronize()
            with no_synchronisation():
                for _ in range(3):
                    meters.add(learner.step(x, y, index), y, y)
            assert meters.read(clean_known=True).first_bad_step is None, name


def test_custom_loop_does_not_synchronise():
    x, y, index = batch(shape=(10,))
    model = torch.nn.Linear(10, 10).cuda()
    for name, options in METHODS_WITH_OPTIONS:
        method = method_after_warm_up(name, options, y, index)
        if method.networks > 1:
            continue  # this loop has one network
        method(model(x), y, index, model=model, inputs=x).backward()
        torch.cuda.synchronize()
        with no_synchronisation():
            for _ in range(3):
                method(model(x), y, index, model=model, inputs=x).backward()


def test_trusted_samples_are_kept_first():
    random = torch.Generator().manual_seed(0)
    logits, y, index = (
        torch.randn(128, 10, generator=random),
        torch.randint(10, (128,), generator=random),
        torch.arange(128),
    )
    trusted = torch.rand(128, generator=random) < 0.2
    here = make("mentornet-prop", Problem(10, 0.4, 0))
    here.weigh[0].trust(trusted)
    there = copy.deepcopy(here).cuda()
    there.start_epoch(0)
    here.start_epoch(0)
    gpu = (logits.cuda(), y.cuda(), index.cuda())
    there(*gpu)
    torch.cuda.synchronize()
    with no_synchronisation():
        kept = there.step(*gpu).decision.weight
    assert torch.equal(kept.cpu(), here.step(logits, y, index).decision.weight) and kept[0, trusted.cuda()].all()


def test_penalty_labels_and_selection_match_the_cpu():
    for classes in (2, 10, 1000, 10_000):
        random = torch.Generator().manual_seed(classes)
        logits, labels = 3 * torch.randn(64, classes, generator=random), torch.randint(classes, (64,), generator=random)
        here = make("mentornet-prop", Problem(classes, 0.4, 0))
        there = make("mentornet-prop", Problem(classes, 0.4, 0)).cuda()
        for epoch in range(3):
            for method, x, y in ((here, logits, labels), (there, logits.cuda(), labels.cuda())):
                method.start_epoch(epoch)
                method(x, y)
        assert torch.allclose(here.tables()["penalty"], there.tables()["penalty"].cpu(), atol=1e-6)
        kept = here.step(logits, labels).decision.weight, there.step(logits.cuda(), labels.cuda()).decision.weight.cpu()
        assert (kept[0] == kept[1]).float().mean() > 0.96


def test_stacked_sums_do_not_depend_on_the_order():
    """Sums of integers are exact; atomic sums of floats would differ from run to run."""
    probs = (3 * torch.randn(1, 20_000, 10, generator=torch.Generator().manual_seed(0))).softmax(-1).cuda()
    labels = torch.randint(10, (20_000,), generator=torch.Generator().manual_seed(1)).cuda()
    valid = torch.ones(1, 20_000, dtype=torch.bool, device="cuda")
    first, second = CriteriaALL(10).cuda(), CriteriaALL(10).cuda()
    order = torch.randperm(20_000, device="cuda")
    first.stack(probs, labels, valid)
    second.stack(probs[:, order], labels[order], valid)
    assert torch.equal(first.sums, second.sums)


def test_fit_learns():
    train, test, _ = load_data("fashion")
    noisy = train.relabelled(corrupt(train.labels, pair(10, 0.4), seed=10)).to(torch.device("cuda"))
    method = make("mentornet-prop", Problem(10, 0.4, 10))
    training = Training(epochs=20, lr=0.02, seed=10, precision="bf16")
    result = fit(
        lambda number: make_networks(lambda: make_model("small", (1, 28, 28), 10), 1, 10).cuda(),
        method,
        noisy,
        test.to(torch.device("cuda")),
        training=training,
    )
    assert result.rows[-1]["test_error"] < 22 and result.rows[-1]["precision"] > 0.9, result.rows[-1]


def test_step_that_is_not_finite_changes_nothing():
    networks = make_networks(lambda: make_model("densenet-25-12", (3, 32, 32), 10), 1, 0).cuda().train()
    method = make("mentornet-prop", Problem(10, 0.4, 0)).cuda()
    learner = Learner(networks, method, Training())
    x, y, index = batch()
    learner.step(x, y, index)
    state = [*networks.state_dict().values(), *method.state_dict().values()]
    before = [tensor.clone() for tensor in state]
    assert not learner.step(x * float("inf"), y, index).finite.any()
    assert all(torch.equal(tensor, then) for tensor, then in zip(state, before, strict=True))


METHODS_WITH_OPTIONS = [
    *((name, {}) for name in METHODS),
    ("gce", {"k": 0.5, "prune_from": 1, "prune_every": 1}),
    ("mentornet-prop", {"compensate": "iteration"}),
    ("mentornet-prop", {"update": "repredict"}),
    ("mentornet-prop", {"align": True}),
    ("f-correction", {"estimate": "patrini"}),
]


def samples(count=640, classes=10, side=16):
    """Return images with a bright patch at a position that is the class; 30% of the labels are wrong."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (count,), generator=random)
    images = torch.randint(0, 120, (count, 3, side, side), generator=random)
    images[torch.arange(count), :, labels % side, 2 * labels % side] = 255
    data = Labelled(images.to(torch.uint8), labels, [str(k) for k in range(classes)])
    return data.relabelled(corrupt(labels, pair(classes, 0.3), seed=0)).to(torch.device("cuda"))


@contextmanager
def exact_arithmetic():
    """Use fp32 without TF32 and deterministic algorithms where available."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.allow_tf32 = before


def history(name, options, recorded, epochs=5):
    """Return losses and weights of all steps of five epochs of ten steps; the warm-up has two epochs."""
    data = samples()
    method = make(name, Problem(10, 0.3, 2, num_samples=len(data)), **options).cuda().train()
    networks = make_networks(lambda: DenseNet(3, 10, depth=10, growth=8), method.networks, 0).cuda().train()
    random = torch.Generator("cuda")
    set_generator(networks, random)
    set_generator(method, random)
    learner = Learner(networks, method, Training(lr=0.01))
    recorder = GraphRecorder(torch.device("cuda"), random, enabled=recorded)
    steps = Steps(learner, data, recorder)
    losses = torch.zeros(10, method.networks, device="cuda")
    weights = torch.zeros(10, method.networks, 64, device="cuda")
    plain_step = learner.step

    def watched(*batch):
        outcome = plain_step(*batch)
        at = steps.meters.steps.view(1)
        losses.index_copy_(0, at, outcome.step.losses.detach().unsqueeze(0))
        weights.index_copy_(0, at, outcome.step.decision.weight.unsqueeze(0))
        return outcome

    learner.step = watched

    def predict():
        networks.eval()
        with torch.no_grad():
            index = torch.arange(len(data), device="cuda")
            yield networks(data.inputs(index)).softmax(-1), data.labels, index
        networks.train()

    kept = []
    with own_stream(torch.device("cuda")):
        method.start_round(0)
        for epoch in range(epochs):
            method.start_epoch(epoch)
            learner.set_lr(0.01)
            random.manual_seed(epoch)
            order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch)).cuda()
            for step in steps.epoch(order, 64):
                step()
            kept.append((losses.clone(), weights.clone()))
            method.end_epoch(predict)
    assert recorder.reason is None or not recorded, (name, recorder.reason)
    return torch.cat([k[0] for k in kept]), torch.cat([k[1] for k in kept])


def test_recorded_steps_equal_eager_steps():
    """50 steps of every method: losses agree within 1e-4, selections for 99.9% of the samples."""
    with exact_arithmetic():
        for name, options in METHODS_WITH_OPTIONS:
            (eager, chosen), (recorded, chosen_recorded) = (history(name, options, way) for way in (False, True))
            assert torch.isfinite(eager).all(), name
            assert ((eager - recorded).abs() / eager.abs().clamp(min=1e-6)).max() <= 1e-4, (name, options)
            assert ((chosen > 0) == (chosen_recorded > 0)).double().mean() >= 0.999, (name, options)


def train_one(seed, recorded=True, network=None, epochs=4, forward="one", name="mentornet-prop", options=None, **more):
    """Train in bf16 and return the rows without times, the weights and the sums per sample."""
    data = samples(1000)
    method = make(name, Problem(10, 0.3, 2, num_samples=1000), **(options or {}))
    networks = []

    def make_round(number):
        make_one = network or (lambda: DenseNet(3, 10, depth=10, growth=8))
        networks.append(make_networks(make_one, method.networks, seed).cuda())
        return networks[-1]

    settings = {"precision": "bf16", "recorded": recorded, "forward": forward}
    training = Training(epochs=epochs, batch=96, lr=0.05, seed=seed, **settings)
    result = fit(make_round, method, data, data, training=training, **more)
    rows = [{key: row[key] for key in row if key != "seconds"} for row in result.rows]
    kept = [*networks[-1].state_dict().values(), *result.samples.values()]
    return rows, [tensor.cpu() for tensor in kept]


def test_concurrent_runs_are_bit_identical():
    """Rows and weights of four threads are those of four runs after each other."""
    alone = [train_one(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(train_one, range(4)))
    for (rows, weights), (rows_concurrent, weights_concurrent) in zip(alone, together, strict=True):
        assert rows == rows_concurrent
        assert all(torch.equal(a, b) for a, b in zip(weights, weights_concurrent, strict=True))
    assert alone[0][0] != alone[1][0]


def test_second_pass_over_the_kept_samples_is_recorded():
    rows, _ = train_one(0, forward="second")
    assert rows[-1]["steps"] == "recorded" and rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert rows[:2] == train_one(0)[0][:2]  # during the warm-up all samples are kept, in one pass
    assert rows[-1]["train_loss"] != train_one(0)[0][-1]["train_loss"]


def test_second_pass_over_a_number_of_samples_that_predictions_decide_is_recorded():
    """SELFIE and Co-teaching+ read this number in every step; all else is recorded, and equals eager steps."""
    for name, options in (("selfie", {"history": 2, "rounds": 1}), ("co-teaching+", {}), ("co-teaching", {"ramp": 1})):
        recorded, eager = (
            train_one(0, way, epochs=8, forward="second", name=name, options=options)[0] for way in (True, False)
        )
        assert recorded[-1]["steps"] == "recorded" and eager[-1]["steps"] == "eager: requested", name
        losses = torch.tensor([[row["train_loss"] for row in rows] for rows in (recorded, eager)])
        assert ((losses[0] - losses[1]).abs() / losses[1]).max() <= 1e-3, (name, losses)
        assert recorded != train_one(0, epochs=8, name=name, options=options)[0], name


class ReadsDevice(torch.nn.Module):
    """A network that reads from the device in its forward pass, which no CUDA graph can do."""

    def __init__(self):
        super().__init__()
        self.inner = DenseNet(3, 10, depth=7, growth=8)

    def forward(self, x):
        return self.inner(x) * (1.0 if x.mean().item() < 1e9 else 0.0)


def test_step_that_cannot_be_recorded_stays_eager_with_a_reason():
    rows, _ = train_one(0, network=ReadsDevice)
    assert rows[-1]["steps"].startswith("eager: ") and len(rows[-1]["steps"]) > 20, rows[-1]["steps"]
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert torch.rand(1, device="cuda").item() < 1  # the default generator still works
    assert train_one(0, network=ReadsDevice, recorded=False)[0][-1]["train_loss"] == rows[-1]["train_loss"]


class StopAfter:
    def __init__(self, epochs):
        self.left = epochs

    def step(self, done, total):
        pass

    def epoch(self, row):
        self.left -= 1
        if self.left == 0:
            raise InterruptedError


def test_recorded_run_resumes():
    uninterrupted, _ = train_one(0, epochs=6)
    with tempfile.TemporaryDirectory() as folder:
        more = {"record": Record(Path(folder) / "record.jsonl"), "checkpoints": Checkpoints(Path(folder) / "c")}
        with suppress(InterruptedError):
            train_one(0, epochs=6, watcher=StopAfter(3), **more)
        resumed, _ = train_one(0, epochs=6, **more)
        assert [json.loads(line)["event"] for line in more["record"].path.read_text().splitlines()] == [
            *["epoch"] * 3,
            "resume",
            *["epoch"] * 3,
        ]
    assert resumed == uninterrupted


def test_streamed_images_train_like_images_in_memory():
    """Streamed through pinned memory into recorded steps, with augmentation."""
    from PIL import Image

    from labelsieve.data.images import FileReader, Frame, Pictures
    from labelsieve.data.sets import Streamed

    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (300, 16, 16, 3), generator=random).to(torch.uint8)
    labels = torch.randint(10, (300,), generator=random)
    classes = tuple(str(k) for k in range(10))
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{i}.png" for i in range(300)]
        for name, image in zip(names, images, strict=True):
            Image.fromarray(image.numpy()).save(Path(folder) / name)
        pictures = Pictures(names, FileReader(Path(folder), names), labels, classes)
        streamed = Streamed(pictures, Frame(16, 16, 3), labels, classes).to(torch.device("cuda"))
        resident = Labelled(images.permute(0, 3, 1, 2).contiguous(), labels, classes).to(torch.device("cuda"))
        rows = []
        for data in (streamed, resident):
            training = Training(epochs=3, batch=64, lr=0.05, precision="bf16", augment="crop2,flip")
            result = fit(
                lambda number: make_networks(lambda: DenseNet(3, 10, depth=10, growth=8), 1, 0).cuda(),
                make("mentornet-prop", Problem(10, 0.3, 1)),
                data,
                data,
                training=training,
            )
            rows.append([{key: row[key] for key in row if key != "seconds"} for row in result.rows])
    assert rows[0] == rows[1] and rows[0][-1]["steps"] == "recorded"


def relative(value, truth):
    return ((value.double() - truth).norm() / truth.norm()).item()


def test_fused_kernels_match_plain_layers():
    """Features, gradients and statistics are as close to float64 as those of plain bf16 layers."""
    from labelsieve.models import fused

    for seed, (depth, growth, channels, side, count) in enumerate(
        [(25, 12, 3, 32, 32), (10, 12, 3, 64, 8), (13, 8, 1, 16, 33), (22, 16, 3, 32, 5)]
    ):
        torch.manual_seed(seed)
        network = DenseNet(channels, 10, depth=depth, growth=growth, dropout=0.0).cuda()
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                torch.nn.init.normal_(module.weight, 1, 0.2)
                torch.nn.init.normal_(module.bias, 0, 0.2)
        twin, truth = copy.deepcopy(network), copy.deepcopy(network).double()
        twin.fused = False
        x, g = torch.randn(count, channels, side, side, device="cuda"), torch.randn(count, 10, device="cuda")
        images = [values.requires_grad_() for values in (x.clone(), x.clone(), x.double())]
        for _ in range(2):
            with torch.autocast("cuda", torch.bfloat16):
                assert fused.applies(network, images[0])
                ours, plain = network(images[0]), twin(images[1])
            exact = truth(images[2])
            assert relative(ours, exact) < 1.5 * relative(plain, exact) + 2e-3
        for value in (ours, plain, exact):
            (value * g).sum().backward()
        ratios = []
        for (name, p), q, r in zip(network.named_parameters(), twin.parameters(), truth.parameters(), strict=True):
            error, usual = relative(p.grad, r.grad), relative(q.grad, r.grad)
            ratios.append(error / max(usual, 1e-3))
            assert error < 2 * usual + 1e-2, (name, error, usual)
        error, usual = (relative(values.grad, images[2].grad) for values in images[:2])
        assert error < 2 * usual + 1e-2, ("images", error, usual)
        assert sum(ratios) / len(ratios) < 1.2, sum(ratios) / len(ratios)
        for (name, b), c in zip(network.named_buffers(), truth.buffers(), strict=True):
            assert relative(b, c.double()) < 2e-2, name
        for net in (network, twin, truth):
            net.eval()
        with torch.no_grad():
            exact = truth(x.double())
            with torch.autocast("cuda", torch.bfloat16):
                assert relative(network(x), exact) < 1.5 * relative(twin(x), exact) + 2e-3


def test_backbones_compute_nearly_the_features_of_a_cpu_whatever_the_batch():
    for name in ("lite0", "resnet-18"):
        torch.manual_seed(0)
        weights = {
            key: value for key, value in make_model(name, (3, 96, 96), 5).state_dict().items() if "fc." not in key
        }
        here, there = (own_backbone(name, weights, 96, device) for device in ("cpu", "cuda"))
        assert here.identity == there.identity and (here.precision, there.precision) == ("fp32", "bf16")
        images = torch.randint(0, 256, (150, 3, 96, 96), dtype=torch.uint8)
        found = there(images)
        assert found.device.type == "cpu" and relative(found[:20], here(images[:20])) < 0.03
        assert torch.cat([there(images[140:]), there(images[:140])]).equal(torch.cat([found[140:], found[:140]]))


if __name__ == "__main__":
    failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_") and (not sys.argv[1:] or any(word in name for word in sys.argv[1:])):
            began = time.perf_counter()
            try:
                test()
                print(f"{name}: ok, {time.perf_counter() - began:.1f} s", flush=True)
            except Exception:
                failed += 1
                print(f"{name}: FAILED\n{traceback.format_exc(limit=-3)}", flush=True)
    sys.exit(failed > 0)
