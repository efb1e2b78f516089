"""load: the model that a run delivered, ready to predict."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from labelsieve.data.arrays import Array, image_tensor
from labelsieve.data.resident import standardise
from labelsieve.devices import usable_device
from labelsieve.errors import InputError
from labelsieve.models import make_model

BATCH = 1000


class Predictor:
    """A trained network with its class names; it takes images as they are, uint8."""

    def __init__(self, network: nn.Module, shape: Sequence[int], classes: Sequence[str]) -> None:
        self.network = network.eval()
        self.shape = tuple(shape)
        self.classes = tuple(classes)

    @torch.no_grad()
    def predict_proba(self, images: Array | Tensor, source: str = "images") -> Array:
        """Probabilities (n, K) of images (n, height, width) or (n, height, width, channels)."""
        tensor = image_tensor(np.asarray(images), source)
        if tensor.shape[1:] != self.shape:
            (channels, height, width), now = self.shape, tuple(tensor.shape[1:])
            raise InputError(
                f"the model was trained on images of {height} x {width} pixels with {channels} channels, got "
                f"{now[1]} x {now[2]} with {now[0]}; one image alone is images[None]"
            )
        device = next(self.network.parameters()).device
        parts = [self.network(standardise(batch.to(device))).softmax(-1).cpu() for batch in tensor.split(BATCH)]
        probs: Array = torch.cat(parts).numpy()
        return probs

    def predict(self, images: Array | Tensor) -> Array:
        """The number of the likeliest class of each image."""
        numbers: Array = self.predict_proba(images).argmax(1)
        return numbers


def load(run: str | Path, device: str = "cpu") -> Predictor:
    """The delivered model of a run folder, or of its model.safetensors."""
    path = Path(run)
    if path.is_dir():
        path = path / "model.safetensors"
    if not path.exists():
        raise InputError(f"no model at {path}: give the folder of a finished run")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["labelsieve"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        network = make_model(about["model"], tuple(about["shape"]), len(about["classes"]))
        network.load_state_dict(weights)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} is not a model of labelsieve, or it is damaged") from error
    return Predictor(network.to(usable_device(device)), about["shape"], about["classes"])
