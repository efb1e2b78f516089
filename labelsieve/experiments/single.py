"""single: one training on one dataset, and what is said about it."""

import shlex
from pathlib import Path

import torch

from labelsieve.cells import printable
from labelsieve.experiments.auto import says_one_class
from labelsieve.experiments.forecast import say_skipped, understood
from labelsieve.experiments.prepare import Prepared, prepare
from labelsieve.experiments.run import run
from labelsieve.experiments.spec import Experiment
from labelsieve.files import refuse_no_folder
from labelsieve.methods import options_of
from labelsieve.progress import Plan, watching
from labelsieve.report.records import Run, read_run, read_samples, starved
from labelsieve.train.record import Row


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
