"""Method: weigh the samples of a batch, relabel them, then learn from those that count."""

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labelsieve.core.checks import Watch, refuse_other_labels, refuse_other_positions, refuse_other_types
from labelsieve.core.losses import Loss
from labelsieve.core.part import Part, Predict, Relabel, Weigh
from labelsieve.core.regularizers import Regularizer
from labelsieve.core.select import Select

NONE = -1  # no epoch is under way


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

    Call start_epoch at the top of each epoch. In eval() and under no_grad() it measures and observes nothing. `rounds`:
    how often the networks are trained from the start; `lr_scale`: what the learning rate is multiplied by in an epoch;
    `drop_last`: whether an incomplete last batch is left out.
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
        self.epoch = nn.Buffer(torch.tensor(NONE))  # the one under way
        self.under_way: int | None = None  # the same without asking the device
        self.watch = Watch()
        self.register_load_state_dict_pre_hook(with_epoch)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(go_on)  # type: ignore[no-untyped-call]

    @property
    def needs_index(self) -> bool:
        """Whether it must be told which samples a batch holds."""
        return any(part.needs_index for part in self.parts())

    @property
    def needs_predictions(self) -> bool:
        """Whether end_epoch must be given predictions of the whole training set."""
        return any(part.needs_predictions for part in self.parts())

    @property
    def selecting(self) -> list[Select]:
        """The parts that keep a share of each batch."""
        return [part for part in self.parts() if isinstance(part, Select)]

    @property
    def only_selects(self) -> bool:
        """Whether it is one network that keeps a share of each batch, sure before it is seen, and does nothing else."""
        more = self.networks > 1 or self.relabel is not None or self.regularizer is not None or len(self.weigh) != 1
        return not more and isinstance(self.weigh[0], Select) and self.weigh[0].disagree_from is None

    @property
    def begins(self) -> int:
        """The epoch, counted from 0 in each round, in which the last of its parts begins its work."""
        return max(part.begins for part in self.parts())

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
        if self.under_way is None:
            raise ValueError("call method.start_epoch(epoch) at the top of each epoch, counted from 0")
        refuse_other_types(logits, labels, index)
        checked = self._checked(logits, labels, index)
        learning = self.training and torch.is_grad_enabled()
        if not torch.compiler.is_compiling():
            self._look_for_mistakes(logits, labels, index, learning)
        step = self._step(checked, labels, index)
        if learning:
            self.observe(step, labels, index)
        if self.regularizer is None or not learning:
            return step.loss
        if model is None or inputs is None:
            raise ValueError("this method looks at the model too: pass model= and inputs=")
        extra: Tensor = self.regularizer(model, inputs, logits)
        return step.loss + extra

    def step(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Step:
        """Decide and measure; a loop that may undo a step calls observe after it."""
        return self._step(self._checked(logits, labels, index), labels, index)

    def _step(self, logits: Tensor, labels: Tensor, index: Tensor | None) -> Step:
        logits, labels = logits.float(), labels.long()  # (N, B, K), (B)
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
        if not self.only_selects:
            raise ValueError("a second pass over the kept samples is for methods of one network that only select")
        return self.selecting[0].kept(count)

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
        self.epoch.fill_(NONE)
        self.under_way = None

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """Tell every part that an epoch begins, counted from 0; to begin the one that is under way changes nothing."""
        if operator.index(epoch) < 0:
            raise ValueError(f"epochs are counted from 0, got {epoch}")
        self.watch.order(self.under_way, epoch)
        if int(self.epoch) not in (epoch, NONE):
            self.end_epoch()
        for part in self.parts():
            part.start_epoch(epoch)
        self.epoch.fill_(epoch)
        self.under_way = epoch

    @torch.no_grad()
    def end_epoch(self, predict: Predict | None = None) -> None:
        """Tell every part that an epoch is over. Only methods that predict the training set again need to be told.

        `predict()` yields batches of probabilities in eval mode, (B, K) or (N, B, K), labels (B) and index (B), until
        every training sample was there once.
        """
        for part in self.parts():
            part.end_epoch(predict and partial(with_network_axis, predict))
        self.epoch.fill_(NONE)

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
        if index is not None and index.shape != labels.shape:
            raise ValueError(
                f"index must be (B) like the labels, got {tuple(index.shape)}, labels {tuple(labels.shape)}"
            )
        if logits.shape[-1] == 1:
            raise ValueError("logits of two classes must be (B, 2), got one number a sample")
        for part in self.parts():
            if part.num_classes not in (0, logits.shape[-1]):
                raise ValueError(
                    f"the method was made for {part.num_classes} classes, the logits have {logits.shape[-1]}"
                )
        return logits

    def _look_for_mistakes(self, logits: Tensor, labels: Tensor, index: Tensor | None, learning: bool) -> None:
        """Refuse or name what a loop of one's own gets wrong; a GPU is asked nothing, since it would have to wait."""
        if labels.device.type == "cpu":
            refuse_other_labels(labels, logits.shape[-1])
            if index is not None and (counts := {part.num_samples for part in self.parts() if part.num_samples}):
                refuse_other_positions(index, min(counts))
        if not self.training:
            self.watch.in_eval(logits)
        if not learning:
            return
        least = max((part.least_batch for part in self.selecting), default=0)
        self.watch.batch(len(labels), least)
        if self.watch.begins(self.under_way):
            self.watch.own_parameters(self)
            self.watch.processes(self.needs_index)
            if labels.device.type == "cpu":
                self.watch.logits(logits)


def go_on(method: Method, keys: object) -> None:
    """A state that was saved within an epoch goes on within it."""
    method.under_way = None
    if (epoch := int(method.epoch)) != NONE:
        method.start_epoch(epoch)


def with_epoch(method: Method, state: dict[str, Any], prefix: str, *others: object) -> None:
    """States that were saved before methods kept the epoch were saved between two."""
    state.setdefault(f"{prefix}epoch", torch.tensor(NONE))


def unchanged(epoch: int) -> float:
    return 1.0


def with_network_axis(predict: Predict) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Predictions of one network may come as (B, K)."""
    for probs, labels, index in predict():
        yield probs.unsqueeze(0) if probs.dim() == 2 else probs, labels, index
