"""labelsieve review: review the suspect labels of a run in the browser, or export the reviewed labels."""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from pathlib import Path

from labelsieve.commands import options as shared


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="run folder (audited first if necessary), or folder of an audit without a run",
    )
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write all labels with the decisions applied to this .csv, and stop"
    )
    parser.add_argument(
        "--port", type=shared.integer, metavar="N", help="port of the page, on this machine only. Default: a free one"
    )
    parser.add_argument("--browser", action=BooleanOptionalAction, default=True, help="open the page in the browser")


def run(options: Namespace) -> None:
    from labelsieve.runs.find import refuse_unfinished

    refuse_unfinished(options.run)
    if options.export:
        from labelsieve.review.export import export_labels

        print(export_labels(options.run, options.export))
        return
    from labelsieve.review.session import serve_review

    if (options.run / "done").exists() and not (options.run / "audit" / "gallery.jsonl").exists():
        from labelsieve.auto.audit import audit_run

        audit_run(options.run)
    serve_review(options.run, options.port, options.browser)
