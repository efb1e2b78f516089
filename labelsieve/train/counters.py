"""Meters: what an epoch counts, kept on the device and read once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from labelsieve.core.criteria import CriteriaMargin
from labelsieve.core.method import Method, Step
from labelsieve.train.step import Outcome

NEVER = 2**62


@dataclass(frozen=True)
class Reading:
    """One epoch in numbers, per network."""

    loss: list[float]
    precision: list[float | None]  # clean among the kept, where clean labels are known and something is kept
    kept: list[list[float]]  # per class of the observed label: the share of its samples that was kept
    first_bad_step: int | None


class Meters:
    """Counters of an epoch for N networks and K classes."""

    def __init__(self, networks: int, num_classes: int, device: torch.device) -> None:
        self.loss = torch.zeros(networks, dtype=torch.float64, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self.seen = torch.zeros(num_classes, dtype=torch.int64, device=device)
        self.kept = torch.zeros(networks, num_classes, dtype=torch.int64, device=device)
        self.kept_clean = torch.zeros(networks, dtype=torch.int64, device=device)
        self.first_bad_step = torch.full((), NEVER, dtype=torch.int64, device=device)

    def reset(self) -> None:
        """Begin a new epoch."""
        for counter in (self.loss, self.steps, self.seen, self.kept, self.kept_clean):
            counter.zero_()
        self.first_bad_step.fill_(NEVER)

    @torch.no_grad()
    def add(self, outcome: Outcome, labels: Tensor, clean: Tensor | None) -> None:
        """Count one step; `clean` (B) are the true labels."""
        kept = outcome.step.decision.weight > 0
        self.loss.add_(outcome.step.losses.detach())
        self.seen.index_add_(0, labels, torch.ones_like(labels))
        self.kept.index_add_(1, labels, kept.long())
        if clean is not None:
            right = outcome.step.decision.target == clean
            self.kept_clean.add_((kept & right).sum(-1))
        now = torch.where(outcome.finite.all(), NEVER, self.steps)
        self.first_bad_step.copy_(torch.minimum(self.first_bad_step, now))
        self.steps.add_(1)

    def read(self, clean_known: bool) -> Reading:
        """The one read of the epoch."""
        counters = (self.loss, self.steps, self.seen, self.kept, self.kept_clean, self.first_bad_step)
        packed = torch.cat([counter.double().flatten() for counter in counters]).cpu()
        parts = packed.split([counter.numel() for counter in counters])
        loss, steps, seen, kept, kept_clean, bad = parts
        kept = kept.view(self.kept.shape)
        shares = [
            clean / all_kept if all_kept else None for clean, all_kept in zip(kept_clean, kept.sum(1), strict=True)
        ]
        precision = [None if share is None or not clean_known else share.item() for share in shares]
        return Reading(
            loss=(loss / steps).tolist(),
            precision=precision,
            kept=(kept / seen.clamp(min=1)).tolist(),
            first_bad_step=None if bad >= NEVER else int(bad),
        )


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
