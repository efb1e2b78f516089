"""auto: a training whose noise rate and criterion are found in the data itself.

A probe comes first: the same training up to a little after the warm-up, told that 40% of the labels are wrong. What it
then predicts for samples that were held out says how many of their labels are wrong and whether the wrong ones come
from certain classes. The training itself is told that. Where there are few samples, five probes hold out a fifth each,
so that every label is judged, and the training learns from all; probes that found far less than they were told look
again. All live in the run's folder and go on where they were cut."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labelsieve.audit.estimate import Interval
from labelsieve.audit.held_out import Unseen
from labelsieve.auto.judge import FOLDS
from labelsieve.methods import GUARDS
from labelsieve.runs.read import Array
from labelsieve.runs.spec import SETTINGS, Experiment

START = 0.4  # what the probe is told: too much rather than too little, or it learns the wrong labels by heart
FAR_LESS = 0.3  # a rate that calls for a second look
SHARE = 0.4  # of the epochs that the probe selects in
GUARDED = tuple(GUARDS.items())
CLEAN = 0.03  # a rate below which nearly everything is learnt from
CAUTION = 0.01  # what people are told of clean labels stays so far below the likeliest rate: what is hard looks wrong
FREE = ("epochs", "warmup", "batch", "lr")  # settings that are chosen where a person names none
OWN: dict[str, dict[str, Any]] = {  # for these networks on a person's own images
    "small": {"epochs": 30, "lr": 0.02},
    "compact": {"epochs": 30, "lr": 0.05},
}
WARMUP = 1 / 3  # of these epochs
RATES = (0.02, 0.05)  # learning rates that are tried where there are few samples
STEPS = 47  # of an epoch, as the embedded data has: fewer samples are learnt from in smaller batches
BATCHES = (32, 128)
HELD = 600  # samples to hold out, if that is between a tenth and a fifth
NEARLY_ALL = 0.95  # samples of one class in the eyes of a network that has learnt nothing


@dataclass(frozen=True)
class Choice:
    """The training that suits the data, and why."""

    experiment: Experiment
    reasons: tuple[str, ...]

    def as_row(self) -> dict[str, Any]:
        return {"noise_rate": self.experiment.noise_rate, "method": self.experiment.method, "reasons": self.reasons}


def share_held_out(samples: int) -> float:
    """How much of the training data is held out."""
    return round(min(0.2, max(0.1, HELD / samples)), 3)


def suited(asked: Experiment, model: str, free: Collection[str], samples: int) -> Experiment:
    """Settings that suit the network, where a person has named none (`free`)."""
    if model not in OWN or asked.data in SETTINGS:
        return asked
    epochs = OWN[model]["epochs"] if "epochs" in free else asked.epochs
    warmup = max(1, round(WARMUP * epochs)) if epochs > 1 else 0
    batch = min(max(round(samples / STEPS), BATCHES[0]), BATCHES[1])
    usual = {**OWN[model], "epochs": epochs, "warmup": warmup, "batch": batch}
    return replace(asked, **{name: usual[name] for name in free if name in usual})


def planned_trainings(
    asked: Experiment, samples: int, rates: Sequence[float] = ()
) -> tuple[Experiment, list[Experiment]]:
    """The training, with what it holds out, and the probes before it; a share that a person named stays.

    `rates`: learning rates to choose from, where there are few samples.
    """
    share = asked.valid or share_held_out(samples)
    probe = replace(probe_of(asked), valid=share)
    if asked.valid or round(share * samples) >= HELD:
        return replace(asked, valid=share), [probe]
    return asked, [replace(probe, fold=fold, lr=rate) for rate in rates or [asked.lr] for fold in range(FOLDS)]


def probe_of(asked: Experiment) -> Experiment:
    """The training that finds out how many labels are wrong; until the end of the warm-up it is the real one."""
    epochs = min(asked.epochs, asked.warmup + max(2, round(SHARE * asked.epochs)))
    drops = tuple(drop * asked.epochs / epochs for drop in asked.drops if drop * asked.epochs < epochs)
    return replace(
        asked,
        method="mentornet-prop",
        criterion=None,
        options=GUARDED,
        noise_rate=START,
        epochs=epochs,
        drops=drops,
        choose="last",
        scores=(),
    )


def second_look(asked: Experiment, probes: Sequence[Experiment], rate: float) -> list[Experiment]:
    """Where several probes found far less than they were told: as many again, told that, as long as the training.

    Told too much, they leave out so much that hard classes are not learnt and their labels look wrong.
    """
    if len(probes) == 1 or rate >= FAR_LESS:
        return []
    settings: dict[str, Any] = {"noise_rate": round(rate, 3), "epochs": asked.epochs, "drops": asked.drops}
    return [replace(probe, **settings) for probe in probes if probe.lr == asked.lr]


def plain_probes(asked: Experiment, probes: Sequence[Experiment]) -> list[Experiment]:
    """Five probes that believe all labels, but stop before they know them by heart; each holds out another fifth.

    Where classes look alike, selecting takes sides between them; what learnt plainly says how mixed they are.
    """
    short: dict[str, Any] = {"epochs": max(1, asked.warmup), "warmup": 0, "drops": asked.drops}
    plainly: dict[str, Any] = {"method": "default", "options": (), "noise_rate": 0.0, "lr": asked.lr}
    return [replace(probes[0], **short, **plainly, valid=1 / FOLDS, fold=fold) for fold in range(FOLDS)]


def cautious(rate: Interval) -> Interval:
    """The estimate that people are told: a little below the likeliest rate, the less so the more labels are wrong."""
    lower = max(0.0, rate.estimate - CAUTION * max(0.0, 1 - rate.estimate / START))
    return Interval(lower, min(lower, rate.low), rate.high)


def choice(asked: Experiment, seen: Unseen, method: str | None, before: Sequence[str] = ()) -> Choice:
    """What follows from what the probe saw; `method`: the one that a person insists on; `before`: earlier reasons."""
    rate = round(seen.rate.estimate, 3)
    told = f"about {spoken(rate)} of the labels look wrong ({spoken(seen.rate.low)} to {spoken(seen.rate.high)})"
    reasons = [*before, f"noise rate {rate:g}: on samples that were held out, {told}"]
    if method is not None:
        reasons.append(f"method {method}: as asked")
        return Choice(replace(asked, method=method, noise_rate=rate), tuple(reasons))
    dominant = seen.chance <= seen.rate.estimate / 2
    chosen = "mentornet-prop" if dominant else "mentornet"
    if rate < CLEAN:
        reasons.append(f"method {chosen}: with so few wrong labels nearly everything is learnt from")
    elif dominant:
        reasons.append(f"method {chosen}: wrong labels come from certain classes, which penalty labels keep out")
    else:
        reasons.append(f"method {chosen}: wrong labels come from all classes alike, and penalty labels would not help")
    settled = replace(asked, method=chosen, criterion=None, noise_rate=rate, options=GUARDED)
    return Choice(settled, tuple(reasons))


def longer(plain: Sequence[Experiment], asked: Experiment) -> list[Experiment]:
    """The same probes, but as long as the training: what is hard to tell apart is not learnt in a short one."""
    return [replace(probe, epochs=asked.epochs) for probe in plain]


def usual_plain_probes(asked: Experiment, probes: Sequence[Experiment]) -> list[Experiment]:
    """Those that are trained as a rule: where samples are many, the first mostly say that others are not needed."""
    plain = plain_probes(asked, probes)
    return plain if len(probes) > 1 else [plain[0], *longer(plain[:1], asked)]


def last_of(selecting: Experiment, corrected: Path) -> Experiment:
    """The training whose model is delivered: plain, of all samples, from labels that were corrected."""
    plainly: dict[str, Any] = {"method": "default", "criterion": None, "options": (), "noise_rate": 0.0}
    return replace(selecting, **plainly, corrected=str(corrected), valid=0.0, choose="last", scores=())


def spoken(share: float) -> str:
    return f"{100 * share:.1f}%"


def says_one_class(samples: Mapping[str, Array], classes: Sequence[str]) -> str:
    """The class that the network says of nearly every sample, though their labels are of others too; else nothing."""
    said, given = (
        np.bincount(each, minlength=len(classes)) / len(each) for each in (samples["likeliest"][:, 0], samples["label"])
    )
    only = int(said.argmax())
    return classes[only] if said[only] > NEARLY_ALL and given[only] < NEARLY_ALL**2 else ""


def several(probes: Sequence[Experiment]) -> str:
    """The probes in words."""
    lengths = " and ".join(str(epochs) for epochs in dict.fromkeys(probe.epochs for probe in probes))
    return f"{f'{len(probes)} probes' if len(probes) > 1 else 'a probe'} of {lengths} epochs"
