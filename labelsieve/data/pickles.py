"""plain_pickle: a pickle read as data. Its instructions are walked here, nothing of it is imported, made or called.

It may hold None, truth values, numbers, text, bytes, lists, tuples, dicts and arrays of numbers; that is all that
published label and image files need."""

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

from labelsieve.errors import InputError

Array = np.ndarray[Any, Any]
NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")  # dtypes that an array may have
VALUES = {  # instructions that push what stands in the file
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
FAULTS = (ValueError, IndexError, KeyError, TypeError, AttributeError, AssertionError, OverflowError, MemoryError)


class Known(Enum):
    """What a file may name of other modules; each only stands for itself."""

    ARRAY = "begins an array"
    ARRAY_TYPE = "numpy.ndarray"
    DTYPE = "begins a dtype"
    OBJECTS = "the dtype of a box"
    FILLED = "makes an array of bytes"
    ENCODE = "turns text into bytes"
    BYTES = "makes no bytes at all"


KNOWN = {
    "numpy.core.multiarray._reconstruct": Known.ARRAY,
    "numpy._core.multiarray._reconstruct": Known.ARRAY,
    "numpy.core.numeric._frombuffer": Known.FILLED,
    "numpy._core.numeric._frombuffer": Known.FILLED,
    "numpy.ndarray": Known.ARRAY_TYPE,
    "numpy.dtype": Known.DTYPE,
    "_codecs.encode": Known.ENCODE,
    "__builtin__.bytes": Known.BYTES,
}


class _NotPlain(ValueError):
    """Something that plain data does not need; the message goes on after the file's name."""


@dataclass(eq=False)
class _Begun:
    """An array or a dtype whose state comes later in the file."""

    dtype: str | None = None  # its name, of a dtype
    whole: object = None


def load_plain(source: bytes | BinaryIO, path: Path | str, boxed: bool = False) -> Any:
    """The next pickled value, with Python 2's strings as bytes. `boxed`: it lies in an array of one object."""
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd backslashes in a damaged file
            return _Walk(boxed).run(stream)
    except _NotPlain as error:
        raise InputError(f"{path} {error}; it is not the published file") from None
    except FAULTS as error:
        raise InputError(f"{path} is cut off or damaged: it is no whole pickle; download it again") from error


def array_of(shape: object, dtype: object, fortran: object, content: object) -> Array:
    """The array that these parts of a file make."""
    if not isinstance(dtype, np.dtype) or not isinstance(shape, tuple) or not isinstance(content, bytes):
        raise _NotPlain("has an array that does not hold numbers")
    if any(type(size) is not int or not 0 <= size < 2**40 for size in shape) or len(shape) > 8:
        raise _NotPlain("has an array of an impossible shape")
    if math.prod(shape) * dtype.itemsize != len(content):
        raise _NotPlain(f"has an array of shape {shape} but {len(content):,} bytes for it")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def dtype_of(name: str, order: object) -> np.dtype[Any]:
    """The dtype of this name and byte order, if it is one of numbers."""
    order = _text(order)
    if not NUMBERS.fullmatch(name) or order not in ("<", ">", "|", "="):
        raise _NotPlain(f"has an array of dtype {shown(name)}")
    return np.dtype(order + name)


def shown(text: str) -> str:
    """Text of a file as it may stand in a message."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:80])


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, str):
        return value
    raise _NotPlain("has something else where a name belongs")


@dataclass
class _Walk:
    """The stack and the memory of one walk."""

    boxed: bool
    stack: list[Any] = field(default_factory=list)
    below: list[list[Any]] = field(default_factory=list)  # stacks under the marks
    memory: dict[int, Any] = field(default_factory=dict)

    def run(self, stream: BinaryIO) -> Any:
        steps = STEPS
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name in VALUES:
                self.stack.append(argument)
            elif opcode.name in steps:
                steps[opcode.name](self, argument)
            else:
                raise _NotPlain(_unknown(opcode.name, argument))
        return self._pop()

    def _pop(self) -> Any:
        return self.stack.pop()

    def _since_mark(self) -> list[Any]:
        found, self.stack = self.stack, self.below.pop()
        return found

    def mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

    def old_string(self, text: str) -> None:
        self.stack.append(text.encode("latin-1"))

    def memorise(self, index: int | None) -> None:
        self.memory[len(self.memory) if index is None else int(index)] = self.stack[-1]

    def remember(self, index: int) -> None:
        found = self.memory[int(index)]
        whole = isinstance(found, _Begun) and found.whole is not None
        self.stack.append(found.whole if whole else found)

    def append(self, _: Any) -> None:
        self._extend([self._pop()])

    def appends(self, _: Any) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise _NotPlain("adds to something that is no list")
        self.stack[-1].extend(items)

    def set_item(self, _: Any) -> None:
        value, key = self._pop(), self._pop()
        self._update([key, value])

    def set_items(self, _: Any) -> None:
        self._update(self._since_mark())

    def new_dict(self, _: Any) -> None:
        pairs = self._since_mark()
        self.stack.append({})
        self._update(pairs)

    def _update(self, pairs: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict) or any(type(key) not in (str, bytes, int) for key in pairs[::2]):
            raise _NotPlain("has a dict with keys that are no names")
        self.stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))

    def new_list(self, _: Any) -> None:
        found = self._since_mark()
        self.stack.append(found)

    def new_tuple(self, _: Any) -> None:
        found = self._since_mark()
        self.stack.append(tuple(found))

    def last_as_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("the stack is empty")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def name(self, dotted: str) -> None:
        """`dotted`: module and name with a space between."""
        called = ".".join(dotted.split(" ", 1))
        if called not in KNOWN:
            raise _NotPlain(f"wants to run {shown(called)}")
        self.stack.append(KNOWN[called])

    def name_on_stack(self, _: Any) -> None:
        name, module = self._pop(), self._pop()
        self.name(f"{_text(module)} {_text(name)}")

    def call(self, _: Any) -> None:
        arguments, called = self._pop(), self._pop()
        if not isinstance(called, Known) or not isinstance(arguments, tuple):
            raise _NotPlain("wants to run something that is no function")
        self.stack.append(_called(called, arguments))

    def build(self, _: Any) -> None:
        state, begun = self._pop(), self.stack[-1]
        if not isinstance(begun, _Begun) or not isinstance(state, tuple):
            raise _NotPlain("gives a state to something that is no array")
        begun.whole = self._whole(begun, state)
        self.stack[-1] = begun.whole

    def _whole(self, begun: _Begun, state: tuple[Any, ...]) -> Any:
        if begun.dtype is not None:
            boxing = self.boxed and begun.dtype in ("O", "O8")
            return Known.OBJECTS if boxing else dtype_of(begun.dtype, state[1])
        _, shape, dtype, fortran, content = state
        if dtype is Known.OBJECTS and isinstance(shape, tuple) and not shape and isinstance(content, list):
            (only,) = content
            return only
        return array_of(shape, dtype, fortran, content)


def _called(name: Known, arguments: tuple[Any, ...]) -> object:
    match name, arguments:
        case Known.ENCODE, (str(text), "latin1" | "latin-1"):
            return text.encode("latin-1")
        case Known.BYTES, ():
            return b""
        case Known.DTYPE, (dtype, *_):
            return _Begun(dtype=_text(dtype))
        case Known.ARRAY, (Known.ARRAY_TYPE, *_):
            return _Begun()
        case Known.FILLED, (content, dtype, shape, order):
            return array_of(shape, dtype, order == "F", content)
    raise _NotPlain(f"calls what {name.value} in an unknown way")


def _unknown(opcode: str, argument: object) -> str:
    if opcode == "INST":
        return f"wants to run {shown('.'.join(str(argument).split(' ', 1)))}"
    return f"is not plain data (it has the instruction {opcode})"


def _push(make: Callable[[], object]) -> Callable[[_Walk, Any], None]:
    return lambda walk, _: walk.stack.append(make())


STEPS: dict[str, Callable[[_Walk, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda walk, _: None),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _Walk.old_string),
    "BYTEARRAY8": lambda walk, content: walk.stack.append(bytes(content)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Walk.memorise),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Walk.remember),
    "NONE": _push(lambda: None),
    "NEWTRUE": _push(lambda: True),
    "NEWFALSE": _push(lambda: False),
    "EMPTY_LIST": _push(list),
    "EMPTY_DICT": _push(dict),
    "EMPTY_TUPLE": _push(tuple),
    "MARK": _Walk.mark,
    "LIST": _Walk.new_list,
    "APPEND": _Walk.append,
    "APPENDS": _Walk.appends,
    "DICT": _Walk.new_dict,
    "SETITEM": _Walk.set_item,
    "SETITEMS": _Walk.set_items,
    "TUPLE": _Walk.new_tuple,
    "TUPLE1": lambda walk, _: walk.last_as_tuple(1),
    "TUPLE2": lambda walk, _: walk.last_as_tuple(2),
    "TUPLE3": lambda walk, _: walk.last_as_tuple(3),
    "GLOBAL": _Walk.name,
    "STACK_GLOBAL": _Walk.name_on_stack,
    "REDUCE": _Walk.call,
    "BUILD": _Walk.build,
}
