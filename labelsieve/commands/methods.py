"""labelsieve methods: list the methods, their options and the criteria, or show the page of a method."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

import labelsieve
from labelsieve.catalogue import criteria, methods, options_of, refuse_unknown_name
from labelsieve.text import plain_equations

PACKAGE = Path(labelsieve.__file__).parent
PAGES = (PACKAGE / "method_pages", PACKAGE.parent / "docs" / "methods")  # in a wheel, and in a clone


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="a method, such as selfie")


def run(options: Namespace) -> None:
    print(plain_equations(page(options.name)) if options.name else _listing())


def _listing() -> str:
    """Return all methods and criteria with their options."""
    lines = [_entry(name, entry.summary, options_of(name)) for name, entry in methods().items()]
    lines += ["", "criteria (--criterion), for every method:"]
    lines += [_entry(name, entry.summary, entry.options) for name, entry in criteria().items()]
    return "\n".join([*lines, "", "labelsieve methods NAME shows the page of a method."])


def _entry(name: str, summary: str, options: dict[str, object]) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"{name:16}{summary}" + (f"\n{'':16}options: {settings}" if settings else "")


def page(name: str) -> str:
    """Return the page of a method in docs/methods, or its entry in the list if it has none."""
    refuse_unknown_name("method", name, methods())
    for folder in PAGES:
        path = folder / f"{name}.md"
        if path.exists():
            return path.read_text(encoding="utf-8").rstrip()
    return _entry(name, methods()[name].summary, options_of(name))
