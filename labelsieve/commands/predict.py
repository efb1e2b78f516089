"""labelsieve predict: classify samples with the model of a run, and write a table."""

import csv
import sys
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path

from labelsieve.commands import options as shared
from labelsieve.errors import InputError
from labelsieve.files import refuse_others

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
    columns = (options.label_column, options.image_column, options.text_column)
    probs, given, names = predict_data(predictor, options.data, *columns)
    rows = [(names[i], predictor.classes[k], f"{probs[i, k]:.4f}") for i, k in enumerate(probs.argmax(1).tolist())]
    try:
        with ExitStack() as stack:
            text = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"}
            file = stack.enter_context(out.open("w", **text)) if out else sys.stdout
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from error
    if out:
        wrong = sum(row[1] != label for row, label in zip(rows, given or (), strict=given is not None))
        differ = f", {100 * wrong / len(rows):.2f}% of them differently from their label" if given is not None else ""
        count = "1 sample" if len(rows) == 1 else f"{len(rows):,} samples"
        print(f"{count} classified{differ}: {out}")
