"""labelsieve predict: classify samples with the model of a run, and write a table."""

import csv
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from labelsieve.commands import options as shared
from labelsieve.data import DATASETS, Labelled, ReadOptions, Trainable, load_data
from labelsieve.data.arrays import load_npy, load_npz, npz_keys
from labelsieve.data.folder import IMAGE_SUFFIXES, labelled_files, read_unlabelled_images
from labelsieve.data.images import Frame, Unusable, describe_unusable
from labelsieve.data.load import decode_all
from labelsieve.data.table import read_unlabelled_table
from labelsieve.errors import InputError
from labelsieve.files import refuse_others
from labelsieve.predict import Predictor, load
from labelsieve.runs.find import refuse_unfinished


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "data", metavar="DATA", help="as for train, with or without labels; or a .npy file of images, or one picture"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="table (id, predicted_label, confidence). Default: terminal"
    )
    parser.add_argument("--model", metavar="NAME", help="package.module:factory again, if the network is your own")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default) or cuda")
    shared.add_columns(parser)


def run(options: Namespace) -> None:
    columns = {"label": options.label_column, "image": options.image_column}
    classify(options.run, options.data, options.out, options.device, options.model, **columns)


COLUMNS = ("id", "predicted_label", "confidence")


def classify(run_path: Path, data: str, out: Path | None, device: str, model: str | None, **columns: Any) -> None:
    """Write a table with the predicted class of every sample."""
    refuse_unfinished(run_path)
    if out:
        refuse_others(out, ",".join(COLUMNS))
    predictor = load(run_path, device, model)
    probs, given, names = predictions(data, predictor, columns)
    rows = [(names[i], predictor.classes[k], f"{probs[i, k]:.4f}") for i, k in enumerate(probs.argmax(1).tolist())]
    try:
        with ExitStack() as stack:
            file = (
                stack.enter_context(out.open("w", newline="", encoding="utf-8", errors="surrogateescape"))
                if out
                else sys.stdout
            )
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from error
    if out:
        wrong = sum(row[1] != label for row, label in zip(rows, given or (), strict=given is not None))
        differ = f"; {100 * wrong / len(rows):.2f}% differ from their given label" if given is not None else ""
        print(f"{len(rows):,} samples classified{differ}: {out}")


def predictions(
    data: str, predictor: Predictor, columns: dict[str, Any]
) -> tuple[Any, list[str] | None, Sequence[Any]]:
    """Probabilities (n, K), the class names of the labels where the data has some, and what to call each sample."""
    path = Path(data)
    if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
        return alone(path, predictor)
    if path.suffix == ".npy" or (path.suffix == ".npz" and "labels" not in npz_keys(path)):
        values = load_npy(path) if path.suffix == ".npy" else unlabelled(path)
        return predictor.predict_proba(values, data), None, range(len(values))
    reading = ReadOptions(frame=frame_of(predictor), normalise=predictor.normalise, skip_bad=True, **columns)
    try:
        sets = load_data(data, reading, on_unusable=say_left_out)
    except InputError:
        bare = without_labels(path, reading, predictor)
        if bare is None:
            raise
        return predictor.predict_set(bare), None, bare.names or range(len(bare))
    known = [sets.test] if data in DATASETS and sets.test else [each for each in sets if each is not None]
    probs = np.concatenate([predictor.predict_set(each) for each in known])
    given = [each.classes[k] for each in known for k in each.labels.tolist()]
    names = [name for each in known for name in each.names or ()]
    return probs, given, names or range(len(given))


def alone(path: Path, predictor: Predictor) -> tuple[Any, None, list[str]]:
    """The same of a single picture."""
    if len(predictor.shape) != 3:
        raise InputError(f"{path} is a picture, but the model was trained on rows of {predictor.shape[0]} numbers")
    picture = labelled_files(path.parent, [path.name], [0], predictor.classes)
    whole, bad = decode_all(picture, frame_of(predictor))
    if bad:
        raise InputError(f"cannot read {path}: {bad[0].reason}")
    return predictor.predict_set(replace(whole, normalise=predictor.normalise)), None, [path.name]


def frame_of(predictor: Predictor) -> Frame | None:
    """What pictures are brought to for it; None for a model of rows."""
    return Frame(*predictor.shape[1:], predictor.shape[0]) if len(predictor.shape) == 3 else None


def without_labels(path: Path, reading: ReadOptions, predictor: Predictor) -> Trainable | None:
    """A folder of images, or a table, that has no labels."""
    if path.is_dir():
        pictures, bad = read_unlabelled_images(path, predictor.classes)
    elif path.suffix.lower() in (".csv", ".tsv"):
        found = read_unlabelled_table(path, predictor.classes, reading.image, predictor.columns)
        if isinstance(found, Labelled):
            return found
        pictures, bad = found, []
    else:
        return None
    whole, unusable = decode_all(pictures, reading.frame)
    say_left_out([*bad, *unusable])
    if not len(whole):
        raise InputError(f"none of the images of {path} can be read")
    return replace(whole, normalise=predictor.normalise)


def say_left_out(bad: Sequence[Unusable]) -> None:
    if bad:
        print(describe_unusable(bad), file=sys.stderr)


def unlabelled(path: Path) -> Any:
    """The images or rows of a .npz file without labels."""
    arrays = load_npz(path)
    for key in ("images", "features"):
        if key in arrays:
            return arrays[key]
    raise InputError(f"{path} has no 'images' (it has: {', '.join(arrays)})")
