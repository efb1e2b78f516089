"""Convert labels of any kind to class indices 0 to K - 1, and format values for messages."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelsieve.errors import InputError
from labelsieve.text import listed

Array = np.ndarray[Any, Any]
Labels = Sequence[Any] | Array
Place = Callable[[int], str]  # code of a distinct label -> where it is first used

MISSING = frozenset(("", "NA", "N/A", "<NA>", "NaN", "nan", "None", "null", "NULL"))
MAX_DISTINCT_ONLY = 20  # with more samples, a distinct label for each of them means that the column is an id
LARGEST = 2**63 - 1
NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
WHOLE = re.compile(r"-?(0|[1-9][0-9]*)(\.0+)?")
DIGITS = re.compile(r"[0-9]+")
SHORT_NUMBER = re.compile(r"[-+]?[0-9]{1,40}(\.[0-9]{1,40})?")
MAX_DIGITS = 40
MAX_QUOTED = 60  # characters


class SingleClass(InputError):
    """All labels are of one class, from which nothing can be learned."""


def encode_labels(labels: Labels, source: str, rows: Sequence[str] | None = None) -> tuple[Tensor, tuple[str, ...]]:
    """Return class indices (n) int64 and the sorted class names.

    Strings are sorted as strings, integers (also as text, also 1.0) as numbers, false before true.
    `rows`: names of the rows, for messages.
    """
    codes, distinct = factorize(labels)
    if len(distinct) == len(codes) > MAX_DISTINCT_ONLY:
        raise InputError(
            f"{source}: all {len(codes):,} samples have different labels; "
            "the column seems to be an id, choose another label column"
        )
    keys = _sort_keys(distinct, lambda code: _first_place(codes, code, source, rows), source)
    classes = sorted(set(keys))
    if len(classes) < 2:
        if not classes:
            raise InputError(f"{source} has no labels; at least two classes are needed")
        raise SingleClass(f"{source} has only the class {_class_name(classes[0])!r}; at least two classes are needed")
    index = {key: k for k, key in enumerate(classes)}
    index_of_code = np.array([index[key] for key in keys], dtype=np.int64)
    return torch.from_numpy(index_of_code[codes]), tuple(_class_name(key) for key in classes)


def missing_labels(labels: Labels) -> Array:
    """Return which labels are missing, (n) bool: empty, null, NaN, or a text such as NA."""
    codes, distinct = factorize(labels)
    return np.array([_is_missing(label) for label in distinct], dtype=bool)[codes]


def factorize(labels: Labels) -> tuple[Array, list[Any]]:
    """Return the code of each label, (n) int64, and the distinct labels in order of first use."""
    values = labels.tolist() if isinstance(labels, np.ndarray) else labels
    code: dict[Any, int] = {}
    codes = np.fromiter((code.setdefault(value, len(code)) for value in values), np.int64, len(values))
    return codes, list(code)


def quote(value: Any) -> str:
    """Return a value as one short line for a message."""
    text = repr(value)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."


def join_names(names: Iterable[str], limit: int = 12) -> str:
    """Return names separated by commas, with the number of those beyond the limit."""
    return listed((quote(name)[1:-1] for name in names), limit)


def _is_missing(label: Any) -> bool:
    if isinstance(label, bytes):
        return not label.strip()
    if isinstance(label, str):
        return label.strip() in MISSING
    return label is None or label != label  # NaN


def _sort_keys(distinct: list[Any], place: Place, source: str) -> list[Any]:
    """Return the value that each distinct label is sorted and named by: all strings, all integers or all booleans."""
    for code, label in enumerate(distinct):
        if _is_missing(label):
            raise InputError(f"{place(code)} has no label; add one or remove the sample")
    plain: list[Any] = [
        _decode(label, code, place) if isinstance(label, bytes) else label for code, label in enumerate(distinct)
    ]
    kinds = {"number" if type(label) in (int, float) else type(label).__name__ for label in plain}
    if kinds == {"str"}:
        return _text_keys(plain, place, source)
    if kinds == {"number"}:
        return [_integer(label, code, place) for code, label in enumerate(plain)]
    if kinds <= {"bool"}:
        return plain
    found = " and ".join(sorted(kinds))
    raise InputError(f"{source}: labels must be all strings, all integers or all booleans, got {found}")


def _text_keys(texts: list[str], place: Place, source: str) -> list[Any]:
    _check_similar(texts, source)
    stripped = [text.strip() for text in texts]
    numbers = [text for text in stripped if NUMBER.fullmatch(text)]
    if not numbers:
        return stripped
    if len(numbers) < len(stripped):
        word = next(text for text in stripped if not NUMBER.fullmatch(text))
        raise InputError(
            f"{source}: the labels mix numbers ({quote(numbers[0])}) and words ({quote(word)}); use one kind"
        )
    if all(DIGITS.fullmatch(text) for text in stripped) and not all(WHOLE.fullmatch(text) for text in stripped):
        return stripped  # names made of digits: 01, 02
    return [_integer_text(text, code, place) for code, text in enumerate(stripped)]


def _integer_text(text: str, code: int, place: Place) -> int:
    digits = text.partition(".")[0]
    if WHOLE.fullmatch(text):
        return _integer(int(digits) if len(digits) <= MAX_DIGITS else LARGEST + 1, code, place)
    raise InputError(f"{place(code)}: label {quote(text)} is not an integer; use integers or words")


def _integer(number: float, code: int, place: Place) -> int:
    if number in (float("inf"), float("-inf")) or number != int(number):
        raise InputError(f"{place(code)}: label {number} is not an integer; use integers or words")
    if abs(number) > LARGEST:
        raise InputError(f"{place(code)}: the label is too large; number the classes from 0")
    return int(number)


def _check_similar(texts: list[str], source: str) -> None:
    """Raise if two labels differ only in case, spaces or number format."""
    first: dict[Any, str] = {}
    for text in texts:
        other = first.setdefault(_normal_form(text), text)
        if other != text:
            raise InputError(
                f"{source}: the labels {quote(other)} and {quote(text)} look like one class; "
                "make them equal, or rename one"
            )


def _normal_form(text: str) -> str | Fraction:
    """Return the same value for texts that people read as equal: other case or spaces, 01 and 1, 1.0 and 1."""
    plain = unicodedata.normalize("NFKC", text).strip().casefold()
    return Fraction(plain) if plain.isascii() and SHORT_NUMBER.fullmatch(plain) else plain


def _decode(label: bytes, code: int, place: Place) -> str:
    try:
        return label.decode()
    except UnicodeDecodeError:
        raise InputError(f"{place(code)}: label {label[:40]!r} is not UTF-8 text") from None


def _class_name(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _first_place(codes: Array, code: int, source: str, rows: Sequence[str] | None) -> str:
    row = int(np.flatnonzero(codes == code)[0])
    return f"{source}, position {row}" if rows is None else rows[row]
