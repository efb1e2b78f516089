"""labelsieve noise: write noisy labels for a dataset, to be used with `labelsieve train --labels`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from labelsieve.commands import options as shared

MATRIX_SHOWN = 20  # classes


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_data(parser, default="fashion")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="label file (.csv) to write")
    parser.add_argument(
        "--kind",
        default="pair",
        metavar="KIND",
        help="pair (default), symmetry, mixed, asymmetric, or a .npy or .csv file with a transition matrix",
    )
    parser.add_argument(
        "--rate", type=shared.number, default=0.4, metavar="RATE", help="noise rate, from 0 to 1. Default: 0.4"
    )
    parser.add_argument(
        "--noise-map", default="", metavar="MAP", help="for asymmetric noise, true:observed pairs: 9:1,2:0"
    )
    parser.add_argument("--exact", action="store_true", help="corrupt exactly the given share of each class")
    parser.add_argument("--seed", type=shared.integer, default=0, metavar="N", help="random seed. Default: 0")
    parser.add_argument("--skip-bad", action="store_true", help="skip files and rows that cannot be read")
    shared.add_columns(parser)


def run(options: Namespace) -> None:
    from labelsieve.data import ReadOptions, load_data
    from labelsieve.data.labels import write_labels
    from labelsieve.noise import corrupt, transition_counts
    from labelsieve.runs.data import noise_matrix

    reading = ReadOptions(label=options.label_column, image=options.image_column, skip_bad=options.skip_bad)
    train = load_data(options.data, reading).train
    matrix = noise_matrix(options.kind, options.rate, options.noise_map, train.num_classes)
    noisy = corrupt(train.labels, matrix, options.seed, exact=options.exact)
    write_labels(options.out, noisy, train.classes, train.names)
    counts = transition_counts(train.labels, noisy, train.num_classes)
    share = 1 - counts.diagonal().sum().item() / len(train)
    print(f"{options.out}: {len(train):,} labels, {100 * share:.2f}% changed")
    if train.num_classes <= MATRIX_SHOWN:
        width = max(len(name) for name in train.classes)
        print("number of samples; rows: true class, columns: label")
        for name, row in zip(train.classes, counts.tolist(), strict=True):
            print(f"{name:>{width}} " + " ".join(f"{count:5}" for count in row))
