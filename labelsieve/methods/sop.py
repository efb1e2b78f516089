"""SOP: learn the label noise of each sample as sparse parameters, together with the network."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelsieve.core.losses import Loss, mask_dropped, weighted_mean
from labelsieve.core.method import Method
from labelsieve.methods.problem import MakeCriterion, Problem, register, require_num_samples, select_clean
from labelsieve.runtime import derive

SMALLEST_PROBABILITY = 1e-4


@register("sop")
def sop(p: Problem, criterion: MakeCriterion | None = None, *, lr_u: float = 1.0, lr_v: float = 10.0) -> Method:
    """Sparse over-parameterization: learn the label noise of each sample together with the network."""
    seed = derive(p.seed, "sparse noise")
    loss = SparseNoise(p.num_classes, require_num_samples(p), lr_u=lr_u, lr_v=lr_v, seed=seed)
    return Method(loss, select_clean(p, criterion))


class SparseNoise(Loss):
    """CE of p + s plus the squared error of one-hot(argmax p) + s, where s = u² on the label and -v² elsewhere.

    u and v are parameters, samples x (1 + classes) in total, trained by plain gradient descent with the learning rates
    of `parameter_groups`.
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
        generator = torch.Generator().manual_seed(self.seed)
        for parameter in (self.u, self.v):
            parameter.copy_(1e-8 * torch.randn(parameter.shape, generator=generator))

    def parameter_groups(self) -> list[dict[str, object]]:
        plain = {"momentum": 0.0, "weight_decay": 0.0}
        return [{"params": [self.u], "lr": self.lr_u, **plain}, {"params": [self.v], "lr": self.lr_v, **plain}]

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        kept = mask_dropped(logits, weight)
        one_hot = F.one_hot(target, logits.shape[-1]).to(kept.dtype)  # (N, B, K)
        towards = (self.u[index].square() * one_hot).clamp(0, 1)
        away = (self.v[index].square() * (1 - one_hot)).clamp(0, 1)
        mixed = (kept.softmax(-1) + towards - away.detach()).clamp(min=SMALLEST_PROBABILITY)
        mixed = (mixed / mixed.sum(-1, keepdim=True)).clamp(min=SMALLEST_PROBABILITY)
        entropy = -(one_hot * mixed.log()).sum(-1)
        predicted = F.one_hot(kept.detach().argmax(-1), logits.shape[-1]).to(kept.dtype)
        error = (predicted + towards - away - one_hot).square().sum(-1)
        return weighted_mean(entropy + error, weight)
