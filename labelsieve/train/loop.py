"""SIGINT and SIGTERM only raise a flag; training looks at it between two steps."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from labelsieve.core.method import Method
from labelsieve.core.part import Predict
from labelsieve.errors import Diverged, Stopped
from labelsieve.runtime import derive, generator
from labelsieve.train.augment import Augment
from labelsieve.train.checkpoint import Checkpoints, Record, Row, prefixed, under
from labelsieve.train.counters import Meters, Reading, Tally
from labelsieve.train.evaluate import ErrorRates, predictions
from labelsieve.train.graph import Recorder, own_stream
from labelsieve.train.settings import Samples, Training
from labelsieve.train.step import Learner

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopFlag:
    """While it is entered, a signal asks for a stop instead of causing one. A second SIGINT stops at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopFlag":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def check(self, where: str) -> None:
        """Raise Stopped if a signal came."""
        if self.received is not None:
            name = "Ctrl-C" if self.received == signal.SIGINT else signal.Signals(self.received).name
            raise Stopped(f"stopped by {name} {where}; the same command goes on from there", self.received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        self.received = number


class Steps:
    """Takes batches in a given order, learns from them and counts; the device itself knows how far it is."""

    def __init__(
        self,
        learner: Learner,
        data: Samples,
        recorder: Recorder,
        augment: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self.learner = learner
        self.data = data
        self.recorder = recorder
        self.augment = augment
        device = data.labels.device
        self.meters = Meters(learner.method.networks, data.num_classes, device)
        self.tally = Tally(learner.method, len(data), device)
        self.order = torch.empty(len(data) + learner.training.batch, dtype=torch.int64, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)

    def epoch(self, order: Tensor, size: int) -> Iterator[Callable[[], None]]:
        """The steps of an epoch, to be done one after the other."""
        self.order[: len(order)].copy_(order)
        self.position.zero_()
        self.meters.reset()
        for count in self.data.staged(order, size):
            kept = self.learner.kept(count)  # another number is another shape
            yield partial(self.recorder.run, ("step", count, kept), partial(self.step, count))

    def step(self, count: int) -> None:
        """Learn from the next `count` samples."""
        index = self.order[self.position + torch.arange(count, device=self.order.device)]
        labels = self.data.labels[index]
        inputs = self.data.inputs(index)
        if self.augment is not None:
            inputs = self.augment(inputs, index)
        outcome = self.learner.step(inputs, labels, index)
        self.meters.add(outcome, labels, None if self.data.clean is None else self.data.clean[index])
        self.tally.add(outcome.step, outcome.finite, labels, index)
        self.position.add_(count)

    def read(self) -> Reading:
        """The epoch in numbers: the one time that the host waits for the device."""
        return self.meters.read(clean_known=self.data.clean is not None)


MakeNetworks = Callable[[int], nn.Module]  # of a round; one child per network of the method, logits (N, B, K)
AtEpochEnd = Callable[[int, Predict], None]  # told the epoch, counted from 1, and how to predict the training set


class Watcher(Protocol):
    """Someone to show the progress to."""

    def step(self, done: int, total: int) -> None: ...
    def epoch(self, row: Row) -> None: ...


class Nobody:
    """Watches nothing."""

    def step(self, done: int, total: int) -> None:
        pass

    def epoch(self, row: Row) -> None:
        pass


@dataclass
class Chosen:
    """The epoch whose networks are delivered: the best on the held-out noisy split, else the last."""

    epoch: int = 0
    valid_error: float | None = None
    networks: dict[str, Tensor] = field(default_factory=dict)
    tables: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What a finished training leaves."""

    chosen: Chosen  # of the last round
    tables: dict[str, Tensor]  # of the last epoch
    rows: list[Row]
    samples: dict[str, Tensor]  # what was gathered of each training sample in the last round


def fit(
    make_networks: MakeNetworks,
    method: Method,
    train: Samples,
    test: Samples | None = None,
    *,
    valid: Samples | None = None,
    training: Training,
    record: Record | None = None,
    checkpoints: Checkpoints | None = None,
    watcher: Watcher | None = None,
    stop: StopFlag | None = None,
    at_epoch_end: AtEpochEnd | None = None,
) -> Result:
    """Train the networks of every round, on the device of the training data.

    `stop`: the flag of someone who trains several at a time; without one, signals to the process stop this training.
    `at_epoch_end`: called before an epoch counts as done, so that a cut run has missed none of its calls.
    """
    with own_stream(train.labels.device), nullcontext(stop) if stop else StopFlag() as flag:
        watcher = watcher or Nobody()
        run = _Run(make_networks, method, train, test, valid, training, record, checkpoints, watcher, at_epoch_end)
        run.resume()
        while run.round < method.rounds:
            while run.epochs_done < training.epochs:
                run.one_epoch(flag)
            run.end_round()
        return Result(run.chosen, snapshot(method.tables()), run.rows, run.steps.tally.tensors())


@dataclass
class _Run:
    """A training under way."""

    make_networks: MakeNetworks
    method: Method
    train: Samples
    test: Samples | None
    valid: Samples | None
    training: Training
    record: Record | None
    checkpoints: Checkpoints | None
    watcher: Watcher
    at_epoch_end: AtEpochEnd | None = None
    round: int = 0
    epochs_done: int = 0  # of the round
    chosen: Chosen = field(default_factory=Chosen)
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._new_networks()
        self.method.start_round(0)

    def one_epoch(self, stop: StopFlag) -> None:
        began = time.perf_counter()
        epoch = self.epochs_done
        reading = self._learn(epoch, stop)
        self.method.end_epoch(self._predict)
        row = self._row(epoch, reading, began)
        if self.at_epoch_end:
            self.at_epoch_end(epoch + 1, self._predict)
        self.epochs_done += 1
        self._choose(row)
        self.rows.append(row)
        if self.record:
            self.record.append(row)
        self._save()
        self.watcher.epoch(row)

    def end_round(self) -> None:
        """Start anew with fresh networks, unless this was the last round."""
        self.method.end_round(self._predict)
        self.round += 1
        if self.round < self.method.rounds:
            self.epochs_done = 0
            self.chosen = Chosen()
            self._new_networks()
            self.method.start_round(self.round)

    def resume(self) -> None:
        """Take up the newest checkpoint, if there is one."""
        found = self.checkpoints.newest() if self.checkpoints else None
        if found is None:
            return
        tensors, facts = found
        if self.record:
            self.record.cut(facts["record_size"])
        self.round, self.epochs_done, self.rows = facts["round"], facts["epochs_done"], facts["rows"]
        self._new_networks()
        self.method.start_round(self.round)
        self.networks.load_state_dict(under("networks", tensors))
        self.method.load_state_dict(under("method", tensors))
        for name, saved in under("momentum", tensors).items():
            self._momenta()[name].copy_(saved)
        self.steps.tally.load(under("samples", tensors))
        weights, tables = under("chosen/networks", tensors), under("chosen/tables", tensors)
        self.chosen = Chosen(facts["chosen_epoch"], facts["chosen_error"], weights, tables)
        if self.record:
            self.record.append({"event": "resume", "round": self.round + 1, "epochs_done": self.epochs_done})

    def _new_networks(self) -> None:
        self.networks = self.make_networks(self.round)
        self.device = next(self.networks.parameters()).device
        self.learner = Learner(self.networks, self.method.to(self.device), self.training)
        self.random = torch.Generator(self.device)
        lend_generator(self.networks, self.random)
        lend_generator(self.method, self.random)
        self.recorder = Recorder(
            self.device, self.random, enabled=self.training.recorded, clean_up=self.learner.forget_gradients
        )
        settings = self.training
        self.augment = Augment(settings.augment, settings.seed, self.device) if settings.augment else None
        self.steps = Steps(self.learner, self.train, self.recorder, self.augment)
        self.error_rates = {
            name: ErrorRates(self.networks, data, self.training, self.recorder)
            for name, data in (("test_error", self.test), ("valid_error", self.valid))
            if data is not None
        }

    def _learn(self, epoch: int, stop: StopFlag) -> Reading:
        """All steps of one epoch."""
        self.networks.train()
        self.method.train()
        self.method.start_epoch(epoch)
        self.steps.tally.start_epoch(epoch)
        self.learner.set_lr(self._lr(epoch))
        self.random.manual_seed(derive(self.training.seed, "dropout", self.round, epoch))
        if self.augment is not None:
            self.augment.start_epoch(self.round * self.training.epochs + epoch)
        order = self._order(epoch)
        steps = -(-len(order) // self.training.batch)
        earlier = steps * (self.round * self.training.epochs + epoch)
        total = steps * self.method.rounds * self.training.epochs
        for done, step in enumerate(self.steps.epoch(order, self.training.batch)):
            stop.check(f"in epoch {epoch + 1}, after {epoch} whole ones")
            step()
            self.watcher.step(earlier + done + 1, total)
        reading = self.steps.read()
        if reading.first_bad_step is not None:
            raise Diverged(
                f"training diverged: loss or gradient was not finite in epoch {epoch + 1}, step "
                f"{reading.first_bad_step + 1}; that step changed nothing. Lower --lr (it was {self.training.lr:g})"
            )
        return reading

    def _lr(self, epoch: int) -> float:
        return self.training.lr_at(epoch) * self.method.lr_scale(epoch)

    def _order(self, epoch: int) -> Tensor:
        """Each sample once, in an order of (seed, round, epoch) alone, or batches that are drawn one by one.

        Batch-norm cannot take a last batch of one sample, and some methods no incomplete one.
        """
        random = generator(self.training.seed, "batches", self.round, epoch)
        if self.training.sampler == "independent":
            return independent_batches(len(self.train), self.training.batch, random).to(self.train.labels.device)
        order = torch.randperm(len(self.train), generator=random)
        left_over = len(order) % self.training.batch
        unwanted = self.method.drop_last or self.training.drop_last
        useless = unwanted or (left_over == 1 and has_batch_norm(self.networks))
        if useless and left_over < len(order):
            order = order[: len(order) - left_over]
        return order.to(self.train.labels.device)

    def _predict(self) -> Any:
        return predictions(self.networks, self.train, self.training)

    def _row(self, epoch: int, reading: Reading, began: float) -> Row:
        row: Row = {"event": "epoch", "epoch": epoch + 1, "lr": self._lr(epoch)}
        if self.method.rounds > 1:
            row["round"] = self.round + 1
        measured: dict[str, list[Any]] = {"train_loss": reading.loss, "precision": reading.precision}
        measured |= {name: rates.measure() for name, rates in self.error_rates.items()}
        measured["kept"] = [[round(share, 4) for share in shares] for shares in reading.kept]
        for name, values in measured.items():
            row[name] = values[0]
        if self.method.networks > 1:
            row["networks"] = measured
        if self.device.type == "cuda":
            row["steps"] = "recorded" if self.recorder.reason is None else f"eager: {self.recorder.reason}"
        return {**row, "seconds": round(time.perf_counter() - began, 3)}

    def _choose(self, row: Row) -> None:
        error = row.get("valid_error") if self.training.choose == "best" else None
        last = self.epochs_done == self.training.epochs
        settled = row["epoch"] >= self.training.first_choice()
        better = error is not None and (self.chosen.valid_error is None or error < self.chosen.valid_error)
        if (settled and better) or (error is None and last):
            weights, tables = snapshot(self.networks.state_dict()), snapshot(self.method.tables())
            self.chosen = Chosen(row["epoch"], error, weights, tables)

    def _save(self) -> None:
        if self.checkpoints is None:
            return
        tensors = {
            **prefixed("networks", self.networks.state_dict()),
            **prefixed("momentum", self._momenta()),
            **prefixed("method", self.method.state_dict()),
            **prefixed("samples", self.steps.tally.tensors()),
            **prefixed("chosen/networks", self.chosen.networks),
            **prefixed("chosen/tables", self.chosen.tables),
        }
        facts = {
            "round": self.round,
            "epochs_done": self.epochs_done,
            "chosen_epoch": self.chosen.epoch,
            "chosen_error": self.chosen.valid_error,
            "record_size": self.record.size() if self.record else 0,
            "rows": self.rows,
        }
        self.checkpoints.save(self.round * self.training.epochs + self.epochs_done, tensors, facts)

    def _momenta(self) -> dict[str, Tensor]:
        return {
            f"{place}.{number}": optimizer.state[parameter]["momentum_buffer"]
            for place, optimizer in enumerate(self.learner.optimizers)
            for number, parameter in enumerate(optimizer.param_groups[0]["params"])
        }


def independent_batches(samples: int, batch: int, random: torch.Generator) -> Tensor:
    """As many full batches as an epoch has, each drawn by itself, no sample twice in one batch."""
    count, size = -(-samples // batch), min(batch, samples)
    if size * size > samples:  # too many drawings would be thrown away
        return torch.cat([torch.randperm(samples, generator=random)[:size] for _ in range(count)])
    batches = torch.randint(samples, (count, size), generator=random)
    while (again := (batches.sort().values.diff() == 0).any(1)).any():
        batches[again] = torch.randint(samples, (int(again.sum()), size), generator=random)
    return batches.flatten()


def snapshot(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def lend_generator(modules: nn.Module, random: torch.Generator) -> None:
    """Modules that have a `generator` draw from the run's own."""
    for module in modules.modules():
        if isinstance(getattr(module, "generator", 0), torch.Generator | None):
            setattr(module, "generator", random)  # noqa: B010


def has_batch_norm(networks: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in networks.modules())
