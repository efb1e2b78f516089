"""Evidence: what the delivered networks think of each sample, in a few numbers of it."""

import torch
from torch import Tensor, nn

from labelsieve.train.evaluate import predictions
from labelsieve.train.graph import own_stream
from labelsieve.train.protocol import Samples, Training

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
