"""LCCN: draw the true class of each sample, with a transition matrix counted from what was drawn."""

import torch
from torch import Tensor, nn

from labelsieve.core.part import NONE, Predict, Relabel, smallest_integer


class LatentClass(Relabel):
    """LCCN: the true class is drawn from prediction times transition, and the transition counted from what was drawn.

    During the warm-up, of one epoch at least, the observed labels are taught; at its end the counts start from the
    network's predictions. `seed` is well mixed: the draws of an epoch come from it and the epoch's number.
    """

    needs_index = True
    needs_predictions = True

    def __init__(
        self, num_classes: int, num_samples: int, *, warmup: int, seed: int, prior: float, refresh: int
    ) -> None:
        super().__init__()
        if refresh < 1 or prior <= 0:
            raise ValueError(f"refresh must be at least 1 step and prior above 0, got {refresh} and {prior}")
        self.num_classes, self.num_samples = num_classes, num_samples
        self.begins = max(1, warmup)
        self.seed, self.prior, self.refresh, self.epoch = seed, prior, refresh, 0
        self.latent = nn.Buffer(torch.full((num_samples,), NONE, dtype=smallest_integer(num_classes)))
        self.counts = nn.Buffer(torch.zeros(num_classes, num_classes, dtype=torch.int64))  # [latent, observed]
        self.transition = nn.Buffer(torch.eye(num_classes))
        self.draws = nn.Buffer(torch.zeros(num_samples))  # one uniform number per sample and epoch
        self.steps = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.drawing = nn.Buffer(torch.tensor(False))

    def start_round(self, number: int) -> None:
        self.latent.fill_(NONE)
        self.counts.zero_()

    def start_epoch(self, epoch: int) -> None:
        if epoch >= self.begins and not self.known():
            raise ValueError("lccn starts from predictions of the training set: call method.end_epoch(predict)")
        self.epoch = epoch
        self.drawing.fill_(epoch >= self.begins and self.known())
        random = torch.Generator().manual_seed(self.seed ^ epoch)
        self.draws.copy_(torch.rand(self.draws.shape, generator=random))

    def end_epoch(self, predict: Predict | None) -> None:
        if self.epoch + 1 < self.begins or self.known() or predict is None:
            return
        self.counts.zero_()
        for probs, labels, index in predict():
            guess = probs[0].argmax(-1)
            self.latent[index] = guess.to(self.latent.dtype)
            self.counts.index_put_((guess, labels), torch.ones_like(labels), accumulate=True)
        self.transition.copy_(self.estimated())

    def known(self) -> bool:
        """Whether every sample has a latent class yet."""
        return bool((self.latent != NONE).all())

    def estimated(self) -> Tensor:
        """P(observed | latent) from the counts with a Dirichlet prior."""
        counts = self.counts + self.prior
        return counts / counts.sum(1, keepdim=True)

    def drawn(self, probs: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """The latent class of each sample by inversion of its cumulative posterior. (B)"""
        posterior = probs[0] * self.transition[:, labels].T
        cumulative = posterior.cumsum(-1)
        place = self.draws[index].unsqueeze(1) * cumulative[:, -1:]
        return (cumulative <= place).sum(1).clamp(max=probs.shape[-1] - 1)

    def forward(self, probs: Tensor, labels: Tensor, index: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        assert index is not None
        target = torch.where(self.drawing, self.drawn(probs, labels, index), labels)
        return target.expand(probs.shape[:-1]), weight

    def observe(self, probs: Tensor, labels: Tensor, index: Tensor | None, valid: Tensor) -> None:
        assert index is not None
        moves = (valid[0] & self.drawing).long()
        old, new = self.latent[index].long(), self.drawn(probs, labels, index)
        self.counts.index_put_((old.clamp(min=0), labels), -moves, accumulate=True)
        self.counts.index_put_((new, labels), moves, accumulate=True)
        self.latent[index] = torch.where(moves > 0, new, old).to(self.latent.dtype)
        self.steps.add_(1)
        due = (self.steps % self.refresh == 0) & self.drawing
        self.transition.copy_(torch.where(due, self.estimated(), self.transition))

    def tables(self) -> dict[str, Tensor]:
        return {"transition": self.transition.unsqueeze(0)}
