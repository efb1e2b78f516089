"""Tally: a few numbers per training sample, gathered while training, for those who look for wrong labels."""

import torch
from torch import Tensor

from labelsieve.core.criteria import CriteriaMargin
from labelsieve.core.method import Method, Step


class Tally:
    """Sums over the epochs since the method began its work, mean over the networks; in place, never read by a step.

    margin: the confidence in the observed label minus that in the likeliest other class. selected: how often the sample
    was learnt from. seen: how often it was looked at.
    """

    names: tuple[str, ...] = ("margin", "selected")

    def __init__(self, method: Method, samples: int, device: torch.device) -> None:
        self.begins = method.begins
        self.margin = CriteriaMargin(2)
        self.sums = {name: torch.zeros(samples, device=device) for name in self.names}
        self.seen = torch.zeros(samples, dtype=torch.int32, device=device)
        self.gathering = torch.ones((), device=device)

    def start_epoch(self, epoch: int) -> None:
        """Look away while the method warms up."""
        self.gathering.fill_(epoch >= self.begins)

    @torch.no_grad()
    def add(self, step: Step, finite: Tensor, labels: Tensor, index: Tensor) -> None:
        """Remember one step; one that was undone is left out. `finite` (N)."""
        counts = self.gathering * (finite.all() & step.probs.isfinite().all((0, 2)))  # (B)
        for name, values in self.readings(step, labels).items():
            self.sums[name].index_add_(0, index, torch.where(counts > 0, values.mean(0), 0.0))
        self.seen.index_add_(0, index, counts.int())

    def readings(self, step: Step, labels: Tensor) -> dict[str, Tensor]:
        """What is summed, (N, B) each."""
        return {"margin": self.margin(step.probs, labels), "selected": (step.decision.weight > 0).float()}

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, to be saved."""
        return {**self.sums, "seen": self.seen}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Go on from what was saved; older versions saved more."""
        for name, tensor in self.tensors().items():
            tensor.copy_(saved[name])
