"""Options that several commands ask for alike; docs of each are what --help shows."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

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
