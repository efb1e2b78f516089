"""Guesses: predicted probabilities of labelled samples, reduced to the most likely classes of each sample."""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labelsieve.errors import InputError

Array = np.ndarray[Any, Any]
KEPT_CLASSES = 5  # most likely classes kept per sample
CHUNK = 2**22  # probabilities processed at a time: 32 MB


@dataclass(frozen=True)
class Guesses:
    """Labels of n samples and the classes that a classifier considers most likely, of K classes in total."""

    labels: Array  # (n) given labels
    confidence: Array  # (n) predicted probability of the given label
    likeliest: Array  # (n, M) most likely classes, in descending order
    likelihood: Array  # (n, M) their probabilities
    num_classes: int
    decided: Array | None = None  # (n) bool: a person decided on the label, so it counts as correct

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, index: Array | slice) -> "Guesses":
        """Return the guesses at these positions."""
        kept = self.likeliest[index], self.likelihood[index]
        decided = None if self.decided is None else self.decided[index]
        return Guesses(self.labels[index], self.confidence[index], *kept, self.num_classes, decided)

    @property
    def undecided(self) -> "Guesses":
        """Return the guesses for samples whose label no person has decided on."""
        return self if self.decided is None else self.at(~self.decided)


def guesses_from_probs(labels: Array, pred_probs: Array) -> Guesses:
    """Return the guesses in a table of probabilities (n, K) about samples with these labels (n), after checking both.

    The table is read once and in chunks, so it may be a memory-mapped file.
    """
    pred_probs = np.asanyarray(pred_probs)  # accepts tensors, keeps memory-mapped files mapped
    labels = checked_labels(labels, pred_probs)
    count, classes = pred_probs.shape
    kept = min(KEPT_CLASSES, classes)
    confidence = np.empty(count, np.float32)
    likeliest, likelihood = np.empty((count, kept), np.int32), np.empty((count, kept), np.float32)
    for rows, probs in checked_chunks(pred_probs):
        place = np.arange(len(probs))
        top = np.argpartition(probs, classes - kept, axis=1)[:, classes - kept :]
        order = np.argsort(-probs[place[:, None], top], axis=1, kind="stable")
        likeliest[rows] = top[place[:, None], order]
        likelihood[rows] = probs[place[:, None], likeliest[rows]]
        confidence[rows] = probs[place, labels[rows]]
    return Guesses(labels, confidence, likeliest, likelihood, classes)


def guesses_from_run(samples: Mapping[str, Array], num_classes: int) -> Guesses:
    """Return the guesses that a run saved in samples.safetensors; decided labels are certain."""
    kept = samples["likeliest"], samples["likelihood"]
    guesses = Guesses(samples["label"].astype(np.int64), samples["confidence"], *kept, num_classes)
    return with_decided(guesses, samples["decided"].astype(bool)) if "decided" in samples else guesses


def with_decided(guesses: Guesses, decided: Array) -> Guesses:
    """Return the guesses with probability 1 for the labels of decided samples (n)."""
    kept = guesses.likeliest.shape[1]
    rest = np.arange(kept - 1)
    others = rest + (rest >= guesses.labels[:, None])  # (n, M - 1) classes other than the label
    certain = np.eye(1, kept, dtype=guesses.likelihood.dtype)
    return replace(
        guesses,
        confidence=np.where(decided, np.float32(1), guesses.confidence),
        likeliest=np.where(decided[:, None], np.column_stack([guesses.labels, others]), guesses.likeliest),
        likelihood=np.where(decided[:, None], certain, guesses.likelihood),
        decided=decided,
    )


def evenly_spaced(count: int, most: int) -> slice:
    """Return a slice of at most `most` out of `count` samples; data may be sorted by class."""
    return slice(None, None, -(-count // most))


def checked_labels(labels: Array, pred_probs: Array) -> Array:
    """Return the labels as int64 after checking them and the shape of the probabilities."""
    if pred_probs.ndim != 2 or pred_probs.dtype.kind != "f":
        raise InputError(
            f"pred_probs must be floats of shape (samples, classes), got {pred_probs.dtype} {pred_probs.shape}"
        )
    labels = label_array(labels)
    if len(labels) != len(pred_probs):
        raise InputError(f"{len(labels):,} labels but {len(pred_probs):,} rows of pred_probs; give one each per sample")
    if not len(labels):
        raise InputError("labels and pred_probs are empty")
    if pred_probs.shape[1] < 2:
        raise InputError("pred_probs has one column; it needs a column for each of at least two classes")
    wrong = np.flatnonzero((labels < 0) | (labels >= pred_probs.shape[1]))
    if len(wrong):
        raise InputError(
            f"label {labels[wrong[0]]} at position {wrong[0]} is out of range: pred_probs has "
            f"{pred_probs.shape[1]} columns, for classes 0 to {pred_probs.shape[1] - 1} "
            f"({len(wrong):,} labels are out of range)"
        )
    return labels


def label_array(labels: Array) -> Array:
    """Return labels (n) as int64; raise InputError if they are not integers."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(f"labels must be a one-dimensional array of integers, got {labels.dtype} {labels.shape}")
    return labels.astype(np.int64)


def checked_chunks(pred_probs: Array) -> Iterator[tuple[slice, Array]]:
    """Yield rows and their probabilities as float32, after checking them."""
    size = max(1, CHUNK // pred_probs.shape[1])
    tolerance = 0.05 if pred_probs.dtype.itemsize < 4 else 0.01  # half precision rounds
    for first in range(0, len(pred_probs), size):
        rows = slice(first, min(first + size, len(pred_probs)))
        probs: Array = np.asarray(pred_probs[rows], dtype=np.float32)
        _refuse_rows(~np.all(np.isfinite(probs), axis=1), first, "has a value that is not finite; remove the sample")
        _refuse_rows(np.any(probs < 0, axis=1), first, "has a probability below 0; apply softmax if these are logits")
        total: Array = probs.sum(1, dtype=np.float64)
        _refuse_rows(abs(total - 1) > tolerance, first, "does not sum to 1; apply softmax if these are logits")
        yield rows, probs
        mapped = getattr(pred_probs, "_mmap", None)
        if mapped is not None and getattr(pred_probs, "mode", "") == "r" and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)  # release the memory of the pages read so far


def _refuse_rows(wrong: Array, first: int, reason: str) -> None:
    """Raise InputError that names the first wrong row."""
    if wrong.any():
        raise InputError(f"row {first + int(wrong.argmax())} of pred_probs {reason}")
