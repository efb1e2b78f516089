"""The plan of an automatic training: a list of stages, each with its purpose, its trainings and its folder.

If the noise rate is unknown, *probes* come first: trainings up to a little after the warm-up, given a noise rate of
40%. Their predictions for held-out samples show how many labels are wrong and whether the wrong ones come from certain
classes. The selecting training gets that noise rate. Plain *judges*, trained without selection, then judge the labels,
and the final training learns from all samples with corrected labels and delivers its model. With fewer than 3,000
samples, five probes hold out one fifth each, so that every label is judged and the training can use all samples.

On features, linear heads do all of this in seconds: they judge every label out of fold, and the delivered head learns
the probabilities of the true classes. If requested, the whole network is then fine-tuned on corrected labels.

`plan` returns the stages given what the finished ones have shown so far; it is evaluated again after every stage.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from labelsieve.audit.estimate import HIGH_RATE
from labelsieve.audit.held_out import HeldOutNoise
from labelsieve.auto.judge import FOLDS
from labelsieve.methods import GUARDS
from labelsieve.runs.execute import LINEAR, epochs_of, is_linear_head
from labelsieve.runs.folder import CORRECTED
from labelsieve.runs.read import AGAIN, FINAL, HEADS, LONGER, NETWORK, PLAIN, PROBE, TARGETS
from labelsieve.runs.spec import Experiment

LOW_RATE = 0.3  # estimates below this rate are repeated with probes that are given the estimate
PROBE_SHARE = 0.4  # share of the epochs that a probe trains after the warm-up
GUARD_OPTIONS = tuple(GUARDS.items())
LEARNING_RATES = (0.02, 0.05)  # compared by the probes if there are few samples
HELD_OUT_SAMPLES = 600  # samples to hold out, if that is between a tenth and a fifth
STAGES = (
    "network",
    "probe",
    "second probe",
    "heads",
    "training",
    "judges",
    "long judges",
    "final",
    "finetune",
)  # in order
TRAINING = ""  # folder of the selecting training: the run folder itself
FINETUNING: dict[str, Any] = {"epochs": 5, "warmup": 0, "batch": 32, "lr": 0.002}  # where the user has set nothing


@dataclass(frozen=True)
class Stage:
    """Trainings with one purpose, made one after the other."""

    name: str
    purpose: str
    experiments: tuple[Experiment, ...]
    folder: str  # in the run folder; trainings have numbered folders below it, except the selecting and the final one
    condition: str = ""  # when the stage, or the rest of it, is skipped
    expected: int | None = None  # number of trainings that are usually needed, if not all

    def folders(self, run: Path) -> list[Path]:
        """Return the folder of each training."""
        if self.folder in (TRAINING, FINAL):
            return [run / self.folder]
        return [run / self.folder / str(number) for number, _ in enumerate(self.experiments, 1)]

    @property
    def epochs(self) -> int:
        """The number of epochs that are usually needed."""
        return sum(epochs_of(experiment) for experiment in self.experiments[: self.expected])

    def __str__(self) -> str:
        """Describe the trainings: 5 trainings of 22 epochs."""
        if not self.epochs or all(map(is_linear_head, self.experiments)):
            return "logistic regression" if self.experiments else "linear heads"
        count = self.expected or len(self.experiments)
        lengths = " and ".join(str(n) for n in dict.fromkeys(epochs_of(e) for e in self.experiments))
        unit = "epoch" if lengths == "1" else "epochs"
        return f"{f'{count} trainings' if count > 1 else '1 training'} of {lengths} {unit}"


class Candidate(NamedTuple):
    """A training with one network, and the probes before it; none if the noise rate is given, or for linear heads."""

    training: Experiment
    probes: Sequence[Experiment]


@dataclass(frozen=True)
class Request:
    """A requested automatic training."""

    candidates: tuple[Candidate, ...]  # several if the network must be chosen by short trainings
    method: str | None = None  # requested by the user; its model is delivered
    final: bool = True  # whether to train a final model on corrected labels
    finetune: Experiment | None = None  # training of the whole network after that of a linear head

    @property
    def noise_is_unknown(self) -> bool:
        return any(each.probes or self.has_heads(each.training) for each in self.candidates)

    def has_heads(self, training: Experiment) -> bool:
        """Return whether linear heads judge the labels before this training; not if plain training was requested."""
        return is_linear_head(training) and self.method is None


@dataclass(frozen=True)
class Found:
    """Results of the finished stages."""

    network: int | None = None  # position among the candidates
    lr: float | None = None
    noise: HeldOutNoise | None = None
    judged: bool = False  # the short plain judges judge the labels
    strength: float = 0.0  # regularisation of the delivered head
    rate: float = 0.0  # noise rate that linear heads found
    reasons: tuple[str, ...] = ()  # why the network was chosen


def plan(request: Request, run: Path, found: Found | None = None) -> list[Stage]:
    """Return the stages; those that depend on results still missing are listed as they are usually needed."""
    found = found or Found()
    training, probes = request.candidates[-1 if found.network is None else found.network]
    stages = [_network_stage(request.candidates)] if len(request.candidates) > 1 else []
    if request.has_heads(training):
        return [*stages, *_head_stages(training, run, request.finetune)]
    if not probes:
        return [*stages, _training_stage(training)]
    training = training if found.lr is None else replace(training, lr=found.lr)
    stages.append(Stage("probe", _probe_purpose(probes), tuple(probes), PROBE))
    if again := second_probes(training, probes, 0.0 if found.noise is None else found.noise.rate.estimate):
        condition = f"skipped if the estimate is {LOW_RATE:.0%} or more"
        stages.append(Stage("second probe", "repeat the estimate with the noise rate found", again, AGAIN, condition))
    chosen = training if found.noise is None else choose_training(training, found.noise, request.method).experiment
    stages += [_training_stage(chosen), *_judge_stages(training, probes, found)]
    if request.final and request.method is None:
        final = final_training(chosen, run / CORRECTED)
        stages.append(Stage("final", "train the delivered model on all samples with corrected labels", (final,), FINAL))
    return stages


def _network_stage(candidates: Sequence[Candidate]) -> Stage:
    trials = tuple(_network_trial(training, probes) for training, probes in candidates)
    return Stage("network", f"choose the network: {' or '.join(e.model for e in trials)}", trials, NETWORK)


def _network_trial(training: Experiment, probes: Sequence[Experiment]) -> Experiment:
    """Return a short training without selection that holds out a fifth."""
    if is_linear_head(training):
        return replace(training, valid=1 / FOLDS)
    return plain_judges(training, probes or [probe_of(training)])[0]


def _head_stages(training: Experiment, run: Path, finetune: Experiment | None) -> list[Stage]:
    """Return the stages on features: judge all labels out of fold, fit the delivered head, fine-tune the network."""
    head = replace(training, corrected=str(run / HEADS / TARGETS))
    stages = [
        Stage("heads", "judge every label with linear heads that did not learn it, in two rounds", (), HEADS),
        Stage("training", "fit the delivered head to the probabilities of the true classes", (head,), TRAINING),
    ]
    if finetune is not None:
        whole = replace(final_training(finetune, run / CORRECTED), init=str(run / "model.safetensors"))
        purpose = f"train the whole network {whole.model} on all images with corrected labels"
        stages.append(Stage("finetune", purpose, (whole,), FINAL))
    return stages


def _probe_purpose(probes: Sequence[Experiment]) -> str:
    rates = " and choose the learning rate" if len({probe.lr for probe in probes}) > 1 else ""
    return f"estimate the noise rate{rates}"


def _training_stage(training: Experiment) -> Stage:
    return Stage("training", "train with sample selection", (training,), TRAINING)


def _judge_stages(training: Experiment, probes: Sequence[Experiment], found: Found) -> list[Stage]:
    """Return the plain judges; if the run holds samples out itself, the first decides whether the others are needed."""
    judges = plain_judges(training, probes)
    purpose = "judge the labels with networks trained without selection"
    if not training.valid:
        return [Stage("judges", purpose, judges, PLAIN)]
    condition = "the first decides whether the others are needed"
    stages = [Stage("judges", purpose, judges, PLAIN, condition, expected=1)]
    if not found.judged:
        long = tuple(replace(judge, epochs=training.epochs) for judge in judges)
        stages.append(Stage("long judges", "compare with judges as long as the training", long, LONGER, condition, 1))
    return stages


def share_held_out(samples: int) -> float:
    """Return the share of the training set that is held out."""
    return round(min(0.2, max(0.1, HELD_OUT_SAMPLES / samples)), 3)


def with_probes(experiment: Experiment, samples: int, rates: Sequence[float] = ()) -> Candidate:
    """Return the training with its held-out share, and its probes; a share set by the user stays.

    Args:
        rates: Learning rates to choose from if there are few samples.
    """
    share = experiment.valid or share_held_out(samples)
    probe = replace(probe_of(experiment), valid=share)
    if experiment.valid or round(share * samples) >= HELD_OUT_SAMPLES:
        return Candidate(replace(experiment, valid=share), [probe])
    probes = [replace(probe, fold=fold, lr=rate) for rate in rates or [experiment.lr] for fold in range(FOLDS)]
    return Candidate(experiment, probes)


def linear_head(experiment: Experiment) -> Candidate:
    """Return logistic regression on features; its strength of regularisation is found before it is fitted."""
    plain: dict[str, Any] = {"method": "default", "criterion": None, "options": (), "noise_rate": 0.0, "scores": ()}
    return Candidate(replace(experiment, **plain, model=LINEAR, epochs=1, warmup=0, choose="last"), ())


def finetuning(experiment: Experiment, size: int, normalise: str, open_settings: Collection[str]) -> Experiment:
    """Return the training of a whole backbone on images, with suitable settings where the user has set none.

    Args:
        size: side of the images that the backbone was given.
        normalise: how its images are normalised.
    """
    images: dict[str, Any] = {"size": size, "normalise": normalise, "model": experiment.backbone, "backbone": None}
    images |= {"weights": None, "cache": experiment.cache if experiment.stream else None}
    settings = {name: FINETUNING[name] for name in open_settings}
    return replace(experiment, **images, **{**settings, "warmup": 0})


def probe_of(experiment: Experiment) -> Experiment:
    """Return the training that estimates the noise rate; it equals the real one until the end of the warm-up."""
    epochs = min(experiment.epochs, experiment.warmup + max(2, round(PROBE_SHARE * experiment.epochs)))
    drops = tuple(drop * experiment.epochs / epochs for drop in experiment.drops if drop * experiment.epochs < epochs)
    return replace(
        experiment,
        method="mentornet-prop",
        criterion=None,
        options=GUARD_OPTIONS,
        noise_rate=HIGH_RATE,  # too high rather than too low: else the probe memorizes wrong labels
        epochs=epochs,
        drops=drops,
        choose="last",
        scores=(),
    )


def second_probes(experiment: Experiment, probes: Sequence[Experiment], rate: float) -> tuple[Experiment, ...]:
    """Return probes that are given a low estimate and are as long as the training, if several probes made it.

    Probes that are given too high a rate leave out so many samples that hard classes are not learned and look wrong.
    """
    if len(probes) == 1 or rate >= LOW_RATE:
        return ()
    settings: dict[str, Any] = {
        "noise_rate": round(rate, 3),
        "epochs": experiment.epochs,
        "drops": experiment.drops,
    }
    return tuple(replace(probe, **settings) for probe in probes if probe.lr == experiment.lr)


def plain_judges(experiment: Experiment, probes: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """Return five trainings without selection that stop before they memorize labels; each holds out another fifth.

    If classes look alike, selection takes sides between them; plain networks predict how mixed their labels are.
    """
    short: dict[str, Any] = {"epochs": max(1, experiment.warmup), "warmup": 0, "drops": experiment.drops}
    plain: dict[str, Any] = {"method": "default", "options": (), "noise_rate": 0.0, "lr": experiment.lr}
    return tuple(replace(probes[0], **short, **plain, valid=1 / FOLDS, fold=fold) for fold in range(FOLDS))


def final_training(selecting: Experiment, corrected: Path) -> Experiment:
    """Return the training whose model is delivered: without selection, on all samples, with corrected labels."""
    plain: dict[str, Any] = {"method": "default", "criterion": None, "options": (), "noise_rate": 0.0}
    return replace(selecting, **plain, corrected=str(corrected), valid=0.0, choose="last", scores=())


@dataclass(frozen=True)
class _Choice:
    """The selecting training and the reasons for its settings."""

    experiment: Experiment
    reasons: tuple[str, ...]

    def as_row(self) -> dict[str, Any]:
        return {"noise_rate": self.experiment.noise_rate, "method": self.experiment.method, "reasons": self.reasons}


def choose_training(
    experiment: Experiment, noise: HeldOutNoise, method: str | None, reasons: Sequence[str] = ()
) -> _Choice:
    """Choose noise rate and method from the estimate; a method requested by the user stays."""
    rate = round(noise.rate.estimate, 3)
    low, high = noise.rate.low, noise.rate.high
    why = [*reasons, f"noise rate: {rate:.1%} of the held-out labels look wrong ({low:.1%} to {high:.1%})"]
    if method is not None:
        why.append(f"method: {method} (requested)")
        return _Choice(replace(experiment, method=method, noise_rate=rate), tuple(why))
    if noise.uniform <= noise.rate.estimate / 2:
        chosen = "mentornet-prop"
        why.append(f"method: {chosen} (most wrong labels come from certain classes; penalty labels exclude them)")
    else:
        chosen = "mentornet"
        why.append(f"method: {chosen} (wrong labels come from all classes equally; penalty labels would not help)")
    settings: dict[str, Any] = {"method": chosen, "criterion": None, "noise_rate": rate, "options": GUARD_OPTIONS}
    return _Choice(replace(experiment, **settings), tuple(why))
