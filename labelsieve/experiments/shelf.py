"""Shelf: data that several runs of a process share, read once and put on a device once."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from labelsieve.data import Labelled, Reading, Sets, Trainable, load_data
from labelsieve.data.pictures import Bad


class Shelf:
    """Keeps what it was asked for; runs with the same images on the same device get the same tensor."""

    def __init__(self) -> None:
        self._sets: dict[tuple[str, Reading], Sets] = {}
        self._left_out: dict[tuple[str, Reading], Sequence[Bad]] = {}
        self._images: dict[tuple[int, torch.device], Tensor] = {}
        self._lock = threading.Lock()

    def load(self, data: str, reading: Reading) -> Sets:
        """The sets, on the CPU."""
        with self._lock:
            if (data, reading) not in self._sets:
                keep = partial(self._left_out.__setitem__, (data, reading))
                self._sets[data, reading] = load_data(data, reading, left_out=keep)
            return self._sets[data, reading]

    def left_out(self, data: str, reading: Reading) -> Sequence[Bad]:
        """What of loaded data was left out because it is bad."""
        return self._left_out[data, reading]

    def put(self, samples: Trainable, device: torch.device) -> Trainable:
        """The samples on the device; images that came straight from the shelf are shared."""
        with self._lock:
            known = [each for sets in self._sets.values() for each in sets if isinstance(each, Labelled)]
            if not isinstance(samples, Labelled) or not any(samples.images is each.images for each in known):
                return samples.to(device)
            key = (samples.images.data_ptr(), device)
            if key not in self._images:
                self._images[key] = samples.images.to(device)
            return replace(replace(samples, images=self._images[key][:0]).to(device), images=self._images[key])
