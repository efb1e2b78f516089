"""SOP: learn each sample's label noise as sparse variables beside the network."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelsieve.core.losses import Loss, weighted_mean, without_dropped

SMALLEST = 1e-4


class SparseNoise(Loss):
    """CE of prediction + u² on the label - v² elsewhere, plus the squared error of the hard prediction with the same.

    u and v are parameters, samples x (1 + classes), learnt by plain gradient descent; their own learning rates are in
    parameter_groups().
    """

    needs_index = True

    def __init__(self, num_classes: int, num_samples: int, *, lr_u: float, lr_v: float, seed: int = 0) -> None:
        super().__init__()
        self.num_classes, self.num_samples = num_classes, num_samples
        self.lr_u, self.lr_v, self.seed = lr_u, lr_v, seed
        self.u = nn.Parameter(torch.zeros(num_samples, 1))
        self.v = nn.Parameter(torch.zeros(num_samples, num_classes))
        self.start_round(0)

    @torch.no_grad()
    def start_round(self, number: int) -> None:
        random = torch.Generator().manual_seed(self.seed)
        for variable in (self.u, self.v):
            variable.copy_(1e-8 * torch.randn(variable.shape, generator=random))

    def parameter_groups(self) -> list[dict[str, object]]:
        plain = {"momentum": 0.0, "weight_decay": 0.0}
        return [{"params": [self.u], "lr": self.lr_u, **plain}, {"params": [self.v], "lr": self.lr_v, **plain}]

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        kept = without_dropped(logits, weight)
        one_hot = F.one_hot(target, logits.shape[-1]).to(kept.dtype)  # (N, B, K)
        towards = (self.u[index].square() * one_hot).clamp(0, 1)
        away = (self.v[index].square() * (1 - one_hot)).clamp(0, 1)
        mixed = (kept.softmax(-1) + towards - away.detach()).clamp(min=SMALLEST)
        mixed = (mixed / mixed.sum(-1, keepdim=True)).clamp(min=SMALLEST)
        entropy = -(one_hot * mixed.log()).sum(-1)
        guess = F.one_hot(kept.detach().argmax(-1), logits.shape[-1]).to(kept.dtype)
        error = (guess + towards - away - one_hot).square().sum(-1)
        return weighted_mean(entropy + error, weight)
