"""Write features to a .npz file that `labelsieve train` and NumPy read."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from labelsieve.data.arrays import FEATURE_SPLITS, npz_keys
from labelsieve.data.sets import Labelled, Sets
from labelsieve.errors import InputError
from labelsieve.features.backbones import Backbone
from labelsieve.files import disk_error, refuse_no_folder

MARK = "backbone"  # an array that only these files have


def refuse_file(path: Path) -> None:
    """Refuse an output file that cannot be written, or that another program wrote."""
    if path.suffix != ".npz":
        raise InputError(f"--out must be a .npz file, got {path}")
    refuse_no_folder(path.parent)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    if path.exists() and MARK not in npz_keys(path):
        raise InputError(f"{path} exists and was not written by labelsieve embed; name another file, or move it away")


def save_features(path: Path, sets: Sets, backbone: Backbone) -> None:
    """Write features in half precision, labels, classes and names of all splits, and a description of the backbone."""
    arrays: dict[str, Any] = {MARK: np.array(json.dumps(backbone.about())), "classes": np.array(sets.train.classes)}
    for name, prefix in FEATURE_SPLITS.items():
        split = getattr(sets, name)
        if not isinstance(split, Labelled):
            continue
        arrays[f"{prefix}features"] = split.images.half().numpy()
        arrays[f"{prefix}labels"] = split.labels.numpy()
        if split.names is not None:
            arrays[f"{prefix}names"] = np.array(split.names)
        if name == "train" and split.clean is not None:
            arrays["clean_labels"] = split.clean.numpy()
    temporary = path.with_name(f".{path.name}.tmp.npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(temporary, **arrays)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(path, error) from error
