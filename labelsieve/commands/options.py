"""Options that several commands ask for alike; docs of each are what --help shows."""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from labelsieve import noise as label_noise
from labelsieve.errors import InputError
from labelsieve.runs.spec import SETTINGS, Experiment, planned
from labelsieve.runtime import best_device, best_precision
from labelsieve.sweep.compare import compare

own_default = functools.partial(arg, help_behavior_hint="")  # the help text itself says what happens without it
Text = Annotated[str | None, own_default(metavar="TEXT")]
Number = Annotated[float | None, own_default(metavar="NUMBER")]
Whole = Annotated[int | None, own_default(metavar="N")]
File = Annotated[Path | None, own_default(metavar="PATH")]
Data = Positional[Annotated[str, arg(metavar="DATA")]]
SomeData = Positional[Annotated[str, arg(metavar="[DATA]")]]  # where there is a default


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the columns of a table are.

    Args:
        label_column: The column of a table with the labels. Default: label, class, target or y.
        image_column: The column of a table with the images. Default: image, path or file; without one, numbers.
    """

    label_column: Text = None
    image_column: Text = None


@dataclass(frozen=True, kw_only=True)
class Scaling(Columns):
    """How the data is read.

    Args:
        size: Scale images to this side. Default: as they are, if all have one size up to 224, else squares of their
            median shorter side, at most 224.
    """

    size: Whole = None


@dataclass(frozen=True, kw_only=True)
class Reading(Scaling):
    """How the data is read.

    Args:
        labels: A .csv or .npy file with labels to use instead of the data's own, or CIFAR-N's as file:kind.
        test: Share of the data that is drawn as a test set, class by class, where it has none.
        skip_bad: Train without the files and rows that cannot be used.
    """

    labels: Text = None
    test: float = 0.0
    skip_bad: bool = False


@dataclass(frozen=True, kw_only=True)
class Streaming(Reading):
    """How the data is read.

    Args:
        stream: Read images from disk while training, even if all would fit into memory; beyond 4 GiB they always are.
        cache: When streaming, a folder in which decoded images are kept, so that each is decoded once.
        workers: When streaming, threads that decode. Default: all cores.
    """

    stream: bool = False
    cache: Text = None
    workers: Whole = None


@dataclass(frozen=True, kw_only=True)
class Noise:
    """To try things out: labels that are made wrong first.

    Args:
        noise: Corrupt the labels: pair, symmetry, mixed, asymmetric, or a .npy or .csv file with a transition matrix.
            Of mixed noise 0.75 goes to one class; mixed:0.6 says another share.
        rate: Share of the labels that the added noise makes wrong, from 0 to 1.
        noise_map: For asymmetric noise, which class becomes which: 9:1,2:0.
        exact_noise: Give each class its exact share of the added noise instead of drawing it sample by sample.
    """

    noise: Text = None
    rate: Number = None
    noise_map: str = ""
    exact_noise: bool = False


@dataclass(frozen=True, kw_only=True)
class Learning:
    """The network and its training.

    Args:
        model: The network: a name (resnet-18, densenet-25-12, mlp, ...), package.module:factory, or timm:name. Default:
            what suits the data.
        epochs: How many times each sample is seen. Default: what suits the data, or 100.
        warmup: How many of these epochs learn from all samples before the selecting begins. Default: what suits the
            data, or 25.
        batch: Samples per step. Default: 128.
        lr: Learning rate at the start; times 0.2 after a half and three quarters of the epochs. Default: what suits the
            data, or 0.1.
        sampler: permutation: each sample once an epoch. independent: each batch drawn by itself.
        forward: one: learn from the pass that decides. second: from another one over the kept samples alone, for
            methods that only select.
    """

    model: Text = None
    epochs: Whole = None
    warmup: Whole = None
    batch: Whole = None
    lr: Number = None
    sampler: str = "permutation"
    forward: str = "one"


@dataclass(frozen=True, kw_only=True)
class Training(Learning):
    """The network and its training.

    Args:
        weight_decay: Pull of all weights towards zero.
        nesterov: Momentum that looks ahead.
        augment: Change the images at random while training, such as crop4,flip,cutout8; window224 cuts windows out of
            images that are scaled to 256.
        normalise: image: each image by itself, as the paper does. imagenet: by its colours, as pretrained weights want.
        weights: A file with pretrained weights for the network, in torchvision's names: .pth, .safetensors or .npz.
        init: The folder of a finished run whose model is the start, instead of random weights.
        valid: Share of the training data that is held out, noise and all, to choose the best epoch.
    """

    weight_decay: float = 5e-4
    nesterov: bool = True
    augment: str = ""
    normalise: str = "image"
    weights: Text = None
    init: Text = None
    valid: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where it is computed.

    Args:
        device: auto, cpu or cuda.
        precision: bf16 or fp32. Default: bf16 on a GPU.
    """

    device: str = "auto"
    precision: Text = None


@dataclass(frozen=True, kw_only=True)
class OneMachine(Machine):
    """Where it is computed.

    Args:
        threads: CPU threads; part of what makes a run repeatable. Default: all cores.
    """

    threads: Whole = None


@dataclass(frozen=True, kw_only=True)
class Machines(Machine):
    """Where it is computed.

    Args:
        at_once: How many runs share a GPU. Default: as many as pay and fit.
        on: here, or over machines with Ray: ray, ray:ADDRESS or ray://HOST:PORT; docs/sweeps.md says more.
    """

    at_once: Whole = None
    on: str = "here"


@dataclass(frozen=True, kw_only=True)
class Reproducing(Machines):
    """Where it is computed, and where the runs are.

    Args:
        threads: CPU threads of each run.
        show: Train nothing: show what there is.
        out: Folder for new runs. Finished ones that are there are not run again.
        results: Folder of records that count too, wherever they were made.
    """

    threads: int = 1
    show: bool = False
    out: Path = Path("runs/paper")
    results: Path = Path("results")


def from_options(
    data: str,
    *,
    noise: str | None,
    rate: float | None,
    noise_rate: str | None,
    device: str,
    threads: int | None,
    precision: str | None,
    **given: Any,
) -> tuple[Experiment, bool]:
    """The experiment that a person's options mean, and whether its noise rate is to be found out."""
    check_noise(noise, rate)
    told = told_rate(data, noise, rate, **given) if noise_rate is None else parsed_rate(noise_rate)
    given["method"] = given["method"] or "mentornet-prop"
    device = best_device() if device == "auto" else device
    given["model"] = given["model"] or (None if data in SETTINGS else "auto")
    asked = planned(
        data,
        noise=noise,
        rate=rate,
        noise_rate=0.0 if told is None else told,
        device=device,
        precision=precision or best_precision(device),
        threads=(os.cpu_count() or 1) if threads is None else threads,
        **given,
    )
    return asked, told is None


def epoch_numbers(text: str) -> tuple[int, ...]:
    """ "25,40" -> (25, 40)"""
    try:
        return tuple(sorted({int(number) for number in text.split(",")})) if text else ()
    except ValueError:
        raise InputError(f"--scores takes epochs with commas between them, such as 25,40, got {text!r}") from None


def check_noise(noise: str | None, rate: float | None) -> None:
    """Refuse noise that is not known or not wholly said."""
    if noise is None and rate is not None:
        raise InputError("--rate is the rate of added noise: say --noise too, or --noise-rate for noise that is there")
    if noise is not None and is_matrix(noise) and rate is not None:
        raise InputError(f"{noise} says itself how many labels become wrong; leave out --rate")
    if noise is None or is_matrix(noise):
        return
    label_noise.parsed(noise)  # refuses what is not known
    if rate is None:
        raise InputError(f"say --rate, the share of labels that {noise} noise makes wrong")


def is_matrix(noise: str) -> bool:
    """Whether noise is named by a file with a transition matrix."""
    return Path(noise).suffix in (".npy", ".csv")


def compare_options(
    data: str,
    methods: list[str],
    *,
    noise: str | None,
    rate: float | None,
    noise_rate: float | None,
    device: str,
    precision: str | None,
    **given: Any,
) -> None:
    """The comparison that a person's options mean."""
    check_noise(noise, rate)
    if noise is not None and (is_matrix(noise) or noise.startswith("asymmetric")):
        raise InputError(
            f"compare adds pair, symmetry or mixed noise, not {noise}; write labels with `labelsieve noise` first, "
            "and name them with --labels"
        )
    if noise_rate is None and rate is None:
        raise InputError("say --noise-rate, the share of labels that is believed wrong")
    device = best_device() if device == "auto" else device
    compare(
        data,
        methods,
        noise=noise,
        rate=rate or 0.0,
        noise_rate=(rate or 0.0) if noise_rate is None else noise_rate,
        device=device,
        precision=precision or best_precision(device),
        **{**given, "model": given["model"] or (None if data in SETTINGS else "auto")},
    )


def told_rate(
    data: str, noise: str | None, rate: float | None, *, method: str | None, labels: str | None, **_: Any
) -> float | None:
    """The noise rate when a person names none: that of the noise they added, none for data that is clean.

    None: nobody knows, and it must be found out.
    """
    if noise and noise.partition(":")[0] in ("pair", "symmetry", "mixed") and rate is not None:
        return rate
    if method == "default" or (data == "fashion" and noise is None and labels is None):
        return 0.0
    return None


def parsed_rate(text: str) -> float | None:
    """A number, or auto: None."""
    try:
        return None if text == "auto" else float(text)
    except ValueError:
        raise InputError(f"--noise-rate is a number from 0 to 1, or auto, got {text!r}") from None
