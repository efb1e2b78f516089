"""prepare: all that an experiment needs, so that whatever can be refused is refused before anything is written."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelsieve import noise
from labelsieve.core.method import Method
from labelsieve.data import Labelled
from labelsieve.data.arrays import load_npy, read_labels
from labelsieve.devices import usable_device
from labelsieve.errors import InputError
from labelsieve.experiments.shelf import Shelf
from labelsieve.experiments.spec import Experiment
from labelsieve.methods import Problem, make
from labelsieve.models import make_model
from labelsieve.models.networks import Networks, make_networks, put_on
from labelsieve.predict import load
from labelsieve.randomness import generator
from labelsieve.train import Training
from labelsieve.train.loop import MakeNetworks


@dataclass(frozen=True)
class Prepared:
    """An experiment with all that it needs at hand."""

    train: Labelled
    valid: Labelled | None
    test: Labelled | None
    make_networks: MakeNetworks
    method: Method
    training: Training
    fingerprint: str


def prepare(experiment: Experiment, shelf: Shelf | None = None) -> Prepared:
    """Load the data, corrupt the labels, make networks and method: all that can be refused is refused here."""
    shelf = shelf or Shelf()
    device = usable_device(experiment.device)
    train, test = shelf.load(experiment.data)
    train = with_labels(experiment, train)
    fingerprint = digest(train, test)
    train, valid = hold_out(train, experiment.valid, experiment.seed)
    problem = Problem(train.num_classes, experiment.noise_rate, experiment.warmup, len(train), experiment.seed)
    method = make(experiment.method, problem, experiment.criterion, **dict(experiment.options))
    training = Training(
        epochs=experiment.epochs,
        batch=experiment.batch,
        lr=experiment.lr,
        seed=experiment.seed,
        precision=experiment.precision,
    )
    return Prepared(
        shelf.put(train, device),
        valid and shelf.put(valid, device),
        test and shelf.put(test, device),
        networks_maker(experiment, train, test, method.networks, device),
        method,
        training,
        fingerprint,
    )


def networks_maker(
    experiment: Experiment, train: Labelled, test: Labelled | None, count: int, device: torch.device
) -> MakeNetworks:
    """What makes the networks of each round, from random weights or from those of an earlier run."""
    channels, height, width = train.images.shape[1:]
    make_one = partial(make_model, experiment.model, (channels, height, width), train.num_classes)
    check_fit(make_one(), train, test, experiment.model)
    if experiment.init and count > 1:
        raise InputError(f"{experiment.method} needs networks that differ: it cannot start both from one --init")
    start = first_weights(experiment.init, make_one)

    def networks_of(number: int) -> Networks:
        networks = make_networks(make_one, count, experiment.seed, number)
        if start and number == 0:  # a later round starts anew
            networks[0].load_state_dict(start)
        return put_on(networks, device, experiment.precision)

    return networks_of


def check_fit(network: nn.Module, train: Labelled, test: Labelled | None, name: str) -> None:
    """Refuse images that the network cannot take, and a test set of another shape."""
    if test is not None and test.images.shape[1:] != train.images.shape[1:]:
        was, now = tuple(train.images.shape[1:]), tuple(test.images.shape[1:])
        raise InputError(
            f"the test images are {now} (channels, height, width), the training images {was}; make them alike"
        )
    try:
        network.eval()(train.inputs(torch.arange(1)))
    except RuntimeError as error:
        channels, height, width = train.images.shape[1:]
        raise InputError(
            f"{name} cannot take images of {height} x {width} pixels with {channels} channels; "
            "images are (n, height, width, channels), channels last"
        ) from error


def first_weights(run: str | None, make_one: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """The weights of an earlier run to start from, or nothing."""
    if run is None:
        return {}
    weights = load(run).network.state_dict()
    try:
        make_one().load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"the model of {run} has another shape than this experiment's; give the same --model"
        ) from error
    return weights


def with_labels(experiment: Experiment, train: Labelled) -> Labelled:
    """The training set under the labels that the experiment asks for."""
    if experiment.labels is not None:
        train = train.relabelled(read_labels(Path(experiment.labels), train.classes, len(train)))
    if experiment.noise is not None:
        matrix = noise_matrix(experiment.noise, experiment.rate, experiment.noise_map, train.num_classes)
        noisy = noise.corrupt(train.labels, matrix, experiment.seed, exact=experiment.exact_noise)
        train = train.relabelled(noisy)
    return train


def noise_matrix(kind: str, rate: float, noise_map: str, num_classes: int) -> Tensor:
    """The transition matrix of a named kind of noise, or of a .npy or .csv file."""
    path = Path(kind)
    if path.suffix == ".npy":
        return noise.checked_matrix(torch.from_numpy(load_npy(path)), num_classes)
    if path.suffix == ".csv":
        try:
            rows = np.loadtxt(path, delimiter=",", ndmin=2)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the noise matrix {path}: {error}") from error
        return noise.checked_matrix(torch.from_numpy(rows), num_classes)
    if noise_map and kind != "asymmetric":
        raise InputError(f"a noise map goes with asymmetric noise, not with {kind}")
    options: dict[str, Any] = {"mapping": parsed_map(noise_map)} if noise_map else {}
    return noise.transition(kind, num_classes, rate, **options)


def parsed_map(text: str) -> dict[int, int]:
    """ "9:1,2:0" -> {9: 1, 2: 0}"""
    try:
        return {int(true): int(observed) for true, observed in (pair.split(":") for pair in text.split(","))}
    except ValueError as error:
        raise InputError(f"a noise map looks like 9:1,2:0 (true:observed), got {text!r}") from error


def hold_out(train: Labelled, share: float, seed: int) -> tuple[Labelled, Labelled | None]:
    """Split off a validation set, noise and all, drawn by the seed."""
    count = round(share * len(train))
    if share == 0:
        return train, None
    if not 0 < count < len(train):
        raise InputError(f"valid {share:g} of {len(train)} samples leaves nothing to train or to choose on")
    order = torch.randperm(len(train), generator=generator(seed, "valid"))
    return train.at(order[count:].sort().values), train.at(order[:count].sort().values)


def digest(*sets: Labelled | None) -> str:
    """A fingerprint of images and labels."""
    sha = hashlib.sha256()
    for data in sets:
        if data is not None:
            sha.update(str(tuple(data.images.shape)).encode())
            sha.update(data.images.numpy().data)
            sha.update(data.labels.numpy().data)
    return sha.hexdigest()[:16]
