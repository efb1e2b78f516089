"""The catalogue of methods: a line each, and a page each."""

from pathlib import Path

import labelsieve
from labelsieve.core.criteria import CRITERIA
from labelsieve.errors import InputError, nearest
from labelsieve.methods import METHODS, keywords, options_of, summary

PACKAGE = Path(labelsieve.__file__).parent
FOLDERS = (PACKAGE / "method_pages", PACKAGE.parent / "docs" / "methods")  # installed, and in a clone


def listing() -> str:
    """Methods and criteria with their options."""
    lines = [entry(name, summary(name), options_of(name)) for name in METHODS]
    lines += ["", "criteria (--criterion), for every method:"]
    lines += [entry(name, (part.__doc__ or "").splitlines()[0], keywords(part)) for name, part in CRITERIA.items()]
    return "\n".join([*lines, "", "labelsieve methods NAME shows the page of a method."])


def entry(name: str, what: str, options: dict[str, object]) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"{name:16}{what}" + (f"\n{'':16}options: {settings}" if settings else "")


def page(name: str) -> str:
    """What docs/methods says of a method; of one that has no page there, what its recipe says."""
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}: {nearest(name, METHODS)}")
    for folder in FOLDERS:
        path = folder / f"{name}.md"
        if path.exists():
            return path.read_text(encoding="utf-8").rstrip()
    return entry(name, summary(name), options_of(name))
