"""What a person does with one dataset: plan a training, run it, use its model, try out noise."""

import csv
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from labelsieve import noise
from labelsieve.data import Labelled, load_data
from labelsieve.data.arrays import load_npy, load_npz, write_labels
from labelsieve.errors import InputError
from labelsieve.experiments.prepare import Prepared, noise_matrix, prepare
from labelsieve.experiments.run import device_name, run
from labelsieve.experiments.spec import Experiment, planned
from labelsieve.predict import Predictor, load
from labelsieve.progress import watching
from labelsieve.report.records import read_run
from labelsieve.train.learner import Learner

TIMED_STEPS = 3


def from_options(
    data: str, *, noise_rate: float | None, rate: float, device: str, threads: int | None, **given: Any
) -> Experiment:
    """The experiment that a person's options mean."""
    if noise_rate is None:
        noise_rate = told_rate(data, rate, **given)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = threads or os.cpu_count() or 1
    return planned(data, noise_rate=noise_rate, rate=rate, device=device, threads=threads, **given)


def told_rate(data: str, rate: float, *, noise: str | None, labels: str | None, method: str, **_: Any) -> float:
    """The noise rate when a person names none: that of the noise they added, none for clean data."""
    if noise is not None or method == "default" or (data == "fashion" and labels is None):
        return rate
    raise InputError(
        f"say --noise-rate, the share of labels that you believe wrong: {method} keeps the rest of a batch"
    )


def train(experiment: Experiment, path: Path) -> None:
    """Train in this folder and say how it went."""
    with watching(experiment.epochs) as watcher:
        ran = run(experiment, path, watcher)
    done = read_run(path)
    print(f"{'trained' if ran else 'already trained'}: {path}")
    if "last" in done.end:
        print(f"test error {done.end['last']:.2f}% in the last epoch, {done.end['best']:.2f}% at best")
    print(f"use it: labelsieve predict {path} DATA, or labelsieve.load({str(path)!r})")


def forecast(experiment: Experiment, path: Path) -> str:
    """What a training would do and cost, from a few steps that are not kept."""
    torch.set_num_threads(experiment.threads)
    prepared = prepare(experiment)
    seconds = seconds_per_step(prepared)
    steps = -(-len(prepared.train) // experiment.batch)
    parameters = sum(p.numel() for p in prepared.networks.parameters())
    held_out = f", {len(prepared.valid):,} held out" if prepared.valid else ""
    tested = f", {len(prepared.test):,} for the test" if prepared.test else ", no test set"
    wrong = ""
    if prepared.train.clean is not None:
        share = (prepared.train.clean != prepared.train.labels).float().mean().item()
        wrong = f"; {100 * share:.1f}% of the training labels differ from the data's own"
    return "\n".join(
        [
            f"data:    {experiment.data}, {len(prepared.train):,} samples of {prepared.train.num_classes} classes"
            f"{held_out}{tested}{wrong}",
            f"method:  {experiment.method}, told that {100 * experiment.noise_rate:g}% of the labels are wrong; "
            f"selecting begins after {experiment.warmup} epochs",
            f"network: {experiment.model}, {parameters:,} parameters"
            + (f" in {prepared.method.networks} networks" if prepared.method.networks > 1 else ""),
            f"cost:    {experiment.epochs} epochs of {steps} steps at {1000 * seconds:.1f} ms: about "
            f"{duration(experiment.epochs * steps * seconds)} on {device_name(experiment.device)}",
            f"folder:  {path}{' (exists: would go on, or is done)' if path.exists() else ''}",
        ]
    )


def seconds_per_step(prepared: Prepared) -> float:
    """Timed on real batches, the first of which is not counted."""
    learner = Learner(prepared.networks, prepared.method.to(prepared.train.labels.device), prepared.training)
    prepared.networks.train()
    size = prepared.training.batch
    index = torch.arange(min(size, len(prepared.train)), device=prepared.train.labels.device)
    for step in range(1 + TIMED_STEPS):
        if step == 1:
            began = time.perf_counter()
        happened = learner.step(prepared.train.inputs(index), prepared.train.labels[index], index).happened
        happened.tolist()  # waits for the device
    return (time.perf_counter() - began) / TIMED_STEPS


def duration(seconds: float) -> str:
    """In words, to the unit that matters."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def classify(run_path: Path, data: str, out: Path | None, device: str) -> None:
    """Write a table with the predicted class of every image."""
    predictor = load(run_path, device)
    images, given = images_of(data, predictor)
    probs = predictor.predict_proba(images)
    rows = [(i, predictor.classes[k], f"{probs[i, k]:.4f}") for i, k in enumerate(probs.argmax(1).tolist())]
    try:
        with ExitStack() as stack:
            file = stack.enter_context(out.open("w", newline="", encoding="utf-8")) if out else sys.stdout
            csv.writer(file, lineterminator="\n").writerows([("index", "predicted_label", "confidence"), *rows])
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from error
    if given is not None and out:
        wrong = sum(row[1] != label for row, label in zip(rows, given, strict=True))
        print(f"{len(rows):,} images classified; {100 * wrong / len(rows):.2f}% differ from their given label")


def images_of(data: str, predictor: Predictor) -> tuple[Any, list[str] | None]:
    """Images as arrays, with the class names of their labels where the data has labels."""
    if Path(data).suffix == ".npy":
        return load_npy(Path(data)), None
    if Path(data).suffix == ".npz":
        arrays = load_npz(Path(data))
        if "images" not in arrays:
            raise InputError(f"{data} has no 'images' (it has: {', '.join(arrays)})")
        if "labels" not in arrays:
            return arrays["images"], None
    train, test = load_data(data)
    known: Labelled = test if data == "fashion" and test is not None else train
    return known.images.permute(0, 2, 3, 1).numpy(), [known.classes[k] for k in known.labels.tolist()]


def write_noise(data: str, kind: str, rate: float, noise_map: str, exact: bool, seed: int, out: Path) -> None:
    """Corrupt a dataset's labels into a file, and show the matrix that came of it."""
    train, _ = load_data(data)
    num_classes = train.num_classes
    noisy = noise.corrupt(train.labels, noise_matrix(kind, rate, noise_map, num_classes), seed, exact=exact)
    write_labels(out, noisy, train.classes)
    counts = noise.realised(train.labels, noisy, num_classes)
    share = 1 - counts.diagonal().sum().item() / len(train)
    print(f"{out}: {len(train):,} labels, {100 * share:.2f}% changed")
    if num_classes <= 20:
        width = max(len(name) for name in train.classes)
        print("in samples, a row per true class, a column per label:")
        for name, row in zip(train.classes, counts.tolist(), strict=True):
            print(f"{name:>{width}} " + " ".join(f"{count:5}" for count in row))
