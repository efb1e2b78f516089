"""forecast: what a training is understood to be, and what it would cost, before it begins."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from labelsieve.data.pictures import Bad, left_out
from labelsieve.devices import device_name
from labelsieve.experiments.auto import second_look, several, usual_plain_probes
from labelsieve.experiments.prepare import Prepared, first_batch, prepare
from labelsieve.experiments.spec import Experiment
from labelsieve.progress import duration
from labelsieve.train.learner import Learner

TIMED_STEPS = 3


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


def say_skipped(bad: Sequence[Bad]) -> None:
    if bad:
        print(f"skipped: {left_out(bad)}", flush=True)


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
