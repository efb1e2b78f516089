"""Audit of labels in a file, with the predicted probabilities of any classifier or with features, also in a file.

`audit_files` is the audit without a run. Labels and probabilities come from .npy, .npz or .csv files, features from the
files that `labelsieve train --features` reads.
"""

import csv
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labelsieve.audit.files import write_audit
from labelsieve.audit.findings import findings_from_guesses
from labelsieve.audit.guesses import Array, Guesses, guesses_from_probs
from labelsieve.audit.others import OtherIssues
from labelsieve.audit.posterior import share_of_disagreements
from labelsieve.auto.audit import print_about_corrected
from labelsieve.auto.samples import read_texts, sample_renderer, sample_texts, text_file, text_renderer
from labelsieve.data import ReadOptions
from labelsieve.data.arrays import finite_rows, label_tensor, load_npy, load_npz, npz_keys
from labelsieve.data.classes import encode_labels
from labelsieve.data.load import find, read_features
from labelsieve.data.sets import Undecoded
from labelsieve.data.table import read_records
from labelsieve.errors import InputError
from labelsieve.features.neighbours import find_other_issues, limit_of_search
from labelsieve.quality import judge
from labelsieve.review.decisions import decisions_path
from labelsieve.runs.execute import versions
from labelsieve.text import escape_cell, listed, parse_number, printable

Names = tuple[str, ...]
Record = tuple[int, list[str]]  # number of a line and its cells
TABLES = (".csv", ".tsv")
PREFIX = "p_"  # of the probability columns in a table with other columns
LABEL = "label"  # column of a table
LABELS = "labels"  # array in a .npz file of data
PRINTED_CLASSES = 10
ACCEPTED = {
    "labels": "a .npy file, a .npz file with one array (n) or an array labels, or a .csv file with one column or a "
    "column named label",
    "probabilities": "a .npy or .npz file with one array (n, K), or a .csv file with a column per class",
}


class _Evidence(NamedTuple):
    """Labels of n samples, and what speaks for or against them."""

    guesses: Guesses
    classes: Names
    second: Guesses | None = None  # about true classes, of heads that learned corrected labels
    others: OtherIssues | None = None
    ids: Sequence[str] | None = None  # (n)
    rows: Array | None = None  # (n, F) features


def audit_files(
    labels: Path,
    out: Path,
    *,
    pred_probs: Path | None = None,
    features: Path | None = None,
    classes: Path | None = None,
    text: str | None = None,
    data: str | None = None,
    export: Sequence[str] = (),
) -> None:
    """Audit labels with the probabilities of any classifier or with features, write the files and print the result.

    Args:
        labels: File of the labels.
        out: Folder of the audit.
        pred_probs: File of the probabilities, from a classifier that was not trained on these labels.
        features: File of features of the samples, instead of probabilities.
        classes: Text file with a class name per line, in the order of the columns.
        text: The samples themselves, as file.csv:column.
        data: The samples themselves, as data for `labelsieve train`.
        export: Names of additional formats, keys of `labelsieve.audit.files.EXPORTS`.
    """
    samples = None if data is None else find(data, ReadOptions()).train
    if features is not None and pred_probs is None:
        found = _judge_by_features(labels, features, classes, samples)
    elif pred_probs is not None and features is None:
        found = _judge_by_probabilities(labels, pred_probs, classes, samples)
    else:
        raise InputError("give either --pred-probs or --features")
    guesses, ids = found.guesses, found.ids
    render, texts = None, None
    if data is not None and samples is not None:
        if len(samples) != len(guesses):
            raise InputError(f"{data} has {len(samples):,} samples but {labels} has {len(guesses):,} labels")
        render, ids = sample_renderer(data, ReadOptions(), samples), samples.names and list(samples.names)
        texts = sample_texts(samples)
    elif text is not None:
        texts = read_texts(text, len(guesses))
        render = text_renderer(texts)
    _refuse_other_decisions(out, [found.classes[label] for label in guesses.labels.tolist()])
    made: dict[str, Any] = {"method": "features" if features else "pred-probs", "versions": versions()}
    made |= {"labels": str(labels), "data": data, "text": text and text_file(text)}
    made |= {"features": str(features)} if features else {"pred_probs": str(pred_probs)}
    findings = findings_from_guesses(
        guesses, found.classes, ids, out_of_sample=True, second=found.second, others=found.others
    )
    write_audit(findings, out, made, render=render, texts=texts, features=found.rows, export=export)
    print_about_corrected(out, export)
    folder = printable(shlex.quote(str(out)))
    print(f"report: labelsieve report {folder}\nreview: labelsieve review {folder}")
    if render is None:
        print("To show the samples in the report and the review, add --text or --data to this command.")


def _judge_by_probabilities(
    labels: Path, pred_probs: Path, classes: Path | None, samples: Undecoded | None
) -> _Evidence:
    probs, columns = read_probabilities(pred_probs)
    count = probs.shape[1]
    known = columns if classes is None else _read_class_names(classes, count)
    of_data = tuple(samples.classes) if samples is not None and len(samples.classes) == count else None
    candidates = known or of_data
    numbers, names, assumed = class_numbers(read_labels(labels), candidates, labels, count)
    if assumed or (candidates and not known):
        order = printable(listed(names, PRINTED_CLASSES))
        print(f"assumed order of the columns: {order}; name them with --classes if this is wrong")
    guesses = guesses_from_probs(numbers, probs)
    if share_of_disagreements(guesses) == 0:
        print(
            f"warning: every prediction of {pred_probs} equals its label; if the classifier was trained on these "
            "labels, wrong ones cannot be found: pass out-of-fold predictions",
            file=sys.stderr,
        )
    return _Evidence(guesses, names)


def _judge_by_features(labels: Path, features: Path, classes: Path | None, samples: Undecoded | None) -> _Evidence:
    stored = read_features(features)
    if "train" not in stored.rows:
        raise InputError(f"{features} has no training split (splits: {', '.join(stored.rows)}); the labels are its own")
    rows = finite_rows(stored.rows["train"], str(features))
    of_data = None if samples is None else tuple(samples.classes)
    known = of_data if classes is None else _read_class_names(classes)
    numbers, names, _ = class_numbers(read_labels(labels), known, labels)
    judgment = judge(numbers, rows, len(names))
    if limit := limit_of_search(len(rows)):
        print(limit)
    others = find_other_issues(rows, judgment.first.labels)
    return _Evidence(judgment.first, names, judgment.second, others, stored.names.get("train"), rows.numpy())


def read_labels(path: Path) -> Array:
    """Return the labels (n) in a file, as numbers or as names.

    In a table, this is the column named label, or else the only column, which has no header then.
    """
    if path.suffix.lower() not in TABLES:
        return _only_array(path, "labels")
    records = _read_table(path)
    header = [name.strip().casefold() for name in records[0][1]]
    if LABEL in header:
        place, rows = header.index(LABEL), records[1:]
    elif len(header) == 1:
        place, rows = 0, records
    else:
        listed = ", ".join(records[0][1])
        raise InputError(f"{path} has {len(header)} columns ({listed}), none named label; give {ACCEPTED['labels']}")
    if not rows:
        raise InputError(f"{path} has a header but no labels; give {ACCEPTED['labels']}")
    return np.array([cells[place].strip() for _, cells in rows])


def read_probabilities(path: Path) -> tuple[Array, Names | None]:
    """Return the probabilities (n, K) in a file and the names of its columns, if any; .npy files are memory-mapped."""
    table = path.suffix.lower() in TABLES
    probs, names = _probability_table(path) if table else (_only_array(path, "probabilities"), None)
    if probs.ndim != 2:
        raise InputError(f"{path} must hold one array of shape (samples, classes), not {probs.shape}")
    return probs, names


def _read_class_names(path: Path, count: int | None = None) -> Names:
    """Return the class names in a text file with one name per line."""
    try:
        names = tuple(path.read_text(encoding="utf-8-sig").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}; --classes needs a text file with one name per line") from error
    if len(names) != (count or len(names)) or len(set(names)) < len(names):
        order = f"{count} different classes, one per line, in the order of the columns"
        raise InputError(f"{path} must name {order if count else 'different classes, one per line'}")
    return names


def class_numbers(
    labels: Array, names: Names | None, path: Path, count: int | None = None
) -> tuple[Array, Names, bool]:
    """Return labels (n) as class numbers, the names of the classes, and whether their order is assumed.

    Labels that are all among the names of the classes stand for these; other integers are class numbers, from 0.
    Without a `count`, the classes are those that the labels name, or reach from 0 to the largest label.
    """
    distinct, codes = np.unique(labels, return_inverse=True)
    words = [word.decode(errors="replace") if isinstance(word, bytes) else str(word) for word in distinct.tolist()]
    place = {name: k for k, name in enumerate(names or ())}
    if words and all(word in place for word in words):
        return np.array([place[word] for word in words], dtype=np.int64)[codes], names or (), False
    numeric = words and all(word.isascii() and word.isdigit() and len(word) < 10 for word in words)
    if labels.dtype.kind not in "US" or numeric:
        numbers = labels if labels.dtype.kind not in "US" else np.array([int(word) for word in words])[codes]
        return numbers, names or tuple(map(str, range(count or _count_classes(numbers, path)))), False
    if names is not None:
        unknown = next(word for word in words if word not in place)
        raise InputError(f"{path}: {unknown!r} is not one of the classes ({', '.join(names[:10])})")
    encoded, found = encode_labels(labels, str(path))
    if count is not None and len(found) != count:
        raise InputError(f"{path} has {len(found)} classes, the probabilities {count} columns; set --classes")
    return encoded.numpy(), found, True


def _count_classes(numbers: Array, path: Path) -> int:
    """Return the number of classes of labels that are numbers from 0."""
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not len(numbers) or not numbers.min() >= 0:
        raise InputError(f"{path} must hold one array of names or of class numbers from 0, got {numbers.dtype}")
    if numbers.max() >= len(numbers):
        raise InputError(
            f"{path} has {len(numbers):,} labels, of which the largest is {numbers.max():,}; number the classes from 0"
        )
    return int(numbers.max()) + 1


def _refuse_other_decisions(out: Path, given: Sequence[str]) -> None:
    """Raise InputError if the folder holds decisions about other labels than those given (n).

    labels.csv says which labels they are about: also after an interrupted audit, it is of these labels.
    """
    table = out / "labels.csv"
    if not decisions_path(out).exists() or not table.is_file():
        return
    try:
        with table.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            before = {row.get("index"): row.get("given_label") for row in csv.DictReader(file)}
    except (OSError, csv.Error) as error:
        raise InputError(f"cannot read {table}: {error}; use another --out") from error
    if before != {str(index): escape_cell(label) for index, label in enumerate(given)}:
        raise InputError(f"{out}/review holds decisions about other labels; use another --out or move that folder")


def _only_array(path: Path, kind: str) -> Array:
    """Return the only array of a .npy or .npz file."""
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz"):
        raise InputError(f"{path} cannot be used for the {kind}; give {ACCEPTED[kind]}")
    if not path.is_file():
        raise InputError(f"cannot read {path}: there is no such file; give {ACCEPTED[kind]}")
    with path.open("rb") as file:
        start = file.read(6)
    if not start.startswith(b"PK" if suffix == ".npz" else b"\x93NUMPY"):
        raise InputError(f"{path} is not a {suffix} file, despite its name; give {ACCEPTED[kind]}")
    if suffix == ".npz":
        if kind == LABELS and LABELS in npz_keys(path):
            return _labels_of_data(path)
        arrays = load_npz(path)
        if len(arrays) != 1:
            raise InputError(f"{path} holds {len(arrays)} arrays ({', '.join(arrays)}); give {ACCEPTED[kind]}")
        return next(iter(arrays.values()))
    return load_npy(path, mapped=True)


def _labels_of_data(path: Path) -> Array:
    """Return the labels in a .npz file of data, such as features; as names if the file names its classes."""
    arrays = load_npz(path, (LABELS, "classes"))
    labels, classes = arrays[LABELS], arrays.get("classes")
    if classes is None or labels.dtype.kind not in "iu":
        return labels
    return np.asarray(classes[label_tensor(labels, len(classes), str(path)).numpy()])


def _probability_table(path: Path) -> tuple[Array, Names | None]:
    """Return the probabilities in a .csv file and the names of their columns.

    With a header, these are the columns that begin with p_ or, if there are none, all named columns except label.
    """
    records = _read_table(path)
    header = [name.strip() for name in records[0][1]]
    if not is_header(header):
        return _parse_probabilities(path, records, range(len(header))), None
    prefixed = [k for k, name in enumerate(header) if name.startswith(PREFIX)]
    # pandas writes row numbers into a column without a name
    places = prefixed or [k for k, name in enumerate(header) if name and name.casefold() != LABEL]
    names = tuple(header[k].removeprefix(PREFIX) if prefixed else header[k] for k in places)
    if len(set(names)) < len(names):
        raise InputError(f"{path} names a class twice in its header; give each column its own name")
    return _parse_probabilities(path, records[1:], places), names


def is_header(cells: Sequence[str]) -> bool:
    """Return whether the first line of a table holds names or class numbers instead of probabilities.

    Class numbers are different integers, other than the two probabilities 1 and 0.
    """
    if all(cell.isascii() and cell.isdigit() for cell in cells):
        return len(set(cells)) == len(cells) and list(cells) != ["1", "0"]
    return None in map(_parse_number, cells)


def _parse_number(cell: str) -> float | None:
    """Return the number in a cell, also with a decimal comma; None if it holds none."""
    try:
        return parse_number(cell.replace(",", "."))
    except ValueError:
        return None


def _parse_probabilities(path: Path, records: Sequence[Record], places: Sequence[int]) -> Array:
    """Return the numbers (n, K) in these columns."""
    if not records:
        raise InputError(f"{path} has a header but no rows; give {ACCEPTED['probabilities']}")
    table = np.empty((len(records), len(places)), np.float32)
    for row, (line, cells) in enumerate(records):
        values = [_parse_number(cells[place]) for place in places]
        if None in values:
            raise InputError(
                f"{path}:{line} holds {cells[places[values.index(None)]]!r} where a probability is expected; remove "
                f"other columns, or begin the names of the probability columns with {PREFIX}"
            )
        table[row] = values
    return table


def _read_table(path: Path) -> list[Record]:
    """Return the lines of a .csv file, all with the same number of cells."""
    records = read_records(path)
    if not records:
        raise InputError(f"{path} is empty")
    columns = len(records[0][1])
    for line, cells in records:
        if len(cells) != columns:
            raise InputError(f"{path}:{line} has {len(cells)} cells but the first line has {columns}; correct it")
    return records
