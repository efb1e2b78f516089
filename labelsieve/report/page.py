"""The HTML page of the report, about one run, several runs, or an audit without a run."""

import base64
import hashlib
import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from labelsieve.errors import InputError
from labelsieve.files import DONE, refuse_others, replacing, writing
from labelsieve.report import charts, svg, words
from labelsieve.report.audit import AuditResults, read_audit
from labelsieve.runs.find import newest_training, refuse_unfinished
from labelsieve.runs.read import Run, by_method, is_separate_audit, not_a_run, read_progress
from labelsieve.runs.tables import UNKNOWN, comparison, plus_minus
from labelsieve.text import format_quality

FOLDER = Path(__file__).parent
POLICY = (
    "default-src 'none'; img-src data:; style-src '{style}'; script-src '{script}'; base-uri 'none'; form-action 'none'"
)
START_SETTINGS = ("model", "parameters", "device")  # of a run's first record


@dataclass(frozen=True)
class ReportedRun:
    """A run under the name given by the user, with its audit if there is one."""

    name: str
    run: Run
    audit: AuditResults | None = None


def write_report(
    paths: Sequence[Path], out: Path | None, gallery: int, audit: Callable[[Path], object] | None = None
) -> Path:
    """Write the page and return its path.

    Args:
        paths: folders of runs, or of one audit without a run. Unfinished runs need at least one finished run.
        out: file to write; by default report.html in the run's folder, or here for several runs.
        gallery: number of samples to show.
        audit: called with the folder of a finished run that has no audit, to make one.
    """
    if gallery < 0:
        raise InputError(f"--gallery must be at least 0, got {gallery}")
    if out:
        refuse_others(out, "<!DOCTYPE html>")
    target = out or (paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))
    separate = next((path for path in paths if is_separate_audit(path)), None)
    if separate is None:
        text = run_page(_read_runs(paths, gallery, audit))
    elif len(paths) > 1:
        raise InputError(f"{separate} is an audit without a run; report it separately: labelsieve report {separate}")
    else:
        text = _audit_page(separate, gallery)
    with (writing if out else replacing)(target) as file:  # a file in a run folder must not be a link
        file.write(text.encode(errors="backslashreplace"))
    return target


def _read_runs(paths: Sequence[Path], gallery: int, audit: Callable[[Path], object] | None = None) -> list[ReportedRun]:
    """Read runs and their audits; only the first audit includes samples."""
    for path in paths:
        if newest_training(path) is None:
            raise not_a_run(path)
    any_done = any((path / DONE).exists() for path in paths)
    for path in paths:
        if not any_done or not (path / "spec.json").exists():
            refuse_unfinished(path)
    reported: list[ReportedRun] = []
    for path, run in [(path, read_progress(path)) for path in paths]:
        if audit and run.end and not (path / "audit" / "summary.json").exists():
            try:
                audit(path)
            except InputError as error:
                print(f"report without an audit of {path}: {error}", file=sys.stderr)
        has_audit = any(each.audit for each in reported)
        reported.append(ReportedRun(str(path), run, read_audit(path, 0 if has_audit else gallery)))
    return reported


def run_page(reported: Sequence[ReportedRun]) -> str:
    """Return the page about runs; its findings are those of the first run with an audit."""
    main = next((each for each in reported if each.audit), reported[0])
    return _render_page(
        kind="Run",
        name=main.name,
        data=words.data_name(main.run.spec),
        headline=words.headline(main.audit, len(reported)),
        background=words.training_facts(main.run),
        steps=words.next_steps(main.name, main.run, main.audit),
        model_error=words.model_error(main.run, words.sample_noun(main.audit)),
        matrices=charts.class_matrices(main.run, main.audit),
        settings=[(each.name, _run_settings(each)) for each in reported],
        **_label_section(main.audit, "audit/labels.csv", words.training_warnings(main.run)),
        **_run_section(reported),
    )


def _audit_page(path: Path, gallery: int) -> str:
    """Return the page about an audit without a run."""
    name, audit = str(path), read_audit(path, gallery)
    assert audit is not None
    return _render_page(
        kind="Audit",
        name=name,
        data=words.data_name(audit.made, name),
        headline=words.headline(audit),
        background=words.audit_facts(audit),
        steps=words.next_steps_of_audit(name, audit),
        model_error="",
        matrices=charts.class_matrices(None, audit),
        settings=[(name, _settings({key: value for key, value in audit.made.items() if value is not None}))],
        **_label_section(audit, "labels.csv"),
        **_run_section([]),
    )


def _render_page(**content: Any) -> str:
    """Render the template with its style and script inlined, and a policy that allows only these."""
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    policy = Markup(POLICY.format(style=_content_hash(style), script=_content_hash(script)))
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"with_interval": words.with_interval, "swatch": svg.swatch, "quote": shlex.quote}
    environment.filters |= {"quality": format_quality, "point_swatch": svg.point_swatch, "note": words.note_on}
    environment.filters |= {"name_parts": words.name_parts, "capitalised": words.capitalised}
    environment.filters |= {"shared_quality": words.shared_quality}
    template = environment.get_template("report.html.j2")
    return template.render(style=Markup(style), script=Markup(script), policy=policy, **content)


def _content_hash(text: str) -> str:
    """Return the hash by which a content security policy allows an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _label_section(audit: AuditResults | None, table: str, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the template's values on labels and samples; `table` is the file that lists all samples."""
    suspects = audit.suspects if audit else []
    return {
        "audit": audit,
        "confusions": charts.confusion_graph(audit) if audit else None,
        "map": charts.map_chart(audit, words.sample_noun(audit)) if audit else None,
        "story": words.estimate_story(audit) if audit else "",
        "table": table,
        "noun": words.sample_noun(audit),
        "facts": [*warnings, *(words.label_facts(audit, table) if audit else [])],
        "bars": charts.class_noise_bars(audit) if audit else [],
        "max_classes": charts.MAX_NAMED_CLASSES,
        "suspects": suspects,
        "further": [card for card in audit.gallery if not card.sample.is_issue] if audit else [],
        "given": _by_frequency(card.sample.given for card in suspects),
        "suggested": _by_frequency(card.sample.suggested for card in suspects),
        "duplicates": words.near_duplicates(audit) if audit else "",
        "different": audit.different_pairs if audit else [],
        "equal": audit.equal_pairs if audit else [],
        "strange": words.outliers(audit) if audit else "",
        "outliers": audit.outliers if audit else [],
    }


def _by_frequency(names: Iterable[str]) -> list[tuple[str, int]]:
    """Return each name with its count, most frequent first."""
    return sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))


def _run_section(reported: Sequence[ReportedRun]) -> dict[str, Any]:
    """Return the template's values on the training of one or several runs."""
    several = len(reported) > 1
    named = [(each.name, each.run) for each in reported]
    drawn = charts.comparison_charts(named) if several else charts.run_charts(reported[0].run) if reported else []
    groups = by_method(each.run for each in reported if each.run.end)
    differing = words.differing_settings([each.run for each in reported]) if several else []
    return {
        "several": several,
        "charts": drawn,
        "lines": {line.label: line for chart in drawn for line in chart.lines}.values(),
        "by_method": method_table(comparison(groups)),
        "ranking": words.ranking(groups) if several and not differing else "",
        "run_table": without_empty_columns(_run_table(reported)),
        "differing": differing,
    }


def method_table(table: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the table of methods without empty columns; empty if nothing was measured."""
    kept = without_empty_columns(table)
    return kept if len(table) > 1 and len(kept[0]) > 2 else []


def without_empty_columns(table: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return a table without the columns that are unknown in every row."""
    header, *rows = table
    kept = [k for k in range(len(header)) if any(row[k] != UNKNOWN for row in rows)] if rows else range(len(header))
    return [[row[k] for k in kept] for row in table]


def _run_table(reported: Sequence[ReportedRun]) -> list[list[str]]:
    """Return a header and a row per run."""
    table = [["run", "method", "state", "seed", "best error %", "last error %", "kept clean %", "labels look wrong"]]
    for each in reported:
        run, end = each.run, each.run.end
        precision = run.epochs[-1]["precision"] if run.epochs else None
        table.append(
            [
                each.name,
                run.method,
                "finished" if end else f"unfinished, {len(run.epochs)} epochs done",
                str(run.spec["seed"]),
                plus_minus([end["best"]] if "best" in end else []),
                plus_minus([end["last"]] if "last" in end else []),
                plus_minus([100 * precision] if precision is not None else []),
                words.with_interval(each.audit.noise_rate) if each.audit else "not audited",
            ]
        )
    return table


def _run_settings(reported: ReportedRun) -> list[tuple[str, str]]:
    """Return all settings and versions that are needed to repeat a run, its command first."""
    run = reported.run
    used = {f"{name} used": run.start[name] for name in START_SETTINGS if name in run.start}
    audit = {"audit": reported.audit.made} if reported.audit and reported.audit.made else {}
    command = {"command": words.shown_command(run, reported.name)} if run.command else {}
    return _settings({**command, **run.spec, **used, "versions": run.versions, **audit})


def _settings(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return settings with their values as text; those inside others are named after both, such as `versions torch`."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        nested = isinstance(value, dict) and value
        rows += _settings(value, f"{prefix}{name} ") if nested else [(f"{prefix}{name}", _setting(value))]
    return rows


def _setting(value: Any) -> str:
    """Format a setting, without folders of this machine."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else "yes" if value else "no"
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    return f"…/{Path(value).name}" if Path(value).is_absolute() else value
