"""Forward correction: pass the predictions through the transition matrix of the noise."""

from typing import Literal

import torch
from torch import Tensor, nn

from labelsieve.core.checks import check_choice
from labelsieve.core.criteria import add_predictions, normalize_rows
from labelsieve.core.losses import Loss, mask_dropped, weighted_mean
from labelsieve.core.method import Method
from labelsieve.core.part import Predict
from labelsieve.methods.problem import MakeCriterion, Problem, register, select_clean


@register("f-correction")
def f_correction(
    p: Problem,
    criterion: MakeCriterion | None = None,
    *,
    estimate: Literal["stack", "patrini"] = "stack",
    quantile: float = 0.97,
) -> Method:
    """Forward correction: multiply the predictions by an estimated noise transition matrix."""
    loss = ForwardCorrection(p.num_classes, warmup=p.warmup, estimate=estimate, quantile=quantile)
    return Method(loss, select_clean(p, criterion), num_rounds=2 if estimate == "patrini" else 1)


class ForwardCorrection(Loss):
    """Cross-entropy of the predictions multiplied by the transition matrix T: -log (p T)[label].

    The estimate "stack" takes T from the predictions summed in the previous epoch, after the warm-up. "patrini" trains
    a first round without correction and takes T from the samples at a quantile of the confidence in each class; this
    holds all predictions in memory, samples x classes.
    """

    def __init__(
        self, num_classes: int, *, warmup: int, estimate: Literal["stack", "patrini"], quantile: float = 0.97
    ) -> None:
        super().__init__()
        if not 0 < quantile <= 1:
            raise ValueError(f"quantile must be in (0, 1], got {quantile}")
        self.estimate = check_choice("estimate", estimate, ("stack", "patrini"))
        self.num_classes, self.quantile = num_classes, quantile
        self.active_from = max(1, warmup) if estimate == "stack" else 0
        self.epoch, self.round = 0, 0
        self.transition = nn.Buffer(torch.eye(num_classes).unsqueeze(0))  # (1, K, K), T[true, observed]
        self.estimated = nn.Buffer(torch.tensor(False))  # whether Patrini's estimate has been made
        self.sums = nn.Buffer(torch.zeros(1, num_classes, num_classes, dtype=torch.int64))  # [observed, predicted]

    def start_round(self, number: int) -> None:
        self.round = number
        self.sums.zero_()

    def start_epoch(self, epoch: int) -> None:
        if self.estimate == "patrini" and self.round > 0 and not bool(self.estimated):
            raise ValueError(
                "estimate='patrini' needs predictions after the first round: pass predict= to loss_fn.rounds"
            )
        self.epoch = epoch

    def end_epoch(self, predict: Predict | None) -> None:
        """After the warm-up, compute T from the summed predictions; a class that was never predicted keeps its row."""
        if self.estimate == "stack" and self.epoch + 1 >= self.active_from:
            self.transition.copy_(normalize_rows(self.sums.double().mT, self.transition))
        self.sums.zero_()

    def end_round(self, predict: Predict) -> None:
        if self.estimate == "patrini" and not bool(self.estimated):
            probs = torch.cat([batch for batch, _, _ in predict()], dim=1)
            self.transition.copy_(transition_from_confident(probs, self.quantile))
            self.estimated.fill_(True)

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        if self.estimate == "stack":
            add_predictions(self.sums, probs, labels, valid)

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        probs = mask_dropped(logits, weight).softmax(-1)
        columns = self.transition.mT[torch.arange(len(target), device=target.device)[:, None], target]  # (N, B, K)
        return weighted_mean(-(probs * columns).sum(-1).clamp(min=1e-8).log(), weight)

    def tables(self) -> dict[str, Tensor]:
        return {"transition": self.transition}


def transition_from_confident(probs: Tensor, quantile: float) -> Tensor:
    """Return Patrini's estimate of T: row i is the prediction for the sample at this quantile of p[i].

    A quantile of 1 uses the most confident sample. Shapes: (N, n, K) -> (N, K, K).
    """
    place = min(probs.shape[1] - 1, int(quantile * probs.shape[1]))
    samples = probs.argsort(dim=1, stable=True)[:, place]  # (N, K), one sample per class
    rows = probs.gather(1, samples.unsqueeze(-1).expand(-1, -1, probs.shape[-1]))
    return rows / rows.sum(-1, keepdim=True)
