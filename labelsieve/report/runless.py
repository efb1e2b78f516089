"""What the page says where there is no run, but an audit of anybody's probabilities."""

import shlex
from pathlib import PurePath
from typing import Any

from markupsafe import Markup

from labelsieve.report.audited import Findings
from labelsieve.report.words import quoted, without_folders

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


def settings(findings: Findings) -> dict[str, Any]:
    """Everything that makes the audit repeatable."""
    return {name: without_folders(value) for name, value in findings.made.items() if value is not None}
