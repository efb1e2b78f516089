"""bench_ways: one network on one dataset, trained in several ways and timed over whole epochs."""

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from labelsieve.core.method import Method
from labelsieve.data import Labelled
from labelsieve.experiments.plain_loop import plain_epochs
from labelsieve.methods import Problem, make
from labelsieve.models import make_model
from labelsieve.models.networks import make_networks, put_on
from labelsieve.noise import corrupt, pair
from labelsieve.train import Training, fit
from labelsieve.train.graph import Recorder
from labelsieve.train.learner import Learner
from labelsieve.train.loop import Watcher, lend_generator
from labelsieve.train.steps import Steps

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
            lambda _: put_on(make_networks(partial(self.network, fused), 1, seed), self.device, training.precision),
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
        networks = put_on(networks, self.device, settings.get("precision", "fp32"))
        random = torch.Generator(self.device)
        lend_generator(networks, random)
        lend_generator(method, random)
        learner = Learner(networks.train(), method.to(self.device).train(), Training(batch=self.batch, **settings))
        past_the_warm_up(method, train)
        steps = Steps(learner, train, Recorder(self.device, random, enabled=learner.training.recorded))
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
