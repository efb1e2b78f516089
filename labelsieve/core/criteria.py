"""Which samples look clean: Criteria_OL, Criteria_PL and Criteria_ALL, and the penalty labels behind them."""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from labelsieve.core.part import Part, Predict, summed_over_processes

MAX_CLASSES = 10_000  # penalty labels are K x K: 12 bytes a cell and network, 1.2 GB at 10,000 classes
FIXED_POINT = 2**36  # predictions are summed as int64 of this scale: 134 million samples a class fit


def observed_confidence(probs: Tensor, labels: Tensor) -> Tensor:
    """Criteria_OL: the confidence in the observed label, (N, B, K), (B) or (N, B) -> (N, B)."""
    return probs.gather(-1, labels.expand(probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def penalty_confidence(probs: Tensor, penalty: Tensor) -> Tensor:
    """Criteria_PL: the confidence in the penalty label of each sample, `penalty` (N, B, K)."""
    return (penalty * probs).sum(-1)


def fixed_point(probs: Tensor) -> Tensor:
    """Predictions as integers, whose sum is the same in any order, over any workers and ranks."""
    return (probs * FIXED_POINT).round().long()


def stack(sums: Tensor, probs: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Add predictions (N, B, K) to the sums (N, K, K) of their observed labels; returns what was added."""
    amounts = fixed_point(torch.where(valid.unsqueeze(-1), probs, 0.0))
    sums.index_add_(1, labels, amounts)
    return amounts


def uniform_penalty(num_classes: int, networks: int = 1) -> Tensor:
    """The neutral penalty labels: by the paper's theorem they leave the order of Criteria_OL as it is."""
    penalty = torch.full((networks, num_classes, num_classes), 1 / (num_classes - 1))
    penalty.diagonal(dim1=-2, dim2=-1).zero_()
    return penalty


def penalty_labels(sums: Tensor, otherwise: Tensor, column_weight: Tensor | None = None) -> Tensor:
    """Eq. 9-11: per observed label (a row), the summed prediction of the *other* classes, scaled to one.

    A class that was not seen, or never predicted as another, keeps the row it had.
    """
    mass = sums.double()
    if column_weight is not None:
        mass = mass * column_weight.unsqueeze(-2)
    mass.diagonal(dim1=-2, dim2=-1).zero_()
    total = mass.sum(-1, keepdim=True)
    return torch.where(total > 0, mass / total, otherwise.double()).to(otherwise.dtype)


def column_weight(columns: Tensor) -> Tensor:
    """w[j] = q[j] / mean p[j] with a uniform prior q: classes that are learnt late count more. `columns` (N, K)."""
    columns = columns.double().clamp(min=1)
    return columns.mean(-1, keepdim=True) / columns


class Criterion(Part, ABC):
    """Scores samples: the higher, the more likely the observed label is right."""

    def __init__(self, num_classes: int, networks: int = 1) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"a classifier needs at least 2 classes, got {num_classes}")
        self.num_classes = num_classes
        self.networks = networks

    @abstractmethod
    def forward(self, probs: Tensor, labels: Tensor) -> Tensor:
        """(N, B, K), (B) -> (N, B)"""


class CriteriaOL(Criterion):
    """Confidence in the observed label (MentorNet, Co-teaching, SELFIE)."""

    def forward(self, probs: Tensor, labels: Tensor) -> Tensor:
        return observed_confidence(probs, labels)


class CriteriaMargin(Criterion):
    """Confidence in the observed label minus that in the likeliest other class; it remembers nothing."""

    def forward(self, probs: Tensor, labels: Tensor) -> Tensor:
        others = probs.scatter(-1, labels.expand(probs.shape[:-1]).unsqueeze(-1), -torch.inf)
        return observed_confidence(probs, labels) - others.amax(-1)


class CriteriaPL(Criterion):
    """Minus the confidence in the penalty label.

    update: "stack" sums the predictions made while training (Algorithm 3); "repredict" predicts the training set again
    at the end of each epoch (Algorithm 2). compensate: weigh the columns by how late a class is learnt, once per
    "epoch" or in every "iteration".
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
                f"penalty labels are a table of classes x classes: {num_classes:,} classes are over the limit of "
                f"{MAX_CLASSES:,}; use criterion ol"
            )
        self.update = one_of("update", update, ("stack", "repredict"))
        self.needs_predictions = update == "repredict"
        self.compensate = one_of("compensate", compensate, ("off", "epoch", "iteration"))
        self.penalty = nn.Buffer(
            uniform_penalty(num_classes, networks)
        )  # (N, K, K)  row k: the penalty label of class k
        self.sums = nn.Buffer(torch.zeros_like(self.penalty, dtype=torch.int64))  # the epoch's predictions by label
        self.columns = nn.Buffer(self.sums.new_zeros(networks, num_classes))  # predictions since the last epoch began
        self._repredicted = True

    def forward(self, probs: Tensor, labels: Tensor) -> Tensor:
        return -penalty_confidence(probs, self.penalty_of(labels))

    def penalty_of(self, labels: Tensor) -> Tensor:
        """The penalty label of each sample, (N, B, K)."""
        rows = self.penalty[:, labels]
        if self.compensate != "iteration":
            return rows
        rows = rows * column_weight(self.columns).to(rows.dtype).unsqueeze(1)
        return rows / rows.sum(-1, keepdim=True)

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        if self.update == "stack":
            self.stack(probs, labels, valid)

    def stack(self, probs: Tensor, labels: Tensor, valid: Tensor) -> None:
        """Add predictions to what the next penalty labels are made of."""
        amounts = stack(self.sums, probs, labels, valid)
        if self.compensate == "iteration":
            self.columns.add_(amounts.sum(1))

    def start_round(self, number: int) -> None:
        self.penalty.copy_(uniform_penalty(self.num_classes, self.networks))
        self.sums.zero_()
        self.columns.zero_()

    def start_epoch(self, epoch: int) -> None:
        if self.update == "repredict" and epoch > 0 and not self._repredicted:
            raise ValueError("update='repredict' predicts the training set again: call method.end_epoch(predict)")

    def end_epoch(self, predict: Predict | None) -> None:
        if self.update == "repredict" and predict is not None:
            for probs, labels, _ in predict():
                self.stack(probs, labels, probs.isfinite().all(-1))
        self._repredicted = predict is not None
        self.roll()

    def tables(self) -> dict[str, Tensor]:
        return {"penalty": self.penalty}

    def roll(self) -> None:
        """Make the penalty labels from what was gathered; a second call changes nothing."""
        sums = summed_over_processes(self.sums)
        columns = sums.sum(1)
        weight = column_weight(columns) if self.compensate == "epoch" else None
        self.penalty.copy_(penalty_labels(sums, otherwise=self.penalty, column_weight=weight))
        self.columns.copy_(torch.where(columns.sum(-1, keepdim=True) > 0, columns, self.columns))
        self.sums.zero_()


class CriteriaALL(CriteriaPL):
    """Criteria_OL - lam * Criteria_PL, the paper's criterion (eq. 7)."""

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

    def forward(self, probs: Tensor, labels: Tensor) -> Tensor:
        return observed_confidence(probs, labels) - self.lam * penalty_confidence(probs, self.penalty_of(labels))


CRITERIA: dict[str, type[Criterion]] = {
    "ol": CriteriaOL,
    "pl": CriteriaPL,
    "all": CriteriaALL,
    "margin": CriteriaMargin,
}


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value
