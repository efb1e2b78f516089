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

from collections.abc import Iterator

import numpy as np

from labelsieve.audit.guesses import Array, Guesses, evenly_spaced

ROUNDS = 3  # re-estimations of the joint; more would trust the classifier too much (docs/decisions/023)
PRIOR = 5.0  # pseudo-count of each true class, spread evenly over all labels
MAX_SAMPLES = 200_000  # for estimating the joint, and per batch
CONFIDENT_SHARE = 0.25  # most confident samples per class, relative to the number of samples with that label
CONFIDENT_COUNT = 50  # a small class contributes this many, but at most half of its samples
UNMIXING_PRIOR = 1.0  # pseudo-count of each true class, spread like the labels of all classes
UNMIXING_ROUNDS = 10  # iterations of the deconvolution
TEMPERATURES = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0)
MIN_PROBABILITY = 1e-7
UNMIXING_SAMPLES = 20_000  # for finding the temperature, and per batch
MAX_SHIFT, BISECTIONS, MIN_ODDS = 80.0, 60, 1e-30  # of log-odds


def label_probability(guesses: Guesses, label_given: Array | None = None) -> Array:
    """Return the probability (n) that each label is correct; P(label | true class) (K, K) is estimated if not given."""
    given = estimate_label_given_true(guesses) if label_given is None else label_given
    return np.concatenate([posterior(batch, given)[0] for batch in _batches(guesses)])


def most_probable_others(guesses: Guesses, label_given: Array) -> Array:
    """Return the most probable class besides the label (n)."""
    others = []
    for batch in _batches(guesses):
        classes, weight, _ = _bayes_weights(batch, label_given)
        others.append(classes[np.arange(len(batch)), 1 + weight[:, 1:].argmax(1)])
    return np.concatenate(others)


def true_class_probs(guesses: Guesses, label_given: Array) -> Array:
    """Return the probabilities of all true classes (n, K) given the labels, as targets of a second classifier."""
    table = np.empty((len(guesses), guesses.num_classes), np.float32)
    for first in range(0, len(guesses), MAX_SAMPLES):
        batch = guesses.at(slice(first, first + MAX_SAMPLES))
        classes, weight, rest = _bayes_weights(batch, label_given)
        rows = np.arange(len(batch))[:, None]
        part = table[first : first + len(batch)]
        part[:] = 1
        part[rows, classes] = 0
        part *= (rest / np.maximum(part.sum(1), 1))[:, None]  # over the other classes
        np.add.at(part, (rows, classes), weight)
        part /= part.sum(1, keepdims=True)
        if batch.decided is not None:
            part[batch.decided] = np.eye(guesses.num_classes, dtype=np.float32)[batch.labels[batch.decided]]
    return table


def with_mean_error(quality: Array, rate: float) -> Array:
    """Shift the log-odds of all label probabilities (n) by one number, so that the mean probability of error is `rate`.

    The order of the samples stays.
    """
    odds = np.log(np.maximum(quality, MIN_ODDS)) - np.log(np.maximum(1 - quality, MIN_ODDS))
    low, high = -MAX_SHIFT, MAX_SHIFT
    for _ in range(BISECTIONS):
        shift = (low + high) / 2
        low, high = (shift, high) if np.mean(1 / (1 + np.exp(odds + shift))) > rate else (low, shift)
    shifted: Array = 1 / (1 + np.exp(-odds - low))
    return shifted


def posterior(guesses: Guesses, label_given: Array) -> tuple[Array, Array]:
    """Return the probability of each label (n) and the expected joint counts of label and true class (K, K)."""
    classes, weight, rest = _bayes_weights(guesses, label_given)
    joint = _summed(guesses.labels, classes, weight, guesses.num_classes)
    spread = np.bincount(guesses.labels, rest, guesses.num_classes) / guesses.num_classes
    return weight[:, 0], joint + spread[:, None]


def _bayes_weights(guesses: Guesses, label_given: Array) -> tuple[Array, Array, Array]:
    """Return the label and the most likely classes (n, 1 + M), their probabilities, and that of all others (n)."""
    labels = guesses.labels[:, None]
    classes = np.concatenate([labels, guesses.likeliest], axis=1)
    given = label_given[labels, classes]
    given[:, 1:][guesses.likeliest == labels] = 0  # count the label once
    likelihood = np.concatenate([guesses.confidence[:, None], guesses.likelihood], axis=1, dtype=np.float64)
    left = np.clip(1 - np.where(given > 0, likelihood, 0).sum(1), 0, None)
    others = guesses.num_classes - (given > 0).sum(1)
    rest = left * np.clip(label_given.sum(1)[guesses.labels] - given.sum(1), 0, None) / np.maximum(others, 1)
    weight = likelihood * given
    total = weight.sum(1) + rest
    total = np.where(total > 0, total, 1)
    return classes, weight / total[:, None], rest / total


def estimate_label_given_true(guesses: Guesses) -> Array:
    """Return P(label | true class) (K, K), estimated from the guesses in a few rounds of Bayes' rule."""
    some = guesses.at(evenly_spaced(len(guesses), MAX_SAMPLES))
    joint = count_joint(some)
    for _ in range(ROUNDS):
        joint = posterior(some, label_given_true(joint))[1]
    return label_given_true(joint)


def count_joint(guesses: Guesses) -> Array:
    """Count the samples with label y (row) and most likely class j (column), (K, K)."""
    return _summed(guesses.labels, guesses.likeliest[:, :1], np.ones((len(guesses), 1)), guesses.num_classes)


def label_given_true(joint: Array) -> Array:
    """Return T[y, j] = P(label y | true class j) of joint counts (K, K)."""
    smoothed = joint + PRIOR / len(joint)
    shares: Array = smoothed / smoothed.sum(0)
    return shares


def estimate_label_given_confident(guesses: Guesses) -> Array:
    """Return P(label | true class) (K, K), counted among the most confident guesses."""
    return shrunk_label_given_true(count_confident(guesses.at(evenly_spaced(len(guesses), MAX_SAMPLES))))


def unmix(guesses: Guesses) -> tuple[Guesses, Array]:
    """Turn guesses about labels into guesses about true classes and P(label | true class) (K, K).

    The classifier was trained on noisy labels, but not on the labels of these samples.
    """
    label_given = estimate_label_given_confident(guesses)
    return unmix_with(guesses, label_given, best_temperature(guesses, label_given)), label_given


def levelled(label_given: Array, weight: float) -> Array:
    """Return P(label | true class) (K, K) with its columns moved towards uniform noise of the same mean rate."""
    classes = len(label_given)
    wrong = 1 - label_given.diagonal().mean()
    uniform = np.where(np.eye(classes) > 0, 1 - wrong, wrong / (classes - 1))
    mixed: Array = (1 - weight) * label_given + weight * uniform
    return mixed


def calibrate(guesses: Guesses, label_given: Array) -> Guesses:
    """Return guesses about true classes at the temperature that maximizes the likelihood of the labels given T."""
    temperature = best_temperature(guesses, label_given, mixed=False)
    return unmix_with(guesses, label_given, temperature, mixed=False)


def unmix_with(guesses: Guesses, label_given: Array, temperature: float, mixed: bool = True) -> Guesses:
    """Return guesses about true classes, with this T (K, K) and temperature; `mixed`: they are about labels so far."""
    parts = []
    for batch in _batches(guesses, UNMIXING_SAMPLES):
        grouped, multiplicity, given = _grouped_classes(batch, label_given)
        calibrated = calibrate_groups(grouped, multiplicity, temperature)
        parts.append((deconvolve(calibrated, given) if mixed else calibrated)[:, :-1])
    probs = np.concatenate(parts, dtype=np.float32)  # (n, 1 + M) of the label and the most likely classes
    likelihood = np.where(guesses.likeliest == guesses.labels[:, None], probs[:, :1], probs[:, 1:])
    order = np.argsort(-likelihood, axis=1, kind="stable")
    likeliest, likelihood = (np.take_along_axis(part, order, 1) for part in (guesses.likeliest, likelihood))
    return Guesses(guesses.labels, probs[:, 0], likeliest, likelihood, guesses.num_classes, guesses.decided)


def count_confident(guesses: Guesses, share: float = CONFIDENT_SHARE) -> Array:
    """Count the labels y (row) of the samples with the highest probability for class j (column), (K, K).

    Samples with the same probability as the last one that counts are counted, too.
    """
    classes, likelihood = guesses.likeliest.ravel().astype(np.int64), guesses.likelihood.ravel()
    sizes = np.bincount(classes, minlength=guesses.num_classes)  # samples with the class among their most likely ones
    labelled = np.bincount(guesses.labels, minlength=guesses.num_classes)
    wanted = np.maximum(share * labelled, np.minimum(CONFIDENT_COUNT, labelled / 2))
    wanted = np.minimum(np.ceil(wanted).astype(np.int64), sizes)
    ranked = likelihood[np.lexsort((-likelihood, classes))]  # by class, then descending
    last = np.maximum(np.cumsum(sizes) - sizes + wanted - 1, 0)
    threshold = np.where(wanted > 0, ranked[last], np.inf)
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
    shares: Array = smoothed / smoothed.sum(0)
    return shares


def best_temperature(guesses: Guesses, label_given: Array, mixed: bool = True) -> float:
    """Return the temperature that maximizes the likelihood of the labels; `mixed`: the guesses are about labels."""
    some = guesses.at(evenly_spaced(len(guesses), UNMIXING_SAMPLES))
    probs, multiplicity, given = _grouped_classes(some, label_given)

    def log_likelihood(temperature: float) -> float:
        calibrated = calibrate_groups(probs, multiplicity, temperature)
        true = deconvolve(calibrated, given) if mixed else calibrated
        return float(np.log(np.maximum((true * given[:, 0]).sum(1), MIN_PROBABILITY)).sum())

    return max(TEMPERATURES, key=log_likelihood)


def _grouped_classes(guesses: Guesses, label_given: Array) -> tuple[Array, Array, Array]:
    """Reduce the K classes of each sample to L = M + 2 groups: the label, the M most likely classes, all others.

    Return their probabilities (n, L), the number of classes in each group (n, L; 0 where a most likely class repeats
    the label), and T between the groups (n, L, L).
    """
    classes = np.concatenate([guesses.labels[:, None], guesses.likeliest], axis=1)
    once = np.ones(classes.shape)
    once[:, 1:] = guesses.likeliest != guesses.labels[:, None]
    probs = once * np.concatenate([guesses.confidence[:, None], guesses.likelihood], axis=1)
    others = guesses.num_classes - once.sum(1, keepdims=True)
    left = np.clip(1 - probs.sum(1, keepdims=True), 0, None)
    inner = label_given[classes[:, :, None], classes[:, None, :]] * once[:, :, None] * once[:, None, :]
    given = np.zeros((len(guesses), classes.shape[1] + 1, classes.shape[1] + 1))
    given[:, :-1, :-1] = inner
    given[:, :-1, -1] = (once * label_given.sum(1)[classes] - inner.sum(2)) / np.maximum(others, 1)  # their mean
    given[:, -1, :] = np.append(once, np.minimum(others, 1), axis=1) - given[:, :-1, :].sum(1)
    return np.append(probs, left, axis=1), np.append(once, others, axis=1), np.clip(given, 0, None)


def calibrate_groups(probs: Array, multiplicity: Array, temperature: float) -> Array:
    """Divide the logits of probabilities (n, L) of groups of classes by the temperature."""
    logits = np.log(np.maximum(probs / np.maximum(multiplicity, 1), MIN_PROBABILITY)) / temperature
    raised = multiplicity * np.exp(logits - logits.max(1, keepdims=True))
    calibrated: Array = raised / raised.sum(1, keepdims=True)
    return calibrated


def deconvolve(probs: Array, given: Array) -> Array:
    """Return true-class probabilities (n, L) such that probs (n, L) is nearly given (n, L, L) @ the result.

    This is expectation-maximisation, known in image processing as Richardson-Lucy deconvolution.
    """
    true = probs
    for _ in range(UNMIXING_ROUNDS):
        labels = np.einsum("nyj,nj->ny", given, true)
        true = true * np.einsum("ny,nyj->nj", probs / np.maximum(labels, MIN_PROBABILITY**2), given)
        true /= true.sum(1, keepdims=True)
    return true


def _batches(guesses: Guesses, size: int = MAX_SAMPLES) -> Iterator[Guesses]:
    """Split the guesses into batches, to bound memory."""
    return (guesses.at(slice(first, first + size)) for first in range(0, len(guesses), size))


def _summed(labels: Array, classes: Array, weight: Array, num_classes: int) -> Array:
    """Sum weights (n, M) over samples by label (row) and class (column), (K, K)."""
    cells = (labels[:, None] * num_classes + classes).ravel()
    return np.bincount(cells, weight.ravel(), num_classes * num_classes).reshape(num_classes, num_classes)
