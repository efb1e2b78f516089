"""audit: the suspect labels of a run, as files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelsieve.audit.exports import EXPORTS
from labelsieve.audit.findings import Findings, findings_of
from labelsieve.audit.guesses import Array, Guesses, guesses_of
from labelsieve.data.label_file import Laid
from labelsieve.errors import InputError, nearest
from labelsieve.experiments.audit_files import audit_files
from labelsieve.experiments.auto import cautious
from labelsieve.experiments.folder import read_json
from labelsieve.experiments.gather import Gathered, gather, reading_of
from labelsieve.experiments.judges import held_out_guesses, judges, noise_among, opinion_on
from labelsieve.experiments.run import versions
from labelsieve.experiments.shelf import Shelf
from labelsieve.experiments.show import views_of
from labelsieve.experiments.spec import Experiment, restored, with_defaults
from labelsieve.experiments.unfinished import refuse_unfinished
from labelsieve.experiments.write_audit import say_decisions, write_audit
from labelsieve.methods import Problem, make
from labelsieve.predict import load
from labelsieve.report.records import HELD_OUT, TESTED, Run, read_run, read_samples

LEARNS_ALL = ("default", "active-bias")  # methods that learn every label, as it is
UNSEEN = "The model did not learn from it."
REMARKS = {HELD_OUT: UNSEEN, TESTED: UNSEEN}
LEFT_OUT = "The model mostly set it aside as doubtful."


def audit_options(
    run: str,
    labels: str | None,
    pred_probs: Path | None,
    classes: Path | None,
    text: str | None,
    data: str | None,
    out: Path | None,
    export: Sequence[str],
    model: str | None,
) -> None:
    """Audit what the options name and say what was found."""
    for name in export:
        if name not in EXPORTS:
            raise InputError(f"there is no export {name!r}: {nearest(name, EXPORTS)}")
    if run and pred_probs is None:
        audit_run(Path(run), out, data, labels, export, model)
    elif pred_probs is not None and labels is not None and out is not None and not run:
        audit_files(Path(labels), pred_probs, classes, text, data, out, export)
    else:
        raise InputError("say which run to audit: labelsieve audit RUN; or give --labels, --pred-probs and --out")


def audit_run(
    path: Path, out: Path | None, data: str | None, labels: str | None, export: Sequence[str], model: str | None
) -> None:
    """The audit of a finished run."""
    refuse_unfinished(path)
    done, samples = read_run(path), read_samples(path)
    gathered, experiment = data_of(path, done, samples, data, labels)
    if samples is not None and len(samples["label"]) != len(gathered.whole):
        raise InputError(f"{path}/samples.safetensors has {len(samples['label']):,} samples, the data another number")
    whole, plain = gathered.whole, believes_all(experiment)
    names = whole.names and list(whole.names)
    if samples is None:
        print("the run has no per-sample statistics (it is of an older version): its model predicts all samples anew")
        findings = judged(path, predicted(path, gathered, model), whole.classes, names, plain=plain)
    else:
        findings = findings_in(path, samples, whole.classes, names, plain=plain)
    made = {"method": done.method, "versions": versions(), "statistics": samples is not None}
    views = views_of(experiment.data, reading_of(experiment), gathered.whole)
    write_audit(findings, penalty_of(done), made, views, out or path / "audit", export)
    say_decisions(path, export)


def findings_in(
    run: Path,
    samples: Mapping[str, Array],
    classes: Sequence[str],
    names: Sequence[str] | None = None,
    *,
    plain: bool = False,
) -> Findings:
    """What a finished run, from the statistics of its samples, and its probes say of every label."""
    guesses, training, unlearnt = opinion_on(run, samples, len(classes))
    remarks = remarks_of(samples)
    if unlearnt and not (samples["split"] == HELD_OUT).any():
        return findings_of(guesses, tuple(classes), names, remarks=remarks, unlearnt=True)
    known = {"training": training, "unlearnt": unlearnt, "remarks": remarks, "plain": plain}
    return judged(run, guesses, classes, names, **known)


def judged(run: Path, guesses: Guesses, classes: Sequence[str], names: Sequence[str] | None, **known: Any) -> Findings:
    """Every label, and the share that is wrong: where samples were not learnt from, those say more about it."""
    held = held_out_guesses(judges(run))
    seen = noise_among(held)
    rate, count = (cautious(seen.rate), len(held)) if held is not None and seen else (None, 0)
    told = told_to(read_run(run, with_tables=False))
    return findings_of(guesses, tuple(classes), names, rate=rate, held_out=count, told=told, **known)


def told_to(run: Run) -> float:
    """The share of wrong labels that a person named for a run that selects by it."""
    named = selects(run.method, run.spec.get("criterion")) and "chosen" not in run.start
    return float(run.spec["noise_rate"]) if named else 0.0


def selects(method: str, criterion: str | None) -> bool:
    """Whether a method leaves samples out by the noise rate that it is told."""
    return bool(make(method, Problem(2, 0.0, num_samples=1), criterion).selecting)


def believes_all(experiment: Experiment) -> bool:
    """Whether the network learnt from all labels alike, and so the wrong ones by heart."""
    if selects(experiment.method, experiment.criterion):
        return experiment.noise_rate == 0
    return experiment.method in LEARNS_ALL


def laid_in(samples: Mapping[str, Array]) -> Laid:
    """What the label file of a run said, where it had one."""
    decided = torch.from_numpy(samples["decided"]) if "decided" in samples else None
    return Laid(torch.from_numpy(samples["label"]).long(), decided)


def data_of(
    path: Path, run: Run, samples: Mapping[str, Array] | None, data: str | None, labels: str | None
) -> tuple[Gathered, Experiment]:
    """The data that the run was trained on, wherever it lies now.

    The labels of its label file are among its samples, so that the file may be gone or written anew.
    """
    changed = {name: value for name, value in (("data", data), ("labels", labels)) if value is not None}
    experiment = replace(restored(with_defaults(run.spec)), device="cpu", precision="fp32", **changed)  # type: ignore[arg-type]
    known = None if samples is None or labels is not None or experiment.noise else laid_in(samples)
    try:
        gathered = gather(experiment, Shelf(), known)
    except InputError as error:
        raise InputError(
            f"{error} (the data of {path}: --data says where it is now, --labels its label file)"
        ) from None
    was = read_json(path / "spec.json").get("data")
    if gathered.fingerprint != was:
        raise InputError(
            f"{path} was trained on other data than {experiment.data}: its fingerprint is {was}, this one's "
            f"{gathered.fingerprint}; name the data of the run with --data"
        )
    return gathered, experiment


def predicted(path: Path, gathered: Gathered, model: str | None) -> Guesses:
    """The delivered model's guesses for every sample of the data's training set."""
    probs = load(path, model=model).predict_set(gathered.whole)
    labels = gathered.whole.labels.clone()
    labels[gathered.places.train] = gathered.train.labels
    if gathered.places.valid is not None and gathered.valid is not None:
        labels[gathered.places.valid] = gathered.valid.labels
    return guesses_of(labels.numpy(), probs)


def remarks_of(samples: Mapping[str, Array]) -> list[str]:
    """What the training has to say of a sample besides the model's guess."""
    left_out = (samples["seen"] > 0) & (samples["mean_selected"] < 0.5)
    return [
        REMARKS.get(split) or (LEFT_OUT if out else "")
        for split, out in zip(samples["split"].tolist(), left_out.tolist(), strict=True)
    ]


def penalty_of(run: Run) -> Array | None:
    """The penalty labels (K, K) that the run learnt, mean over its networks."""
    for name in ("chosen/penalty", "last/penalty"):
        if name in run.tables:
            return np.asarray(run.tables[name].mean(0))
    return None
