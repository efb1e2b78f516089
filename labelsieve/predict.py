"""Predictions with the delivered model of a run: `load` returns a `Predictor`, `predict_data` reads any data."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from labelsieve.data import DATASETS, Labelled, ReadOptions, Trainable, load_data
from labelsieve.data.arrays import finite_rows, image_tensor, load_npy, load_npz, npz_keys
from labelsieve.data.classes import Array, SingleClass
from labelsieve.data.folder import IMAGE_SUFFIXES, labelled_files, read_unlabelled_images
from labelsieve.data.images import Frame, Unusable, describe_unusable
from labelsieve.data.load import decode_all
from labelsieve.data.sets import Sets, Undecoded, normalise_inputs
from labelsieve.data.table import read_unlabelled_table, read_unlabelled_texts
from labelsieve.errors import InputError
from labelsieve.features.backbones import Backbone, restore_backbone
from labelsieve.features.embed import Cache, embed_split, load_embedded
from labelsieve.files import parse_json, refuse_links, verified
from labelsieve.models import make_model
from labelsieve.models.networks import make_placeholder
from labelsieve.runs.spec import CHOICES, MOST
from labelsieve.runtime import prediction_batch_size, usable_device
from labelsieve.train.checkpoint import select_prefix


def load(run: str | Path, device: str = "cpu", model: str | None = None) -> "Predictor":
    """Return the delivered model of a run.

    Args:
        run: the folder of a finished run, or its model.safetensors.
        device: the device to predict on.
        model: package.module:factory, required if the run was trained with a network from user code; such code is
            never imported only because a file names it.

    Examples:
        >>> model = labelsieve.load(run)  # the folder of a run, such as "runs/mine"
        >>> len(model.classes), model.shape
        (10, (1, 28, 28))
    """
    path = Path(run)
    if path.is_dir():
        refuse_links(path)
        path = path / "model.safetensors"
    if not path.exists():
        raise InputError(f"no model at {path}: name the folder of a finished run")
    try:
        with safe_open(verified(path), "pt") as file:
            about = parse_json((file.metadata() or {})["labelsieve"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        backbone = None
        if about.get("backbone"):
            _checked_shape([3, *[about["backbone"]["size"] or 1] * 2])
            backbone = restore_backbone(about["backbone"], select_prefix("backbone", weights), device)
            weights = {name: tensor for name, tensor in weights.items() if not name.startswith("backbone/")}
        name = about["model"]
        if ":" in name and name != model:
            raise InputError(
                f"{path} has a network from user code: pass --model {name} (in Python, model={name!r}) to import it"
            )
        shape, classes = _checked_shape(about["shape"]), [str(each) for each in about["classes"]]
        columns = [str(each) for each in about.get("columns") or ()]
        normalise = str(about.get("normalise", "image"))
        if normalise not in CHOICES["normalise"] or len(columns) not in (0, shape[0]):
            raise ValueError("normalise or columns cannot be used")
        make_one = partial(make_model, name, shape, len(classes))
        _refuse_other_sizes(make_one, name, weights)
        network = make_placeholder(make_one)
        network.load_state_dict(weights)
    except InputError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(f"{path} is not a model of labelsieve, or it is damaged") from error
    network = network.to(usable_device(device))
    return Predictor(network, shape, classes, normalise, columns, backbone, name)


def _checked_shape(shape: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of a sample; raise ValueError for one that no training has."""
    if len(shape) not in (1, 3) or not all(type(length) is int and length > 0 for length in shape):
        raise ValueError(f"{shape} is not the shape of a sample")
    if len(shape) == 3 and max(shape) > MOST["size"]:
        raise ValueError(f"{shape} is larger than any image")
    return tuple(shape)


def _refuse_other_sizes(make_one: Callable[[], nn.Module], name: str, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights that do not fit the network before memory is allocated for it: its size is only claimed."""
    if ":" in name:  # user code, which the user has named
        return
    with torch.device("meta"):
        expected = {key: value.shape for key, value in make_placeholder(make_one).state_dict().items()}
    if expected != {key: value.shape for key, value in weights.items()}:
        raise ValueError("the weights do not fit the network")


class Predictor:
    """A trained network with its class names.

    Args:
        network: returns logits (B, K).
        shape: the shape of one sample: (channels, height, width) or (columns,).
        classes: the names of the K classes.
        normalise: how images are normalised: "image", "imagenet" or "lite".
        columns: the names of the columns of a table, in the order of training.
        backbone: computes the features that the network is applied to, of images or texts.
        model: the name of the network.

    Examples:
        >>> model = labelsieve.load(run)
        >>> images = np.zeros((5, 28, 28), np.uint8)
        >>> model.predict_proba(images).shape
        (5, 10)
        >>> model.classes[model.predict(images)[0]] in model.classes
        True
    """

    def __init__(
        self,
        network: nn.Module,
        shape: Sequence[int],
        classes: Sequence[str],
        normalise: str = "image",
        columns: Sequence[str] | None = None,
        backbone: Backbone | None = None,
        model: str = "",
    ) -> None:
        self.network = network.eval()
        self.shape = tuple(shape)
        self.classes = tuple(classes)
        self.normalise = normalise
        self.columns = tuple(columns) if columns else None
        self.backbone = backbone
        self.model = model
        self.batch = prediction_batch_size(self.shape)

    def predict(self, images: Array | Tensor | Sequence[str | Path]) -> Array:
        """Return the number of the most likely class of each sample, (n)."""
        return self.predict_proba(images).argmax(1)

    @torch.no_grad()
    def predict_proba(self, images: Array | Tensor | Sequence[str | Path], source: str = "images") -> Array:
        """Return the class probabilities (n, K).

        Args:
            images: uint8 images (n, height, width[, channels]), paths of images (n), table rows (n, columns), or
                texts (n).
            source: the name of the data in error messages.
        """
        if isinstance(images, (str, Path)):
            raise InputError(f"{source}: pass a list, also for one text or one path: [{str(images)[:20]!r}]")
        strings = _are_strings(images)
        if self.backbone is not None and self.backbone.kind == "texts":
            if not strings:
                raise InputError(f"{source}: the model was trained on texts; pass a list of strings")
            return self._predict_features(self.backbone(list(map(str, images))))
        if strings and (self.backbone is not None or len(self.shape) == 3):
            return self._predict_files(list(map(str, images)))
        of_rows = len(self.shape) == 1 and self.backbone is None
        values = _one_array(images, source, "rows" if of_rows else "images", "" if of_rows else "; pass paths instead")
        if self.backbone is not None:
            if values.ndim == 3 and values.shape[2] in (3, 4):
                raise InputError(f"{source}: the shape {values.shape} is that of one image; pass images[None]")
            return self._predict_features(self.backbone(image_tensor(values, source)))
        if len(self.shape) == 1:
            return self._predict_tensor(self._check_rows(values, source))
        tensor = image_tensor(values, source)
        self._check_shape(tuple(tensor.shape[1:]), "; pass a single image as images[None]")
        return self._predict_tensor(tensor)

    @torch.no_grad()
    def predict_set(self, samples: Trainable) -> Array:
        """Return the class probabilities (n, K) of a dataset, in memory or streamed."""
        samples = self._reorder_columns(samples)
        self._check_shape(samples.shape)
        device = next(self.network.parameters()).device
        samples = samples.to(device)
        all_samples = torch.arange(len(samples), device=device)
        parts, first = [], 0
        for count in samples.staged(all_samples, self.batch):
            inputs = samples.inputs(all_samples[first : first + count])
            parts.append(self.network(inputs).softmax(-1).cpu())
            first += count
        return torch.cat(parts).numpy()

    def _predict_files(self, paths: Sequence[str]) -> Array:
        found, bad = _decoded(self, labelled_files(Path(), paths, [0] * len(paths), self.classes))
        if bad:
            raise InputError(f"cannot read {bad[0].name}: {bad[0].reason}")
        return self.predict_set(replace(found, normalise=self.normalise))

    def _reorder_columns(self, samples: Trainable) -> Trainable:
        """Return a table with its columns in the order of training."""
        if self.columns is None or not isinstance(samples, Labelled) or samples.columns is None:
            return samples
        place = {column: position for position, column in enumerate(samples.columns)}
        missing = [column for column in self.columns if column not in place]
        if missing:
            raise InputError(f"the table has no column {missing[0]!r}, which the model was trained on")
        positions = [place[column] for column in self.columns]
        return replace(samples, images=samples.images[:, positions], columns=self.columns)

    def _check_shape(self, shape: tuple[int, ...], hint: str = "") -> None:
        if shape == self.shape:
            return
        if len(shape) == len(self.shape) == 3:
            channels, height, width = self.shape
            raise InputError(
                f"the model was trained on images of {height} x {width} pixels with {channels} channels, got "
                f"{shape[1]} x {shape[2]} with {shape[0]}{hint}"
            )
        raise InputError(f"the model was trained on {_describe_samples(self.shape)}, got {_describe_samples(shape)}")

    def _check_rows(self, values: Array, source: str) -> Tensor:
        if values.ndim != 2 or values.shape[1:] != self.shape or values.dtype.kind not in "iuf":
            raise InputError(
                f"the model was trained on rows of {self.shape[0]} numbers, "
                f"got {values.dtype} {values.shape} in {source}"
            )
        return finite_rows(values, source)

    def _predict_features(self, features: Tensor) -> Array:
        return self._predict_tensor(features.half().float())  # as stored features are rounded

    def _predict_tensor(self, tensor: Tensor) -> Array:
        device = next(self.network.parameters()).device
        inputs = (normalise_inputs(batch.to(device), self.normalise) for batch in tensor.split(self.batch))
        return torch.cat([self.network(batch).softmax(-1).cpu() for batch in inputs]).numpy()


def _are_strings(images: Any) -> bool:
    numbers = isinstance(images, Tensor) or (isinstance(images, np.ndarray) and images.dtype.kind not in "UO")
    return not numbers and len(images) > 0 and all(isinstance(each, (str, Path)) for each in images)


def _one_array(images: Any, source: str, kind: str, fix: str) -> Array:
    try:
        return np.asarray(images)
    except ValueError as error:
        raise InputError(f"{source}: all {kind} must have the same shape{fix}") from error


def _describe_samples(shape: Sequence[int]) -> str:
    """Return what samples of a shape are, such as "images of 32 x 32 pixels"."""
    if len(shape) == 1:
        return f"rows of {shape[0]} numbers"
    return f"images of {shape[1]} x {shape[2]} pixels"


def predict_data(
    predictor: Predictor, data: str, reading: ReadOptions | None = None
) -> tuple[Array, list[str] | None, Sequence[Any]]:
    """Classify data of any kind, with or without labels.

    Args:
        predictor: the model.
        data: a file or folder, as for `labelsieve predict`.
        reading: the columns of a table; the size of images is that of the model.

    Returns:
        Probabilities (n, K), the class names of the labels if the data has labels, and a name for each sample.
    """
    path = Path(data)
    if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
        return _predict_picture(predictor, path), None, [path.name]
    if path.suffix == ".npy" or (path.suffix == ".npz" and "labels" not in npz_keys(path)):
        values = load_npy(path) if path.suffix == ".npy" else _unlabelled_arrays(path)
        return predictor.predict_proba(values, data), None, range(len(values))
    reading = replace(
        reading or ReadOptions(), frame=_frame_of(predictor), normalise=predictor.normalise, skip_bad=True
    )
    try:
        sets = _load(predictor, data, reading)
    except InputError as error:
        unlabelled = _read_unlabelled(path, reading, predictor)
        if unlabelled is None:
            raise
        if isinstance(error, SingleClass):
            print(f"{path} has labels of one class only: they are not compared with the predictions", file=sys.stderr)
        return predictor.predict_set(unlabelled), None, unlabelled.names or range(len(unlabelled))
    known = [sets.test] if data in DATASETS and sets.test else [each for each in sets if each is not None]
    probs = np.concatenate([predictor.predict_set(each) for each in known])
    given = [each.classes[k] for each in known for k in each.labels.tolist()]
    names = [name for each in known for name in each.names or ()]
    return probs, given, names or range(len(given))


def _predict_picture(predictor: Predictor, path: Path) -> Array:
    if len(predictor.shape) != 3 and (predictor.backbone is None or predictor.backbone.kind != "images"):
        raise InputError(f"{path} is a picture, but the model was trained on rows of {predictor.shape[0]} numbers")
    return predictor.predict_proba([path])


def _load(predictor: Predictor, data: str, reading: ReadOptions) -> Sets:
    """Load labelled data as the network takes it: decoded, or as features of the backbone."""
    if predictor.backbone is None:
        return load_data(data, reading, on_unusable=_print_unusable)
    return load_embedded(data, reading, predictor.backbone, on_unusable=_print_unusable)


def _decoded(predictor: Predictor, split: Undecoded) -> tuple[Labelled, list[Unusable]]:
    """Return samples as the network takes them, and those that cannot be read."""
    if predictor.backbone is None:
        return decode_all(split, _frame_of(predictor))
    return embed_split(split, predictor.backbone, Cache(predictor.backbone))


def _frame_of(predictor: Predictor) -> Frame | None:
    """Return the size to which images are scaled; None for a model of tables."""
    return Frame(*predictor.shape[1:], predictor.shape[0]) if len(predictor.shape) == 3 else None


def _read_unlabelled(path: Path, reading: ReadOptions, predictor: Predictor) -> Trainable | None:
    """Read a folder of images or a table without labels; None for anything else."""
    pictures: Undecoded
    bad: list[Unusable]
    if path.is_dir():
        pictures, bad = read_unlabelled_images(path, predictor.classes)
    elif path.suffix.lower() in (".csv", ".tsv") and predictor.backbone and predictor.backbone.kind == "texts":
        pictures, bad = read_unlabelled_texts(path, predictor.classes, reading.text)
    elif path.suffix.lower() in (".csv", ".tsv"):
        found = read_unlabelled_table(path, predictor.classes, reading.image, predictor.columns)
        if isinstance(found, Labelled):
            return found
        pictures, bad = found, []
    else:
        return None
    whole, unusable = _decoded(predictor, pictures)
    _print_unusable([*bad, *unusable])
    if not len(whole):
        raise InputError(f"none of the images of {path} can be read")
    return replace(whole, normalise=predictor.normalise)


def _print_unusable(bad: Sequence[Unusable]) -> None:
    if bad:
        print(describe_unusable(bad), file=sys.stderr)


def _unlabelled_arrays(path: Path) -> Array:
    """Return the images or rows of a .npz file without labels."""
    arrays = load_npz(path)
    for key in ("images", "features"):
        if key in arrays:
            return arrays[key]
    raise InputError(f"{path} has no 'images' (it has: {', '.join(arrays)})")
