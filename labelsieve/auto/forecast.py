"""Forecast the cost of an automatic training from a few timed steps, and describe the training."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from labelsieve.auto.plan import Found, Request, plan
from labelsieve.data import Labelled
from labelsieve.data.load import find
from labelsieve.features.embed import Cache, seconds_per_sample, unknown_samples
from labelsieve.features.judge import seconds_of_heads
from labelsieve.files import usable_cores
from labelsieve.methods import Problem, make
from labelsieve.models import make_model
from labelsieve.models.networks import make_networks, move_to_device
from labelsieve.progress import Pace
from labelsieve.runs.data import Shelf, backbone_of, reading_of
from labelsieve.runs.execute import Prepared, first_batch, is_linear_head, prepare, training_of
from labelsieve.runs.spec import Experiment
from labelsieve.runtime import device_name, load_optimizers, usable_device
from labelsieve.text import duration
from labelsieve.train.step import Learner

FEWEST_STEPS, TIMED_SECONDS = 3, 1.0  # of a forecast
BESIDES_STEPS = 1.3  # times its steps: an epoch also counts, evaluates and saves


def forecast(request: Request, path: Path, shelf: Shelf, began: float) -> str:
    """Describe the stages and the cost of a request, from a few timed steps that are discarded.

    Args:
        began: When the command began, by time.perf_counter. Importing and reading take as long in the training, and
            judging and reporting at its end about as long again.
    """
    if request.has_heads(request.candidates[-1].training):
        head = request.candidates[-1].training
        words = [f"{stage.name}: {stage.purpose}" for stage in plan(request, path, Found(network=-1))]
        return _forecast_heads(head, words, path, shelf, request.finetune, began)
    stages = plan(request, path)
    experiment = replace(stages[-1].experiments[0], corrected=None)
    torch.set_num_threads(experiment.threads)
    prepared = prepare(experiment, shelf)
    load_optimizers()
    start = time.perf_counter() - began
    seconds = seconds_per_step(prepared)
    steps = -(-len(prepared.train) // experiment.batch)
    epochs = sum(stage.epochs for stage in stages)
    lines = description(experiment, prepared, rate_is_known=not request.noise_is_unknown)
    if len(stages) > 1:
        lines.append("stages:")
        width = max(len(stage.name) for stage in stages)
        for number, stage in enumerate(stages, 1):
            lines.append(f"  {number}. {stage.name:{width}}  {stage.purpose} ({stage})")
    whole = duration(2 * start + BESIDES_STEPS * epochs * steps * seconds)
    cost = f"{epochs} epochs of {steps} steps at {1000 * seconds:.1f} ms, and starting, reading and judging"
    lines.append(f"cost:    about {whole} on {device_name(experiment.device)}: {cost}")
    lines.append(f"folder:  {path}{' (exists)' if path.exists() else ''}")
    return "\n".join(lines)


def _forecast_heads(
    experiment: Experiment,
    stages: Sequence[str],
    path: Path,
    shelf: Shelf,
    finetune: Experiment | None,
    began: float,
) -> str:
    """Describe the stages of a training on features, and its cost from a few samples; nothing is kept.

    Args:
        finetune: The training of the whole network after that of the head, if any.
        began: When the command began, by time.perf_counter.
    """
    splits = find(experiment.data, reading_of(experiment)).splits()
    train = splits["train"]
    spec = backbone_of(experiment)
    missing, seconds, dim = 0, 0.0, train.shape[0] if isinstance(train, Labelled) else 0
    backbone = None if spec is None else shelf.backbone(spec)
    load_optimizers()
    start = time.perf_counter() - began
    if backbone is not None:
        cache = Cache(backbone, experiment.cache)
        missing = sum(len(unknown_samples(split, cache)) for split in splits.values())
        seconds = missing * seconds_per_sample(train, backbone) / (experiment.workers or usable_cores())
        dim = backbone.dim
    heads = seconds_of_heads(len(train), dim, len(train.classes), experiment.device) / experiment.threads
    known = "features are in the cache" if spec else "features are given"
    work = f"{missing:,} features to compute ({duration(seconds)})" if missing else known
    if (last := finetuning_seconds(finetune, len(train), len(train.classes))) > 0:
        work += f"; fine-tuning takes {duration(last)}"
    whole = duration(2 * start + seconds + heads + last)
    return "\n".join(
        [
            f"data:    {experiment.data}: {len(train):,} samples of {len(train.classes)} classes",
            "stages:",
            *(f"  {number}. {stage}" for number, stage in enumerate(stages, 1)),
            f"cost:    about {whole} on {device_name(experiment.device)}; {work}",
            f"folder:  {path}{' (exists)' if path.exists() else ''}",
        ]
    )


def description(experiment: Experiment, prepared: Prepared, rate_is_known: bool = True) -> list[str]:
    """Describe data, method and network of a training in three lines."""
    train = prepared.train
    facts = [f"{len(train):,} samples of {train.num_classes} classes"]
    own = " (from the data; --test is ignored)" if experiment.test and prepared.places.test is None else ""
    facts.append(f"{len(prepared.test):,} test samples{own}" if prepared.test else "no test set")
    if prepared.valid:
        facts.append(f"{len(prepared.valid):,} held out{'' if is_linear_head(experiment) else ' to choose the epoch'}")
    if train.clean is not None:
        wrong = (train.clean != train.labels).double().mean().item()
        facts.append(f"{100 * wrong:.1f}% of the training labels differ from the original ones")
    absent = [train.classes[k] for k, n in enumerate(train.labels.bincount(minlength=train.num_classes)) if n == 0]
    if absent:
        facts.append(f"no sample of {', '.join(absent[:5])}{' and others' if len(absent) > 5 else ''}")
    networks = f", {prepared.method.networks} networks" if prepared.method.networks > 1 else ""
    parameters = sum(p.numel() for p in prepared.make_networks(0).parameters())
    criterion = f" with criterion {experiment.criterion}" if experiment.criterion else ""
    rate = f", noise rate {100 * experiment.noise_rate:g}%" if rate_is_known else ""
    rate = " on corrected labels" if experiment.corrected else rate
    begins = prepared.method.active_from
    warmup = f", warm-up of {begins} {'epoch' if begins == 1 else 'epochs'}" if begins else ""
    method = f"{experiment.method}{criterion}{rate}{warmup}"
    if is_linear_head(experiment):
        method = "logistic regression"
    return [
        f"data:    {experiment.data}: {', '.join(facts)}",
        f"method:  {method}",
        f"network: {prepared.model}, {parameters:,} parameters{networks}",
    ]


def seconds_per_step(prepared: Prepared) -> float:
    """Time a few steps on real batches; the first is not counted."""
    networks = prepared.make_networks(0).train()
    learner = Learner(networks, prepared.method.to(prepared.train.labels.device), prepared.training)
    return _time_steps(learner, partial(first_batch, prepared), prepared.train.labels[: prepared.training.batch])


def _time_steps(learner: Learner, inputs: Callable[[], Tensor], labels: Tensor) -> float:
    """Return the mean time of steps over at least a second, in which other programs have their turn; not the first."""
    pace = Pace()
    while pace.steps < FEWEST_STEPS or pace.elapsed < TIMED_SECONDS:
        finite = learner.step(inputs(), labels, torch.arange(len(labels), device=labels.device)).finite
        finite.tolist()  # waits for the device
        pace.step(pace.last[0] + 1)
    assert pace.seconds is not None
    return pace.seconds


def finetuning_seconds(experiment: Experiment | None, samples: int, classes: int) -> float:
    """Return how long it takes to train a whole network, from a few steps on blank images; 0 if none is trained."""
    if experiment is None:
        return 0.0
    assert experiment.size is not None
    device, batch = usable_device(experiment.device), min(experiment.batch, samples)
    torch.set_num_threads(experiment.threads)
    shape = (3, experiment.size, experiment.size)
    networks = make_networks(partial(make_model, experiment.model, shape, classes), 1, experiment.seed)
    method = make("default", Problem(classes, 0.0, num_samples=samples)).to(device)
    networks = move_to_device(networks, device, experiment.precision)
    learner = Learner(networks.train(), method, training_of(experiment))
    labels = torch.zeros(batch, dtype=torch.int64, device=device)
    seconds = _time_steps(learner, partial(torch.zeros, batch, *shape, device=device), labels)
    return experiment.epochs * -(-samples // batch) * seconds
