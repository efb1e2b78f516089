"""Train automatically: work through the stages of a plan, resume interrupted ones, and report progress and outcome."""

import io
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelsieve.audit.explain import explain
from labelsieve.audit.findings import unreliable_remark
from labelsieve.auto.audit import findings_of_run, judged_folder, samples_as_given
from labelsieve.auto.forecast import description, finetuning_seconds
from labelsieve.auto.heads import SUMMARY, write_judgment
from labelsieve.auto.judge import best_judges, held_out_log_likelihood, judges_of
from labelsieve.auto.plan import TRAINING, Found, Request, Stage, plan
from labelsieve.auto.request import print_skipped
from labelsieve.catalogue import options_of
from labelsieve.core.method import Method
from labelsieve.errors import InputError
from labelsieve.files import DONE, SUMS, faults, write_sealed
from labelsieve.progress import Plan, watching
from labelsieve.runs.data import Shelf, gather
from labelsieve.runs.execute import epochs_of, is_finished, prepare, rounds_of, run
from labelsieve.runs.folder import RunFolder, locked
from labelsieve.runs.read import (
    CORRECTED,
    HEADS,
    NETWORK,
    PLAIN,
    SELECTING,
    STAGE_FOLDERS,
    TESTED,
    Array,
    Run,
    neglected_classes,
    read_json,
    read_run,
    read_samples,
)
from labelsieve.runs.spec import Experiment
from labelsieve.runs.team import Team
from labelsieve.runs.track import Tracking
from labelsieve.text import duration, percent, printable
from labelsieve.train.loop import Watchers

NEARLY_ALL = 0.95  # share of predictions for one class from which a network has learned nothing


@dataclass(frozen=True)
class Runner:
    """Trains experiments in run folders, with shared data and visible progress."""

    shelf: Shelf
    command: str = ""  # the command line, stored in every run folder to name it in messages about resuming
    team: Team | None = None  # of which this is the first process
    trackers: Sequence[str] = ()  # that show the curves of every training

    def train(
        self,
        experiment: Experiment,
        folder: Path,
        progress: Plan,
        chosen: dict[str, Any] | None = None,
        describe: bool = False,
    ) -> bool:
        """Train or resume one experiment; return False if it is finished already."""
        prepared = None
        if (describe or self.trackers) and not is_finished(experiment, folder):
            torch.set_num_threads(experiment.threads)
            prepared = prepare(experiment, self.shelf)
            if describe:
                print("\n".join(description(experiment, prepared)), flush=True)
        tracking = Tracking(folder, self.trackers, partial(_penalty_labels, prepared.method) if prepared else None)
        with tracking, watching(progress) as lines:
            watcher = Watchers(lines, tracking)
            return run(experiment, folder, watcher, prepared, None, chosen, self.command, self.shelf, self.team)


def _penalty_labels(method: Method) -> Array | None:
    """Return the penalty labels (N, K, K) that a method has learned so far, if it has any."""
    found = method.tables().get("penalty")
    return None if found is None else found.detach().float().cpu().numpy()


def train(request: Request, path: Path, runner: Runner) -> None:
    """Train all stages that are needed and not finished, and print the outcome; other processes are excluded."""
    RunFolder(path).refuse_other_files()
    if request.noise_is_unknown:
        _refuse_given_rate(path)
    found = Found()
    with locked(path) if len(plan(request, path)) > 1 else nullcontext():
        for folder in (*STAGE_FOLDERS, TRAINING):
            stages = plan(request, path, found)
            stage = next((each for each in stages if each.folder == folder), None)
            if stage is not None:
                found = _train_stage(stage, stages, request, path, runner, found)
    _print_use(path)


def mend(path: Path) -> bool:
    """Prepare a run with damaged or missing files for being trained by the same command; return whether there were any.

    What can be made again from the other files is marked as unfinished. Raise InputError for anything else.
    """
    RunFolder(path).refuse_other_files()
    seals = [path / DONE, *(seal for name in STAGE_FOLDERS for seal in sorted((path / name).glob(f"[0-9]*/{DONE}")))]
    reopened = [RunFolder(seal.parent).reopen_damaged() for seal in seals]
    for folder, again in ((path / HEADS, "judged"), (path / "audit", "audited")):
        if found := faults(folder / SUMS):
            file, reason = next(iter(found.items()))
            print(f"{file} {reason}; the labels are {again} again", file=sys.stderr)
            for name in (SUMMARY, SUMS):
                (folder / name).unlink(missing_ok=True)
            reopened.append(True)
    return any(reopened) or bool(faults(path / DONE))


def _refuse_given_rate(path: Path) -> None:
    """Refuse the folder of a run whose noise rate was given: it has no judges."""
    if (path / "spec.json").exists() and not any((path / judges).exists() for judges in (PLAIN, HEADS)):
        raise InputError(f"{path} holds another run: its noise rate was given; name another --out")


def _train_stage(
    stage: Stage, stages: Sequence[Stage], request: Request, path: Path, runner: Runner, found: Found
) -> Found:
    """Train one stage and return what is known after it."""
    if stage.folder == HEADS:
        return _judge_by_heads(stage, stages, path, runner, found)
    folders = stage.folders(path)
    chosen = None
    if stage.folder == TRAINING and request.noise_is_unknown:
        chosen = {"noise_rate": found.rate, "reasons": found.reasons}
    if len(stages) > 1 and not all((folder / DONE).exists() for folder in folders):
        print(f"stage {stages.index(stage) + 1} of {len(stages)}: {stage.purpose} ({stage})", flush=True)
    if (corrected := Path(stage.experiments[0].corrected or "")).name == CORRECTED:
        _correct_labels(path, corrected)
    if request.finetune and stage.folder == TRAINING and not is_finished(stage.experiments[0], path):
        _warn_about_cpu(stage.experiments[0], path)
    for number, (experiment, folder) in enumerate(zip(stage.experiments, folders, strict=True)):
        describe = stage.folder == TRAINING
        ran = runner.train(experiment, folder, stage_progress(stages, stage, number), chosen, describe)
        if describe:
            RunFolder(folder).renew_seal()
            _print_outcome(folder, ran)
    return _after(stage, path, found)


def _judge_by_heads(stage: Stage, stages: Sequence[Stage], path: Path, runner: Runner, found: Found) -> Found:
    """Judge all labels out of fold with linear heads; write their predictions and the targets of the delivered head."""
    following = stages[stages.index(stage) + 1]
    experiment = following.experiments[0]  # the head that learns what is found here
    folder = path / HEADS
    gathered = gather(replace(experiment, corrected=None), runner.shelf)
    if stages[0] is stage:  # else they were printed before the first stage
        print_skipped(gathered.skipped)
    known = read_json(folder / SUMMARY) if (folder / SUMMARY).exists() else {}
    judged = known.get("fingerprint", gathered.fingerprint)
    RunFolder(following.folders(path)[0]).refuse_other_labels(experiment, judged, gathered.fingerprint)
    if known.get("fingerprint") != gathered.fingerprint:
        print(f"stage {stages.index(stage) + 1} of {len(stages)}: {stage.purpose}", flush=True)
        torch.set_num_threads(experiment.threads)
        known = write_judgment(gathered, folder, experiment)
    for reason in known["reasons"]:
        print(printable(reason), flush=True)
    reasons = (*found.reasons, *known["reasons"])
    return replace(found, strength=known["delivered_strength"], rate=known["noise_rate"], reasons=reasons)


def _after(stage: Stage, path: Path, found: Found) -> Found:
    """Return what is known after a finished stage, and print it."""
    if stage.folder == NETWORK:
        found, why = _choose_network(stage, path, found)
    elif stage.folder == PLAIN:
        found, why = _estimate_noise(stage, path, found)
    elif stage.folder == SELECTING:
        why = [_who_judges(path)]
    else:
        return found
    print("\n".join(why), flush=True)
    return replace(found, reasons=(*found.reasons, *why))


def _choose_network(stage: Stage, path: Path, found: Found) -> tuple[Found, list[str]]:
    """Choose the network that predicts held-out labels best."""
    scores = [held_out_log_likelihood(folder) for folder in stage.folders(path)]
    best = int(np.argmax(scores))
    others = ", ".join(
        f"{each.model}: {score:.2f}"
        for place, (each, score) in enumerate(zip(stage.experiments, scores, strict=True))
        if place != best
    )
    name = stage.experiments[best].model
    why = f"network: {name} (best log-likelihood on held-out labels: {scores[best]:.2f}, {others})"
    return replace(found, network=best), [why]


def _estimate_noise(stage: Stage, path: Path, found: Found) -> tuple[Found, list[str]]:
    """Estimate the noise rate from the plain judges with the best learning rate, and choose the selecting method."""
    judges = best_judges(path, PLAIN)
    assert judges is not None
    rate = explain(judges.guesses).noise.class_dependent  # too high a rate costs more accuracy than too low a one
    why = [
        f"noise rate for the selection: {percent(rate)} (a first estimate by networks that were not trained on the "
        "labels)"
    ]
    if len({experiment.lr for experiment in stage.experiments}) > 1:
        why.insert(0, f"learning rate: {judges.lr:g} (best log-likelihood on held-out labels)")
    method, source = "mentornet-prop", "certain classes; penalty labels exclude them"
    if judges.noise.uniform > rate / 2:
        method, source = "mentornet", "all classes equally; penalty labels would not help"
    why.append(f"selection: {method} (most wrong labels come from {source})")
    return replace(found, lr=judges.lr, rate=round(rate, 3), method=method), why


def _who_judges(path: Path) -> str:
    """Return which judges are used, and the mean log-likelihoods of held-out labels that decided it, in a line."""
    plain, selecting, used = best_judges(path, PLAIN), best_judges(path, SELECTING), judges_of(path)
    assert plain is not None and selecting is not None and used is not None
    kind = "networks that select samples" if used.kind == SELECTING else "networks trained on all labels"
    scores = f"with selection {selecting.log_likelihood:.3f}, without {plain.log_likelihood:.3f}"
    return f"judges: {kind} (log-likelihood of held-out labels: {scores})"


def stage_progress(stages: Sequence[Stage], stage: Stage, number: int) -> Plan:
    """Return the place of one training of a stage in the whole plan, for the progress line."""
    position, experiments = list(stages).index(stage), stage.experiments
    earlier = sum(each.epochs for each in stages[:position]) + sum(map(epochs_of, experiments[:number]))
    later = sum(each.epochs for each in stages[position + 1 :]) + sum(map(epochs_of, experiments[number + 1 :]))
    part = f"stage {position + 1} of {len(stages)}, {stage.name}" if len(stages) > 1 else ""
    part += f" {number + 1}/{len(experiments)}" if len(experiments) > 1 else ""
    experiment = experiments[number]
    return Plan(experiment.epochs, rounds_of(experiment), part, earlier, later)


def _correct_labels(path: Path, file: Path) -> None:
    """Write the labels that a stage learns: suspect labels are replaced by the suggestions of the judges before it."""
    samples = samples_as_given(path)
    if damaged := faults(file.with_name(f"{file.name}.sha256")):
        print(f"{next(iter(damaged))} is damaged; the labels are corrected again", file=sys.stderr)
    if damaged or not file.exists():
        findings = findings_of_run(path, samples, read_run(judged_folder(path)).classes)
        if remark := unreliable_remark(findings.classes, findings.unreliable_classes):
            print(printable(remark))
        content = io.BytesIO()
        np.save(content, findings.training_labels)
        file.parent.mkdir(exist_ok=True)
        write_sealed(file, content.getvalue())
    used = samples["split"] != TESTED
    changed = int((np.load(file) != samples["label"])[used].sum())
    print(f"{changed:,} of {int(used.sum()):,} labels corrected", flush=True)


def print_finished(path: Path) -> None:
    """Print the outcome of a run that was finished before."""
    for reason in read_run(path).start.get("chosen", {}).get("reasons", []):
        print(printable(str(reason)))
    _print_outcome(path, ran=False)
    _print_use(path)


def _print_outcome(folder: Path, ran: bool) -> None:
    """Print how a training went, with warnings."""
    done = read_run(folder)
    linear = done.spec["epochs"] == 1
    caveat = " (some labels of the test set may be wrong, too)" if done.spec["test"] else ""
    epoch = "" if linear else f" (model of epoch {done.end['chosen_epoch']})"
    print(f"{'trained' if ran else 'already trained'}: {folder}{epoch}")
    if "last" in done.end and linear:
        print(f"test error: {done.end['last']:.2f}%{caveat}")
    elif "last" in done.end:
        print(f"test error: {done.end['last']:.2f}% in the last epoch, {done.end['best']:.2f}% in the best{caveat}")
    samples = read_samples(folder)
    if not samples:
        return
    if only := predicted_class(samples, done.classes):
        print(f"warning: the model predicts {printable(only)} for nearly every sample; try a lower --lr")
    if neglected := neglected_classes(done):
        print(f"warning: few samples of {printable(', '.join(neglected))} were kept; {_advice(done)}")


def _advice(run: Run) -> str:
    """Return what to do about a class of which few samples were kept."""
    unused = options_of(run.method).keys() - dict(run.spec["options"]).keys()
    others = ", or with --set align=true" if "align" in unused else ""
    return f"the network may confuse it with another class: check its samples, or train with another --seed{others}"


def predicted_class(samples: Mapping[str, Array], classes: Sequence[str]) -> str:
    """Return the class that the network predicts for nearly every sample, if the labels do not justify it."""
    predicted, given = (
        np.bincount(each, minlength=len(classes)) / len(each) for each in (samples["likeliest"][:, 0], samples["label"])
    )
    only = int(predicted.argmax())
    return classes[only] if predicted[only] > NEARLY_ALL and given[only] < NEARLY_ALL**2 else ""


def _print_use(path: Path) -> None:
    print(f"use the model: labelsieve predict {shlex.quote(str(path))} DATA, or labelsieve.load({str(path)!r})")


def _warn_about_cpu(experiment: Experiment, path: Path) -> None:
    """Print how long fine-tuning takes on a CPU."""
    if experiment.device == "cpu":
        start = read_run(judged_folder(path)).start
        seconds = finetuning_seconds(experiment, start["samples"], start["classes"])
        print(f"fine-tuning takes about {duration(seconds)} on this CPU; a GPU is much faster", flush=True)
