"""GCE: generalized cross-entropy, optionally truncated, which prunes samples with a low confidence."""

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import observed_confidence
from labelsieve.core.losses import Loss, mask_dropped
from labelsieve.core.method import Method
from labelsieve.core.part import Predict, Weigh
from labelsieve.methods.problem import MakeCriterion, Problem, register, require_num_samples, select_clean


@register("gce")
def gce(
    p: Problem,
    criterion: MakeCriterion | None = None,
    *,
    q: float = 0.7,
    k: float | None = None,
    prune_from: int | None = None,
    prune_every: int = 10,
) -> Method:
    """Generalized cross-entropy, optionally truncated.

    The loss is (1 - p^q) / q. With `k`, it is truncated at confidence k, and samples are pruned every few epochs.
    """
    start = p.warmup if prune_from is None else prune_from
    prune = [] if k is None else [_Prune(require_num_samples(p), k=k, start=start, every=prune_every)]
    return Method(GeneralizedCrossEntropy(q, k), [*prune, *select_clean(p, criterion)])


class GeneralizedCrossEntropy(Loss):
    """(1 - p^q) / q, between cross-entropy (q -> 0) and 1 - p (q = 1); with k, minus its value at p = k.

    The mean is over the whole batch, not over the kept samples: pruned samples make the step smaller, as in the paper.
    """

    def __init__(self, q: float, k: float | None = None) -> None:
        super().__init__()
        if not 0 < q <= 1:
            raise ValueError(f"q must be in (0, 1], got {q}")
        self.q = q
        self.ceiling = 0.0 if k is None else (1 - k**q) / q

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        log_p = observed_confidence(mask_dropped(logits, weight).log_softmax(-1), target)
        per_sample = -torch.expm1(self.q * log_p) / self.q  # precise for small q
        return ((per_sample - self.ceiling) * weight).mean(-1)


class _Prune(Weigh):
    """Truncated GCE: every few epochs, leave out the samples whose confidence in the observed label is at most k."""

    needs_index = True
    needs_predictions = True

    def __init__(self, num_samples: int, *, k: float, start: int, every: int) -> None:
        super().__init__()
        if not 0 < k < 1:
            raise ValueError(f"k must be between 0 and 1, got {k}")
        if every < 1 or start < 0:
            raise ValueError(f"start must be at least 0 and every at least 1, got {start} and {every}")
        self.num_samples = num_samples
        self.k, self.start, self.every = k, start, every
        self.active_from = start or every
        self.epoch = 0
        self.kept = nn.Buffer(torch.ones(1, num_samples, dtype=torch.bool))
        self.pruned_for = nn.Buffer(torch.zeros((), dtype=torch.int64))  # epoch of the last pruning

    def start_round(self, number: int) -> None:
        self.kept.fill_(True)

    def prunes_before(self, epoch: int) -> bool:
        """Return True if samples are pruned before this epoch."""
        return epoch > 0 and epoch >= self.start and (epoch - self.start) % self.every == 0

    def start_epoch(self, epoch: int) -> None:
        if self.prunes_before(epoch) and int(self.pruned_for) != epoch:
            raise ValueError("pruning needs predictions for the training set: pass predict= to loss_fn.epochs")
        self.epoch = epoch

    def end_epoch(self, predict: Predict | None) -> None:
        if self.prunes_before(self.epoch + 1) and predict is not None:
            for probs, labels, index in predict():
                self.kept[:, index] = observed_confidence(probs, labels) > self.k
            self.pruned_for.fill_(self.epoch + 1)

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        return self.kept[:, index].to(probs.dtype)
