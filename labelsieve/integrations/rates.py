"""Learning rates that are scaled for the length of a step, so that no scheduler sees it."""

from collections.abc import Callable

from torch.optim import Optimizer


class ScaledRates:
    """Multiplies the learning rates just before an optimizer's step and puts them back after it."""

    def __init__(self, scale: Callable[[], float]) -> None:
        self.scale = scale
        self.before: list[tuple[dict[str, object], object]] = []  # parameter groups and their rates

    def apply(self, optimizer: Optimizer, *others: object) -> None:
        """Once a step, although the hooks of an optimizer whose step calls its parent's are called twice."""
        if self.before:
            return
        self.before = [(group, group["lr"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self.scale()

    def put_back(self, *others: object) -> None:
        """Also where a step was cut off; a second call changes nothing."""
        for group, rate in self.before:
            group["lr"] = rate
        self.before = []
