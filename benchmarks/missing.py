"""The runs that docs/results.md lacks, most important first: list them, or train them side by side until a time limit.

    python -m benchmarks.missing
    LABELSIEVE_DATA=/tmp/data python -m benchmarks.missing --run --minutes 9 --out /tmp/runs --archive records.tar

Runs that the time limit interrupts end with a complete epoch, and the same command resumes them. The archive contains
the records of all finished runs in the output folder, without models; unpack it in results/. Runs in --results or --out
are not repeated. Only the first --most missing runs are started, because each kind of run is measured before the first.
"""

import argparse
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

from labelsieve.errors import Stopped
from labelsieve.paper.figures import points
from labelsieve.paper.tables import experiment, tables
from labelsieve.runs.execute import epochs_of
from labelsieve.runs.find import Identity, identity, known_runs
from labelsieve.runs.spec import Experiment
from labelsieve.runs.tables import Rows, markdown
from labelsieve.runtime import best_device, best_precision
from labelsieve.sweep.sweep import sweep
from tools.keep_records import keep

RATE = 0.4
NOISES = ("pair", "mixed", "symmetry")
DATA = ("cifar10", "cifar100")
SEEDS = range(3)
TWICE = ("selfie", "selfie-prop", "co-teaching")  # run again, because the harness gives them a second pass
MAIN = ("default", "mentornet", "sl", "mentornet-prop", "sl-prop")


@dataclass(frozen=True)
class Wanted:
    """An experiment and the question that it answers."""

    question: str
    experiment: Experiment


def wanted() -> Iterator[Wanted]:
    """Yield the experiments that the page should have, most important first; some answer several questions."""
    again = "table 2, 40%, with a second pass"
    yield from _cells("independent batches", "cifar10", NOISES, ["default"], sampler="independent")
    yield from _aligned("cifar10", ["symmetry"], ["mentornet-prop", "sl-prop"])
    yield from _cells(again, "cifar10", ["pair"], TWICE, forward="second")
    yield from _cells("table 2, 40%", "cifar100", NOISES, ["active-bias"])
    yield from _cells(again, "cifar10", ["symmetry", "mixed"], TWICE, forward="second")
    yield from _cells("table 2, 40%", "cifar10", NOISES, ["co-teaching+"])
    for warmup in (24, 25, 26):
        short = {"warmup": warmup, "epochs": 32, "drops": ()}
        yield from _cells("classes given up by warm-up", "cifar100", ["pair"], ["mentornet-prop"], **short)
    yield from _aligned("cifar10", NOISES, ["mentornet"])
    yield from _aligned("cifar100", ["mixed", "symmetry"], ["mentornet", "sl-prop"])
    yield from _cells(again, "cifar100", NOISES, TWICE, forward="second")
    yield from _cells("table 2, 40%", "cifar100", NOISES, ["co-teaching+"])
    others = [("table 5", cell.experiment) for cell in tables()["5"].cells if cell.experiment.data in DATA]
    others += [(f"figure {number}", point.experiment) for number in (10, 11) for point in points(number)]
    for (question, one), seed in product(others, SEEDS):
        yield Wanted(question, replace(one, seed=seed))
    for data in DATA:
        yield from _cells("table 2, 20%", data, ["pair", "symmetry"], MAIN, rate=0.2)


def _cells(
    question: str, data: str, noises: Sequence[str], methods: Sequence[str], rate: float = RATE, **changes: Any
) -> Iterator[Wanted]:
    """Yield the paper's experiments with these methods and noises, and with changed settings."""
    for noise, method, seed in product(noises, methods, SEEDS):
        yield Wanted(question, replace(experiment(data, method, noise, rate, seed), **changes))


def _aligned(data: str, noises: Sequence[str], methods: Sequence[str]) -> Iterator[Wanted]:
    for one in _cells("aligned predictions", data, noises, methods):
        options = tuple(sorted({**dict(one.experiment.options), "align": True}.items()))
        yield replace(one, experiment=replace(one.experiment, options=options))


def missing(*roots: Path) -> list[Wanted]:
    """Return what is wanted and has no finished run below the roots, each experiment once."""
    known = known_runs(*roots)
    first: dict[Identity, Wanted] = {}
    for one in wanted():
        first.setdefault(identity(one.experiment.as_dict()), one)
    return [one for each, one in first.items() if each not in known]


def overview(found: Sequence[Wanted]) -> Rows:
    """Return a row per question and method: missing runs, and their epochs of one network."""
    groups: dict[tuple[str, ...], list[Experiment]] = {}
    for one in found:
        e = one.experiment
        groups.setdefault((one.question, e.data, e.noise or "", f"{e.rate:g}", e.method), []).append(e)
    counts = [[*key, str(len(group)), str(sum(map(epochs_of, group)))] for key, group in groups.items()]
    total = ["all", "", "", "", "", str(len(found)), str(sum(epochs_of(one.experiment) for one in found))]
    return [["question", "data", "noise", "rate", "method", "runs", "epochs"], *counts, total]


def run(experiments: Sequence[Experiment], out: Path, minutes: float, at_once: int) -> None:
    """Train the experiments until the time is over."""
    device = best_device()
    placed = [replace(one, device=device, precision=best_precision(device)) for one in experiments]
    before = signal.signal(signal.SIGTERM, _stop)
    timer = threading.Timer(60 * minutes, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    try:
        timer.start()
        failed = sweep(placed, out, at_once=at_once, say=lambda line: print(line, flush=True))
        for reason, count in Counter(failed.values()).items():
            print(f"{count} runs failed: {reason}")
    except Stopped as stop:
        print(stop)
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped("the time is over; run the same command again to resume", number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="train; without it, the missing runs are only listed")
    parser.add_argument("--minutes", type=float, default=9, help="time limit of the training. Default: 9")
    parser.add_argument("--most", type=int, default=12, help="runs to start. Default: 12")
    parser.add_argument("--at-once", type=int, default=6, help="runs side by side on a GPU. Default: 6")
    parser.add_argument("--results", type=Path, default=Path("results"), help="committed records. Default: results")
    parser.add_argument("--out", type=Path, default=Path("runs/missing"), help="new runs. Default: runs/missing")
    parser.add_argument("--archive", type=Path, help="file for the records of all finished runs in --out (.tar)")
    options = parser.parse_args()
    found = missing(options.results, options.out)
    if not options.run:
        print(markdown(overview(found)))
        return
    run([one.experiment for one in found[: options.most]], options.out, options.minutes, options.at_once)
    if options.archive:
        keep(options.out, options.archive)


if __name__ == "__main__":
    main()
