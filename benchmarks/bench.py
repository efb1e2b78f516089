"""Training speed on this machine, compared with a plain training loop and with the lower bound of the hardware.

    python -m benchmarks.bench cifar10.npz --side 2,4,6 --epochs 2

Measures seconds per epoch of mentornet-prop, milliseconds per step of every method, and, on a GPU, the kernels of one
step; writes them to benchmarks/results/bench.json.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
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
from labelsieve.errors import InputError, LabelsieveError, nearest
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

RECORD = Path(__file__).parent / "results" / "bench.json"
RATE = 0.4  # of pair noise
LAM = 0.5  # λ of the plain loop
STEPS = 100  # of a method, timed together
SLOW_SHARE = 0.2  # of the data, for the slow rows
KERNELS = 16  # shown of one step


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", default="fashion", help="data as for labelsieve train, with a test set")
    parser.add_argument("--model", help="network (default: the one for the data)")
    parser.add_argument("--batch", type=int, default=128, help="samples per step")
    parser.add_argument("--side", default="2,4,6", help="numbers of runs side by side on a GPU")
    parser.add_argument("--methods", default="all", help="methods whose steps are timed; empty for none")
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs of each row")
    parser.add_argument("--fused-only", action="store_true", help="time no other training loops than the fastest")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--precision", help="fp32 or bf16 (default: what the device supports)")
    parser.add_argument("--out", type=Path, default=RECORD, help="file for the figures")
    options = parser.parse_args(words)
    try:
        measure(options)
    except LabelsieveError as error:
        parser.exit(error.exit_code, f"error: {error}\n")


def measure(options: argparse.Namespace) -> None:
    """Measure everything, print tables, and save the figures after each part."""
    side, methods = checked(options)
    device = best_device() if options.device == "auto" else options.device
    precision = options.precision or best_precision(device)
    bench = open_bench(options.data, options.model, options.batch, usable_device(device))
    about = {"data": Path(options.data).name, "model": bench.model, "batch": options.batch, "precision": precision}
    result: dict[str, Any] = {**environment(bench.device), **about}
    show = Console(width=None if os.isatty(1) else 110).print
    result["floor"] = hardware_floor(bench, precision)
    floor = max(result["floor"]["seconds_by_bytes"], result["floor"]["seconds_by_arithmetic"])
    rows = epoch_times(bench, precision, side, options.epochs, options.fused_only)
    result["epochs"] = [asdict(row) for row in rows]
    save(options.out, result)
    show(epochs_table(rows, len(bench.train), floor))
    result["steps"] = step_times(bench, methods, {"precision": precision})
    save(options.out, result)
    show(steps_table(result["steps"]))
    if bench.device.type == "cuda":
        result["kernels"] = kernel_times(bench, {"precision": precision})
        save(options.out, result)
        show(kernels_table(result["kernels"]))
    show(f"written to {options.out}")


def checked(options: argparse.Namespace) -> tuple[tuple[int, ...], list[str]]:
    """Return the numbers of runs side by side and the methods; raise InputError for unusable options."""
    try:
        side = tuple(int(number) for number in options.side.split(",") if number)
    except ValueError as error:
        raise InputError(f"--side takes numbers separated by commas, got {options.side!r}") from error
    methods = list(METHODS) if options.methods == "all" else [name for name in options.methods.split(",") if name]
    for name in methods:
        if name not in METHODS:
            raise InputError(f"unknown method {name!r}: {nearest(name, METHODS)}")
    if options.fused_only and options.device == "cpu":
        raise InputError("--fused-only needs a GPU")
    if options.epochs < 1 or options.batch < 2 or any(number < 1 for number in side):
        raise InputError("--epochs and --side must be at least 1 and --batch at least 2")
    refuse_others(options.out, "{")
    refuse_no_folder(options.out.parent)
    return side, methods


def environment(device: torch.device) -> dict[str, Any]:
    """Return date, device, versions and commit."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(str(device)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "labelsieve": labelsieve.__version__,
        "commit": os.environ.get("COMMIT") or commit or None,
    }


def save(out: Path, result: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


# ---- what is measured


@dataclass(frozen=True)
class Row:
    """One way to train, timed over whole epochs: all steps and the evaluation on the test set."""

    way: str
    seconds: float  # per epoch and run, scaled to all of the data
    spread: float  # slowest minus fastest epoch
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
        """Return the first samples of both sets, on the device."""
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
        """Time `fit` without a record; the first epoch, which compiles and records, does not count."""
        train, test = self.part(share)
        seconds = self._epochs(train, test, epochs, fused, settings, seed=0)
        return make_row(way, seconds, len(train), len(self.train))

    def side_by_side(self, runs: int, epochs: int, **settings: Any) -> Row:
        """Time several runs in threads of this process, each with its own noise, sharing the images.

        The runs wait for each other after the first epoch; the time ends when the last run is finished.
        """
        train, test = self.part(1.0)
        start = CommonStart(runs)
        with ThreadPoolExecutor(runs) as pool:
            work = [pool.submit(self._epochs, train, test, epochs, True, settings, seed, start) for seed in range(runs)]
            every = [job.result() for job in work]
        seconds = (time.perf_counter() - start.began) / (runs * epochs)
        slowest = [max(epoch) / runs for epoch in zip(*every, strict=True)]
        return Row(f"{runs} side by side", seconds, max(slowest) - min(slowest), len(train), epochs)

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
        one = partial(self.network, fused)
        result = fit(
            lambda _: move_to_device(make_networks(one, 1, seed), self.device, training.precision),
            method,
            noisy,
            test,
            training=training,
            watcher=watcher,
        )
        return [epoch["seconds"] for epoch in result.rows[1:]]

    def plain(self, share: float, epochs: int) -> Row:
        """Time the plain loop."""
        train, test = (data.to(torch.device("cpu")) for data in self.part(share))
        network = self.network(False)
        seconds = plain_epochs(network, train, test, self.device, batch=self.batch, epochs=epochs + 1)
        return make_row("plain loop, fp32", seconds[1:], len(train), len(self.train))

    def recorded_steps(self, method: Method, classes: int, count: int, settings: dict[str, Any]) -> Callable[[], None]:
        """Return a function that runs some steps of a method after its warm-up, already recorded."""
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
        pass_warm_up(method, train)
        steps = Steps(learner, train, GraphRecorder(self.device, random, enabled=learner.training.recorded))
        order = torch.arange(len(train) // self.batch * self.batch, device=self.device)

        def work() -> None:
            for step in steps.epoch(order, self.batch):
                step()

        work()
        return work


class CommonStart:
    """A watcher that lets several runs continue from their first epoch at the same time."""

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


def open_bench(data: str, model: str | None, batch: int, device: torch.device) -> Bench:
    """Load the data, and choose its network unless one is given."""
    train, test, _ = load_data(data)
    if not isinstance(train, Labelled) or not isinstance(test, Labelled):
        raise InputError(f"the benchmark needs a training and a test set that fit into memory; {data} has none")
    if len(train) < batch:
        raise InputError(f"--batch {batch} is more than the {len(train):,} samples of {data}; lower it")
    model = model or DATASET_SETTINGS.get(data, {}).get("model") or default_model(train.shape, device)
    return Bench(train, test, model, batch, device)


def make_row(way: str, seconds: list[float], measured: int, everything: int) -> Row:
    scale = everything / measured
    return Row(way, scale * statistics.median(seconds), scale * (max(seconds) - min(seconds)), measured, len(seconds))


def pass_warm_up(method: Method, train: Labelled) -> None:
    """Take a method through a warm-up of one epoch, with random predictions for methods that need some."""
    probs = torch.rand(method.networks, len(train), train.num_classes, device=train.labels.device).softmax(-1)
    method.start_round(0)
    method.start_epoch(0)
    method.end_epoch(lambda: iter([(probs, train.labels, torch.arange(len(train), device=train.labels.device))]))
    method.start_epoch(1)


def epoch_times(bench: Bench, precision: str, side: tuple[int, ...], epochs: int, fused_only: bool) -> list[Row]:
    """Time whole epochs: the plain loop first, then eager steps; on a GPU also recorded steps and runs side by side."""
    settings = {"precision": precision}
    rows = []
    if not fused_only:
        rows = [bench.plain(SLOW_SHARE, 2), bench.engine("eager, fp32", SLOW_SHARE, 2, fused=False, recorded=False)]
    if bench.device.type != "cuda":
        return rows
    if not fused_only:
        rows += [
            bench.engine(f"eager, {precision}", SLOW_SHARE, 2, fused=False, recorded=False, **settings),
            bench.engine(f"recorded, {precision}, plain layers", 1.0, epochs, fused=False, **settings),
        ]
    rows.append(bench.engine(f"recorded, {precision}", 1.0, epochs, fused=True, **settings))
    return rows + [bench.side_by_side(runs, epochs, **settings) for runs in side]


def step_times(bench: Bench, methods: list[str], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Time a step of every method on the data's classes, and of default and mentornet-prop on 100 and 1,000 classes."""
    classes = bench.train.num_classes
    cases = [(name, classes) for name in methods]
    if methods:
        cases += [(name, more) for more in (100, 1000) if more != classes for name in ("default", "mentornet-prop")]
    found: list[dict[str, Any]] = []
    for name, count in cases:
        with own_stream(bench.device):
            method = make(name, Problem(count, RATE, 1, STEPS * bench.batch))
            seconds = timed(bench.recorded_steps(method, count, STEPS, settings), bench.device, repeats=5)
        found.append({"method": name, "classes": count, "ms": 1000 * seconds / STEPS})
    base = {entry["classes"]: entry["ms"] for entry in found if entry["method"] == "default"}
    for entry in found:
        if entry["classes"] in base:
            entry["over_default_us"] = 1000 * (entry["ms"] - base[entry["classes"]])
    return found


def kernel_times(bench: Bench, settings: dict[str, Any], steps: int = 10) -> list[dict[str, Any]]:
    """Profile a recorded step of mentornet-prop: name, launches and microseconds of its kernels."""
    from torch.profiler import ProfilerActivity, profile

    classes = bench.train.num_classes
    method = make("mentornet-prop", Problem(classes, RATE, 1, len(bench.train)))
    with own_stream(bench.device):
        work = bench.recorded_steps(method, classes, steps, settings)
        work()
        wait_for(bench.device)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            work()
            wait_for(bench.device)
    events = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
    return [
        {"kernel": e.key[:90], "launches": e.count / steps, "us": round(e.device_time_total / steps, 1)}
        for e in events
        if e.device_time_total > 0
    ]


# ---- the plain loop


def plain_epochs(
    network: nn.Module, train: Labelled, test: Labelled, device: torch.device, *, batch: int, epochs: int
) -> list[float]:
    """Train mentornet-prop as public repositories do: eager, fp32, data on the host, selection on the CPU.

    It is faster than most of them: images are standardised once and stay in memory. Returns the seconds of each epoch,
    evaluation included.
    """
    network = network.to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    images, test_images = (data.inputs(torch.arange(len(data))) for data in (train, test))
    classes = train.num_classes
    penalty = torch.full((classes, classes), 1 / (classes - 1), device=device)
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        penalty = plain_epoch(network, optimizer, images, train.labels, penalty, batch)
        plain_error(network, test_images, test.labels, device, batch)
        seconds.append(time.perf_counter() - began)
    return seconds


def plain_epoch(
    network: nn.Module, optimizer: torch.optim.SGD, images: Tensor, labels: Tensor, penalty: Tensor, batch: int
) -> Tensor:
    """Train one epoch and return the penalty labels of the next one."""
    network.train()
    sums = torch.zeros_like(penalty)
    correct, total_loss = 0.0, 0.0
    for index in torch.randperm(len(labels)).split(batch):
        x, y = images[index].to(penalty.device), labels[index].to(penalty.device)
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
def plain_error(network: nn.Module, images: Tensor, labels: Tensor, device: torch.device, batch: int) -> float:
    network.eval()
    correct = 0.0
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        correct += (network(x.to(device)).argmax(1).cpu() == y).sum().item()
    return 100 - 100 * correct / len(labels)


# ---- the lower bound of the hardware


def hardware_floor(bench: Bench, precision: str) -> dict[str, float]:
    """Return the least seconds per epoch by memory traffic and by arithmetic, and what they are computed from."""
    half = precision == "bf16"
    bandwidth, rate = hardware_rates(bench.device, half)
    moved, operations = work_per_image(bench.network(False), bench.train.shape, 2 if half else 4)
    return {
        "bytes_per_second": bandwidth,
        "operations_per_second": rate,
        "bytes_per_image": moved,
        "operations_per_image": operations,
        "seconds_by_bytes": len(bench.train) * moved / bandwidth,
        "seconds_by_arithmetic": len(bench.train) * operations / rate,
    }


def hardware_rates(device: torch.device, half: bool) -> tuple[float, float]:
    """Measure bytes per second of a large copy (read and written) and operations per second of a matrix product."""
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.randint(100, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * size / timed(lambda: target.copy_(source), device)
    side = 8192 if device.type == "cuda" else 1024
    matrix = torch.randn(side, side, device=device, dtype=torch.bfloat16 if half else torch.float32)
    return bandwidth, 2 * side**3 / timed(lambda: matrix @ matrix, device)


def work_per_image(network: nn.Module, shape: tuple[int, ...], bytes_each: int) -> tuple[float, float]:
    """Return the fewest bytes that layers with weights must move per image, and their operations, in both passes.

    In the forward pass, a layer reads its input and writes its output. In the backward pass, it reads the input and the
    gradient of the output and writes the gradient of the input. Everything else would cost nothing if it were fused.
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


def timed(work: Callable[[], Any], device: torch.device, repeats: int = 10) -> float:
    """Return the median seconds of a function after one call that does not count."""
    seconds = []
    for _ in range(repeats + 1):
        wait_for(device)
        began = time.perf_counter()
        work()
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---- tables for the terminal


def epochs_table(rows: list[Row], images: int, floor: float) -> Table:
    table = Table("mentornet-prop", "s / epoch", "spread", "images / s", "x first", "x floor", "measured on")
    for r in rows:
        numbers = [f"{r.seconds:.3f}", f"{r.spread:.3f}", f"{images / r.seconds:,.0f}"]
        ratios = [f"{rows[0].seconds / r.seconds:.1f}", f"{r.seconds / floor:.1f}"]
        table.add_row(r.way, *numbers, *ratios, f"{r.epochs} x {r.images:,}")
    table.caption = f"floor {floor:.3f} s"
    return table


def steps_table(steps: list[dict[str, Any]]) -> Table:
    table = Table("method", "classes", "ms / step", "µs over default")
    for s in steps:
        over = f"{s['over_default_us']:.0f}" if "over_default_us" in s else ""
        table.add_row(s["method"], str(s["classes"]), f"{s['ms']:.3f}", over)
    return table


def kernels_table(kernels: list[dict[str, Any]]) -> Table:
    total, launches = sum(k["us"] for k in kernels), sum(k["launches"] for k in kernels)
    table = Table("kernel of a step", "launches", "µs", "share")
    for k in kernels[:KERNELS]:
        table.add_row(k["kernel"][:70], f"{k['launches']:.0f}", f"{k['us']:.0f}", f"{100 * k['us'] / total:.1f}%")
    rest = kernels[KERNELS:]
    sums = [f"{sum(k[name] for k in rest):.0f}" for name in ("launches", "us")]
    table.add_row(f"{len(rest)} others", *sums, "")
    table.caption = f"{total:.0f} µs of kernels in {launches:.0f} launches"
    return table


if __name__ == "__main__":
    main()
