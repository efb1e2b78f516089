"""Problem, the registry of methods, and the selection part that recipes share.

A recipe is a function that takes a `Problem` and a criterion and returns a `Method`. Its keyword-only arguments are the
options of the method, and the first paragraph of its docstring is the summary shown by `labelsieve methods`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import TypeVar

from labelsieve.core.criteria import Criterion
from labelsieve.core.method import Method
from labelsieve.core.part import Weigh
from labelsieve.core.select import Align, Select, constant_share, exact_fraction, kept_share

MakeCriterion = Callable[[int, int], Criterion]  # (classes, networks) -> criterion, e.g. partial(CriteriaALL, lam=2)
Recipe = TypeVar("Recipe", bound=Callable[..., Method])

METHODS: dict[str, Callable[..., Method]] = {}  # recipes by name, filled by `register`
GUARDS = {"align": True, "floor": 0.5}  # values of the options that keep classes from being given up


def register(name: str) -> Callable[[Recipe], Recipe]:
    """Return a decorator that adds a recipe to METHODS."""

    def add(recipe: Recipe) -> Recipe:
        if name in METHODS:
            raise ValueError(f"method {name!r} is already registered by {METHODS[name].__module__}")
        METHODS[name] = recipe
        return recipe

    return add


@dataclass(frozen=True)
class Problem:
    """The properties of a task that a method depends on."""

    num_classes: int
    noise_rate: float  # ε, the expected share of wrong labels
    warmup: int = 25  # epochs of plain training before the method starts to select
    num_samples: int = 0  # size of the training set, for methods that store values per sample
    seed: int = 0  # of the random numbers that a method draws
    distributed: bool = True  # if torch.distributed is initialized, select in the batches of all processes together

    def __post_init__(self) -> None:
        for name, least in (("num_classes", 2), ("warmup", 0), ("num_samples", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        rate: object = self.noise_rate
        if not isinstance(rate, Real) or not 0 <= float(rate) < 1:
            raise ValueError(
                f"noise_rate must be in [0, 1), got {rate!r}; labelsieve.estimate_noise estimates an unknown noise rate"
            )


def select_clean(p: Problem, criterion: MakeCriterion | None, floor: float = 0.0, align: bool = False) -> list[Weigh]:
    """Return the part that keeps the share 1 - ε of each batch after the warm-up; no part without a criterion.

    `floor` is the minimum share kept of each label, as a part of 1 - ε; `align` scores the predictions after `Align`.
    """
    if criterion is None:
        return []
    if not 0 <= floor <= 1:
        raise ValueError(f"floor must be in [0, 1], got {floor}")
    keep = partial(constant_share, kept_share(p.noise_rate))
    part = Align(p.num_classes) if align else None
    return [Select(criterion(p.num_classes, 1), keep, warmup=p.warmup, floor=exact_fraction(floor), align=part)]


def require_num_samples(p: Problem) -> int:
    """Return the size of the training set, or raise ValueError if the problem does not contain it."""
    if p.num_samples < 1:
        raise ValueError("this method stores values per sample: pass num_samples=, the size of the training set")
    return p.num_samples
