"""SL: symmetric cross-entropy, on all samples or on those selected by Criteria_ALL (SL-Prop)."""

import math

from torch import Tensor

from labelsieve.core.criteria import CriteriaALL, observed_confidence
from labelsieve.core.losses import Loss, cross_entropy, mask_dropped, weighted_mean
from labelsieve.core.method import Method
from labelsieve.methods.problem import MakeCriterion, Problem, register, select_clean

LOG_OF_ZERO = math.log(1e-4)  # replaces log 0; the reference code uses A = -9.21


@register("sl")
def sl(p: Problem, criterion: MakeCriterion | None = None, *, alpha: float = 1.0, beta: float = 0.08) -> Method:
    """Symmetric cross-entropy: alpha · CE + beta · reverse CE."""
    return Method(SymmetricCrossEntropy(alpha, beta), select_clean(p, criterion))


@register("sl-prop")
def sl_prop(
    p: Problem, criterion: MakeCriterion = CriteriaALL, *, alpha: float = 1.0, beta: float = 0.08, align: bool = False
) -> Method:
    """Symmetric cross-entropy on the samples selected by Criteria_ALL (from the paper)."""
    return Method(SymmetricCrossEntropy(alpha, beta), select_clean(p, criterion, align=align))


class SymmetricCrossEntropy(Loss):
    """alpha * CE + beta * reverse CE; the reverse CE of a hard label y is 9.21 * (1 - p[y])."""

    def __init__(self, alpha: float, beta: float) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        kept = mask_dropped(logits, weight)
        reverse = -LOG_OF_ZERO * (1 - observed_confidence(kept.softmax(-1), target))
        return weighted_mean(self.alpha * cross_entropy(kept, target) + self.beta * reverse, weight)
