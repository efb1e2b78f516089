"""Tally: a few numbers per training sample, gathered while training, for those who look for wrong labels."""

import torch
from torch import Tensor

from labelsieve.core.criteria import CriteriaMargin, Criterion, observed_confidence
from labelsieve.core.method import Method, Step

SUMS = ("observed", "margin", "score", "selected")


class Tally:
    """Sums over the epochs since the method began to select, mean over the networks; in place, never read by a step.

    observed: confidence in the observed label. margin: that minus the confidence in the likeliest other class. score:
    what the method's criterion said, else the margin. selected: how often the sample was learnt from. seen: how often
    it was looked at.
    """

    def __init__(self, method: Method, samples: int, device: torch.device) -> None:
        self.begins = method.begins
        self.margin = CriteriaMargin(2)
        self.criterion = next((part for part in method.parts() if isinstance(part, Criterion)), self.margin)
        self.sums = {name: torch.zeros(samples, device=device) for name in SUMS}
        self.seen = torch.zeros(samples, dtype=torch.int32, device=device)
        self.gathering = torch.ones((), device=device)

    def start_epoch(self, epoch: int) -> None:
        """Look away while the method warms up."""
        self.gathering.fill_(epoch >= self.begins)

    @torch.no_grad()
    def add(self, step: Step, finite: Tensor, labels: Tensor, index: Tensor) -> None:
        """Remember one step; one that was undone is left out. `finite` (N)."""
        counts = self.gathering * (finite.all() & step.probs.isfinite().all((0, 2)))  # (B)
        readings = {
            "observed": observed_confidence(step.probs, labels),
            "margin": self.margin(step.probs, labels),
            "score": self.criterion(step.probs, labels),
            "selected": (step.decision.weight > 0).float(),
        }
        for name, values in readings.items():
            self.sums[name].index_add_(0, index, torch.where(counts > 0, values.mean(0), 0.0))
        self.seen.index_add_(0, index, counts.int())

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, to be saved."""
        return {**self.sums, "seen": self.seen}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Go on from what was saved."""
        for name, tensor in saved.items():
            self.tensors()[name].copy_(tensor)
