"""The dependencies between the packages: every arrow is listed, points downwards, and is really used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "labelsieve"
STANDARD = sys.stdlib_module_names

# Each layer, from bottom to top, and the layers that it imports. runs.execute is listed apart: it lies above the rest.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "text": set(),
    "files": {"errors"},
    "progress": {"text"},
    "runtime": {"errors"},
    "catalogue": {"errors"},
    "core": {"errors"},
    "noise": {"catalogue", "errors", "runtime"},
    "methods": {"catalogue", "core", "errors", "runtime"},
    "loss": {"core", "errors", "methods"},
    "data": {"errors", "files", "progress", "runtime", "text"},
    "models": {"errors", "runtime"},
    "train": {"core", "errors", "files", "runtime"},
    "audit": {"errors", "files", "text"},
    "features": {"audit", "catalogue", "data", "errors", "files", "models", "runtime"},
    "quality": {"audit", "data", "errors", "features"},
    "runs": {
        *("catalogue", "core", "data", "errors", "features", "files", "noise", "progress", "runtime", "text", "train"),
    },
    "predict": {"data", "errors", "features", "files", "models", "runs", "runtime", "train"},
    "export": {"data", "errors", "features", "files", "models", "predict"},
    "__init__": {"core", "loss", "methods", "predict", "quality"},  # the public names, imported when they are used
    "runs.execute": {
        *("__init__", "core", "data", "errors", "features", "files", "methods", "models", "noise", "predict", "runs"),
        *("runtime", "train"),
    },
    "config": {"errors", "files", "runs", "text"},
    "review": {"data", "errors", "features", "files", "predict", "runs", "text"},
    "report": {"audit", "errors", "files", "review", "runs", "text"},
    "auto": {
        *("audit", "catalogue", "core", "data", "errors", "features", "files", "methods", "models"),
        *("progress", "quality", "review", "runs", "runs.execute", "runtime", "text", "train"),
    },
    "sweep": {
        *("catalogue", "data", "errors", "features", "files", "models", "noise", "runs", "runs.execute", "runtime"),
        *("text", "train"),
    },
    "paper": {"catalogue", "data", "errors", "files", "methods", "noise", "runs", "runtime", "sweep"},
    "integrations": {"audit", "core", "data", "errors", "loss", "methods", "models", "quality", "runtime", "train"},
    "commands": {
        *("__init__", "audit", "auto", "catalogue", "config", "data", "errors", "export", "features", "files"),
        *("noise", "paper"),
        *("predict", "progress", "report", "review", "runs", "runs.execute", "runtime", "sweep", "text"),
    },
    "cli": {"__init__", "commands", "config", "errors"},
    "__main__": {"cli"},
}
LIBRARIES: dict[str, set[str]] = {
    "progress": {"rich"},
    "runtime": {"torch"},
    "core": {"torch"},
    "noise": {"torch"},
    "methods": {"torch"},
    "loss": {"torch"},
    "data": {"PIL", "numpy", "simplejpeg", "torch"},  # and pyarrow, by name
    "models": {"numpy", "safetensors", "torch", "triton"},  # and timm, by name
    "train": {"safetensors", "torch", "triton"},
    "audit": {"PIL", "numpy"},  # and pyarrow, by name
    "features": {"numpy", "safetensors", "torch"},  # and timm, tokenizers and transformers, by name
    "quality": {"numpy", "torch"},
    "runs": {"numpy", "safetensors", "torch"},  # and wandb and mlflow, by name
    "predict": {"numpy", "safetensors", "torch"},
    "export": {"PIL", "numpy", "safetensors", "torch"},  # and onnx, onnxruntime and transformers, by name
    "runs.execute": {"torch"},
    "review": {"PIL", "numpy", "torch"},  # contents alone, which the server opens in the background
    "report": {"jinja2", "markupsafe", "numpy"},
    "auto": {"numpy", "safetensors", "torch"},
    "sweep": {"grpc", "matplotlib", "numpy", "ray", "rich", "torch"},
    "paper": {"matplotlib", "numpy"},
    "integrations": {"lightning", "numpy", "sklearn", "torch", "transformers"},
}
WITHOUT_TORCH = (
    "cli",
    "catalogue",
    "config",
    "audit",
    "quality",
    "report.page",
    "review.session",
    "review.export",
    "review.imports",
    "runs.read",
    "runs.spec",
    "runs.find",
    "sweep.address",
    "runs.track",
)
MOST_MODULES = 16  # in a folder


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


def test_every_dependency_is_listed_and_used():
    layers, libraries = dependencies()
    assert {name: layers.get(name, set()) for name in ARROWS} == ARROWS
    assert set(layers) <= set(ARROWS)
    assert libraries == LIBRARIES


def test_arrows_point_downwards():
    order = list(ARROWS)
    for layer, targets in ARROWS.items():
        assert all(order.index(target) < order.index(layer) for target in targets), layer


def test_training_does_not_import_reports_and_nothing_imports_commands():
    for layer in ("core", "methods", "data", "models", "train", "runs", "runs.execute", "auto", "sweep", "paper"):
        assert "report" not in ARROWS[layer]
    assert [layer for layer, targets in ARROWS.items() if "commands" in targets] == ["cli"]


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_import_needs_no_torch(module):
    code = f"import sys, labelsieve.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_folders_are_small():
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        assert len(list(folder.glob("*.py"))) <= MOST_MODULES, f"{folder} has too many modules: merge two"
