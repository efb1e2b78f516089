"""Evaluation in eval mode: predictions, error rates and per-sample scores."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import CriteriaPL, observed_confidence, penalty_confidence
from labelsieve.core.method import Method
from labelsieve.core.part import Predict
from labelsieve.core.processes import Processes
from labelsieve.runtime import prediction_batch_size
from labelsieve.train.augment import center_window, window_size
from labelsieve.train.graph import GraphRecorder, own_stream
from labelsieve.train.settings import ONE_PROCESS, Samples, Training
from labelsieve.train.share import staged_share

TOP_CLASSES = 5  # classes stored of each prediction; the remaining probability is negligible


@torch.no_grad()
def predict_batches(
    networks: nn.Module, data: Samples, training: Training, processes: Processes = ONE_PROCESS
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield probabilities (N, B, K), labels (B) and index (B) of all samples in order, or of this process's share."""
    networks.eval()
    all_samples = torch.arange(len(data), device=data.labels.device)
    first = 0
    for count in staged_share(data, all_samples, processes.count * prediction_batch_size(data.shape), processes):
        index = all_samples[first : first + count][processes.rows(count)]
        first += count
        yield _batch_logits(networks, data, training, index).softmax(-1), data.labels[index], index


def sample_predictions(networks: nn.Module, data: Samples, training: Training) -> dict[str, Tensor]:
    """Return the predictions for all samples, in order, averaged over the networks.

    `confidence` (n) is the probability of the observed `label` (n), `likelihood` (n, M) of the `likeliest` M classes.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in ("label", "confidence", "likeliest", "likelihood")}
    with own_stream(data.labels.device):
        for probs, labels, _ in predict_batches(networks, data, training):
            mean = probs.mean(0)  # (B, K)
            likelihood, likeliest = mean.topk(min(TOP_CLASSES, mean.shape[1]))
            found["label"].append(labels.int())
            found["confidence"].append(mean.gather(1, labels.unsqueeze(1)).squeeze(1))
            found["likeliest"].append(likeliest.int())
            found["likelihood"].append(likelihood)
        return {name: torch.cat(parts).cpu() for name, parts in found.items()}


@torch.no_grad()
def sample_scores(method: Method, predict: Predict) -> dict[str, Tensor]:
    """Return the scores of all samples by the first network, in order.

    ``ol`` is Criteria_OL. Methods with penalty labels also have ``pl`` and ``all`` (Criteria_PL and Criteria_ALL),
    with the penalty labels of the next epoch and the λ of the method, or 1 if it has none.
    """
    criterion = next((part for part in method.parts() if isinstance(part, CriteriaPL)), None)
    scores: dict[str, list[Tensor]] = {}
    for probs, labels, _ in predict():
        for name, values in _batch_scores(probs, labels.long(), criterion).items():
            scores.setdefault(name, []).append(values[0].float())
    return {name: torch.cat(parts) for name, parts in scores.items()}


class ErrorRates:
    """Measures the error rate of each network in percent; its steps can be captured as CUDA graphs.

    Of several processes, each predicts its share of the samples.
    """

    def __init__(
        self,
        networks: nn.Module,
        data: Samples,
        training: Training,
        recorder: GraphRecorder,
        processes: Processes = ONE_PROCESS,
    ) -> None:
        self.networks, self.data, self.training, self.recorder = networks, data, training, recorder
        self.processes = processes
        device = data.labels.device
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.wrong = torch.zeros(len(list(networks.children())), dtype=torch.int64, device=device)

    @torch.no_grad()
    def measure(self) -> list[float]:
        """Return the percentage of samples whose most likely class is not their label, for each network."""
        self.networks.eval()
        self.position.zero_()
        self.wrong.zero_()
        all_samples = torch.arange(len(self.data), device=self.position.device)
        size = self.processes.count * prediction_batch_size(self.data.shape)
        for count in staged_share(self.data, all_samples, size, self.processes):
            self.recorder.run((id(self), count), partial(self._count, count))
        return [100 * count / len(self.data) for count in self.processes.sum(self.wrong).tolist()]

    def _count(self, count: int) -> None:
        index = (self.position + torch.arange(count, device=self.position.device))[self.processes.rows(count)]
        if count >= self.processes.count or self.processes.rank == 0:  # of fewer samples, every process has all
            predicted = _batch_logits(self.networks, self.data, self.training, index).argmax(-1)
            self.wrong.add_((predicted != self.data.labels[index]).sum(-1))
        self.position.add_(count)


def _batch_logits(networks: nn.Module, data: Samples, training: Training, index: Tensor) -> Tensor:
    """Return the logits (N, B, K) of the staged samples; images larger than the training window are cropped."""
    inputs = center_window(data.inputs(index), window_size(training.augment))
    with training.autocast(inputs.device):
        logits: Tensor = networks(inputs)
    return logits.float()


def _batch_scores(probs: Tensor, labels: Tensor, criterion: CriteriaPL | None) -> dict[str, Tensor]:
    """Return the scores (N, B) of a batch by criterion, from probabilities (N, B, K) and labels (B)."""
    observed = observed_confidence(probs, labels)
    if criterion is None:
        return {"ol": observed}
    penalty = penalty_confidence(probs, criterion.penalty_of(labels))
    return {"ol": observed, "pl": penalty, "all": observed - getattr(criterion, "lam", 1.0) * penalty}
