"""Guesses: the predictions for labelled samples, cut down to the few classes that matter for each."""

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labelsieve.errors import InputError

Array = np.ndarray[Any, Any]
LIKELIEST = 5  # classes that are kept of a prediction
CHUNK = 2**22  # probabilities looked at together: 32 MB


@dataclass(frozen=True)
class Guesses:
    """n samples of K classes: what was said of them, and what a classifier holds likely."""

    labels: Array  # (n) observed
    confidence: Array  # (n) in the observed label
    likeliest: Array  # (n, M) classes, the likeliest first
    likelihood: Array  # (n, M)
    num_classes: int
    decided: Array | None = None  # (n) bool: a person decided on the label, which is right by definition

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, index: Array | slice) -> "Guesses":
        """The samples at these positions alone."""
        return Guesses(
            self.labels[index],
            self.confidence[index],
            self.likeliest[index],
            self.likelihood[index],
            self.num_classes,
            None if self.decided is None else self.decided[index],
        )

    @property
    def undecided(self) -> "Guesses":
        """The samples whose label may be wrong."""
        return self if self.decided is None else self.at(~self.decided)


def guesses_of(labels: Array, pred_probs: Array) -> Guesses:
    """The guesses in a table of probabilities (n, K), read once and in pieces; bad input is one clear line."""
    pred_probs = np.asanyarray(pred_probs)  # a tensor too; a mapped file stays one
    labels = checked_labels(labels, pred_probs)
    count, classes = pred_probs.shape
    kept = min(LIKELIEST, classes)
    confidence = np.empty(count, np.float32)
    likeliest, likelihood = np.empty((count, kept), np.int32), np.empty((count, kept), np.float32)
    for rows, probs in pieces(pred_probs):
        place = np.arange(len(probs))
        top = np.argpartition(probs, classes - kept, axis=1)[:, classes - kept :]
        order = np.argsort(-probs[place[:, None], top], axis=1, kind="stable")
        likeliest[rows] = top[place[:, None], order]
        likelihood[rows] = probs[place[:, None], likeliest[rows]]
        confidence[rows] = probs[place, labels[rows]]
    return Guesses(labels, confidence, likeliest, likelihood, classes)


def evenly(count: int, most: int) -> slice:
    """At most `most` of `count` samples, evenly spaced: the first ones alone may all be of one class."""
    return slice(None, None, -(-count // most))


def joined(parts: Sequence[Guesses]) -> Guesses:
    """The guesses for several sets of samples, one set after the other."""
    return Guesses(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.confidence for part in parts]),
        np.concatenate([part.likeliest for part in parts]),
        np.concatenate([part.likelihood for part in parts]),
        parts[0].num_classes,
        None
        if parts[0].decided is None
        else np.concatenate([part.decided for part in parts if part.decided is not None]),
    )


def guesses_from_run(samples: Mapping[str, Array], num_classes: int) -> Guesses:
    """The guesses that a run saved (samples.safetensors); sure of the labels that a person decided on."""
    kept = samples["likeliest"], samples["likelihood"]
    guesses = Guesses(samples["label"].astype(np.int64), samples["confidence"], *kept, num_classes)
    return sure_of(guesses, samples["decided"].astype(bool)) if "decided" in samples else guesses


def sure_of(guesses: Guesses, decided: Array) -> Guesses:
    """The same guesses, but the labels of decided samples (n) are certain."""
    most = guesses.likeliest.shape[1]
    rest = np.arange(most - 1)
    others = rest + (rest >= guesses.labels[:, None])  # (n, M - 1) classes that are not the label
    sure = np.eye(1, most, dtype=guesses.likelihood.dtype)
    return replace(
        guesses,
        confidence=np.where(decided, np.float32(1), guesses.confidence),
        likeliest=np.where(decided[:, None], np.column_stack([guesses.labels, others]), guesses.likeliest),
        likelihood=np.where(decided[:, None], sure, guesses.likelihood),
        decided=decided,
    )


def checked_labels(labels: Array, pred_probs: Array) -> Array:
    """Labels as whole numbers, with everything about them and the table's shape made sure of."""
    labels = np.asarray(labels)
    if pred_probs.ndim != 2 or pred_probs.dtype.kind != "f":
        raise InputError(
            f"pred_probs must be floats of shape (samples, classes), got {pred_probs.dtype} {pred_probs.shape}"
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(f"labels must be a row of whole numbers, got {labels.dtype} {labels.shape}")
    if len(labels) != len(pred_probs):
        raise InputError(f"there are {len(labels):,} labels but pred_probs has {len(pred_probs):,} rows; give as many")
    if not len(labels):
        raise InputError("there are no samples: labels and pred_probs are empty")
    if pred_probs.shape[1] < 2:
        raise InputError("pred_probs has one column; at least two classes are needed, a column for each")
    wrong = np.flatnonzero((labels < 0) | (labels >= pred_probs.shape[1]))
    if len(wrong):
        raise InputError(
            f"label {labels[wrong[0]]} at position {wrong[0]} is out of range: pred_probs has "
            f"{pred_probs.shape[1]} columns, classes 0 to {pred_probs.shape[1] - 1} ({len(wrong):,} such labels)"
        )
    return labels.astype(np.int64)


def pieces(pred_probs: Array) -> Iterator[tuple[slice, Array]]:
    """Checked probabilities as float32, a few rows at a time."""
    size = max(1, CHUNK // pred_probs.shape[1])
    slack = 0.05 if pred_probs.dtype.itemsize < 4 else 0.01  # half precision rounds
    for first in range(0, len(pred_probs), size):
        rows = slice(first, min(first + size, len(pred_probs)))
        probs: Array = np.asarray(pred_probs[rows], dtype=np.float32)
        refuse(~np.all(np.isfinite(probs), axis=1), first, "has a value that is not finite; leave such samples out")
        refuse(np.any(probs < 0, axis=1), first, "has a probability below 0; logits become probabilities by softmax")
        total: Array = probs.sum(1, dtype=np.float64)
        refuse(abs(total - 1) > slack, first, "does not sum to 1; logits become probabilities by softmax")
        yield rows, probs
        let_go(pred_probs)


def let_go(table: Array) -> None:
    """Give back the memory that a file opened for reading has taken so far; without this it would all stay."""
    if isinstance(table, np.memmap) and table.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
        mapped = getattr(table, "_mmap", None)
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED)


def refuse(wrong: Array, first: int, reason: str) -> None:
    if wrong.any():
        raise InputError(f"row {first + int(wrong.argmax())} of pred_probs {reason}")
