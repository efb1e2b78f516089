"""The dependencies between the packages: every arrow is listed, points downwards, and is really used."""

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "labelsieve"
STANDARD = sys.stdlib_module_names

# From bottom to top: each layer, and the layers that it imports. runs is split, because all but execute lie below it.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "text": set(),
}
# Third-party packages that each layer imports.
LIBRARIES: dict[str, set[str]] = {}
NEEDS_NO_TORCH = ("audit", "report", "review", "commands", "cli", "errors", "files", "text", "progress")


def layer_of(parts: tuple[str, ...]) -> str:
    """Return the layer of a module given as path parts below the package."""
    if parts[:2] == ("runs", "execute"):
        return "runs.execute"
    return parts[0] if parts else "__init__"


def imported_modules(path: Path) -> set[str]:
    """Return every module that a file imports, at any place in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = str(node.module)
            in_package = base.startswith("labelsieve") and base.count(".") < 2
            names |= {f"{base}.{alias.name}" for alias in node.names} if in_package else {base}
    return names


def dependencies() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the layers and the third-party packages that each layer imports."""
    layers: dict[str, set[str]] = {}
    libraries: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        layer = layer_of(path.relative_to(PACKAGE).with_suffix("").parts)
        for name in imported_modules(path):
            first, *rest = name.split(".")
            if first == "labelsieve":
                target = layer_of(tuple(rest)) if rest and not rest[0].startswith("__version") else "__init__"
                layers.setdefault(layer, set()).update({target} - {layer})
            elif first not in STANDARD:
                libraries.setdefault(layer, set()).add(first)
    return layers, libraries
