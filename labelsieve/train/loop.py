"""fit: train the networks of every round, resume from checkpoints, stop on signals, choose the epoch to deliver."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from labelsieve.core.method import Method
from labelsieve.core.part import Predict
from labelsieve.core.processes import Processes, gather_predictions
from labelsieve.errors import Diverged, InputError, Stopped
from labelsieve.runtime import RowsGenerator, derive, generator
from labelsieve.train.augment import Augment
from labelsieve.train.checkpoint import Checkpoints, Record, Row, add_prefix, select_prefix
from labelsieve.train.counters import EpochStats, Meters, Tally
from labelsieve.train.evaluate import ErrorRates, predict_batches
from labelsieve.train.graph import GraphRecorder, own_stream
from labelsieve.train.settings import ONE_PROCESS, Samples, Training
from labelsieve.train.share import staged_share
from labelsieve.train.step import Learner, Outcome, Selection, step_kernels

SIGNALS = (signal.SIGINT, signal.SIGTERM)

MakeNetworks = Callable[[int], nn.Module]  # round -> module with one child per network that returns logits (N, B, K)
EpochEndHook = Callable[[int, Predict], None]  # epoch, counted from 1, and a function that predicts the training set


class Watcher(Protocol):
    """Receives the progress of a training."""

    def step(self, done: int, total: int) -> None:
        """Called after each step with the number of steps done and the total of all rounds."""

    def epoch(self, row: Row) -> None:
        """Called after each epoch with its line of the record."""


class Watchers:
    """Several watchers as one."""

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers

    def step(self, done: int, total: int) -> None:
        for watcher in self.watchers:
            watcher.step(done, total)

    def epoch(self, row: Row) -> None:
        for watcher in self.watchers:
            watcher.epoch(row)


class StopFlag:
    """Context in which SIGINT and SIGTERM set a flag instead of raising; a second SIGINT raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._handlers: dict[signal.Signals, object] = {}  # to restore at the end

    def __enter__(self) -> "StopFlag":
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def check(self, where: str) -> None:
        """Raise Stopped if a signal was received; `where` completes the sentence "stopped by Ctrl-C ..."."""
        if self.received is not None:
            name = "Ctrl-C" if self.received == signal.SIGINT else signal.Signals(self.received).name
            raise Stopped(f"stopped by {name} {where}; run the same command again to resume", self.received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        self.received = number


@dataclass
class ChosenEpoch:
    """The epoch to deliver: the best on the held-out noisy split if there is one, else the last."""

    epoch: int = 0
    valid_error: float | None = None
    networks: dict[str, Tensor] = field(default_factory=dict)
    tables: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The result of a finished training."""

    chosen: ChosenEpoch  # of the last round
    tables: dict[str, Tensor]  # of the last epoch
    rows: list[Row]  # of all epochs
    samples: dict[str, Tensor]  # sums per training sample, of the last round


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
    at_epoch_end: EpochEndHook | None = None,
    processes: Processes = ONE_PROCESS,
) -> Result:
    """Train the networks of every round on the device of the training set, and return the result.

    Args:
        make_networks: returns the networks of a round, counted from 0, on the device.
        method: decides which samples and labels to learn from.
        train: the training set.
        test: its error rate is measured after each epoch.
        valid: the held-out noisy split that chooses the epoch to deliver.
        training: the settings.
        record: receives a line for each epoch.
        checkpoints: written after each epoch; the training resumes from the newest one.
        watcher: receives the progress.
        stop: the flag of a caller that runs several trainings; without it, signals to the process stop this training.
        at_epoch_end: called before an epoch counts as done, so that a resumed training misses no call.
        processes: those that train together, each with a share of every batch. All return the same result; checkpoints
            are those of the first process, and only it needs any, a record and a watcher.
    """
    method.distributed = processes.count > 1
    with own_stream(train.labels.device), nullcontext(stop) if stop else StopFlag() as flag:
        run = _TrainingRun(
            make_networks, method, train, test, valid, training, record, checkpoints, watcher, at_epoch_end, processes
        )
        run.resume()
        while run.round < method.num_rounds:
            while run.epochs_done < training.epochs:
                run.train_epoch(flag)
            run.end_round()
        return Result(run.chosen, _copy_tensors(method.tables()), run.rows, run.steps.tally.tensors())


@dataclass
class _TrainingRun:
    """The state of a training in progress."""

    make_networks: MakeNetworks
    method: Method
    train: Samples
    test: Samples | None
    valid: Samples | None
    training: Training
    record: Record | None
    checkpoints: Checkpoints | None
    watcher: Watcher | None
    at_epoch_end: EpochEndHook | None
    processes: Processes
    round: int = 0
    epochs_done: int = 0  # in this round
    chosen: ChosenEpoch = field(default_factory=ChosenEpoch)
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start_round()

    def train_epoch(self, stop: StopFlag) -> None:
        """Train for one epoch, then record, choose and save it."""
        started = time.perf_counter()
        epoch = self.epochs_done
        stats = self._run_steps(epoch, stop)
        self.method.end_epoch(self._predict)
        row = self._row(epoch, stats, started)
        if self.at_epoch_end:
            self.at_epoch_end(epoch + 1, partial(gather_predictions, self._predict, self.processes))
        self.epochs_done += 1
        self._choose(row)
        self.rows.append(row)
        if self.record:
            self.record.append(row)
        self._save()
        if self.watcher:
            self.watcher.epoch(row)

    def end_round(self) -> None:
        """End the round and start the next one with new networks, unless it was the last."""
        self.method.end_round(self._predict)
        self.round += 1
        if self.round < self.method.num_rounds:
            self.epochs_done = 0
            self.chosen = ChosenEpoch()
            self._start_round()

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        found = self.processes.from_first(self.checkpoints.newest() if self.checkpoints else None)
        if found is None:
            return
        try:
            self._restore(*found)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            assert self.checkpoints is not None
            raise InputError(
                f"{self.checkpoints.folder} does not fit this training; delete that folder and run the command again"
            ) from error

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self.round, self.epochs_done, self.rows = facts["round"], facts["epochs_done"], facts["rows"]
        known = self.round < self.method.num_rounds and self.epochs_done <= self.training.epochs
        if not known or len(self.rows) != self.round * self.training.epochs + self.epochs_done:
            raise ValueError("the checkpoint is of another training")
        if self.record:
            self.record.restore(facts["record"])
        self._start_round()
        self.networks.load_state_dict(select_prefix("networks", tensors))
        self.method.load_state_dict(select_prefix("method", tensors))
        for name, saved in select_prefix("momentum", tensors).items():
            self._momentum_buffers()[name].copy_(saved)
        self.steps.tally.load(select_prefix("samples", tensors))
        weights, tables = select_prefix("chosen/networks", tensors), select_prefix("chosen/tables", tensors)
        self.chosen = ChosenEpoch(facts["chosen_epoch"], facts["chosen_error"], weights, tables)
        if self.record:
            self.record.append({"event": "resume", "round": self.round + 1, "epochs_done": self.epochs_done})

    def _start_round(self) -> None:
        self.networks = self.make_networks(self.round)
        self.device = next(self.networks.parameters()).device
        self.learner = Learner(self.networks, self.method.to(self.device), self.training, self.processes)
        several = self.processes.count > 1
        self.random = RowsGenerator(self.device) if several else torch.Generator(self.device)
        set_generator(self.networks, self.random)
        set_generator(self.method, self.random)
        self.recorder = GraphRecorder(
            self.device,
            self.random,
            enabled=self.training.recorded and not several,
            clean_up=self.learner.clear_gradients,
        )
        if several:
            self.recorder.reason = "several processes"  # they communicate within a step
        settings = self.training
        self.augment = Augment(settings.augment, settings.seed, self.device) if settings.augment else None
        self.steps = Steps(self.learner, self.train, self.recorder, self.augment)
        self.error_rates = {
            name: ErrorRates(self.networks, data, self.training, self.recorder, self.processes)
            for name, data in (("test_error", self.test), ("valid_error", self.valid))
            if data is not None
        }
        self.method.start_round(self.round)

    def _run_steps(self, epoch: int, stop: StopFlag) -> EpochStats:
        """Run all steps of an epoch and return its statistics; raise Stopped or Diverged."""
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
        steps_before = steps * (self.round * self.training.epochs + epoch)
        total = steps * self.method.num_rounds * self.training.epochs
        for done, step in enumerate(self.steps.epoch(order, self.training.batch), 1):
            stop.check(f"in epoch {epoch + 1} ({epoch} completed)")
            step()
            if self.watcher:
                self.watcher.step(steps_before + done, total)
        stats = self.steps.read()
        if stats.first_bad_step is not None:
            raise Diverged(
                f"training diverged: the loss or a gradient was not finite in epoch {epoch + 1}, step "
                f"{stats.first_bad_step + 1}, and the step was undone. Lower --lr (it was {self.training.lr:g})"
            )
        return stats

    def _lr(self, epoch: int) -> float:
        return self.training.lr_at(epoch) * self.method.lr_scale(epoch)

    def _order(self, epoch: int) -> Tensor:
        """Return the positions of the samples in the order of an epoch, which depends only on seed, round and epoch.

        An incomplete last batch is left out if the settings or the method require it. A last batch of one sample is
        left out if a network has batch-norm, which needs at least two.
        """
        random = generator(self.training.seed, "batches", self.round, epoch)
        if self.training.sampler == "independent":
            return independent_batches(len(self.train), self.training.batch, random).to(self.train.labels.device)
        order = torch.randperm(len(self.train), generator=random)
        left_over = len(order) % self.training.batch
        drop_last = self.method.drop_last or self.training.drop_last
        drop = drop_last or (left_over == 1 and has_batch_norm(self.networks))
        if drop and left_over < len(order):
            order = order[: len(order) - left_over]
        return order.to(self.train.labels.device)

    def _predict(self) -> Any:
        return predict_batches(self.networks, self.train, self.training, self.processes)

    def _row(self, epoch: int, stats: EpochStats, started: float) -> Row:
        """Return the line of the record for an epoch."""
        row: Row = {"event": "epoch", "epoch": epoch + 1, "lr": self._lr(epoch)}
        if self.method.num_rounds > 1:
            row["round"] = self.round + 1
        measured: dict[str, list[Any]] = {"train_loss": stats.loss, "precision": stats.precision}
        measured |= {name: rates.measure() for name, rates in self.error_rates.items()}
        measured["kept"] = [[round(share, 4) for share in shares] for shares in stats.kept]
        measured["kept_share"] = [round(share, 4) for share in stats.kept_share]
        for name, values in measured.items():
            row[name] = values[0]
        if self.method.networks > 1:
            row["networks"] = measured
        if self.device.type == "cuda":
            row["steps"] = "recorded" if self.recorder.reason is None else f"eager: {self.recorder.reason}"
        return {**row, "seconds": round(time.perf_counter() - started, 3)}

    def _choose(self, row: Row) -> None:
        """Keep the networks and tables of this epoch if it is the one to deliver so far."""
        error = row.get("valid_error") if self.training.choose == "best" else None
        last = self.epochs_done == self.training.epochs
        deliverable = row["epoch"] >= self.training.first_deliverable_epoch()
        better = error is not None and (self.chosen.valid_error is None or error < self.chosen.valid_error)
        if (deliverable and better) or (error is None and last):
            weights, tables = _copy_tensors(self.networks.state_dict()), _copy_tensors(self.method.tables())
            self.chosen = ChosenEpoch(row["epoch"], error, weights, tables)

    def _save(self) -> None:
        """Write a checkpoint."""
        if self.checkpoints is None:
            return
        tensors = {
            **add_prefix("networks", self.networks.state_dict()),
            **add_prefix("momentum", self._momentum_buffers()),
            **add_prefix("method", self.method.state_dict()),
            **add_prefix("samples", self.steps.tally.tensors()),
            **add_prefix("chosen/networks", self.chosen.networks),
            **add_prefix("chosen/tables", self.chosen.tables),
        }
        facts = {
            "round": self.round,
            "epochs_done": self.epochs_done,
            "chosen_epoch": self.chosen.epoch,
            "chosen_error": self.chosen.valid_error,
            "record": self.record.text() if self.record else "",
            "rows": self.rows,
        }
        self.checkpoints.save(self.round * self.training.epochs + self.epochs_done, tensors, facts)

    def _momentum_buffers(self) -> dict[str, Tensor]:
        return {
            f"{position}.{number}": optimizer.state[parameter]["momentum_buffer"]
            for position, optimizer in enumerate(self.learner.optimizers)
            for number, parameter in enumerate(optimizer.param_groups[0]["params"])
        }


class Batch(NamedTuple):
    """Samples of a step: the inputs of this process, the rest of all processes."""

    inputs: Tensor
    labels: Tensor
    clean: Tensor | None
    positions: Tensor  # in the training set


class Steps:
    """The steps of an epoch: take batches in a given order, learn from them and count."""

    def __init__(
        self,
        learner: Learner,
        data: Samples,
        recorder: GraphRecorder,
        augment: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self.learner = learner
        self.data = data
        self.recorder = recorder
        self.augment = augment
        device = data.labels.device
        self.meters = Meters(learner.method.networks, data.num_classes, device)
        self.tally = Tally(learner.method, len(data), device)
        self.order = torch.empty(len(data) + min(learner.training.batch, len(data)), dtype=torch.int64, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.selected: dict[int, tuple[Batch, Selection]] = {}  # by size of the batch, between its two passes

    def epoch(self, order: Tensor, size: int) -> Iterator[Callable[[], None]]:
        """Yield the steps of an epoch; each must be called before the next is requested."""
        self.order[: len(order)].copy_(order)
        self.position.zero_()
        self.meters.reset()
        for count in staged_share(self.data, order, size, self.learner.processes):
            learned = self.learner.num_learned(count)  # another number has other shapes, so it needs another graph
            if learned is None:
                yield partial(self.select_and_learn, count)
            else:
                yield partial(self.recorder.run, ("step", count, learned), partial(self.step, count))

    def step(self, count: int) -> None:
        """Learn from the next `count` samples, of which this process has its rows."""
        batch = self._take(count)
        self._count(batch, self.learner.step(batch.inputs, batch.labels, batch.positions))

    def select_and_learn(self, count: int) -> None:
        """Learn from the kept ones of the next `count` samples; the host reads how many there are."""
        self.recorder.run(("select", count), partial(self._select, count))
        number = int(self.selected[count][1].number)
        self.recorder.run(("learn", count, number), partial(self._learn, count, number))

    def _select(self, count: int) -> None:
        batch = self._take(count)
        self.selected[count] = batch, self.learner.select(batch.inputs, batch.labels, batch.positions)

    def _learn(self, count: int, number: int) -> None:
        batch, selection = self.selected[count]  # of the last call that was not replayed: graphs reuse its tensors
        self._count(batch, self.learner.learn(batch.inputs, batch.labels, batch.positions, selection, number))

    def _take(self, count: int) -> Batch:
        """Return the next `count` samples; the position advances when they are counted."""
        kernels = step_kernels(self.order.device)
        if kernels is None:
            index = self.order[self.position + torch.arange(count, device=self.order.device)]
            labels, clean = self.data.labels[index], None if self.data.clean is None else self.data.clean[index]
        else:
            index, labels, clean = kernels.take(self.order, self.position, count, self.data.labels, self.data.clean)
        rows = self.learner.processes.rows(count)
        if isinstance(self.recorder.random, RowsGenerator):
            self.recorder.random.rows, self.recorder.random.total = rows, count
        inputs = self.data.inputs(index[rows])
        if self.augment is not None:
            inputs = self.augment(inputs, index[rows])
        return Batch(inputs, labels, clean, index)

    def _count(self, batch: Batch, outcome: Outcome) -> None:
        kernels, (_, labels, clean, index) = step_kernels(self.order.device), batch
        if kernels is not None and type(self.tally) is Tally:
            kernels.count(self.meters, self.tally, self.position, outcome, labels, clean, index)
        else:
            self.meters.add(outcome, labels, clean)
            self.tally.add(outcome.step, outcome.finite, labels, index)
            self.position.add_(len(labels))

    def read(self) -> EpochStats:
        """Return the statistics of the epoch; this is the only time that the host waits for the device."""
        return self.meters.read(clean_known=self.data.clean is not None)


def independent_batches(samples: int, batch: int, random: torch.Generator) -> Tensor:
    """Draw as many full batches as an epoch has, each separately and without a sample twice in a batch."""
    count, size = -(-samples // batch), min(batch, samples)
    if size * size > samples:  # rejecting batches with duplicates would take too long
        return torch.cat([torch.randperm(samples, generator=random)[:size] for _ in range(count)])
    batches = torch.randint(samples, (count, size), generator=random)
    while (duplicate := (batches.sort().values.diff() == 0).any(1)).any():
        batches[duplicate] = torch.randint(samples, (int(duplicate.sum()), size), generator=random)
    return batches.flatten()


def _copy_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return detached copies."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def has_batch_norm(network: nn.Module) -> bool:
    """Return whether a network has batch-norm, which cannot learn from a single sample."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())


def set_generator(modules: nn.Module, random: torch.Generator) -> None:
    """Let all modules with an attribute `generator` draw from this one."""
    for module in modules.modules():
        if isinstance(getattr(module, "generator", 0), torch.Generator | None):
            setattr(module, "generator", random)  # noqa: B010
