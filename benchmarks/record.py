"""What the records of benchmarks have in common: commit, machine and versions, and files with one JSON row per line."""

import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import labelsieve
from labelsieve.runtime import device_name

ROOT = Path(__file__).parents[1]
NOT_INSTALLED = "not installed"
Row = dict[str, Any]


def commit_of(checkout: Path = ROOT) -> str:
    """Return the short hash of the commit of a checkout; empty outside git."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False).stdout.strip()


def made_here(*packages: str) -> Row:
    """Return commit, number of cores, and versions of Python and of packages."""
    return {
        "commit": commit_of(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def made_on(device: str) -> Row:
    """Return device, versions (also of peers, which may be missing) and commit."""
    versions = {"python": platform.python_version(), "labelsieve": labelsieve.__version__}
    for package in ("torch", "numpy", "cleanlab", "scikit-learn"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = NOT_INSTALLED
    return {"device": device_name(device), "versions": versions, "commit": commit_of()}


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file; empty if there is none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def add_row(path: Path, row: Row) -> None:
    """Append a row to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
