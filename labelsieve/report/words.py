"""Sentences of the report, for readers who know the data but not the method."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from statistics import fmean
from typing import Any

import numpy as np
from markupsafe import Markup

from labelsieve.audit.estimate import Interval
from labelsieve.audit.findings import COMMON_CONFUSION, MUTUAL_CONFUSION, looks_like
from labelsieve.report.audit import AuditResults, Card
from labelsieve.report.svg import largest_off_diagonal
from labelsieve.review.export import retrain_command
from labelsieve.review.suspects import Suspect
from labelsieve.runs.read import Run, neglected_classes
from labelsieve.runs.tables import plus_minus
from labelsieve.text import format_quality, percent

CONTENT_NOUNS = {"image": "images", "text": "texts", "row": "rows"}
AUDITED_BY = {  # input of an audit without a run -> how the labels were judged
    "pred_probs": "compared with the predicted probabilities",
    "features": "judged, by linear classifiers that were not trained on them, from the features",
}
NAME_END = 10  # characters of a long name that stay visible at its end
NAMING_INPUTS = ("data", "text", "labels")  # inputs that can name the data, best first
COMPARABLE = {"method", "criterion", "options", "seed", "threads", "device", "precision", "cache", "workers"}

Step = tuple[str, list[str]]  # purpose, and the words of a shell command


def headline(audit: AuditResults | None, runs: int = 1) -> str:
    """Return the main sentence of the page."""
    if audit is None:
        subject = f"{runs} runs compared. None of them was audited" if runs > 1 else "This run was not audited"
        return f"{subject}, so this report has no findings about single labels."
    return audit.verdict


def data_name(inputs: Mapping[str, Any], default: str = "") -> str:
    """Return the name, without folders, of the data, the texts or the labels that a run or an audit used."""
    source = next((str(inputs[kind]) for kind in NAMING_INPUTS if inputs.get(kind)), default)
    return PurePath(source).name or source


def training_facts(run: Run) -> list[str | Markup]:
    """Return sentences on how the model was trained."""
    spec, start = run.spec, run.start
    size = f"{start['samples']:,} samples of {start['classes']} classes" if start else "data"
    rate = spec.get("noise_rate", 0.0)
    how = f"method {run.method}, {spec['epochs']} epochs"
    how += f", {'estimated ' if 'chosen' in start else ''}noise rate {100 * rate:g}%" if rate else ""
    linear = spec.get("model") == "linear" and spec["epochs"] == 1
    corrected = spec.get("corrected") and not linear
    how += ", on labels corrected by the audit" if corrected else ""
    if corrected and spec.get("init"):
        tuned = f"the whole network {spec['model']}, fine-tuned for {spec['epochs']} epochs"
        how = f"{tuned} on labels corrected by the audit"
    if linear:
        features = f"features of {spec['backbone']}" if spec.get("backbone") else "features"
        how = f"logistic regression on {features}"
    facts: list[str | Markup] = [
        Markup("{} on {} from {} ({}).").format(
            "A model was trained" if run.end else "A training was started", size, _quoted(data_name(spec)), how
        )
    ]
    if "noise" in start and spec.get("noise"):
        wrong = percent(start["noise"]["realised_rate"])
        how_many = f"{wrong} of the corrected labels are wrong" if corrected else f"{wrong} of the labels are wrong"
        facts.append(f"This is an experiment: labels were made wrong on purpose, so the truth is known. {how_many}.")
    if not run.end:
        facts.append(
            f"The run is unfinished: {len(run.epochs)} of {spec['epochs']} epochs are done. "
            "Run the same labelsieve train command again to resume it."
        )
    return facts


def estimate_story(audit: AuditResults) -> str:
    """Return in three sentences how the estimate came about, for readers who know the data but not the method."""
    noun, rate = sample_noun(audit), audit.noise_rate
    judged = (
        f"Every label was judged by models that had not learned it: the {noun} were divided into parts, and those of "
        "each part were judged by models trained on the other parts."
    )
    weighed = (
        f"Where such a model prefers another class, either the label or the model is wrong; how often this happens "
        f"among the {noun} that the models recognise best shows which of the two is more likely, class by class."
    )
    if audit.made.get("pred_probs"):
        judged = (
            "Every label was compared with the probabilities that a classifier predicted, on the assumption that the "
            "classifier was not trained on that label."
        )
        weighed = weighed.replace("such a model", "the classifier").replace("the model is", "the classifier is")
        weighed = weighed.replace("the models recognise", "it recognises")
    elif audit.held_out_error is None:
        judged = "The trained model judged every label, including those that it learned from."
        weighed = (
            "Where it is confident of another class, the label counts as wrong; wrong labels that the model has "
            "memorized are not found this way."
        )
    low, high = percent(rate.low), percent(rate.high)
    return (
        f"{judged} {weighed} This amounts to {percent(rate.estimate)} of the {audit.samples:,} labels, and the true "
        f"share is meant to lie between {low} and {high} in nine of ten cases."
    )


def note_on(sample: Suspect) -> str:
    """Return the reason for a suspect, without what its given and suggested labels say already."""
    return sample.why.removeprefix(looks_like(sample.given, sample.suggested)).strip()


def shared_quality(cards: Sequence[Card[Suspect]]) -> str:
    """Return a sentence on the first suspects if their qualities look equal; empty if they do not."""
    shown = [format_quality(card.sample.quality) for card in cards]
    equal = sum(quality == shown[0] for quality in shown)
    return f"The first {equal:,} have the lowest quality, {shown[0]}; their order still counts." if equal > 1 else ""


def name_parts(name: str) -> tuple[str, str]:
    """Return the beginning of a name and its last characters, which stay visible where it is cut in the middle."""
    end = min(NAME_END, len(name) // 2)
    return name[: len(name) - end], name[len(name) - end :]


def capitalised(text: str) -> str:
    """Return a text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def audit_facts(audit: AuditResults) -> list[str | Markup]:
    """Return sentences on the inputs of an audit without a run."""
    made = audit.made
    size = f"{audit.samples:,} labels of {len(audit.classes)} classes"
    by = next((name for name in AUDITED_BY if made.get(name)), None)
    if not made.get("labels") or by is None:
        return [f"{size} were audited. This folder does not contain the run that they belong to."]
    labels, file = (_quoted(PurePath(str(made[name])).name) for name in ("labels", by))
    sentence = Markup("The {} in {} were {} in {}. No model was delivered.")
    not_shown = "The samples themselves are not shown; pass --text or --data to labelsieve audit to show them."
    return [
        sentence.format(size, labels, AUDITED_BY[by], file),
        *([] if made.get("data") or made.get("text") else [not_shown]),
    ]


def training_warnings(run: Run) -> list[str]:
    """Return a warning about classes that were hardly used for training, if there are any."""
    neglected = neglected_classes(run) if run.end else []
    if not neglected:
        return []
    return [
        f"Warning: few samples of these classes were used for training: {', '.join(neglected)}. The model may confuse "
        "them with other classes, so the findings about their labels may be the wrong way round."
    ]


def label_facts(audit: AuditResults, table: str) -> list[str | Markup]:
    """Return sentences on suspects, decisions and confusions; `table` is the file that lists all samples."""
    shown, (reviewed, changed) = len(audit.suspects), audit.progress
    facts: list[str | Markup] = [f"None of the {audit.samples:,} labels is marked as probably wrong."]
    if audit.issues:
        which = "all of them" if shown >= audit.issues else f"the {shown:,} most suspicious"
        where = f"; {which} are shown below" if shown else ""
        what = "1 suspect (a label that is" if audit.issues == 1 else f"{audit.issues:,} suspects (labels that are"
        suspects = f"{what} more likely wrong than correct){where}."
        facts = [f"{suspects} The file {table} lists every sample."]
    if audit.decided:
        facts.append(f"{audit.decided:,} labels were decided by a person before this run and count as correct.")
    if reviewed:
        facts.append(f"{reviewed:,} of {audit.issues:,} suspects reviewed; labels changed: {changed:,}.")
    return [*facts, *(confusions(audit) if audit.issues else [])]


def confusions(audit: AuditResults, limit: int = 3) -> list[str | Markup]:
    """Return sentences on the most common confusions of two classes."""
    if audit.noise_matrix is None:
        return []
    counts = np.array([row.samples for row in audit.per_class])
    expected = audit.noise_matrix * counts[:, None]
    sentences: dict[tuple[int, int], Markup] = {}
    for given, true, number in largest_off_diagonal(expected, limit):
        if number < COMMON_CONFUSION * counts[given]:
            break
        if (true, given) not in sentences:
            sentences[given, true] = _confusion_sentence(audit, given, true)
    return list(sentences.values())


def _confusion_sentence(audit: AuditResults, given: int, true: int) -> Markup:
    """Return a sentence on two classes; on both directions if the other one is nearly as common."""
    matrix = audit.noise_matrix
    assert matrix is not None
    label, other = _quoted(audit.classes[given]), _quoted(audit.classes[true])
    samples, others = audit.per_class[given].samples, audit.per_class[true].samples
    share, back = matrix[given, true], matrix[true, given]
    if back < MUTUAL_CONFUSION * share:
        return Markup("About {:,} of the {:,} samples labelled {} seem to be {}.").format(
            round(share * samples), samples, label, other
        )
    return Markup(
        "The labels {0} and {1} are confused with each other: about {2:,} of the {3:,} samples labelled {0} and {4:,} "
        "of the {5:,} labelled {1}."
    ).format(label, other, round(share * samples), samples, round(back * others), others)


def near_duplicates(audit: AuditResults) -> str:
    """Return a sentence on the number of near-duplicates; empty if there are none."""
    if audit.others is None or not audit.others.near_duplicate:
        return ""
    found, different = audit.others.near_duplicate, audit.others.near_duplicate_other_label
    labels = f"{different:,} of them one with a different label" if different else "always with the same label"
    return f"{found:,} of the {audit.samples:,} {sample_noun(audit)} have a near-duplicate, {labels}."


def outliers(audit: AuditResults) -> str:
    """Return a sentence on the number of samples that resemble none of the classes; empty if there are none."""
    if audit.others is None or not audit.others.outlier:
        return ""
    are = "is" if audit.others.outlier == 1 else "are"
    number = f"{audit.others.outlier:,} of the {audit.samples:,} {sample_noun(audit)}"
    return f"{number} {are} far from all classes, compared with the others."


def model_error(run: Run, samples: str) -> str:
    """Return a sentence on the test error of the delivered model; empty if there is no model yet."""
    if not run.end:
        return ""
    last_round = run.epochs[-1].get("round")
    chosen = [e for e in run.epochs if e["epoch"] == run.end["chosen_epoch"] and e.get("round") == last_round]
    error = chosen[0].get("test_error") if chosen else None
    if error is None:
        return (
            "There was no test set, so the error of the delivered model is unknown. To measure it, "
            "labelsieve train --test 0.2 holds out a fifth of the data."
        )
    against = ", measured against their given labels, which may be wrong too" if run.spec.get("test") else ""
    return f"The delivered model is wrong on {error:.1f}% of the test {samples}{against}."


def ranking(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return the methods with their last test errors, lowest first; empty for fewer than two."""
    errors = {method: [run.end["last"] for run in runs if "last" in run.end] for method, runs in groups.items()}
    order = sorted((fmean(values), method) for method, values in errors.items() if values)
    if len(order) < 2:
        return ""
    return f"Last test error, lowest first: {'; '.join(f'{m} {plus_minus(errors[m])}%' for _, m in order)}."


def next_steps(name: str, run: Run, audit: AuditResults | None) -> list[Step]:
    """Return the next steps after a run."""
    steps: list[Step] = []
    if run.end and audit is None:
        steps.append(("Find the labels that look wrong:", ["labelsieve", "audit", name]))
    if audit is not None and audit.issues:
        labels = f"{name}/review/reviewed.csv"
        retrain = retrain_command(name, run.command, run.spec, labels)
        steps += _review_steps(name, audit, labels)
        steps.append(("Train again on the reviewed labels:", [_hide_folders_of(word, run, name) for word in retrain]))
    if run.end:
        steps.append(("Use the model:", ["labelsieve", "predict", name, "NEW_DATA", "--out", "predictions.csv"]))
    return steps


def next_steps_of_audit(name: str, audit: AuditResults) -> list[Step]:
    """Return the next steps after an audit without a run."""
    if not audit.issues:
        return []
    labels = f"{name}/review/reviewed.csv"
    steps = _review_steps(name, audit, labels)
    if data := str(audit.made.get("data") or ""):
        where = "DATA" if PurePath(data).is_absolute() else data
        steps.append(("Train a model on the reviewed labels:", ["labelsieve", "train", where, "--labels", labels]))
    return steps


def _review_steps(name: str, audit: AuditResults, labels: str) -> list[Step]:
    """Return the steps that review the suspects, if some are left, and export the labels."""
    review: Step = ("Review the suspects and choose the correct labels:", ["labelsieve", "review", name])
    export: Step = ("Export the reviewed labels:", ["labelsieve", "review", name, "--export", labels])
    return [*([review] if audit.progress.reviewed < audit.issues else []), export]


def with_interval(share: Interval) -> str:
    """Format a share with its interval: 38% (35 to 40%)."""
    low, high = (percent(x).removesuffix("%") for x in (share.low, share.high))
    return f"{percent(share.estimate)} ({low} to {high}%)"


def _quoted(name: str) -> Markup:
    """Quote a name that people chose and isolate its writing direction."""
    return Markup("“<bdi>{}</bdi>”").format(name)


def _hide_folders_of(word: str, run: Run, name: str) -> str:
    """Shorten an absolute path in a command, except those inside the run's folder."""
    if not PurePath(word).is_absolute() or word.startswith(name):
        return word
    return "DATA" if word == run.spec["data"] else PurePath(word).name


def shown_command(run: Run, name: str) -> str:
    """Return the command that started a run, without folders of this machine."""
    return shlex.join(_hide_folders_of(word, run, name) for word in shlex.split(run.command))


def sample_noun(audit: AuditResults | None) -> str:
    """Return the plural noun for the samples: images, texts, rows or samples."""
    first = audit.gallery[0] if audit and audit.gallery else None
    kind = next((kind for kind in CONTENT_NOUNS if first and getattr(first.sample, kind)), None)
    return CONTENT_NOUNS[kind] if kind else "samples"


def run_labels(named: Sequence[tuple[str, Run]]) -> list[str]:
    """Return a short unique label per run: its method, with its seed or folder if needed."""
    methods = [run.method for _, run in named]
    seeds = [f"{run.method}, seed {run.spec['seed']}" for _, run in named]
    folders = [f"{run.method}, {PurePath(name).name}" for name, run in named]
    return next((labels for labels in (methods, seeds) if len(set(labels)) == len(named)), folders)


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings besides method and seed that differ between runs and so distort their means."""
    common = set.intersection(*(set(run.spec) for run in runs)) - COMPARABLE
    return [name for name in sorted(common) if len({str(run.spec[name]) for run in runs}) > 1]
