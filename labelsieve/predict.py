"""load: the model that a run delivered, ready to predict."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from labelsieve.data import Labelled, Trainable
from labelsieve.data.arrays import Array, image_tensor
from labelsieve.data.sets import seen_by_network
from labelsieve.errors import InputError
from labelsieve.models import make_model
from labelsieve.models.networks import make_placeholder
from labelsieve.runs.read import delivered_folder
from labelsieve.runtime import prediction_batch_size, usable_device


class Predictor:
    """A trained network with its class names; it takes images as they are, uint8, or rows of numbers."""

    def __init__(
        self,
        network: nn.Module,
        shape: Sequence[int],
        classes: Sequence[str],
        normalise: str = "image",
        columns: Sequence[str] | None = None,
    ) -> None:
        self.network = network.eval()
        self.shape = tuple(shape)
        self.classes = tuple(classes)
        self.normalise = normalise
        self.columns = tuple(columns) if columns else None
        self.batch = prediction_batch_size(self.shape)

    @torch.no_grad()
    def predict_proba(self, images: Array | Tensor, source: str = "images") -> Array:
        """Probabilities (n, K) of images (n, height, width[, channels]), or of rows (n, columns)."""
        if len(self.shape) == 1:
            return self._of_batches(self._rows(np.asarray(images), source))
        tensor = image_tensor(np.asarray(images), source)
        self._check(tuple(tensor.shape[1:]), "; one image alone is images[None]")
        return self._of_batches(tensor)

    @torch.no_grad()
    def predict_set(self, samples: Trainable) -> Array:
        """Probabilities (n, K) of a set, whether it is in memory or streamed."""
        samples = self._in_order(samples)
        self._check(samples.shape)
        device = next(self.network.parameters()).device
        samples = samples.to(device)
        everything = torch.arange(len(samples), device=device)
        parts, first = [], 0
        for count in samples.staged(everything, self.batch):
            inputs = samples.inputs(everything[first : first + count])
            parts.append(self.network(inputs).softmax(-1).cpu())
            first += count
        probs: Array = torch.cat(parts).numpy()
        return probs

    def _in_order(self, samples: Trainable) -> Trainable:
        """A table with its columns as they were in training."""
        if self.columns is None or not isinstance(samples, Labelled) or samples.columns is None:
            return samples
        missing = [column for column in self.columns if column not in samples.columns]
        if missing:
            raise InputError(f"the table has no column {missing[0]!r}, which the model was trained on")
        places = [samples.columns.index(column) for column in self.columns]
        return replace(samples, images=samples.images[:, places], columns=self.columns)

    def _check(self, now: tuple[int, ...], hint: str = "") -> None:
        if now == self.shape:
            return
        if len(now) == len(self.shape) == 3:
            (channels, height, width), was = self.shape, now
            raise InputError(
                f"the model was trained on images of {height} x {width} pixels with {channels} channels, got "
                f"{was[1]} x {was[2]} with {was[0]}{hint}"
            )
        raise InputError(f"the model was trained on {described(self.shape)}, these are {described(now)}")

    def _rows(self, values: Array, source: str) -> Tensor:
        if values.ndim != 2 or values.shape[1:] != self.shape or values.dtype.kind not in "iuf":
            raise InputError(
                f"the model was trained on rows of {self.shape[0]} numbers, "
                f"got {values.dtype} {values.shape} in {source}"
            )
        return torch.from_numpy(values.astype(np.float32))

    def _of_batches(self, tensor: Tensor) -> Array:
        device = next(self.network.parameters()).device
        seen = (batch.to(device) for batch in tensor.split(self.batch))
        inputs = (seen_by_network(batch, self.normalise) for batch in seen)
        probs: Array = torch.cat([self.network(batch).softmax(-1).cpu() for batch in inputs]).numpy()
        return probs

    def predict(self, images: Array | Tensor) -> Array:
        """The number of the likeliest class of each image."""
        numbers: Array = self.predict_proba(images).argmax(1)
        return numbers


def described(shape: Sequence[int]) -> str:
    """What samples of a shape are, in plain words."""
    if len(shape) == 1:
        return f"rows of {shape[0]} numbers"
    return f"images of {shape[1]} x {shape[2]} pixels"


def load(run: str | Path, device: str = "cpu", model: str | None = None) -> Predictor:
    """The delivered model of a run folder, or of its model.safetensors.

    `model`: package.module:factory of a network of one's own; it is never imported because a file says so.
    """
    path = Path(run)
    if path.is_dir():
        path = delivered_folder(path) / "model.safetensors"
    if not path.exists():
        raise InputError(f"no model at {path}: give the folder of a finished run")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["labelsieve"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if ":" in about["model"] and about["model"] != model:
            own = about["model"]
            raise InputError(
                f"{path} has a network of one's own: say --model {own} (in Python, model={own!r}) to run it"
            )
        network = make_placeholder(partial(make_model, about["model"], tuple(about["shape"]), len(about["classes"])))
        network.load_state_dict(weights)
    except InputError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} is not a model of labelsieve, or it is damaged") from error
    normalise = about.get("normalise", "image")
    network = network.to(usable_device(device))
    return Predictor(network, about["shape"], about["classes"], normalise, about.get("columns"))
