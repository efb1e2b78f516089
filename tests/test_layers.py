"""The dependency arrows: core <- methods <- train <- experiments <- cli, and never the other way."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "labelsieve"
LEAVES = {"errors", "cells", "mixups", "files", "randomness", "devices"}
MAY_IMPORT = {
    "__init__": {"audit", "core", "methods", "predict"},
    "__main__": {"cli"},
    "errors": set(),
    "cells": set(),
    "mixups": set(),
    "files": {"errors"},
    "audit": {"errors", "cells", "mixups"},
    "devices": {"errors"},
    "randomness": set(),
    "core": set(),
    "methods": {"core"} | LEAVES,
    "noise": LEAVES,
    "data": LEAVES,
    "models": LEAVES,
    "train": {"core", "methods"} | LEAVES,
    "predict": {"data", "models"} | LEAVES,
    "progress": set(),
    "report": {"errors", "cells", "mixups", "files"},
    "review": {"errors", "cells", "files", "report"},
    "experiments": {"core", "methods", "noise", "data", "models", "train", "predict", "progress", "report", "audit", ""}
    | LEAVES,
    "integrations": {"core", "methods", "data", "models", "train", "audit"} | LEAVES,
    "options": set(),
    "cli": {"experiments", "review", "options", "errors", ""},
}
MAY_USE = {
    "core": {"torch"},
    "methods": {"torch"},
    "noise": {"torch"},
    "models": {"torch", "triton", "numpy", "safetensors", "timm"},
    "data": {"torch", "numpy", "PIL", "simplejpeg", "pyarrow"},
    "train": {"torch", "safetensors"},
    "predict": {"torch", "numpy", "safetensors"},
    "report": {"numpy", "safetensors", "matplotlib", "jinja2", "markupsafe"},
    "progress": {"rich"},
    "audit": {"numpy", "PIL", "pyarrow"},
    "experiments": {"torch", "numpy", "rich", "ray"},
    "integrations": {"torch", "numpy", "sklearn", "lightning", "transformers"},
    "cli": {"tyro"},
    "options": {"tyro"},
    "devices": {"torch"},
    "randomness": {"torch"},
}
STANDARD = __import__("sys").stdlib_module_names


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{a.name}" for a in node.names} if node.module == "labelsieve" else {node.module}
    return names


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_one_way(path):
    layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    ours = {name for name in imports(path) if name.split(".")[0] == "labelsieve"}
    layers = {[*name.split("."), ""][1] for name in ours}
    assert layers - {layer} <= MAY_IMPORT[layer]
    theirs = {name.split(".")[0] for name in imports(path)} - STANDARD - {"labelsieve"}
    assert theirs <= MAY_USE.get(layer, set())


def test_every_layer_has_its_rule():
    assert {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in FILES} == set(MAY_IMPORT)
