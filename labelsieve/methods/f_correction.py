"""Forward correction: learn the clean posterior through the noise's transition matrix."""

from typing import Literal

import torch
from torch import Tensor, nn

from labelsieve.core.criteria import one_of, stack
from labelsieve.core.losses import Loss, weighted_mean, without_dropped
from labelsieve.core.part import Predict, summed_over_processes


def transition_from_stack(sums: Tensor, otherwise: Tensor) -> Tensor:
    """T[true, observed] from predictions summed by observed label [observed, predicted]: transpose, rows scaled to one.

    A class that was never predicted keeps the row it had.
    """
    joint = sums.double().mT
    total = joint.sum(-1, keepdim=True)
    return torch.where(total > 0, joint / total, otherwise.double()).to(otherwise.dtype)


def transition_of_sure_samples(probs: Tensor, quantile: float) -> Tensor:
    """Patrini's estimate: row i is the prediction for the sample at this quantile of p_i; 1 takes the surest one.

    probs (N, n, K) -> (N, K, K)
    """
    place = min(probs.shape[1] - 1, int(quantile * probs.shape[1]))
    samples = probs.argsort(dim=1, stable=True)[:, place]  # (N, K): a sample per class
    rows = probs.gather(1, samples.unsqueeze(-1).expand(-1, -1, probs.shape[-1]))
    return rows / rows.sum(-1, keepdim=True)


class ForwardCorrection(Loss):
    """Cross-entropy of the predictions passed through T: -log (p T)[label].

    estimate "stack": T from the predictions stacked in the epoch before, once the warm-up is over. "patrini": a first
    round of plain training, then T from samples that are surely of a class; for a moment that takes all predictions at
    once, samples x classes.
    """

    def __init__(
        self,
        num_classes: int,
        networks: int = 1,
        *,
        warmup: int,
        estimate: Literal["stack", "patrini"],
        quantile: float = 0.97,
    ) -> None:
        super().__init__()
        if not 0 < quantile <= 1:
            raise ValueError(f"quantile must be in (0, 1], got {quantile}")
        self.estimate = one_of("estimate", estimate, ("stack", "patrini"))
        self.num_classes, self.quantile = num_classes, quantile
        self.begins = max(1, warmup) if estimate == "stack" else 0
        self.epoch, self.round = 0, 0
        self.transition = nn.Buffer(torch.eye(num_classes).repeat(networks, 1, 1))  # (N, K, K)
        self.estimated = nn.Buffer(torch.tensor(False))  # by Patrini's way
        self.sums = nn.Buffer(torch.zeros(networks, num_classes, num_classes, dtype=torch.int64))

    def start_round(self, number: int) -> None:
        self.round = number
        self.sums.zero_()

    def start_epoch(self, epoch: int) -> None:
        if self.estimate == "patrini" and self.round > 0 and not bool(self.estimated):
            raise ValueError("patrini's estimate is made after the first round: call method.end_round(predict)")
        self.epoch = epoch

    def end_epoch(self, predict: Predict | None) -> None:
        """Take T from the stack if the warm-up is over by the next epoch."""
        if self.estimate == "stack" and self.epoch + 1 >= self.begins:
            self.transition.copy_(transition_from_stack(summed_over_processes(self.sums), self.transition))
        self.sums.zero_()

    def end_round(self, predict: Predict) -> None:
        if self.estimate == "patrini" and self.round == 0:
            probs = torch.cat([batch for batch, _, _ in predict()], dim=1)
            self.transition.copy_(transition_of_sure_samples(probs, self.quantile))
            self.estimated.fill_(True)

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        if self.estimate == "stack":
            stack(self.sums, probs, labels, valid)

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        probs = without_dropped(logits, weight).softmax(-1)
        columns = self.transition.mT[torch.arange(len(target), device=target.device)[:, None], target]  # (N, B, K)
        return weighted_mean(-(probs * columns).sum(-1).clamp(min=1e-8).log(), weight)

    def tables(self) -> dict[str, Tensor]:
        return {"transition": self.transition}
