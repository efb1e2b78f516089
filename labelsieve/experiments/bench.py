"""bench: how fast training is on the machine at hand, beside the plain loop and the floor of the hardware."""

import json
import os
import platform
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import labelsieve
from labelsieve.data import Labelled, load_data
from labelsieve.devices import best_device, best_precision, device_name, usable_device
from labelsieve.errors import InputError, nearest
from labelsieve.experiments.bench_floor import ceilings, kernels_of_a_step, timed, work_per_image
from labelsieve.experiments.bench_tables import epochs_table, kernels_table, steps_table
from labelsieve.experiments.bench_ways import RATE, Bench, Row
from labelsieve.experiments.spec import SETTINGS
from labelsieve.files import refuse_no_folder, refuse_others
from labelsieve.methods import METHODS, Problem, make
from labelsieve.models import suitable
from labelsieve.train.graph import own_stream

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
    model = model or SETTINGS.get(data, {}).get("model") or suitable(train.shape, device)
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
