"""What SieveClassifier refuses, in one line each, before anything is trained."""

import math
import warnings
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import check_scalar
from torch import nn

from labelsieve.core.method import Method
from labelsieve.core.mistakes import TOO_SMALL, look_like_probabilities
from labelsieve.data.resident import Labelled
from labelsieve.errors import InputError
from labelsieve.integrations.probabilities import logits_of
from labelsieve.models.networks import spare

if TYPE_CHECKING:
    from labelsieve.integrations.sklearn import SieveClassifier

Array = np.ndarray[Any, Any]


def say_if_nothing_is_left_out(method: Method, batch: int) -> None:
    """Say that batches are too small to select from."""
    least = max((part.fewest() for part in method.selecting), default=0)
    if batch < least:
        warnings.warn(TOO_SMALL.format(size=batch, least=least), stacklevel=4)


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
    network = spare(make_one)
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
