"""gather: the data of an experiment, with other labels laid over it, noise, and what is held out."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve import noise
from labelsieve.data import DATASETS, Reading, Trainable
from labelsieve.data.arrays import label_tensor, load_npy
from labelsieve.data.cifar import is_cifar
from labelsieve.data.cifar_n import read_cifar_n
from labelsieve.data.label_file import Laid, read_label_file
from labelsieve.data.pictures import Bad
from labelsieve.data.published import PUBLISHED
from labelsieve.data.source import with_test_set
from labelsieve.data.split import stratified
from labelsieve.errors import InputError
from labelsieve.experiments.shelf import Shelf
from labelsieve.experiments.spec import Experiment
from labelsieve.randomness import generator
from labelsieve.train.augment import window_of


class Places(NamedTuple):
    """Where the samples of each set stand in the data's training set."""

    train: Tensor
    valid: Tensor | None  # held out of it, noise and all
    test: Tensor | None  # drawn from it


class Gathered(NamedTuple):
    """The data of an experiment, before any of it goes to a device."""

    whole: Trainable  # the data's training set, without the experiment's own noise
    train: Trainable
    valid: Trainable | None
    test: Trainable | None
    places: Places
    fingerprint: str
    decided: Tensor | None = None  # of the whole
    left_out: Sequence[Bad] = ()


def gather(experiment: Experiment, shelf: Shelf, known: Laid | None = None) -> Gathered:
    """Load the data, lay other labels over it, draw a test set, corrupt the rest, hold some out, correct what is left.

    `known`: what the experiment's label file says, where that need not be read and they are as many.
    """
    sets = shelf.load(experiment.data, reading_of(experiment))
    decided = None
    if experiment.labels is not None:
        if known is None or len(known.labels) != len(sets.train):
            known = labels_of(experiment.labels, sets.train)
        train = sets.train.relabelled(known.labels)
        if known.decided is not None and known.decided.any() and not experiment.noise:  # noise undoes what was decided
            decided = known.decided
        if not true_labels_known(experiment):
            train = replace(train, clean=None)
        sets = sets._replace(train=train)
    train, test, valid = with_test_set(sets, experiment.test, experiment.seed, experiment.data)
    places = torch.arange(len(sets.train))
    drawn = None
    if len(train) < len(places):
        places, drawn = stratified(sets.train.labels, experiment.test, experiment.seed)
    train = with_noise(experiment, train)
    taught = None if experiment.corrected is None else labels_of(experiment.corrected, sets.train).labels
    fingerprint = digest(train, test, valid, decided=decided, taught=taught)
    held = None
    if experiment.valid or valid is None:
        kept, held = held_out(len(train), experiment.valid, experiment.seed, experiment.fold)
        if held is not None:
            train, valid = train.at(kept), train.at(held)
            places, held = places[kept], places[held]
    if taught is not None:
        train = replace(train.relabelled(taught[places]), clean=train.clean)
    left_out = shelf.left_out(experiment.data, reading_of(experiment))
    return Gathered(sets.train, train, valid, test, Places(places, held, drawn), fingerprint, decided, left_out)


def true_labels_known(experiment: Experiment) -> bool:
    """Whether the labels that the data comes with are the true ones: a person's own are what is to be corrected."""
    published = experiment.data in DATASETS or experiment.data in PUBLISHED or is_cifar(Path(experiment.data))
    return published or ":" in str(experiment.labels)


def reading_of(experiment: Experiment) -> Reading:
    """How the experiment wants its data read."""
    window = window_of(experiment.augment)
    if window and experiment.size not in (None, window):
        raise InputError(f"--size {experiment.size} and windows of {window} disagree; leave out --size")
    return Reading(
        size=experiment.size or window,
        window=window,
        normalise=experiment.normalise,
        label=experiment.label_column,
        image=experiment.image_column,
        skip_bad=experiment.skip_bad,
        stream=experiment.stream,
        cache=experiment.cache,
        workers=experiment.workers,
    )


def labels_of(file: str, train: Trainable) -> Laid:
    """Labels to lay over a set: of a .csv or .npy file, or one kind of CIFAR-N's labels, file:kind."""
    path, _, kind = file.rpartition(":")
    if path and kind.isalnum() and not Path(file).exists():
        labels = read_cifar_n(Path(path), kind)
        if len(labels) != len(train):
            raise InputError(f"{path} has {len(labels):,} labels but the data has {len(train):,} samples")
        return Laid(label_tensor(labels.numpy(), train.num_classes, path))
    return read_label_file(Path(file), train.classes, len(train), train.names)


def with_noise(experiment: Experiment, train: Trainable) -> Trainable:
    """The training set under the noise that the experiment asks for."""
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


def held_out(samples: int, share: float, seed: int, fold: int = 0) -> tuple[Tensor, Tensor | None]:
    """Positions to train on and to choose the epoch on, both in order, drawn by the seed. Folds share no sample."""
    count = round(share * samples)
    if share == 0:
        return torch.arange(samples), None
    if not 0 < count < samples:
        raise InputError(f"valid {share:g} of {samples} samples leaves nothing to train or to choose on")
    first, end = fold * count, min((fold + 1) * count, samples)
    if first >= end:
        raise InputError(f"there is no fold {fold} of {count} of {samples} samples")
    order = torch.randperm(samples, generator=generator(seed, "valid"))
    return torch.cat([order[:first], order[end:]]).sort().values, order[first:end].sort().values


def digest(*sets: Trainable | None, decided: Tensor | None = None, taught: Tensor | None = None) -> str:
    """A fingerprint of images and labels, of which of them a person decided on, and of labels taught instead."""
    sha = hashlib.sha256()
    for data in sets:
        if data is not None:
            for part in data.contents():
                sha.update(part)
    for tensor in (decided, taught):
        if tensor is not None:
            sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()[:16]
