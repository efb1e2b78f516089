"""Method: weigh the samples of a batch, then learn from those that count."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labelsieve.core.losses import Loss
from labelsieve.core.part import Part, Predict
from labelsieve.core.weigh import Weigh


class Decision(NamedTuple):
    """What each network is to learn from a batch."""

    target: Tensor  # (N, B)  the label that is taught
    weight: Tensor  # (N, B)  how much it counts; 0 drops the sample


class Step(NamedTuple):
    """One batch, decided and measured, but not yet remembered."""

    loss: Tensor  # ()  the sum over the networks: each depends on its own logits alone
    losses: Tensor  # (N)
    probs: Tensor  # (N, B, K)  float32, no gradient
    decision: Decision


class Method(nn.Module):
    """A loss that knows which labels to trust. Use it where a criterion stands: `loss = method(model(x), y)`.

    Call start_epoch at the top of each epoch. In eval() it measures and observes nothing.
    """

    def __init__(self, loss: Loss, weigh: Sequence[Weigh] = (), *, networks: int = 1) -> None:
        super().__init__()
        self.loss = loss
        self.weigh = nn.ModuleList(weigh)
        self.networks = networks

    @property
    def needs_index(self) -> bool:
        """Whether it must be told which samples a batch holds."""
        return any(part.needs_index for part in self.parts())

    def parts(self) -> Iterator[Part]:
        """All parts, those inside other parts too."""
        return (module for module in self.modules() if isinstance(module, Part))

    def forward(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """The loss of a batch: logits (B, K), or (N, B, K) for methods with several networks."""
        step = self.step(logits, labels, index)
        if self.training:
            self.observe(step, labels, index)
        return step.loss

    def step(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Step:
        """Decide and measure; a loop that may undo a step calls observe after it."""
        labels = labels.long()
        logits = self._checked(logits, labels, index).float()
        with torch.no_grad():
            probs = logits.softmax(-1)
            decision = self.decide(probs, labels, index)
        losses = self.loss(logits, decision.target, decision.weight, labels, index)
        return Step(losses.sum(), losses, probs, decision)

    def decide(self, probs: Tensor, labels: Tensor, index: Tensor | None = None) -> Decision:
        """Which label each sample is taught and how much it counts."""
        target = labels.expand(probs.shape[:-1])
        weight = torch.ones_like(probs[..., 0])
        for part in self.weigh:
            weight = weight * part(probs, labels, index)
        return Decision(target, weight)

    @torch.no_grad()
    def observe(self, step: Step, labels: Tensor, index: Tensor | None = None, happened: Tensor | None = None) -> None:
        """Let every part remember the step. `happened` (N): False for a network whose update was undone."""
        valid = step.probs.isfinite().all(-1) & (step.losses.isfinite() if happened is None else happened).unsqueeze(-1)
        for part in self.parts():
            part.observe(step.probs, labels.long(), index, valid)

    def start_epoch(self, epoch: int) -> None:
        """Tell every part that an epoch begins, counted from 0."""
        for part in self.parts():
            part.start_epoch(epoch)

    @torch.no_grad()
    def end_epoch(self, predict: Predict | None = None) -> None:
        """Tell every part that an epoch is over. Only methods that predict the training set again need it."""
        for part in self.parts():
            part.end_epoch(predict)

    def tables(self) -> dict[str, Tensor]:
        """What the parts have learnt about the labels, such as the penalty labels (N, K, K)."""
        return {name: table for part in self.parts() for name, table in part.tables().items()}

    def _checked(self, logits: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        if self.needs_index and index is None:
            raise ValueError("this method remembers single samples: pass index=, their positions in the data")
        if logits.dim() == 2 and self.networks == 1:
            logits = logits.unsqueeze(0)
        if logits.dim() != 3 or logits.shape[:2] != (self.networks, *labels.shape):
            wanted = "(B, K)" if self.networks == 1 else f"({self.networks}, B, K)"
            raise ValueError(
                f"logits must be {wanted} and labels (B), got {tuple(logits.shape)} and {tuple(labels.shape)}"
            )
        return logits
