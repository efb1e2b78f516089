"""What the page says where there is no run, but an audit of anybody's probabilities."""

import base64
import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from labelsieve.errors import InputError
from labelsieve.files import audited_alone, delivered, refuse_others, stranger, write_atomically
from labelsieve.report import charts as classes
from labelsieve.report import svg, words
from labelsieve.report.audit import Findings, cards, counted, read_findings
from labelsieve.report.charts import common_charts, single_charts
from labelsieve.report.words import quoted, without_folders
from labelsieve.runs.find import newest, refuse_unfinished
from labelsieve.runs.read import Run, by_method, read_progress
from labelsieve.runs.tables import UNKNOWN, comparison, shown

SOURCES = ("data", "text", "labels")  # what may name the samples, the best first


def data_name(name: str, made: dict[str, Any]) -> str:
    """What the labels are of: the data if it was named, else the file of the texts or labels."""
    source = next((str(made[kind]) for kind in SOURCES if made.get(kind)), name)
    return PurePath(source).name or source


def done(findings: Findings) -> list[str | Markup]:
    """Where the findings come from."""
    made = findings.made
    size = f"{findings.samples:,} labels of {len(findings.classes)} classes"
    if not made.get("labels") or not made.get("pred_probs"):
        return [f"{size} were audited; the run that they may be of is not in this folder."]
    files = (quoted(PurePath(str(made[name])).name) for name in ("labels", "pred_probs"))
    sentence = Markup("The {} in {} were compared with the probabilities in {}. Nothing was trained.")
    shown = made.get("data") or made.get("text")
    unseen = "The samples themselves are not shown; labelsieve audit with --text or --data shows them."
    return [sentence.format(size, *files), *([] if shown else [unseen])]


def next_steps(name: str, findings: Findings) -> list[tuple[str, list[str]]]:
    """What to do now: a reason and the words of a command, ready for a shell."""
    if not findings.issues:
        return []
    reviewed = f"{name}/review/reviewed.csv"
    steps = [("Write down all labels as you decided:", ["review", name, "--export", reviewed])]
    if findings.reviewed.gone < findings.issues:
        steps.insert(0, ("Go through the suspects and decide which label is right:", ["review", name]))
    if data := str(findings.made.get("data") or ""):
        where = "DATA" if PurePath(data).is_absolute() else data
        steps.append(("Train a model on these labels:", ["train", where, "--labels", reviewed]))
    return [(reason, ["labelsieve", *map(shlex.quote, command)]) for reason, command in steps]


def audit_settings(findings: Findings) -> dict[str, Any]:
    """Everything that makes the audit repeatable."""
    return {name: without_folders(value) for name, value in findings.made.items() if value is not None}


HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; img-src data:; style-src '{style}'; script-src '{script}'; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Told:
    """A run by the name that it was asked for, with its audit where there is one."""

    name: str
    run: Run
    findings: Findings | None = None


def page(told: Sequence[Told]) -> str:
    """The whole page. The first run that has an audit is the one whose labels are looked at."""
    main = next((each for each in told if each.findings), told[0])
    return rendered(
        kind="Run",
        name=main.name,
        data=words.data_name(main.run),
        lead=opening(main, len(told)),
        done=words.done(main.run),
        steps=words.next_steps(main.name, main.run, main.findings),
        error=words.model_error(main.run, words.things(main.findings)),
        tables=classes.tables(main.run, main.findings),
        settings=[(each.name, settings(each)) for each in told],
        **about_labels(main.findings, "audit/labels.csv", words.beware(main.run)),
        **about_runs(told),
    )


def page_of_audit(name: str, findings: Findings) -> str:
    """The page about an audit that has no run: all that it knows."""
    return rendered(
        kind="Audit",
        name=name,
        data=data_name(name, findings.made),
        lead=words.lead(findings),
        done=done(findings),
        steps=next_steps(name, findings),
        error="",
        tables=classes.tables(None, findings),
        settings=[(name, [(key, plain(value)) for key, value in audit_settings(findings).items()])],
        **about_labels(findings, "labels.csv"),
        **about_runs([]),
    )


def rendered(**content: Any) -> str:
    """The template with its style and script inside, and a policy that allows just these."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    policy = Markup(POLICY.format(style=digest(style), script=digest(script)))
    template = environment().get_template("report.html.j2")
    return template.render(style=Markup(style), script=Markup(script), policy=policy, **content)


def environment() -> Environment:
    """Everything that is put into the page is escaped, whatever the template is called."""
    made = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"spoken": words.spoken, "swatch": svg.swatch}
    return made


def about_labels(findings: Findings | None, table: str, beware: Sequence[str] = ()) -> dict[str, Any]:
    """What the page says about labels and samples, where there is an audit, whose file of all samples is `table`."""
    suspects, beyond = (findings.suspects, findings.beyond) if findings else ([], [])
    return {
        "findings": findings,
        "things": words.things(findings),
        "found": [*beware, *(words.found(findings, table) if findings else [])],
        "bars": classes.bars(findings) if findings else [],
        "most_named": classes.MOST_NAMED,
        "cards": cards(suspects),
        "beyond": cards(beyond),
        "given": counted(suspect.given for suspect in suspects),
        "suggested": counted(suspect.suggested for suspect in suspects),
    }


def about_runs(told: Sequence[Told]) -> dict[str, Any]:
    """What the page says about a run, or several side by side."""
    several = len(told) > 1
    named = [(each.name, each.run) for each in told]
    charts = common_charts(named) if several else single_charts(told[0].run) if told else []
    groups = by_method(each.run for each in told if each.run.end)
    differing = words.differing([each.run for each in told]) if several else []
    return {
        "several": several,
        "charts": charts,
        "lines": {line.label: line for chart in charts for line in chart.lines}.values(),
        "by_method": measured(comparison(groups)),
        "ranking": words.ranking(groups) if several and not differing else "",
        "run_by_run": filled(run_by_run(told)),
        "differing": differing,
    }


def measured(table: Sequence[Sequence[str]]) -> list[list[str]]:
    """The methods' table where anything was measured, without its empty columns; nothing where nothing was."""
    kept = filled(table)
    return kept if len(table) > 1 and len(kept[0]) > 2 else []


def filled(table: Sequence[Sequence[str]]) -> list[list[str]]:
    """A table without the columns that are empty in every row."""
    header, *rows = table
    places = [k for k in range(len(header)) if any(row[k] != UNKNOWN for row in rows)] if rows else range(len(header))
    return [[row[k] for k in places] for row in table]


def digest(text: str) -> str:
    """What the page's own policy allows to run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def opening(told: Told, runs: int) -> str:
    """The sentence in large letters."""
    if told.findings:
        return words.lead(told.findings)
    if runs > 1:
        return f"{runs} runs side by side. None of them was audited, so nothing is said here about single labels."
    return "No audit was made of this run, so nothing is said here about single labels."


def run_by_run(told: Sequence[Told]) -> list[list[str]]:
    """A header and a row per run."""
    header = ["run", "method", "state", "seed", "best error %", "last error %", "kept clean %", "labels look wrong"]
    rows = []
    for each in told:
        run, end = each.run, each.run.delivered.end
        precision = run.epochs[-1]["precision"] if run.epochs else None
        rows.append(
            [
                each.name,
                run.method,
                "finished" if end else f"unfinished, {len(run.epochs)} epochs done",
                str(run.spec["seed"]),
                shown([end["best"]] if "best" in end else []),
                shown([end["last"]] if "last" in end else []),
                shown([100 * precision] if precision is not None else []),
                words.spoken(each.findings.wrong) if each.findings else "not audited",
            ]
        )
    return [header, *rows]


def settings(told: Told) -> list[tuple[str, str]]:
    """Everything that makes the run repeatable."""
    made = told.findings.made if told.findings else {}
    audit = {"audit": made} if made else {}
    start = {name: told.run.start[name] for name in ("model", "parameters", "device") if name in told.run.start}
    rows = {**told.run.spec, **{f"{name} used": value for name, value in start.items()}, "versions": told.run.versions}
    return [(name, plain(value)) for name, value in {**rows, **audit}.items()]


def plain(value: Any) -> str:
    value = words.without_folders(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


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
    text = (
        page_of_audit_folder(paths, gallery) if any(map(audited_alone, paths)) else page_of_runs(paths, gallery, audit)
    )
    write_atomically(target, text.encode(errors="backslashreplace"))
    return target


def page_of_audit_folder(paths: Sequence[Path], gallery: int) -> str:
    """The page about an audit that has no run."""
    if len(paths) > 1:
        alone = next(path for path in paths if audited_alone(path))
        raise InputError(f"{alone} is an audit without a run, which is shown alone: labelsieve report {alone}")
    findings = read_findings(paths[0], gallery)
    assert findings is not None
    return page_of_audit(str(paths[0]), findings)


def page_of_runs(paths: Sequence[Path], gallery: int, audit: Callable[[Path], object] | None) -> str:
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
