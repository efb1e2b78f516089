"""Statistics that are kept on the device: Meters per epoch, Tally per sample."""

from dataclasses import dataclass

import torch
from torch import Tensor

from labelsieve.core.criteria import CriteriaMargin
from labelsieve.core.method import Method, Step
from labelsieve.train.step import Outcome

NEVER = 2**62  # value of first_bad_step while all steps are finite


@dataclass(frozen=True)
class EpochStats:
    """Statistics of one epoch, per network."""

    loss: list[float]
    precision: list[float | None]  # share of clean labels among the kept samples; None if unknown or nothing is kept
    kept: list[list[float]]  # share of kept samples, per class of the observed label
    kept_share: list[float]  # share of kept samples
    first_bad_step: int | None  # first step that was not finite


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
        """Set all counters to zero at the start of an epoch."""
        for counter in (self.loss, self.steps, self.seen, self.kept, self.kept_clean):
            counter.zero_()
        self.first_bad_step.fill_(NEVER)

    @torch.no_grad()
    def add(self, outcome: Outcome, labels: Tensor, clean: Tensor | None) -> None:
        """Count one step, with observed and, if known, true labels (B)."""
        kept = outcome.step.decision.weight > 0
        self.loss.add_(outcome.step.losses.detach())
        self.seen.index_add_(0, labels, torch.ones_like(labels))
        self.kept.index_add_(1, labels, kept.long())
        if clean is not None:
            correct = outcome.step.decision.target == clean
            self.kept_clean.add_((kept & correct).sum(-1))
        bad_step = torch.where(outcome.finite.all(), NEVER, self.steps)
        self.first_bad_step.copy_(torch.minimum(self.first_bad_step, bad_step))
        self.steps.add_(1)

    def read(self, clean_known: bool) -> EpochStats:
        """Return the statistics of the epoch, with a single transfer from the device."""
        counters = (self.loss, self.steps, self.seen, self.kept, self.kept_clean, self.first_bad_step)
        packed = torch.cat([counter.double().flatten() for counter in counters]).cpu()
        parts = packed.split([counter.numel() for counter in counters])
        loss, steps, seen, kept, kept_clean, bad = parts
        kept = kept.view(self.kept.shape)
        shares = [clean / total if total else None for clean, total in zip(kept_clean, kept.sum(1), strict=True)]
        precision = [None if share is None or not clean_known else share.item() for share in shares]
        return EpochStats(
            loss=(loss / steps).tolist(),
            precision=precision,
            kept=(kept / seen.clamp(min=1)).tolist(),
            kept_share=(kept.sum(1) / seen.sum()).tolist(),
            first_bad_step=None if bad >= NEVER else int(bad),
        )


class Tally:
    """Sums per sample over the epochs since the method became active, averaged over the networks.

    ``margin`` is the confidence in the observed label minus that in the most likely other class, ``selected`` counts
    how often the sample was learnt from, ``seen`` how often it was in a batch. Steps never read these tensors.
    """

    names: tuple[str, ...] = ("margin", "selected")

    def __init__(self, method: Method, samples: int, device: torch.device) -> None:
        self.active_from = method.active_from
        self.margin = CriteriaMargin(2)
        self.sums = {name: torch.zeros(samples, device=device) for name in self.names}
        self.seen = torch.zeros(samples, dtype=torch.int32, device=device)
        self.enabled = torch.ones((), device=device)

    def start_epoch(self, epoch: int) -> None:
        """Count in this epoch only if the warm-up of the method is over."""
        self.enabled.fill_(epoch >= self.active_from)

    @torch.no_grad()
    def add(self, step: Step, finite: Tensor, labels: Tensor, index: Tensor) -> None:
        """Add one step unless it was undone; `finite` (N) is False for networks whose update was undone."""
        counts = self.enabled * (finite.all() & step.probs.isfinite().all((0, 2)))  # (B)
        for name, values in self.sample_values(step, labels).items():
            self.sums[name].index_add_(0, index, torch.where(counts > 0, values.mean(0), 0.0))
        self.seen.index_add_(0, index, counts.int())

    def sample_values(self, step: Step, labels: Tensor) -> dict[str, Tensor]:
        """Return the values to sum, (N, B) each."""
        return {"margin": self.margin(step.probs, labels), "selected": (step.decision.weight > 0).float()}

    def tensors(self) -> dict[str, Tensor]:
        """Return all sums by name, for a checkpoint."""
        return {**self.sums, "seen": self.seen}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Load sums from a checkpoint."""
        for name, tensor in self.tensors().items():
            tensor.copy_(saved[name])
