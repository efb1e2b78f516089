"""labelsieve figure: reproduce a figure of the paper as PNG and SVG; missing runs are trained."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from labelsieve.commands import options as shared


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("number", type=shared.integer, metavar="NUMBER", help="3, 7, 8, 9, 10 or 11, as in the paper")
    parser.add_argument(
        "--dataset",
        metavar="NAME",
        help="only cifar10, cifar100 or tiny-imagenet; or fashion, the embedded data. Default: those of the paper",
    )
    parser.add_argument(
        "--seeds", type=shared.integer, default=3, metavar="N", help="runs per point; figure 3 uses one. Default: 3"
    )
    parser.add_argument(
        "--save", type=Path, metavar="FOLDER", help="folder for the pictures. Default: that of the runs"
    )
    shared.add_reproduction(parser)


def run(options: Namespace) -> None:
    from labelsieve.paper.figures import reproduce_figure

    reproduce_figure(
        **shared.selected(options, "number", "dataset", "seeds", "save", "show", "out", "results", "at_once", "on"),
        **shared.selected(options, "device", "precision", "threads"),
    )
