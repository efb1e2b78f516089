"""labelsieve review: review the suspect labels of runs in the browser, or export the reviewed labels."""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from pathlib import Path

from labelsieve.commands import options as shared
from labelsieve.errors import InputError
from labelsieve.files import DONE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="run folder (audited first if necessary), or folder of an audit without a run; several share one page",
    )
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write all labels with the decisions applied to this .csv, and stop"
    )
    parser.add_argument(
        "--import",
        type=Path,
        dest="imported",
        metavar="FILE",
        help="add the decisions in an export of Label Studio or FiftyOne, cleanlab's columns or a label file, and stop",
    )
    parser.add_argument("--data", metavar="DATA", help="the run's data, if it was moved")
    parser.add_argument("--reviewer", metavar="NAME", help="your name, saved with decisions. Default: the page asks")
    parser.add_argument(
        "--port", type=shared.integer, metavar="N", help="port of the page, on this machine only. Default: a free one"
    )
    parser.add_argument("--browser", action=BooleanOptionalAction, default=True, help="open the page in the browser")


def run(options: Namespace) -> None:
    from labelsieve.runs.find import refuse_unfinished

    for folder in options.runs:
        refuse_unfinished(folder)
    for option, value in (("--export", options.export), ("--import", options.imported), ("--data", options.data)):
        if value and len(options.runs) > 1:
            raise InputError(f"{option} is for one run, got {len(options.runs)}")
    if options.imported:
        from labelsieve.review.imports import import_decisions

        print(import_decisions(options.runs[0], options.imported, options.reviewer or ""))
    if options.export:
        from labelsieve.review.export import export_labels

        print(export_labels(options.runs[0], options.export))
    if options.imported or options.export:
        return
    from labelsieve.review.session import serve_review

    for folder in options.runs:
        if (folder / DONE).exists() and not (folder / "audit" / "summary.json").exists():
            from labelsieve.auto.audit import audit_run

            audit_run(folder)
    serve_review(options.runs, options.port, options.browser, options.reviewer, options.data)
