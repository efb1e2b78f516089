"""What a person does with one dataset: plan a training, run it, use its model, try out noise."""

import csv
import os
import shlex
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelsieve import noise as label_noise
from labelsieve.audit.unseen import Unseen
from labelsieve.data import DATASETS, Labelled, Reading, Trainable, load_data
from labelsieve.data.arrays import load_npy, load_npz, npz_keys, write_labels
from labelsieve.data.decode import Frame
from labelsieve.data.pictures import Bad
from labelsieve.data.source import in_memory
from labelsieve.data.unlabelled import read_images, read_rows
from labelsieve.devices import best_device, best_precision, device_name, usable_device
from labelsieve.errors import InputError
from labelsieve.experiments.auto import (
    CLEAN,
    RATES,
    cautious,
    choice,
    held_out_noise,
    planned_trainings,
    second_look,
    seen_by,
    spoken,
    starved,
    suited,
)
from labelsieve.experiments.compare import compare
from labelsieve.experiments.folder import RunFolder
from labelsieve.experiments.prepare import Prepared, first_batch, gather, noise_matrix, prepare
from labelsieve.experiments.run import run
from labelsieve.experiments.shelf import Shelf
from labelsieve.experiments.spec import SETTINGS, Experiment, planned
from labelsieve.models import suitable
from labelsieve.predict import Predictor, load
from labelsieve.progress import duration, watching
from labelsieve.report.records import AGAIN, PROBE, read_run
from labelsieve.train.learner import Learner
from labelsieve.train.record import Row

TIMED_STEPS = 3


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
    if noise is None or Path(noise).suffix in (".npy", ".csv"):
        return
    label_noise.parsed(noise)  # refuses what is not known
    if rate is None:
        raise InputError(f"say --rate, the share of labels that {noise} noise makes wrong")


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


def train_auto(asked: Experiment, probes: Sequence[Experiment], path: Path, method: str | None) -> None:
    """Find out how many labels are wrong, train accordingly, and say what was found."""
    RunFolder(path).refuse_strangers()
    if not (path / "done").exists():
        print(
            f"first {several(probes)} {'find' if len(probes) > 1 else 'finds'} out how many labels are wrong",
            flush=True,
        )
    asked, seen = likeliest(asked, probes, path / PROBE)
    again = second_look(asked, probes, seen.rate.estimate)
    if again:
        asked, seen = likeliest(asked, again, path / AGAIN)
    insisted = method or (asked.method if asked.criterion or asked.options else None)
    chosen = choice(asked, seen, insisted)
    print("\n".join(f"chosen:  {reason}" for reason in chosen.reasons), flush=True)
    train(chosen.experiment, path, chosen.as_row())
    print("\n".join(after(path)))


def likeliest(asked: Experiment, probes: Sequence[Experiment], path: Path) -> tuple[Experiment, Unseen]:
    """Train the probes in folders of this one: the learning rate that foretells held-out labels best, its noise."""
    folders: dict[float, list[Path]] = {}
    for number, probe in enumerate(probes, 1):
        trained(probe, path / str(number))
        folders.setdefault(probe.lr, []).append(path / str(number))
    seen = {lr: seen_by(runs) for lr, runs in folders.items()}
    best = max(seen, key=lambda lr: seen[lr].likelihood)
    if len(seen) > 1:
        print(f"chosen:  learning rate {best:g}: its probes foretell the labels that they held out best", flush=True)
    return replace(asked, lr=best), seen[best]


def several(probes: Sequence[Experiment]) -> str:
    """The probes in words."""
    return f"{f'{len(probes)} probes' if len(probes) > 1 else 'a probe'} of {probes[0].epochs} epochs"


def settled(asked: Experiment, free: Collection[str]) -> tuple[Experiment, list[Experiment]]:
    """The training and its probes, once the data is known; `free`: settings that a person did not name."""
    data = gather(replace(asked, valid=0.0), Shelf()).train
    model = suitable(data.shape, usable_device(asked.device)) if asked.model == "auto" else asked.model
    suitable_to = replace(suited(asked, model, free, len(data)), model=model)
    rates = RATES if "lr" in free and suitable_to.lr in RATES else ()
    return planned_trainings(suitable_to, len(data), rates)


def after(path: Path) -> list[str]:
    """What a training that chose for itself found, and what to do now."""
    rate, done = cautious(held_out_noise(path).rate), read_run(path)
    share, span = spoken(rate.estimate), f"({spoken(rate.low)} to {spoken(rate.high)})"
    lines = [f"about {share} of the labels look wrong {span}"]
    if rate.estimate < CLEAN:
        lines = [f"the labels look clean: {share} seem wrong {span}, nothing needs to be done"]
    hungry = starved(done.epochs[-1]["kept"], done.spec["noise_rate"], done.classes)
    if hungry:
        lines.append(
            f"beware: little was learnt from {', '.join(hungry)}; the network may have taken another class for it: "
            "look at these samples, or train with another --seed"
        )
    quoted = shlex.quote(str(path))
    return [*lines, f"look at them: labelsieve report {quoted}; go through them: labelsieve review {quoted}"]


def trained(experiment: Experiment, path: Path, prepared: Prepared | None = None, chosen: Row | None = None) -> bool:
    """Train in this folder, with the progress shown; False if that was done already."""
    with watching(experiment.epochs) as watcher:
        return run(experiment, path, watcher, prepared, chosen=chosen)


def train(experiment: Experiment, path: Path, chosen: Row | None = None) -> None:
    """Train in this folder and say how it went. `chosen`: what was chosen for the person, and why."""
    torch.set_num_threads(experiment.threads)
    prepared = prepare(experiment)
    print("\n".join(understood(experiment, prepared)), flush=True)
    ran = trained(experiment, path, prepared, chosen)
    done = read_run(path)
    print(f"{'trained' if ran else 'already trained'}: {path}, the model of epoch {done.end['chosen_epoch']}")
    if "last" in done.end:
        print(f"test error {done.end['last']:.2f}% in the last epoch, {done.end['best']:.2f}% at best")
    print(f"use it: labelsieve predict {shlex.quote(str(path))} DATA, or labelsieve.load({str(path)!r})")


def understood(experiment: Experiment, prepared: Prepared, known: bool = True) -> list[str]:
    """Data, method and network in words, so that a misunderstanding shows before it costs anything.

    `known`: whether the noise rate is.
    """
    train = prepared.train
    facts = [f"{len(train):,} samples of {train.num_classes} classes"]
    facts.append(f"{len(prepared.test):,} for the test" if prepared.test else "no test set")
    if prepared.valid:
        facts.append(f"{len(prepared.valid):,} held out to choose the epoch")
    if train.clean is not None:
        wrong = (train.clean != train.labels).double().mean().item()
        facts.append(f"{100 * wrong:.1f}% of the training labels differ from the data's own")
    absent = [train.classes[k] for k, n in enumerate(train.labels.bincount(minlength=train.num_classes)) if n == 0]
    if absent:
        facts.append(f"no sample of {', '.join(absent[:5])}{' and others' if len(absent) > 5 else ''}")
    networks = f", {prepared.method.networks} networks" if prepared.method.networks > 1 else ""
    parameters = sum(p.numel() for p in prepared.make_networks(0).parameters())
    criterion = f" with criterion {experiment.criterion}" if experiment.criterion else ""
    told = f", told that {100 * experiment.noise_rate:g}% of the labels are wrong" if known else ""
    warms_up = any(getattr(part, "warmup", 0) for part in prepared.method.parts())
    warmup = f"; warm-up of {experiment.warmup} epochs" if warms_up else ""
    return [
        f"data:    {experiment.data}: {', '.join(facts)}",
        f"method:  {experiment.method}{criterion}{told}{warmup}",
        f"network: {prepared.model}, {parameters:,} parameters{networks}",
    ]


def forecast(experiment: Experiment, path: Path, probes: Sequence[Experiment] = ()) -> str:
    """What a training would do and cost, from a few steps that are not kept. `probes`: what comes before it."""
    torch.set_num_threads(experiment.threads)
    prepared = prepare(experiment)
    seconds = seconds_per_step(prepared)
    steps = -(-len(prepared.train) // experiment.batch)
    rounds = prepared.method.rounds
    every = [*probes, *second_look(experiment, probes, 0.0)]
    total = duration((rounds * experiment.epochs + sum(probe.epochs for probe in every)) * steps * seconds)
    again = f" and, where few labels are wrong, {several(every[len(probes) :])}" if len(every) > len(probes) else ""
    return "\n".join(
        [
            *understood(experiment, prepared, known=not probes),
            f"cost:    {f'{several(probes)}{again}, then ' if probes else ''}"
            f"{f'{rounds} rounds of ' if rounds > 1 else ''}{experiment.epochs} epochs of {steps} steps at "
            f"{1000 * seconds:.1f} ms: about {total} on {device_name(experiment.device)}",
            f"folder:  {path}{' (exists)' if path.exists() else ''}",
        ]
    )


def seconds_per_step(prepared: Prepared) -> float:
    """Timed on real batches, the first of which is not counted."""
    networks = prepared.make_networks(0).train()
    learner = Learner(networks, prepared.method.to(prepared.train.labels.device), prepared.training)
    size = prepared.training.batch
    index = torch.arange(min(size, len(prepared.train)), device=prepared.train.labels.device)
    for step in range(1 + TIMED_STEPS):
        if step == 1:
            began = time.perf_counter()
        finite = learner.step(first_batch(prepared), prepared.train.labels[index], index).finite
        finite.tolist()  # waits for the device
    return (time.perf_counter() - began) / TIMED_STEPS


def classify(run_path: Path, data: str, out: Path | None, device: str, model: str | None, **columns: Any) -> None:
    """Write a table with the predicted class of every sample."""
    predictor = load(run_path, device, model)
    probs, given, names = predictions(data, predictor, columns)
    rows = [(names[i], predictor.classes[k], f"{probs[i, k]:.4f}") for i, k in enumerate(probs.argmax(1).tolist())]
    try:
        with ExitStack() as stack:
            file = (
                stack.enter_context(out.open("w", newline="", encoding="utf-8", errors="surrogateescape"))
                if out
                else sys.stdout
            )
            csv.writer(file, lineterminator="\n").writerows([("index", "predicted_label", "confidence"), *rows])
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from error
    if out:
        wrong = sum(row[1] != label for row, label in zip(rows, given or (), strict=given is not None))
        differ = f"; {100 * wrong / len(rows):.2f}% differ from their given label" if given is not None else ""
        print(f"{len(rows):,} samples classified{differ}: {out}")


def predictions(
    data: str, predictor: Predictor, columns: dict[str, Any]
) -> tuple[Any, list[str] | None, Sequence[Any]]:
    """Probabilities (n, K), the class names of the labels where the data has some, and what to call each sample."""
    path = Path(data)
    if path.suffix == ".npy" or (path.suffix == ".npz" and "labels" not in npz_keys(path)):
        values = load_npy(path) if path.suffix == ".npy" else unlabelled(path)
        return predictor.predict_proba(values, data), None, range(len(values))
    frame = Frame(*predictor.shape[1:], predictor.shape[0]) if len(predictor.shape) == 3 else None
    reading = Reading(frame=frame, normalise=predictor.normalise, skip_bad=True, **columns)
    try:
        sets = load_data(data, reading, left_out=say_left_out)
    except InputError:
        bare = without_labels(path, reading, predictor)
        if bare is None:
            raise
        return predictor.predict_set(bare), None, bare.names or range(len(bare))
    known = [sets.test] if data in DATASETS and sets.test else [each for each in sets if each is not None]
    probs = np.concatenate([predictor.predict_set(each) for each in known])
    given = [each.classes[k] for each in known for k in each.labels.tolist()]
    names = [name for each in known for name in each.names or ()]
    return probs, given, names or range(len(given))


def without_labels(path: Path, reading: Reading, predictor: Predictor) -> Trainable | None:
    """A folder of images, or a table, that has no labels."""
    if path.is_dir():
        pictures, bad = read_images(path, predictor.classes)
    elif path.suffix.lower() in (".csv", ".tsv"):
        found = read_rows(path, predictor.classes, reading.image, predictor.columns)
        if isinstance(found, Labelled):
            return found
        pictures, bad = found, []
    else:
        return None
    whole, unusable = in_memory(pictures, reading.frame)
    say_left_out([*bad, *unusable])
    if not len(whole):
        raise InputError(f"none of the images of {path} can be read")
    return replace(whole, normalise=predictor.normalise)


def say_left_out(bad: Sequence[Bad]) -> None:
    if bad:
        print(f"{len(bad):,} files or rows left out, the first is {bad[0].name}: {bad[0].reason}", file=sys.stderr)


def unlabelled(path: Path) -> Any:
    """The images or rows of a .npz file without labels."""
    arrays = load_npz(path)
    for key in ("images", "features"):
        if key in arrays:
            return arrays[key]
    raise InputError(f"{path} has no 'images' (it has: {', '.join(arrays)})")


def write_noise(
    data: str, kind: str, rate: float, noise_map: str, exact: bool, seed: int, out: Path, **reading: Any
) -> None:
    """Corrupt a dataset's labels into a file, and show the matrix that came of it."""
    train = load_data(data, Reading(**reading)).train
    matrix = noise_matrix(kind, rate, noise_map, train.num_classes)
    noisy = label_noise.corrupt(train.labels, matrix, seed, exact=exact)
    write_labels(out, noisy, train.classes, train.names)
    counts = label_noise.realised(train.labels, noisy, train.num_classes)
    share = 1 - counts.diagonal().sum().item() / len(train)
    print(f"{out}: {len(train):,} labels, {100 * share:.2f}% changed")
    if train.num_classes <= 20:
        width = max(len(name) for name in train.classes)
        print("in samples, a row per true class, a column per label:")
        for name, row in zip(train.classes, counts.tolist(), strict=True):
            print(f"{name:>{width}} " + " ".join(f"{count:5}" for count in row))
