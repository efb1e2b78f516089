"""Read pickle files as plain data: None, booleans, numbers, strings, lists, tuples, dicts and numeric arrays.

Nothing that a file names is imported or called: the few names that arrays need are replaced by symbols.
"""

import io
import math
import pickle
import pickletools
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from labelsieve.errors import InputError
from labelsieve.text import printable

NUMERIC_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")
NAMES = frozenset(
    (
        *("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"),
        *("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"),
        *("_codecs.encode", "__builtin__.bytes", "builtins.bytes"),
    )
)
DAMAGE = (
    *(pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError),
    *(OverflowError, MemoryError, RecursionError),
)


def load_plain(content: bytes, path: Path | str) -> Any:
    """Return the pickled value of a file; strings of Python 2 are bytes."""
    try:
        _check_sizes(content)
        found = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
        _check_plain(found)
        return found
    except _NotPlain as error:
        raise InputError(f"{path} {error}; it is not the published file") from None
    except DAMAGE as error:
        raise InputError(f"{path} is truncated or damaged: not a complete pickle; download it again") from error


class _NotPlain(Exception):
    """A file contains something other than plain data; the message follows the name of the file."""


def _check_sizes(content: bytes) -> None:
    """Raise if an item is longer than the file, or would make the unpickler reserve memory for a larger memo."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about backslashes in damaged files
        for opcode, argument, position in pickletools.genops(content):
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= argument <= position:  # type: ignore[operator]
                raise ValueError("memo index out of range")


def _check_plain(found: object) -> None:
    pending, seen = [found], set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            pending += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            pending += value
        elif not isinstance(value, None | int | float | str | bytes | _Array):
            raise _NotPlain(f"contains a value of type {type(value).__name__.strip('_').lower()}")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        dotted = f"{module}.{name}"
        if dotted not in NAMES:
            raise _NotPlain(f"tries to run {printable(dotted[:80])}")
        return _Symbol(dotted)

    def persistent_load(self, pid: Any) -> Any:
        raise _NotPlain("refers to an object outside the file")


class _Symbol:
    """One of the names that a file may contain; a call returns plain data, whatever the name means in Python."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any) -> object:
        match self.name.rpartition(".")[2], arguments:
            case "encode", (str(text), "latin1" | "latin-1"):
                return text.encode("latin-1")
            case "bytes", ():
                return b""
            case "dtype", (str() | bytes() as name, *_):
                return _Dtype(name)
            case "_reconstruct", (_Symbol(name="numpy.ndarray"), *_):
                return _Array(0)
            case "_frombuffer", (bytes() | bytearray() as content, dtype, shape, order):
                array = _Array(0)
                array.__setstate__((1, shape, dtype, order == "F", bytes(content)))
                return array
        raise _NotPlain(f"calls {self.name} with unknown arguments")


class _Dtype:
    """The name and byte order of a dtype."""

    def __init__(self, name: str | bytes) -> None:
        self.name, self.order = name, ""

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def to_numpy(self) -> np.dtype[Any]:
        order, name = (text.decode("latin-1") if isinstance(text, bytes) else text for text in (self.order, self.name))
        if not NUMERIC_DTYPE.fullmatch(order + name):
            raise _NotPlain(f"contains an array of dtype {printable(name[:80])}")
        return np.dtype(order + name)


class _Array(np.ndarray[Any, Any]):
    """A numeric array."""

    def __setstate__(self, state: Any) -> None:
        """Set shape, dtype and contents, if the contents have the size that these imply."""
        _, shape, dtype, fortran, content = state
        numeric = dtype.to_numpy()
        valid = isinstance(content, bytes) and all(type(side) is int and side >= 0 for side in shape)
        if not valid or math.prod(shape) * numeric.itemsize != len(content):
            raise _NotPlain(f"contains an array of shape {printable(str(shape)[:80])} with {len(content):,} bytes")
        super().__setstate__((1, shape, numeric, bool(fortran), content))  # type: ignore[arg-type]
