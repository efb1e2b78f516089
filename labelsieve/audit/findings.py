"""Findings of an audit: the judgment of every label, a reason for each in words, and a verdict on all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labelsieve.audit.estimate import Interval, Noise, estimate_in_sample_noise, reconcile
from labelsieve.audit.guesses import Array, Guesses
from labelsieve.audit.others import OtherIssues, conflicting, twins, verdict_on
from labelsieve.audit.others import remarks as remarks_on
from labelsieve.audit.posterior import estimate_label_given_true, label_probability, most_probable_others
from labelsieve.audit.quality import THRESHOLD, Judged, judge_labels
from labelsieve.text import listed, percent

MARGIN_WEIGHT = 0.25  # of the log-odds of the training margin (docs/decisions/023)
MIN_SHARE = 1e-6  # before taking log-odds
COMMON_CONFUSION = 0.05  # share of a label's samples that seem to be one other class, from which it is reported
MUTUAL_CONFUSION = 0.25  # relative size of the opposite confusion, from which both directions are reported
CLEAN_BELOW = 0.02  # lower end of the noise rate, below which labels count as clean if the estimate is low, too
CLEAN_UP_TO = 0.1  # upper end of the range, from which labels are not called clean, nor the wrong ones few
IMPLAUSIBLE_RATE = 0.5  # noise rate above which a weak model is the likelier explanation
UNSURE_BELOW = 0.5  # predicted probability below which the model is called unsure
WEAK_MODEL = 1 / 3  # error on correct labels, from which a model is too weak to judge labels
NEAR_CHANCE = 0.85  # of the error of always predicting the most common label, likewise
CONTRADICTION = 2.0  # factor between estimate and suspects from which they contradict each other
NEGLIGIBLE = 0.05  # unless they differ by less than this share of the samples
FEWEST_UNDECIDED = 20  # labels that show whether a model is weak: one or two may be wrong by chance
FEWEST_LEFT = 10  # samples of a class after correction, below which the model has probably not learned it
PRINTED_LOST = 5  # names of classes in a sentence
MANY_ON_HARD_SAMPLES = 0.2  # share of the wrong labels that depend on the sample, from which it is reported
DECIDED = "You decided on this label."


@dataclass(frozen=True)
class Findings:
    """Result of an audit; arrays are in the order of the data."""

    classes: Sequence[str]
    ids: Sequence[str]  # (n)
    labels: Array  # (n)
    suggested: Array  # (n)  the label itself if no class is more likely
    quality: Array  # (n)  0 to 1, low is suspicious
    issues: Array  # (n) bool: more likely wrong than right
    why: Sequence[str]  # (n)
    noise: Noise
    trusts_labels: bool = False  # the network was trained on all labels alike and may have memorized wrong ones
    held_out: int = 0  # samples that the overall rate was estimated from; 0: all
    decided: Array | None = None  # (n) bool: a person decided on the label
    given_rate: float = 0.0  # noise rate that the user passed to the training
    others: OtherIssues | None = None  # near-duplicates and outliers, if the samples have features
    held_out_error: float | None = None  # share of labels that a model which did not learn them predicts differently
    held_out_rate: float | None = None  # noise rate of these labels, if a person decided on labels. Default: `noise`
    before: Array | None = None  # (n) labels before the decisions, if they are known

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def order(self) -> Array:
        """Return the positions of the samples, the most suspicious first."""
        return np.argsort(self.quality, kind="stable")

    @cached_property
    def conflicting(self) -> Array:
        """Return which samples (n) are near-duplicates of samples with another label."""
        return np.zeros(len(self), bool) if self.others is None else conflicting(self.others.groups, self.labels)

    @cached_property
    def twins(self) -> Array:
        """Return a near-duplicate of each sample (n), with another label if there is one; -1 without any."""
        return np.full(len(self), -1) if self.others is None else twins(self.others, self.labels)

    @property
    def verdict(self) -> str:
        """Return the share of wrong labels, what to do, and what else was found, in a few sentences."""
        besides = verdict_on(self.others, self.labels) if self.others else ""
        lost = "" if self.doubt else lost_remark(self.classes, self.lost_classes)
        parts = (self.doubt, self._verdict_on_labels, lost, besides)
        return " ".join(part for part in parts if part)

    @property
    def doubt(self) -> str:
        """Return why these findings must not be applied unseen; empty if nothing speaks against it."""
        rate = self.noise.rate.estimate
        return doubt_about(rate, self.issues, self.labels, self.held_out_error, self.held_out_rate)

    @property
    def _verdict_on_labels(self) -> str:
        """Return the share of wrong labels and what to do."""
        rate, issues = self.noise.rate, int(self.issues.sum())
        if rate.low < CLEAN_BELOW and rate.estimate < 2.5 * CLEAN_BELOW:
            return _clean_verdict(rate, issues, self.trusts_labels, self.given_rate)
        about = "At least" if self.trusts_labels else "About"
        share = f"{about} {percent(rate.estimate)} of the {len(self):,} labels look wrong (range {span(rate)})."
        suspects = _suspects(issues, len(self), rate.estimate)
        if self.noise.sample_dependent >= MANY_ON_HARD_SAMPLES:
            hard = percent(self.noise.sample_dependent)
            share += f" About {hard} of them may be correct labels of samples that are hard to tell apart."
            suspects = f"{_marked(issues)}: look at them before you accept corrections."
        if rate.estimate > IMPLAUSIBLE_RATE:
            advice = "Either most labels are wrong or the model is too weak to judge them: check some samples first."
        else:
            advice = _confusion(self.noise.matrix, self.classes, np.bincount(self.labels, minlength=len(self.classes)))
        return f"{share} {suspects} {advice}"

    @property
    def basis(self) -> str:
        """Return how overall rate and class shares were estimated; empty if both come from all samples."""
        if not self.held_out:
            return ""
        if self.held_out == len(self):
            source, used = "by models that were not trained on the labels they judged", "also use the delivered model"
        else:
            source, used = f"from the {self.held_out:,} samples that the model was not trained on", "use all samples"
        return (
            f"The overall rate of {percent(self.noise.rate.estimate)} is estimated {source}. The class shares {used} "
            "and are scaled to add up to this rate."
        )

    @cached_property
    def corrected(self) -> Array:
        """Return the labels (n) with every issue replaced by the suggestion, except in lost classes."""
        return np.where(self.issues & ~np.isin(self.labels, self.lost_classes), self.suggested, self.labels)

    @cached_property
    def lost_classes(self) -> Array:
        """Return the numbers of the classes that corrections would leave almost empty (`lost_classes`)."""
        return lost_classes(self.labels, np.where(self.issues, self.suggested, self.labels), len(self.classes))

    @property
    def unreliable_classes(self) -> Array:
        """Return the numbers of the classes that a network trained from scratch has probably not learned.

        They are lost, or most of their labels are issues, at twice the overall share.
        """
        total = np.bincount(self.labels, minlength=len(self.classes))
        shares = np.bincount(self.labels, self.issues, len(self.classes)) / np.maximum(total, 1)
        doubted = np.flatnonzero(shares > max(IMPLAUSIBLE_RATE, 2 * self.issues.mean()))
        return np.union1d(self.lost_classes, doubted)

    @property
    def training_labels(self) -> Array:
        """Return the corrected labels (n), but with the given labels for unreliable classes, or for all if in doubt."""
        if self.doubt:
            return self.labels
        return np.where(np.isin(self.labels, self.unreliable_classes), self.labels, self.corrected)


def lost_classes(labels: Array, corrected: Array, num_classes: int) -> Array:
    """Return the classes that corrections would leave with few samples, and with less than half of those they had.

    A model has probably not learned such a class, so that it calls all its labels wrong. A class in which many labels
    are wrong keeps more samples than that, unless it is small.
    """
    before, after = (np.bincount(each, minlength=num_classes) for each in (labels, corrected))
    return np.flatnonzero((after < FEWEST_LEFT) & (2 * after < before))


def lost_remark(classes: Sequence[str], lost: Array) -> str:
    """Return a sentence on classes that corrections would leave almost empty; empty without any."""
    if not len(lost):
        return ""
    return (
        f"Most labels of {_names(classes, lost)} look wrong, and correcting them would leave almost no samples: the "
        f"model has probably not learned {_these(lost)}, so these labels are not corrected. Check them, and add "
        "samples."
    )


def unreliable_remark(classes: Sequence[str], unreliable: Array) -> str:
    """Return a warning about classes whose labels a training does not correct; empty without any."""
    if not len(unreliable):
        return ""
    return (
        f"warning: most labels of {_names(classes, unreliable)} look wrong; the model may not have learned "
        f"{_these(unreliable)}, so these labels are not changed"
    )


def _names(classes: Sequence[str], places: Array) -> str:
    return listed((classes[place] for place in places), PRINTED_LOST)


def _these(places: Array) -> str:
    return "this class" if len(places) == 1 else "these classes"


def doubt_about(
    rate: float, issues: Array, labels: Array, held_out_error: float | None, held_out_rate: float | None = None
) -> str:
    """Return why an audit must not be applied unseen, in a sentence; empty if nothing speaks against it.

    Args:
        rate: Estimated share of wrong labels.
        issues: (n) labels that are more likely wrong than right.
        labels: (n) given labels.
        held_out_error: Share of labels that a model which did not learn them predicts differently.
        held_out_rate: Estimated share of wrong labels among these, if a person decided on labels. Default: `rate`.
    """
    held_out_rate = rate if held_out_rate is None else held_out_rate
    by_chance = 1 - np.bincount(labels).max() / len(labels)
    suspects = float(issues.mean())
    if held_out_error is not None and (
        held_out_error - held_out_rate > WEAK_MODEL * (1 - held_out_rate)
        or held_out_error > NEAR_CHANCE * by_chance > 0
    ):
        return (
            f"The model is too weak to judge these labels: it predicts {percent(held_out_error)} of those it has not "
            "learned differently. Nothing is corrected; check samples yourself, or train a better model."
        )
    low, high = sorted((rate, suspects))
    if high > CONTRADICTION * low and high - low > NEGLIGIBLE:
        return (
            f"These findings contradict each other: {percent(rate)} of the labels are estimated to be wrong, but "
            f"{percent(suspects)} look wrong one by one. Nothing is corrected; check samples yourself."
        )
    return ""


def findings_from_guesses(
    guesses: Guesses,
    classes: Sequence[str],
    ids: Sequence[str] | None = None,
    *,
    training: tuple[Array, Array] | None = None,
    remarks: Sequence[str] | None = None,
    trusts_labels: bool = False,
    rate: Interval | None = None,
    held_out: int = 0,
    out_of_sample: bool = False,
    given_rate: float = 0.0,
    second: Guesses | None = None,
    others: OtherIssues | None = None,
) -> Findings:
    """Judge every label; labels that a person decided on are correct.

    Args:
        ids: (n) names of the samples. Default: their positions.
        training: Mean margin (n) of each sample during training, and how often each was seen (n); used if the
            classifier was trained on the labels.
        remarks: (n) sentences to append to the reasons, or empty strings.
        rate: Noise rate, if it is known better from held-out samples; class shares are scaled to add up to it.
        out_of_sample: Whether the classifier was not trained on the labels that it judges.
        second: Guesses about true classes of a second classifier, which learned corrected labels (`judge_labels`).
        others: Near-duplicates and outliers. They are reported, but do not change the quality of a label.
    """
    current = guesses if second is None else second  # a person may have changed labels since the first guesses
    labels, decided = current.labels, current.decided
    learned = second is None and not out_of_sample
    judged = _judge_learned_labels(guesses, training, rate) if learned else judge_labels(guesses, second, rate)
    shown = guesses if second is None else judged.guesses  # whose probabilities the reasons follow
    quality = judged.quality if decided is None else np.where(decided, 1.0, judged.quality)
    issues = quality < THRESHOLD
    other = most_probable_others(judged.guesses, judged.label_given)
    likelihood = np.where(shown.likeliest == other[:, None], shown.likelihood, 0).sum(1)  # of the other class
    ids = ids if ids is not None else [str(index) for index in range(len(labels))]
    if others is not None:
        pairs = zip(remarks or [""] * len(labels), remarks_on(others, labels, classes, ids), strict=True)
        remarks = [f"{remark} {besides}".strip() for remark, besides in pairs]
    return Findings(
        classes=classes,
        ids=ids,
        labels=labels,
        suggested=np.where(issues | (likelihood > shown.confidence), other, labels),
        quality=quality,
        issues=issues,
        why=reasons(shown, other, likelihood, issues, classes, remarks),
        noise=judged.noise,
        trusts_labels=trusts_labels,
        held_out=held_out,
        decided=decided,
        given_rate=given_rate,
        others=others,
        held_out_error=None if learned else held_out_error(guesses),
        held_out_rate=judged.first_rate,
        before=guesses.labels if decided is not None and guesses.decided is None else None,
    )


def _judge_learned_labels(guesses: Guesses, training: tuple[Array, Array] | None, rate: Interval | None) -> Judged:
    """Judge the labels that a model has learned; the arguments are those of `findings_from_guesses`."""
    label_given = estimate_label_given_true(guesses)
    quality, noise = label_probability(guesses, label_given), estimate_in_sample_noise(guesses)
    if training is not None:
        quality = add_training_margin(quality, *training)
    if guesses.decided is not None:
        quality = np.where(guesses.decided, 1.0, quality)
    if rate is not None:
        rate = rate._replace(high=max(rate.high, float((quality < THRESHOLD).mean())))  # the range includes the issues
        noise = reconcile(noise, rate, np.bincount(guesses.labels, minlength=guesses.num_classes))
    return Judged(guesses, label_given, quality, noise, None)


def held_out_error(guesses: Guesses) -> float:
    """Return the share of undecided labels that out-of-sample guesses predict differently; 0 if they are too few."""
    judged = guesses.undecided
    return float((judged.likeliest[:, 0] != judged.labels).mean()) if len(judged) >= FEWEST_UNDECIDED else 0.0


def add_training_margin(quality: Array, margin: Array, seen: Array) -> Array:
    """Add the mean training margin (n), from -1 to 1, to the log-odds of the quality (n) of seen samples."""
    odds = _log_odds(quality) + np.where(seen > 0, MARGIN_WEIGHT * _log_odds((1 + margin) / 2), 0.0)
    return 1 / (1 + np.exp(-odds))


def _log_odds(share: Array) -> Array:
    """Return log(share / (1 - share))."""
    share = np.clip(share.astype(np.float64), MIN_SHARE, 1 - MIN_SHARE)
    return np.log(share / (1 - share))


def _suspects(issues: int, samples: int, rate: float) -> str:
    """Return the number of issues in a sentence that agrees with the estimated rate."""
    if issues > rate * samples and percent(issues / samples) != percent(rate):
        return f"{_marked(issues)}, more than estimated, so some of them are probably correct."
    return f"{issues:,} {'label is' if issues == 1 else 'labels are'} more likely wrong than right."


def _marked(issues: int) -> str:
    return "1 label is marked as suspect" if issues == 1 else f"{issues:,} labels are marked as suspect"


def _clean_verdict(rate: Interval, issues: int, trusts_labels: bool, given_rate: float) -> str:
    """Return the verdict on labels that look clean."""
    if trusts_labels:
        return (
            "The labels look clean to this model, but it was trained to fit all of them and may have memorized wrong "
            "ones. To be sure, train with --noise-rate auto and audit that run."
        )
    if given_rate > rate.high:
        return (
            f"At most {percent(rate.high)} of the labels look wrong to this model, but the noise rate was given as "
            f"{percent(given_rate)}. A model does not detect wrong labels that it has memorized: there may be more."
        )
    about, high = percent(rate.estimate), percent(rate.high)
    most = high if high.startswith("under") else f"at most {high}"
    if not issues and rate.high < CLEAN_UP_TO:
        return f"The labels look clean: {most} are wrong. No correction is needed."
    if not issues:
        return (
            f"No single label looks wrong, but up to {high} of the labels may be: with so few samples, or with classes "
            "so similar, the estimate is uncertain."
        )
    if rate.high < CLEAN_UP_TO:
        found = f"Few labels look wrong: {most if about == high else f'{about}, {most}'}."
    else:
        found = f"About {about} of the labels look wrong, but up to {high} may be."
    if issues == 1:
        return f"{found} 1 label is more likely wrong than right; it may be a mistake of the model."
    return f"{found} {issues:,} labels are more likely wrong than right; some may be mistakes of the model."


def _confusion(matrix: Array, classes: Sequence[str], sizes: Array) -> str:
    """Return the most common confusion of two classes in a sentence; `sizes` (K) is the number of samples by label."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    common = np.where(wrong >= COMMON_CONFUSION, wrong, 0) * sizes[:, None]
    if not common.any():
        return "No class stands out as the source of wrong labels."
    label, true = divmod(int(common.argmax()), len(wrong))
    share, opposite = wrong[label, true], wrong[true, label]
    one, other = classes[label], classes[true]
    if opposite < MUTUAL_CONFUSION * share:
        return f"Most common confusion: about {percent(share)} of the samples labelled {one} seem to be {other}."
    return (
        f"Most common confusion: {one} and {other}, in both directions (about {percent(share)} of the samples labelled "
        f"{one}, {percent(opposite)} of those labelled {other})."
    )


def reasons(
    guesses: Guesses,
    other: Array,
    likelihood: Array,
    issues: Array,
    classes: Sequence[str],
    remarks: Sequence[str] | None = None,
) -> list[str]:
    """Return for each sample why its label is suspicious or not, followed by its remark.

    `other` (n) is the most probable class besides the label, `likelihood` (n) its predicted probability.
    """
    decided = np.zeros(len(guesses), bool) if guesses.decided is None else guesses.decided
    columns = (guesses.labels, other, guesses.confidence, likelihood, issues, decided)
    rows = zip(*(column.tolist() for column in columns), remarks or [""] * len(guesses), strict=True)
    return [
        DECIDED if known else f"{reason(classes[y], classes[o], p, q, i)} {remark}".rstrip()
        for y, o, p, q, i, known, remark in rows
    ]


def reason(label: str, other: str, confidence: float, likelihood: float, issue: bool) -> str:
    """Return the reason for one sample.

    It quotes no probabilities of the model: the one that matters to people is the label quality.
    """
    if likelihood > confidence and not issue:
        return f"Looks more like {other} than {label}, but the label is still more likely right than wrong."
    if likelihood > confidence:
        unsure = f"No class fits well, but {other} fits better than {label}."
        return unsure if likelihood < UNSURE_BELOW else looks_like(label, other)
    if issue:
        return f"The model doubts that it is {label}; it may be {other}."
    return f"The model agrees that it is {label}."


def looks_like(label: str, other: str) -> str:
    """Return the plainest reason, which says no more than the given and the suggested label."""
    return f"Looks more like {other} than {label}."


def span(interval: Interval) -> str:
    """Return the range of an interval, such as "25% to 31%"."""
    return f"{percent(interval.low)} to {percent(interval.high)}"
