"""Experiment: the complete specification of one training run.

Two runs with the same specification, data and software versions give the same result. `Experiment.name` names the
run's folder; `experiment_for` fills in the settings that suit a dataset, `suited_to_network` those that suit a network
on the user's own images.
"""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from inspect import formatannotation
from typing import Any, NamedTuple

from labelsieve import catalogue
from labelsieve.errors import InputError

# Settings for a dataset. The defaults of Experiment are the settings of the paper's benchmark.
DATASET_SETTINGS: dict[str, dict[str, Any]] = {
    "fashion": {"model": "small", "epochs": 20, "lr": 0.02},
}
WARMUP_SHARE = {"fashion": 0.5}  # share of the epochs; the paper's is 25 of 100

# Settings for a network on the user's own images (decisions 27 and 30), used where the user gives none.
NETWORK_SETTINGS: dict[str, dict[str, Any]] = {
    "small": {"epochs": 30, "lr": 0.02},
    "compact": {"epochs": 30, "lr": 0.05},
}
OPEN_SETTINGS = ("epochs", "warmup", "batch", "lr")  # chosen automatically unless the user sets them
OWN_WARMUP_SHARE = 1 / 3
STEPS_PER_EPOCH = 47  # as on the embedded data: smaller datasets use smaller batches
BATCH_RANGE = (32, 128)

CHOICES = {
    "normalise": ("image", "imagenet", "lite"),
    "precision": ("fp32", "bf16"),
    "choose": ("best", "last"),
    "sampler": ("permutation", "independent"),
    "forward": ("one", "second"),
}
NOT_IN_NAME = ("cache", "workers", "scores")  # these affect speed and extra output, not the result
MOST = {"epochs": 10**6, "batch": 10**9, "threads": 1024, "workers": 1024, "size": 2048}  # larger values are mistakes


@dataclass(frozen=True)
class Experiment:
    """All settings of one training."""

    data: str = "fashion"  # a dataset's name, a file or a folder
    size: int | None = None  # side in pixels to which images are scaled
    label_column: str | None = None  # label column of a table
    image_column: str | None = None
    text_column: str | None = None
    features: str | None = None  # file of features that replace the samples of the data
    backbone: str | None = None  # pretrained network that turns images or texts into features
    test: float = 0.0  # share drawn as a test set if the data has none
    skip_bad: bool = False  # skip files and rows that cannot be read
    stream: bool = False  # read images from disk during training even if they fit in memory
    cache: str | None = None  # folder for features, and for decoded images when streaming
    workers: int | None = None  # threads that decode or compute features
    labels: str | None = None  # file of labels that replace those of the data
    corrected: str | None = None  # file of corrected labels, or class probabilities, for the training set, applied last
    noise: str | None = None  # kind of noise, or file with a transition matrix, added to the labels
    rate: float = 0.0  # rate of the added noise
    noise_map: str = ""  # asymmetric noise: "9:1,2:0"
    exact_noise: bool = False  # corrupt exactly the given share of each class
    method: str = "mentornet-prop"
    criterion: str | None = None
    options: tuple[tuple[str, Any], ...] = ()  # options of the method and its criterion
    noise_rate: float = 0.0  # noise rate given to the method
    model: str = "densenet-25-12"  # auto: chosen for the data and the device
    weights: str | None = None  # file of pretrained weights, of the backbone if there is one
    epochs: int = 100
    warmup: int = 25
    batch: int = 128
    lr: float = 0.1
    weight_decay: float = 5e-4
    nesterov: bool = True
    drops: tuple[float, ...] = (0.5, 0.75)  # shares of the epochs after which the learning rate drops
    drop_factor: float = 0.2
    drop_last: bool = False  # drop an incomplete last batch
    sampler: str = "permutation"  # or independent: each batch drawn independently, as in the reference code
    forward: str = "one"  # or second: a second forward pass over the kept samples, as in the reference code
    augment: str = ""  # crop4,flip,cutout8; window224
    normalise: str = "image"  # standardise each image, or the channel statistics of pretrained networks: imagenet, lite
    valid: float = 0.0  # share of the training set held out, noise included, to choose the epoch
    fold: int = 0  # index of the held-out part
    choose: str = "best"  # delivered epoch: best on the held-out samples (if any), or last
    init: str | None = None  # finished run, or its model.safetensors, whose model is the starting point
    scores: tuple[int, ...] = ()  # epochs (from 1) after which the scores of every sample are saved
    seed: int = 0
    device: str = "cpu"
    precision: str = "fp32"
    threads: int = 1  # CPU threads; part of the specification because they change the order of summation

    def __post_init__(self) -> None:
        for name, least in {"epochs": 1, "batch": 1, "threads": 1, "warmup": 0, "seed": 0, "fold": 0}.items():
            value = getattr(self, name)
            if value < least:
                raise InputError(f"{name} must be at least {least}, got {value}")
        for name, most in MOST.items():
            if (getattr(self, name) or 0) > most:
                raise InputError(f"{name} must be at most {most:,}, got {getattr(self, name):,}")
        if self.warmup >= self.epochs:
            raise InputError(
                f"a warm-up of {self.warmup} epochs leaves none of {self.epochs} for sample selection; lower --warmup"
            )
        if not 0 < self.lr < float("inf"):
            raise InputError(f"lr must be a number above 0, got {self.lr}")
        if not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"weight decay must be at least 0, got {self.weight_decay}")
        if not 0 <= self.noise_rate < 1:
            raise InputError(f"noise rate must be in [0, 1), got {self.noise_rate:g}; 40% is 0.4")
        for name in ("valid", "test"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be in [0, 1), got {getattr(self, name):g}; 0.2 is a fifth")
        for epoch in self.scores:
            if not 1 <= epoch <= self.epochs:
                raise InputError(f"scores can be saved after the epochs 1 to {self.epochs}, not after {epoch}")
        if self.size is not None and self.size < 8:
            raise InputError(f"size must be at least 8 pixels, got {self.size}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be {' or '.join(allowed)}, got {getattr(self, name)!r}")
        if self.precision == "bf16" and self.device == "cpu":
            raise InputError("bf16 needs a GPU; use --precision fp32 on a CPU")

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return dict(json.loads(json.dumps(dataclasses.asdict(self))))

    def name(self) -> str:
        """Return a short hash of the settings that differ from their defaults: new fields do not change old names."""
        defaults = Experiment().as_dict()
        changed = {n: v for n, v in self.as_dict().items() if v != defaults[n] and n not in NOT_IN_NAME}
        text = json.dumps(changed, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def with_defaults(saved: dict[str, Any]) -> dict[str, Any]:
    """Add the defaults of fields that were introduced after a specification was saved."""
    return {**Experiment().as_dict(), **saved}


def experiment_from(saved: dict[str, Any]) -> Experiment:
    """Return the experiment described by a saved specification; refuse values of wrong types."""
    known = {field.name: formatannotation(field.type) for field in dataclasses.fields(Experiment)}
    settings = {name: value for name, value in saved.items() if name in known}
    for name, value in settings.items():
        if not _has_type(value, known[name]):
            raise InputError(f"{name} cannot be {json.dumps(value)[:80]}")
    settings["options"] = tuple((name, value) for name, value in settings.get("options", ()))
    settings["drops"] = tuple(settings.get("drops", Experiment.drops))
    settings["scores"] = tuple(settings.get("scores", ()))
    return Experiment(**settings)


def _has_type(value: Any, kind: str) -> bool:
    """Return whether a JSON value has the type of a field, as it is written in `Experiment`."""
    kind, _, optional = kind.partition(" | ")
    if value is None:
        return bool(optional)
    if kind.startswith("tuple[tuple["):  # pairs of a name and a plain value
        pairs = isinstance(value, list | tuple) and all(isinstance(pair, list | tuple) for pair in value)
        return pairs and all(len(pair) == 2 and isinstance(pair[0], str) and _is_plain(pair[1]) for pair in value)
    if kind.startswith("tuple["):
        inner = kind.removeprefix("tuple[").partition(",")[0]
        return isinstance(value, list | tuple) and all(_has_type(each, inner) for each in value)
    if kind == "float":
        return type(value) in (int, float) and -1e308 < value < 1e308
    return type(value).__name__ == kind


def _is_plain(value: Any) -> bool:
    """Return whether a value is one that an option of a method may have."""
    return value is None or isinstance(value, str | bool | int | float | list)


def experiment_for(data: str, **given: Any) -> Experiment:
    """Return an experiment with the settings for the dataset wherever the given value is None."""
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = {**DATASET_SETTINGS.get(data, {}), **chosen}
    if (settings.get("model"), settings.get("method")) == ("linear", "default"):  # logistic regression
        settings |= {"epochs": 1, "warmup": 0}
    warmup = int(WARMUP_SHARE.get(data, 0.25) * settings.get("epochs", Experiment.epochs))
    return Experiment(data=data, **{"warmup": warmup, **settings})


def suited_to_network(experiment: Experiment, model: str, open_settings: Collection[str], samples: int) -> Experiment:
    """Return the experiment with the settings for the network, where the user has left them open."""
    if model not in NETWORK_SETTINGS or experiment.data in DATASET_SETTINGS:
        return experiment
    epochs = NETWORK_SETTINGS[model]["epochs"] if "epochs" in open_settings else experiment.epochs
    warmup = max(1, round(OWN_WARMUP_SHARE * epochs)) if epochs > 1 else 0
    batch = min(max(round(samples / STEPS_PER_EPOCH), BATCH_RANGE[0]), BATCH_RANGE[1])
    settings = {**NETWORK_SETTINGS[model], "epochs": epochs, "warmup": warmup, "batch": batch}
    return replace(experiment, **{name: settings[name] for name in open_settings if name in settings})


def parse_options(texts: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    """Parse options written as name=value; numbers and true/false are converted."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"write an option as name=value, got {text!r}")
        if name in found:
            raise InputError(f"the option {name} is given twice")
        try:
            found[name] = json.loads(value.lower())
        except ValueError:
            found[name] = value
    return tuple(sorted(found.items()))


class MethodChoice(NamedTuple):
    """A method with the criterion and options to compare."""

    method: str
    criterion: str | None
    options: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        """Return the name in tables: co-teaching (all), mentornet-prop (lam 0.5)."""
        chosen = [*filter(None, [self.criterion]), *(f"{name} {value}" for name, value in self.options)]
        return f"{self.method} ({', '.join(chosen)})" if chosen else self.method


def parse_methods(methods: str) -> list[str]:
    """Split methods separated by commas, each once, and refuse unknown ones; "all" stands for all methods."""
    if methods == "all":
        return [*catalogue.methods(), "co-teaching:all"]
    every = list(dict.fromkeys(name for words in methods.split(",") if (name := words.strip())))
    if not every:
        raise InputError("--methods is empty; write for example default,mentornet-prop, or all")
    for words in every:
        parse_method(words)
    return every


def parse_method(words: str) -> MethodChoice:
    """Parse a method with a criterion and options: co-teaching:all, mentornet-prop:lam=0.5."""
    method, *rest = words.split(":")
    criteria = [word for word in rest if "=" not in word]
    if len(criteria) > 1:
        raise InputError(f"{words} has two criteria, {criteria[0]} and {criteria[1]}; remove one")
    criterion, options = criteria[0] if criteria else None, parse_options(word for word in rest if "=" in word)
    catalogue.refuse_unknown(method, criterion, dict(options))
    return MethodChoice(method, criterion, options)
