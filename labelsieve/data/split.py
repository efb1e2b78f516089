"""A test set for data that has none: drawn class by class, so that every class keeps its share."""

import torch
from torch import Tensor

from labelsieve.randomness import generator


def stratified(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Positions to train on and to test on, both in order; of each class of two or more, at least one on both sides."""
    drawn = []
    for number in labels.unique().tolist():
        places = (labels == number).nonzero().squeeze(1)
        count = min(max(1, round(share * len(places))), len(places) - 1)
        order = torch.randperm(len(places), generator=generator(seed, "test", number))
        drawn.append(places[order[:count]])
    test = torch.cat(drawn).sort().values
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[test] = False
    return kept.nonzero().squeeze(1), test
