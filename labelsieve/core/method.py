"""Method: weigh the samples of a batch, relabel them, then learn from those that count."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labelsieve.core.losses import Loss
from labelsieve.core.part import Part, Predict
from labelsieve.core.regularizers import Regularizer
from labelsieve.core.relabel import Relabel
from labelsieve.core.weigh import Select, Weigh


class Decision(NamedTuple):
    """What each network is to learn from a batch."""

    target: Tensor  # (N, B)  the label that is taught
    weight: Tensor  # (N, B)  how much it counts; 0 drops the sample

    @property
    def active(self) -> Tensor:
        """(N) whether there is anything to learn from; if not, the network is left as it is."""
        return (self.weight > 0).any(-1)


class Step(NamedTuple):
    """One batch, decided and measured, but not yet remembered."""

    loss: Tensor  # ()  the sum over the networks
    losses: Tensor  # (N)
    probs: Tensor  # (N, B, K)  float32, no gradient
    decision: Decision


class Method(nn.Module):
    """A loss that knows which labels to trust. Use it where a criterion stands: `loss = method(model(x), y)`.

    Call start_epoch at the top of each epoch. In eval() it measures and observes nothing. `rounds`: how often the
    networks are trained from the start; `lr_scale`: what the learning rate is multiplied by in an epoch; `drop_last`:
    whether an incomplete last batch is left out.
    """

    def __init__(
        self,
        loss: Loss,
        weigh: Sequence[Weigh] = (),
        relabel: Relabel | None = None,
        *,
        regularizer: Regularizer | None = None,
        networks: int = 1,
        rounds: int = 1,
        lr_scale: Callable[[int], float] | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__()
        self.loss = loss
        self.weigh = nn.ModuleList(weigh)
        self.relabel = relabel
        self.regularizer = regularizer
        self.networks = networks
        self.rounds = rounds
        self.lr_scale = lr_scale or unchanged
        self.drop_last = drop_last
        self.started = False

    @property
    def needs_index(self) -> bool:
        """Whether it must be told which samples a batch holds."""
        return any(part.needs_index for part in self.parts())

    def parts(self) -> Iterator[Part]:
        """All parts, those inside other parts too."""
        return (module for module in self.modules() if isinstance(module, Part))

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        index: Tensor | None = None,
        *,
        model: nn.Module | None = None,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch: logits (B, K), or (N, B, K) for methods with several networks.

        `index`: positions of the samples in the data, for methods that remember them. `model` and `inputs`: for methods
        with a regularizer.
        """
        if not self.started:
            raise ValueError("call method.start_epoch(epoch) at the top of each epoch, counted from 0")
        if labels.device.type == "cpu" and not torch.compiler.is_compiling():  # a GPU would have to wait
            refuse_other_labels(labels, logits.shape[-1])
        step = self.step(logits, labels, index)
        if self.training:
            self.observe(step, labels, index)
        if self.regularizer is None or not self.training:
            return step.loss
        if model is None or inputs is None:
            raise ValueError("this method looks at the model too: pass model= and inputs=")
        extra: Tensor = self.regularizer(model, inputs, logits)
        return step.loss + extra

    def step(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Step:
        """Decide and measure; a loop that may undo a step calls observe after it."""
        logits = self._checked(logits, labels, index).float()
        labels = labels.long()
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
        if self.relabel is not None:
            target, weight = self.relabel(probs, labels, index, weight)
        return Decision(target, weight)

    def kept(self, count: int) -> int:
        """How many of so many samples are learnt from in this epoch, where that is sure before they are seen."""
        if not self.weigh and self.relabel is None and self.regularizer is None:
            return count
        selects = len(self.weigh) == 1 and isinstance(self.weigh[0], Select) and self.weigh[0].disagree_from is None
        if self.networks > 1 or self.relabel is not None or self.regularizer is not None or not selects:
            raise ValueError("a second pass over the kept samples is for methods of one network that only select")
        return self.weigh[0].kept(count)  # type: ignore[operator, no-any-return]

    @torch.no_grad()
    def observe(self, step: Step, labels: Tensor, index: Tensor | None = None, happened: Tensor | None = None) -> None:
        """Let every part remember the step. `happened` (N): False for a network whose update was undone."""
        valid = step.probs.isfinite().all(-1) & (step.losses.isfinite() if happened is None else happened).unsqueeze(-1)
        for part in self.parts():
            part.observe(step.probs, labels.long(), index, valid)

    def parameter_groups(self) -> list[dict[str, object]]:
        """Parameters of the method itself (SOP's), to be given to an optimizer without momentum or decay."""
        return [group for part in self.parts() for group in part.parameter_groups()]

    @torch.no_grad()
    def start_round(self, number: int) -> None:
        """Tell every part that the networks start anew; only methods with several rounds need it."""
        for part in self.parts():
            part.start_round(number)

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """Tell every part that an epoch begins, counted from 0."""
        self.started = True
        for part in self.parts():
            part.start_epoch(epoch)

    @torch.no_grad()
    def end_epoch(self, predict: Predict | None = None) -> None:
        """Tell every part that an epoch is over. Only methods that predict the training set again need it.

        `predict()` yields batches of probabilities in eval mode, (B, K) or (N, B, K), labels (B) and index (B), until
        every training sample was there once.
        """
        for part in self.parts():
            part.end_epoch(predict and partial(with_network_axis, predict))

    @torch.no_grad()
    def end_round(self, predict: Predict) -> None:
        """Tell every part that the networks are trained; only methods with several rounds need it."""
        for part in self.parts():
            part.end_round(partial(with_network_axis, predict))

    def tables(self) -> dict[str, Tensor]:
        """What the parts have learnt about the labels, such as the penalty labels (N, K, K)."""
        return {name: table for part in self.parts() for name, table in part.tables().items()}

    def _checked(self, logits: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        if self.needs_index and index is None:
            raise ValueError("this method remembers single samples: pass index=, their positions in the data")
        if labels.is_floating_point():
            raise ValueError(f"labels must be whole numbers, got {labels.dtype}")
        given = tuple(logits.shape)
        if logits.dim() == 2 and self.networks == 1:
            logits = logits.unsqueeze(0)
        if logits.dim() != 3 or logits.shape[:2] != (self.networks, *labels.shape):
            wanted = "(B, K)" if self.networks == 1 else f"({self.networks}, B, K)"
            raise ValueError(f"logits must be {wanted} and labels (B), got {given} and {tuple(labels.shape)}")
        for part in self.parts():
            if getattr(part, "num_classes", logits.shape[-1]) != logits.shape[-1]:
                raise ValueError(
                    f"the method was made for {part.num_classes} classes, the logits have {logits.shape[-1]}"
                )
        return logits


def refuse_other_labels(labels: Tensor, num_classes: int) -> None:
    """Refuse labels that name no class, which torch would call an index out of bounds."""
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise ValueError(f"labels must be from 0 to {num_classes - 1}, got {wrong[0].item()}")


def unchanged(epoch: int) -> float:
    return 1.0


def with_network_axis(predict: Predict) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Predictions of one network may come as (B, K)."""
    for probs, labels, index in predict():
        yield probs.unsqueeze(0) if probs.dim() == 2 else probs, labels, index
