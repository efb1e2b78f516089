"""Options that several commands share, and the settings that follow from them."""

import sys
from argparse import (
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    Namespace,
    _ActionsContainer,
    _ArgumentGroup,
)
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelsieve.catalogue import parse_noise
from labelsieve.errors import InputError
from labelsieve.files import usable_cores
from labelsieve.runs.spec import DATASET_SETTINGS, OPEN_SETTINGS, Experiment
from labelsieve.text import parse_integer, parse_number

if TYPE_CHECKING:
    from labelsieve.data import ReadOptions

DATA_HELP = (
    "a folder of images with one folder per class; a .csv, .tsv or .parquet table with a label column and image paths, "
    "texts or numbers; a .npz file with images or features, and labels; a published dataset; or fashion or photos, the "
    "embedded data (docs/data.md)"
)
EMBEDDED = ("fashion", "photos")  # names of embedded data
METHODS_HELP = (
    "methods separated by commas; co-teaching:all is co-teaching with criterion all, mentornet-prop:lam=0.5 is "
    "mentornet-prop with that option; 'all' stands for every method"
)


def integer(text: str) -> int:
    """Parse an option that is an integer."""
    try:
        return parse_integer(text)
    except ValueError:
        raise ArgumentTypeError(f"{text[:80]!r} is not an integer") from None


def number(text: str) -> float:
    """Parse an option that is a number."""
    try:
        return parse_number(text)
    except ValueError:
        raise ArgumentTypeError(f"{text[:80]!r} is not a number") from None


def add_data(parser: ArgumentParser, default: str | None = None) -> None:
    """Add the positional DATA argument, optional if it has a default."""
    if default is None:
        parser.add_argument("data", metavar="DATA", help=DATA_HELP)
    else:
        parser.add_argument("data", metavar="DATA", nargs="?", default=default, help=f"{DATA_HELP}. Default: {default}")


def add_path(group: _ActionsContainer, option: str, default: str, metavar: str, text: str) -> None:
    """Add an option for a file or folder that has a default."""
    text = f"{text}. Default: {default}"
    group.add_argument(option, type=Path, default=Path(default), metavar=metavar, help=text)


def add_columns(parser: ArgumentParser) -> _ArgumentGroup:
    """Add the options that name the columns of a table."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--label-column", metavar="NAME", help="label column of a table. Default: label, class, target or y"
    )
    group.add_argument(
        "--image-column", metavar="NAME", help="image column of a table. Default: image, path or file, else numbers"
    )
    group.add_argument("--text-column", metavar="NAME", help="text column of a table. Default: text or a similar name")
    return group


def add_size(group: _ArgumentGroup) -> None:
    """Add the option that scales images."""
    group.add_argument(
        "--size",
        type=integer,
        metavar="N",
        help="scale images to this side in pixels. Default: unchanged if all have one size up to 224, else squares of "
        "their median shorter side, at most 224",
    )


def add_reading(parser: ArgumentParser, streaming: bool = False) -> None:
    """Add the options for reading the data of a training."""
    group = add_columns(parser)
    add_size(group)
    group.add_argument(
        "--features",
        metavar="FILE",
        help=".npy, .npz or .parquet file of features of the samples, in their order (docs/data.md)",
    )
    group.add_argument(
        "--labels",
        metavar="FILE",
        help=".csv or .npy file of labels that replace those of the data; CIFAR-N: file:kind",
    )
    group.add_argument(
        "--test", type=number, default=0.0, metavar="SHARE", help="draw this share as a test set if the data has none"
    )
    group.add_argument("--skip-bad", action="store_true", help="skip files and rows that cannot be read")
    if streaming:
        group.add_argument(
            "--stream", action="store_true", help="read images from disk during training, as always above 4 GiB"
        )
        group.add_argument(
            "--cache",
            metavar="FOLDER",
            help="keep features, or decoded images when streaming, in this folder. Default: $LABELSIEVE_CACHE, or "
            "~/.cache/labelsieve, for features",
        )
        group.add_argument(
            "--workers", type=integer, metavar="N", help="threads that compute features or decode images"
        )


def add_noise(parser: ArgumentParser) -> None:
    """Add the options that add noise to the labels, for experiments."""
    group = parser.add_argument_group("added noise (for experiments)")
    group.add_argument(
        "--noise",
        metavar="KIND",
        help="add noise to the labels: pair, symmetry, mixed (or mixed:0.6: share that goes to one class), asymmetric, "
        "or a .npy or .csv file with a transition matrix",
    )
    group.add_argument("--rate", type=number, metavar="RATE", help="rate of the added noise, from 0 to 1")
    group.add_argument(
        "--noise-map", default="", metavar="MAP", help="for asymmetric noise, true:observed pairs: 9:1,2:0"
    )
    group.add_argument("--exact-noise", action="store_true", help="corrupt exactly the given share of each class")


def add_training(parser: ArgumentParser, full: bool = True) -> None:
    """Add the options of network and training; `full` includes those that only `train` has."""
    group = parser.add_argument_group("training")
    group.add_argument(
        "--model",
        metavar="NAME",
        help="network: a name (resnet-18, densenet-25-12, mlp, ...), package.module:factory, or timm:name. Default: "
        "chosen for the data",
    )
    if full:
        group.add_argument(
            "--backbone",
            metavar="NAME",
            help="pretrained network whose features of images or texts are learned from: lite0, lite0+lite2 (both), "
            "resnet-50 with --weights, minilm, wordllama, timm:NAME or hf:NAME (docs/features.md), or none: learn from "
            "the images. Default: lite0+lite2 for photographs, and minilm or wordllama for texts, if installed, unless "
            "--model is given",
        )
    group.add_argument(
        "--epochs", type=integer, metavar="N", help="passes over the data. Default: chosen for the data, or 100"
    )
    group.add_argument(
        "--warmup",
        type=integer,
        metavar="N",
        help="epochs before sample selection begins. Default: chosen for the data, or 25",
    )
    group.add_argument(
        "--batch", type=integer, metavar="N", help="samples per step. Default: chosen for the data, or 128"
    )
    group.add_argument(
        "--lr",
        type=number,
        metavar="RATE",
        help="initial learning rate, multiplied by 0.2 after 50%% and 75%% of the epochs. Default: chosen for the "
        "data, or 0.1",
    )
    group.add_argument(
        "--sampler",
        default="permutation",
        metavar="KIND",
        help="permutation: each sample once per epoch (default); independent: each batch drawn independently",
    )
    group.add_argument(
        "--forward",
        default="one",
        metavar="KIND",
        help="one: learn from the forward pass that selects (default); second: from another pass over the kept ones",
    )
    if not full:
        return
    group.add_argument(
        "--weight-decay", type=number, default=5e-4, metavar="RATE", help="weight decay. Default: 0.0005"
    )
    group.add_argument("--nesterov", action=BooleanOptionalAction, default=True, help="use Nesterov momentum")
    group.add_argument(
        "--augment",
        default="",
        metavar="LIST",
        help="augmentation, such as crop4,flip,cutout8; window224 crops windows from images scaled to 256",
    )
    group.add_argument(
        "--normalise",
        default="image",
        metavar="KIND",
        help="image: standardise each image, as in the paper (default); imagenet: ImageNet's channel statistics; lite: "
        "as the weights of EfficientNet-Lite expect",
    )
    group.add_argument(
        "--weights", metavar="FILE", help="pretrained weights in torchvision's format: .pth, .safetensors or .npz"
    )
    group.add_argument("--init", metavar="RUN", help="start from the model of a finished run")
    group.add_argument(
        "--valid",
        type=number,
        default=0.0,
        metavar="SHARE",
        help="hold out this share of the training set, noise included, to choose the best epoch",
    )


def add_machine(parser: ArgumentParser) -> _ArgumentGroup:
    """Add the options for device and precision."""
    group = parser.add_argument_group("machine")
    group.add_argument("--device", default="auto", metavar="NAME", help="auto (default), cpu or cuda")
    group.add_argument("--precision", metavar="KIND", help="bf16 or fp32. Default: bf16 on a GPU that supports it")
    return group


def add_machines(parser: ArgumentParser) -> _ArgumentGroup:
    """Add the options for where many runs are computed."""
    group = add_machine(parser)
    group.add_argument(
        "--at-once",
        type=integer,
        metavar="N",
        help="runs that a GPU trains at the same time. Default: up to 6, as many as fit into its memory; with Ray, 1",
    )
    add_on(group)
    return group


def add_on(group: _ArgumentGroup) -> None:
    """Add the option for several machines."""
    group.add_argument(
        "--on",
        default="here",
        metavar="WHERE",
        help="here (default), or several machines with Ray: ray, ray:ADDRESS or ray://HOST:PORT (docs/sweeps.md)",
    )


def check_on(options: Namespace) -> None:
    """Refuse an address where no Ray cluster answers, before anything is read or trained."""
    from labelsieve.sweep.address import refuse_unreachable

    refuse_unreachable(options.on)


def warn_about_threads(threads: int | None, on: str = "here") -> None:
    """Say that there are fewer cores than threads; on a cluster, other machines train."""
    if threads is not None and threads > usable_cores() and on == "here":
        cores = "1 usable core" if usable_cores() == 1 else f"{usable_cores()} usable cores"
        print(f"--threads {threads}: this machine has {cores}; more threads than cores are slower", file=sys.stderr)


def add_seeds(parser: ArgumentParser) -> None:
    """Add the options for the seeds of a comparison."""
    parser.add_argument("--seeds", type=integer, default=3, metavar="N", help="trainings per method. Default: 3")
    parser.add_argument("--first-seed", type=integer, default=0, metavar="N", help="first seed. Default: 0")


def seeds_of(options: Namespace) -> range:
    """Return the seeds of a comparison."""
    if options.seeds < 1:
        raise InputError("seeds must be at least 1")
    return range(options.first_seed, options.first_seed + options.seeds)


def add_output(parser: ArgumentParser) -> None:
    """Add the options for the format and the file of a table."""
    parser.add_argument("--format", default="text", metavar="KIND", help="text (default), markdown, latex or csv")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the table to this file. Default: the terminal")


def add_config(parser: ArgumentParser, like: bool = False) -> None:
    """Add the options for settings in files; `like`: those of an earlier run as well."""
    group = parser.add_argument_group("settings (docs/settings.md)")
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="read settings from this .toml file; options given here win"
    )
    group.add_argument(
        "--save-config", type=Path, metavar="FILE", help="write the settings of this command to this .toml file"
    )
    if like:
        group.add_argument(
            "--like", type=Path, metavar="RUN", help="use the settings of an earlier run; options given here win"
        )


def save_config(options: Namespace) -> None:
    """Write the settings of a command to the file of --save-config, if one is given."""
    if options.save_config is not None:
        from labelsieve.config import save_settings

        save_settings(options.save_config, options.settings)
        print(f"settings: {options.save_config}", file=sys.stderr)


def reading(options: Namespace, size: int | None = None, skip_bad: bool = False) -> "ReadOptions":
    """Return how to read data, with the columns that were named."""
    from labelsieve.data import ReadOptions

    columns = {"label": options.label_column, "image": options.image_column, "text": options.text_column}
    return ReadOptions(size=size, skip_bad=skip_bad, **columns)


def selected(options: Namespace, *names: str) -> dict[str, Any]:
    """Return some options by name."""
    return {name: getattr(options, name) for name in names}


def refuse_ambiguous(data: str) -> None:
    """Refuse the name of embedded data that is also a file or folder here."""
    if data in EMBEDDED and Path(data).exists():
        raise InputError(f"{data} is embedded data and also a folder here; write ./{data} for the folder")


def experiment_settings(options: Namespace) -> dict[str, Any]:
    """Return the options that are fields of an experiment, without asking torch: the device may still be auto."""
    if not getattr(options, "embedded", False):  # the demo means the embedded data
        refuse_ambiguous(options.data)
    known = {field.name for field in fields(Experiment)}
    settings = {name: value for name, value in vars(options).items() if name in known}
    settings["precision"] = options.precision or Experiment.precision
    settings["model"] = options.model or (None if options.data in DATASET_SETTINGS else "auto")
    return settings


def machine_settings(options: Namespace) -> dict[str, Any]:
    """Return the device and the precision, chosen for this machine where the user has given none."""
    from labelsieve.runtime import best_device, best_precision

    device = best_device() if options.device == "auto" else options.device
    return {"device": device, "precision": options.precision or best_precision(device)}


def open_settings(options: Namespace) -> list[str]:
    """Return the settings that the user has left open."""
    return [name for name in OPEN_SETTINGS if getattr(options, name) is None]


def check_noise(noise: str | None, rate: float | None) -> None:
    """Refuse unknown or incompletely specified noise."""
    if noise is None and rate is not None:
        raise InputError("--rate is the rate of added noise: give --noise as well, or --noise-rate for existing noise")
    if noise is not None and is_matrix(noise) and rate is not None:
        raise InputError(f"the matrix {noise} determines the noise rate; remove --rate")
    if noise is None or is_matrix(noise):
        return
    parse_noise(noise)  # raises for unknown kinds
    if rate is None:
        raise InputError(f"give --rate, the rate of the added {noise} noise")
    if not 0 <= rate <= 1:
        raise InputError(f"noise rate must be in [0, 1], got {rate}")


def is_matrix(noise: str) -> bool:
    """Return whether a kind of noise is a file with a transition matrix."""
    return Path(noise).suffix in (".npy", ".csv")
