"""Every method by name, as a choice of parts. The signature of a recipe is the schema of its options."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from labelsieve.core.criteria import CRITERIA, CriteriaALL, CriteriaOL, Criterion
from labelsieve.core.losses import CrossEntropy
from labelsieve.core.method import Method
from labelsieve.core.weigh import Select, Weigh, kept_share
from labelsieve.errors import InputError, nearest

T = TypeVar("T")
MakeCriterion = Callable[
    [int, int], Criterion
]  # (classes, networks), such as CriteriaALL or partial(CriteriaALL, lam=2)


@dataclass(frozen=True)
class Problem:
    """What a method must know of the task."""

    num_classes: int
    noise_rate: float  # ε, the share of labels believed wrong
    warmup: int = 25  # epochs of plain training before samples are selected


def default(p: Problem, criterion: MakeCriterion | None = None) -> Method:
    """Plain cross-entropy on all samples."""
    return Method(CrossEntropy(), chosen(p, criterion))


def mentornet(p: Problem, criterion: MakeCriterion = CriteriaOL) -> Method:
    """Learn from the top 1 - ε of each batch by confidence in the observed label."""
    return Method(CrossEntropy(), chosen(p, criterion))


def mentornet_prop(p: Problem, criterion: MakeCriterion = CriteriaALL) -> Method:
    """MentorNet with Criteria_ALL: penalty labels keep dominant noise out (the paper's method)."""
    return mentornet(p, criterion)


METHODS: dict[str, Callable[..., Method]] = {
    "default": default,
    "mentornet": mentornet,
    "mentornet-prop": mentornet_prop,
}


def chosen(p: Problem, criterion: MakeCriterion | None, networks: int = 1) -> list[Weigh]:
    """Keep 1 - ε of each batch by the criterion, after the warm-up; without a criterion, everything."""
    share = kept_share(p.noise_rate)
    if criterion is None:
        return []
    return [Select(criterion(p.num_classes, networks), lambda epoch: share, warmup=p.warmup)]


def make(name: str, problem: Problem, criterion: str | None = None, **options: Any) -> Method:
    """A method by its name; `options` are those of the recipe and of its criterion, such as lam=0.5."""
    recipe = _known("method", name, METHODS)
    criterion_class = _criterion_class(recipe, criterion)
    known = [*keywords(recipe), *keywords(criterion_class)]
    for key in options:
        if key not in known:
            raise InputError(f"{name} has no option {key!r}; it has: {', '.join(known) or 'none'}")
    arguments = {key: options[key] for key in keywords(recipe) if key in options}
    if criterion_class is not None:
        of_criterion = {key: options[key] for key in keywords(criterion_class) if key in options}
        arguments["criterion"] = partial(criterion_class, **of_criterion)
    try:
        return recipe(problem, **arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from error


def summary(name: str) -> str:
    """The line that says what a method does."""
    return (inspect.getdoc(METHODS[name]) or "").splitlines()[0]


def options_of(name: str) -> dict[str, object]:
    """The options that a method takes, those of its own criterion too, with their defaults."""
    recipe = METHODS[name]
    return {**keywords(recipe), **keywords(_criterion_class(recipe, None))}


def keywords(function: Callable[..., object] | None) -> dict[str, object]:
    """The keyword-only arguments of a function with their defaults: its options."""
    if function is None:
        return {}
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _criterion_class(recipe: Callable[..., Method], criterion: str | None) -> type[Criterion] | None:
    if criterion is not None:
        return _known("criterion", criterion, CRITERIA)
    own: type[Criterion] | None = inspect.signature(recipe).parameters["criterion"].default
    return own


def _known(what: str, name: str, names: dict[str, T]) -> T:
    if name not in names:
        raise InputError(f"unknown {what} {name!r}: {nearest(name, names)}")
    return names[name]
