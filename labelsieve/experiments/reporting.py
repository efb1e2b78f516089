"""report: the page about one or several runs, audited first where that was not done, or about an audit alone."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from labelsieve.errors import InputError
from labelsieve.experiments.unfinished import newest, refuse_unfinished
from labelsieve.files import audited_alone, delivered, refuse_others, stranger, write_atomically
from labelsieve.report.audited import read_findings
from labelsieve.report.page import Told, page, page_of_audit
from labelsieve.report.records import read_progress


def report(
    paths: Sequence[Path], out: Path | None, gallery: int, audit: Callable[[Path], object] | None = None
) -> Path:
    """Write the page; `audit` makes the audit of a finished run that has none, where it can.

    Unfinished runs are shown as far as they came, beside at least one that is done.
    """
    if gallery < 0:
        raise InputError(f"gallery must be at least 0, got {gallery}")
    if out:
        refuse_others(out, "<!DOCTYPE html>")
    target = out or (paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))
    text = about_audit(paths, gallery) if any(map(audited_alone, paths)) else about_runs(paths, gallery, audit)
    write_atomically(target, text.encode(errors="backslashreplace"))
    return target


def about_audit(paths: Sequence[Path], gallery: int) -> str:
    """The page about an audit that has no run."""
    if len(paths) > 1:
        alone = next(path for path in paths if audited_alone(path))
        raise InputError(f"{alone} is an audit without a run, which is shown alone: labelsieve report {alone}")
    findings = read_findings(paths[0], gallery)
    assert findings is not None
    return page_of_audit(str(paths[0]), findings)


def about_runs(paths: Sequence[Path], gallery: int, audit: Callable[[Path], object] | None) -> str:
    """The page about runs."""
    for path in paths:
        if newest(path) is None:
            raise stranger(path)
    any_done = any((delivered(path) / "done").exists() for path in paths)
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
    return page(told)
