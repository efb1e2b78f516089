"""Export of reviewed labels as a label file, and the command that trains on it."""

import itertools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError
from labelsieve.files import refuse_others, writing
from labelsieve.review.decisions import Decision, DecisionLog, changed_labels, decisions_path, effective_decisions
from labelsieve.review.suspects import read_judged
from labelsieve.runs.read import is_separate_audit, plain_command, read_audit_origin, read_json, read_run, read_samples
from labelsieve.text import label_file, printable

REPLACED_OPTIONS = ("--labels", "--out", "--noise", "--rate", "--noise-map")  # reviewed labels contain the added noise
DROPPED_FLAGS = ("--exact-noise",)


def export_labels(run: Path, out: Path) -> str:
    """Write all labels with the decisions applied, and return a line that describes the file.

    Samples that are undecided or unsure keep the given label. The column `decided` is true for labels that a person
    decided, in this review or before the run; later audits accept these labels. The column `given_label` contains the
    labels before all decisions, from which the next run estimates the noise.
    """
    if out.suffix != ".csv":
        raise InputError(f"--export must be a .csv file, got {out.name}")
    columns = ("index,label,decided", "index,name,label,decided")  # of older versions, too
    refuse_others(out, *columns, *(f"{line},given_label" for line in columns))
    judged = {each.index: each for each in read_judged(run)}
    log = DecisionLog(decisions_path(run))
    log.repair()
    decisions = effective_decisions(log.decisions())
    if not decisions:
        raise InputError(f"{log.path} has no decisions; review some samples with labelsieve review {run} first")
    check_same_data(decisions, {index: each.id for index, each in judged.items()}, log.path)
    before = {index: each.given for index, each in judged.items()}
    changed = changed_labels(decisions, before)
    unsure = {index for index, decision in decisions.items() if decision.decision == "unsure"}
    samples = read_samples(run) or {}
    earlier = set(samples["decided"].nonzero()[0].tolist()) - decisions.keys() if "decided" in samples else set()
    decided = (decisions.keys() - unsure) | earlier
    if "before" in samples:
        classes = read_run(run, with_tables=False).classes
        before = dict(enumerate(classes[label] for label in samples["before"].tolist()))
    content = label_file(
        [changed.get(index, each.given) for index, each in judged.items()],
        [each.id for each in judged.values()],
        [index in decided for index in judged],
        [before[index] for index in judged],
    )
    with writing(out) as file:
        file.write(content)
    in_earlier = f" ({len(earlier):,} before this run)" if earlier else ""
    not_sure = f", {len(unsure):,} unsure" if unsure else ""
    counts = f"{len(judged):,} labels, {len(changed):,} changed; {len(decided):,} decided{in_earlier}{not_sure}"
    return f"{printable(str(out))}: {counts}"


def retrain_command(name: str, command: str, spec: Mapping[str, Any], labels: str) -> list[str]:
    """Return the words of the command that repeats the training of the run `name` with a label file, in a new folder.

    It is made from the command that started the run or, if that is unknown, from the data in its specification.
    """
    default = ["labelsieve", "train", str(spec.get("data", "DATA")), *(["--skip-bad"] if spec.get("skip_bad") else [])]
    kept, words = [], iter(shlex.split(command) or default)
    for word in words:
        if word in REPLACED_OPTIONS:
            next(words, None)  # its value
        elif word not in DROPPED_FLAGS:
            kept.append(word)
    return [*kept, "--labels", labels, "--out", _new_folder(name)]


def retrain_line(run: Path, labels: Path) -> str:
    """Return the command that repeats a run's training with a label file; empty for an audit of unknown data."""
    if is_separate_audit(run):
        data = read_audit_origin(run).get("data")
        return shlex.join(retrain_command(str(run), "", {"data": data}, str(labels))) if data else ""
    try:
        head = read_json(run / "spec.json")
    except InputError:
        head = {}
    command, spec = plain_command(str(head.get("command", ""))), head.get("experiment")
    return shlex.join(retrain_command(str(run), command, spec if isinstance(spec, dict) else {}, str(labels)))


def _new_folder(name: str) -> str:
    """Return an unused folder name next to a run: run-reviewed, run-reviewed-2, ..."""
    first = re.sub(r"-reviewed(-\d+)?$", "", name.rstrip("/")) + "-reviewed"
    names = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    return next(each for each in names if each != name.rstrip("/") and not Path(each).exists())


def check_same_data(decisions: Mapping[int, Decision], names: Mapping[int, str], path: Path) -> None:
    """Raise InputError if decisions are about samples with other names: they would change the wrong labels."""
    for index, decision in decisions.items():
        if names.get(index) != decision.id:
            raise InputError(
                f"{path} belongs to other data: sample {index} was {decision.id!r} and is now "
                f"{names.get(index, 'missing')!r}; move the file away to start a new review"
            )
