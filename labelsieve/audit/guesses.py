"""Guesses: predicted probabilities of labelled samples, reduced to the most likely classes of each sample."""

import mmap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from labelsieve.errors import InputError
from labelsieve.files import usable_cores

Array = np.ndarray[Any, Any]
KEPT_CLASSES = 5  # most likely classes kept per sample
CHUNK = 2**18  # probabilities processed at a time: 1 MB, which fits the cache
RELEASED = 16  # chunks of a memory-mapped file after which its pages are released
MANY_CLASSES = 50  # from which on the most likely classes are found one by one
MAX_THREADS = 4
_HIGH, _ROW, _CLASS = np.uint64(32), np.uint64(28), np.uint64(2**28 - 1)  # parts of the keys of `descending`
Part = TypeVar("Part")


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

    def replaced(self, where: Array, other: "Guesses") -> "Guesses":
        """Return the guesses with those of `other` about the samples where a mask (n) is True; labels stay."""
        parts = {}
        for name in ("confidence", "likeliest", "likelihood"):
            parts[name] = getattr(self, name).copy()
            parts[name][where] = getattr(other, name)
        return replace(self, **parts)

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

    def keep(rows: slice, probs: Array) -> None:
        place = np.arange(len(probs))
        confidence[rows] = probs[place, labels[rows]]
        if classes < MANY_CLASSES:
            top = np.argpartition(probs, classes - kept, axis=1)[:, classes - kept :]
            likeliest[rows], likelihood[rows] = (part.T for part in descending(top.T, probs[place[:, None], top].T))
            return
        left = probs.copy()
        for column in range(kept):  # faster than a partition
            likeliest[rows, column] = best = left.argmax(1)
            likelihood[rows, column] = left[place, best]
            left[place, best] = -1

    each_checked_chunk(pred_probs, keep)
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
    return slice(None, None, max(1, -(-count // most)))


def descending(classes: Array, likelihood: Array) -> tuple[Array, Array]:
    """Sort classes (M, B) by their likelihoods (M, B) in float32; equally likely classes keep their order.

    A likelihood, its row and its class form one integer. Neighbouring rows are exchanged M times.
    """
    rows = np.arange(len(classes), dtype=np.uint64)[::-1, None]
    keys = np.abs(likelihood, order="C").view(np.uint32).astype(np.uint64) << _HIGH
    keys |= (rows << _ROW) | classes.astype(np.uint64)
    for start in range(len(keys)):
        upper, lower = keys[start % 2 : -1 : 2], keys[start % 2 + 1 :: 2]
        smaller = np.minimum(upper, lower)
        np.maximum(upper, lower, out=upper)
        lower[:] = smaller
    return (keys & _CLASS).astype(np.int32), (keys >> _HIGH).astype(np.uint32).view(np.float32)


def stable_order(classes: Array) -> Array:
    """Return the positions of class numbers (n) in ascending order; 16-bit numbers are sorted in linear time."""
    return np.argsort(classes.astype(np.uint16) if classes.max(initial=0) < 2**16 else classes, kind="stable")


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


def each_checked_chunk(pred_probs: Array, function: Callable[[slice, Array], None], threads: int = MAX_THREADS) -> None:
    """Call a function with rows and their probabilities as float32, after checking them."""
    size = max(1, CHUNK // pred_probs.shape[1])
    tolerance = 0.05 if pred_probs.dtype.itemsize < 4 else 0.01  # half precision rounds

    def check(first: int) -> None:
        rows = slice(first, min(first + size, len(pred_probs)))
        probs: Array = np.asarray(pred_probs[rows], dtype=np.float32)
        with np.errstate(invalid="ignore"):
            sums_to_one = (abs(np.einsum("nk->n", probs) - 1) <= tolerance).all()  # false if any value is not finite
        if not (sums_to_one and probs.min() >= 0):
            _explain_rows(probs, first, tolerance)
        function(rows, probs)
        if first // size % RELEASED == RELEASED - 1:
            _release_pages(pred_probs)

    each_in_threads(check, range(0, len(pred_probs), size), threads)
    _release_pages(pred_probs)


def each_in_threads(function: Callable[[Part], None], parts: Sequence[Part], most: int = MAX_THREADS) -> None:
    """Call a function with each part, in at most this many threads: NumPy's loops run at the same time.

    If the function raises for several parts, the error is that of the first one.
    """
    threads = min(len(parts), most, usable_cores())
    if threads < 2:
        for part in parts:
            function(part)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(function, parts):
                pass


def _release_pages(pred_probs: Array) -> None:
    """Release the memory of the pages that were read from a memory-mapped file."""
    mapped = getattr(pred_probs, "_mmap", None)
    if mapped is not None and getattr(pred_probs, "mode", "") == "r" and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _explain_rows(probs: Array, first: int, tolerance: float) -> None:
    """Raise InputError that names the first row that is wrong."""
    _refuse_rows(~np.all(np.isfinite(probs), axis=1), first, "has a value that is not finite; remove the sample")
    _refuse_rows(np.any(probs < 0, axis=1), first, "has a probability below 0; apply softmax if these are logits")
    total: Array = probs.sum(1, dtype=np.float64)
    _refuse_rows(abs(total - 1) > tolerance, first, "does not sum to 1; apply softmax if these are logits")


def _refuse_rows(wrong: Array, first: int, reason: str) -> None:
    """Raise InputError that names the first wrong row."""
    if wrong.any():
        raise InputError(f"row {first + int(wrong.argmax())} of pred_probs {reason}")
