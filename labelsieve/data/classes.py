"""names: labels of any kind become class numbers, 0 to K - 1."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelsieve.errors import InputError

Array = np.ndarray[Any, Any]
MISSING = frozenset(("", "NA", "N/A", "<NA>", "NaN", "nan", "None", "null", "NULL"))
IDS_BEYOND = 20  # samples, from which a class for each of them is no accident
LARGEST = 2**63 - 1
NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
WHOLE = re.compile(r"-?(0|[1-9][0-9]*)(\.0+)?")
DIGITS = re.compile(r"[0-9]+")
PLAIN_NUMBER = re.compile(r"[-+]?[0-9]{1,40}(\.[0-9]{1,40})?")
LONGEST_SHOWN, LONGEST_NUMBER = 60, 40  # characters
Labels = Sequence[Any] | Array
Place = Callable[[int], str]  # where a distinct label is first used


def numbered(labels: Labels, source: str, rows: Sequence[str] | None = None) -> tuple[Tensor, tuple[str, ...]]:
    """Class numbers (n) and the names of the classes.

    Words are sorted as words, whole numbers (also as text, also 1.0) as numbers, false before true. `rows` says where
    each label stands, for messages.
    """
    codes, distinct = coded(labels)
    if len(distinct) == len(codes) > IDS_BEYOND:
        raise InputError(
            f"{source}: each of the {len(codes):,} samples has a label of its own; "
            "the column looks like an id, not a label: name another one"
        )
    keys = _keys(distinct, lambda code: _place(codes, code, source, rows), source)
    classes = sorted(set(keys))
    if len(classes) < 2:
        raise InputError(
            f"{source} has {'only the class ' + repr(_name(classes[0])) if classes else 'no labels'}; "
            "at least two classes are needed"
        )
    number = {key: k for k, key in enumerate(classes)}
    of_code = np.array([number[key] for key in keys], dtype=np.int64)
    return torch.from_numpy(of_code[codes]), tuple(_name(key) for key in classes)


def missing(labels: Labels) -> Array:
    """Which labels are not there (n), as booleans: empty, null, not a number, or a text such as NA."""
    codes, distinct = coded(labels)
    return np.array([_is_missing(label) for label in distinct], dtype=bool)[codes]


def coded(labels: Labels) -> tuple[Array, list[Any]]:
    """The distinct labels in the order of their first use, and for each sample which of them it has, (n) int64."""
    values = labels.tolist() if isinstance(labels, np.ndarray) else labels
    code: dict[Any, int] = {}
    codes = np.fromiter((code.setdefault(value, len(code)) for value in values), np.int64, len(values))
    return codes, list(code)


def shown(value: Any) -> str:
    """A value as one short line."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _is_missing(label: Any) -> bool:
    if isinstance(label, bytes):
        return not label.strip()
    if isinstance(label, str):
        return label.strip() in MISSING
    return label is None or label != label  # only NaN differs from itself


def _keys(distinct: list[Any], place: Place, source: str) -> list[Any]:
    """What each distinct label is sorted and named by: all words, all whole numbers, or all booleans."""
    for code, label in enumerate(distinct):
        if _is_missing(label):
            raise InputError(f"{place(code)} has no label; give it one or leave the sample out")
    plain: list[Any] = [
        _text(label, code, place) if isinstance(label, bytes) else label for code, label in enumerate(distinct)
    ]
    kinds = {"number" if type(label) in (int, float) else type(label).__name__ for label in plain}
    if len(kinds) > 1:
        raise InputError(f"{source}: the labels mix {' and '.join(sorted(kinds))}; write all of one kind")
    if kinds == {"str"}:
        return _keys_of_texts(plain, place, source)
    if kinds == {"number"}:
        return [_whole(label, code, place) for code, label in enumerate(plain)]
    if kinds <= {"bool"}:
        return plain
    raise InputError(f"{source}: labels must be words or whole numbers, got {kinds.pop()}")


def _keys_of_texts(texts: list[str], place: Place, source: str) -> list[Any]:
    _refuse_twins(texts, source)
    stripped = [text.strip() for text in texts]
    numbers = [text for text in stripped if NUMBER.fullmatch(text)]
    if not numbers:
        return stripped
    if len(numbers) < len(stripped):
        word = next(text for text in stripped if not NUMBER.fullmatch(text))
        raise InputError(
            f"{source}: the labels mix numbers ({shown(numbers[0])}) and words ({shown(word)}); write all of one kind"
        )
    if all(DIGITS.fullmatch(text) for text in stripped) and not all(WHOLE.fullmatch(text) for text in stripped):
        return stripped  # 01, 02: names that happen to be of digits
    return [_whole_text(text, code, place) for code, text in enumerate(stripped)]


def _whole_text(text: str, code: int, place: Place) -> int:
    if not WHOLE.fullmatch(text):
        raise InputError(f"{place(code)}: label {shown(text)} is not a whole number; write whole numbers or words")
    digits = text.partition(".")[0]
    return _whole(int(digits) if len(digits) <= LONGEST_NUMBER else LARGEST + 1, code, place)


def _whole(number: float, code: int, place: Place) -> int:
    if number in (float("inf"), float("-inf")) or number != int(number):
        raise InputError(f"{place(code)}: label {number} is not a whole number; write whole numbers or words")
    if abs(number) > LARGEST:
        raise InputError(f"{place(code)}: the label is too large; number the classes from 0")
    return int(number)


def _refuse_twins(texts: list[str], source: str) -> None:
    first: dict[Any, str] = {}
    for text in texts:
        other = first.setdefault(_alike(text), text)
        if other != text:
            raise InputError(
                f"{source}: the labels {shown(other)} and {shown(text)} look like one class; "
                "write both the same way, or name them apart"
            )


def _alike(text: str) -> str | Fraction:
    """The same for texts that people take for the same: other case, spaces, 01 and 1, 1.0 and 1."""
    plain = unicodedata.normalize("NFKC", text).strip().casefold()
    return Fraction(plain) if plain.isascii() and PLAIN_NUMBER.fullmatch(plain) else plain


def _text(label: bytes, code: int, place: Place) -> str:
    try:
        return label.decode()
    except UnicodeDecodeError:
        raise InputError(f"{place(code)}: label {label[:40]!r} is not UTF-8 text") from None


def _name(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _place(codes: Array, code: int, source: str, rows: Sequence[str] | None) -> str:
    row = int(np.flatnonzero(codes == code)[0])
    return f"{source}, position {row}" if rows is None else rows[row]
