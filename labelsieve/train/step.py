"""Learner: one training step. All shapes are fixed and nothing is read back from the device."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from labelsieve.core.method import Method, Step
from labelsieve.train.settings import Training


class Outcome(NamedTuple):
    """A step, and for which networks it was finite: one that is not changes nothing."""

    step: Step
    finite: Tensor  # (N) bool


class Learner:
    """All that a step changes: the networks, their optimizers and what the method remembers.

    `networks` has one child per network and gives logits (N, B, K).
    """

    def __init__(self, networks: nn.Module, method: Method, training: Training) -> None:
        self.networks = networks
        self.method = method
        self.training = training
        self.optimizers = [sgd(network, training) for network in networks.children()]
        self.buffers = [flat_buffers(network) for network in networks.children()]
        groups = method.parameter_groups()
        self.own_optimizer = torch.optim.SGD(groups, lr=0.0, fused=True) if groups else None

    def step(self, inputs: Tensor, labels: Tensor, index: Tensor) -> Outcome:
        """Forward, decide, backward, update, remember."""
        before = [[flat.clone() for flat in buffers] for buffers in self.buffers]
        if self.kept(len(labels)) < len(labels):
            step = self._decided_before(inputs, labels, index, before)
            step.loss.backward()
        else:
            logits = self._logits(inputs)
            step = self.method.step(logits, labels, index)
            self._loss(step, inputs, logits).backward()
        finite = step.losses.detach().isfinite() & self._finite_gradients()
        self._update(finite, step.decision.active, before)
        self.method.observe(step, labels, index, finite)
        return Outcome(step, finite)

    def kept(self, count: int) -> int:
        """Of so many samples, how many go through the pass that is learnt from."""
        return self.method.kept(count) if self.training.forward == "second" else count

    def set_lr(self, lr: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(lr)
                else:
                    group["lr"] = lr

    def forget_gradients(self) -> None:
        for optimizer in (*self.optimizers, *([self.own_optimizer] if self.own_optimizer else [])):
            optimizer.zero_grad(set_to_none=True)

    def _logits(self, inputs: Tensor) -> Tensor:
        with self.training.autocast(inputs.device):
            logits: Tensor = self.networks(inputs)
        return logits

    def _decided_before(self, inputs: Tensor, labels: Tensor, index: Tensor, before: list[list[Tensor]]) -> Step:
        """Decide on one pass, whose batch-norm statistics do not count, and learn from a second over what is kept."""
        with torch.no_grad():
            probs = self._logits(inputs).float().softmax(-1)
            decision = self.method.decide(probs, labels, index)
            for buffers, saved in zip(self.buffers, before, strict=True):
                for now, then in zip(buffers, saved, strict=True):
                    now.copy_(then)
        chosen = decision.weight[0].argsort(descending=True, stable=True)[: self.kept(len(labels))]
        logits = self._logits(inputs[chosen]).float()
        target, weight = decision.target[:, chosen], decision.weight[:, chosen]
        losses = self.method.loss(logits, target, weight, labels[chosen], index[chosen])
        return Step(losses.sum(), losses, probs, decision)

    def _loss(self, step: Step, inputs: Tensor, logits: Tensor) -> Tensor:
        if self.method.regularizer is None:
            return step.loss
        with self.training.autocast(inputs.device):
            extra: Tensor = self.method.regularizer(self.networks, inputs, logits)
        return step.loss + extra

    def _finite_gradients(self) -> Tensor:
        return torch.stack([all_finite(network) for network in self.networks.children()])

    def _update(self, finite: Tensor, active: Tensor, before: list[list[Tensor]]) -> None:
        """Step the optimizers of networks that have something finite to learn; leave the others as they were."""
        for learns, optimizer, buffers, saved in zip(
            finite & active, self.optimizers, self.buffers, before, strict=True
        ):
            guarded_step(optimizer, learns)
            for now, then in zip(buffers, saved, strict=True):
                now.copy_(torch.where(learns, now, then))
        if self.own_optimizer is not None:
            guarded_step(self.own_optimizer, finite.all())


def all_finite(network: nn.Module) -> Tensor:
    """Whether every gradient is finite, by the one kernel that loss scaling uses for it."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    found = gradients[0].new_zeros(1)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, torch.ones_like(found))
    return found[0] == 0


def guarded_step(optimizer: torch.optim.SGD, learns: Tensor) -> None:
    """A step that does nothing, not even decay, where `learns` is False."""
    optimizer.found_inf = (~learns).float()  # type: ignore[attr-defined]  # read by the fused kernel
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def sgd(network: nn.Module, training: Training) -> torch.optim.SGD:
    """Nesterov SGD whose momentum exists from the start, so that every step is alike."""
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
    for parameter in parameters:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def flat_buffers(network: nn.Module) -> list[Tensor]:
    """Make the buffers of a network views of one tensor per type, so that one copy saves all batch-norm statistics."""
    owners = [(m, name, b) for m in network.modules() for name, b in m.named_buffers(recurse=False)]
    flats = []
    for dtype in dict.fromkeys(buffer.dtype for *_, buffer in owners):
        same = [(module, name, buffer) for module, name, buffer in owners if buffer.dtype == dtype]
        flat = torch.cat([buffer.flatten() for *_, buffer in same])
        for (module, name, buffer), part in zip(same, flat.split([b.numel() for *_, b in same]), strict=True):
            setattr(module, name, part.view_as(buffer))
        flats.append(flat)
    return flats
