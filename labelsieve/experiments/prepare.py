"""prepare: all that an experiment needs, so that whatever can be refused is refused before anything is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from labelsieve.core.method import Method
from labelsieve.data import Trainable
from labelsieve.data.pictures import Bad
from labelsieve.devices import usable_device
from labelsieve.errors import InputError
from labelsieve.experiments.gather import Places, gather
from labelsieve.experiments.shelf import Shelf
from labelsieve.experiments.spec import Experiment
from labelsieve.methods import Problem, make
from labelsieve.models import make_model, suitable
from labelsieve.models.networks import Networks, make_networks, put_on, spare
from labelsieve.models.pretrained import load_weights
from labelsieve.predict import load
from labelsieve.train import Training
from labelsieve.train.augment import centred, window_of
from labelsieve.train.loop import MakeNetworks


@dataclass(frozen=True)
class Prepared:
    """An experiment with all that it needs at hand."""

    train: Trainable
    valid: Trainable | None
    test: Trainable | None
    make_networks: MakeNetworks
    method: Method
    training: Training
    fingerprint: str
    model: str  # the network's name
    shape: tuple[int, ...]  # of a sample, as the network sees it
    places: Places
    decided: Tensor | None = None  # of the data's training set, (n) bool: labels that a person decided on
    left_out: Sequence[Bad] = ()  # files and rows that cannot be used


def prepare(experiment: Experiment, shelf: Shelf | None = None) -> Prepared:
    """Load the data, corrupt the labels, make networks and method: all that can be refused is refused here."""
    shelf = shelf or Shelf()
    device = usable_device(experiment.device)
    _, train, valid, test, places, fingerprint, decided, left_out = gather(experiment, shelf)
    method = method_of(experiment, train)
    if decided is not None:
        trust(method, decided[places.train])
    window = window_of(experiment.augment)
    shape = (train.shape[0], window, window) if window else train.shape
    if experiment.augment and len(shape) == 1:
        raise InputError("--augment changes images, and this is a table of numbers; leave it out")
    model = suitable(shape, device) if experiment.model == "auto" else experiment.model
    return Prepared(
        shelf.put(train, device),
        valid and shelf.put(valid, device),
        test and shelf.put(test, device),
        networks_maker(experiment, model, shape, train, test, method.networks, device),
        method,
        training_of(experiment),
        fingerprint,
        model,
        shape,
        places,
        decided,
        left_out,
    )


def method_of(experiment: Experiment, train: Trainable) -> Method:
    """The experiment's method for this training set; refuses one that is not known or cannot do what is asked."""
    problem = Problem(train.num_classes, experiment.noise_rate, experiment.warmup, len(train), experiment.seed)
    method = make(experiment.method, problem, experiment.criterion, **dict(experiment.options))
    if experiment.forward == "second":
        refuse_second_pass(experiment.method, method)
    if experiment.init and method.networks > 1:
        raise InputError(f"{experiment.method} needs networks that differ: it cannot start both from one --init")
    return method


def trust(method: Method, decided: Tensor) -> None:
    """Let every part that selects keep first what a person decided on, (n) bool over the training set."""
    for part in method.selecting:
        part.trust(decided)


def refuse_second_pass(name: str, method: Method) -> None:
    """Say before training that a method cannot learn from a second pass."""
    try:
        method.kept(1)
    except ValueError as error:
        raise InputError(f"--forward second does not go with {name}: {error}") from error


def training_of(experiment: Experiment) -> Training:
    """What of the experiment training is told: the settings that both have."""
    shared = {setting.name for setting in fields(Training)} & {setting.name for setting in fields(Experiment)}
    return Training(**{name: getattr(experiment, name) for name in shared})


def first_batch(prepared: Prepared) -> Tensor:
    """What the networks see of the first batch, to try them on."""
    size = min(prepared.training.batch, len(prepared.train))
    index = torch.arange(size, device=prepared.train.labels.device)
    next(iter(prepared.train.staged(index, size)))
    return centred(prepared.train.inputs(index), window_of(prepared.training.augment))


def networks_maker(
    experiment: Experiment,
    model: str,
    shape: tuple[int, ...],
    train: Trainable,
    test: Trainable | None,
    count: int,
    device: torch.device,
) -> MakeNetworks:
    """What makes the networks of each round, from random weights or from those of an earlier run."""
    make_one = partial(make_model, model, shape, train.num_classes)
    check_fit(spare(make_one), shape, train, test, model)
    if experiment.init and experiment.weights:
        raise InputError("--init and --weights both say what to start from; give one of them")
    start = first_weights(experiment.init, make_one) or pretrained(experiment.weights, make_one)

    def networks_of(number: int) -> Networks:
        networks = make_networks(make_one, count, experiment.seed, number)
        if start and (number == 0 or experiment.weights):  # a later round starts anew
            for network in networks:
                network.load_state_dict(start, strict=not experiment.weights)
        return put_on(networks, device, experiment.precision)

    return networks_of


def check_fit(network: nn.Module, shape: tuple[int, ...], train: Trainable, test: Trainable | None, name: str) -> None:
    """Refuse images that the network cannot take, and a test set of another shape."""
    if test is not None and test.shape not in (shape, train.shape):
        raise InputError(
            f"the test images are {test.shape} (channels, height, width), the training images {shape}; "
            "make them alike, such as with --size"
        )
    try:
        network.eval()(torch.zeros(1, *shape))
    except RuntimeError as error:
        if len(shape) == 1:
            raise InputError(f"{name} cannot take a table of {shape[0]} columns; use mlp") from error
        channels, height, width = shape
        raise InputError(
            f"{name} cannot take images of {height} x {width} pixels with {channels} channels; "
            "images are (n, height, width, channels), channels last"
        ) from error


def pretrained(path: str | None, make_one: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """The weights of a file, without those of a last layer for other classes."""
    if path is None:
        return {}
    network = spare(make_one)
    fresh = load_weights(network, Path(path))
    return {name: tensor for name, tensor in network.state_dict().items() if name not in fresh}


def first_weights(run: str | None, make_one: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """The weights of an earlier run to start from, or nothing."""
    if run is None:
        return {}
    weights = load(run).network.state_dict()
    try:
        spare(make_one).load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"the model of {run} has another shape than this experiment's; give the same --model"
        ) from error
    return weights
