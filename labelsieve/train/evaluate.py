"""Predictions and error rates in eval mode."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import CriteriaPL, observed_confidence, penalty_confidence
from labelsieve.core.method import Method
from labelsieve.core.part import Predict
from labelsieve.runtime import prediction_batch_size
from labelsieve.train.augment import centred, window_of
from labelsieve.train.graph import Recorder, own_stream
from labelsieve.train.settings import Samples, Training


@torch.no_grad()
def predictions(networks: nn.Module, data: Samples, training: Training) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Probabilities (N, B, K), labels and index of every sample, in order."""
    networks.eval()
    everything = torch.arange(len(data), device=data.labels.device)
    first = 0
    for count in data.staged(everything, prediction_batch_size(data.shape)):
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
        for count in self.data.staged(everything, prediction_batch_size(self.data.shape)):
            self.recorder.run((id(self), count), partial(self._count, count))
        return [100 * count / len(self.data) for count in self.wrong.tolist()]

    def _count(self, count: int) -> None:
        index = self.position + torch.arange(count, device=self.position.device)
        guesses = scores(self.networks, self.data, self.training, index).argmax(-1)
        self.wrong.add_((guesses != self.data.labels[index]).sum(-1))
        self.position.add_(count)


LIKELIEST = 5  # classes that are kept of a prediction; the rest is next to nothing


def evidence(networks: nn.Module, data: Samples, training: Training) -> dict[str, Tensor]:
    """Of each sample, in order and in eval mode, mean over the networks.

    label (n) as observed, confidence (n) in it, likeliest (n, M) classes and their likelihood (n, M).
    """
    found: dict[str, list[Tensor]] = {name: [] for name in ("label", "confidence", "likeliest", "likelihood")}
    with own_stream(data.labels.device):
        for probs, labels, _ in predictions(networks, data, training):
            mean = probs.mean(0)  # (B, K)
            likelihood, likeliest = mean.topk(min(LIKELIEST, mean.shape[1]))
            found["label"].append(labels.int())
            found["confidence"].append(mean.gather(1, labels.unsqueeze(1)).squeeze(1))
            found["likeliest"].append(likeliest.int())
            found["likelihood"].append(likelihood)
        return {name: torch.cat(parts).cpu() for name, parts in found.items()}


@torch.no_grad()
def sample_scores(method: Method, predict: Predict) -> dict[str, Tensor]:
    """By the first network, in the order of the samples: Criteria_OL, and with penalty labels Criteria_PL and ALL.

    The penalty labels are those that the next epoch selects with. λ of Criteria_ALL is the method's own, else 1.
    """
    criterion = next((part for part in method.parts() if isinstance(part, CriteriaPL)), None)
    scores: dict[str, list[Tensor]] = {}
    for probs, labels, _ in predict():
        for name, values in batch_scores(probs, labels.long(), criterion).items():
            scores.setdefault(name, []).append(values[0].float())
    return {name: torch.cat(parts) for name, parts in scores.items()}


def batch_scores(probs: Tensor, labels: Tensor, criterion: CriteriaPL | None) -> dict[str, Tensor]:
    """(N, B, K), (B) -> (N, B) per criterion."""
    observed = observed_confidence(probs, labels)
    if criterion is None:
        return {"ol": observed}
    penalty = penalty_confidence(probs, criterion.penalty_of(labels))
    return {"ol": observed, "pl": penalty, "all": observed - getattr(criterion, "lam", 1.0) * penalty}
