"""Audit of a finished run: `audit_run` writes its files, `findings_of_run` returns its findings.

`score_run` compares the findings with the truth, for a run on features to whose labels noise was added.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelsieve.audit.files import write_audit
from labelsieve.audit.findings import Findings, findings_from_guesses
from labelsieve.audit.guesses import Array, Guesses
from labelsieve.audit.others import OtherIssues
from labelsieve.auto.judge import held_out_guesses, noise_of_guesses, opinion_on, rate_of_selecting, reported_rate
from labelsieve.auto.samples import sample_renderer, sample_texts
from labelsieve.data import Labelled, Trainable
from labelsieve.data.labels import LabelOverlay
from labelsieve.errors import InputError
from labelsieve.features.judge import choose_strength, fit_head
from labelsieve.features.neighbours import find_other_issues, limit_of_search
from labelsieve.files import DONE
from labelsieve.methods import Problem, make
from labelsieve.models.linear import head_logits
from labelsieve.review.decisions import read_decisions
from labelsieve.runs.data import Gathered, Shelf, gather, reading_of
from labelsieve.runs.execute import is_linear_head, versions
from labelsieve.runs.find import refuse_unfinished
from labelsieve.runs.read import CORRECTED, HEAD, HEADS, HELD_OUT, PLAIN, TARGETS, TESTED, Run, read_run, read_samples
from labelsieve.runs.record import read_head
from labelsieve.runs.spec import Experiment, experiment_from, with_defaults
from labelsieve.runtime import is_usable
from labelsieve.text import percent, printable

FITS_ALL_LABELS = ("default", "active-bias")  # methods that train on every label as it is
NOT_TRAINED_ON = "The model was not trained on it."
EXCLUDED = "The training mostly excluded it as doubtful."


def audit_run(
    path: Path,
    out: Path | None = None,
    data: str | None = None,
    labels: str | None = None,
    export: Sequence[str] = (),
    shelf: Shelf | None = None,
    cache: str | None = None,
) -> None:
    """Audit a finished run, write the files of the audit and print the result.

    Args:
        path: Folder of the run.
        out: Folder of the audit. Default: the folder audit in the run folder.
        data: Where the data of the run is now, if it was moved.
        labels: Where its label file is now, if it was moved.
        export: Names of additional formats, keys of `labelsieve.audit.files.EXPORTS`.
        shelf: Data that is loaded already.
        cache: Folder of features or decoded images; one that the folder of the run names is not used.
    """
    refuse_unfinished(path)
    run, samples = read_run(path), samples_as_given(path)
    gathered, experiment = _data_of_run(path, samples, data, labels, shelf or Shelf(), cache)
    whole = gathered.whole
    ids = whole.names and list(whole.names)
    features = _features_of(whole)
    if features is not None and (limit := limit_of_search(len(features))):
        print(limit)
    others = None if features is None else find_other_issues(features, samples["label"])
    findings = findings_of_run(path, samples, whole.classes, ids, others)
    made = {"method": run.method, "versions": versions()}
    render = sample_renderer(experiment.data, reading_of(experiment), whole)
    names = [name for name in ("chosen/penalty", "last/penalty") if name in run.tables]
    penalty = np.asarray(run.tables[names[0]].mean(0)) if names else None  # of all networks
    texts = sample_texts(whole)
    rows = None if features is None else features.float().numpy(force=True)
    write_audit(
        findings, out or path / "audit", made, penalty=penalty, render=render, texts=texts, features=rows, export=export
    )
    print_about_corrected(path, export)


def samples_as_given(run: Path) -> dict[str, Array]:
    """Return the per-sample statistics of a run with the labels as given; refuse a run without statistics.

    The delivered model of an automatic run may have learned corrected labels; the trainings before it never do.
    """
    folder = judged_folder(run)
    if (samples := read_samples(folder)) is None:
        raise InputError(
            f"{folder} has no samples.safetensors, which the audit needs: an older version made it, or only its record "
            "was kept; train again with another --out"
        )
    return samples


def judged_folder(run: Path) -> Path:
    """Return the training with the data and the labels that were judged: one before the delivered one, if there is any.

    It is a linear head on features if the whole network was fine-tuned, a plain judge in a training from scratch.
    """
    before = (run / folder / "1" for folder in (HEAD, PLAIN))
    return next((folder for folder in before if (folder / DONE).exists()), run)


def _features_of(samples: Trainable) -> Tensor | None:
    """Return the features (n, F) that were computed from samples; None for images and tables."""
    return samples.images if isinstance(samples, Labelled) and samples.original is not None else None


def findings_of_run(
    path: Path,
    samples: Mapping[str, Array],
    classes: Sequence[str],
    ids: Sequence[str] | None = None,
    others: OtherIssues | None = None,
) -> Findings:
    """Judge every label of a run from its sample statistics and the trainings in its folder."""
    guesses, second, training, out_of_sample = opinion_on(path, samples, len(classes))
    remarks = _remarks_of(samples, out_of_sample)
    if not out_of_sample:
        run = read_run(path, with_tables=False)
        return _judge(path, run, guesses, classes, ids, training=training, remarks=remarks, others=others)
    return findings_from_guesses(
        guesses,
        tuple(classes),
        ids,
        remarks=remarks,
        rate=rate_of_selecting(path),
        out_of_sample=True,
        second=second,
        others=others,
    )


def _judge(
    path: Path,
    run: Run,
    guesses: Guesses,
    classes: Sequence[str],
    ids: Sequence[str] | None,
    *,
    training: tuple[Array, Array] | None,
    remarks: Sequence[str],
    others: OtherIssues | None,
) -> Findings:
    """Judge every label by a model that learned them, with the noise rate of held-out samples if there are enough."""
    held = held_out_guesses(path)
    noise = noise_of_guesses(held)
    rate, count = (reported_rate(noise.rate), len(held)) if held is not None and noise else (None, 0)
    return findings_from_guesses(
        guesses,
        tuple(classes),
        ids,
        training=training,
        remarks=remarks,
        trusts_labels=_trusts_labels(run.spec),
        rate=rate,
        held_out=count,
        given_rate=given_rate(run),
        others=others,
    )


def given_rate(run: Run) -> float:
    """Return the noise rate that the user passed to a run that selects by it, else 0."""
    used = selects(run.method, run.spec.get("criterion")) and "chosen" not in run.start
    return float(run.spec["noise_rate"]) if used else 0.0


def selects(method: str, criterion: str | None) -> bool:
    """Return whether a method leaves samples out according to its noise rate."""
    return bool(make(method, Problem(2, 0.0, num_samples=1), criterion).selections)


def _trusts_labels(spec: Mapping[str, Any]) -> bool:
    """Return whether a network was trained on all labels alike, so that it may have memorized wrong ones."""
    if selects(spec["method"], spec.get("criterion")):
        return bool(spec["noise_rate"] == 0)
    return spec["method"] in FITS_ALL_LABELS


def _data_of_run(
    path: Path,
    samples: Mapping[str, Array],
    data: str | None,
    labels: str | None,
    shelf: Shelf,
    cache: str | None = None,
) -> tuple[Gathered, Experiment]:
    """Return the data that a run was trained on and its experiment; features, if the whole network was fine-tuned.

    The labels of its label file are taken from the sample statistics: the file may have been moved or changed.
    """
    changed: dict[str, Any] = {name: value for name, value in (("data", data), ("labels", labels)) if value is not None}
    changed["cache"] = cache
    folder = path / HEAD / "1" if (path / HEAD / "1" / DONE).exists() else path
    spec = read_head(folder)
    experiment = replace(experiment_from(with_defaults(spec["experiment"])), **changed)
    if experiment.corrected is not None:  # in the run folder, which may have been moved
        file = path / HEADS / TARGETS if is_linear_head(experiment) else path / CORRECTED
        experiment = replace(experiment, corrected=str(file))
    if experiment.backbone is None or not is_usable(experiment.device):  # features are cached per device
        experiment = replace(experiment, device="cpu", precision="fp32")
    known = None
    if labels is None and not experiment.noise:
        decided = torch.from_numpy(samples["decided"]) if "decided" in samples else None
        before = torch.from_numpy(samples["before"]).long() if "before" in samples else None
        known = LabelOverlay(torch.from_numpy(samples["label"]).long(), decided, before)
    try:
        gathered = gather(experiment, shelf, known)
    except InputError as error:
        raise InputError(
            f"{error} (if the data of {path} was moved, name it with --data, and its label file with --labels)"
        ) from None
    expected = spec.get("data")
    if gathered.fingerprint != expected:
        raise InputError(
            f"{experiment.data} or its labels changed since {path} was trained (fingerprint {expected}, now "
            f"{gathered.fingerprint}); restore them, or train again with another --out"
        )
    return gathered, experiment


def _remarks_of(samples: Mapping[str, Array], out_of_sample: bool) -> list[str]:
    """Return a sentence about the role of each sample in the training, or an empty string.

    `out_of_sample`: all samples were held out in turn, so that this says nothing about single ones.
    """
    unseen = np.isin(samples["split"], [TESTED] if out_of_sample else [HELD_OUT, TESTED])
    excluded = (samples["seen"] > 0) & (samples["mean_selected"] < 0.5)
    remarks = ("", EXCLUDED, NOT_TRAINED_ON)
    return [remarks[role] for role in np.where(unseen, 2, excluded).tolist()]


def print_about_corrected(folder: Path, export: Sequence[str]) -> None:
    """Print what corrected.csv does not contain, if it was written: decisions of a review."""
    if "corrected" not in export:
        return
    if not (count := len(read_decisions(folder))):
        print(
            "corrected.csv contains suggestions that nobody reviewed: a training on it confirms them, right or wrong."
        )
    else:
        command = printable(f"labelsieve review {shlex.quote(str(folder))} --export reviewed.csv")
        print(f"corrected.csv ignores the {count:,} decisions in {folder}/review; to apply them: {command}")


# ---- score ---------------------------------------------------------------------------------------------------------


def score_run(path: Path) -> list[str]:
    """Return sentences on how well a finished run found the labels that were made wrong, and on its test error."""
    run = read_run(path)
    experiment = replace(experiment_from(with_defaults(run.spec)), corrected=None)
    gathered = gather(experiment, Shelf())
    train, test = gathered.train, gathered.test
    assert isinstance(train, Labelled) and isinstance(test, Labelled) and train.clean is not None
    wrong = (train.labels != train.clean).numpy()
    findings = findings_of_run(path, samples_as_given(path), train.classes)
    suspects = findings.issues[gathered.places.train.numpy()]
    found = int((wrong & suspects).sum())
    torch.set_num_threads(1)  # small regressions: several threads would mostly wait for each other
    plain, best = (_regression_error(train, labels, test) for labels in (train.labels, train.clean))
    return [
        f"{wrong.sum():,} of the {len(train):,} labels were made wrong. The audit suspects {suspects.sum():,} labels "
        f"and found {found:,} of the wrong ones: recall {_share(found, wrong)}, precision {_share(found, suspects)}.",
        f"Error on {len(test):,} test samples: {run.end['last']:.1f}%. A logistic regression on the wrong "
        f"labels has {plain:.1f}%, on the true labels {best:.1f}%.",
    ]


def _share(found: int, of: Array) -> str:
    return percent(found / max(1, int(of.sum())))


def _regression_error(train: Labelled, labels: Tensor, test: Labelled) -> float:
    """Return the test error, in percent, of a logistic regression fitted to labels (n), regularised by validation."""
    targets, strength = choose_strength(train.images, labels, train.num_classes)
    mean, scale, head = fit_head(train.images, targets, strength)
    predicted = head_logits((test.images - mean) / scale, head[None])[:, 0].argmax(1)
    return 100 * (predicted != test.labels).double().mean().item()
