"""Every method, one file for each method or family: its parts and its recipes.

- problem: Problem, the registry METHODS with `register`, and what recipes share
- mentornet: default, mentornet, mentornet-prop
- co_teaching: co-teaching, co-teaching+, jocor
- selfie, sl: selfie and selfie-prop, sl and sl-prop
- active_bias, cores, dmi, elr, f_correction, gce, lccn, sop, vat: the method of that name

All modules of this package are imported here, so a new file with a recipe decorated by `@register("name")` is enough to
add a method to `make`, to the command line and to the contract tests.
"""

import inspect
import pkgutil
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from labelsieve.catalogue import in_order, refuse_unknown_name, refuse_unknown_options
from labelsieve.core.criteria import CRITERIA, Criterion
from labelsieve.core.method import Method
from labelsieve.errors import InputError
from labelsieve.methods.problem import GUARDS, METHODS, MakeCriterion, Problem, register, require_num_samples

__all__ = [
    "GUARDS",
    "METHODS",
    "MakeCriterion",
    "Problem",
    "keywords",
    "make",
    "register",
]


def make(name: str, problem: Problem, criterion: str | None = None, **options: Any) -> Method:
    """Make a method by its name.

    Args:
        name: a key of METHODS, such as "mentornet-prop".
        problem: number of classes, noise rate, warm-up and size of the training set.
        criterion: a key of CRITERIA that replaces the method's own criterion.
        options: options of the method and of its criterion, such as lam=0.5.
    """
    refuse_unknown_name("method", name, METHODS)
    recipe = METHODS[name]
    criterion_class = _criterion_class(recipe, criterion)
    known = {**keywords(recipe), **keywords(criterion_class)}
    refuse_unknown_options(name, criterion, options, known)
    for key, value in options.items():
        owner = recipe if key in keywords(recipe) else vars(criterion_class)["__init__"]
        if not _has_type(value, get_type_hints(owner)[key]):
            expected = "use true or false" if isinstance(known[key], bool) else f"its default is {known[key]}"
            raise InputError(f"{name}: option {key} cannot be {value!r}; {expected}")
    arguments = {key: options[key] for key in keywords(recipe) if key in options}
    of_criterion = {key: options[key] for key in keywords(criterion_class) if key in options}
    try:
        if criterion_class is not None:
            stored = {"num_samples": require_num_samples(problem)} if criterion_class.needs_index else {}
            arguments["criterion"] = partial(criterion_class, **stored, **of_criterion)
        method = recipe(problem, **arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from error
    method.distributed = problem.distributed
    return method


def keywords(function: Callable[..., object] | None) -> dict[str, object]:
    """Return the keyword-only arguments of a function with their defaults."""
    if function is None:
        return {}
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _has_type(value: object, hint: Any) -> bool:
    """Return True if a value fits an option's type hint; an int is also a float, and any string fits a Literal."""
    allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    types = [str if get_origin(one) is Literal else one for one in allowed]
    return type(value) in types or (float in types and type(value) is int)


def _criterion_class(recipe: Callable[..., Method], criterion: str | None) -> type[Criterion] | None:
    """Return the criterion of this name, or without a name the default of the recipe."""
    if criterion is not None:
        refuse_unknown_name("criterion", criterion, CRITERIA)
        return CRITERIA[criterion]
    return inspect.signature(recipe).parameters["criterion"].default


def _import_recipes() -> None:
    """Import every module of this package, which fills METHODS, and put METHODS in order."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    for name in in_order(METHODS):
        METHODS[name] = METHODS.pop(name)


_import_recipes()
