"""labelsieve report: write one HTML page about a run, several runs side by side, or an audit without a run."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from labelsieve.commands import options as shared
from labelsieve.errors import InputError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "runs", type=Path, nargs="*", metavar="RUN", help="run folders, audited first if necessary; or one audit folder"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write. Default: report.html in the run folder, or in the current folder for several runs",
    )
    parser.add_argument(
        "--gallery",
        type=shared.integer,
        default=200,
        metavar="N",
        help="number of suspect samples to show. Default: 200",
    )


def run(options: Namespace) -> None:
    if not options.runs:
        raise InputError("name the run to report: labelsieve report RUN")
    from labelsieve.auto.audit import audit_run
    from labelsieve.report.page import write_report

    print(f"report: {write_report(options.runs, options.out, options.gallery, audit_run)}")
