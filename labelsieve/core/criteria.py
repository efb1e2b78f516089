"""Selection criteria: Criteria_OL, Criteria_PL and Criteria_ALL of the paper, and the margin.

`_criteria_all` is equation 7, `penalty_labels` are equations 9 to 11. Each criterion is a class over these functions:
the higher its score, the more likely the observed label is correct. A subclass of `Criterion` with a name is added to
`CRITERIA` and can be combined with every method.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from labelsieve.core.checks import check_choice
from labelsieve.core.part import Part, Predict, host_decides

CRITERIA: dict[str, type["Criterion"]] = {}
MAX_CLASSES = 10_000  # penalty labels take 12 bytes per pair of classes and network: 1.2 GB for 10,000 classes
FIXED_POINT = 2**36  # scale of predictions summed as int64; 134 million samples per class fit


def observed_confidence(probs: Tensor, labels: Tensor) -> Tensor:
    """Criteria_OL: return the predicted probability of the observed label, (N, B, K), (B) or (N, B) -> (N, B)."""
    return probs.gather(-1, labels.expand(probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def penalty_confidence(probs: Tensor, penalty: Tensor) -> Tensor:
    """Criteria_PL: return Σ_j m[y, j] p[j] from the penalty label m[y] of each sample: 2 x (N, B, K) -> (N, B)."""
    return (penalty * probs).sum(-1)


def _criteria_all(probs: Tensor, labels: Tensor, penalty: Tensor, lam: float) -> Tensor:
    """Criteria_ALL = Criteria_OL - λ Criteria_PL = p[y] - λ Σ_j m[y, j] p[j] (eq. 7).

    Shapes: probs (N, B, K), labels (B), penalty (N, B, K) -> (N, B).
    """
    return observed_confidence(probs, labels).sub(penalty_confidence(probs, penalty), alpha=lam)


def penalty_labels(sums: Tensor, fallback: Tensor, column_weight: Tensor | None = None) -> Tensor:
    """Return the penalty labels m (eq. 9-11): summed predictions without the observed label, normalized to sum 1.

    Row k of `sums` (N, K, K) is the sum of the predictions for label k. Rows without probability outside the diagonal
    are taken from `fallback` (N, K, K). `column_weight` (N, K) is a weight of each predicted class.
    """
    mass = sums.double()
    if column_weight is not None:
        mass = mass * column_weight.unsqueeze(-2)
    mass.diagonal(dim1=-2, dim2=-1).zero_()
    return normalize_rows(mass, fallback)


def uniform_penalty(num_classes: int, networks: int = 1) -> Tensor:
    """Return uniform penalty labels (N, K, K). They leave the order of Criteria_OL unchanged (the paper's theorem)."""
    penalty = torch.full((networks, num_classes, num_classes), 1 / (num_classes - 1))
    penalty.diagonal(dim1=-2, dim2=-1).zero_()
    return penalty


class Criterion(Part, ABC):
    """A score for each sample: the higher, the more likely the observed label is correct.

    `class MyCriterion(Criterion, name="mine")` adds the class to `CRITERIA`. The first line of the docstring is its
    summary, the keyword-only arguments of `__init__` are its options. A criterion that stores values per sample sets
    `needs_index` and takes `num_samples` as its third argument.
    """

    def __init_subclass__(cls, *, name: str | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if name is not None:
            CRITERIA[name] = cls

    def __init__(self, num_classes: int, networks: int = 1) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"a classifier needs at least 2 classes, got {num_classes}")
        self.num_classes = num_classes
        self.networks = networks

    @abstractmethod
    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the scores: (N, B, K), (B), positions of the samples in the training set (B) -> (N, B)."""


class CriteriaOL(Criterion, name="ol"):
    """Confidence in the observed label (MentorNet, Co-teaching, SELFIE).

    Examples:
        >>> probs = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]]])  # one network, two samples, three classes
        >>> labels = torch.tensor([0, 2])
        >>> labelsieve.CriteriaOL(3)(probs, labels)
        tensor([[0.7000, 0.3000]])
    """

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        return observed_confidence(probs, labels)


class CriteriaPL(Criterion, name="pl"):
    """Minus the confidence in the penalty label, so that a higher score means cleaner.

    Args:
        update: "stack" sums the predictions made during training (Algorithm 3); "repredict" predicts the training set
            again at the end of each epoch (Algorithm 2).
        compensate: weigh the columns by how late a class is learnt: "off", once per "epoch" or in every "iteration".

    Examples:
        Before anything is learnt, all other classes are equally likely sources of a wrong label.

        >>> probs = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]]])  # one network, two samples, three classes
        >>> labels = torch.tensor([0, 2])
        >>> labelsieve.CriteriaPL(3)(probs, labels)
        tensor([[-0.1500, -0.3500]])
    """

    def __init__(
        self,
        num_classes: int,
        networks: int = 1,
        *,
        update: Literal["stack", "repredict"] = "stack",
        compensate: Literal["off", "epoch", "iteration"] = "off",
    ) -> None:
        super().__init__(num_classes, networks)
        if num_classes > MAX_CLASSES:
            raise ValueError(
                f"penalty labels need a table of classes x classes: {num_classes:,} classes exceed the limit of "
                f"{MAX_CLASSES:,}; use criterion ol"
            )
        self.update = check_choice("update", update, ("stack", "repredict"))
        self.needs_predictions = update == "repredict"
        self.compensate = check_choice("compensate", compensate, ("off", "epoch", "iteration"))
        self.penalty = nn.Buffer(uniform_penalty(num_classes, networks))  # (N, K, K), row k: penalty label of class k
        self.sums = nn.Buffer(torch.zeros_like(self.penalty, dtype=torch.int64))  # of this epoch's predictions by label
        self.columns = nn.Buffer(self.sums.new_zeros(networks, num_classes))  # column sums since the last epoch started
        self._repredicted = True

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        return -penalty_confidence(probs, self.penalty_of(labels))

    def penalty_of(self, labels: Tensor) -> Tensor:
        """Return the penalty label of each sample, (N, B, K)."""
        rows = self.penalty.index_select(1, labels)
        if self.compensate != "iteration":
            return rows
        rows = rows * _column_weight(self.columns).to(rows.dtype).unsqueeze(1)
        return rows / rows.sum(-1, keepdim=True)

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        if self.update == "stack":
            self.stack(probs, labels, valid)

    def stack(self, probs: Tensor, labels: Tensor, valid: Tensor) -> None:
        """Add predictions to the sums from which the next penalty labels are computed."""
        amounts = add_predictions(self.sums, probs, labels, valid)
        if self.compensate == "iteration":
            self.columns.add_(amounts.sum(1))

    def start_round(self, number: int) -> None:
        self.penalty.copy_(uniform_penalty(self.num_classes, self.networks))
        self.sums.zero_()
        self.columns.zero_()

    def start_epoch(self, epoch: int) -> None:
        if self.update == "repredict" and epoch > 0 and not self._repredicted:
            raise ValueError(
                "update='repredict' needs predictions for the training set: pass predict= to loss_fn.epochs"
            )

    def end_epoch(self, predict: Predict | None) -> None:
        if self.update == "repredict" and predict is not None:
            for probs, labels, _ in predict():
                self.stack(probs, labels, probs.isfinite().all(-1))
        self._repredicted = predict is not None
        columns = self.sums.sum(1)
        weight = _column_weight(columns) if self.compensate == "epoch" else None
        self.penalty.copy_(penalty_labels(self.sums, self.penalty, weight))
        self.columns.copy_(torch.where(columns.sum(-1, keepdim=True) > 0, columns, self.columns))
        self.sums.zero_()

    def tables(self) -> dict[str, Tensor]:
        return {"penalty": self.penalty}


class CriteriaALL(CriteriaPL, name="all"):
    """Criteria_OL - lam * Criteria_PL, the paper's criterion (eq. 7).

    Score of a sample with observed label y and prediction p: p[y] - lam * Σ_j m[y, j] p[j], where m[y] is the penalty
    label of class y. `_criteria_all` computes it. The other arguments are those of CriteriaPL.

    Examples:
        >>> probs = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]]])  # one network, two samples, three classes
        >>> labels = torch.tensor([0, 2])
        >>> labelsieve.CriteriaALL(3, lam=1.0)(probs, labels)
        tensor([[ 0.5500, -0.0500]])
    """

    def __init__(
        self,
        num_classes: int,
        networks: int = 1,
        *,
        lam: float = 1.0,
        update: Literal["stack", "repredict"] = "stack",
        compensate: Literal["off", "epoch", "iteration"] = "off",
    ) -> None:
        super().__init__(num_classes, networks, update=update, compensate=compensate)
        if not (math.isfinite(lam) and lam >= 0):
            raise ValueError(f"lam must be a number of at least 0, got {lam}")
        self.lam = lam

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        return _criteria_all(probs, labels, self.penalty_of(labels), self.lam)


class CriteriaMargin(Criterion, name="margin"):
    """Confidence in the observed label minus the confidence in the most likely other class."""

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        others = probs.scatter(-1, labels.expand(probs.shape[:-1]).unsqueeze(-1), -torch.inf)
        return observed_confidence(probs, labels) - others.amax(-1)


def fixed_point(probs: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return predictions (N, B, K) as integers, whose sum does not depend on the order of summation.

    Predictions that are not valid (N, B), which may be NaN, become 0; by default, all are valid.
    """
    amounts = probs * FIXED_POINT
    if valid is not None:
        amounts.mul_(valid.unsqueeze(-1)).nan_to_num_(nan=0.0)  # 0 times NaN is NaN
    return amounts.round_().long()


def add_predictions(sums: Tensor, probs: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Add predictions (N, B, K) to the rows of their labels in `sums` (N, K, K); return the added integers."""
    amounts = fixed_point(probs, None if host_decides(probs) and valid.all() else valid)
    sums.index_add_(1, labels, amounts)
    return amounts


def normalize_rows(sums: Tensor, fallback: Tensor) -> Tensor:
    """Return the rows divided by their sums, in the type of `fallback`, whose rows replace those that sum to 0."""
    total = sums.sum(-1, keepdim=True)
    return torch.where(total > 0, sums / total, fallback.double()).to(fallback.dtype)


def _column_weight(columns: Tensor) -> Tensor:
    """Return w[j] = q[j] / mean p[j] with a uniform prior q, (N, K): classes that are learnt late get more weight."""
    columns = columns.double().clamp(min=1)
    return columns.mean(-1, keepdim=True) / columns
