"""labelsieve predict: classify samples with the model of a run, and write a table."""

import csv
import io
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from labelsieve.commands import options as shared
from labelsieve.files import refuse_others, writing

COLUMNS = ("id", "predicted_label", "confidence")


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
    from labelsieve.predict import load, predict_data
    from labelsieve.runs.find import refuse_unfinished

    out = options.out
    refuse_unfinished(options.run)
    if out:
        refuse_others(out, ",".join(COLUMNS))
    predictor = load(options.run, options.device, options.model)
    _use_columns_of_training(options)
    probs, given, names = predict_data(predictor, options.data, shared.reading(options))
    rows = [(names[i], predictor.classes[k], f"{probs[i, k]:.4f}") for i, k in enumerate(probs.argmax(1).tolist())]
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([COLUMNS, *rows])
    if not out:
        sys.stdout.write(table.getvalue())
        return
    with writing(out) as file:
        file.write(table.getvalue().encode("utf-8", "surrogateescape"))
    count = "1 sample" if len(rows) == 1 else f"{len(rows):,} samples"
    predicted = [row[1] for row in rows]
    print(f"{count} classified{_difference(predicted, given, predictor.classes)}: {out}")


def _use_columns_of_training(options: Namespace) -> None:
    """Set the columns of a table to those of the training, unless they are given."""
    from labelsieve.data.parquet import PARQUET_SUFFIXES
    from labelsieve.runs.record import read_head

    is_table = Path(options.data).suffix.lower() in (".csv", ".tsv", *PARQUET_SUFFIXES)
    if not is_table or not (options.run / "spec.json").is_file():  # a copied model may lie alone
        return
    trained = read_head(options.run)["experiment"]
    if options.image_column is None and options.text_column is None:
        options.image_column, options.text_column = trained.get("image_column"), trained.get("text_column")
    options.label_column = options.label_column or trained.get("label_column")


def _difference(predicted: Sequence[str], given: Sequence[str] | None, classes: Sequence[str]) -> str:
    """Return how many predictions differ from the labels that the model knows; empty without labels."""
    if given is None:
        return ""
    from labelsieve.data.classes import join_names

    names = set(classes)
    known = [(guess, label) for guess, label in zip(predicted, given, strict=True) if label in names]
    said = ""
    if unknown := len(given) - len(known):
        others = join_names(sorted(set(given).difference(names)))
        said = f", {unknown:,} of them with labels that the model does not know ({others})"
    if known:
        share = 100 * sum(guess != label for guess, label in known) / len(known)
        said += f"; {share:.2f}% of the {'other ' if unknown else ''}predictions differ from the label"
    return said
