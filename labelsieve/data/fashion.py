"""The data inside the package: 6,000 training and 1,000 test images of Fashion-MNIST, ten balanced classes."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labelsieve.data.arrays import labelled
from labelsieve.data.resident import Labelled
from labelsieve.errors import InputError

FILE = Path(__file__).with_name("fashion_mnist.npz")
DIGEST = "10bd6e32a3d057c3c94fa3468ad514456a4039eb4c8518e79759dce7b6f28699"
CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def digest(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """SHA-256 over the decoded arrays, so that another way of packing them is the same data."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        sha.update(f"{name} {arrays[name].shape} {arrays[name].dtype}".encode())
        sha.update(np.ascontiguousarray(arrays[name]).tobytes())
    return sha.hexdigest()


def load_fashion() -> tuple[Labelled, Labelled]:
    """Training and test set."""
    with np.load(FILE, allow_pickle=False) as file:
        arrays = dict(file)
    if digest(arrays) != DIGEST:
        raise InputError(f"{FILE} is damaged: install labelsieve again")
    train = labelled(arrays["train_images"], arrays["train_labels"], CLASSES)
    return train, labelled(arrays["test_images"], arrays["test_labels"], CLASSES)
