"""What was done, what was found and what to do next, in words for people who know the data, not the method."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from statistics import fmean
from typing import Any

import numpy as np
from markupsafe import Markup

from labelsieve.audit.findings import BOTH_WAYS, COMMON
from labelsieve.report.audit import Estimate, Findings
from labelsieve.review.export import train_again
from labelsieve.runs.read import Array, Run, starved
from labelsieve.runs.tables import shown
from labelsieve.text import percent

SPOKEN = {"image": "images", "text": "texts", "row": "rows"}


def spoken(estimate: Estimate) -> str:
    """38% (35 to 40%)"""
    low, high = (percent(x).removesuffix("%") for x in (estimate.low, estimate.high))
    return f"{percent(estimate.estimate)} ({low} to {high}%)"


def quoted(name: str) -> Markup:
    """A name that people chose, set apart from the sentence, whichever way its script runs."""
    return Markup("“<bdi>{}</bdi>”").format(name)


def without_folders(value: Any) -> Any:
    """Where something lies on somebody's machine is nobody else's business."""
    if isinstance(value, str) and PurePath(value).is_absolute():
        return f"…/{PurePath(value).name}"
    return value


def data_name(run: Run) -> str:
    return PurePath(str(run.spec["data"])).name or str(run.spec["data"])


def things(findings: Findings | None) -> str:
    """What the samples are called."""
    first = findings.gallery[0] if findings and findings.gallery else None
    kind = next((kind for kind in SPOKEN if first and getattr(first, kind)), None)
    return SPOKEN[kind] if kind else "samples"


def done(run: Run) -> list[str | Markup]:
    """How the model was trained."""
    spec, start = run.spec, run.start
    size = f"{start['samples']:,} samples of {start['classes']} classes" if start else "the data"
    lines: list[str | Markup] = [
        Markup("{} on {} from {} (method {}, {} epochs){}.").format(
            "A model was trained" if run.end else "A training was begun",
            size,
            quoted(data_name(run)),
            run.method,
            spec["epochs"],
            told(spec, "chosen" in start),
        )
    ]
    if run.final:
        lines.append(
            f"Then another was trained on all {run.final.start['samples']:,}, with labels that the audit corrected: "
            "that one is delivered."
        )
    if "noise" in start and spec.get("noise"):
        rate = percent(start["noise"]["realised_rate"])
        lines.append(f"This is an experiment: {rate} of the labels were made wrong on purpose, so the truth is known.")
    if not run.end:
        lines.append(
            f"The run is unfinished: {len(run.epochs)} of {spec['epochs']} epochs are done. "
            "The same labelsieve train command goes on with it."
        )
    return lines


def beware(run: Run) -> list[str]:
    """What makes the findings of a run doubtful."""
    hungry = starved(run) if run.end else []
    if not hungry:
        return []
    return [
        f"Beware: little was learnt from {', '.join(hungry)}; the model may have taken another class for it, so that "
        "what is said of its labels may be the wrong way round."
    ]


def told(spec: dict[str, Any], found: bool) -> str:
    """What the method was told about the noise, by a person or by a probe that found it."""
    rate = spec.get("noise_rate", 0.0)
    if not (isinstance(rate, float) and rate):
        return ""
    share = f"{100 * rate:g}% of the labels are wrong"
    return f", on a first and rougher estimate that {share}" if found else f", told that {share}"


def lead(findings: Findings) -> str:
    """The one sentence that matters."""
    if findings.verdict:
        return findings.verdict
    if not findings.issues:
        return f"The {findings.samples:,} labels look clean: nothing needs to be done."
    return f"About {spoken(findings.wrong)} of the {findings.samples:,} labels look wrong."


def found(findings: Findings, table: str = "audit/labels.csv", most: int = 3) -> list[str | Markup]:
    """What the audit says, beside its verdict; `table` is the file of all samples."""
    known = by_people(findings)
    if not findings.issues:
        return [f"None of the {findings.samples:,} labels is marked as probably wrong.", *known]
    shown = len(findings.suspects)
    which = "all of them" if shown >= findings.issues else f"the {shown:,} most suspicious"
    where = f", {which} below" if shown else ""
    marked = f"{findings.issues:,} suspects, labels that are more likely wrong than right{where}."
    return [f"{marked} The file {table} lists every sample.", *known, *confusions(findings, most)]


def by_people(findings: Findings) -> list[str]:
    """What people have decided, before the run and about its suspects."""
    gone, changed = findings.reviewed
    before = f"{findings.decided:,} labels were decided on by a person before this run and count as right."
    since = f"{gone:,} of the {findings.issues:,} suspects were gone through in the review, {changed:,} labels changed."
    return [*([before] if findings.decided else []), *([since] if gone else [])]


def confusions(findings: Findings, most: int) -> list[str | Markup]:
    """Which classes are most often mistaken for which, where that is common."""
    if findings.noise_matrix is None:
        return []
    counts = np.array([row.samples for row in findings.per_class])
    expected = findings.noise_matrix * counts[:, None]
    said: dict[tuple[int, int], Markup] = {}
    for given, true, number in largest(expected, most):
        if number < COMMON * counts[given]:
            break
        if (true, given) not in said:
            said[given, true] = mixed_up(findings, given, true)
    return list(said.values())


def mixed_up(findings: Findings, given: int, true: int) -> Markup:
    """How many with one label seem to be another class; the other way round too, if that is nearly as common."""
    matrix = findings.noise_matrix
    assert matrix is not None
    label, other = quoted(findings.classes[given]), quoted(findings.classes[true])
    samples, others = findings.per_class[given].samples, findings.per_class[true].samples
    share, back = matrix[given, true], matrix[true, given]
    if back < BOTH_WAYS * share:
        return Markup("About {:,} of the {:,} labelled {} seem to be {}.").format(
            round(share * samples), samples, label, other
        )
    return Markup(
        "{0} and {1} are mixed up: {2:,} of {3:,} labelled {0}, {4:,} of {5:,} labelled {1}; which way is uncertain."
    ).format(label, other, round(share * samples), samples, round(back * others), others)


def largest(matrix: Array, most: int) -> list[tuple[int, int, float]]:
    """The largest entries beside the diagonal: row, column, value."""
    beside = matrix * (1 - np.eye(len(matrix)))
    places = np.argsort(-beside, axis=None, kind="stable")[:most]
    rows, columns = np.unravel_index(places, beside.shape)
    found = [(int(r), int(c), float(beside[r, c])) for r, c in zip(rows, columns, strict=True)]
    return [entry for entry in found if entry[2] > 0]


def model_error(run: Run, samples: str) -> str:
    """How good the delivered model is, and what that is worth."""
    if not run.end:
        return ""
    run = run.delivered
    last_round = run.epochs[-1].get("round")
    chosen = [e for e in run.epochs if e["epoch"] == run.end["chosen_epoch"] and e.get("round") == last_round]
    error = chosen[0].get("test_error") if chosen else None
    if error is None:
        return (
            "There was no test set, so how often the delivered model is wrong is not known; labelsieve train with "
            "--test 0.2 keeps a fifth of the data for that."
        )
    line = f"The delivered model is wrong on {error:.1f}% of the test {samples}"
    if run.spec.get("test"):
        return f"{line}, going by their labels, which come from the same data and may be wrong too."
    return f"{line}."


def next_steps(name: str, run: Run, findings: Findings | None) -> list[tuple[str, list[str]]]:
    """What to do now: a reason and the words of a command, ready for a shell."""
    steps = []
    if run.end and findings is None:
        steps.append(("Find out which labels look wrong:", ["audit", name]))
    if findings is not None and findings.issues:
        if findings.reviewed.gone < findings.issues:
            steps.append(("Go through the suspects and decide which label is right:", ["review", name]))
        reviewed = f"{name}/review/reviewed.csv"
        steps.append(("Write down what you decided:", ["review", name, "--export", reviewed]))
        again = train_again(name, run.command, run.spec, reviewed)
        steps.append(("Then train again with these labels:", [shareable(word, run, name) for word in again[1:]]))
    if run.end:
        steps.append(("Use the model as it is:", ["predict", name, "NEW_DATA", "--out", "predictions.csv"]))
    return [(reason, ["labelsieve", *map(shlex.quote, command)]) for reason, command in steps]


def shareable(word: str, run: Run, name: str) -> str:
    """A word of a command on a page that others may see: where on this machine things lie is left out."""
    if not PurePath(word).is_absolute() or word.startswith(name):
        return word
    return "DATA" if word == run.spec["data"] else PurePath(word).name


def differing(runs: Sequence[Run]) -> list[str]:
    """What the runs differ in besides method and seed, which makes their averages hard to read."""
    expected = {"method", "criterion", "options", "seed", "threads", "device", "precision", "cache", "workers"}
    common = set.intersection(*(set(run.spec) for run in runs)) - expected
    return [name for name in sorted(common) if len({str(run.spec[name]) for run in runs}) > 1]


def ranking(groups: Mapping[str, Sequence[Run]]) -> str:
    """Which method came out best on the test set."""
    every = {
        method: [run.delivered.end["last"] for run in runs if "last" in run.delivered.end]
        for method, runs in groups.items()
    }
    order = sorted((fmean(errors), method) for method, errors in every.items() if errors)
    if len(order) < 2:
        return ""
    best, *others = (f"{method} {shown(every[method])}%" for _, method in order)
    return f"Last test error, lowest first: {best}; {'; '.join(others)}."


def labels_of(named: Sequence[tuple[str, Run]]) -> list[str]:
    """A short name for each run: its method where that says enough, else with its seed, else its folder."""
    methods = [run.method for _, run in named]
    seeds = [f"{run.method}, seed {run.spec['seed']}" for _, run in named]
    folders = [f"{run.method}, {PurePath(name).name}" for name, run in named]
    return next((names for names in (methods, seeds) if len(set(names)) == len(named)), folders)
