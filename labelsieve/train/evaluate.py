"""Predictions and error rates in eval mode."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from labelsieve.devices import at_a_time
from labelsieve.train.augment import centred, window_of
from labelsieve.train.graph import Recorder
from labelsieve.train.protocol import Samples, Training


@torch.no_grad()
def predictions(networks: nn.Module, data: Samples, training: Training) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Probabilities (N, B, K), labels and index of every sample, in order."""
    networks.eval()
    everything = torch.arange(len(data), device=data.labels.device)
    first = 0
    for count in data.staged(everything, at_a_time(data.shape)):
        index = everything[first : first + count]
        first += count
        yield scores(networks, data, training, index).softmax(-1), data.labels[index], index


def scores(networks: nn.Module, data: Samples, training: Training, index: Tensor) -> Tensor:
    """Logits (N, B, K) of these samples."""
    inputs = centred(data.inputs(index), window_of(training.augment))
    with training.autocast(inputs.device):
        logits: Tensor = networks(inputs)
    return logits.float()


class ErrorRates:
    """Per network: the percentage of samples whose likeliest class is not their label."""

    def __init__(self, networks: nn.Module, data: Samples, training: Training, recorder: Recorder) -> None:
        self.networks, self.data, self.training, self.recorder = networks, data, training, recorder
        device = data.labels.device
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.wrong = torch.zeros(len(list(networks.children())), dtype=torch.int64, device=device)

    @torch.no_grad()
    def measure(self) -> list[float]:
        self.networks.eval()
        self.position.zero_()
        self.wrong.zero_()
        everything = torch.arange(len(self.data), device=self.position.device)
        for count in self.data.staged(everything, at_a_time(self.data.shape)):
            self.recorder.run((id(self), count), partial(self._count, count))
        return [100 * count / len(self.data) for count in self.wrong.tolist()]

    def _count(self, count: int) -> None:
        index = self.position + torch.arange(count, device=self.position.device)
        guesses = scores(self.networks, self.data, self.training, index).argmax(-1)
        self.wrong.add_((guesses != self.data.labels[index]).sum(-1))
        self.position.add_(count)
