"""Damages to files: each is a plain value, so that a failing one can be repeated."""

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

KINDS = ("flip", "cut", "delete", "empty", "zeros", "append", "swap", "json")
WRONG_VALUES: tuple[Any, ...] = (None, "x", [], {}, -1, 10**9, 1e308, True, "１２", [[[]]], 0.5, "../../etc/passwd")
NESTED = b"[" * 100_000  # deeper than any reader may recurse


@dataclass(frozen=True)
class Damage:
    """A damage to one of the files of a folder; numbers are taken modulo what there is."""

    kind: str
    file: int
    place: int = 0
    value: int = 0

    def apply(self, folder: Path) -> str:
        """Damage a file and return its name in the folder."""
        kinds = kinds_of_files(folder)
        file = _chosen(kinds, self.file)
        content = bytearray(file.read_bytes())
        name = str(file.relative_to(folder))
        if self.kind == "delete":
            file.unlink()
        elif self.kind == "swap":
            other = _chosen(kinds, self.place)
            file.write_bytes(other.read_bytes())
            other.write_bytes(content)
            name = f"{name} {other.relative_to(folder)}"
        elif self.kind == "json" and file.suffix in (".json", ".jsonl"):
            file.write_bytes(_with_wrong_value(bytes(content), self.place, self.value))
        else:
            file.write_bytes(_damaged(self.kind, content, self.place, self.value))
        return name


def damageable(folder: Path) -> list[Path]:
    """Return the files of a run folder that are read back."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in ("lock", "report.html"))


def kinds_of_files(folder: Path) -> list[list[Path]]:
    """Return the files of a run folder, those together whose names differ in numbers only, such as thumbnails."""
    kinds: dict[str, list[Path]] = {}
    for file in damageable(folder):
        kinds.setdefault(re.sub(r"\d+", "0", str(file.relative_to(folder))), []).append(file)
    return list(kinds.values())


def _chosen(kinds: list[list[Path]], number: int) -> Path:
    """Return a file: every kind is equally likely, and so is every file of a kind."""
    kind = kinds[number % len(kinds)]
    return kind[number // len(kinds) % len(kind)]


def _damaged(kind: str, content: bytearray, place: int, value: int) -> bytes:
    """Return damaged bytes."""
    at = place % max(1, len(content))
    if kind == "cut":
        return bytes(content[:at])
    if kind == "empty":
        return b""
    if kind == "append":
        return bytes(content) + (NESTED if value % 2 else random.Random(value).randbytes(20))
    if kind == "zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    elif content:
        content[at] ^= 1 << value % 8
    return bytes(content)


def _with_wrong_value(content: bytes, place: int, value: int) -> bytes:
    """Return JSON, or one line of JSON lines, with another value at one place."""
    lines = content.split(b"\n")
    try:
        whole, lines, number = json.loads(content), [content], 0
    except ValueError:
        number = place % max(1, len(lines) - 1)
        whole = json.loads(lines[number])
    places = list(_places(whole))
    if places:
        parent, key = places[place % len(places)]
        parent[key] = WRONG_VALUES[value % len(WRONG_VALUES)]
    lines[number] = json.dumps(whole).encode()
    return b"\n".join(lines)


def _places(value: Any) -> Any:
    """Yield every (container, key) in a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


NUMBERS = st.integers(0, 2**40)
DAMAGES = st.builds(Damage, st.sampled_from(KINDS), NUMBERS, NUMBERS, NUMBERS)
