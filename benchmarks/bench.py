"""The loop that public repositories of this field share, for comparison: eager, data on the host, selection on the CPU.

It is kinder than most of them: images are standardised once and lie in memory, so no worker has to decode anything."""

import json
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import labelsieve
from labelsieve.core.method import Method
from labelsieve.data import Labelled, load_data
from labelsieve.errors import InputError, nearest
from labelsieve.files import refuse_no_folder, refuse_others
from labelsieve.methods import METHODS, Problem, make
from labelsieve.models import default_model, make_model
from labelsieve.models.networks import make_networks, move_to_device
from labelsieve.noise import corrupt, pair
from labelsieve.runs.spec import DATASET_SETTINGS
from labelsieve.runtime import best_device, best_precision, device_name, usable_device
from labelsieve.train import Training, fit
from labelsieve.train.graph import GraphRecorder, own_stream
from labelsieve.train.loop import Steps, Watcher, set_generator
from labelsieve.train.step import Learner

LAM = 0.5


def plain_epochs(
    make_network: Callable[[], nn.Module],
    train: Labelled,
    test: Labelled,
    device: torch.device,
    *,
    batch: int,
    epochs: int,
) -> list[float]:
    """Train mentornet-prop in fp32, all epochs selecting; returns the seconds of each epoch, evaluation included."""
    network = make_network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    images, test_images = (data.inputs(torch.arange(len(data))) for data in (train, test))
    classes = train.num_classes
    penalty = torch.full((classes, classes), 1 / (classes - 1), device=device)
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        penalty = one_epoch(network, optimizer, images, train.labels, penalty, device, batch)
        evaluate(network, test_images, test.labels, device, batch)
        seconds.append(time.perf_counter() - began)
    return seconds


def one_epoch(
    network: nn.Module,
    optimizer: torch.optim.SGD,
    images: Tensor,
    labels: Tensor,
    penalty: Tensor,
    device: torch.device,
    batch: int,
) -> Tensor:
    """Returns the penalty labels for the next epoch."""
    network.train()
    sums = torch.zeros_like(penalty)
    correct, total_loss = 0.0, 0.0
    for index in torch.randperm(len(labels)).split(batch):
        x, y = images[index].to(device), labels[index].to(device)
        logits = network(x)
        probs = F.softmax(logits, dim=1).detach()
        confidence = probs[torch.arange(len(y)), y]
        criteria = (confidence - LAM * (penalty[y] * probs).sum(1)).cpu().numpy()
        kept = np.argsort(-criteria)[: int(np.ceil(0.6 * len(y)))]
        loss = F.cross_entropy(logits[kept], y[kept])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums.index_add_(0, y, probs)
        correct += (probs.argmax(1) == y).sum().item()
        total_loss += loss.item()
    sums.fill_diagonal_(0)
    return sums / sums.sum(1, keepdim=True).clamp(min=1e-12)


@torch.no_grad()
def evaluate(network: nn.Module, images: Tensor, labels: Tensor, device: torch.device, batch: int) -> float:
    network.eval()
    correct = 0.0
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        correct += (network(x.to(device)).argmax(1).cpu() == y).sum().item()
    return 100 - 100 * correct / len(labels)


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], Any], device: torch.device, repeats: int = 10) -> float:
    """The median seconds of a piece of work, after a first go."""
    seconds = []
    for _ in range(repeats + 1):
        wait_for(device)
        began = time.perf_counter()
        work()
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def ceilings(device: torch.device, half: bool) -> tuple[float, float]:
    """Bytes per second of a large copy, read and written, and operations per second of a large matrix product."""
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.randint(100, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * size / timed(lambda: target.copy_(source), device)
    side = 8192 if device.type == "cuda" else 1024
    matrix = torch.randn(side, side, device=device, dtype=torch.bfloat16 if half else torch.float32)
    return bandwidth, 2 * side**3 / timed(lambda: matrix @ matrix, device)


def work_per_image(network: nn.Module, shape: tuple[int, ...], bytes_each: int) -> tuple[float, float]:
    """The fewest bytes that the layers with weights must move for one image, and their operations, forth and back.

    Forward, a layer reads its input and writes its output; backward, it reads both (the output's gradient in place of
    the output) and writes the input's gradient. Norms, activations and copies would cost nothing if all were fused.
    """
    moved = operations = 0.0

    def count(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        nonlocal moved, operations
        (x,) = inputs
        moved += bytes_each * (3 * x.numel() + 2 * output.numel())
        weights = next(layer.parameters())
        operations += 3 * 2 * weights.numel() * output.numel() / output.shape[1]

    hooks = [m.register_forward_hook(count) for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        network.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return moved, operations


def kernels_of_a_step(work: Callable[[], None], steps: int, device: torch.device) -> list[dict[str, Any]]:
    """Where the time of one recorded step goes: name, launches and microseconds of its kernels."""
    from torch.profiler import ProfilerActivity, profile

    work()
    wait_for(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        wait_for(device)
    events = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
    return [
        {"kernel": e.key[:90], "launches": e.count / steps, "us": round(e.device_time_total / steps, 1)}
        for e in events
        if e.device_time_total > 0
    ]


KERNELS = 16  # shown of one step


def epochs_table(rows: "list[Row]", images: int, floor: float) -> Table:
    table = Table("mentornet-prop", "s / epoch", "spread", "images / s", "x plain", "x floor", "measured on")
    for r in rows:
        table.add_row(
            r.way,
            f"{r.seconds:.3f}",
            f"{r.spread:.3f}",
            f"{images / r.seconds:,.0f}",
            f"{rows[0].seconds / r.seconds:.1f}",
            f"{r.seconds / floor:.1f}",
            f"{r.epochs} x {r.images:,}",
        )
    table.caption = f"floor {floor:.3f} s"
    return table


def steps_table(steps: list[dict[str, Any]]) -> Table:
    table = Table("method", "classes", "ms / step", "µs over default")
    for s in steps:
        over = f"{s['over_default_us']:.0f}" if "over_default_us" in s else ""
        table.add_row(s["method"], str(s["classes"]), f"{s['ms']:.3f}", over)
    return table


def kernels_table(kernels: list[dict[str, Any]]) -> Table:
    total = sum(k["us"] for k in kernels)
    table = Table("kernel of a step", "launches", "µs", "share")
    for k in kernels[:KERNELS]:
        table.add_row(k["kernel"][:70], f"{k['launches']:.0f}", f"{k['us']:.0f}", f"{100 * k['us'] / total:.1f}%")
    rest = kernels[KERNELS:]
    table.add_row(
        f"{len(rest)} others", f"{sum(k['launches'] for k in rest):.0f}", f"{sum(k['us'] for k in rest):.0f}", ""
    )
    table.caption = f"{total:.0f} µs of kernels in {sum(k['launches'] for k in kernels):.0f} launches"
    return table


RATE = 0.4  # of pair noise


@dataclass(frozen=True)
class Row:
    """One way to train, timed over whole epochs: all steps and the evaluation on the test set."""

    way: str
    seconds: float  # per epoch and run, for all of the data
    spread: float  # between the fastest and the slowest epoch
    images: int  # it was measured on
    epochs: int


@dataclass
class Bench:
    """The data and the network that everything is measured with."""

    train: Labelled
    test: Labelled
    model: str
    batch: int
    device: torch.device

    def part(self, share: float) -> tuple[Labelled, Labelled]:
        """The first so much of both sets, on the device."""
        sizes = (max(self.batch, int(share * len(data))) for data in (self.train, self.test))
        first, second = (
            d.at(torch.arange(min(n, len(d)))) for d, n in zip((self.train, self.test), sizes, strict=True)
        )
        return first.to(self.device), second.to(self.device)

    def network(self, fused: bool = True, classes: int | None = None) -> nn.Module:
        network = make_model(self.model, self.train.shape, classes or self.train.num_classes)
        if hasattr(network, "fused"):
            network.fused = fused  # type: ignore[assignment]
        return network

    def engine(self, way: str, share: float, epochs: int, *, fused: bool, **settings: Any) -> Row:
        """fit itself, without a record; the first epoch, which compiles and records, is not counted."""
        train, test = self.part(share)
        seconds = self._epochs(train, test, epochs, fused, settings, seed=0)
        return row(way, seconds, len(train), len(self.train))

    def side_by_side(self, runs: int, epochs: int, **settings: Any) -> Row:
        """Several runs in threads of this process, each with noise of its own, sharing the images.

        All wait for each other after the first epoch; the time is from there until the last one is done.
        """
        train, test = self.part(1.0)
        together = Together(runs)
        with ThreadPoolExecutor(runs) as pool:
            work = [
                pool.submit(self._epochs, train, test, epochs, True, settings, seed, together) for seed in range(runs)
            ]
            every = [job.result() for job in work]
        seconds = (time.perf_counter() - together.began) / (runs * epochs)
        slowest = [max(epoch) / runs for epoch in zip(*every, strict=True)]
        spread = max(slowest) - min(slowest)
        return Row(f"{runs} side by side", seconds, spread, len(train), epochs)

    def _epochs(
        self,
        train: Labelled,
        test: Labelled,
        epochs: int,
        fused: bool,
        settings: dict[str, Any],
        seed: int,
        watcher: Watcher | None = None,
    ) -> list[float]:
        classes = train.num_classes
        noisy = train.relabelled(corrupt(train.labels.cpu(), pair(classes, RATE), seed).to(self.device))
        method = make("mentornet-prop", Problem(classes, RATE, 0, len(train)))
        training = Training(epochs=epochs + 1, batch=self.batch, seed=seed, **settings)
        result = fit(
            lambda _: move_to_device(make_networks(partial(self.network, fused), 1, seed), self.device, training.precision),
            method,
            noisy,
            test,
            training=training,
            watcher=watcher,
        )
        return [epoch["seconds"] for epoch in result.rows[1:]]

    def plain(self, share: float, epochs: int) -> Row:
        train, test = (data.to(torch.device("cpu")) for data in self.part(share))
        seconds = plain_epochs(
            partial(self.network, False), train, test, self.device, batch=self.batch, epochs=epochs + 1
        )
        return row("plain loop, fp32", seconds[1:], len(train), len(self.train))

    def recorded_steps(self, method: Method, classes: int, count: int, settings: dict[str, Any]) -> Callable[[], None]:
        """So many steps of a method past its warm-up, as a thing to do; they are recorded already."""
        train, _ = self.part(count * self.batch / len(self.train))
        if classes != train.num_classes:
            random = torch.Generator().manual_seed(0)
            labels = torch.randint(classes, (len(train),), generator=random).to(self.device)
            train = Labelled(train.images, labels, [str(k) for k in range(classes)])
        networks = make_networks(partial(self.network, True, classes), method.networks, 0)
        networks = move_to_device(networks, self.device, settings.get("precision", "fp32"))
        random = torch.Generator(self.device)
        set_generator(networks, random)
        set_generator(method, random)
        learner = Learner(networks.train(), method.to(self.device).train(), Training(batch=self.batch, **settings))
        past_the_warm_up(method, train)
        steps = Steps(learner, train, GraphRecorder(self.device, random, enabled=learner.training.recorded))
        order = torch.arange(len(train) // self.batch * self.batch, device=self.device)

        def work() -> None:
            for step in steps.epoch(order, self.batch):
                step()

        work()
        return work


class Together:
    """A watcher that lets runs go on from their first epoch at the same time."""

    def __init__(self, runs: int) -> None:
        self.began = 0.0
        self._barrier = threading.Barrier(runs, action=self._begin)

    def _begin(self) -> None:
        self.began = time.perf_counter()

    def step(self, done: int, total: int) -> None:
        pass

    def epoch(self, row: dict[str, Any]) -> None:
        if row["epoch"] == 1:
            self._barrier.wait()


def past_the_warm_up(method: Method, train: Labelled) -> None:
    """Through a warm-up of one epoch, with even predictions for the methods that ask for some."""
    probs = torch.rand(method.networks, len(train), train.num_classes, device=train.labels.device).softmax(-1)
    method.start_round(0)
    method.start_epoch(0)
    method.end_epoch(lambda: iter([(probs, train.labels, torch.arange(len(train), device=train.labels.device))]))
    method.start_epoch(1)


def row(way: str, seconds: list[float], measured: int, everything: int) -> Row:
    scale = everything / measured
    return Row(way, scale * statistics.median(seconds), scale * (max(seconds) - min(seconds)), measured, len(seconds))


STEPS = 100  # of a method, timed together
SLOW_SHARE = 0.2  # of the data that the slow rows are measured on


def bench_options(
    data: str,
    model: str | None,
    batch: int,
    device: str,
    precision: str | None,
    side: str,
    methods: str,
    epochs: int,
    out: Path,
) -> None:
    """The bench that a person's options mean."""
    device = best_device() if device == "auto" else device
    try:
        numbers = tuple(int(number) for number in side.split(",") if number)
    except ValueError as error:
        raise InputError(f"--side takes numbers with commas between them, got {side!r}") from error
    for name in methods.split(","):
        if name and name != "all" and name not in METHODS:
            raise InputError(f"unknown method {name!r}: {nearest(name, METHODS)}")
    if epochs < 1 or batch < 2 or any(number < 1 for number in numbers):
        raise InputError("--epochs and --side must be at least 1 and --batch at least 2")
    refuse_others(out, "{")
    refuse_no_folder(out.parent)
    bench(data, model, batch, device, precision or best_precision(device), numbers, methods, epochs, out)


def bench(
    data: str,
    model: str | None,
    batch: int,
    device: str,
    precision: str,
    side: tuple[int, ...],
    methods: str,
    epochs: int,
    out: Path,
) -> None:
    """Measure everything in one go, print it and write it down."""
    it = opened(data, model, batch, usable_device(device))
    settings = {"precision": precision}
    say = Console(width=None if os.isatty(1) else 110).print
    about = {"data": Path(data).name, "model": it.model, "batch": batch}
    result: dict[str, Any] = {**surroundings(it.device), **about, **settings}
    floor = floor_of(it, precision, result)
    rows = epoch_times(it, precision, side, epochs)
    result["epochs"] = [asdict(row) for row in rows]
    write(out, result)
    say(epochs_table(rows, len(it.train), floor))
    result["steps"] = step_times(it, methods, settings)
    write(out, result)
    say(steps_table(result["steps"]))
    if it.device.type == "cuda":
        result["kernels"] = kernel_times(it, settings)
        say(kernels_table(result["kernels"]))
        write(out, result)
    say(f"written to {out}")


def opened(data: str, model: str | None, batch: int, device: torch.device) -> Bench:
    """The data, and the network that suits it unless one is named."""
    train, test, _ = load_data(data)
    if not isinstance(train, Labelled) or not isinstance(test, Labelled):
        raise InputError(f"the bench needs a training and a test set that fit into memory; {data} has none")
    if len(train) < batch:
        raise InputError(f"a batch of {batch} is more than the {len(train):,} samples of {data}; lower --batch")
    model = model or DATASET_SETTINGS.get(data, {}).get("model") or default_model(train.shape, device)
    return Bench(train, test, model, batch, device)


def epoch_times(it: Bench, precision: str, side: tuple[int, ...], epochs: int) -> list[Row]:
    """Whole epochs: the plain loop first, then ours, on a GPU recorded and side by side too."""
    rows = [it.plain(SLOW_SHARE, 2), it.engine("eager, fp32", SLOW_SHARE, 2, fused=False, recorded=False)]
    if it.device.type != "cuda":
        return rows
    settings = {"precision": precision}
    return [
        *rows,
        it.engine(f"eager, {precision}", SLOW_SHARE, 2, fused=False, recorded=False, **settings),
        it.engine(f"recorded, {precision}, plain layers", 1.0, epochs, fused=False, **settings),
        it.engine(f"recorded, {precision}", 1.0, epochs, fused=True, **settings),
        *(it.side_by_side(runs, epochs, **settings) for runs in side),
    ]


def kernel_times(it: Bench, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Where the time of a step of the paper's method goes."""
    classes = it.train.num_classes
    method = make("mentornet-prop", Problem(classes, RATE, 1, len(it.train)))
    with own_stream(it.device):
        return kernels_of_a_step(it.recorded_steps(method, classes, 10, settings), 10, it.device)


def write(out: Path, result: dict[str, Any]) -> None:
    """Whatever is known by now: a long bench may be cut."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def floor_of(it: Bench, precision: str, result: dict[str, Any]) -> float:
    """Seconds per epoch that the hardware allows, by bytes and by arithmetic, whichever is more."""
    bandwidth, rate = ceilings(it.device, precision == "bf16")
    moved, operations = work_per_image(it.network(False), it.train.shape, 2 if precision == "bf16" else 4)
    by_bytes, by_arithmetic = len(it.train) * moved / bandwidth, len(it.train) * operations / rate
    result["floor"] = {
        "bytes_per_second": bandwidth,
        "operations_per_second": rate,
        "bytes_per_image": moved,
        "operations_per_image": operations,
        "seconds_by_bytes": by_bytes,
        "seconds_by_arithmetic": by_arithmetic,
    }
    return max(by_bytes, by_arithmetic)


def step_times(it: Bench, methods: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Milliseconds of a step: every method on the data's classes, and the paper's against default on more classes."""
    classes = it.train.num_classes
    names = list(METHODS) if methods == "all" else [name for name in methods.split(",") if name]
    cases = [(name, classes) for name in names]
    cases += [
        (name, more) for more in (100, 1000) if more != classes for name in ("default", "mentornet-prop") if names
    ]
    found: list[dict[str, Any]] = []
    for name, count in cases:
        with own_stream(it.device):
            method = make(name, Problem(count, RATE, 1, STEPS * it.batch))
            seconds = timed(it.recorded_steps(method, count, STEPS, settings), it.device, repeats=5)
        found.append({"method": name, "classes": count, "ms": 1000 * seconds / STEPS})
    base = {entry["classes"]: entry["ms"] for entry in found if entry["method"] == "default"}
    for entry in found:
        if entry["classes"] in base:
            entry["over_default_us"] = 1000 * (entry["ms"] - base[entry["classes"]])
    return found


def surroundings(device: torch.device) -> dict[str, Any]:
    """What a figure must be read with."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(str(device)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "labelsieve": labelsieve.__version__,
        "commit": os.environ.get("COMMIT") or commit or None,
    }
