"""Labelled data: by name, or from a file."""

from collections.abc import Callable
from pathlib import Path

from labelsieve.data.arrays import read_npz
from labelsieve.data.fashion import load_fashion
from labelsieve.data.resident import Labelled
from labelsieve.errors import InputError

DATASETS: dict[str, Callable[[], tuple[Labelled, Labelled | None]]] = {"fashion": load_fashion}


def load_data(source: str) -> tuple[Labelled, Labelled | None]:
    """Training set and, where there is one, test set."""
    if source in DATASETS:
        return DATASETS[source]()
    path = Path(source)
    if path.suffix == ".npz":
        return read_npz(path)
    if path.exists():
        raise InputError(f"cannot read {path}: give a .npz file with images and labels")
    raise InputError(f"no data {source!r}: give the path of a .npz file, or one of: {', '.join(DATASETS)}")


__all__ = ["DATASETS", "Labelled", "load_data"]
