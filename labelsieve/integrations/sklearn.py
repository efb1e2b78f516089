"""SieveClassifier: a scikit-learn classifier that learns from noisy labels."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelsieve.audit import Interval
from labelsieve.core.checks import BATCH_TOO_SMALL, look_like_probabilities
from labelsieve.core.method import Method
from labelsieve.data.arrays import image_tensor
from labelsieve.data.classes import Array
from labelsieve.data.sets import Labelled
from labelsieve.errors import Diverged, InputError, first_line, missing_extra, warn_user
from labelsieve.loss import check_warmup
from labelsieve.methods import GUARDS, METHODS, Problem, keywords, make
from labelsieve.models import ModelFactory, default_model, make_model
from labelsieve.models.networks import Networks, first_network_weights, make_networks, make_placeholder, move_to_device
from labelsieve.quality import estimate_noise, label_quality
from labelsieve.runtime import best_device, prediction_batch_size, torch_threads, usable_device
from labelsieve.train import Result, StopFlag, Training, fit

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.model_selection import StratifiedKFold
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state, check_scalar
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
    raise missing_extra("sklearn", error) from None

FOLDS = 5  # plain trainings that estimate the noise rate
SHORT = 1 / 3  # fraction of the epochs: the length of these trainings, and the default warm-up
LARGEST_SEED = np.iinfo(np.int32).max


class SieveClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network classifier that is robust against wrong labels.

    Args:
        method: the name of a method; `labelsieve methods` lists them.
        noise_rate: the share of wrong labels, or "auto" to estimate it with five short plain trainings.
        model: a name of labelsieve.models, a callable (shape, num_classes) -> nn.Module, or "auto".
        epochs: the number of epochs.
        warmup: the number of epochs before samples are selected; None for a third of the epochs.
        batch_size: the number of samples per batch.
        lr: the initial learning rate.
        weight_decay: the weight decay.
        criterion: the selection criterion of the method.
        options: options of the method, such as {"lam": 0.5}; align and floor default to True and 0.5 here.
        device: "cpu", "cuda" or "auto".
        random_state: the seed or generator of all random numbers.

    Attributes:
        classes_: the class labels.
        noise_rate_: the given or estimated noise rate.
        label_quality_: the quality of each training label, (n), low for suspects.
        penalty_: the penalty labels (K, K), or None.
        network_: the trained torch module.
        n_iter_: the number of epochs over all rounds.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> from labelsieve.integrations.sklearn import SieveClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = SieveClassifier(noise_rate=0.1, epochs=12, random_state=0).fit(X, y)
        >>> model.predict(X[:2]).shape, model.label_quality_.shape
        ((2,), (150,))
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
        """Train on samples X with noisy labels y.

        Args:
            X: features (n, features), or uint8 images (n, height, width[, channels]).
            y: labels (n).
        """
        _check_settings(self)
        X, y = validate_data(self, X, y, allow_nd=True)
        check_classification_targets(y)
        classes, numbers = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise InputError(f"SieveClassifier needs at least two classes, y has one class: {classes.tolist()[0]!r}")
        scaler = _fit_scaler(X) if X.ndim == 2 else None
        train = _to_samples(X, scaler, numbers, len(classes))
        with torch_threads(torch.get_num_threads() if scaler is None else 1):  # features are not faster with more
            self._train(train)
        self.classes_, self.scaler_, self.sample_shape_ = classes, scaler, train.shape  # set only if nothing failed
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the class probabilities (n, K), in the order of classes_."""
        check_is_fitted(self, "network_")
        X = validate_data(self, X, allow_nd=True, reset=False)
        samples = _to_samples(X, self.scaler_, np.zeros(len(X), np.int64), len(self.classes_))
        if samples.shape != self.sample_shape_:
            raise InputError(f"the classifier was fitted to samples of shape {self.sample_shape_}, got {samples.shape}")
        return _predict_probabilities(self.network_, samples, _find_device(self.device))

    def predict(self, X: Any) -> Array:
        """Return the most likely class of each sample, (n)."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def _train(self, train: Labelled) -> None:
        """Estimate the noise rate if it is "auto", then train."""
        trainer = _make_trainer(self, train)
        method_at = partial(_make_method, self, train, trainer.training)
        auto = _is_auto(self.noise_rate)
        given = 0.0 if auto else float(self.noise_rate)
        check_warmup(method_at(given), trainer.training.epochs)  # before any training
        labels, probs = train.labels.numpy(), _out_of_fold_probabilities(trainer, train) if auto else None
        rate = Interval(given, given, given) if probs is None else estimate_noise(labels, probs).rate
        method = method_at(rate.estimate)
        size, least = trainer.training.batch, max((part.smallest_batch() for part in method.selections), default=0)
        if size < least and rate.low > 0:  # otherwise all labels may be correct, and no sample has to be left out
            warn_user(BATCH_TOO_SMALL.format(size=size, least=least))
        network, result = trainer.train(method, train)
        penalty = result.chosen.tables.get("penalty")  # (N, K, K)
        if probs is None:
            probs = _predict_probabilities(network, train, trainer.device)
        self.noise_rate_, self.network_, self.n_iter_ = rate.estimate, network, len(result.rows)
        self.penalty_ = None if penalty is None else penalty[0].cpu().numpy()
        self.label_quality_ = label_quality(labels, probs)


# ---- training ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Trainer:
    """The network, settings and device that all trainings of a fit have in common."""

    make_one: Callable[[], nn.Module]
    training: Training
    device: torch.device

    def train(self, method: Method, samples: Labelled) -> tuple[nn.Module, Result]:
        """Train and return the first network of the last round on the CPU, as `labelsieve train` delivers it."""
        samples = samples if samples.images.dtype == torch.uint8 else replace(samples, images=samples.images.float())
        try:
            result = fit(
                partial(self._make_networks, method.networks),
                method,
                samples.to(self.device),
                training=self.training,
                stop=StopFlag(),  # never entered, so Ctrl-C raises KeyboardInterrupt as usual
            )
        except Diverged as error:
            raise Diverged(str(error).replace("--lr", "lr")) from error
        network = make_placeholder(self.make_one)
        network.load_state_dict(first_network_weights(result.chosen.networks))
        return network.eval(), result

    def _make_networks(self, count: int, number: int) -> Networks:
        networks = make_networks(self.make_one, count, self.training.seed, number)
        return move_to_device(networks, self.device, self.training.precision)


def _make_trainer(settings: SieveClassifier, train: Labelled) -> _Trainer:
    """Return the trainer of a classifier; raise InputError if its network does not fit the samples."""
    device = _find_device(settings.device)
    model = default_model(train.shape, device) if settings.model == "auto" else settings.model
    factory = partial(make_model, model) if isinstance(model, str) else model
    make_one = partial(factory, train.shape, train.num_classes)
    _check_model(make_one, train)
    training = Training(
        epochs=settings.epochs,
        batch=settings.batch_size,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        seed=int(check_random_state(settings.random_state).randint(LARGEST_SEED)),
    )
    return _Trainer(make_one, training, device)


def _make_method(settings: SieveClassifier, train: Labelled, training: Training, noise_rate: float) -> Method:
    """Return the method of a classifier; GUARDS are the defaults of the options that the method has."""
    default_warmup = min(_short_training(training.epochs), training.epochs - 1)
    warmup = default_warmup if settings.warmup is None else settings.warmup
    problem = Problem(train.num_classes, noise_rate, warmup, len(train), training.seed)
    guards = {name: value for name, value in GUARDS.items() if name in keywords(METHODS.get(settings.method))}
    return make(settings.method, problem, settings.criterion, **{**guards, **(settings.options or {})})


def _short_training(epochs: int) -> int:
    """Return a third of the epochs, at least one."""
    return max(1, round(SHORT * epochs))


def _out_of_fold_probabilities(trainer: _Trainer, train: Labelled) -> Array:
    """Return the probabilities (n, K) of each sample by a short plain training without it."""
    training = replace(trainer.training, epochs=_short_training(trainer.training.epochs))
    plain = replace(trainer, training=training)
    numbers = train.labels.numpy()
    probs = np.empty((len(train), train.num_classes))
    for rest, fold in _folds(numbers, training.seed):
        network, _ = plain.train(make("default", Problem(train.num_classes, 0.0)), train.at(torch.from_numpy(rest)))
        probs[fold] = _predict_probabilities(network, train.at(torch.from_numpy(fold)), trainer.device)
    return probs


def _folds(numbers: Array, seed: int) -> Iterator[tuple[Array, Array]]:
    """Yield the samples outside and inside of each fold; each fold has its share of each class."""
    smallest = np.bincount(numbers).min()
    if smallest >= FOLDS:
        yield from StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(numbers, numbers)
        return
    warn_user(
        f'noise_rate="auto" estimates little from classes of fewer than {FOLDS} samples, the smallest has {smallest}; '
        "pass the share of wrong labels if you know it, such as noise_rate=0.2"
    )
    shuffled = np.random.default_rng(seed).permutation(len(numbers))
    by_class = shuffled[numbers[shuffled].argsort(kind="stable")]
    for number in range(min(FOLDS, len(numbers))):
        inside = np.zeros(len(numbers), bool)
        inside[by_class[number::FOLDS]] = True
        yield np.flatnonzero(~inside), np.flatnonzero(inside)


# ---- prediction ----------------------------------------------------------------------------------------------------


def _predict_probabilities(network: nn.Module, samples: Labelled, device: torch.device) -> Array:
    """Return the class probabilities (n, K)."""
    return _predict_logits(network, samples, device).softmax(-1).numpy()


@torch.no_grad()
def _predict_logits(network: nn.Module, samples: Labelled, device: torch.device) -> Tensor:
    """Return the logits (n, K); features use double precision, so that results do not depend on the batch."""
    is_table = len(samples.shape) == 1
    network = copy.deepcopy(network).eval()
    network = network.double() if is_table else network.to(device)
    parts = []
    for index in torch.arange(len(samples)).split(prediction_batch_size(samples.shape)):
        inputs = samples.inputs(index)
        logits = network(inputs.double() if is_table else inputs.to(device))
        parts.append(logits.double().cpu())
    return torch.cat(parts)


# ---- data ----------------------------------------------------------------------------------------------------------


def _to_samples(X: Array, scaler: Any, numbers: Array, num_classes: int) -> Labelled:
    """Return labelled samples: images unchanged, features standardised as float64."""
    if (X.ndim == 2) != (scaler is not None):
        raise InputError("fit and predict need the same kind of X: features (n, features) or images (n, height, width)")
    if scaler is None:
        inputs = image_tensor(np.require(X, requirements="W"), "X")  # torch warns about read-only arrays
    else:
        with np.errstate(all="ignore"):
            rows = scaler.transform(X.astype(np.float64))
        if not np.isfinite(rows).all():
            raise InputError("X has values that are too large compared with those passed to fit")
        inputs = torch.from_numpy(rows)
    return Labelled(inputs, torch.from_numpy(numbers), [str(number) for number in range(num_classes)])


def _fit_scaler(X: Array) -> StandardScaler:
    """Return a scaler with the mean and standard deviation of each column."""
    with np.errstate(all="ignore"):
        scaler = StandardScaler().fit(X.astype(np.float64))
    too_large = np.flatnonzero(~np.isfinite(scaler.var_))
    if len(too_large):
        raise InputError(f"column {too_large[0]} of X has values too large to standardise; scale it first")
    return scaler


# ---- checks --------------------------------------------------------------------------------------------------------


def _check_settings(settings: SieveClassifier) -> None:
    """Raise an error for settings of a wrong type or out of range."""
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
    rate: object = settings.noise_rate
    if not _is_auto(rate) and not (isinstance(rate, Real) and 0 <= float(rate) < 1):
        raise InputError(f'noise_rate must be a number from 0 to below 1, or "auto", got {rate!r}')
    if settings.options is not None and not isinstance(settings.options, Mapping):
        raise InputError(f'options must be a dict such as {{"lam": 0.5}}, got {settings.options!r}')
    if not isinstance(settings.model, str) and not callable(settings.model):
        raise InputError(f"model must be a name or a callable (shape, num_classes) -> Module, got {settings.model!r}")


def _is_auto(noise_rate: object) -> bool:
    """Return True if the noise rate is to be estimated."""
    return isinstance(noise_rate, str) and noise_rate == "auto"  # == with an array would not return a bool


def _check_model(make_one: Callable[[], nn.Module], train: Labelled) -> None:
    """Raise InputError if the network does not return logits for one sample."""
    first = train.at(torch.zeros(1, dtype=torch.int64))
    network = make_placeholder(make_one)
    if not isinstance(network, nn.Module):
        raise InputError(f"model must return an nn.Module, got {network!r}")
    try:
        logits = _predict_logits(network, first, torch.device("cpu"))
    except (RuntimeError, TypeError, IndexError) as error:
        raise InputError(f"the model fails on samples of shape {train.shape}: {first_line(error)}") from error
    if logits.shape != (1, train.num_classes):
        raise InputError(
            f"the model must return {train.num_classes} logits per sample, its output has shape {tuple(logits.shape)}"
        )
    if look_like_probabilities(logits):
        raise InputError("the model must return logits, but its output looks like probabilities: remove the softmax")


def _find_device(name: str) -> torch.device:
    """Return the device of this name; "auto" is a GPU if there is one."""
    try:
        return usable_device(best_device() if name == "auto" else name)
    except InputError as error:
        raise InputError(str(error).replace("--device cpu", 'device="cpu"')) from error
