"""What a person does with one dataset: plan a training, run it, try out noise."""

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from labelsieve import noise as label_noise
from labelsieve.cells import printable
from labelsieve.data import Reading, load_data
from labelsieve.data.label_file import write_labels
from labelsieve.data.pictures import Bad, left_out
from labelsieve.devices import best_device, best_precision, device_name
from labelsieve.errors import InputError
from labelsieve.experiments.auto import says_one_class, second_look, several, usual_plain_probes
from labelsieve.experiments.compare import compare
from labelsieve.experiments.prepare import Prepared, first_batch, noise_matrix, prepare
from labelsieve.experiments.run import run
from labelsieve.experiments.spec import SETTINGS, Experiment, planned
from labelsieve.files import refuse_no_folder
from labelsieve.methods import options_of
from labelsieve.progress import Plan, duration, watching
from labelsieve.report.records import Run, read_run, read_samples, starved
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


def trained(
    experiment: Experiment,
    path: Path,
    plan: Plan,
    prepared: Prepared | None = None,
    chosen: Row | None = None,
    command: str = "",
) -> bool:
    """Train in this folder, with the progress shown; False if that was done already."""
    with watching(plan) as watcher:
        return run(experiment, path, watcher, prepared, chosen=chosen, command=command)


def train(
    experiment: Experiment,
    path: Path,
    chosen: Row | None = None,
    command: str = "",
    *,
    earlier: int = 0,
    later: int = 0,
) -> None:
    """Train in this folder and say how it went.

    `chosen`: what was chosen for the person, and why. `earlier`, `later`: epochs of trainings before and after it.
    """
    refuse_no_folder(path)
    torch.set_num_threads(experiment.threads)
    prepared = prepare(experiment)
    say_skipped([] if chosen else prepared.left_out)  # else it was said before the probes
    print("\n".join(understood(experiment, prepared)), flush=True)
    plan = Plan(experiment.epochs, prepared.method.rounds, earlier=earlier, later=later)
    ran = trained(experiment, path, plan, prepared, chosen, command)
    say_outcome(path, ran)
    if not later:
        say_use(path)


def say_outcome(folder: Path, ran: bool) -> None:
    """How a training went; `ran`: just now."""
    done = read_run(folder)
    print(f"{'trained' if ran else 'already trained'}: {folder}, the model of epoch {done.end['chosen_epoch']}")
    if "last" in done.end:
        print(f"test error {done.end['last']:.2f}% in the last epoch, {done.end['best']:.2f}% at best")
    samples = read_samples(folder)
    if not samples:
        return
    if only := says_one_class(samples, done.classes):
        print(
            f"beware: the model says {printable(only)} of nearly every sample: it has learnt nothing; try a lower --lr"
        )
    if hungry := starved(done):
        print(f"beware: little was learnt from {printable(', '.join(hungry))}; {what_to_do(done)}")


def what_to_do(starving: Run) -> str:
    """About a class of which hardly anything was kept."""
    unused = options_of(starving.method).keys() - dict(starving.spec["options"]).keys()
    others = ", or with --set align=true" if "align" in unused else ""
    return (
        f"the network may have taken another class for it: look at these samples, or train with another --seed{others}"
    )


def say_use(path: Path) -> None:
    print(f"use it: labelsieve predict {shlex.quote(str(path))} DATA, or labelsieve.load({str(path)!r})")


def say_skipped(bad: Sequence[Bad]) -> None:
    if bad:
        print(f"skipped: {left_out(bad)}", flush=True)


def understood(experiment: Experiment, prepared: Prepared, known: bool = True) -> list[str]:
    """Data, method and network in words, so that a misunderstanding shows before it costs anything.

    `known`: whether the noise rate is.
    """
    train = prepared.train
    facts = [f"{len(train):,} samples of {train.num_classes} classes"]
    own = " (the data's own; --test has no effect)" if experiment.test and prepared.places.test is None else ""
    facts.append(f"{len(prepared.test):,} for the test{own}" if prepared.test else "no test set")
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
    warmup = f"; warm-up of {begins} epochs" if (begins := prepared.method.begins) else ""
    return [
        f"data:    {experiment.data}: {', '.join(facts)}",
        f"method:  {experiment.method}{criterion}{told}{warmup}",
        f"network: {prepared.model}, {parameters:,} parameters{networks}",
    ]


def forecast(experiment: Experiment, path: Path, probes: Sequence[Experiment] = (), final: bool = False) -> str:
    """What a training would do and cost, from a few steps that are not kept.

    `probes`: what comes before it. `final`: whether a last training follows it.
    """
    torch.set_num_threads(experiment.threads)
    prepared = prepare(experiment)
    say_skipped([] if probes else prepared.left_out)
    seconds = seconds_per_step(prepared)
    steps = -(-len(prepared.train) // experiment.batch)
    rounds = prepared.method.rounds
    plain = usual_plain_probes(experiment, probes) if probes else []
    again = second_look(experiment, probes, 0.0)
    total = (rounds + final) * experiment.epochs + sum(probe.epochs for probe in (*probes, *plain, *again))
    before = several(probes) if probes else ""
    before += f" and, where few labels are wrong, {several(again)}" if again else ""
    after = f", {several(plain)} that do not select" if plain else ""
    after += ", as many epochs from corrected labels" if final else ""
    return "\n".join(
        [
            *understood(experiment, prepared, known=not probes),
            f"cost:    {f'{before}, then ' if before else ''}"
            f"{f'{rounds} rounds of ' if rounds > 1 else ''}{experiment.epochs} epochs of {steps} steps at "
            f"{1000 * seconds:.1f} ms{after}: "
            f"about {duration(total * steps * seconds)} on {device_name(experiment.device)}",
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
