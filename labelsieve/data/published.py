"""published: datasets that the field knows by name, found where a person keeps them."""

import os
from pathlib import Path

from labelsieve.errors import InputError

FOLDER = "LABELSIEVE_DATA"  # environment variable: the folder that holds them
PUBLISHED = {  # what each may be called there, as its authors pack it
    "cifar10": (
        "cifar-10-batches-py",
        "cifar-10-batches-bin",
        "cifar-10-python.tar.gz",
        "cifar-10-binary.tar.gz",
    ),
    "cifar100": ("cifar-100-python", "cifar-100-binary", "cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
    "tiny-imagenet": ("tiny-imagenet-200",),
    "animal10n": ("animal10n", "animal-10n", "ANIMAL-10N"),
    "clothing1m": ("clothing1m", "Clothing1M"),
}


def where(name: str) -> Path:
    """The file or folder of a published dataset."""
    folder = Path(os.environ.get(FOLDER, "data"))
    for known in PUBLISHED[name]:
        if (folder / known).exists():
            return folder / known
    raise InputError(
        f"no {name} in {folder}: put {PUBLISHED[name][0]} there as its authors publish it (docs/data.md), "
        f"or name another folder in {FOLDER}"
    )
