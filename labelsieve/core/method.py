"""Method: a loss module that weighs, selects or relabels the samples of a batch before it measures them."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labelsieve.core.checks import LoopMonitor, check_index, check_labels, check_types
from labelsieve.core.losses import Loss, Predictions
from labelsieve.core.part import Part, Predict, Regularizer, Relabel, Weigh, host_decides
from labelsieve.core.processes import Processes, all_processes, first_places, gather_predictions, union_batch
from labelsieve.core.select import Select

LOG2_E = math.log2(math.e)
NO_EPOCH = -1  # value of Method.epoch between two epochs


class Decision(NamedTuple):
    """The target label and the weight of each sample of a batch, for each network."""

    target: Tensor  # (N, B)
    weight: Tensor  # (N, B), 0 for samples that are left out

    @property
    def active(self) -> Tensor:
        """True for networks with a sample to learn from, (N). The others must not be updated."""
        return (self.weight > 0).any(-1)


class Step(NamedTuple):
    """The loss of a batch and the decision behind it, before the state of the method is updated."""

    loss: Tensor  # (), sum over the networks
    losses: Tensor  # (N)
    probs: Tensor  # (N, B, K), float32 without gradient
    decision: Decision
    finite: bool = False  # True if the predictions are known to be finite


class Method(nn.Module):
    """A loss for training with noisy labels. Use it like any PyTorch loss: `loss = method(model(x), y)`.

    Call `start_epoch` at the start of each epoch. In eval mode and under no_grad() the state is not updated.

    If torch.distributed is initialized, the batch of a training step is the union of the batches of all processes: the
    loss, the decisions and the state are the same on each. Set `distributed` to False to train in each separately.

    Args:
        loss: computes the loss from logits, targets and weights.
        weigh: parts that give each sample a weight; the weights are multiplied.
        relabel: part that chooses the targets.
        regularizer: loss term that needs the model and its inputs.
        networks: number of networks that are trained together.
        num_rounds: number of trainings, each with newly initialized networks.
        lr_scale: factor of the learning rate in an epoch.
        drop_last: whether an incomplete last batch must be dropped.
    """

    def __init__(
        self,
        loss: Loss,
        weigh: Sequence[Weigh] = (),
        relabel: Relabel | None = None,
        *,
        regularizer: Regularizer | None = None,
        networks: int = 1,
        num_rounds: int = 1,
        lr_scale: Callable[[int], float] | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__()
        self.loss = loss
        self.weigh = nn.ModuleList(weigh)
        self.relabel = relabel
        self.regularizer = regularizer
        self.networks = networks
        self.num_rounds = num_rounds
        self.lr_scale = lr_scale or constant_lr
        self.drop_last = drop_last
        self.distributed = True
        self.epoch = nn.Buffer(torch.tensor(NO_EPOCH))  # the current epoch, saved with the state
        self.current_epoch: int | None = None  # a copy that can be read without waiting for the device
        self.started = False  # whether an epoch has started; the number would make torch.compile compile in each epoch
        self.monitor = LoopMonitor()
        self._warn_below = 0  # batches with fewer samples cause a warning in this epoch
        self._weighing = tuple(weigh)
        self._parts = tuple(module for module in self.modules() if isinstance(module, Part))
        self._observing = [part for part in self._parts if type(part).observe is not Part.observe]
        self._uses_probs = len(self._parts) > 1  # by another part than the loss
        selects = [isinstance(part, Select) and part.num_kept_is_fixed for part in self._weighing]
        self._keeps_selection = relabel is None or relabel.keeps_selection
        self._only_selects = selects == [True] and self._keeps_selection  # weights are 0 or 1, at least one is 1
        self.register_load_state_dict_post_hook(_resume_epoch)  # type: ignore[no-untyped-call]

    @property
    def processes(self) -> Processes:
        """The processes that train together."""
        return all_processes() if self.distributed else Processes()

    @property
    def needs_index(self) -> bool:
        """True if the method needs the positions of the samples in the training set."""
        return True in [part.needs_index for part in self._parts]

    @property
    def needs_predictions(self) -> bool:
        """True if end_epoch needs predictions for the whole training set."""
        return any(part.needs_predictions for part in self._parts)

    @property
    def selections(self) -> list[Select]:
        """The parts that keep a share of each batch."""
        return [part for part in self._parts if isinstance(part, Select)]

    @property
    def active_from(self) -> int:
        """First epoch, counted from 0 in each round, in which all parts have an effect."""
        return max(part.active_from for part in self._parts)

    def parts(self) -> tuple[Part, ...]:
        """Return all parts, including those inside other parts."""
        return self._parts

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        index: Tensor | None = None,
        *,
        model: nn.Module | None = None,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch.

        Args:
            logits: (B, K), or (N, B, K) for methods with several networks.
            labels: (B), observed labels.
            index: (B), positions of the samples in the training set, for methods that store values per sample.
            model, inputs: for methods with a regularizer.
        """
        if not self.started:
            raise ValueError(
                "no epoch has started: use `for epoch in loss_fn.epochs(30):`, or call loss_fn.start_epoch(epoch); "
                "with Lightning, pass callbacks=[SieveCallback(loss_fn)] to the Trainer"
            )
        check_types(logits, labels, index)
        self._check_shapes(logits, labels, index)
        learning = self.training and torch.is_grad_enabled()
        eager = not torch.compiler.is_compiling()
        if eager and not (learning and self.monitor.epoch == self.current_epoch):
            self._check_first_batch(logits, labels, index, learning)
        if self.regularizer is not None and learning and (model is None or inputs is None):
            raise ValueError("this method needs the model: pass model= and inputs=")
        own, given = labels.shape[0], logits
        if learning and self.processes.count > 1:
            given, labels, index = self._union(logits if logits.dim() == 3 else logits.unsqueeze(0), labels, index)
        if learning and eager:
            self.monitor.check_batch_size(labels.shape[0], self._warn_below)
        try:
            step = self._step(given, labels, index)
            if learning:
                self.observe(step, labels, index)
        except (IndexError, RuntimeError):
            self._check_values(given, labels, index)  # names the label or position that torch has refused
            raise
        self.monitor.last_decision = step.decision  # setting an attribute of a module is slow
        if self.regularizer is None or model is None or inputs is None or not learning:
            return step.loss
        extra: Tensor = self.regularizer(model, inputs, logits)  # a mean over the samples of this process
        return step.loss + extra * (self.processes.count * own / len(labels))

    def step(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Step:
        """Return the loss and the decision without updating the state. Call `observe` once the step is applied."""
        self._check_shapes(logits, labels, index)
        return self._step(logits, labels, index)

    def _union(self, logits: Tensor, labels: Tensor, index: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the batch of all processes; a sample that several of them have is used once if it has an index."""
        logits, labels, index = union_batch(logits, labels, index, self.processes.rank)
        if not self.needs_index or index is None:
            return logits, labels, index
        first = first_places(index)  # a DistributedSampler repeats samples to fill the last batch
        self.monitor.check_repeats(len(index) - len(first))
        return logits[:, first], labels[first], index[first]

    def _step(self, logits: Tensor, labels: Tensor, index: Tensor | None) -> Step:
        logits, labels = logits.float(), labels.long()  # (N, B, K) or (B, K), (B)
        measure = self.loss  # reading a module of a module is slow
        logs = measure.log_softmax(logits)
        with torch.no_grad():
            probs = logits.softmax(-1) if logs is None else (logs * LOG2_E).exp2_()  # exp_ is slower
            probs = probs.view(self.networks, *labels.shape, logits.shape[-1])
            finite = self._uses_probs and logs is not None and host_decides(logs) and _are_finite(probs)
            decision = self.decide(probs, labels, index)
        predicted = Predictions(logits, logs, probs, finite)
        all_kept = self._keeps_all(probs)
        loss, losses = measure.total(predicted, *decision, labels, index, all_kept or self._only_selects, all_kept)
        return Step(loss, losses, probs, decision, finite)

    def decide(self, probs: Tensor, labels: Tensor, index: Tensor | None = None) -> Decision:
        """Return the target and the weight of each sample: (N, B, K), (B), (B)."""
        target = labels.expand(probs.shape[:-1])
        weights = [part(probs, labels, index) for part in self._weighing]
        weight = math.prod(weights[1:], start=weights[0]) if weights else torch.ones_like(probs[..., 0])
        if self.relabel is not None:
            target, weight = self.relabel(probs, labels, index, weight)
        return Decision(target, weight)

    def _keeps_all(self, probs: Tensor) -> bool:
        """Return True if all weights of a batch are known to be 1."""
        return self._keeps_selection and False not in [part.keeps_all(probs) for part in self._weighing]

    def num_kept(self, count: int) -> int | None:
        """Return how many of `count` samples a network learns from in this epoch; None if predictions decide this.

        Raises ValueError if the method does not learn from a selection alone, which a second pass needs.
        """
        if not self._weighing and self.relabel is None and self.regularizer is None:
            return count
        if len(self._weighing) != 1 or not self._keeps_selection or self.regularizer is not None:
            raise ValueError("a second pass over the kept samples needs a method that only selects samples")
        (select,) = self._weighing
        if not isinstance(select, Select) or select.joint:
            raise ValueError("a second pass over the kept samples needs networks with a selection of their own")
        number = select.num_kept(count)
        known = select.num_kept_is_fixed and (self.relabel is None or number == count)
        return number if known else None

    def observe(self, step: Step, labels: Tensor, index: Tensor | None = None, applied: Tensor | None = None) -> None:
        """Update the state of every part after a step. `applied` (N) is False for networks whose update was undone."""
        if not self._observing:
            return
        with torch.no_grad():
            valid = _valid(step, applied)
            for part in self._observing:
                part.observe(step.probs, labels.long(), index, valid)

    def parameter_groups(self) -> list[dict[str, object]]:
        """Return the method's own parameters (SOP) as optimizer groups without momentum or weight decay."""
        return [group for part in self._parts for group in part.parameter_groups()]

    @torch.no_grad()
    def start_round(self, number: int) -> None:
        """Reset the state for newly initialized networks. Only methods with several rounds need this call."""
        for part in self._parts:
            part.start_round(number)
        self.epoch.fill_(NO_EPOCH)
        self.current_epoch, self.started = None, False

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """Start an epoch, counted from 0. Ends the previous one if needed; does nothing if it is the current one."""
        if operator.index(epoch) < 0:
            raise ValueError(f"epochs are counted from 0, got {epoch}")
        self.monitor.check_order(self.current_epoch, epoch)
        if int(self.epoch) not in (epoch, NO_EPOCH):
            self.end_epoch()
        for part in self._parts:
            part.start_epoch(epoch)
        self.epoch.fill_(epoch)
        self.current_epoch, self.started = epoch, True
        self._warn_below = max((part.warn_below for part in self.selections), default=0)

    @torch.no_grad()
    def end_epoch(self, predict: Predict | None = None) -> None:
        """End an epoch. Only methods with `needs_predictions` need this call.

        `predict()` yields batches of probabilities in eval mode, (B, K) or (N, B, K), labels (B) and index (B), until
        every training sample has appeared once. Of several processes, each may predict a share of the samples.
        """
        for part in self._parts:
            part.end_epoch(predict and self._predictions(predict))
        self.epoch.fill_(NO_EPOCH)

    @torch.no_grad()
    def end_round(self, predict: Predict) -> None:
        """End a round: the networks are trained. Only methods with several rounds need this call."""
        for part in self._parts:
            part.end_round(self._predictions(predict))

    def tables(self) -> dict[str, Tensor]:
        """Return what the parts have estimated about the labels, such as the penalty labels (N, K, K)."""
        return {name: table for part in self._parts for name, table in part.tables().items()}

    def _predictions(self, predict: Predict) -> Predict:
        """Return a function that yields the predictions of all processes, with a network axis."""
        return partial(gather_predictions, partial(_with_network_axis, predict), self.processes)

    def _check_shapes(self, logits: Tensor, labels: Tensor, index: Tensor | None) -> None:
        """Raise ValueError if the shapes do not fit."""
        if index is None and self.needs_index:
            raise ValueError("this method stores values per sample: pass index=, their positions in the training set")
        if labels.is_floating_point():
            raise ValueError(f"labels must be integers, got {labels.dtype}")
        shape = logits.shape
        one = self.networks == 1 and len(shape) == 2 and shape[:1] == labels.shape
        if not one and (len(shape) != 3 or shape[:2] != (self.networks, *labels.shape)):
            expected = "(B, K)" if self.networks == 1 else f"({self.networks}, B, K)"
            raise ValueError(f"logits must be {expected} and labels (B), got {tuple(shape)} and {tuple(labels.shape)}")
        if index is not None and index.shape != labels.shape:
            raise ValueError(
                f"index must be (B) like the labels, got {tuple(index.shape)}, labels {tuple(labels.shape)}"
            )
        if shape[-1] == 1:
            raise ValueError("logits for two classes must be (B, 2), got one value per sample")
        for part in self._parts:
            if part.num_classes not in (0, shape[-1]):
                raise ValueError(f"the method was made for {part.num_classes} classes, the logits have {shape[-1]}")

    def _check_first_batch(self, logits: Tensor, labels: Tensor, index: Tensor | None, learning: bool) -> None:
        """Raise or warn if the loop makes a mistake; called in the first batch of an epoch and in validation."""
        self._check_values(logits, labels, index)
        if learning:
            self.monitor.check_first_batch(self.current_epoch, self, logits)
        elif not self.training:
            self.monitor.check_mode(logits)

    def _check_values(self, logits: Tensor, labels: Tensor, index: Tensor | None) -> None:
        """Raise ValueError for a label or a position that does not exist; on a CPU only, because a GPU would wait."""
        if labels.device.type == "cpu":
            check_labels(labels, logits.shape[-1])
            if index is not None and (counts := {part.num_samples for part in self._parts if part.num_samples}):
                check_index(index, min(counts))


def _valid(step: Step, applied: Tensor | None) -> Tensor:
    """Return which predictions (N, B) are finite and belong to a network (N) that was updated.

    If it is not known which were updated, these are the networks with a finite loss.
    """
    if step.finite and applied is None and math.isfinite(step.loss.item()):
        return torch.ones(step.probs.shape[:-1], dtype=torch.bool)
    sound = step.probs.select(-1, 0)  # a softmax is finite or NaN in all classes
    if applied is None:
        sound = torch.add(sound, step.losses.unsqueeze(-1), alpha=0)  # NaN if the loss is not finite
        return sound == sound
    return (sound == sound) & applied.unsqueeze(-1)


def _are_finite(probs: Tensor) -> bool:
    """Return True if predictions (N, B, K) are finite: a softmax is finite or NaN in all classes. Reads the values."""
    return not math.isnan(probs.select(-1, 0).sum().item())


def constant_lr(epoch: int) -> float:
    """Return 1, the factor of the learning rate of methods that do not change it."""
    return 1.0


def _resume_epoch(method: Method, keys: object) -> None:
    """Continue the epoch in which a loaded state was saved."""
    method.current_epoch, method.started = None, False
    if (epoch := int(method.epoch)) != NO_EPOCH:
        method.start_epoch(epoch)


def _with_network_axis(predict: Predict) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the predictions of `predict` with a network axis: (B, K) becomes (1, B, K)."""
    for probs, labels, index in predict():
        yield probs.unsqueeze(0) if probs.dim() == 2 else probs, labels, index
