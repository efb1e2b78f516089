"""labelsieve demo: compare methods on the embedded data, as a table and a picture."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from labelsieve.commands import options as shared


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--noise", default="pair", metavar="KIND", help="added noise: pair (default), symmetry or mixed"
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=0.4,
        metavar="RATE",
        help="rate of the added noise, given to the methods. Default: 0.4",
    )
    shared.add_seeds(parser)
    parser.add_argument(
        "--methods", default="default,mentornet,mentornet-prop", metavar="LIST", help=shared.METHODS_HELP
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/demo"),
        metavar="FOLDER",
        help="folder for runs and picture; finished runs are not repeated. Default: runs/demo",
    )


def run(options: Namespace) -> None:
    from labelsieve.sweep.compare import compare, parse_methods

    compare(
        "fashion",
        parse_methods(options.methods),
        noise_rate=options.rate,
        seeds=range(options.first_seed, options.first_seed + options.seeds),
        **shared.selected(options, "noise", "rate", "out"),
    )
