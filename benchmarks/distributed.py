"""Time of one training in one and in two processes on this machine, with one CPU thread each (gloo).

python -m benchmarks.distributed [samples]

Trains mentornet-prop on colour images of 32 x 32 pixels with `compact`, which has batch normalization: one epoch to
warm up and two that count. The numbers of processes take turns, and the figures are medians over rounds. CPU seconds
include all processes; wall seconds depend on what else runs on the machine, whose load is recorded. Writes
benchmarks/results/distributed.json.
"""

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from labelsieve.core.processes import all_processes
from labelsieve.data import Labelled
from labelsieve.methods import Problem, make
from labelsieve.models import make_model
from labelsieve.models.networks import make_networks
from labelsieve.train import Training, fit

BATCH, CLASSES, ROUNDS = 128, 10, 3
RESULTS = Path(__file__).parent / "results" / "distributed.json"


class Clock:
    """Notes wall and CPU time at the end of each epoch."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def step(self, done: int, total: int) -> None:
        pass

    def epoch(self, row: dict[str, object]) -> None:
        self.times.append((time.perf_counter(), time.process_time()))


def images(count: int) -> Labelled:
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 32, 32), generator=random).to(torch.uint8)
    return Labelled(pixels, torch.arange(count) % CLASSES, [str(k) for k in range(CLASSES)])


def measure(rank: int, count: int, samples: int, folder: str) -> None:
    """Train in one of several processes; write wall and CPU seconds of an epoch, and the last loss."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    clock, make_one = Clock(), partial(make_model, "compact", (3, 32, 32), CLASSES)
    result = fit(
        lambda number: make_networks(make_one, 1, 0, number),
        make("mentornet-prop", Problem(CLASSES, 0.3, 1)),
        images(samples),
        training=Training(epochs=3, batch=BATCH, lr=0.05),
        watcher=clock,
        processes=all_processes(),
    )
    (wall, cpu), _, (last_wall, last_cpu) = clock.times
    found = [(last_wall - wall) / 2, (last_cpu - cpu) / 2, result.rows[-1]["train_loss"]]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def run(count: int, samples: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(measure, (count, samples, folder), nprocs=count, start_method="fork")
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(count)]
    return {"wall": max(each[0] for each in found), "cpu": sum(each[1] for each in found), "loss": found[0][2]}


def main() -> None:
    torch.set_num_threads(1)
    samples = int(sys.argv[1]) if len(sys.argv) > 1 else 1280
    rounds = [{count: run(count, samples) for count in (1, 2)} for _ in range(ROUNDS)]
    by_count = {
        count: {name: round(statistics.median(each[count][name] for each in rounds), 6) for name in rounds[0][count]}
        for count in (1, 2)
    }
    record = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load average": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "samples": samples,
        "batch": BATCH,
        "network": "compact",
        "rounds": ROUNDS,
        "seconds per epoch by processes": by_count,
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
