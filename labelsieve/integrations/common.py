"""Code shared by the adapters: checks before a training, and learning-rate scaling.

The checks raise InputError where a training would run but silently do something else than the method requires.
"""

import warnings

from torch.optim import Optimizer

from labelsieve.core.method import Method
from labelsieve.errors import InputError


def check_method(method: object) -> None:
    """Raise InputError if the argument is not a method."""
    if not isinstance(method, Method):
        raise InputError(f"method must be made with labelsieve.make(name, problem), got {type(method).__name__}")


def check_warmup(method: Method, epochs: float) -> None:
    """Raise InputError if the training ends before the warm-up of the method does."""
    if 0 < epochs <= method.active_from:
        raise InputError(
            f"the warm-up of {method.active_from} epochs is not shorter than the training of {epochs}, so no sample "
            "would be selected or corrected; train longer, or make the method with a smaller Problem(warmup=...)"
        )


def warn_if_warmup_never_ended(method: Method) -> None:
    """Warn after a training that ended during the warm-up; for trainings whose length is not known in advance."""
    if method.current_epoch is not None and method.current_epoch < method.active_from:
        warnings.warn(
            f"the training ended during the warm-up, in epoch {method.current_epoch} of {method.active_from} (counted "
            "from 0): no sample was selected or corrected",
            stacklevel=2,
        )


def check_rounds(method: Method) -> None:
    """Raise InputError if the method trains its networks several times."""
    if method.rounds > 1:
        raise InputError(
            f"this method trains the network {method.rounds} times from the start: make it with rounds=1, "
            "or use `labelsieve train`"
        )


def check_drop_last(method: Method, drop_last: bool) -> None:
    """Raise InputError if the method needs complete batches and the last one may be incomplete."""
    if method.drop_last and not drop_last:
        raise InputError(
            "this method needs complete batches: the data loader must drop an incomplete last batch "
            "(drop_last=True; dataloader_drop_last=True in TrainingArguments)"
        )


class LearningRateScaler:
    """Multiplies the learning rates by a method's lr_scale for one optimizer step, then restores them."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.original: list[tuple[dict[str, object], object]] = []  # parameter groups and their learning rates

    def apply(self, optimizer: Optimizer, *others: object) -> None:
        """Scale the learning rates; a second call for the same step, by the hook of a parent class, has no effect."""
        if self.original:
            return
        scale = self.method.lr_scale(self.method.current_epoch or 0)
        self.original = [(group, group["lr"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * scale

    def restore(self, *others: object) -> None:
        """Restore the learning rates, also after an interrupted step; a second call has no effect."""
        for group, rate in self.original:
            group["lr"] = rate
        self.original = []
