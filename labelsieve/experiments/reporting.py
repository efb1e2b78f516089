"""report: the page about one or several runs, audited first where that was not done."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from labelsieve.errors import InputError
from labelsieve.experiments.unfinished import refuse_unfinished
from labelsieve.files import write_atomically
from labelsieve.report.audited import read_findings
from labelsieve.report.page import Told, page
from labelsieve.report.records import read_progress


def report(
    paths: Sequence[Path], out: Path | None, gallery: int, audit: Callable[[Path], object] | None = None
) -> Path:
    """Write the page; `audit` makes the audit of a finished run that has none, where it can.

    Unfinished runs are shown as far as they came, beside at least one that is done.
    """
    if gallery < 0:
        raise InputError(f"gallery must be at least 0, got {gallery}")
    any_done = any((path / "done").exists() for path in paths)
    for path in paths:
        if not any_done or not (path / "spec.json").exists():
            refuse_unfinished(path)
    runs = [read_progress(path) for path in paths]
    told: list[Told] = []
    for path, run in zip(paths, runs, strict=True):
        if audit and run.end and not (path / "audit" / "summary.json").exists():
            try:
                audit(path)
            except InputError as error:
                print(f"without an audit of {path}: {error}", file=sys.stderr)
        looked_at = any(each.findings for each in told)
        told.append(Told(str(path), run, read_findings(path, 0 if looked_at else gallery)))
    target = out or (paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))
    write_atomically(target, page(told).encode(errors="backslashreplace"))
    return target
