"""LCCN: draw the true class of each sample by Gibbs sampling, with a transition matrix counted from the draws."""

import torch
from torch import Tensor, nn

from labelsieve.core.losses import CrossEntropy
from labelsieve.core.method import Method
from labelsieve.core.part import NO_LABEL, Predict, Relabel, label_dtype
from labelsieve.methods.problem import MakeCriterion, Problem, register, require_num_samples, select_clean
from labelsieve.runtime import derive


@register("lccn")
def lccn(p: Problem, criterion: MakeCriterion | None = None, *, prior: float = 1.0, refresh: int = 200) -> Method:
    """Draw the true class of each sample by Gibbs sampling, with an estimated transition matrix."""
    samples, seed = require_num_samples(p), derive(p.seed, "latent")
    latent = _LatentClass(p.num_classes, samples, warmup=p.warmup, seed=seed, prior=prior, refresh=refresh)
    return Method(CrossEntropy(), select_clean(p, criterion), latent)


class _LatentClass(Relabel):
    """Draw the target from prediction times transition probability, and count the transitions from the draws.

    The targets of the warm-up, at least one epoch, are the observed labels. The counts start from the predictions at
    its end, and `prior` is added to each. The transition matrix is updated every `refresh` steps. The draws of an epoch
    depend on `seed` and the epoch only.
    """

    needs_index = True
    keeps_selection = True
    needs_predictions = True

    def __init__(
        self, num_classes: int, num_samples: int, *, warmup: int, seed: int, prior: float, refresh: int
    ) -> None:
        super().__init__()
        if refresh < 1 or prior <= 0:
            raise ValueError(f"refresh must be at least 1 and prior above 0, got {refresh} and {prior}")
        self.num_classes, self.num_samples = num_classes, num_samples
        self.active_from = max(1, warmup)
        self.seed, self.prior, self.refresh, self.epoch = seed, prior, refresh, 0
        self.latent = nn.Buffer(torch.full((num_samples,), NO_LABEL, dtype=label_dtype(num_classes)))
        self.counts = nn.Buffer(torch.zeros(num_classes, num_classes, dtype=torch.int64))  # [latent, observed]
        self.transition = nn.Buffer(torch.eye(num_classes))
        self.draws = nn.Buffer(torch.zeros(num_samples))  # uniform random numbers of this epoch
        self.steps = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.drawing = nn.Buffer(torch.tensor(False))

    def start_round(self, number: int) -> None:
        self.latent.fill_(NO_LABEL)
        self.counts.zero_()

    def start_epoch(self, epoch: int) -> None:
        if epoch >= self.active_from and not self.is_initialized():
            raise ValueError("lccn needs predictions for the training set: pass predict= to loss_fn.epochs")
        self.epoch = epoch
        self.drawing.fill_(epoch >= self.active_from)
        generator = torch.Generator().manual_seed(self.seed ^ epoch)
        self.draws.copy_(torch.rand(self.draws.shape, generator=generator))

    def end_epoch(self, predict: Predict | None) -> None:
        if self.epoch + 1 < self.active_from or self.is_initialized() or predict is None:
            return
        self.counts.zero_()
        for probs, labels, index in predict():
            predicted = probs[0].argmax(-1)
            self.latent[index] = predicted.to(self.latent.dtype)
            self.counts.index_put_((predicted, labels), torch.ones_like(labels), accumulate=True)
        self.transition.copy_(self.estimate_transition())

    def is_initialized(self) -> bool:
        """Return True if every sample has a latent class."""
        return bool((self.latent != NO_LABEL).all())

    def estimate_transition(self) -> Tensor:
        """Return P(observed | latent) from the counts with a Dirichlet prior, (K, K)."""
        counts = self.counts + self.prior
        return counts / counts.sum(1, keepdim=True)

    def draw(self, probs: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """Draw the latent class of each sample by inverting its cumulative posterior, (B)."""
        posterior = probs[0] * self.transition[:, labels].T
        cumulative = posterior.cumsum(-1)
        threshold = self.draws[index].unsqueeze(1) * cumulative[:, -1:]
        return (cumulative <= threshold).sum(1).clamp(max=probs.shape[-1] - 1)

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        target = torch.where(self.drawing, self.draw(probs, labels, index), labels)
        return target.expand(probs.shape[:-1]), weight

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        moves = (valid[0] & self.drawing).long()
        old, new = self.latent[index].long(), self.draw(probs, labels, index)
        self.counts.index_put_((old.clamp(min=0), labels), -moves, accumulate=True)
        self.counts.index_put_((new, labels), moves, accumulate=True)
        self.latent[index] = torch.where(moves > 0, new, old).to(self.latent.dtype)
        self.steps.add_(1)
        due = (self.steps % self.refresh == 0) & self.drawing
        self.transition.copy_(torch.where(due, self.estimate_transition(), self.transition))

    def tables(self) -> dict[str, Tensor]:
        return {"transition": self.transition.unsqueeze(0)}
