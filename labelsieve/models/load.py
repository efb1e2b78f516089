"""Pretrained weights from files, of which nothing is ever executed, and networks from user code or timm."""

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

from labelsieve.errors import InputError, first_line, nearest
from labelsieve.models.networks import Dropout

Shape = tuple[int, ...]  # of one sample: (channels, height, width) of an image, (columns,) of a table row
ModelFactory = Callable[[Shape, int], nn.Module]  # (shape, num_classes) -> network

WEIGHT_FILES = ".safetensors, .npz, .pth or .pt"
NESTED_KEYS = ("state_dict", "model")  # keys under which training scripts store the weights
PARALLEL_PREFIX = "module."  # added to every name by nn.DataParallel
CLASSIFIER_NAMES = ("fc", "classifier")
BATCH_COUNTER = "num_batches_tracked"  # of batch-norm; missing in files written before torch 0.4.1
FACTORY_CALLS = "factory(shape, num_classes), factory(num_classes) or factory()"


# ---- pretrained weights --------------------------------------------------------------------------------------------


def load_weights(network: nn.Module, path: Path) -> list[str]:
    """Load the weights of a file into a network and return the names of the tensors that keep their initial values.

    Only the last linear layer may keep its initial values: when the file lacks it or has it for another number of
    classes. Any other tensor that is missing, unexpected, of another shape or not finite raises InputError and leaves
    the network unchanged.
    """
    own, found = network.state_dict(), _read_weights(path)
    kept = _mismatched_classifier(_classifier_name(network), own, found)
    problems = list(_mismatches(own, found, kept))
    if problems:
        more = f" (and {len(problems) - 1:,} more tensors do not fit)" if len(problems) > 1 else ""
        raise InputError(f"{path} does not fit the network: {problems[0]}{more}; use weights of the same network")
    loaded = {name: tensor.to(own[name].dtype) for name, tensor in found.items() if name not in kept}
    for name, tensor in loaded.items():
        if not tensor.isfinite().all():
            raise InputError(f"{path}: {name} contains values that are not finite; use weights of a finished training")
    network.load_state_dict(loaded, strict=False)
    return kept


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a weight file by name."""
    if not path.is_file():
        raise InputError(f"weights not found: {path}; pass a {WEIGHT_FILES} file")
    if path.suffix not in READERS:
        raise InputError(f"{path} has an unsupported format: weights must be a {WEIGHT_FILES} file")
    weights = READERS[path.suffix](path)
    for key in NESTED_KEYS:
        if isinstance(weights, Mapping) and isinstance(weights.get(key), Mapping):
            weights = weights[key]
    if not isinstance(weights, Mapping) or not weights:
        raise InputError(f"{path} contains no named weights; save network.state_dict()")
    for name, tensor in weights.items():
        if not isinstance(name, str) or not _is_dense_tensor(tensor):
            raise InputError(f"{path}: {name!r} is not a dense tensor; save only network.state_dict()")
    parallel = all(name.startswith(PARALLEL_PREFIX) for name in weights)
    return {name.removeprefix(PARALLEL_PREFIX) if parallel else name: tensor for name, tensor in weights.items()}


def _is_dense_tensor(value: object) -> bool:
    """Return whether the value is a tensor with ordinary storage: not sparse, quantised or on the meta device."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized and not value.is_meta


def _classifier_name(network: nn.Module) -> str | None:
    """Return the name of the layer that outputs the logits: fc, classifier, or the last linear layer."""
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    return next((name for name in linear if name in CLASSIFIER_NAMES), linear[-1] if linear else None)


def _mismatched_classifier(layer: str | None, own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """Return the tensors of the classifier if the file lacks it or has it for another number of classes, else []."""
    names = [name for name in own if name in (f"{layer}.weight", f"{layer}.bias")]
    classes = {len(found[name]) if found[name].ndim else 0 for name in names if name in found}
    fits = all(found[name].shape[1:] == own[name].shape[1:] for name in names if name in found)
    mismatched = not classes or (len(classes) == 1 and fits and classes != {len(own[name]) for name in names})
    return names if mismatched else []


def _mismatches(own: Mapping[str, Tensor], found: Mapping[str, Tensor], kept: list[str]) -> Iterator[str]:
    """Yield a description of each tensor that does not fit."""
    for name, tensor in own.items():
        if name in kept:
            continue
        if name not in found:
            if not name.endswith(BATCH_COUNTER):
                yield f"{name} is not in the file"
        elif found[name].shape != tensor.shape:
            yield f"{name} is {_dimensions(found[name])} in the file and {_dimensions(tensor)} in the network"
        elif found[name].is_floating_point() != tensor.is_floating_point():
            yield f"{name} is {found[name].dtype} in the file and {tensor.dtype} in the network"
    for name in found:
        if name not in own:
            yield f"{name} is in the file but not in the network"


def _dimensions(tensor: Tensor) -> str:
    """Return the shape as text, such as 64 x 3 x 7 x 7."""
    return " x ".join(map(str, tensor.shape)) or "a scalar"


def _read_safetensors(path: Path) -> object:
    try:
        return load_file(path)
    except Exception as error:  # the reader raises many kinds of errors for damaged files
        raise InputError(f"cannot read {path}: {first_line(error)}; save or download the file again") from error


def _read_npz(path: Path) -> object:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except Exception as error:  # the reader raises many kinds of errors for damaged files
        reason = "it contains pickled objects" if "pickle" in str(error) else first_line(error)
        raise InputError(f"cannot read {path}: {reason}; a .npz file with only arrays is needed") from error


def _read_torch_file(path: Path) -> object:
    """Read a file of torch.save that contains only tensors, numbers, strings, lists and dicts."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # the reader raises many kinds of errors for damaged files
        raise InputError(
            f"cannot read {path}: it is damaged or contains objects other than tensors, which are never unpickled; "
            "save only network.state_dict()"
        ) from error


READERS = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    ".pth": _read_torch_file,
    ".pt": _read_torch_file,
}


# ---- networks from user code ---------------------------------------------------------------------------------------


def import_model(spec: str) -> ModelFactory:
    """Return a factory for the network named by package.module:factory or timm:NAME.

    The factory checks the network on one sample and lets its dropout layers draw from the generator of the run.
    """
    module, _, name = spec.partition(":")
    build = (
        partial(_make_timm_model, _import_timm(), name)
        if module == "timm"
        else partial(_call_factory, _find_factory(module, name, spec))
    )

    def make(shape: Shape, num_classes: int) -> nn.Module:
        try:
            network = build(shape, num_classes)
        except InputError as error:
            raise InputError(f"{spec} {error}") from error
        except Exception as error:  # user code may raise anything
            raise InputError(f"{spec} raised {_describe_error(error)}") from error
        return _replace_dropout(_check_network(network, shape, num_classes, spec))

    return make


def _replace_dropout(network: nn.Module) -> nn.Module:
    """Replace every nn.Dropout by one that draws from the generator of the run, in place."""
    for name, child in network.named_children():
        if type(child) is nn.Dropout:
            setattr(network, name, Dropout(child.p))
        else:
            _replace_dropout(child)
    return network


def _find_factory(module: str, name: str, spec: str) -> Callable[..., Any]:
    """Return the factory of this name from an installed module or one in the current folder."""
    if not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
        raise InputError(f"{spec!r} is not a model: write package.module:factory, {_suggest_module(module)}")
    try:
        factory = operator.attrgetter(name)(_import_user_module(module))
    except AttributeError as error:
        public = [key for key, value in vars(_import_user_module(module)).items() if callable(value) and key[0] != "_"]
        suggestion = nearest(name, public) if public else "it is empty"
        raise InputError(f"{module} has no {name!r}: {suggestion}") from error
    if isinstance(factory, nn.Module) or not callable(factory):
        what = "a network instance" if isinstance(factory, nn.Module) else f"of type {type(factory).__name__}"
        raise InputError(f"{spec} is {what}: name the function or class that creates the network")
    return factory


def _import_user_module(module: str) -> ModuleType:
    """Import a module by name; the current folder stays on sys.path for later imports of the network."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise InputError(f"there is no module {error.name!r}: {_suggest_module(module)}") from error
        raise InputError(f"{module} needs {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise InputError(f"importing {module} raised {_describe_error(error)}") from error


def _suggest_module(module: str) -> str:
    """Return a suggestion of the module in or below the current folder whose name is closest."""
    folder = Path.cwd()
    files = [file.relative_to(folder).with_suffix("") for file in (*folder.glob("*.py"), *folder.glob("*/*.py"))]
    close = difflib.get_close_matches(module, [".".join(file.parts) for file in files], n=1, cutoff=0.4)
    return f"did you mean {close[0]}?" if close else f"put its file into {folder}, or install it"


def _call_factory(factory: Callable[..., Any], shape: Shape, num_classes: int) -> object:
    """Call a factory with shape and num_classes by name where it has them, else by position."""
    if getattr(factory, "__init__", None) is nn.Module.__init__:  # a class without its own __init__ takes no arguments
        return factory()
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some built-in types have no signature
        return factory(shape, num_classes)
    values = {"shape": shape, "num_classes": num_classes}
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        names.add("num_classes")
    by_name = {name: value for name, value in values.items() if name in names}
    required = [parameter.name for parameter in parameters if _is_required(parameter)]
    if set(required) <= by_name.keys():
        return factory(**by_name)
    positional = list(values)[-len(required) :]
    if len(required) > 2 or any(
        name in values and name != expected for name, expected in zip(required, positional, strict=True)
    ):
        raise InputError(f"requires {', '.join(required)}; it is called as {FACTORY_CALLS}")
    return factory(*(values[name] for name in positional))


def _is_required(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter has no default and is neither *args nor **kwargs."""
    variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variadic


def _import_timm() -> ModuleType:
    try:
        return importlib.import_module("timm")
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision does not match torch
        raise InputError(f"timm cannot be imported ({_describe_error(error)}): pip install timm") from error


def _make_timm_model(timm: ModuleType, name: str, shape: Shape, num_classes: int) -> object:
    """Return a network of timm with random weights."""
    if len(shape) != 3:
        raise InputError("needs images; for a table use mlp")
    return timm.create_model(name, pretrained=False, num_classes=num_classes, in_chans=shape[0])


def _check_network(network: object, shape: Shape, num_classes: int, spec: str) -> nn.Module:
    """Return the network if it outputs (1, num_classes) for a batch of one sample, else raise InputError."""
    if not isinstance(network, nn.Module):
        raise InputError(f"{spec} returned {_type_name(network)}, a torch.nn.Module is needed")
    training = network.training
    try:
        with torch.no_grad():
            output = network.eval()(torch.zeros(1, *shape))
    except Exception as error:  # user code may raise anything
        raise InputError(f"{spec} fails on a batch of shape {(1, *shape)}: {_describe_error(error)}") from error
    if not isinstance(output, Tensor) or output.shape != (1, num_classes):
        returned = tuple(output.shape) if isinstance(output, Tensor) else _type_name(output)
        raise InputError(
            f"{spec} outputs {returned} for a batch of shape {(1, *shape)}, {(1, num_classes)} is needed: "
            "one logit per class; an argument num_classes of the factory is set to the number of classes"
        )
    return network.train(training)


def _type_name(value: object) -> str:
    """Return the name of a value's type for an error message."""
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _describe_error(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"
