"""Experiment: the whole of one run. What is the same here gives the same result."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from labelsieve.errors import InputError

# What suits a dataset; the paper's benchmark settings are the defaults of Experiment itself.
SETTINGS: dict[str, dict[str, Any]] = {
    "fashion": {"model": "small", "epochs": 20, "lr": 0.02},
}
CHOICES = {
    "normalise": ("image", "imagenet"),
    "precision": ("fp32", "bf16"),
    "choose": ("best", "last"),
    "sampler": ("permutation", "independent"),
    "forward": ("one", "second"),
}
BESIDE_THE_POINT = ("cache", "workers", "scores")  # they change how fast or what is kept, not what comes out
WARMUP_SHARE = {"fashion": 0.5}  # of the epochs; the paper's is 25 of 100


@dataclass(frozen=True)
class Experiment:
    """One training, from the data to the seed."""

    data: str = "fashion"  # a dataset's name, a file or a folder
    size: int | None = None  # side that images are scaled to
    label_column: str | None = None  # of a table
    image_column: str | None = None
    test: float = 0.0  # share that is drawn as a test set where the data has none
    skip_bad: bool = False  # leave out what cannot be used
    stream: bool = False  # read images from disk while training, even if they fit into memory
    cache: str | None = None  # folder for decoded images, when streaming
    workers: int | None = None  # threads that decode, when streaming
    labels: str | None = None  # a file of labels laid over the data's own
    corrected: str | None = None  # a file of labels for what is learnt from, laid over it last
    noise: str | None = None  # a kind of noise, or a file with a transition matrix, that corrupts the labels first
    rate: float = 0.0  # of that noise
    noise_map: str = ""  # asymmetric noise: "9:1,2:0"
    exact_noise: bool = False  # each class gets its exact share of noise
    method: str = "mentornet-prop"
    criterion: str | None = None
    options: tuple[tuple[str, Any], ...] = ()  # of the method and its criterion
    noise_rate: float = 0.0  # what the method is told
    model: str = "densenet-25-12"  # auto: what suits the data and the device
    weights: str | None = None  # a file of pretrained weights to start from
    epochs: int = 100
    warmup: int = 25
    batch: int = 128
    lr: float = 0.1
    weight_decay: float = 5e-4
    nesterov: bool = True
    drops: tuple[float, ...] = (0.5, 0.75)  # shares of the epochs after which the learning rate drops
    drop_factor: float = 0.2
    drop_last: bool = False  # leave out an incomplete last batch
    sampler: str = "permutation"  # or independent: each batch is drawn by itself, as the paper's harness does
    forward: str = "one"  # or second: learn from another pass over the kept samples alone, likewise
    augment: str = ""  # crop4,flip,cutout8; window224
    normalise: str = "image"  # each image by itself, or imagenet: by its colours
    valid: float = 0.0  # share of the training data held out, with its noise, to choose the epoch
    fold: int = 0  # which of the parts of that size is held out
    choose: str = "best"  # the epoch that is delivered: the best on what was held out, where something was, or the last
    init: str | None = None  # folder of a finished run whose model is the start
    scores: tuple[int, ...] = ()  # epochs, counted from 1, after which every sample's scores are kept
    seed: int = 0
    device: str = "cpu"
    precision: str = "fp32"
    threads: int = 1  # of the CPU: sums come out differently when they are split differently

    def __post_init__(self) -> None:
        for name, least in {"epochs": 1, "batch": 1, "threads": 1, "warmup": 0, "seed": 0, "fold": 0}.items():
            value = getattr(self, name)
            if value < least:
                raise InputError(f"{name} must be at least {least}, got {value}")
        if self.warmup >= self.epochs:
            raise InputError(
                f"a warm-up of {self.warmup} epochs leaves none of {self.epochs} to select samples in; lower --warmup"
            )
        if not 0 < self.lr < float("inf"):
            raise InputError(f"lr must be a number above 0, got {self.lr}")
        if not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"weight decay must be a number from 0 on, got {self.weight_decay}")
        if not 0 <= self.noise_rate < 1:
            raise InputError(f"noise rate must be in [0, 1), got {self.noise_rate:g}; 40% is 0.4")
        for name in ("valid", "test"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be in [0, 1), got {getattr(self, name):g}; 0.2 is a fifth")
        for epoch in self.scores:
            if not 1 <= epoch <= self.epochs:
                raise InputError(f"scores can be kept of the epochs 1 to {self.epochs}, not of {epoch}")
        if self.size is not None and self.size < 8:
            raise InputError(f"size must be at least 8 pixels, got {self.size}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be {' or '.join(allowed)}, got {getattr(self, name)!r}")
        if self.precision == "bf16" and self.device == "cpu":
            raise InputError("bf16 needs a GPU: use --precision fp32 on a CPU")

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dict(json.loads(json.dumps(dataclasses.asdict(self))))

    def name(self) -> str:
        """A short hash of everything that is not as usual, so that a new field leaves old names as they are."""
        usual = Experiment().as_dict()
        unusual = {n: v for n, v in self.as_dict().items() if v != usual[n] and n not in BESIDE_THE_POINT}
        text = json.dumps(unusual, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def with_defaults(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved specification with what was added to specifications since."""
    return {**Experiment().as_dict(), **saved}


def restored(saved: dict[str, Any]) -> Experiment:
    """The experiment of a saved specification."""
    known = {field.name for field in dataclasses.fields(Experiment)}
    settings = {name: value for name, value in saved.items() if name in known}
    settings["options"] = tuple((name, value) for name, value in settings.get("options", ()))
    settings["drops"] = tuple(settings.get("drops", Experiment.drops))
    return Experiment(**settings)


def planned(data: str, **given: Any) -> Experiment:
    """An experiment with the settings that suit the data, where none are given (None)."""
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = {**SETTINGS.get(data, {}), **chosen}
    warmup = int(WARMUP_SHARE.get(data, 0.25) * settings.get("epochs", Experiment.epochs))
    return Experiment(data=data, **{"warmup": warmup, **settings})


def assigned(texts: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    """Options that are written name=value; numbers become numbers, true and false what they say."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"an option is name=value, got {text!r}")
        if name in found:
            raise InputError(f"the option {name} is given twice")
        try:
            found[name] = json.loads(value.lower())
        except ValueError:
            found[name] = value
    return tuple(sorted(found.items()))
