"""Every training sample's scores: what the criteria see in it at the end of an epoch."""

import torch
from torch import Tensor

from labelsieve.core.criteria import CriteriaPL, observed_confidence, penalty_confidence
from labelsieve.core.method import Method
from labelsieve.core.part import Predict


@torch.no_grad()
def sample_scores(method: Method, predict: Predict) -> dict[str, Tensor]:
    """By the first network, in the order of the samples: Criteria_OL, and with penalty labels Criteria_PL and ALL.

    The penalty labels are those that the next epoch selects with. λ of Criteria_ALL is the method's own, else 1.
    """
    criterion = next((part for part in method.parts() if isinstance(part, CriteriaPL)), None)
    scores: dict[str, list[Tensor]] = {}
    for probs, labels, _ in predict():
        for name, values in batch_scores(probs, labels.long(), criterion).items():
            scores.setdefault(name, []).append(values[0].float())
    return {name: torch.cat(parts) for name, parts in scores.items()}


def batch_scores(probs: Tensor, labels: Tensor, criterion: CriteriaPL | None) -> dict[str, Tensor]:
    """(N, B, K), (B) -> (N, B) per criterion."""
    observed = observed_confidence(probs, labels)
    if criterion is None:
        return {"ol": observed}
    penalty = penalty_confidence(probs, criterion.penalty_of(labels))
    return {"ol": observed, "pl": penalty, "all": observed - getattr(criterion, "lam", 1.0) * penalty}
