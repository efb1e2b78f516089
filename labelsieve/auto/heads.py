"""The stage in which linear heads judge all labels by features: its files, and what it found in words.

`write_judgment` writes the out-of-fold predictions (judgment.safetensors), the targets of the delivered head
(targets.npy) and, last, a summary (summary.json).
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save

from labelsieve.audit.findings import doubt_about, held_out_error, lost_classes, lost_remark
from labelsieve.audit.guesses import Guesses
from labelsieve.audit.posterior import most_probable_others
from labelsieve.audit.quality import THRESHOLD, Judged, judge_labels
from labelsieve.data import Labelled
from labelsieve.features.judge import Judgment, choose_strength, judge_features
from labelsieve.files import SUMS, write_atomically, write_seal
from labelsieve.models.linear import one_hot
from labelsieve.runs.data import Gathered
from labelsieve.runs.read import JUDGMENT, TARGETS, Array
from labelsieve.runs.spec import Experiment
from labelsieve.text import percent

SUMMARY = "summary.json"


def write_judgment(gathered: Gathered, folder: Path, experiment: Experiment) -> dict[str, Any]:
    """Judge the labels of the training set by its features, write the files into the folder, and return the summary.

    The targets are the probabilities of the true classes, or the given labels where the judgment is in doubt.
    """
    train = gathered.train
    assert isinstance(train, Labelled)
    decided = None if gathered.decided is None else gathered.decided[gathered.places.train].numpy()
    features = train.images.to(experiment.device)
    before = None if gathered.before is None else gathered.before[gathered.places.train].numpy()
    judgment = judge_features(features, train.labels.numpy(), train.num_classes, decided, experiment.seed, before)
    found = judge_labels(judgment.first, judgment.second)
    summary = {**_summary(judgment, found), "fingerprint": gathered.fingerprint}
    learned, given = torch.from_numpy(judgment.targets()), one_hot(train.labels, train.num_classes)
    lost = _lost_classes(found, learned.argmax(1).numpy(), train.labels.numpy(), train.num_classes)
    if summary["doubt"]:
        learned = given
    elif len(lost):
        learned = torch.where(torch.isin(train.labels, torch.from_numpy(lost))[:, None], given, learned)
        summary["reasons"].append(lost_remark(train.classes, lost))
    learned = learned.to(experiment.device)
    summary["delivered_strength"] = choose_strength(features, learned.argmax(1), train.num_classes, experiment.seed)[1]
    targets = np.full((len(gathered.whole), train.num_classes), 1 / train.num_classes, np.float32)
    targets[gathered.places.train.numpy()] = learned.cpu().numpy()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMS).unlink(missing_ok=True)
    write_atomically(
        folder / JUDGMENT, save({**_tensors("first", judgment.first), **_tensors("second", judgment.second)})
    )
    content = io.BytesIO()
    np.save(content, targets)
    write_atomically(folder / TARGETS, content.getvalue())
    write_atomically(folder / SUMMARY, json.dumps(summary, indent=1).encode())
    write_seal(folder / SUMS, [JUDGMENT, TARGETS, SUMMARY])
    return summary


def _lost_classes(found: Judged, learned: Array, labels: Array, num_classes: int) -> Array:
    """Return the classes that lose almost all labels in the audit, or in the targets of the delivered head."""
    suggested = most_probable_others(found.guesses, found.label_given)
    audited = np.where(found.quality < THRESHOLD, suggested, labels)
    return np.union1d(*(lost_classes(labels, each, num_classes) for each in (audited, learned)))


def _summary(judgment: Judgment, found: Judged) -> dict[str, Any]:
    """Return the contents of the summary."""
    error, issues, rate = held_out_error(judgment.first), found.quality < THRESHOLD, found.noise.rate
    doubt = doubt_about(rate.estimate, issues, judgment.first.labels, error, found.first_rate)
    return {
        "samples": len(issues),
        "strength": judgment.strength,
        "log_likelihood": judgment.log_likelihood,
        "held_out_error": error,
        "noise_rate": round(rate.estimate, 3),
        "issues": int(issues.sum()),
        "doubt": doubt,
        "reasons": [
            *([doubt] if doubt else []),
            f"noise rate: {percent(rate.estimate)} of the labels look wrong ({percent(rate.low)} to "
            f"{percent(rate.high)}), judged by linear heads that were not trained on them",
        ],
    }


def _tensors(name: str, guesses: Guesses) -> dict[str, Array]:
    """Return guesses as named tensors."""
    return {
        f"{name}/confidence": guesses.confidence.astype(np.float32),
        f"{name}/likeliest": guesses.likeliest.astype(np.int32),
        f"{name}/likelihood": guesses.likelihood.astype(np.float32),
    }
