"""labelsieve results: update the tables and figures of the results page from the committed records."""

from argparse import ArgumentParser, Namespace
from pathlib import Path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="FOLDER",
        help="folder of the records. Default: results",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("docs/results.md"),
        metavar="FILE",
        help="the page; its figures are written to figures/ next to it. Default: docs/results.md",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if page or figures are out of date")


def run(options: Namespace) -> None:
    from labelsieve.paper.results import results

    results(options.results, options.out, options.check)
