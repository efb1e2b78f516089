"""What a network says of samples."""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from labelsieve.audit import Interval, estimate_noise, label_quality
from labelsieve.core.checks import BATCH_TOO_SMALL, look_like_probabilities
from labelsieve.core.method import Method
from labelsieve.data.arrays import image_tensor
from labelsieve.data.sets import Labelled
from labelsieve.errors import Diverged, InputError
from labelsieve.integrations.common import refuse_long_warmup
from labelsieve.methods import GUARDS, METHODS, Problem, keywords, make
from labelsieve.models import ModelFactory, default_model, make_model
from labelsieve.models.networks import Networks, first_network_weights, make_networks, make_placeholder, move_to_device
from labelsieve.runtime import best_device, prediction_batch_size, usable_device
from labelsieve.train import Result, Training, fit
from labelsieve.train.loop import StopFlag

Array = np.ndarray[Any, Any]


def probabilities(network: nn.Module, samples: Labelled, device: torch.device) -> Array:
    """Probabilities (n, K)."""
    probs: Array = logits_of(network, samples, device).softmax(-1).numpy()
    return probs


@torch.no_grad()
def logits_of(network: nn.Module, samples: Labelled, device: torch.device) -> Tensor:
    """Logits (n, K); of rows in double precision, where nothing hangs on what else is in a batch."""
    rows = len(samples.shape) == 1
    network = copy.deepcopy(network).eval()
    network = network.double() if rows else network.to(device)
    parts = []
    for index in torch.arange(len(samples)).split(prediction_batch_size(samples.shape)):
        inputs = samples.inputs(index)
        logits = network(inputs.double() if rows else inputs.to(device))
        parts.append(logits.double().cpu())
    return torch.cat(parts)


def say_if_nothing_is_left_out(method: Method, batch: int) -> None:
    """Say that batches are too small to select from."""
    least = max((part.smallest_batch() for part in method.selections), default=0)
    if batch < least:
        warnings.warn(BATCH_TOO_SMALL.format(size=batch, least=least), stacklevel=4)


def refuse_settings(settings: "SieveClassifier") -> None:
    """Refuse numbers out of range and what is of another type, in one line each."""
    check_scalar(settings.method, "method", str)
    check_scalar(settings.device, "device", str)
    if settings.criterion is not None:
        check_scalar(settings.criterion, "criterion", str)
    check_scalar(settings.epochs, "epochs", Integral, min_val=1)
    check_scalar(settings.batch_size, "batch_size", Integral, min_val=2)
    check_scalar(settings.lr, "lr", Real, min_val=0, max_val=math.inf, include_boundaries="neither")
    check_scalar(settings.weight_decay, "weight_decay", Real, min_val=0)
    if settings.warmup is not None:
        check_scalar(settings.warmup, "warmup", Integral, min_val=0)
    if not is_auto(settings.noise_rate) and not is_share(settings.noise_rate):
        got = f"got {settings.noise_rate!r}"
        raise InputError(f'noise_rate is the share of wrong labels, from 0 to below 1, or "auto"; {got}')
    if settings.options is not None and not isinstance(settings.options, Mapping):
        raise InputError(f'options is a dict such as {{"lam": 0.5}}, got {settings.options!r}')
    if not isinstance(settings.model, str) and not callable(settings.model):
        raise InputError(f"model is a name or a callable (shape, num_classes) -> nn.Module, got {settings.model!r}")


def is_auto(rate: object) -> bool:
    return isinstance(rate, str) and rate == "auto"


def is_share(rate: object) -> bool:
    """Whether it is a number from 0 to below 1."""
    return isinstance(rate, Real) and 0 <= float(rate) < 1


def refuse_one_class(classes: Array) -> None:
    if len(classes) < 2:
        raise InputError(f"SieveClassifier needs at least two classes, y has one class alone: {classes.tolist()[0]!r}")


def refuse_small_classes(numbers: Array, folds: int) -> None:
    fewest = np.bincount(numbers).min()
    if fewest < folds:
        raise InputError(
            f'noise_rate="auto" needs at least {folds} samples of each class, the smallest has {fewest}; '
            "say how many labels are wrong, such as noise_rate=0.2"
        )


def refuse_network(make_one: Callable[[], nn.Module], train: Labelled) -> None:
    """Try the network on one sample, so that none fails after it was trained."""
    first = train.at(torch.zeros(1, dtype=torch.int64))
    network = make_placeholder(make_one)
    if not isinstance(network, nn.Module):
        raise InputError(f"model must give an nn.Module, it gave {network!r}")
    try:
        logits = logits_of(network, first, torch.device("cpu"))
    except (RuntimeError, TypeError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"the model cannot take samples of shape {train.shape}: {reason}") from error
    if logits.shape != (1, train.num_classes):
        shape = tuple(logits.shape)
        raise InputError(f"the model must give {train.num_classes} numbers for a sample, its output was {shape}")
    if look_like_probabilities(logits):
        raise InputError("the model must give logits, its output looks like probabilities: leave the softmax out")


FOLDS = 5  # plain trainings that look for the noise rate
THIRD = 1 / 3  # of the epochs: how long each of them is, and the warm-up where none is given
MOST_SEEDS = np.iinfo(np.int32).max


class SieveClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network that learns from partly wrong labels: rows of numbers (n, features), or uint8 images (n, h, w[, c]).

    `noise_rate`: the share of labels believed wrong; "auto" finds it with five short plain trainings. `model`: a name
    of labelsieve.models, or a callable (shape, num_classes) -> nn.Module. `warmup`: epochs before samples are selected,
    a third of all if None. `criterion` and `options`: those of the method, such as {"lam": 0.5}; methods that have them
    get align=True and floor=0.5. `device`: as torch names it, or "auto".

    After fit: classes_, noise_rate_, penalty_ (K, K) or None, label_quality_ (n), n_iter_, network_.
    """

    def __init__(
        self,
        *,
        method: str = "mentornet-prop",
        noise_rate: float | str = "auto",
        model: str | ModelFactory = "auto",
        epochs: int = 60,
        warmup: int | None = None,
        batch_size: int = 64,
        lr: float = 0.05,
        weight_decay: float = 5e-4,
        criterion: str | None = None,
        options: Mapping[str, Any] | None = None,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.noise_rate = noise_rate
        self.model = model
        self.epochs = epochs
        self.warmup = warmup
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.criterion = criterion
        self.options = options
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "SieveClassifier":
        """Train on samples X with labels y, of which some may be wrong."""
        refuse_settings(self)
        X, y = validate_data(self, X, y, allow_nd=True)
        check_classification_targets(y)
        classes, numbers = np.unique(y, return_inverse=True)
        refuse_one_class(classes)
        scaler = scaler_of(X) if X.ndim == 2 else None
        train = labelled(X, scaler, numbers, len(classes))
        with threads(torch.get_num_threads() if scaler is None else 1):  # more do not pay for rows
            self._learn(train)
        self.classes_, self.scaler_, self.sample_shape_ = classes, scaler, train.shape  # nothing failed
        return self

    def _learn(self, train: Labelled) -> None:
        """Find the noise rate, if need be, then train."""
        trainer = trainer_of(self, train)
        method = partial(method_of, self, train, trainer.training)
        auto = is_auto(self.noise_rate)
        told = 0.0 if auto else float(self.noise_rate)
        refuse_long_warmup(method(told), trainer.training.epochs)  # before anything is trained
        labels, probs = train.labels.numpy(), out_of_fold(trainer, train) if auto else None
        found = Interval(told, told, told) if probs is None else estimate_noise(labels, probs).rate
        chosen = method(found.estimate)
        if found.low > 0:  # where all labels may be right, nothing need be left out
            say_if_nothing_is_left_out(chosen, trainer.training.batch)
        network, result = trainer.train(chosen, train)
        penalty = result.chosen.tables.get("penalty")  # (N, K, K)
        if probs is None:
            probs = probabilities(network, train, trainer.device)
        self.noise_rate_, self.network_, self.n_iter_ = found.estimate, network, len(result.rows)
        self.penalty_ = None if penalty is None else penalty[0].cpu().numpy()
        self.label_quality_ = label_quality(labels, probs)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities (n, K), in the order of classes_."""
        check_is_fitted(self, "network_")
        X = validate_data(self, X, allow_nd=True, reset=False)
        samples = labelled(X, self.scaler_, np.zeros(len(X), np.int64), len(self.classes_))
        if samples.shape != self.sample_shape_:
            raise InputError(f"fitted to samples of shape {self.sample_shape_}, these are {samples.shape}")
        return probabilities(self.network_, samples, device_of(self.device))

    def predict(self, X: Any) -> Array:
        """The likeliest class of each sample."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]  # type: ignore[no-any-return]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many CPU threads for a while: sums come out differently when they are split differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Trainer:
    """What all trainings of a fit have in common."""

    make_one: Callable[[], nn.Module]
    training: Training
    device: torch.device

    def train(self, method: Method, samples: Labelled) -> tuple[nn.Module, Result]:
        """The first network of the last round, on the CPU, as `labelsieve train` delivers it."""
        samples = samples if samples.images.dtype == torch.uint8 else replace(samples, images=samples.images.float())
        try:
            result = fit(
                partial(self._networks, method.networks),
                method,
                samples.to(self.device),
                training=self.training,
                stop=StopFlag(),  # it is not entered: Ctrl-C stays a KeyboardInterrupt
            )
        except Diverged as error:
            raise Diverged(str(error).replace("--lr", "lr")) from error
        network = make_placeholder(self.make_one)
        network.load_state_dict(first_network_weights(result.chosen.networks))
        return network.eval(), result

    def _networks(self, count: int, number: int) -> Networks:
        networks = make_networks(self.make_one, count, self.training.seed, number)
        return move_to_device(networks, self.device, self.training.precision)


def scaler_of(X: Array) -> StandardScaler:
    """Mean and deviation of each column."""
    with np.errstate(all="ignore"):
        scaler = StandardScaler().fit(X.astype(np.float64))
    too_large = np.flatnonzero(~np.isfinite(scaler.var_))
    if len(too_large):
        raise InputError(f"column {too_large[0]} of X has numbers too large to be standardised; scale it first")
    return scaler


def standardised(X: Array, scaler: StandardScaler) -> Array:
    """(n, features) float64"""
    with np.errstate(all="ignore"):
        rows: Array = scaler.transform(X.astype(np.float64))
    if not np.isfinite(rows).all():
        raise InputError("X has numbers that are too large beside those of fit")
    return rows


def labelled(X: Array, scaler: Any, numbers: Array, num_classes: int) -> Labelled:
    """Samples as training wants them: images as they are, rows standardised."""
    if (X.ndim == 2) != (scaler is not None):
        raise InputError("one of fit and predict was given rows (n, features), the other images (n, height, width)")
    if scaler is None:
        inputs = image_tensor(np.require(X, requirements="W"), "X")  # torch warns of what cannot be written to
    else:
        inputs = torch.from_numpy(standardised(X, scaler))
    return Labelled(inputs, torch.from_numpy(numbers), [str(number) for number in range(num_classes)])


def trainer_of(settings: SieveClassifier, train: Labelled) -> Trainer:
    """The trainer for these settings; refuses a network that does not fit the samples."""
    device = device_of(settings.device)
    name = default_model(train.shape, device) if settings.model == "auto" else settings.model
    maker = partial(make_model, name) if isinstance(name, str) else name
    make_one = partial(maker, train.shape, train.num_classes)
    refuse_network(make_one, train)
    training = Training(
        epochs=settings.epochs,
        batch=settings.batch_size,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        seed=int(check_random_state(settings.random_state).randint(MOST_SEEDS)),
    )
    return Trainer(make_one, training, device)


def method_of(settings: SieveClassifier, train: Labelled, training: Training, noise_rate: float) -> Method:
    """The method for these samples; options that nobody named are the guards, then the method's own."""
    usual = min(short(training.epochs), training.epochs - 1)
    warmup = usual if settings.warmup is None else settings.warmup
    problem = Problem(train.num_classes, noise_rate, warmup, len(train), training.seed)
    guards = {name: value for name, value in GUARDS.items() if name in keywords(METHODS.get(settings.method))}
    return make(settings.method, problem, settings.criterion, **{**guards, **(settings.options or {})})


def short(epochs: int) -> int:
    """A third of the epochs."""
    return max(1, round(THIRD * epochs))


def out_of_fold(trainer: Trainer, train: Labelled) -> Array:
    """Probabilities (n, K) of each sample by a short plain training that has not seen it."""
    training = replace(trainer.training, epochs=short(trainer.training.epochs))
    plain = replace(trainer, training=training)
    numbers = train.labels.numpy()
    refuse_small_classes(numbers, FOLDS)
    probs = np.empty((len(train), train.num_classes))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=training.seed)
    for kept, held in folds.split(numbers, numbers):
        network, _ = plain.train(make("default", Problem(train.num_classes, 0.0)), train.at(torch.from_numpy(kept)))
        probs[held] = probabilities(network, train.at(torch.from_numpy(held)), trainer.device)
    return probs


def device_of(name: str) -> torch.device:
    try:
        return usable_device(best_device() if name == "auto" else name)
    except InputError as error:
        raise InputError(str(error).replace("--device cpu", 'device="cpu"')) from error
