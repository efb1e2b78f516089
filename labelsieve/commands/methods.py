"""labelsieve methods: list the methods, their options and the criteria, or show the page of a method."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

import labelsieve
from labelsieve.errors import InputError, nearest

PACKAGE = Path(labelsieve.__file__).parent
PAGES = (PACKAGE / "method_pages", PACKAGE.parent / "docs" / "methods")  # in a wheel, and in a clone


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="a method, such as selfie")


def run(options: Namespace) -> None:
    print(page(options.name) if options.name else _listing())


def _listing() -> str:
    """Return all methods and criteria with their options."""
    from labelsieve.core.criteria import CRITERIA
    from labelsieve.methods import METHODS, keywords, options_of, summary

    lines = [_entry(name, summary(name), options_of(name)) for name in METHODS]
    lines += ["", "criteria (--criterion), for every method:"]
    lines += [_entry(name, (part.__doc__ or "").splitlines()[0], keywords(part)) for name, part in CRITERIA.items()]
    return "\n".join([*lines, "", "labelsieve methods NAME shows the page of a method."])


def _entry(name: str, summary: str, options: dict[str, object]) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"{name:16}{summary}" + (f"\n{'':16}options: {settings}" if settings else "")


def page(name: str) -> str:
    """Return the page of a method in docs/methods, or its entry in the list if it has none."""
    from labelsieve.methods import METHODS, options_of, summary

    if name not in METHODS:
        raise InputError(f"unknown method {name!r}: {nearest(name, METHODS)}")
    for folder in PAGES:
        path = folder / f"{name}.md"
        if path.exists():
            return path.read_text(encoding="utf-8").rstrip()
    return _entry(name, summary(name), options_of(name))
