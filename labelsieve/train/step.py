"""Learner: one training step with fixed shapes that reads nothing back from the device."""

import importlib
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labelsieve.core.method import Decision, Method, Step
from labelsieve.core.processes import Processes
from labelsieve.runtime import join_adjacent
from labelsieve.train.settings import ONE_PROCESS, Training
from labelsieve.train.share import DistributedNetworks

MOST_PIECES = 4  # tensors of gradients of a network that are updated by kernels


class Outcome(NamedTuple):
    """A step and the networks for which it was finite; the others are unchanged."""

    step: Step
    finite: Tensor  # (N) bool


class Selection(NamedTuple):
    """The decision of a first pass; a second one learns from the kept samples."""

    probs: Tensor  # (N, B, K)
    decision: Decision
    order: Tensor  # (N, B) places in the batch, those of kept samples first
    number: Tensor  # samples that the network that keeps most learns from


class Learner:
    """Everything that a step changes: the networks, their optimizers and the state of the method."""

    def __init__(
        self, networks: nn.Module, method: Method, training: Training, processes: Processes = ONE_PROCESS
    ) -> None:
        self.networks = networks
        self.method = method
        self.training = training
        self.processes = processes
        self.parameters = [
            _flatten_parameters(network, training) if processes.count == 1 else None for network in networks.children()
        ]
        self.distributed_networks = DistributedNetworks(networks, processes)
        self.optimizers = [_make_sgd(network, training) for network in networks.children()]
        self.buffers = [_flatten_buffers(network) for network in networks.children()]
        groups = method.parameter_groups()
        self.own_optimizer = torch.optim.SGD(groups, lr=0.0, fused=True) if groups else None

    def step(self, inputs: Tensor, labels: Tensor, index: Tensor) -> Outcome:
        """Learn from a batch: forward, decide, backward, update the networks and the state of the method.

        Of several processes, each has the inputs of its rows of the batch, and the labels and index of the whole batch.
        """
        if self.num_learned(len(labels)) != len(labels):
            selection = self.select(inputs, labels, index)
            return self.learn(inputs, labels, index, selection, self.num_learned(len(labels)) or int(selection.number))
        before = self._copy_buffers()
        kernels: Any = step_kernels(inputs.device) if self.processes.count == 1 else None
        logits = self._logits(inputs, len(labels))
        fused = kernels is not None and kernels.decides(self.method, *logits.shape[1:])
        if fused:
            step, gradient = kernels.decide(self.method, logits, labels)
            logits.backward(gradient)
        else:
            step = self.method.step(self.processes.union(logits.float(), len(labels)), labels, index)
            self._loss(step, inputs, logits).backward()
        finite = self._update(step, before)
        if fused:
            kernels.observe(self.method, step, labels, finite)
        else:
            self.method.observe(step, labels, index, finite)
        return Outcome(step, finite)

    def num_learned(self, count: int) -> int | None:
        """Return how many of `count` samples go through the pass that is learnt from; None if predictions decide this.

        They are at least two: batch-norm cannot normalise one. Samples that are not kept have weight 0 in the loss.
        """
        number = self.method.num_kept(count) if self.training.forward == "second" else count
        return number if number is None else min(count, max(2, number))

    @torch.no_grad()
    def select(self, inputs: Tensor, labels: Tensor, index: Tensor) -> Selection:
        """Select samples in a first pass, which changes nothing: its batch-norm statistics are discarded."""
        before = self._copy_buffers()
        probs = self._logits(inputs, len(inputs)).float().softmax(-1)
        for buffers, saved in zip(self.buffers, before, strict=True):
            for now, then in zip(buffers, saved, strict=True):
                now.copy_(then)
        decision = self.method.decide(probs, labels, index)
        order = decision.weight.argsort(dim=-1, descending=True, stable=True)
        number = (decision.weight > 0).sum(-1).max().clamp(min=min(2, len(labels)))
        return Selection(probs, decision, order, number)

    def learn(self, inputs: Tensor, labels: Tensor, index: Tensor, selection: Selection, number: int) -> Outcome:
        """Learn from a second pass of each network over `number` samples, the kept ones first."""
        before = self._copy_buffers()
        losses = []
        for place, network in enumerate(self.networks.children()):
            rows = selection.order[place, :number]
            with self.training.autocast(inputs.device):
                logits = network(inputs[rows]).float().unsqueeze(0)
            target, weight = (values[place, rows].unsqueeze(0) for values in selection.decision)
            losses.append(self.method.loss(logits, target, weight, labels[rows], index[rows]))
        of_each = torch.cat(losses)
        step = Step(of_each.sum(), of_each, selection.probs, selection.decision)
        step.loss.backward()
        finite = self._update(step, before)
        self.method.observe(step, labels, index, finite)
        return Outcome(step, finite)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the networks."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(lr)
                else:
                    group["lr"] = lr

    def clear_gradients(self) -> None:
        """Delete all gradients."""
        for optimizer in (*self.optimizers, *([self.own_optimizer] if self.own_optimizer else [])):
            optimizer.zero_grad(set_to_none=True)

    def _logits(self, inputs: Tensor, total: int) -> Tensor:
        """Return the logits of the inputs, which are rows of a batch of `total` samples."""
        with self.training.autocast(inputs.device):
            return self.distributed_networks(inputs, total)

    def _copy_buffers(self) -> list[list[Tensor]]:
        return [[flat.clone() for flat in buffers] for buffers in self.buffers]

    def _loss(self, step: Step, inputs: Tensor, logits: Tensor) -> Tensor:
        if self.method.regularizer is None:
            return step.loss
        with self.training.autocast(inputs.device):
            extra: Tensor = self.method.regularizer(self.networks, inputs, logits)
        return step.loss + extra * self.processes.mean_factor(step.probs.shape[1])

    def _update(self, step: Step, before: list[list[Tensor]]) -> Tensor:
        """Update the networks that have finite gradients and a sample to learn from; restore the others.

        Returns which networks have finite losses and gradients, (N).
        """
        kernels, gradients = step_kernels(step.losses.device), self._gradients()
        finite: Tensor
        if kernels is not None and gradients is not None:
            momenta = [_momenta(optimizer) for optimizer in self.optimizers]
            finite, learning = kernels.update(self.parameters, gradients, momenta, step, self.optimizers)
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
        else:
            sound = torch.stack([_gradients_are_finite(network) for network in self.networks.children()])
            finite = step.losses.detach().isfinite() & sound
            learning = finite & step.decision.active
            for learns, optimizer in zip(learning, self.optimizers, strict=True):
                _conditional_step(optimizer, learns)
        for learns, buffers, saved in zip(learning, self.buffers, before, strict=True):
            for now, then in zip(buffers, saved, strict=True):
                if kernels is not None:
                    kernels.restore(now, then, learns)
                else:
                    now.copy_(torch.where(learns, now, then))
        if self.own_optimizer is not None:
            _conditional_step(self.own_optimizer, finite.all())
        return finite

    def _gradients(self) -> list[list[Tensor]] | None:
        """Return the gradients of each network as a few flat tensors, or None if they or its parameters are not."""
        found: list[list[Tensor]] = []
        for flat, optimizer in zip(self.parameters, self.optimizers, strict=True):
            gradients = [p.grad for p in optimizer.param_groups[0]["params"]]
            if flat is None or any(gradient is None for gradient in gradients):
                return None
            found.append(join_adjacent(gradients))
            if len(found[-1]) > MOST_PIECES:
                return None
        return found


@cache
def _kernels() -> Any:
    return importlib.import_module("labelsieve.train.kernels") if find_spec("triton") else None


def step_kernels(device: torch.device) -> Any:
    """Return the module of kernels for a training step, or None on a CPU and where Triton is not installed."""
    return _kernels() if device.type == "cuda" else None


def _gradients_are_finite(network: nn.Module) -> Tensor:
    """Return whether all gradients are finite, by the kernel that loss scaling uses."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    found = gradients[0].new_zeros(1)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, torch.ones_like(found))
    return found[0] == 0


def _conditional_step(optimizer: torch.optim.SGD, condition: Tensor) -> None:
    """Take an optimizer step if the condition holds; else change nothing, not even by weight decay."""
    optimizer.found_inf = (~condition).float()  # type: ignore[attr-defined]  # read by the fused kernel
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _make_sgd(network: nn.Module, training: Training) -> torch.optim.SGD:
    """Return an SGD optimizer whose momentum buffers exist from the start, so that all steps do the same work."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    on_gpu = parameters[0].is_cuda
    optimizer = torch.optim.SGD(
        parameters,
        lr=torch.tensor(training.lr, device=parameters[0].device) if on_gpu else training.lr,  # graphs read a tensor
        momentum=training.momentum,
        nesterov=training.nesterov and training.momentum > 0,
        weight_decay=training.weight_decay,
        fused=True,
    )
    if len(join_adjacent(parameters)) == 1:
        momenta = torch.zeros_like(join_adjacent(parameters)[0]).split([p.numel() for p in parameters])
    else:
        momenta = tuple(torch.zeros_like(parameter) for parameter in parameters)
    for parameter, momentum in zip(parameters, momenta, strict=True):
        optimizer.state[parameter]["momentum_buffer"] = momentum.view_as(parameter)
    return optimizer


def _momenta(optimizer: torch.optim.SGD) -> Tensor:
    """Return the momentum buffers of a network whose parameters are one tensor, as one tensor."""
    (flat,) = join_adjacent([optimizer.state[p]["momentum_buffer"] for p in optimizer.param_groups[0]["params"]])
    return flat


def _flattens(network: nn.Module, training: Training) -> bool:
    """Return whether fused kernels compute the gradients of a network."""
    on_gpu = next(network.parameters()).is_cuda
    return on_gpu and training.precision == "bf16" and bool(getattr(network, "fused", False))


def _flatten_parameters(network: nn.Module, training: Training) -> Tensor | None:
    """Make the parameters of a network with fused kernels views of one tensor, which one kernel updates; return it."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    if not _flattens(network, training):
        return None
    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.data = part.view_as(parameter)
    return flat


def _flatten_buffers(network: nn.Module) -> list[Tensor]:
    """Make the buffers of a network views of one tensor per dtype, which one copy saves, and return these tensors."""
    owners = [(m, name, b) for m in network.modules() for name, b in m.named_buffers(recurse=False)]
    flats = []
    for dtype in dict.fromkeys(buffer.dtype for *_, buffer in owners):
        same = [(module, name, buffer) for module, name, buffer in owners if buffer.dtype == dtype]
        flat = torch.cat([buffer.flatten() for *_, buffer in same])
        for (module, name, buffer), part in zip(same, flat.split([b.numel() for *_, b in same]), strict=True):
            setattr(module, name, part.view_as(buffer))
        flats.append(flat)
    return flats
