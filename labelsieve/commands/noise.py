"""labelsieve noise: write noisy labels for a dataset, to be used with `labelsieve train --labels`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from labelsieve.commands import options as shared

MATRIX_SHOWN = 20  # classes


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_data(parser, default="fashion")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="label file (.csv or .npy) to write; with --paper, a folder",
    )
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
    parser.add_argument(
        "--paper",
        action="store_true",
        help="write the labels of every cell and seed of the paper's tables for cifar10 or cifar100, checked by digest",
    )
    parser.add_argument("--skip-bad", action="store_true", help="skip files and rows that cannot be read")
    shared.add_columns(parser)


def run(options: Namespace) -> None:
    if not shared.is_matrix(options.kind):
        shared.check_noise(options.kind, options.rate)
    from labelsieve.data.labels import write_labels
    from labelsieve.data.load import find, load_data
    from labelsieve.data.sets import Texts
    from labelsieve.noise import corrupt, transition_counts
    from labelsieve.runs.data import noise_matrix

    if options.paper:
        _write_paper_noise(options.data, options.out)
        return
    reading = shared.reading(options, skip_bad=options.skip_bad)
    listed = find(options.data, reading).train  # texts are not encoded: only their labels are needed
    train = listed if isinstance(listed, Texts) else load_data(options.data, reading).train
    matrix = noise_matrix(options.kind, options.rate, options.noise_map, len(train.classes))
    noisy = corrupt(train.labels, matrix, options.seed, exact=options.exact)
    write_labels(options.out, noisy, train.classes, train.names)
    counts = transition_counts(train.labels, noisy, len(train.classes))
    share = 1 - counts.diagonal().sum().item() / len(train)
    print(f"{options.out}: {len(train):,} labels, {100 * share:.2f}% changed")
    if len(train.classes) <= MATRIX_SHOWN:
        width = max(len(name) for name in train.classes)
        print("number of samples; rows: true class, columns: label")
        for name, row in zip(train.classes, counts.tolist(), strict=True):
            print(f"{name:>{width}} " + " ".join(f"{count:5}" for count in row))


def _write_paper_noise(data: str, folder: Path) -> None:
    from labelsieve.data import load_data
    from labelsieve.paper.noise_files import refuse_unknown, write_noise_files

    refuse_unknown(data)
    train = load_data(data).train
    made = write_noise_files(data, train.labels, train.classes, folder)
    print(f"{folder}: {len(made)} label files, whose digests are the published ones; listed in {data}-noise.csv")
