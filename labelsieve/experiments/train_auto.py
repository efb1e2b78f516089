"""train_auto: probes find out how many labels are wrong, the training is told, and the labels are corrected by it."""

import io
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labelsieve.audit.unseen import Unseen
from labelsieve.cells import printable
from labelsieve.devices import usable_device
from labelsieve.errors import InputError
from labelsieve.experiments.audit import findings_in
from labelsieve.experiments.auto import (
    OWN,
    RATES,
    choice,
    last_of,
    longer,
    plain_probes,
    planned_trainings,
    probe_of,
    second_look,
    several,
    spoken,
    suited,
    usual_plain_probes,
)
from labelsieve.experiments.folder import RunFolder
from labelsieve.experiments.forecast import forecast, say_skipped
from labelsieve.experiments.gather import gather
from labelsieve.experiments.judges import foretold, held_out_by, plain_guesses, seen_by, selecting_is_clearly_better
from labelsieve.experiments.prepare import method_of
from labelsieve.experiments.shelf import Shelf
from labelsieve.experiments.single import say_outcome, say_use, train, trained
from labelsieve.experiments.spec import SETTINGS, Experiment
from labelsieve.experiments.watch import epochs_of
from labelsieve.files import FINAL, write_atomically
from labelsieve.models import candidates
from labelsieve.progress import Plan
from labelsieve.report.records import AGAIN, LONGER, NETWORK, PLAIN, PROBE, TESTED, Array, read_run, read_samples

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
