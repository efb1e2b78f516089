"""Steps: one epoch's steps over data on the device, each the same work on the same tensors."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from labelsieve.train.graph import Recorder
from labelsieve.train.learner import Learner
from labelsieve.train.meters import Meters, Reading
from labelsieve.train.protocol import Samples
from labelsieve.train.tally import Tally


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
