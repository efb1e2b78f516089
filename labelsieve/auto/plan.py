"""The plan of an automatic training: a list of stages, each with its purpose, its trainings and its folder.

If the noise rate is unknown, *plain judges* come first: five short trainings without selection, each of which holds out
another fifth of the samples. Their predictions for held-out samples show how many labels are wrong. Five *selecting
judges*, as long as the training, get that noise rate and hold out the same fifths. So every label is judged by a
network that did not learn it, whatever the number of samples; the five that predict held-out labels better are used.
In the *second round*, five trainings learn the labels that these corrected, again without the fifth that they judge,
and rank the labels. The delivered model learns all samples, with corrected labels.

On features, linear heads do all of this in seconds: they judge every label out of fold, and the delivered head learns
the probabilities of the true classes. If requested, the whole network is then fine-tuned on corrected labels, starting
from that head, and delivered instead.

`plan` returns the stages given what the finished ones have shown so far; it is evaluated again after every stage.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from labelsieve.auto.judge import FOLDS
from labelsieve.methods import GUARDS
from labelsieve.runs.execute import LINEAR, epochs_of, is_linear_head
from labelsieve.runs.read import CORRECTED, HEAD, HEADS, NETWORK, PLAIN, SECOND, SELECTING, TARGETS
from labelsieve.runs.spec import OPEN_SETTINGS, Experiment

SELECTION: dict[str, Any] = {"criterion": None, "options": tuple(GUARDS.items())}
PLAIN_TRAINING: dict[str, Any] = {"method": "default", "criterion": None, "options": (), "noise_rate": 0.0}
LEARNING_RATES = (0.02, 0.05)  # compared by the plain judges
FINETUNING: dict[str, Any] = {"epochs": 5, "warmup": 0, "batch": 32, "lr": 0.002}  # where the user has set nothing
# Settings without effect on linear heads, besides OPEN_SETTINGS:
NOT_FOR_HEADS = ("valid", "weight_decay", "nesterov", "sampler", "forward", "normalise", "scores", "augment", "stream")
TRAINING = ""  # folder of the delivered training: the run folder itself


@dataclass(frozen=True)
class Stage:
    """Trainings with one purpose, made one after the other."""

    name: str
    purpose: str
    experiments: tuple[Experiment, ...]
    folder: str  # in the run folder; trainings have numbered folders below it, except the delivered one

    def folders(self, run: Path) -> list[Path]:
        """Return the folder of each training."""
        if self.folder == TRAINING:
            return [run]
        return [run / self.folder / str(number) for number, _ in enumerate(self.experiments, 1)]

    @property
    def epochs(self) -> int:
        """The number of epochs of all trainings."""
        return sum(map(epochs_of, self.experiments))

    def __str__(self) -> str:
        """Describe the trainings: 5 trainings of 22 epochs."""
        if not self.epochs or all(map(is_linear_head, self.experiments)):
            return "logistic regression" if self.experiments else "linear heads"
        count = len(self.experiments)
        lengths = " and ".join(str(n) for n in dict.fromkeys(epochs_of(e) for e in self.experiments))
        unit = "epoch" if lengths == "1" else "epochs"
        return f"{f'{count} trainings' if count > 1 else '1 training'} of {lengths} {unit}"


class Candidate(NamedTuple):
    """A training with one network, and its plain judges; none if the noise rate is given, or for linear heads."""

    training: Experiment
    judges: Sequence[Experiment]


@dataclass(frozen=True)
class Request:
    """A requested automatic training."""

    candidates: tuple[Candidate, ...]  # several if the network must be chosen by short trainings
    method: str | None = None  # requested by the user; its model is delivered
    final: bool = True  # whether the delivered model learns corrected labels
    finetune: Experiment | None = None  # training of the whole network after that of a linear head

    @property
    def noise_is_unknown(self) -> bool:
        return any(each.judges or self.has_heads(each.training) for each in self.candidates)

    @property
    def is_head_only(self) -> bool:
        """True if only linear heads are trained, which have no epochs, batches or learning rate."""
        return self.finetune is None and all(self.has_heads(each.training) for each in self.candidates)

    def has_heads(self, training: Experiment) -> bool:
        """Return whether linear heads judge the labels before this training; not if plain training was requested."""
        return is_linear_head(training) and self.method is None


@dataclass(frozen=True)
class Found:
    """Results of the finished stages."""

    network: int | None = None  # position among the candidates
    lr: float | None = None
    strength: float | None = None  # regularisation of the delivered head
    rate: float = 0.0  # noise rate
    method: str = "mentornet-prop"  # of the selecting judges
    reasons: tuple[str, ...] = ()  # for what was found, in words


def plan(request: Request, run: Path, found: Found | None = None) -> list[Stage]:
    """Return the stages; settings that depend on results still missing are those given by the user."""
    found = found or Found()
    training, judges = request.candidates[-1 if found.network is None else found.network]
    stages = [_network_stage(request.candidates)] if len(request.candidates) > 1 else []
    if request.has_heads(training):
        head = _delivered_head(training, run, found.strength) if request.final else training
        return [*stages, *_head_stages(head, run, request.finetune)]
    if not judges:
        return [*stages, Stage("training", "train with sample selection", (training,), TRAINING)]
    training = training if found.lr is None else replace(training, lr=found.lr)
    selecting = replace(training, **SELECTION, method=found.method, noise_rate=found.rate)
    stages.append(Stage("plain judges", _purpose_of_plain(judges), tuple(judges), PLAIN))
    purpose = "judge every label with networks that select samples and were not trained on it"
    stages.append(Stage("selecting judges", purpose, in_folds(selecting), SELECTING))
    second = in_folds(final_training(training, run / SECOND / CORRECTED))
    purpose = "judge every label again with networks that learned corrected labels"
    stages.append(Stage("second round", purpose, second, SECOND))
    purpose, delivered = "train with sample selection", selecting
    if request.method is not None:
        purpose, delivered = f"train with {request.method}", replace(training, noise_rate=found.rate)
    elif request.final:
        purpose = "train the delivered model on all samples with corrected labels"
        delivered = final_training(training, run / CORRECTED)
    return [*stages, Stage("training", purpose, (delivered,), TRAINING)]


def _network_stage(candidates: Sequence[Candidate]) -> Stage:
    trials = tuple(_network_trial(each.training) for each in candidates)
    return Stage("network", f"choose the network: {' or '.join(e.model for e in trials)}", trials, NETWORK)


def _network_trial(training: Experiment) -> Experiment:
    """Return a short training without selection that holds out a fifth."""
    return replace(training, valid=1 / FOLDS) if is_linear_head(training) else plain_judges(training)[0]


def _delivered_head(training: Experiment, run: Path, strength: float | None) -> Experiment:
    """Return the head that learns the probabilities of the true classes instead of the given labels."""
    head = replace(training, corrected=str(run / HEADS / TARGETS))
    return head if strength is None else replace(head, weight_decay=strength)


def _head_stages(head: Experiment, run: Path, finetune: Experiment | None) -> list[Stage]:
    """Return the stages on features: judge all labels out of fold, fit the head, fine-tune the network if requested."""
    learned = "given labels" if head.corrected is None else "probabilities of the true classes"
    purpose = f"fit the {{}} head to the {learned}"
    judging = Stage(
        "heads", "judge every label with linear heads that were not trained on it, in two rounds", (), HEADS
    )
    if finetune is None:
        return [judging, Stage("training", purpose.format("delivered"), (head,), TRAINING)]
    fitting = Stage("head", purpose.format("last"), (head,), HEAD)
    start = fitting.folders(run)[0] / "model.safetensors"
    whole = replace(final_training(finetune, run / CORRECTED), init=str(start))
    purpose = f"train the whole network {whole.model} on all images with corrected labels"
    return [judging, fitting, Stage("training", purpose, (whole,), TRAINING)]


def _purpose_of_plain(judges: Sequence[Experiment]) -> str:
    rates = " and choose the learning rate" if len({judge.lr for judge in judges}) > 1 else ""
    return f"estimate the noise rate{rates} with networks trained on all labels"


def linear_head(experiment: Experiment) -> Candidate:
    """Return logistic regression on features; its strength of regularisation is found before it is fitted.

    Settings without effect are reset, so that they do not tell runs apart.
    """
    unused = {name: getattr(Experiment, name) for name in (*OPEN_SETTINGS, *NOT_FOR_HEADS)}
    fitted: dict[str, Any] = {"model": LINEAR, "epochs": 1, "warmup": 0, "choose": "last"}
    return Candidate(replace(experiment, **{**PLAIN_TRAINING, **unused, **fitted}), ())


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


def plain_judges(experiment: Experiment, rates: Sequence[float] = ()) -> tuple[Experiment, ...]:
    """Return trainings without selection that stop before they memorize labels, five for each learning rate.

    If classes look alike, selection takes sides between them; plain networks predict how mixed their labels are.
    """
    short = replace(experiment, **PLAIN_TRAINING, epochs=max(1, experiment.warmup), warmup=0)
    return tuple(judge for rate in rates or (experiment.lr,) for judge in in_folds(replace(short, lr=rate)))


def in_folds(experiment: Experiment) -> tuple[Experiment, ...]:
    """Return five trainings of which each holds out another fifth; the models of the last epoch judge."""
    held_out: dict[str, Any] = {"valid": 1 / FOLDS, "choose": "last", "scores": ()}
    return tuple(replace(experiment, **held_out, fold=fold) for fold in range(FOLDS))


def final_training(experiment: Experiment, corrected: Path) -> Experiment:
    """Return the training whose model is delivered: without selection, on all samples, with corrected labels."""
    whole: dict[str, Any] = {"valid": 0.0, "choose": "last", "scores": ()}
    return replace(experiment, **PLAIN_TRAINING, **whole, corrected=str(corrected))
