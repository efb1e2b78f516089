"""Read pickle files as data, without importing or calling anything that they name.

A file may contain None, booleans, numbers, strings, bytes, lists, tuples, dicts and numeric arrays, which is all that
published label and image files need. Everything else is an error.
"""

import io
import math
import pickletools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from labelsieve.data.classes import Array
from labelsieve.errors import InputError
from labelsieve.text import printable

NUMERIC_DTYPE = re.compile(r"b1|[iu][1248]|f[248]")
VALUE_OPCODES = {  # push the argument
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
DAMAGE = (ValueError, IndexError, KeyError, TypeError, AttributeError, AssertionError, OverflowError, MemoryError)


class Name(Enum):
    """The names of other modules that a file may contain; they are symbols, not objects."""

    ARRAY = "numpy.core.multiarray._reconstruct"
    ARRAY_TYPE = "numpy.ndarray"
    DTYPE = "numpy.dtype"
    OBJECT_DTYPE = "numpy.dtype('O')"
    FROM_BUFFER = "numpy.core.numeric._frombuffer"
    ENCODE = "_codecs.encode"
    BYTES = "__builtin__.bytes"


NAMES = {
    "numpy.core.multiarray._reconstruct": Name.ARRAY,
    "numpy._core.multiarray._reconstruct": Name.ARRAY,
    "numpy.core.numeric._frombuffer": Name.FROM_BUFFER,
    "numpy._core.numeric._frombuffer": Name.FROM_BUFFER,
    "numpy.ndarray": Name.ARRAY_TYPE,
    "numpy.dtype": Name.DTYPE,
    "_codecs.encode": Name.ENCODE,
    "__builtin__.bytes": Name.BYTES,
}


def load_plain(source: bytes | BinaryIO, path: Path | str, boxed: bool = False) -> Any:
    """Return the next pickled value; strings of Python 2 are bytes.

    Args:
        source: the contents of a file, or a stream to continue.
        path: name of the file, for messages.
        boxed: whether the value is inside an array of one object, as np.save writes dicts.
    """
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about backslashes in damaged files
            return _Machine(boxed).run(stream)
    except _NotPlain as error:
        raise InputError(f"{path} {error}; it is not the published file") from None
    except DAMAGE as error:
        raise InputError(f"{path} is truncated or damaged: not a complete pickle; download it again") from error


class _NotPlain(ValueError):
    """A file contains something other than plain data; the message follows the name of the file."""


@dataclass(eq=False)
class _Unfinished:
    """An array or dtype whose state follows later in the file."""

    dtype: str | None = None  # its name, for a dtype
    value: object = None  # once finished


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise _NotPlain(fault)


def _make_array(shape: object, dtype: object, fortran: object, content: object) -> Array:
    plain = isinstance(dtype, np.dtype) and isinstance(shape, tuple) and isinstance(content, bytes)
    _require(plain, "contains an array that is not numeric")
    assert isinstance(dtype, np.dtype) and isinstance(shape, tuple) and isinstance(content, bytes)
    valid = len(shape) <= 8 and all(type(size) is int and 0 <= size < 2**40 for size in shape)
    _require(valid, "contains an array with an invalid shape")
    size = f"contains an array of shape {shape} with {len(content):,} bytes"
    _require(math.prod(shape) * dtype.itemsize == len(content), size)
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def _make_dtype(name: str, order: object) -> np.dtype[Any]:
    order = _as_text(order)
    valid = NUMERIC_DTYPE.fullmatch(name) is not None and order in ("<", ">", "|", "=")
    _require(valid, f"contains an array of dtype {printable(name[:80])}")
    return np.dtype(order + name)


def _as_text(value: object) -> str:
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    _require(isinstance(text, str), "contains another value where a name is expected")
    return str(text)


@dataclass
class _Machine:
    """The stack and memo of a pickle machine."""

    boxed: bool
    stack: list[Any] = field(default_factory=list)
    below: list[list[Any]] = field(default_factory=list)  # stacks under the marks
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self, stream: BinaryIO) -> Any:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name in VALUE_OPCODES:
                self.stack.append(argument)
            elif opcode.name in OPCODES:
                OPCODES[opcode.name](self, argument)
            elif opcode.name == "INST":
                raise _NotPlain(f"tries to run {printable('.'.join(str(argument).split(' ', 1))[:80])}")
            else:
                raise _NotPlain(f"is not plain data (opcode {opcode.name})")
        return self.stack.pop()

    def _since_mark(self) -> list[Any]:
        found, self.stack = self.stack, self.below.pop()
        return found

    def mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

    def push_python2_string(self, text: str) -> None:
        self.stack.append(text.encode("latin-1"))

    def memoize(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else int(index)] = self.stack[-1]

    def recall(self, index: int) -> None:
        found = self.memo[int(index)]
        finished = isinstance(found, _Unfinished) and found.value is not None
        self.stack.append(found.value if finished else found)

    def append(self, _: Any) -> None:
        self._extend([self.stack.pop()])

    def appends(self, _: Any) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        _require(isinstance(self.stack[-1], list), "appends to a value that is not a list")
        self.stack[-1].extend(items)

    def set_item(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def set_items(self, _: Any) -> None:
        self._update(self._since_mark())

    def new_dict(self, _: Any) -> None:
        pairs = self._since_mark()
        self.stack.append({})
        self._update(pairs)

    def _update(self, pairs: list[Any]) -> None:
        plain = isinstance(self.stack[-1], dict) and all(type(key) in (str, bytes, int) for key in pairs[::2])
        _require(plain, "contains a dict whose keys are not names")
        self.stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))

    def new_list(self, _: Any) -> None:
        found = self._since_mark()
        self.stack.append(found)

    def new_tuple(self, _: Any) -> None:
        found = self._since_mark()
        self.stack.append(tuple(found))

    def last_as_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("the stack is too short")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def push_name(self, dotted: str) -> None:
        """Push the symbol of a name. `dotted`: module and name, separated by a space."""
        name = ".".join(dotted.split(" ", 1))
        _require(name in NAMES, f"tries to run {printable(name[:80])}")
        self.stack.append(NAMES[name])

    def push_name_on_stack(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.push_name(f"{_as_text(module)} {_as_text(name)}")

    def call(self, _: Any) -> None:
        arguments, called = self.stack.pop(), self.stack.pop()
        _require(isinstance(called, Name) and isinstance(arguments, tuple), "tries to run a value")
        self.stack.append(_call(called, arguments))

    def build(self, _: Any) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        _require(isinstance(target, _Unfinished) and isinstance(state, tuple), "sets the state of another object")
        target.value = self._finish(target, state)
        self.stack[-1] = target.value

    def _finish(self, target: _Unfinished, state: tuple[Any, ...]) -> Any:
        if target.dtype is not None:
            objects = self.boxed and target.dtype in ("O", "O8")
            return Name.OBJECT_DTYPE if objects else _make_dtype(target.dtype, state[1])
        _, shape, dtype, fortran, content = state
        if dtype is Name.OBJECT_DTYPE and isinstance(shape, tuple) and not shape and isinstance(content, list):
            (only,) = content
            return only
        return _make_array(shape, dtype, fortran, content)


def _call(name: Name, arguments: tuple[Any, ...]) -> object:
    """Return what a known function would make of its arguments."""
    match name, arguments:
        case Name.ENCODE, (str(text), "latin1" | "latin-1"):
            return text.encode("latin-1")
        case Name.BYTES, ():
            return b""
        case Name.DTYPE, (dtype, *_):
            return _Unfinished(dtype=_as_text(dtype))
        case Name.ARRAY, (Name.ARRAY_TYPE, *_):
            return _Unfinished()
        case Name.FROM_BUFFER, (content, dtype, shape, order):
            return _make_array(shape, dtype, order == "F", content)
    raise _NotPlain(f"calls {name.value} with unknown arguments")


def _push(make: Callable[[], object]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(make())


OPCODES: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, _: None),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _Machine.push_python2_string),
    "BYTEARRAY8": lambda machine, content: machine.stack.append(bytes(content)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.memoize),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.recall),
    "NONE": _push(lambda: None),
    "NEWTRUE": _push(lambda: True),
    "NEWFALSE": _push(lambda: False),
    "EMPTY_LIST": _push(list),
    "EMPTY_DICT": _push(dict),
    "EMPTY_TUPLE": _push(tuple),
    "MARK": _Machine.mark,
    "LIST": _Machine.new_list,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "DICT": _Machine.new_dict,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "TUPLE": _Machine.new_tuple,
    "TUPLE1": lambda machine, _: machine.last_as_tuple(1),
    "TUPLE2": lambda machine, _: machine.last_as_tuple(2),
    "TUPLE3": lambda machine, _: machine.last_as_tuple(3),
    "GLOBAL": _Machine.push_name,
    "STACK_GLOBAL": _Machine.push_name_on_stack,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}
