"""Turn the rows of a table into labelled sets: assign roles to columns, collect unusable rows, and make splits.

Readers of table files fill a `RawTable` and pass it to `list_table`.
"""

import shlex
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.classes import Array, Labels, encode_labels, factorize, join_names, missing_labels, quote
from labelsieve.data.folder import SPLITS as FOLDER_SPLITS
from labelsieve.data.images import Pictures, Reader, SubsetReader, Unusable
from labelsieve.data.sets import Labelled, Listing, Texts, Undecoded
from labelsieve.errors import InputError, nearest

LABEL_NAMES = (("label", "labels", "class", "target"), ("y",))  # the first group that the table has
TEXT_LABEL_NAMES = ("category", "intent", "sentiment")  # in tables of texts; in others they are features
IMAGE_NAMES = ("image", "path", "file", "filename", "filepath", "image_path", "file_name", "img")
TEXT_NAMES = (
    *("text", "sentence", "content", "review", "question", "utterance", "document", "body", "message", "comment"),
    *("tweet", "headline", "description", "title"),
)
CLEAN_NAMES = ("clean_label", "clean_labels", "true_label")
INDEX_NAMES = ("", "index", "id", "unnamed: 0", "__index_level_0__")  # number the rows, so they are not features
SPLITS = {**FOLDER_SPLITS, "dev": "valid"}
BEYOND_FLOAT32 = "is too large or not finite"  # of a number that cannot be used


class ColumnRoles(NamedTuple):
    """The meaning of the columns of a table."""

    label: str
    image: str | None
    split: str | None
    clean: str | None
    numbers: tuple[str, ...]  # features; empty if there is an image, text or vector column
    text: str | None = None
    vector: str | None = None  # lists of numbers: features


class RawTable(NamedTuple):
    """All rows of a table, as read from the file."""

    source: str
    rows: Sequence[str]  # (n) file:line, for messages
    names: Sequence[str]  # (n) name of each sample
    inputs: Reader | Tensor | None  # encoded images, or features (n, F) float32; None if there are only texts
    columns: tuple[str, ...]  # (F)
    labels: Labels  # (n)
    faults: dict[int, str]  # row -> why its input cannot be used
    splits: Sequence[Any] | None = None  # (n)
    clean: Labels | None = None  # (n)
    classes: tuple[str, ...] | None = None  # class names that the file defines for the indices 0, 1, ...
    texts: Sequence[str] | None = None  # (n)


def assign_columns(
    columns: Sequence[str],
    source: str,
    label: str | None,
    image: str | None,
    text: str | None = None,
    texts: Sequence[str] = (),
    vectors: Sequence[str] = (),
) -> ColumnRoles:
    """Return the roles of the columns, from the given names or from the usual ones.

    Args:
        columns: names of all columns.
        source: name of the table, for messages.
        label: name of the label column, if given.
        image: name of the image column, if given.
        text: name of the text column, if given.
        texts: columns whose cells are texts; only these are found by a usual name.
        vectors: columns whose cells are lists of numbers.
    """
    repeated = [name for name, count in Counter(columns).items() if count > 1]
    if repeated:
        raise InputError(f"{source} has two columns {quote(repeated[0])}; rename one")
    for given in (label, image, text):
        if given is not None and given not in columns:
            known = [quote(name)[1:-1] for name in columns[:50]]
            raise InputError(f"{source} has no column {given!r} ({nearest(given, known)})")
    if image is not None and text is not None:
        raise InputError(f"{source}: pass either --image-column or --text-column, not both")
    if image is None and text is None:
        image = usual_column(columns, IMAGE_NAMES, label)
        text = usual_column(texts, TEXT_NAMES, label) if image is None else None
    label = _label_column(columns, source, text is not None) if label is None else label
    split = usual_column(columns, ("split",), label)
    clean = usual_column(columns, CLEAN_NAMES, label)
    if label in (image, text):
        kind = "image" if label == image else "text"
        raise InputError(f"{source}: column {quote(label)} cannot be both {kind} and label; choose another")
    if image is not None:
        return ColumnRoles(label, image, split, clean, ())
    if len(vectors) > 1:
        raise InputError(f"{source} has two columns of lists, {quote(vectors[0])} and {quote(vectors[1])}; remove one")
    if text is not None or vectors:
        return ColumnRoles(label, None, split, clean, (), text, vectors[0] if vectors else None)
    used = (label, split, clean)
    numbers = tuple(name for name in columns if name not in used and name.strip().lower() not in INDEX_NAMES)
    if not numbers:
        raise InputError(
            f"{source} has labels but no inputs (columns: {join_names(columns, 20)}); "
            "it needs a column of image paths or texts, or numeric columns"
        )
    return ColumnRoles(label, None, split, clean, numbers)


def usual_column(columns: Sequence[str], names: Sequence[str], label: str | None = None) -> str | None:
    """Return the column with the first of the usual names, ignoring case and the label column."""
    column = {name.strip().lower(): name for name in reversed(columns) if name != label}
    return next((column[name] for name in names if name in column), None)


def feature_tensor(values: "array[float] | Array", columns: Sequence[str], faults: dict[int, str]) -> Tensor:
    """Return numbers as (n, F) float32, and add the rows with values that are too large or not finite to the faults."""
    given = np.asarray(values).reshape(-1, len(columns))
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        table = given.astype(np.float32, copy=False)
    for row, column in np.argwhere(~np.isfinite(table)).tolist():
        faults.setdefault(row, f"column {quote(columns[column])} contains {given[row, column]}, which {BEYOND_FLOAT32}")
    return torch.from_numpy(table)


def list_table(table: RawTable, kind: str) -> Listing:
    """Return the usable rows as sets with class indices."""
    faults = _all_faults(table)
    unusable = [Unusable(table.rows[row], faults[row]) for row in sorted(faults)]
    good = [row for row in range(len(table.rows)) if row not in faults]
    if not good:
        first = f"; {unusable[0].name}: {unusable[0].reason}" if unusable else ""
        raise InputError(f"{table.source}: none of the {len(unusable):,} rows can be used{first}")
    try:
        labels, clean, classes = _class_indices(table, good)
    except InputError as error:
        if not unusable:
            raise
        count = "1 unusable row" if len(unusable) == 1 else f"{len(unusable):,} unusable rows"
        raise InputError(f"{unusable[0].name}: {unusable[0].reason}; without {count}, {error}") from error
    whole = _make_set(table, good, labels, clean, classes)
    if table.splits is None:
        return Listing(whole, None, None, unusable, kind)
    splits = np.array([SPLITS[_split_key(table.splits[row])] for row in good])
    members = {split: torch.from_numpy(np.flatnonzero(splits == split)) for split in ("train", "test", "valid")}
    if not len(members["train"]):
        raise InputError(f"{table.source}: no usable row has the split train; add some")
    _check_unseen_classes(whole, members, table)
    test, valid = (whole.at(members[split]) if len(members[split]) else None for split in ("test", "valid"))
    return Listing(whole.at(members["train"]), test, valid, unusable, kind)


def text_faults(texts: Sequence[str]) -> dict[int, str]:
    """Return row -> reason for empty texts."""
    return {row: "no text; add one or remove the row" for row, text in enumerate(texts) if not text.strip()}


def _label_column(columns: Sequence[str], source: str, has_texts: bool) -> str:
    for names in (*LABEL_NAMES, *([TEXT_LABEL_NAMES] if has_texts else [])):
        found = [name for name in columns if name.strip().lower() in names]
        if len(found) > 1:
            raise InputError(
                f"{source}: both {quote(found[0])} and {quote(found[1])} could be the label column; choose one, "
                f"such as --label-column {shlex.quote(found[0])}, and remove the other"
            )
        if found:
            return found[0]
    raise InputError(
        f"{source} has no column 'label' (columns: {join_names(columns, 20)}); choose the label column, "
        f"such as --label-column {shlex.quote(columns[-1])}"
    )


def _all_faults(table: RawTable) -> dict[int, str]:
    """Return row -> reason for all rows that cannot be used."""
    faults = dict(table.faults)
    known = [(table.labels, "label"), *([] if table.clean is None else [(table.clean, "true label")])]
    for labels, name in known:
        for row in np.flatnonzero(missing_labels(labels)).tolist():
            faults.setdefault(row, f"no {name}; add one or remove the row")
    if table.splits is not None:
        codes, distinct = factorize(table.splits)
        valid = np.array([_split_key(name) in SPLITS for name in distinct], dtype=bool)
        for row in np.flatnonzero(~valid[codes]).tolist():
            faults.setdefault(row, f"unknown split {quote(table.splits[row])}; use train, test or val")
    if table.classes is not None:
        for labels, name in known:
            for row, label in enumerate(labels):
                if label is not None and not 0 <= label < len(table.classes):
                    faults.setdefault(row, f"{name} {label} is out of range: there are {len(table.classes)} classes")
    return faults


def _class_indices(table: RawTable, good: Sequence[int]) -> tuple[Tensor, Tensor | None, tuple[str, ...]]:
    """Return the class indices of labels and true labels, and the class names."""
    labels = [table.labels[row] for row in good]
    rows = [table.rows[row] for row in good]
    if table.clean is not None:
        labels, rows = labels + [table.clean[row] for row in good], rows * 2
    if table.classes is None:
        indices, classes = encode_labels(labels, table.source, rows)
    else:
        indices, classes = torch.tensor(labels, dtype=torch.int64), table.classes
    return indices[: len(good)], None if table.clean is None else indices[len(good) :], classes


def _make_set(
    table: RawTable, good: Sequence[int], labels: Tensor, clean: Tensor | None, classes: tuple[str, ...]
) -> Undecoded:
    names = [table.names[row] for row in good]
    texts = None
    if table.texts is not None:
        texts = Texts(names, [table.texts[row] for row in good], labels, classes, clean)
    if isinstance(table.inputs, Tensor):
        values = table.inputs if len(good) == len(table.rows) else table.inputs[torch.tensor(good)]
        return Labelled(values, labels, classes, clean, names, columns=table.columns, original=texts)
    if table.inputs is None:
        assert texts is not None
        return texts
    read = table.inputs if len(good) == len(table.rows) else SubsetReader(table.inputs, good)
    return Pictures(names, read, labels, classes, clean)


def _split_key(value: Any) -> str:
    return str(value).strip().lower()


def _check_unseen_classes(whole: Undecoded, members: dict[str, Tensor], table: RawTable) -> None:
    """Raise if a test or validation row has a class without training rows, unless the file defines the classes."""
    if table.classes is not None:
        return
    counts = whole.labels[members["train"]].bincount(minlength=len(whole.classes))
    for split in ("test", "valid"):
        unseen = (counts[whole.labels[members[split]]] == 0).nonzero().flatten().tolist()
        if unseen:
            row = int(members[split][unseen[0]])
            raise InputError(
                f"{table.source}: {(whole.names or ())[row]} in the {split} split has the label "
                f"{quote(whole.classes[int(whole.labels[row])])}, which no training row has; correct or remove it"
            )
