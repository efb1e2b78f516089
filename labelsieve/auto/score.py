"""Score of a run on features to whose labels noise was added: its findings and its error, compared with the truth."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from labelsieve.audit.guesses import Array
from labelsieve.auto.audit import findings_of_run
from labelsieve.data import Labelled
from labelsieve.features.judge import choose_strength, fit_head
from labelsieve.models.linear import head_logits
from labelsieve.runs.data import Shelf, gather
from labelsieve.runs.read import read_run, read_samples
from labelsieve.runs.spec import experiment_from, with_defaults
from labelsieve.text import percent


def score_run(path: Path) -> list[str]:
    """Return sentences on how well a finished run found the labels that were made wrong, and on its test error."""
    run = read_run(path)
    experiment = replace(experiment_from(with_defaults(run.spec)), corrected=None)
    gathered = gather(experiment, Shelf())
    train, test = gathered.train, gathered.test
    assert isinstance(train, Labelled) and isinstance(test, Labelled) and train.clean is not None
    wrong = (train.labels != train.clean).numpy()
    findings = findings_of_run(path, read_samples(path) or {}, train.classes)
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
