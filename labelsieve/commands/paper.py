"""labelsieve table, figure and results: reproduce the paper; missing runs are trained."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from labelsieve.commands import Command
from labelsieve.commands import options as shared

RUNS = ("show", "out", "results", "at_once", "on", "device", "precision", "threads")  # options of _add_runs


def _add_runs(parser: ArgumentParser) -> None:
    """Add the options for finished and missing runs."""
    group = shared.add_machines(parser)
    group.add_argument(
        "--threads", type=shared.integer, default=1, metavar="N", help="CPU threads of each run. Default: 1"
    )
    group.add_argument("--show", action="store_true", help="show finished runs; train nothing")
    shared.add_path(group, "--out", "runs/paper", "FOLDER", "folder for new runs")
    text = "folder of committed records, which count as finished runs"
    shared.add_path(group, "--results", "results", "FOLDER", text)


def _add_table(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="N", help="1, 2, 3, 5, 6, 7 or 8 as in the paper, or small: on the embedded data"
    )
    parser.add_argument("--dataset", metavar="LIST", help="only these datasets: cifar10,cifar100,tiny-imagenet,...")
    parser.add_argument("--noise", metavar="LIST", help="only these kinds of noise: pair,symmetry,mixed, or own")
    parser.add_argument("--rate", metavar="LIST", help="only these noise rates: 0.2,0.4")
    parser.add_argument("--methods", metavar="LIST", help="only these methods; the table small accepts any method")
    parser.add_argument("--seeds", type=shared.integer, metavar="N", help="trials per cell. Default: 3; table small: 2")
    parser.add_argument(
        "--epochs", type=shared.integer, metavar="N", help="epochs of the runs of table small. Default: 12"
    )
    shared.add_output(parser)
    _add_runs(parser)


def _run_table(options: Namespace) -> None:
    shared.check_on(options)
    shared.warn_about_threads(options.threads, options.on)
    from labelsieve.paper.reproduce import reproduce

    reproduce(
        options.name,
        keep=shared.selected(options, "dataset", "noise", "rate", "methods"),
        form=options.format,
        **shared.selected(options, "seeds", "epochs", "save", *RUNS),
    )


def _add_figure(parser: ArgumentParser) -> None:
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
    _add_runs(parser)


def _run_figure(options: Namespace) -> None:
    shared.check_on(options)
    shared.warn_about_threads(options.threads, options.on)
    from labelsieve.paper.figures import reproduce_figure

    reproduce_figure(**shared.selected(options, "number", "dataset", "seeds", "save", *RUNS))


def _add_results(parser: ArgumentParser) -> None:
    shared.add_path(parser, "--results", "results", "FOLDER", "folder of the records")
    text = "the page; its figures are written to figures/ next to it"
    shared.add_path(parser, "--out", "docs/results.md", "FILE", text)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if page or figures are out of date")


def _run_results(options: Namespace) -> None:
    from labelsieve.paper.results import results

    results(options.results, options.out, options.check)


PAPER = {
    "table": Command(_add_table, _run_table),
    "figure": Command(_add_figure, _run_figure),
    "results": Command(_add_results, _run_results),
}
