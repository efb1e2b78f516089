"""Weights from a local file: .safetensors, .npz, or .pth and .pt of tensors alone. Nothing in a file is executed."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from labelsieve.errors import InputError

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
