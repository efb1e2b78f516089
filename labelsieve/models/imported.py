"""A person's own network, package.module:factory, and networks of timm, timm:NAME."""

import difflib
import importlib
import inspect
import operator
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from labelsieve.errors import InputError, nearest
from labelsieve.models.dropout import Dropout

Shape = tuple[int, ...]
WAYS = "factory(shape, num_classes), factory(num_classes) or factory()"


def imported(spec: str) -> Callable[[Shape, int], nn.Module]:
    """What makes the network of package.module:factory, or of timm:NAME, and looks at what it gives."""
    module, _, name = spec.partition(":")
    build = partial(call_timm, timm(), name) if module == "timm" else partial(call, find(module, name, spec))

    def make(shape: Shape, num_classes: int) -> nn.Module:
        try:
            network = build(shape, num_classes)
        except InputError as error:
            raise InputError(f"{spec} {error}") from error
        except Exception as error:  # the person's code may raise anything
            raise InputError(f"{spec} raised {told(error)}") from error
        return with_own_dropout(checked(network, shape, num_classes, spec))

    return make


def with_own_dropout(network: nn.Module) -> nn.Module:
    """The same network whose dropout layers draw from the run's generator, so that it can be repeated and resumed."""
    for name, child in network.named_children():
        if type(child) is nn.Dropout:
            setattr(network, name, Dropout(child.p))
        else:
            with_own_dropout(child)
    return network


def find(module: str, name: str, spec: str) -> Callable[..., Any]:
    """The factory of that name, from what is installed or from the current folder."""
    if not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
        raise InputError(f"{spec!r} is no model: write package.module:factory, {hint(module)}")
    try:
        factory = operator.attrgetter(name)(load(module))
    except AttributeError as error:
        names = [found for found, value in vars(load(module)).items() if callable(value) and found[0] != "_"]
        raise InputError(f"{module} has no {name!r}: {nearest(name, names) if names else 'it is empty'}") from error
    if isinstance(factory, nn.Module) or not callable(factory):
        what = "a finished network" if isinstance(factory, nn.Module) else f"of type {type(factory).__name__}"
        raise InputError(f"{spec} is {what}: give the function or class that makes the network")
    return factory  # type: ignore[no-any-return]


def load(module: str) -> ModuleType:
    """A module by its name. The current folder stays on the path, for what the network imports later."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise InputError(f"there is no module {error.name!r}: {hint(module)}") from error
        raise InputError(f"{module} needs {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:  # the person's code may raise anything
        raise InputError(f"importing {module} raised {told(error)}") from error


def hint(module: str) -> str:
    """The module in the current folder, or one below, that is likely meant."""
    here = Path.cwd()
    files = [file.relative_to(here).with_suffix("") for file in (*here.glob("*.py"), *here.glob("*/*.py"))]
    close = difflib.get_close_matches(module, [".".join(file.parts) for file in files], n=1, cutoff=0.4)
    return f"did you mean {close[0]}?" if close else f"put its file into {here}, or install it"


def call(factory: Callable[..., Any], shape: Shape, num_classes: int) -> object:
    """Calls it with what its signature asks for: shape and num_classes by name, else by the number of arguments."""
    if getattr(factory, "__init__", None) is nn.Module.__init__:  # a class without its own takes nothing
        return factory()
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some built-in types have none
        return factory(shape, num_classes)
    known = {"shape": shape, "num_classes": num_classes}
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        names.add("num_classes")
    named = {name: value for name, value in known.items() if name in names}
    needed = [parameter.name for parameter in parameters if is_needed(parameter)]
    if set(needed) <= named.keys():
        return factory(**named)
    places = list(known)[-len(needed) :]
    if len(needed) > 2 or any(name in known and name != place for name, place in zip(needed, places, strict=True)):
        raise InputError(f"needs {', '.join(needed)}; it is called as {WAYS}")
    return factory(*(known[place] for place in places))


def is_needed(parameter: inspect.Parameter) -> bool:
    """Whether it must be given."""
    open_ended = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not open_ended


def timm() -> ModuleType:
    """The installed timm."""
    try:
        return importlib.import_module("timm")
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that does not go with torch
        raise InputError(f"timm cannot be imported ({told(error)}): pip install timm") from error


def call_timm(module: ModuleType, name: str, shape: Shape, num_classes: int) -> object:
    """A network of timm, without weights."""
    if len(shape) != 3:
        raise InputError("needs images; for a table use mlp")
    return module.create_model(name, pretrained=False, num_classes=num_classes, in_chans=shape[0])


def checked(network: object, shape: Shape, num_classes: int, spec: str) -> nn.Module:
    """The network, if it gives one number per class for a batch of one sample of zeros."""
    if not isinstance(network, nn.Module):
        raise InputError(f"{spec} gave {a(network)}, a torch.nn.Module is needed")
    training = network.training
    try:
        with torch.no_grad():
            output = network.eval()(torch.zeros(1, *shape))
    except Exception as error:  # the person's code may raise anything
        raise InputError(f"{spec} cannot take a batch of shape {(1, *shape)}: {told(error)}") from error
    if not isinstance(output, Tensor) or output.shape != (1, num_classes):
        gave = tuple(output.shape) if isinstance(output, Tensor) else a(output)
        raise InputError(
            f"{spec} gives {gave} for a batch of shape {(1, *shape)}, {(1, num_classes)} is needed: "
            "one number per class; name the factory's argument num_classes, and it is given"
        )
    return network.train(training)


def a(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def told(error: BaseException) -> str:
    """Type and first line of an error."""
    return (
        f"{type(error).__name__}: {str(error).strip().splitlines()[0]}" if str(error).strip() else type(error).__name__
    )
