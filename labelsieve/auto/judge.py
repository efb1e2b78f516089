"""judges: the trainings that speak of a run's labels, and what they say of samples that they did not learn from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labelsieve.audit.guesses import Guesses, guesses_from_run, guesses_of, joined
from labelsieve.audit.held_out import Unseen, dense, in_share, label_likelihood, unseen_noise
from labelsieve.errors import InputError
from labelsieve.runs.read import AGAIN, HELD_OUT, LONGER, PLAIN, PROBE, Array, read_run, read_samples

FOLDS = 5  # probes that hold out a fifth each
CLEARLY = {PLAIN: 0.04, LONGER: 0.035}  # better must what selects foretell labels, in log-likelihood, to judge them
OF_WHAT_LACKS = 0.03  # and by this share of what the plain ones lack: where little is foretold, a little says little
FEWEST = 50  # held-out samples that an estimate can be made from
LEAST = 1e-12  # the product of two probabilities


class Opinion(NamedTuple):
    """What a run and its judges think of every sample."""

    guesses: Guesses
    training: tuple[Array, Array] | None  # the mean margin (n) while training, and how often each sample was seen
    unlearnt: bool  # no judge learnt from what it judges


def opinion_on(run: Path, samples: Mapping[str, Array], num_classes: int) -> Opinion:
    """What a finished run, from the statistics of its samples, and its probes think."""
    if (plainly := plain_guesses(run)) is not None:
        return Opinion(plainly, None, unlearnt=True)
    guesses = second_opinion(guesses_from_run(samples, num_classes), judges(run), samples["split"])
    return Opinion(guesses, (samples["mean_margin"], samples["seen"]), unlearnt=False)


def judges(run: Path) -> list[Path]:
    """The finished trainings whose held-out samples speak for a run: its own, if it held some out, else its probes."""
    lr = read_run(run).spec["lr"]
    for marks in ([run / "done"], *(sorted((run / folder).glob("*/done")) for folder in (AGAIN, PROBE))):
        found = [mark.parent for mark in marks if own_held_out(mark.parent) is not None]
        if found:
            return [folder for folder in found if read_run(folder).spec["lr"] == lr]
    return []


def plain_guesses(run: Path) -> Guesses | None:
    """What plain probes say of samples that each did not learn from, unless the others foretell labels clearly better.

    Short ones come before longer ones. A sample that no fold held out has what the first says.
    """
    for folder in (PLAIN, LONGER):
        folds = held_out_in_turn(run, folder)
        if folds is not None and len(folds.every) == FOLDS and not selecting_is_clearly_better(run, folder):
            return replace(guesses_of(folds.labels, folds.probs), decided=folds.decided)
    return None


def selecting_is_clearly_better(run: Path, folder: str) -> bool:
    """Whether what selects foretells labels clearly better than a folder's plain probes, where both held them out."""
    folds, selecting = held_out_in_turn(run, folder), noise_among(held_out_guesses(judges(run)))
    if folds is None or selecting is None:
        return True
    unknown = np.any(folds.every, axis=0) & np.any([held_out_by(judge) for judge in judges(run)], axis=0)
    if folds.decided is not None:
        unknown &= ~folds.decided
    plain = label_likelihood(folds.labels[unknown], folds.probs[unknown])
    return clearly_better(selecting.likelihood, plain, CLEARLY[folder])


def clearly_better(likelihood: float, other: float, bound: float) -> bool:
    """Whether a mean log-likelihood is above another one by a bound, and by a share of what that one lacks."""
    return likelihood > max(other + bound, (1 - OF_WHAT_LACKS) * other)


class Folds(NamedTuple):
    """What the plain probes say."""

    labels: Array  # (n)
    probs: Array  # (n, K)  of a sample by the probe that held it out
    every: Sequence[Array]  # (n) bool for each probe: what it held out
    decided: Array | None  # (n) bool


def foretold(run: Path) -> float:
    """How well a finished plain training foretells the labels that it held out: their mean log-likelihood."""
    held = own_held_out(run)
    return -np.inf if held is None else label_likelihood(held.undecided.labels, dense(held.undecided))


def held_out_in_turn(run: Path, folder: str) -> Folds | None:
    """What the finished plain probes in a folder of a run say, each of what it held out; None if there are none."""
    probes = [mark.parent for mark in sorted((run / folder).glob("*/done"))]
    if not probes:
        return None
    classes = len(read_run(run).classes)
    guesses = [guesses_from_run(read_samples(probe) or {}, classes) for probe in probes]
    every = [held_out_by(probe) for probe in probes]
    probs = dense(guesses[0])
    for guess, held in zip(guesses, every, strict=True):
        probs[held] = dense(guess.at(held))
    return Folds(guesses[0].labels, probs, every, guesses[0].decided)


def held_out_by(run: Path) -> Array:
    """Which samples (n) a run held out."""
    held: Array = (read_samples(run) or {})["split"] == HELD_OUT
    return held


def held_out_noise(run: Path) -> Unseen:
    """The share of wrong labels among the samples that a run, or where it learnt from all its probes, held out."""
    return seen_by(judges(run) or [run])


def seen_by(runs: Sequence[Path]) -> Unseen:
    """The share of wrong labels that finished runs see among the samples that each held out."""
    held = held_out_guesses(runs)
    seen = noise_among(held)
    if seen is None:
        raise InputError(
            f"{runs[0]} held out {0 if held is None else len(held)} samples, too few to estimate a noise rate; "
            "say --noise-rate, or --valid"
        )
    return seen


def noise_among(held: Guesses | None) -> Unseen | None:
    """The same of guesses for held-out samples; None if these are too few. Labels that were decided on are right."""
    if held is None or len(held) < FEWEST:
        return None
    judged = held.undecided if len(held.undecided) >= FEWEST else held
    return in_share(unseen_noise(judged.labels, dense(judged)), len(judged) / len(held))


def held_out_guesses(runs: Sequence[Path]) -> Guesses | None:
    """What finished runs think of the samples that each held out."""
    found = [held for run in runs if (held := own_held_out(run)) is not None]
    return joined(found) if found else None


def own_held_out(run: Path) -> Guesses | None:
    """What one run thinks of the samples that it held out itself."""
    samples = read_samples(run) or {}
    held = samples["split"] == HELD_OUT if "split" in samples else np.zeros(0, bool)
    return guesses_from_run(samples, len(read_run(run).classes)).at(held) if held.any() else None


def second_opinion(guesses: Guesses, runs: Sequence[Path], split: Array) -> Guesses:
    """The guesses of a run, each with that of the probe that held the sample out, where it learnt from all samples.

    The mean of their log-probabilities: what the run has learnt by heart, the probe has not.
    """
    if (split == HELD_OUT).any() or not runs:
        return guesses
    probs = dense(guesses)
    for run in runs:
        samples = read_samples(run) or {}
        held = samples["split"] == HELD_OUT
        other = dense(guesses_from_run(samples, guesses.num_classes).at(held))
        probs[held] = np.sqrt(np.maximum(probs[held] * other, LEAST))
    return replace(guesses_of(guesses.labels, probs / probs.sum(1, keepdims=True)), decided=guesses.decided)
