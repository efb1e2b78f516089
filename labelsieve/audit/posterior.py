"""Probability that each label is correct, by Bayes' rule, and the unmixing of predicted labels into true classes.

Bayes' rule. A classifier gives the probability p[j] that class j is the true one, and T[y, j] = P(label y | true j)
says how often class j is labelled y. Then P(true class is y | label y) = p[y] T[y, y] / sum over j of p[j] T[y, j]. If
wrong labels come from one class (pair noise), that class gets more weight, as with a penalty label. If they come from
all classes alike, samples are ranked by the confidence in the label.

Unmixing. A classifier that was trained on noisy labels predicts labels: q[y] = sum over j of T[y, j] p[j]. T is counted
among the samples with the highest probability for each class; among all samples, classes that look alike would count
as wrong labels. Then p is deconvolved from q. Before that, q is calibrated with the temperature that maximizes the
likelihood of the labels: a network that stopped early is underconfident, one that trained for long is overconfident.
Unmixing needs predictions for samples whose labels were not trained on, as in cross-validation.

Second round. The probabilities of the true classes can be the targets of a second classifier, which then predicts true
classes instead of labels. Its predictions are calibrated with the same T, and Bayes' rule is applied once more.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from labelsieve.audit.guesses import Array, Guesses, descending, each_in_threads, evenly_spaced, stable_order

ROUNDS = 3  # re-estimations of the joint; more would trust the classifier too much (docs/decisions/023)
PRIOR = 5.0  # pseudo-count of each true class, spread evenly over all labels
MAX_SAMPLES = 200_000  # for estimating the joint
CONFIDENT_SHARE = 0.25  # most confident samples per class, relative to the number of samples with that label
CONFIDENT_COUNT = 50  # a small class contributes this many to a strong classifier, but at most half of its samples
STRONG_UP_TO, WEAK_FROM = 0.24, 0.28  # share of the correct labels that a classifier contradicts
UNMIXING_PRIOR = 1.0  # pseudo-count of each true class, spread like the labels of all classes
UNMIXING_ROUNDS = 10  # iterations of the deconvolution
TEMPERATURES = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0)
FEWEST_CORRECT = 0.02  # share of correct labels that is assumed at least
MIN_PROBABILITY = 1e-7
UNMIXING_SAMPLES = 20_000  # for finding the temperature
RACING_SAMPLES, RACING_ERRORS = 2000, 6.0  # temperatures that are this many standard errors behind are dropped
BLOCK = 8192  # samples processed at a time: fewer cost more calls, more miss the cache
MAX_SHIFT, MIN_ODDS = 80.0, 1e-30  # of log-odds
SHIFT_SAMPLES, SHIFT_STEPS, SHIFT_TOLERANCE = 20_000, 200, 1e-15
NEWTON_TOLERANCE = 1e-9  # of a step by Newton's method, which squares an error of this size


class _Groups(NamedTuple):
    """B samples whose label has the same place among their M most likely classes, and L = C + 1 groups of classes each.

    The groups are the label, the most likely other classes, and, as the last one, all remaining classes together. The
    samples are the last axis of all arrays, so that every operation runs along contiguous memory.
    """

    where: Array  # (B) positions of the samples
    place: int  # column of the label among the most likely classes; -1 if it is none of them
    classes: Array  # (C, B)
    probs: Array  # (C, B)
    remaining: int  # number of classes in the last group

    def ordered(self, values: Array) -> Array:
        """Return values of the classes (C, B) in the order of the most likely ones (M, B)."""
        if self.place < 0:
            return values[1:]
        return np.concatenate([values[1 : 1 + self.place], values[:1], values[1 + self.place :]])

    def calibrated(self, temperature: float) -> Array:
        """Return the probabilities of the groups (L, B) with their logits divided by the temperature."""
        left = np.maximum(1 - self.probs.sum(0), 0)
        probs = np.concatenate([self.probs, left[None] / max(self.remaining, 1)])
        logits = np.log(np.maximum(probs, MIN_PROBABILITY, out=probs), out=probs)
        logits /= temperature
        raised = np.exp(logits - logits.max(0))
        raised[-1] *= self.remaining
        return raised / raised.sum(0)

    def given(self, label_given: Array) -> Array:
        """Return P(label | true class) between the groups (L, L, B)."""
        count, samples = self.classes.shape
        given = np.empty((count + 1, count + 1, samples))
        given[:-1, :-1] = label_given.take(self.classes[:, None] * len(label_given) + self.classes)
        sums = label_given.sum(1)[self.classes] - given[:-1, :-1].sum(1)
        given[:-1, -1] = np.maximum(sums / max(self.remaining, 1), 0)  # the mean of the remaining classes
        given[-1] = np.maximum(1 - given[:-1].sum(0), 0)
        given[-1, -1] *= self.remaining > 0
        return given

    def bayes(self, label_given: Array) -> tuple[Array, Array]:
        """Return the probabilities of the classes (C, B) and of the remaining ones (B) given the labels."""
        given = label_given.take(self.classes[0] * len(label_given) + self.classes)
        possible = given > 0
        left = np.maximum(1 - np.where(possible, self.probs, 0).sum(0), 0)
        others = len(label_given) - possible.sum(0)
        rest = left * np.maximum(label_given.sum(1)[self.classes[0]] - given.sum(0), 0) / np.maximum(others, 1)
        weight = self.probs * given
        total = weight.sum(0) + rest
        total[total <= 0] = 1
        return weight / total, rest / total


def _each_block(guesses: Guesses, function: Callable[[_Groups], None]) -> None:
    """Call a function with blocks of samples whose label has the same place among their most likely classes."""
    kept = guesses.likeliest.shape[1]
    place = np.full(len(guesses), -1, np.int8)
    for column in range(kept):
        place[guesses.likeliest[:, column] == guesses.labels] = column
    parts = []
    for column in range(-1, kept):
        found = np.flatnonzero(place == column)
        parts += [(column, found[first : first + BLOCK]) for first in range(0, len(found), BLOCK)]

    def apply(part: tuple[int, Array]) -> None:
        column, index = part
        likeliest, likelihood = guesses.likeliest.take(index, 0), guesses.likelihood.take(index, 0)
        others = [each for each in range(kept) if each != column]
        classes = np.empty((1 + len(others), len(index)), np.int64)
        probs = np.empty(classes.shape)
        classes[0], probs[0] = guesses.labels[index], guesses.confidence[index]
        for row, other in enumerate(others, 1):
            classes[row], probs[row] = likeliest[:, other], likelihood[:, other]
        function(_Groups(index, column, classes, probs, guesses.num_classes - len(classes)))

    each_in_threads(apply, parts)


def label_probability(guesses: Guesses, label_given: Array | None = None) -> Array:
    """Return the probability (n) that each label is correct; P(label | true class) (K, K) is estimated if not given."""
    given = estimate_label_given_true(guesses) if label_given is None else label_given
    likely = np.empty(len(guesses))

    def judge(groups: _Groups) -> None:
        likely[groups.where] = groups.bayes(given)[0][0]

    _each_block(guesses, judge)
    return likely


def most_probable_others(guesses: Guesses, label_given: Array) -> Array:
    """Return the most probable class besides the label (n); the most likely class if no other is possible."""
    others = np.empty(len(guesses), np.int64)

    def choose(groups: _Groups) -> None:
        weight = groups.bayes(label_given)[0][1:]
        best = np.take_along_axis(groups.classes[1:], weight.argmax(0)[None], 0)[0]
        others[groups.where] = np.where(weight.max(0) > 0, best, guesses.likeliest[groups.where, 0])

    _each_block(guesses, choose)
    return others


def true_class_probs(guesses: Guesses, label_given: Array) -> Array:
    """Return the probabilities of all true classes (n, K) given the labels, as targets of a second classifier."""
    table = np.empty((len(guesses), guesses.num_classes), np.float32)

    def fill(groups: _Groups) -> None:
        weight, rest = groups.bayes(label_given)
        rows = np.repeat((rest / max(groups.remaining, 1)).astype(np.float32)[:, None], guesses.num_classes, axis=1)
        rows[np.arange(len(rows)), groups.classes] = weight
        table[groups.where] = rows / rows.sum(1, keepdims=True)

    _each_block(guesses, fill)
    if guesses.decided is not None:
        table[guesses.decided] = np.eye(guesses.num_classes, dtype=np.float32)[guesses.labels[guesses.decided]]
    return table


def with_mean_error(quality: Array, rate: float) -> Array:
    """Shift the log-odds of all label probabilities (n) by one number, so that the mean probability of error is `rate`.

    The order of the samples stays.
    """
    odds = np.log(np.maximum(quality, MIN_ODDS)) - np.log(np.maximum(1 - quality, MIN_ODDS))
    few = odds[evenly_spaced(len(odds), SHIFT_SAMPLES)]
    shift = _shift_to(few, rate, 0.0) if len(few) < len(odds) else 0.0
    return 1 / (1 + np.exp(-odds - _shift_to(odds, rate, shift)))


def _shift_to(odds: Array, rate: float, shift: float) -> float:
    """Return the shift of log-odds (n) at which the mean probability of error is the rate, by Newton's method."""
    low, high = -MAX_SHIFT, MAX_SHIFT
    for _ in range(SHIFT_STEPS):
        error = 1 / (1 + np.exp(odds + shift))
        mean = float(error.mean())
        low, high = (shift, high) if mean > rate else (low, shift)
        slope = mean - float(np.einsum("n,n->", error, error)) / len(odds)  # a product of BLAS would wait for threads
        before, newton = shift, shift + (mean - rate) / slope if slope > 0 else np.inf
        inside = low <= newton <= high
        shift = newton if inside else (low + high) / 2
        if abs(shift - before) <= (NEWTON_TOLERANCE if inside else SHIFT_TOLERANCE) * max(1.0, abs(shift)):
            break
    return shift


def posterior(guesses: Guesses, label_given: Array) -> tuple[Array, Array]:
    """Return the probability of each label (n) and the expected joint counts of label and true class (K, K)."""
    likely, rest = np.empty(len(guesses)), np.empty(len(guesses))
    weights = np.empty(guesses.likeliest.T.shape)  # (M, n) of the most likely classes

    def judge(groups: _Groups) -> None:
        weight, rest[groups.where] = groups.bayes(label_given)
        likely[groups.where] = weight[0]
        weight[0] = 0
        weights[:, groups.where] = groups.ordered(weight)

    _each_block(guesses, judge)
    joint = np.diag(np.bincount(guesses.labels, likely, guesses.num_classes))
    for column, weight in zip(guesses.likeliest.T, weights, strict=True):
        cells = guesses.labels * guesses.num_classes + column
        joint += np.bincount(cells, weight, joint.size).reshape(joint.shape)
    spread = np.bincount(guesses.labels, rest, guesses.num_classes) / guesses.num_classes
    return likely, joint + spread[:, None]


def estimate_label_given_true(guesses: Guesses) -> Array:
    """Return P(label | true class) (K, K), estimated from the guesses in a few rounds of Bayes' rule."""
    some = guesses.at(evenly_spaced(len(guesses), MAX_SAMPLES))
    joint = count_joint(some)
    for _ in range(ROUNDS):
        joint = posterior(some, label_given_true(joint))[1]
    return label_given_true(joint)


def count_joint(guesses: Guesses) -> Array:
    """Count the samples with label y (row) and most likely class j (column), (K, K)."""
    cells = guesses.labels * guesses.num_classes + guesses.likeliest[:, 0]
    return np.bincount(cells, minlength=guesses.num_classes**2).reshape(guesses.num_classes, -1)


def label_given_true(joint: Array) -> Array:
    """Return T[y, j] = P(label y | true class j) of joint counts (K, K)."""
    smoothed = joint + PRIOR / len(joint)
    return smoothed / smoothed.sum(0)


def estimate_label_given_confident(guesses: Guesses) -> Array:
    """Return P(label | true class) (K, K), counted among the most confident guesses.

    Where a classifier is weak, it is confident of so few samples of a small class that a quarter of them must suffice:
    among more, its own errors would count as wrong labels.
    """
    some = guesses.at(evenly_spaced(len(guesses), MAX_SAMPLES))
    quarter = count_confident(some, least=0)
    if (np.bincount(some.labels, minlength=some.num_classes) * CONFIDENT_SHARE >= CONFIDENT_COUNT).all():
        return shrunk_label_given_true(quarter)
    errors = own_errors(share_of_disagreements(some), 1 - quarter.trace() / max(quarter.sum(), 1))
    strong = np.clip((WEAK_FROM - errors) / (WEAK_FROM - STRONG_UP_TO), 0, 1)
    return shrunk_label_given_true(count_confident(some, least=float(strong) * CONFIDENT_COUNT))


def own_errors(disagreements: float, wrong: float) -> float:
    """Return the share of the correct labels that a classifier contradicts.

    Args:
        disagreements: Share of all labels that it predicts differently.
        wrong: Share of wrong labels.
    """
    return (disagreements - wrong) / max(1 - wrong, FEWEST_CORRECT)


def share_of_disagreements(guesses: Guesses) -> float:
    """Return the share of labels that are not the most likely class."""
    return float((guesses.likeliest[:, 0] != guesses.labels).mean())


def levelled(label_given: Array, weight: float) -> Array:
    """Return P(label | true class) (K, K) with its columns moved towards uniform noise of the same mean rate."""
    classes = len(label_given)
    wrong = 1 - label_given.diagonal().mean()
    uniform = np.where(np.eye(classes) > 0, 1 - wrong, wrong / (classes - 1))
    return (1 - weight) * label_given + weight * uniform


def calibrate(guesses: Guesses, label_given: Array) -> Guesses:
    """Return guesses about true classes at the temperature that maximizes the likelihood of the labels given T."""
    temperature = best_temperature(guesses, label_given, mixed=False)
    return unmix_with(guesses, label_given, temperature, mixed=False)


def unmix_with(guesses: Guesses, label_given: Array, temperature: float, mixed: bool = True) -> Guesses:
    """Return guesses about true classes, with this T (K, K) and temperature; `mixed`: they are about labels so far."""
    confidence, likeliest = np.empty(len(guesses), np.float32), np.empty_like(guesses.likeliest)
    likelihood = np.empty(likeliest.shape, np.float32)

    def unmix(groups: _Groups) -> None:
        probs = groups.calibrated(temperature)
        true = (deconvolve(probs, groups.given(label_given)) if mixed else probs).astype(np.float32)
        confidence[groups.where] = true[0]
        kept = groups.ordered(groups.classes), groups.ordered(true[:-1])
        likeliest[groups.where], likelihood[groups.where] = (part.T for part in descending(*kept))

    _each_block(guesses, unmix)
    return Guesses(guesses.labels, confidence, likeliest, likelihood, guesses.num_classes, guesses.decided)


def count_confident(guesses: Guesses, share: float = CONFIDENT_SHARE, least: float = CONFIDENT_COUNT) -> Array:
    """Count the labels y (row) of the samples with the highest probability for class j (column), (K, K).

    They are a share of as many as have the label j, but at least as many as `least` says, or half of them.
    Samples with the same probability as the last one that counts are counted, too.
    """
    classes, likelihood = guesses.likeliest.ravel().astype(np.int64), guesses.likelihood.ravel()
    sizes = np.bincount(classes, minlength=guesses.num_classes)  # samples with the class among their most likely ones
    labelled = np.bincount(guesses.labels, minlength=guesses.num_classes)
    wanted = np.maximum(share * labelled, np.minimum(least, labelled / 2))
    wanted = np.minimum(np.ceil(wanted).astype(np.int64), sizes)
    by_class = np.split(likelihood[stable_order(classes)], np.cumsum(sizes)[:-1])
    threshold = np.full(guesses.num_classes, np.inf)
    for number in np.flatnonzero(wanted):
        last = sizes[number] - wanted[number]
        threshold[number] = np.partition(by_class[number], last)[last]
    confident = (likelihood >= threshold[classes]) & (likelihood > 0)
    labels = np.repeat(guesses.labels, guesses.likeliest.shape[1])
    cells = labels[confident] * guesses.num_classes + classes[confident]
    return np.bincount(cells, minlength=guesses.num_classes**2).reshape(guesses.num_classes, -1)


def shrunk_label_given_true(counts: Array) -> Array:
    """Return P(label | true class) of counts (K, K), with the shares of wrong labels shrunk towards each other.

    Counts vary by chance as much as their mean (Poisson). That part of the variance is removed, so that wrong labels
    differ only as far as chance does not explain it. Classes with few samples are drawn to the mean of all classes.
    """
    classes = len(counts)
    off = 1.0 - np.eye(classes)
    mean = (counts * off).sum(0) / (classes - 1)
    variation = (off * (counts - mean) ** 2).sum()
    kept = max(0.0, 1 - (classes - 2) * mean.sum() / variation) if variation > 0 else 0.0
    wrong = ((counts * off).sum() + 1) / (counts.sum() + 2)
    common = np.where(off > 0, wrong / (classes - 1), 1 - wrong)
    smoothed = np.where(off > 0, mean + kept * (counts - mean), counts) + UNMIXING_PRIOR * common
    return smoothed / smoothed.sum(0)


def best_temperature(guesses: Guesses, label_given: Array, mixed: bool = True) -> float:
    """Return the temperature that maximizes the likelihood of the labels; `mixed`: the guesses are about labels.

    Temperatures that are clearly worse for some of the samples are not tried on all of them.
    """
    tried = np.array(TEMPERATURES)
    for most in (RACING_SAMPLES, UNMIXING_SAMPLES):
        some = guesses.at(evenly_spaced(len(guesses), most))
        each = _log_likelihoods(some, label_given, tried, mixed)  # (temperatures, samples)
        behind = each[each.sum(1).argmax()] - each
        error = behind.std(1) / np.sqrt(len(some))
        best = float(tried[each.sum(1).argmax()])
        tried = tried[behind.mean(1) <= RACING_ERRORS * error]
    return best


def _log_likelihoods(guesses: Guesses, label_given: Array, temperatures: Array, mixed: bool) -> Array:
    """Return the log-likelihood of each label at each temperature, (temperatures, n)."""
    likely = np.empty((len(temperatures), len(guesses)))

    def predict(groups: _Groups) -> None:
        given = groups.given(label_given)
        for number, temperature in enumerate(temperatures):
            probs = groups.calibrated(temperature)
            true = deconvolve(probs, given) if mixed else probs
            likely[number, groups.where] = (true * given[0]).sum(0)

    _each_block(guesses, predict)
    return np.log(np.maximum(likely, MIN_PROBABILITY))


def deconvolve(probs: Array, given: Array) -> Array:
    """Return true-class probabilities (L, n) such that probs (L, n) is nearly given (L, L, n) times the result.

    This is expectation-maximisation, known in image processing as Richardson-Lucy deconvolution. A common factor of
    the probabilities cancels in every round.
    """
    true, least = probs, np.full_like(probs, MIN_PROBABILITY**2)  # the maximum with a scalar is slower
    for _ in range(UNMIXING_ROUNDS):
        labels = np.einsum("yjn,jn->yn", given, true)
        ratio = np.divide(probs, np.maximum(labels, least, out=labels), out=labels)
        true = true * np.einsum("yn,yjn->jn", ratio, given)
    return true / true.sum(0)
