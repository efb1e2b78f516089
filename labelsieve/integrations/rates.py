"""Learning rates that are scaled for the length of a step, so that no scheduler sees it."""

from torch.optim import Optimizer

from labelsieve.core.method import Method


class ScaledRates:
    """Multiplies the learning rates by a method's lr_scale just before an optimizer's step, and puts them back."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.before: list[tuple[dict[str, object], object]] = []  # parameter groups and their rates

    def apply(self, optimizer: Optimizer, *others: object) -> None:
        """Once a step, although the hooks of an optimizer whose step calls its parent's are called twice."""
        if self.before:
            return
        scale = self.method.lr_scale(self.method.under_way or 0)
        self.before = [(group, group["lr"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * scale

    def put_back(self, *others: object) -> None:
        """Also where a step was cut off; a second call changes nothing."""
        for group, rate in self.before:
            group["lr"] = rate
        self.before = []
