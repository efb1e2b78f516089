"""What would silently go wrong in a training, refused in one line before it begins."""

import warnings
from collections.abc import Iterable

import torch
from torch.optim import Optimizer

from labelsieve.core.method import Method
from labelsieve.errors import InputError


def refuse_long_warmup(method: Method, epochs: float) -> None:
    """Refuse a training that ends before the method begins."""
    if 0 < epochs <= method.begins:
        raise InputError(
            f"the warm-up of {method.begins} epochs is not shorter than the training of {epochs}: nothing would ever "
            "be selected or corrected; train longer, or make the method with a smaller Problem(warmup=...)"
        )


def say_if_it_never_began(method: Method) -> None:
    """Say that a training has ended before the method did anything, which nobody could know before."""
    if method.under_way is not None and method.under_way < method.begins:
        warnings.warn(
            f"the training ended in the warm-up, in epoch {method.under_way} of {method.begins}, both counted from 0: "
            "nothing was ever selected or corrected",
            stacklevel=2,
        )


def refuse_no_method(method: object) -> None:
    if not isinstance(method, Method):
        raise InputError(f"method must be one that labelsieve.make(name, problem) gives, got {type(method).__name__}")


def refuse_rounds(method: Method) -> None:
    """Refuse methods that train their networks several times: an adapter trains once."""
    if method.rounds > 1:
        raise InputError(
            f"this method trains the network {method.rounds} times from the start: make it with rounds=1, "
            "or use `labelsieve train`"
        )


def refuse_unlearnt(method: Method, optimizers: Iterable[Optimizer]) -> None:
    """Refuse optimizers that do not learn the method's own parameters as they are meant to be learnt."""
    own = set(method.parameters())
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            inside = own.intersection(group["params"])
            if inside and not isinstance(optimizer, torch.optim.SGD):
                raise InputError(
                    "the method's own parameters are learnt by plain gradient descent: give method.parameter_groups() "
                    f"to torch.optim.SGD, not to {type(optimizer).__name__}"
                )
            if inside == set(group["params"]):
                own -= inside
    if own:
        raise InputError(
            "no optimizer has the method's own parameters in groups of their own: give it method.parameter_groups() "
            "beside the parameters of the network"
        )


def refuse_incomplete_batches(method: Method, drop_last: bool) -> None:
    """Refuse an incomplete last batch where the method cannot learn from one."""
    if method.drop_last and not drop_last:
        raise InputError(
            "this method learns from whole batches only: the data loader must leave an incomplete last one out "
            "(drop_last=True; dataloader_drop_last=True in TrainingArguments)"
        )


def least_kept_share(method: Method) -> float | None:
    """The share of each batch that is kept in this epoch, without asking the device; None where nothing selects."""
    shares = [float(part.kept_share) for part in method.selecting]
    return min(shares) if shares else None
