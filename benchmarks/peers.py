"""Scores of other tools, computed with labelsieve's training loop: from cross-validation and from plain training.

Self-confidence and normalized margin (cleanlab) and the area under the margin (AUM) are implemented from their
definitions; tests compare them with the packages where these are installed.
"""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve.core.losses import CrossEntropy
from labelsieve.core.method import Method, Step
from labelsieve.runs.execute import Prepared
from labelsieve.runtime import derive, generator
from labelsieve.train import fit
from labelsieve.train.evaluate import predict_batches

Array = np.ndarray[Any, Any]
FOLDS = 5
SEARCH_SHARE = 0.2  # of the first training part, held out with its noise
SHARES = (0.1, 0.25, 0.5, 1.0)  # of labelsieve's epochs: the lengths tried for cross-validation


class Spent(NamedTuple):
    """Wall-clock and CPU seconds."""

    wall: float
    cpu: float

    def __add__(self, other: "Spent") -> "Spent":  # type: ignore[override]
        return Spent(self.wall + other.wall, self.cpu + other.cpu)


class Clock:
    """Measures the wall-clock and CPU seconds since its creation."""

    def __init__(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def read(self) -> Spent:
        return Spent(time.perf_counter() - self.began[0], time.process_time() - self.began[1])


# --- scores of probabilities


def self_confidence(labels: Array, probs: Array) -> Array:
    """Return the probability of each label (n)."""
    return probs[np.arange(len(labels)), labels]


def normalized_margin(labels: Array, probs: Array) -> Array:
    """Return the probability of each label minus that of the likeliest other class, scaled to 0 to 1 (n)."""
    others = probs.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    return (self_confidence(labels, probs) - others.max(1) + 1) / 2


# --- cross-validation


class CrossValidated(NamedTuple):
    """Probabilities of samples by networks that were not trained on them, and the time they took."""

    probs: Array  # (n, K)
    epochs: int  # chosen number of epochs
    accuracies: dict[int, float]  # by number of epochs, on the noisy held-out samples
    search: Spent
    folds: Spent


def cross_validated(prepared: Prepared, seed: int) -> CrossValidated:
    """Choose the number of epochs by the accuracy on held-out noisy labels, then predict each fold."""
    labels = prepared.train.labels.cpu()
    folds = stratified_folds(labels, FOLDS, seed)
    clock = Clock()
    accuracies = search_epochs(prepared, torch.nonzero(folds != 0).squeeze(1), seed)
    epochs = max(accuracies, key=lambda length: accuracies[length])  # of equals the shortest
    search, clock = clock.read(), Clock()
    probs = np.empty((len(labels), prepared.train.num_classes), np.float32)
    for fold in range(FOLDS):
        inside, outside = (torch.nonzero(chosen).squeeze(1) for chosen in (folds != fold, folds == fold))
        probs[outside.numpy()] = predict_others(prepared, inside, outside, epochs, derive(seed, "fold", fold))
    return CrossValidated(probs, epochs, accuracies, search, clock.read())


def save_crossed(path: Path, crossed: CrossValidated) -> None:
    """Save as a .npz file."""
    tried = np.array([*crossed.accuracies.items()])
    np.savez(path, probs=crossed.probs, epochs=crossed.epochs, tried=tried, search=crossed.search, folds=crossed.folds)


def load_crossed(path: Path) -> CrossValidated:
    """Load what save_crossed has written."""
    with np.load(path) as kept:
        tried = {int(epochs): float(accuracy) for epochs, accuracy in kept["tried"]}
        search, folds = (Spent(*kept[name].tolist()) for name in ("search", "folds"))
        return CrossValidated(kept["probs"], int(kept["epochs"]), tried, search, folds)


def search_epochs(prepared: Prepared, places: Tensor, seed: int) -> dict[int, float]:
    """Return the accuracy on held-out noisy labels of these samples for each number of epochs."""
    order = places[torch.randperm(len(places), generator=generator(seed, "search"))]
    held = round(SEARCH_SHARE * len(order))
    labels = prepared.train.labels.cpu()[order[:held]].numpy()
    lengths = sorted({max(1, round(share * prepared.training.epochs)) for share in SHARES})
    found = {}
    for epochs in lengths:
        probs = predict_others(prepared, order[held:], order[:held], epochs, derive(seed, "search", epochs))
        found[epochs] = float((probs.argmax(1) == labels).mean())
    return found


def predict_others(prepared: Prepared, inside: Tensor, outside: Tensor, epochs: int, seed: int) -> Array:
    """Return probabilities (n, K) of the samples `outside` by a network trained plainly on those `inside`."""
    part = prepared.train.at(inside.to(prepared.train.labels.device))
    training = replace(prepared.training, epochs=epochs, seed=seed % 2**31)
    networks = prepared.make_networks(0)
    result = fit(lambda number: networks, Method(CrossEntropy()), part, training=training)
    networks.load_state_dict(result.chosen.networks)
    rest = prepared.train.at(outside.to(prepared.train.labels.device))
    return torch.cat([probs[0] for probs, *_ in predict_batches(networks, rest, training)]).cpu().numpy()


def stratified_folds(labels: Tensor, folds: int, seed: int) -> Tensor:
    """Return the fold of each sample (n), with every label spread evenly."""
    fold = torch.empty_like(labels)
    for number in labels.unique().tolist():
        places = (labels == number).nonzero().squeeze(1)
        shuffled = places[torch.randperm(len(places), generator=generator(seed, "folds", number))]
        fold[shuffled] = (torch.arange(len(places)) + number) % folds
    return fold


# --- plain training


class Watched(Method):
    """Plain training that sums margin of logits, loss and confidence of each sample."""

    def __init__(self, samples: int) -> None:
        super().__init__(CrossEntropy())
        for name in ("margin", "loss_sum", "confidence"):
            self.register_buffer(name, torch.zeros(samples), persistent=False)

    def step(self, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Step:
        step = super().step(logits, labels, index)
        with torch.no_grad():
            scores = logits.detach().float()[0]
            self.margin.index_add_(0, index, margins(scores, labels))
            self.loss_sum.index_add_(0, index, torch.nn.functional.cross_entropy(scores, labels, reduction="none"))
            self.confidence.index_add_(0, index, step.probs[0].gather(1, labels[:, None]).squeeze(1))
        return step

    def scores(self) -> dict[str, Array]:
        """Return the scores (n) by name; low scores mark suspicious labels."""
        sums = {"AUM": self.margin, "mean loss": -self.loss_sum, "mean confidence": self.confidence}
        return {name: total.cpu().numpy().copy() for name, total in sums.items()}


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logit of each label minus the largest other one (B)."""
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -math.inf)
    return own.squeeze(1) - others.amax(1)


def watched(prepared: Prepared) -> dict[str, tuple[Array, Spent]]:
    """Return the scores of one plain training, each with the time until it was known.

    AUM is computed up to the first drop of the learning rate, as in its paper, and over all epochs.
    """
    training = prepared.training
    method = Watched(len(prepared.train))
    clock = Clock()
    first_drop = math.ceil(min((*training.drops, 1.0)) * training.epochs)
    early: dict[str, tuple[Array, Spent]] = {}

    def at_epoch_end(epoch: int, _: object) -> None:
        if epoch == first_drop:
            early["AUM, until the first drop"] = method.scores()["AUM"], clock.read()

    fit(prepared.make_networks, method, prepared.train, training=training, at_epoch_end=at_epoch_end)
    whole = method.scores()
    spent = clock.read()
    named = {"AUM": "AUM, all epochs", "mean loss": "mean loss", "mean confidence": "mean confidence"}
    return {**early, **{named[name]: (score, spent) for name, score in whole.items()}}
