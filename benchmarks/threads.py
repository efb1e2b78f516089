"""How many CPU threads a training should use, on an idle machine and on a busy one (decision 45).

    python -m benchmarks.threads --real-time

measures the time of a training step with one thread and with all cores, which wait for each other actively (as OpenMP
does by itself), passively, or actively for a moment (as `labelsieve` sets it), for a table, features and networks on
images, and writes benchmarks/results/threads.json. "idle" is the machine as it is; with --real-time (root on Linux),
processes measure in the scheduling class FIFO there, so that other programs hardly matter. "busy" is as many busy loops
as there are cores, at normal priority. Every process counts steps for some seconds; of several rounds, one after the
other, the best counts when idle, the median when busy.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelsieve.cli import THREADS_WAIT
from labelsieve.files import usable_cores
from labelsieve.runs.data import Shelf
from labelsieve.runs.execute import first_batch, prepare, suited_threads
from labelsieve.runs.spec import Experiment
from labelsieve.train.step import Learner

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "threads.json"
SAMPLES = 512
WORKLOADS: dict[str, tuple[str, tuple[int, ...], int]] = {  # network, shape of a sample, batch
    "table, 20 columns, mlp": ("mlp", (20,), 128),
    "features, 1,280 columns, mlp": ("mlp", (1280,), 128),
    "images 28 x 28, small": ("small", (28, 28, 1), 128),
    "images 64 x 64, small": ("small", (64, 64, 3), 128),
    "images 32 x 32, compact": ("compact", (32, 32, 3), 128),
    "images 32 x 32, resnet-18": ("resnet-18", (32, 32, 3), 32),
}
CORES = usable_cores()
WAYS: dict[str, tuple[int, dict[str, str]]] = {  # threads, environment
    "one thread": (1, {}),
    "all cores, active": (CORES, {}),
    "all cores, passive": (CORES, {"OMP_WAIT_POLICY": "PASSIVE"}),
    "all cores, briefly active": (CORES, THREADS_WAIT),
}
LIMIT = 200  # seconds of a process; what it has not measured by then counts as infinite
FEWEST = 2  # steps of a measurement, after one that is not counted


def experiment_of(workload: str, folder: Path) -> Experiment:
    """Return the experiment of a workload, and write its data."""
    model, shape, batch = WORKLOADS[workload]
    random = np.random.default_rng(0)
    values = random.integers(256, size=(SAMPLES, *shape)).astype(np.uint8 if len(shape) == 3 else np.float32)
    path = folder / f"{len(shape)}-{'-'.join(map(str, shape))}.npz"
    name = "images" if len(shape) == 3 else "features"
    np.savez(path, **{name: values, "labels": random.integers(10, size=SAMPLES)})
    return Experiment(data=str(path), model=model, batch=batch, noise_rate=0.2, epochs=2, warmup=0)


def measure(workload: str, threads: int, seconds: float, folder: Path) -> float:
    """Return the milliseconds of a training step."""
    torch.set_num_threads(threads)
    prepared = prepare(experiment_of(workload, folder), Shelf())
    learner = Learner(prepared.make_networks(0).train(), prepared.method, prepared.training)
    labels = prepared.train.labels[: prepared.training.batch]
    index = torch.arange(len(labels))
    learner.step(first_batch(prepared), labels, index)
    began, steps = time.perf_counter(), 0
    while steps < FEWEST or time.perf_counter() - began < seconds:
        learner.step(first_batch(prepared), labels, index)
        steps += 1
    return 1000 * (time.perf_counter() - began) / steps


def in_process(way: str, seconds: float, real_time: bool) -> dict[str, float]:
    """Measure all workloads in a new process: how threads wait is read when torch is imported."""
    threads, waiting = WAYS[way]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **waiting}
    words = ["--child", "--threads", str(threads), "--seconds", str(seconds)]
    priority = ["chrt", "--fifo", "1"] if real_time else []
    command = [*priority, sys.executable, "-m", "benchmarks.threads", *words]
    with tempfile.TemporaryFile("w+") as output:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=environment, stdout=output, check=True, timeout=LIMIT)
        output.seek(0)
        found = dict(json.loads(line) for line in output.read().splitlines())
    print(way, found, flush=True)
    return {workload: found.get(workload, math.inf) for workload in WORKLOADS}


def rounds(count: int, seconds: float, real_time: bool) -> list[dict[str, dict[str, float]]]:
    """Return the milliseconds of a step of every workload by way, measured in turn, for each round."""
    return [{way: in_process(way, seconds, real_time) for way in WAYS} for _ in range(count)]


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every workload, idle and busy."""
    idle = rounds(options.rounds, 0.4, options.real_time)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(CORES)]
    try:
        busy = rounds(options.busy_rounds, 1.5, False)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    record: dict[str, Any] = {}
    for workload in WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            threads = suited_threads(experiment_of(workload, Path(folder)), Shelf())
        found = {
            "idle": {way: round(min(each[way][workload] for each in idle), 3) for way in WAYS},
            "busy": {way: round(statistics.median(each[way][workload] for each in busy), 3) for way in WAYS},
        }
        default = "one thread" if threads == 1 else "all cores, briefly active"
        record[workload] = {"ms per step": found, "default": default, "default before": "all cores, active"}
        for name in ("default", "default before"):
            chosen = record[workload][name]
            ratios = {when: round(ms[chosen] / min(ms.values()), 2) for when, ms in found.items()}
            record[workload][f"{name}, times the best"] = ratios
        print(json.dumps({workload: record[workload]}), flush=True)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real-time", action="store_true", help="measure the idle machine in the class FIFO")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of the idle machine")
    parser.add_argument("--busy-rounds", type=int, default=3, help="measurements of the busy machine")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=1.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        with tempfile.TemporaryDirectory() as folder:
            given = (options.threads, options.seconds, Path(folder))
            for workload in WORKLOADS:
                print(json.dumps([workload, measure(workload, *given)]), flush=True)
        return
    record = {
        "machine": f"{CORES} cores, {platform.machine()}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "load before": [round(load, 1) for load in os.getloadavg()],
        "workloads": measure_all(options),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
