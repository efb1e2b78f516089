"""Code shared by the adapters: checks before a training, the kept share, and learning-rate scaling.

The checks raise InputError where a training would run but silently do something else than the method requires.
"""

from torch.optim import Optimizer

from labelsieve.core.method import Method
from labelsieve.errors import InputError, warn_user
from labelsieve.loss import Last, SieveLoss


def check_loss(loss_fn: object) -> None:
    """Raise InputError if the argument is not a SieveLoss."""
    if not isinstance(loss_fn, SieveLoss):
        raise InputError(
            "loss_fn must be a labelsieve.SieveLoss(name, num_classes=..., noise_rate=...), got "
            f"{type(loss_fn).__name__}"
        )


def kept_share(method: Method) -> dict[str, float]:
    """Return the share of samples that the method is set to keep in this epoch, to be logged; nothing if it keeps all.

    If it is not known in advance, it is that of the last batch, as in `loss_fn.last.kept_share`.
    """
    if not method.selections:
        return {}
    if method.relabel is None and len(method.weigh) == 1 and method.selections[0].num_kept_is_fixed:
        share = float(method.selections[0].kept_share)
    else:  # relabelled samples are kept, too
        share = float(Last(method.monitor.last_decision).kept_share.min())
    return {"labelsieve/kept_share": share}


def warn_if_warmup_never_ended(method: Method) -> None:
    """Warn after a training that ended during the warm-up; for trainings whose length is not known in advance."""
    if method.current_epoch is not None and method.current_epoch < method.active_from:
        warn_user(
            f"the training ended during the warm-up, in epoch {method.current_epoch} of {method.active_from} (counted "
            "from 0): no sample was selected or corrected"
        )


def check_rounds(method: Method) -> None:
    """Raise InputError if the method trains its networks several times."""
    if method.num_rounds > 1:
        raise InputError(
            f"this method trains the network {method.num_rounds} times from the start: make it with rounds=1, "
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
