"""forecast: what a training is understood to be, and what it would cost, before it begins."""

import io
import shlex
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from labelsieve.audit.held_out import Unseen
from labelsieve.auto.audit import findings_in
from labelsieve.auto.judge import foretold, held_out_by, plain_guesses, seen_by, selecting_is_clearly_better
from labelsieve.auto.plan import (
    OWN,
    RATES,
    choice,
    last_of,
    longer,
    plain_probes,
    planned_trainings,
    probe_of,
    says_one_class,
    second_look,
    several,
    spoken,
    suited,
    usual_plain_probes,
)
from labelsieve.data.images import Bad, left_out
from labelsieve.errors import InputError
from labelsieve.files import FINAL, refuse_no_folder, write_atomically
from labelsieve.methods import options_of
from labelsieve.models import candidates
from labelsieve.progress import Plan, duration, watching
from labelsieve.runs.data import Shelf, gather
from labelsieve.runs.execute import Prepared, first_batch, method_of, prepare, run
from labelsieve.runs.folder import RunFolder
from labelsieve.runs.read import (
    AGAIN,
    LONGER,
    NETWORK,
    PLAIN,
    PROBE,
    TESTED,
    Array,
    Run,
    read_run,
    read_samples,
    starved,
)
from labelsieve.runs.spec import SETTINGS, Experiment
from labelsieve.runtime import device_name, usable_device
from labelsieve.sweep.watch import epochs_of
from labelsieve.text import printable
from labelsieve.train.checkpoint import Row
from labelsieve.train.step import Learner

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


CORRECTED = "corrected.npy"  # file, in a run's folder, of the labels that its last training learns from


def train_auto(
    plans: Sequence["Planned"], path: Path, method: str | None, command: str = "", final: bool = True
) -> None:
    """Find out how many labels are wrong, train accordingly, and once more from the labels that were then corrected.

    `method`: one that a person insists on; its own model is delivered then. `final`: whether to train once more.
    """
    refuse_told(path)
    (asked, probes), reasons = chosen_network(plans, path, command)
    insisted = method or (asked.method if asked.criterion or asked.options else None)
    last = asked.epochs if final and insisted is None else 0
    asked, seen, earlier = found_out(asked, probes, path, command, last)
    chosen = choice(asked, seen, insisted, reasons)
    print("\n".join(f"chosen:  {reason}" for reason in chosen.reasons[len(reasons) :]), flush=True)
    if last:
        (path / FINAL).mkdir(parents=True, exist_ok=True)  # from now on the run is not done without it
    judging = epochs_in(usual_plain_probes(asked, probes))
    train(chosen.experiment, path, chosen.as_row(), command, earlier=earlier, later=judging + last)
    earlier += epochs_of(chosen.experiment)
    judge_plainly(asked, plain_probes(asked, probes), path, command, earlier, last)
    if last:
        correct_and_train(chosen.experiment, path, command, earlier + judging)
    say_use(path)


def found_out(
    asked: Experiment, probes: Sequence[Experiment], path: Path, command: str, later: int
) -> tuple[Experiment, Unseen, int]:
    """The training with the learning rate that suits, what its probes see of the labels, and their epochs."""
    new = not (path / "done").exists()
    if new:
        find = "find" if len(probes) > 1 else "finds"
        print(f"first {several(probes)} {find} out how many labels are wrong", flush=True)
    asked, seen = likeliest(asked, probes, path / PROBE, command, later=later)
    again = second_look(asked, probes, seen.rate.estimate)
    if again:
        if new:
            print(f"found {spoken(seen.rate.estimate)}; {several(again)} that are told so look again", flush=True)
        asked, seen = likeliest(asked, again, path / AGAIN, command, epochs_in(probes), later)
    return asked, seen, epochs_in([*probes, *again])


def refuse_told(path: Path) -> None:
    """A folder whose training had no probes is another run: say so before any are trained."""
    RunFolder(path).refuse_strangers()
    if (path / "spec.json").exists() and not (path / PROBE).exists():
        raise InputError(f"{path} is another run: its training was told the noise rate; name another --out")


def judge_plainly(
    asked: Experiment, plain: Sequence[Experiment], path: Path, command: str, earlier: int, later: int
) -> None:
    """Train the plain probes; if the run held samples out itself, only the first, where that is clearly worse.

    Then the first of longer ones follows, which may not be.
    """
    if not held_out_by(path).any():
        train_probes(plain, path / PLAIN, command, earlier, later)
        return
    for folder, probes in ((PLAIN, plain), (LONGER, longer(plain, asked))):
        train_probes(probes[:1], path / folder, command, earlier, later)
        if not selecting_is_clearly_better(path, folder):
            train_probes(probes, path / folder, command, earlier, later)
        if plain_guesses(path) is not None:
            return
        earlier += epochs_in(probes[:1])


def correct_and_train(selecting: Experiment, path: Path, command: str, earlier: int) -> None:
    """Train plainly on all samples, with what the audit of the finished run holds wrong under the suggested labels."""
    file = path / CORRECTED
    if not file.exists():
        findings = findings_in(path, read_samples(path) or {}, read_run(path).classes)
        if findings.unknown:
            names = printable(", ".join(findings.unknown))
            print(
                f"beware: most labels of {names} look wrong; the model may not know the class, so they stay as they are"
            )
        write_atomically(file, as_file(findings.believed))
    samples = read_samples(path) or {}
    learnt = samples["split"] != TESTED
    changed = int((np.load(file) != samples["label"])[learnt].sum())
    print(
        f"now all {int(learnt.sum()):,} samples are learnt from, {changed:,} of them under corrected labels",
        flush=True,
    )
    final = last_of(selecting, file)
    plan = Plan(final.epochs, part="last training", earlier=earlier)
    ran = trained(final, path / FINAL, plan, command=command)
    say_outcome(path / FINAL, ran)


def as_file(labels: Array) -> bytes:
    """Labels (n) as a .npy file."""
    file = io.BytesIO()
    np.save(file, labels)
    return file.getvalue()


def likeliest(
    asked: Experiment, probes: Sequence[Experiment], path: Path, command: str, earlier: int = 0, later: int = 0
) -> tuple[Experiment, Unseen]:
    """Train the probes: the learning rate that foretells held-out labels best, and the noise that it sees."""
    folders = train_probes(probes, path, command, earlier, epochs_of(asked) + later)
    seen = {lr: seen_by(runs) for lr, runs in folders.items()}
    best = max(seen, key=lambda lr: seen[lr].likelihood)
    if len(seen) > 1:
        print(f"chosen:  learning rate {best:g}: its probes foretell the labels that they held out best", flush=True)
    return replace(asked, lr=best), seen[best]


def train_probes(
    probes: Sequence[Experiment], path: Path, command: str, earlier: int, later: int
) -> dict[float, list[Path]]:
    """Train the probes in folders of this one: their folders by learning rate.

    `earlier`, `later`: epochs of what was trained before and will be after them.
    """
    folders: dict[float, list[Path]] = {}
    for number, probe in enumerate(probes, 1):
        part = f"probe {number}/{len(probes)}" if len(probes) > 1 else "probe"
        after = epochs_in(probes[number:]) + later
        plan = Plan(probe.epochs, part=part, earlier=earlier + epochs_in(probes[: number - 1]), later=after)
        trained(probe, path / str(number), plan, command=command)
        folders.setdefault(probe.lr, []).append(path / str(number))
    return folders


def epochs_in(probes: Sequence[Experiment]) -> int:
    return sum(probe.epochs for probe in probes)


class Planned(NamedTuple):
    """A training that is meant, and the probes that come before it, none where the noise rate is known."""

    training: Experiment
    probes: Sequence[Experiment]


def settled(asked: Experiment, free: Collection[str], unknown: bool) -> list[Planned]:
    """What to train once the data is known; several, if only training tells which network suits it.

    `free`: settings that a person did not name. `unknown`: whether the noise rate is.
    """
    if not unknown and (asked.model not in ("auto", *OWN) or asked.data in SETTINGS):
        return [Planned(asked, [])]
    gathered = gather(replace(asked, valid=0.0), Shelf())
    data = gathered.train
    if unknown:
        say_skipped(gathered.left_out)
    models = candidates(data.shape, usable_device(asked.device)) if asked.model == "auto" else (asked.model,)
    suitable_to = [replace(suited(asked, model, free, len(data)), model=model) for model in models]
    method_of(suitable_to[0], data)  # what it refuses, it refuses before the probes
    if not unknown:
        return [Planned(each, []) for each in suitable_to]
    tried = [RATES if "lr" in free and each.lr in RATES else () for each in suitable_to]
    return [Planned(*planned_trainings(each, len(data), rates)) for each, rates in zip(suitable_to, tried, strict=True)]


def chosen_network(plans: Sequence[Planned], path: Path, command: str = "") -> tuple[Planned, list[str]]:
    """The one of several networks of which a short plain training foretells held-out labels best, and why."""
    if len(plans) == 1:
        return plans[0], []
    RunFolder(path).refuse_strangers()
    trials = [plain_probes(training, probes or [probe_of(training)])[0] for training, probes in plans]
    if not (path / "done").exists():
        print(f"first short trainings tell which network suits: {' or '.join(each.model for each in trials)}")
    rest = epochs_of(plans[-1].training)
    train_probes(trials, path / NETWORK, command, 0, rest)
    scores = [foretold(path / NETWORK / str(number)) for number, _ in enumerate(trials, 1)]
    best = int(np.argmax(scores))
    worse = ", ".join(f"{each.model}: {score:.3f}" for each, score in zip(trials, scores, strict=True))
    why = f"network {trials[best].model}: its short training foretells the labels that it held out best ({worse})"
    print(f"chosen:  {why}", flush=True)
    return plans[best], [why]


def forecast_of(plans: Sequence[Planned], path: Path, final: bool) -> str:
    """What the dearest of the plans would do and cost, and which networks would be tried before."""
    training, probes = plans[-1]
    told = forecast(training, path, probes, final)
    names = " or ".join(plan.training.model for plan in plans)
    tried = f"first:   short trainings tell which network suits: {names}; below, the last of them is reckoned with\n"
    return (tried if len(plans) > 1 else "") + told
