"""audit_files: the suspects among labels in a file, by probabilities that somebody else's classifier gave."""

import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from labelsieve.audit.findings import findings_of
from labelsieve.audit.guesses import Array, guesses_of
from labelsieve.cells import printable
from labelsieve.data import Reading, Trainable, load_data
from labelsieve.errors import InputError
from labelsieve.experiments.folder import read_json
from labelsieve.experiments.foreign import Names, class_names, numbers_of, read_given, read_probabilities
from labelsieve.experiments.run import versions
from labelsieve.experiments.show import read_texts, text_file, views_of, views_of_text
from labelsieve.experiments.write_audit import LISTED, say_decisions, write_audit


def audit_files(
    labels: Path,
    pred_probs: Path,
    classes: Path | None,
    text: str | None,
    data: str | None,
    out: Path,
    export: Sequence[str],
) -> None:
    """The audit of labels and probabilities in files."""
    probs, columns = read_probabilities(pred_probs)
    whole = None if data is None else samples_in(data, len(probs), pred_probs)
    told = class_names(classes, probs.shape[1]) or columns
    numbers, names = named_labels(labels, probs.shape[1], told, None if whole is None else tuple(whole.classes))
    guesses = guesses_of(numbers, probs)
    shown, ids, texts = None, None, None
    if data is not None and whole is not None:
        shown, ids = views_of(data, Reading(), whole), whole.names and list(whole.names)
    elif text is not None:
        texts = read_texts(text, len(guesses))
        shown = views_of_text(texts)
    of_labels = fingerprint(guesses.labels, names)
    refuse_other_decisions(out, of_labels)
    made = {"method": "pred-probs", "versions": versions(), "statistics": False, "fingerprint": of_labels}
    made |= {"labels": str(labels), "pred_probs": str(pred_probs), "data": data, "text": text and text_file(text)}
    write_audit(findings_of(guesses, names, ids, unlearnt=True), None, made, shown, out, export, texts)
    say_decisions(out, export)
    quoted = printable(shlex.quote(str(out)))
    print(f"look at them: labelsieve report {quoted}\ngo through:   labelsieve review {quoted}")
    if shown is None:
        print("the samples themselves are shown there if the same command names them by --text or --data")


def samples_in(data: str, count: int, pred_probs: Path) -> Trainable:
    """What the probabilities are of."""
    whole = load_data(data, Reading()).train
    if len(whole) != count:
        raise InputError(f"{data} has {len(whole):,} samples but {pred_probs} has {count:,} rows")
    return whole


def named_labels(path: Path, count: int, told: Names | None, of_data: Names | None) -> tuple[Array, Names]:
    """Labels as numbers, and the names of the classes; where nobody told these, it is said how they are taken."""
    known = told or (of_data if of_data and len(of_data) == count else None)
    numbers, names, guessed = numbers_of(read_given(path), known, path, count)
    if guessed or (known and not told):
        listed = printable(", ".join(names[:LISTED])) + (", ..." if count > LISTED else "")
        print(f"columns are taken as: {listed}; say --classes if that is not so")
    return numbers, names


def fingerprint(labels: Array, names: Sequence[str]) -> str:
    """Tells these labels from others."""
    return hashlib.sha256(repr(names).encode() + labels.astype(np.int64).tobytes()).hexdigest()[:16]


def refuse_other_decisions(out: Path, labels: str) -> None:
    """Decisions that a person made about other labels would change the wrong ones of these."""
    if not (out / "review" / "decisions.jsonl").exists() or not (out / "summary.json").exists():
        return
    if read_json(out / "summary.json").get("made", {}).get("fingerprint") != labels:
        raise InputError(f"{out}/review holds decisions about other labels; name another --out, or move it away")
