"""DMI: maximize the determinant-based mutual information between predictions and labels."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelsieve.core.losses import Loss, cross_entropy, mask_dropped, weighted_mean
from labelsieve.core.method import Method
from labelsieve.errors import warn_user
from labelsieve.methods.problem import MakeCriterion, Problem, register, select_clean

SMALLEST_DETERMINANT = 1e-3  # added to |det U|


@register("dmi")
def dmi(p: Problem, criterion: MakeCriterion | None = None, *, lr_scale: float = 0.001) -> Method:
    """After the warm-up, maximize the determinant-based mutual information with the labels, at a small learning rate.

    Until then, the loss is cross-entropy.
    """
    loss = Determinant(p.num_classes, start=p.warmup)
    scale = partial(_scaled_from, p.warmup, lr_scale)
    return Method(loss, select_clean(p, criterion), lr_scale=scale, drop_last=True)


class Determinant(Loss):
    """-log(|det U| + 0.001), where U = Yᵀ P is the product of one-hot labels and predictions of the batch.

    Before epoch `start` it is cross-entropy, because DMI only fine-tunes a network that separates the classes. A batch
    in which a class is missing has a determinant of zero and no gradient.
    """

    def __init__(self, num_classes: int, start: int) -> None:
        super().__init__()
        self.num_classes, self.active_from = num_classes, start
        self.started = nn.Buffer(torch.tensor(start == 0))

    def start_epoch(self, epoch: int) -> None:
        self.started.fill_(epoch >= self.active_from)

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        if logits.shape[1] < self.num_classes and not torch.compiler.is_compiling():
            warn_user(
                f"dmi cannot learn from {logits.shape[1]} samples of {self.num_classes} classes: "
                "the determinant is zero unless every class is in the batch"
            )
        kept = mask_dropped(logits, weight)
        plain = weighted_mean(cross_entropy(kept, target), weight)
        return torch.where(self.started, self.determinant_loss(kept, target, weight), plain)

    def determinant_loss(self, logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Return the loss of each network, computed in float64 with slogdet to avoid under- and overflow."""
        one_hot = F.one_hot(target, self.num_classes).double() * weight.double().unsqueeze(-1)
        joint = one_hot.mT @ logits.double().softmax(-1)  # (N, K, K)
        smallest = math.log(SMALLEST_DETERMINANT)
        regular = torch.linalg.slogdet(joint.detach()).logabsdet > smallest - 50
        safe = torch.where(regular[:, None, None], joint, torch.eye(self.num_classes, device=joint.device).double())
        log_det = torch.where(regular, torch.linalg.slogdet(safe).logabsdet, -torch.inf)
        return -torch.logaddexp(log_det, torch.full_like(log_det, smallest)).to(logits.dtype)


def _scaled_from(start: int, scale: float, epoch: int) -> float:
    """Return the factor of the learning rate: 1 before epoch `start`, `scale` from then on."""
    return scale if epoch >= start else 1.0
