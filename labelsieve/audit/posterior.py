"""How probable each label is, given a classifier's guess and where the wrong labels of each class come from.

A classifier says how likely each class j is the true one; the noise matrix says how often class j is labelled y. By
Bayes' rule, P(true = y | label y) = p[y] T[y, y] / sum over j of p[j] T[y, j], with T[y, j] = P(label y | true j).
Wrong labels that come from one class (pair noise) make that class weigh more, as a penalty label does; where they come
from all classes alike, the order is that of the confidence in the label."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from labelsieve.audit.guesses import Guesses, evenly

Array = np.ndarray[Any, Any]
ROUNDS = 3  # of estimating the joint anew: more believe the classifier too much (docs/decisions/023)
PRIOR = 5.0  # samples that each class is believed to have, spread over all labels
MOST = 200_000  # samples that the joint is estimated from


def counted_joint(guesses: Guesses) -> Array:
    """How many samples have label y (row) and likeliest class j (column), (K, K)."""
    return _summed(guesses.labels, guesses.likeliest[:, :1], np.ones((len(guesses), 1)), guesses.num_classes)


def posterior(guesses: Guesses, label_given: Array) -> tuple[Array, Array]:
    """The probability of each label (n), and the joint (K, K) that the same probabilities add up to."""
    classes, weight, rest = weighed(guesses, label_given)
    joint = _summed(guesses.labels, classes, weight, guesses.num_classes)
    spread = np.bincount(guesses.labels, rest, guesses.num_classes) / guesses.num_classes
    return weight[:, 0], joint + spread[:, None]


def weighed(guesses: Guesses, label_given: Array) -> tuple[Array, Array, Array]:
    """By Bayes' rule: classes (n, 1 + M), the label first, how probable each is, and what is left for others (n)."""
    labels = guesses.labels[:, None]
    classes = np.concatenate([labels, guesses.likeliest], axis=1)
    given = label_given[labels, classes]
    given[:, 1:][guesses.likeliest == labels] = 0  # the label counts once
    likelihood = np.concatenate([guesses.confidence[:, None], guesses.likelihood], axis=1, dtype=np.float64)
    left = np.clip(1 - np.where(given > 0, likelihood, 0).sum(1), 0, None)
    others = guesses.num_classes - (given > 0).sum(1)
    rest = left * np.clip(label_given.sum(1)[guesses.labels] - given.sum(1), 0, None) / np.maximum(others, 1)
    weight = likelihood * given
    total = weight.sum(1) + rest
    total = np.where(total > 0, total, 1)
    return classes, weight / total[:, None], rest / total


def best_other(guesses: Guesses, label_given: Array) -> Array:
    """The most probable class besides the label (n)."""
    classes, weight, _ = weighed(guesses, label_given)
    other: Array = classes[np.arange(len(guesses)), 1 + weight[:, 1:].argmax(1)]
    return other


def settled(guesses: Guesses, rounds: int = ROUNDS) -> Array:
    """P(label | true class) (K, K), estimated anew a few times; of many samples, from some of them, evenly spaced."""
    some = guesses.at(evenly(len(guesses), MOST))
    joint = counted_joint(some)
    for _ in range(rounds):
        joint = posterior(some, label_given_true(joint))[1]
    return label_given_true(joint)


def quality(guesses: Guesses, label_given: Array | None = None) -> Array:
    """The probability of each label (n)."""
    given = settled(guesses) if label_given is None else label_given
    return np.concatenate([posterior(piece, given)[0] for piece in pieces(guesses)])


def suggestions(guesses: Guesses, label_given: Array) -> Array:
    """The most probable class besides the label (n), of any number of samples."""
    return np.concatenate([best_other(piece, label_given) for piece in pieces(guesses)])


def pieces(guesses: Guesses, size: int = MOST) -> Iterator[Guesses]:
    return (guesses.at(slice(first, first + size)) for first in range(0, len(guesses), size))


def label_given_true(joint: Array) -> Array:
    """T[y, j] = P(label y | true class j) of a joint (K, K)."""
    known = joint + PRIOR / len(joint)
    shares: Array = known / known.sum(0)
    return shares


def _summed(labels: Array, classes: Array, weight: Array, count: int) -> Array:
    cells = (labels[:, None] * count + classes).ravel()
    return np.bincount(cells, weight.ravel(), count * count).reshape(count, count)


SUREST = 0.25  # of as many samples as have a label, the surest of its class
ENOUGH = 50  # of them, for which a small class gives up to half
UNMIXED_PRIOR = 1.0  # sample that each class is believed to have, labelled as all classes are
UNMIXED_ROUNDS = 10  # of explaining a prediction
TEMPERATURES = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0)
LEAST = 1e-7  # what is held impossible is only very unlikely
FEW = 20_000  # samples that the temperature is found with, and that are looked at together


def unmixed(guesses: Guesses) -> tuple[Guesses, Array]:
    """The guesses about true classes, and P(label | true class) (K, K), row: label, column: true class."""
    label_given = levelled(counted_where_surest(guesses.at(evenly(len(guesses), MOST))))
    temperature = likeliest_temperature(guesses.at(evenly(len(guesses), FEW)), label_given)
    return explained(guesses, label_given, temperature), label_given


def explained(guesses: Guesses, label_given: Array, temperature: float) -> Guesses:
    """The guesses about true classes that these guesses about labels follow from, the likeliest first again."""
    held = np.concatenate([held_true(piece, label_given, temperature) for piece in pieces(guesses, FEW)])  # (n, 1 + M)
    likelihood = np.where(guesses.likeliest == guesses.labels[:, None], held[:, :1], held[:, 1:])
    order = np.argsort(-likelihood, axis=1, kind="stable")
    likeliest, likelihood = (np.take_along_axis(part, order, 1) for part in (guesses.likeliest, likelihood))
    return Guesses(guesses.labels, held[:, 0], likeliest, likelihood, guesses.num_classes)


def counted_where_surest(guesses: Guesses, share: float = SUREST) -> Array:
    """How many labels y (row) the samples have that are surest of class j (column), (K, K); equals count alike."""
    classes, likelihood = guesses.likeliest.ravel().astype(np.int64), guesses.likelihood.ravel()
    sizes = np.bincount(classes, minlength=guesses.num_classes)  # samples that hold the class likely at all
    labelled = np.bincount(guesses.labels, minlength=guesses.num_classes)
    surest = np.maximum(share * labelled, np.minimum(ENOUGH, labelled / 2))
    wanted = np.minimum(np.ceil(surest).astype(np.int64), sizes)
    ranked = likelihood[np.lexsort((-likelihood, classes))]  # class after class, the surest first
    last = np.maximum(np.cumsum(sizes) - sizes + wanted - 1, 0)
    enough = np.where(wanted > 0, ranked[last], np.inf)
    sure = (likelihood >= enough[classes]) & (likelihood > 0)
    labels = np.repeat(guesses.labels, guesses.likeliest.shape[1])
    cells = labels[sure] * guesses.num_classes + classes[sure]
    return np.bincount(cells, minlength=guesses.num_classes**2).reshape(guesses.num_classes, -1)


def levelled(counts: Array) -> Array:
    """Counts (K, K) as P(label | true class), in which wrong labels differ only as far as chance does not explain it.

    Chance makes counts spread by as much as their mean (Poisson): that part of the spread is taken out. A class of few
    samples is drawn to what all classes have.
    """
    classes = len(counts)
    off = 1.0 - np.eye(classes)
    mean = (counts * off).sum(0) / (classes - 1)
    spread = (off * (counts - mean) ** 2).sum()
    believed = max(0.0, 1 - (classes - 2) * mean.sum() / spread) if spread > 0 else 0.0
    wrong = ((counts * off).sum() + 1) / (counts.sum() + 2)
    usual = np.where(off > 0, wrong / (classes - 1), 1 - wrong)
    known = np.where(off > 0, mean + believed * (counts - mean), counts) + UNMIXED_PRIOR * usual
    shares: Array = known / known.sum(0)
    return shares


def likeliest_temperature(guesses: Guesses, label_given: Array) -> float:
    """The temperature under which the labels are likeliest."""
    said, places, given = blocks(guesses, label_given)

    def likelihood(temperature: float) -> float:
        held = explaining(tempered(said, places, temperature), given)
        return float(np.log(np.maximum((held * given[:, 0]).sum(1), LEAST)).sum())

    return max(TEMPERATURES, key=likelihood)


def held_true(guesses: Guesses, label_given: Array, temperature: float) -> Array:
    """How likely the label and the likeliest classes are true, (n, 1 + M); 0 where the label stands again."""
    said, places, given = blocks(guesses, label_given)
    held = explaining(tempered(said, places, temperature), given)
    return held[:, :-1].astype(np.float32)


def blocks(guesses: Guesses, label_given: Array) -> tuple[Array, Array, Array]:
    """What is said of the label, the likeliest classes and all others together (n, L), how many classes stand at each
    place (n, L), none where the label stands again, and T of these places (n, L, L)."""
    classes = np.concatenate([guesses.labels[:, None], guesses.likeliest], axis=1)
    once = np.ones(classes.shape)
    once[:, 1:] = guesses.likeliest != guesses.labels[:, None]
    said = once * np.concatenate([guesses.confidence[:, None], guesses.likelihood], axis=1)
    others = guesses.num_classes - once.sum(1, keepdims=True)
    left = np.clip(1 - said.sum(1, keepdims=True), 0, None)
    inner = label_given[classes[:, :, None], classes[:, None, :]] * once[:, :, None] * once[:, None, :]
    given = np.zeros((len(guesses), classes.shape[1] + 1, classes.shape[1] + 1))
    given[:, :-1, :-1] = inner
    given[:, :-1, -1] = (once * label_given.sum(1)[classes] - inner.sum(2)) / np.maximum(others, 1)  # the others' mean
    given[:, -1, :] = np.append(once, np.minimum(others, 1), axis=1) - given[:, :-1, :].sum(1)
    return np.append(said, left, axis=1), np.append(once, others, axis=1), np.clip(given, 0, None)


def tempered(said: Array, places: Array, temperature: float) -> Array:
    """The probabilities (n, L) of logits divided by the temperature."""
    logits = np.log(np.maximum(said / np.maximum(places, 1), LEAST)) / temperature
    raised = places * np.exp(logits - logits.max(1, keepdims=True))
    probs: Array = raised / raised.sum(1, keepdims=True)
    return probs


def explaining(said: Array, given: Array) -> Array:
    """Probabilities of true classes (n, L) whose labels would be what is said: said = given @ probabilities, nearly.

    Expectation-maximisation, which stays among probabilities; for pictures it is known as Richardson and Lucy's rule.
    """
    held = said
    for _ in range(UNMIXED_ROUNDS):
        labels = np.einsum("nyj,nj->ny", given, held)
        held = held * np.einsum("ny,nyj->nj", said / np.maximum(labels, LEAST**2), given)
        held /= held.sum(1, keepdims=True)
    return held
