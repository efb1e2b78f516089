"""Weights from a local file: .safetensors, .npz, or .pth and .pt of tensors alone. Nothing in a file is executed."""

import difflib
import importlib
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from labelsieve.errors import InputError, nearest
from labelsieve.models.networks import Dropout

KINDS = ".safetensors, .npz, .pth or .pt"
NESTED = ("state_dict", "model")  # where training scripts put the weights
PREFIX = "module."  # that nn.DataParallel puts before every name
HEADS = ("fc", "classifier")
COUNTER = "num_batches_tracked"  # of batch-norm; files from before torch 0.4.1 go without


def load_weights(network: nn.Module, path: Path) -> list[str]:
    """Gives a network the weights of a file, and names the tensors that keep their first values.

    These are the classifier's, where the file's has another number of classes or is not there. Whatever else is
    missing, unexpected, of another shape or not finite is refused, and then the network is as it was.
    """
    own, found = network.state_dict(), read_weights(path)
    kept = other_head(head(network), own, found)
    problems = list(misfits(own, found, kept))
    if problems:
        more = f" (and {len(problems) - 1:,} more tensors do not fit)" if len(problems) > 1 else ""
        raise InputError(f"{path} does not fit the network: {problems[0]}{more}; give weights of the same network")
    chosen = {name: tensor.to(own[name].dtype) for name, tensor in found.items() if name not in kept}
    for name, tensor in chosen.items():
        if not tensor.isfinite().all():
            raise InputError(f"{path}: {name} has values that are not finite; give weights of a finished training")
    network.load_state_dict(chosen, strict=False)
    return kept


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a file by name, without what training scripts put around them."""
    if not path.is_file():
        raise InputError(f"no weights at {path}: give a {KINDS} file")
    if path.suffix not in READERS:
        raise InputError(f"{path} is of no kind that is read: weights must be a {KINDS} file")
    weights = READERS[path.suffix](path)
    for key in NESTED:
        if isinstance(weights, Mapping) and isinstance(weights.get(key), Mapping):
            weights = weights[key]
    if not isinstance(weights, Mapping) or not weights:
        raise InputError(f"{path} holds no weights by name; save network.state_dict()")
    for name, tensor in weights.items():
        if not isinstance(name, str) or not is_plain(tensor):
            raise InputError(f"{path}: {name!r} is no plain tensor; save network.state_dict() alone")
    wrapped = all(name.startswith(PREFIX) for name in weights)
    return {name.removeprefix(PREFIX) if wrapped else name: tensor for name, tensor in weights.items()}


def is_plain(value: object) -> bool:
    """Whether it is a tensor with numbers in it: not sparse, quantised or without storage."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized and not value.is_meta


def head(network: nn.Module) -> str | None:
    """The name of the layer that classifies: fc, classifier, or the last linear one."""
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    return next((name for name in linear if name in HEADS), linear[-1] if linear else None)


def other_head(layer: str | None, own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """The tensors of the layer that classifies, if the file has it for other classes or not at all."""
    names = [name for name in own if name in (f"{layer}.weight", f"{layer}.bias")]
    classes = {len(found[name]) if found[name].ndim else 0 for name in names if name in found}
    fits = all(found[name].shape[1:] == own[name].shape[1:] for name in names if name in found)
    different = not classes or (len(classes) == 1 and fits and classes != {len(own[name]) for name in names})
    return names if different else []


def misfits(own: Mapping[str, Tensor], found: Mapping[str, Tensor], kept: list[str]) -> Iterator[str]:
    """What is wrong with each tensor that does not fit."""
    for name, tensor in own.items():
        if name in kept:
            continue
        if name not in found:
            if not name.endswith(COUNTER):
                yield f"{name} is not in the file"
        elif found[name].shape != tensor.shape:
            yield f"{name} is {size(found[name])} in the file and {size(tensor)} in the network"
        elif found[name].is_floating_point() != tensor.is_floating_point():
            yield f"{name} is {found[name].dtype} in the file and {tensor.dtype} in the network"
    for name in found:
        if name not in own:
            yield f"{name} is in the file but not in the network"


def size(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"


def read_safetensors(path: Path) -> object:
    try:
        return load_file(path)
    except Exception as error:  # a damaged file fails in any of the reader's ways
        raise InputError(f"cannot read {path}: {reason(error)}; save it again or download it again") from error


def read_npz(path: Path) -> object:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except Exception as error:  # a damaged file fails in any of the reader's ways
        raise InputError(f"cannot read {path}: {reason(error)}; a .npz file of plain arrays is needed") from error


def read_pickle(path: Path) -> object:
    """torch.load that builds tensors, numbers, texts, lists and dicts, and refuses a file that asks for more."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file fails in any of the reader's ways
        raise InputError(
            f"cannot read {path}: it is damaged, or it holds more than tensors, which is never unpickled; "
            "save network.state_dict() alone"
        ) from error


READERS = {".safetensors": read_safetensors, ".npz": read_npz, ".pth": read_pickle, ".pt": read_pickle}


def reason(error: Exception) -> str:
    """The first line of an error."""
    if "pickle" in str(error):
        return "it holds no plain arrays"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


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
