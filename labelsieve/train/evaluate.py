"""Predictions and error rates in eval mode."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from labelsieve.train.protocol import Samples, Training

EVALUATION_BATCH = 1000


@torch.no_grad()
def predictions(networks: nn.Module, data: Samples, training: Training) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Probabilities (N, B, K), labels and index of every sample, in order."""
    networks.eval()
    everything = torch.arange(len(data), device=data.labels.device)
    for inputs, labels, index in data.batches(everything, EVALUATION_BATCH):
        with training.autocast(inputs.device):
            logits = networks(inputs)
        yield logits.float().softmax(-1), labels, index


def error_rates(networks: nn.Module, data: Samples, training: Training) -> list[float]:
    """Per network: the percentage of samples whose likeliest class is not their label."""
    wrong = sum((probs.argmax(-1) != labels).sum(-1) for probs, labels, _ in predictions(networks, data, training))
    assert isinstance(wrong, Tensor)
    return [100 * count / len(data) for count in wrong.tolist()]
