"""Judges: the finished trainings of an automatic run whose predictions for held-out samples say which labels are wrong.

Three kinds of trainings can judge: the run itself (if it held samples out), the selecting probes, and the plain judges,
which were trained without selection. `opinion_on` decides between them: plain judges are used unless the selecting
trainings predict held-out labels clearly better (decisions 28, 31 and 32).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labelsieve.audit.estimate import HARD_SAMPLES, HIGH_RATE, Interval
from labelsieve.audit.guesses import Guesses, concatenated, guesses_from_probs, guesses_from_run
from labelsieve.audit.held_out import (
    HeldOutNoise,
    dense_probs,
    estimate_held_out_noise,
    in_larger_set,
    label_log_likelihood,
)
from labelsieve.errors import InputError
from labelsieve.runs.read import (
    AGAIN,
    HELD_OUT,
    LONGER,
    PLAIN,
    PROBE,
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
SMALLEST = 1e-12  # lower bound for the product of two probabilities


class _Opinion(NamedTuple):
    """Predictions of a run and its judges for every sample."""

    guesses: Guesses
    second: Guesses | None  # about true classes, of heads that learned corrected labels
    training: tuple[Array, Array] | None  # mean margin (n) during training, and how often each sample was seen
    out_of_sample: bool  # no judge was trained on the samples that it judges


def opinion_on(run: Path, samples: Mapping[str, Array], num_classes: int) -> _Opinion:
    """Return the predictions by which the labels of a finished run are judged.

    Args:
        run: The folder of the run.
        samples: Its per-sample statistics.
    """
    if (judgment := read_judgment(run)) is not None:
        first, second = (_with_judged(samples, judgment, name, num_classes) for name in ("first", "second"))
        return _Opinion(first, second, None, out_of_sample=True)
    if (plain := plain_guesses(run)) is not None:
        return _Opinion(plain, None, None, out_of_sample=True)
    guesses = combine_with_probes(guesses_from_run(samples, num_classes), selecting_judges(run), samples["split"])
    return _Opinion(guesses, None, (samples["mean_margin"], samples["seen"]), out_of_sample=False)


def _with_judged(samples: Mapping[str, Array], judgment: Mapping[str, Array], name: str, num_classes: int) -> Guesses:
    """Return the out-of-fold guesses of the training samples, and those of the delivered head for test samples."""
    guesses = guesses_from_run(samples, num_classes)
    trained = samples["split"] == TRAINED
    judged = {}
    for field in ("confidence", "likeliest", "likelihood"):
        judged[field] = getattr(guesses, field).copy()
        judged[field][trained] = judgment[f"{name}/{field}"]
    return replace(guesses, **judged)


def selecting_judges(run: Path) -> list[Path]:
    """Return the finished selecting trainings with held-out samples: the run itself, else its probes."""
    lr = read_run(run).spec["lr"]
    for marks in ([run / "done"], *(sorted((run / folder).glob("*/done")) for folder in (AGAIN, PROBE))):
        found = [mark.parent for mark in marks if _held_out_guesses_of(mark.parent) is not None]
        if found:
            return [folder for folder in found if read_run(folder).spec["lr"] == lr]
    return []


def plain_guesses(run: Path) -> Guesses | None:
    """Return the out-of-fold predictions of the plain judges; None unless they should judge.

    Short judges come before long ones. A sample that no fold held out gets the prediction of the first judge.
    """
    for folder in (PLAIN, LONGER):
        folds = _out_of_fold(run, folder)
        if folds is not None and len(folds.held_out) == FOLDS and not selecting_is_clearly_better(run, folder):
            return replace(guesses_from_probs(folds.labels, folds.probs), decided=folds.decided)
    return None


def selecting_is_clearly_better(run: Path, folder: str) -> bool:
    """Return whether the selecting trainings predict held-out labels clearly better than a folder of plain judges."""
    folds, selecting = _out_of_fold(run, folder), noise_of_guesses(held_out_guesses(selecting_judges(run)))
    if folds is None or selecting is None:
        return True
    both = np.any(folds.held_out, axis=0) & np.any([_held_out_by(judge) for judge in selecting_judges(run)], axis=0)
    if folds.decided is not None:
        both &= ~folds.decided
    return is_clearly_better(selecting.log_likelihood, label_log_likelihood(folds.labels[both], folds.probs[both]))


def is_clearly_better(log_likelihood: float, other: float) -> bool:
    """Return whether a mean log-likelihood is clearly above another, in absolute and in relative terms."""
    return log_likelihood > max(other + CLEAR_ADVANTAGE, (1 - CLEAR_SHARE) * other)


class _Folds(NamedTuple):
    """Out-of-fold predictions of plain judges."""

    labels: Array  # (n)
    probs: Array  # (n, K)  of each sample by the judge that held it out
    held_out: Sequence[Array]  # (n) bool for each judge
    decided: Array | None  # (n) bool


def _out_of_fold(run: Path, folder: str) -> _Folds | None:
    """Return the predictions of the finished plain judges in a folder, each for the samples that it held out."""
    judges = [mark.parent for mark in sorted((run / folder).glob("*/done"))]
    if not judges:
        return None
    classes = len(read_run(run).classes)
    guesses = [guesses_from_run(read_samples(judge) or {}, classes) for judge in judges]
    held_out = [_held_out_by(judge) for judge in judges]
    probs = dense_probs(guesses[0])
    for guess, held in zip(guesses, held_out, strict=True):
        probs[held] = dense_probs(guess.at(held))
    return _Folds(guesses[0].labels, probs, held_out, guesses[0].decided)


def held_out_log_likelihood(run: Path) -> float:
    """Return the mean log-likelihood of the held-out labels under a finished plain training."""
    held = _held_out_guesses_of(run)
    return -np.inf if held is None else label_log_likelihood(held.undecided.labels, dense_probs(held.undecided))


def _held_out_by(run: Path) -> Array:
    """Return which samples (n) a run held out."""
    held: Array = (read_samples(run) or {})["split"] == HELD_OUT
    return held


def noise_of_run(run: Path) -> HeldOutNoise:
    """Estimate the noise from the samples held out by a run or, if it held out none, by its probes."""
    return noise_from_runs(selecting_judges(run) or [run])


def noise_from_runs(runs: Sequence[Path]) -> HeldOutNoise:
    """Estimate the noise from the samples that each of the finished runs held out."""
    held = held_out_guesses(runs)
    noise = noise_of_guesses(held)
    if noise is None:
        raise InputError(
            f"{runs[0]} held out {0 if held is None else len(held)} samples, too few to estimate the noise rate; "
            "set --noise-rate, or a larger --valid"
        )
    return noise


def noise_of_guesses(held: Guesses | None) -> HeldOutNoise | None:
    """Estimate the noise from predictions for held-out samples; None if they are too few.

    Labels decided by a reviewer count as correct.
    """
    if held is None or len(held) < FEWEST:
        return None
    judged = held.undecided if len(held.undecided) >= FEWEST else held
    return in_larger_set(estimate_held_out_noise(judged.labels, dense_probs(judged)), len(judged) / len(held))


def reported_rate(rate: Interval) -> Interval:
    """Return the noise rate to report: slightly lower than the estimate where few labels are wrong (decision 25)."""
    lower = max(0.0, rate.estimate - HARD_SAMPLES * max(0.0, 1 - rate.estimate / HIGH_RATE))
    return Interval(lower, min(lower, rate.low), rate.high)


def held_out_guesses(runs: Sequence[Path]) -> Guesses | None:
    """Return the predictions of finished runs for the samples that each held out."""
    found = [held for run in runs if (held := _held_out_guesses_of(run)) is not None]
    return concatenated(found) if found else None


def _held_out_guesses_of(run: Path) -> Guesses | None:
    samples = read_samples(run) or {}
    held = samples["split"] == HELD_OUT if "split" in samples else np.zeros(0, bool)
    return guesses_from_run(samples, len(read_run(run).classes)).at(held) if held.any() else None


def combine_with_probes(guesses: Guesses, probes: Sequence[Path], split: Array) -> Guesses:
    """Average the log-probabilities of a run that held nothing out with those of the probe that held each sample out.

    The run has memorized labels; the probe that held a sample out has not seen its label.
    """
    if (split == HELD_OUT).any() or not probes:
        return guesses
    probs = dense_probs(guesses)
    for probe in probes:
        samples = read_samples(probe) or {}
        held = samples["split"] == HELD_OUT
        other = dense_probs(guesses_from_run(samples, guesses.num_classes).at(held))
        probs[held] = np.sqrt(np.maximum(probs[held] * other, SMALLEST))
    return replace(guesses_from_probs(guesses.labels, probs / probs.sum(1, keepdims=True)), decided=guesses.decided)
