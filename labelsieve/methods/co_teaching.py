"""Methods that train two networks together: Co-teaching, Co-teaching+ and JoCoR."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from labelsieve.core.checks import check_choice
from labelsieve.core.criteria import CriteriaOL, Criterion, observed_confidence
from labelsieve.core.losses import CrossEntropy, Loss, cross_entropy, mask_dropped, weighted_mean
from labelsieve.core.method import Method
from labelsieve.core.select import Select, ramped_share, ranks, within_share
from labelsieve.methods.problem import MakeCriterion, Problem, register


@register("co-teaching")
def co_teaching(p: Problem, criterion: MakeCriterion = CriteriaOL, *, ramp: int = 15) -> Method:
    """Train two networks, each on the samples selected by the other.

    The kept share falls from 1 to 1 - ε within `ramp` epochs.
    """
    select = Select(criterion(p.num_classes, 2), partial(ramped_share, p.noise_rate, ramp), exchange=True)
    return Method(CrossEntropy(), [select], networks=2)


@register("co-teaching+")
def co_teaching_plus(
    p: Problem,
    criterion: MakeCriterion = CriteriaOL,
    *,
    ramp: int = 15,
    init_epoch: int | None = None,
    empty: Literal["skip", "everything"] = "skip",
) -> Method:
    """Co-teaching restricted to the samples on which the two networks disagree.

    The restriction starts in epoch `init_epoch`, by default at the end of the warm-up.
    """
    select = _SelectDisagreed(
        criterion(p.num_classes, 2),
        partial(ramped_share, p.noise_rate, ramp),
        disagree_from=p.warmup if init_epoch is None else init_epoch,
        all_if_agreed=check_choice("empty", empty, ("skip", "everything")) == "everything",
    )
    return Method(CrossEntropy(), [select], networks=2)


@register("jocor")
def jocor(p: Problem, criterion: MakeCriterion | None = None, *, ramp: int = 15, agreement: float = 0.9) -> Method:
    """Train two networks to agree, on the samples with the smallest joint loss."""
    make_criterion = criterion or partial(CriteriaJoint, agreement=agreement)
    select = Select(make_criterion(p.num_classes, 2), partial(ramped_share, p.noise_rate, ramp), joint=True)
    return Method(JointLoss(agreement), [select], networks=2)


class _SelectDisagreed(Select):
    """Co-teaching+: from epoch `disagree_from` on, select among the samples on which the networks disagree.

    If they agree on the whole batch, all of it is used (`all_if_agreed`) or nothing is learnt from it.
    """

    num_kept_is_fixed = False

    def __init__(
        self, criterion: Criterion, keep: Callable[[int], Fraction], *, disagree_from: int, all_if_agreed: bool
    ) -> None:
        self.disagree_from, self.all_if_agreed = disagree_from, all_if_agreed
        super().__init__(criterion, keep, exchange=True)

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        self.agreed_too.fill_(epoch < self.disagree_from)

    def select(self, scores: Tensor, probs: Tensor, labels: Tensor) -> Tensor:
        classes = probs.argmax(-1)
        candidates = (classes != classes[:1]).any(0) | self.agreed_too
        if self.all_if_agreed:
            candidates = candidates | ~candidates.any()
        return within_share(ranks(scores, candidates), candidates.sum(), self.share) & candidates


class CriteriaJoint(Criterion):
    """JoCoR: negative joint loss, (1 - agreement) * (CE1 + CE2) + agreement * (KL12 + KL21)."""

    def __init__(self, num_classes: int, networks: int = 2, *, agreement: float = 0.9) -> None:
        super().__init__(num_classes, networks)
        self.agreement = agreement

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        logs = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
        entropy = -observed_confidence(logs, labels).sum(0)
        return -((1 - self.agreement) * entropy + self.agreement * _disagreement(logs)).expand(2, -1)


class JointLoss(Loss):
    """JoCoR: joint loss of the kept samples; half of the disagreement goes to each network."""

    def __init__(self, agreement: float) -> None:
        super().__init__()
        if not 0 <= agreement <= 1:
            raise ValueError(f"agreement must be in [0, 1], got {agreement}")
        self.agreement = agreement

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        kept = mask_dropped(logits, weight)
        divergence = _disagreement(kept.log_softmax(-1)) / 2
        return weighted_mean((1 - self.agreement) * cross_entropy(kept, target) + self.agreement * divergence, weight)


def _disagreement(logs: Tensor) -> Tensor:
    """Return KL(p1 || p2) + KL(p2 || p1) from the log-probabilities of two networks: (2, B, K) -> (B)."""
    first, second = logs
    return ((first.exp() - second.exp()) * (first - second)).sum(-1)
