"""Judges: the finished trainings of an automatic run whose predictions for held-out samples say which labels are wrong.

Trainings that judge come in fives: each holds out another fifth of the samples, so that every label is judged by a
network that did not learn it. *Plain* judges were trained without selection, *selecting* ones with the noise rate that
the plain ones found. `judges_of` decides between them: plain judges are used unless the selecting ones predict
held-out labels clearly better (decisions 28, 32 and 37). The judges of the *second round* learned the labels that the
first ones corrected, again without the fifth that they judge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labelsieve.audit.estimate import HARD_SAMPLES, HIGH_RATE, Interval
from labelsieve.audit.guesses import Guesses, guesses_from_run
from labelsieve.audit.held_out import (
    HeldOutNoise,
    dense_probs,
    estimate_held_out_noise,
    in_larger_set,
    label_log_likelihood,
)
from labelsieve.files import DONE
from labelsieve.runs.read import (
    HELD_OUT,
    PLAIN,
    SECOND,
    SELECTING,
    TRAINED,
    Array,
    read_judgment,
    read_run,
    read_samples,
)

FOLDS = 5  # trainings that each hold out one fifth
CLEAR_ADVANTAGE = 0.035  # minimum advantage in mean log-likelihood for the selecting trainings to judge
CLEAR_SHARE = 0.03  # and minimum advantage as a share of the plain judges' negative log-likelihood
FEWEST = 50  # held-out samples needed for an estimate


class _Opinion(NamedTuple):
    """Predictions of a run or its judges for every sample."""

    guesses: Guesses
    second: Guesses | None  # about true classes, of networks or heads that learned corrected labels
    training: tuple[Array, Array] | None  # mean margin (n) during training, and how often each sample was seen
    out_of_sample: bool  # no judge was trained on the samples that it judges


@dataclass(frozen=True)
class Judges:
    """Five finished trainings with the same settings, and what they predict for samples that they did not learn."""

    kind: str  # PLAIN, SELECTING or SECOND
    lr: float
    guesses: Guesses  # (n)  of each sample by the training that held it out; of test samples by the first
    held_out: Array  # (n) bool: False for test samples

    @cached_property
    def noise(self) -> HeldOutNoise:
        """The noise in the held-out labels, if the predictions are about true classes."""
        return _noise_of(self.guesses.at(self.held_out))

    @cached_property
    def log_likelihood(self) -> float:
        """The mean log-likelihood of the held-out labels; selecting trainings predict true classes, not labels."""
        return _log_likelihood(self.guesses.at(self.held_out)) if self.kind == PLAIN else self.noise.log_likelihood


def opinion_on(run: Path, samples: Mapping[str, Array], num_classes: int) -> _Opinion:
    """Return the predictions by which the labels of a finished run are judged.

    Args:
        run: The folder of the run.
        samples: Its per-sample statistics.
    """
    if (judgment := read_judgment(run)) is not None:
        first, second = (_with_judged(samples, judgment, name, num_classes) for name in ("first", "second"))
        return _Opinion(first, second, None, out_of_sample=True)
    if (judges := judges_of(run)) is not None:
        again = best_judges(run, SECOND)
        return _Opinion(judges.guesses, None if again is None else again.guesses, None, out_of_sample=True)
    guesses = guesses_from_run(samples, num_classes)
    return _Opinion(guesses, None, (samples["mean_margin"], samples["seen"]), out_of_sample=False)


def _with_judged(samples: Mapping[str, Array], judgment: Mapping[str, Array], name: str, num_classes: int) -> Guesses:
    """Return the out-of-fold guesses of the training samples, and those of the delivered head for test samples.

    The first round may have judged the labels before the decisions of a person; these guesses have no decided labels.
    """
    if name == "first" and "before" in samples:
        samples = {key: value for key, value in samples.items() if key != "decided"} | {"label": samples["before"]}
    guesses = guesses_from_run(samples, num_classes)
    trained = samples["split"] == TRAINED
    confidence, *kept = (judgment[f"{name}/{part}"] for part in ("confidence", "likeliest", "likelihood"))
    return guesses.replaced(trained, Guesses(guesses.labels[trained], confidence, kept[0], kept[1], num_classes))


def judges_of(run: Path) -> Judges | None:
    """Return the judges of the labels of a run in the first round; None if it has none."""
    plain, selecting = best_judges(run, PLAIN), best_judges(run, SELECTING)
    if plain is None or selecting is None:
        return plain
    return selecting if is_clearly_better(selecting.log_likelihood, plain.log_likelihood) else plain


def best_judges(run: Path, kind: str) -> Judges | None:
    """Return the five judges of a kind that predict held-out labels best, if there are several learning rates."""
    by_lr: dict[float, list[Path]] = {}
    marks = [mark for mark in (run / kind).glob(f"*/{DONE}") if mark.parent.name.isdecimal()]
    for mark in sorted(marks, key=lambda mark: int(mark.parent.name)):
        by_lr.setdefault(read_run(mark.parent, with_tables=False).spec["lr"], []).append(mark.parent)
    found = [_read_judges(kind, lr, folders) for lr, folders in by_lr.items() if len(folders) == FOLDS]
    return max(found, key=lambda judges: judges.log_likelihood) if len(found) > 1 else next(iter(found), None)


def _read_judges(kind: str, lr: float, folders: Sequence[Path]) -> Judges:
    """Read the predictions of five judges, each for the samples that it held out."""
    classes = len(read_run(folders[0], with_tables=False).classes)
    first, *others = (read_samples(folder) or {} for folder in folders)
    held_out = first["split"] == HELD_OUT
    joined = dict(first)
    for samples in others:
        held = samples["split"] == HELD_OUT
        held_out |= held
        for name in ("label", "confidence", "likeliest", "likelihood"):  # what is held out has its label as given
            joined[name] = np.where(held if joined[name].ndim == 1 else held[:, None], samples[name], joined[name])
    return Judges(kind, lr, guesses_from_run(joined, classes), held_out)


def is_clearly_better(log_likelihood: float, other: float) -> bool:
    """Return whether a mean log-likelihood is clearly above another, in absolute and in relative terms."""
    return log_likelihood > max(other + CLEAR_ADVANTAGE, (1 - CLEAR_SHARE) * other)


def held_out_log_likelihood(run: Path) -> float:
    """Return the mean log-likelihood of the held-out labels under a finished plain training."""
    held = held_out_guesses(run)
    return -np.inf if held is None else _log_likelihood(held)


def noise_of_guesses(held: Guesses | None) -> HeldOutNoise | None:
    """Estimate the noise from predictions for held-out samples; None if they are too few.

    Labels decided by a reviewer count as correct.
    """
    return None if held is None or len(held) < FEWEST else _noise_of(held)


def _noise_of(held: Guesses) -> HeldOutNoise:
    judged = _judged(held)
    return in_larger_set(estimate_held_out_noise(judged.labels, dense_probs(judged)), len(judged) / len(held))


def _log_likelihood(held: Guesses) -> float:
    judged = _judged(held)
    return label_log_likelihood(judged.labels, dense_probs(judged))


def _judged(held: Guesses) -> Guesses:
    """Return the guesses by which judges are compared: those about undecided labels, if there are any."""
    return held.undecided if len(held.undecided) else held


def rate_of_selecting(run: Path) -> Interval | None:
    """Return the noise rate that the selecting judges of a run show; None without such judges.

    They predict true classes, not labels. Where classes overlap, this tells wrong labels from hard samples better than
    plain judges can (decision 38).
    """
    judges = best_judges(run, SELECTING)
    return None if judges is None else reported_rate(judges.noise.rate)


def reported_rate(rate: Interval) -> Interval:
    """Return the noise rate to report: slightly lower than the estimate where few labels are wrong (decision 25)."""
    lower = max(0.0, rate.estimate - HARD_SAMPLES * max(0.0, 1 - rate.estimate / HIGH_RATE))
    return Interval(lower, min(lower, rate.low), rate.high)


def held_out_guesses(run: Path) -> Guesses | None:
    """Return the predictions of a finished run for the samples that it held out; None if it held out none."""
    samples = read_samples(run) or {}
    held = samples["split"] == HELD_OUT if "split" in samples else np.zeros(0, bool)
    return guesses_from_run(samples, len(read_run(run).classes)).at(held) if held.any() else None
