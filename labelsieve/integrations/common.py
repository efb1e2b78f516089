"""What would silently go wrong in a training, refused in one line before it begins."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import Dataset, IterableDataset

from labelsieve.core.method import Method
from labelsieve.errors import InputError


def refuse_long_warmup(method: Method, epochs: float) -> None:
    """Refuse a training that ends before the method begins."""
    if 0 < epochs <= method.active_from:
        raise InputError(
            f"the warm-up of {method.active_from} epochs is not shorter than the training of {epochs}: nothing would "
            "ever be selected or corrected; train longer, or make the method with a smaller Problem(warmup=...)"
        )


def say_if_it_never_began(method: Method) -> None:
    """Say that a training has ended before the method did anything, which nobody could know before."""
    if method.current_epoch is not None and method.current_epoch < method.active_from:
        warnings.warn(
            f"the training ended in the warm-up, in epoch {method.current_epoch} of {method.active_from}, both counted "
            "from 0: nothing was ever selected or corrected",
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
    shares = [float(part.kept_share) for part in method.selections]
    return min(shares) if shares else None


INDEX = "labelsieve_index"  # the column of the positions


class Indexed(Dataset[dict[str, Any]]):
    """A dataset of dicts that tells the position of each sample."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return {**self.samples[position], INDEX: position}

    def __getitems__(self, positions: list[int]) -> list[dict[str, Any]]:
        """A batch at once, where the dataset can: datasets.Dataset reads it much faster than one by one."""
        if not hasattr(self.samples, "__getitems__"):
            return [self[position] for position in positions]
        samples = self.samples.__getitems__(positions)
        return [{**sample, INDEX: position} for sample, position in zip(samples, positions, strict=True)]


def indexed(dataset: Any, method: Method) -> Indexed:
    """A training set with positions, where it has any and the method was made for as many."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError("this method remembers single samples: it needs a train_dataset with a length and positions")
    for part in method.parts():
        if part.num_samples not in (0, len(dataset)):
            raise InputError(
                f"the method was made for {part.num_samples} samples, train_dataset has {len(dataset)}: "
                f"say Problem(num_samples={len(dataset)})"
            )
    return Indexed(dataset)


class ScaledRates:
    """Multiplies the learning rates by a method's lr_scale just before an optimizer's step, and puts them back."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.before: list[tuple[dict[str, object], object]] = []  # parameter groups and their rates

    def apply(self, optimizer: Optimizer, *others: object) -> None:
        """Once a step, although the hooks of an optimizer whose step calls its parent's are called twice."""
        if self.before:
            return
        scale = self.method.lr_scale(self.method.current_epoch or 0)
        self.before = [(group, group["lr"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * scale

    def put_back(self, *others: object) -> None:
        """Also where a step was cut off; a second call changes nothing."""
        for group, rate in self.before:
            group["lr"] = rate
        self.before = []
