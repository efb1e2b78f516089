"""Detection of wrong labels on the embedded data by several scores of the same runs.

python -m benchmarks.audit_scores [first seed] [seeds] [folder]: writes benchmarks/results/audit_scores.json
"""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.detection import ranking
from labelsieve.audit.estimate import estimate_in_sample_noise
from labelsieve.audit.findings import add_training_margin
from labelsieve.audit.guesses import guesses_from_run
from labelsieve.audit.posterior import label_probability
from labelsieve.audit.quality import THRESHOLD
from labelsieve.core.criteria import Criterion, observed_confidence
from labelsieve.core.method import Method, Step
from labelsieve.runs.data import Shelf, gather
from labelsieve.runs.execute import run
from labelsieve.runs.read import read_samples
from labelsieve.runs.spec import experiment_for
from labelsieve.train.counters import Tally

SETTINGS = (("pair", 0.4), ("mixed", 0.4), ("symmetry", 0.4), ("pair", 0.1), (None, 0.0))
Array = np.ndarray[Any, Any]


class WideTally(Tally):
    """Also sums the confidence in the observed label and the score of the criterion."""

    names = (*Tally.names, "observed", "score")

    def __init__(self, method: Method, samples: int, device: torch.device) -> None:
        super().__init__(method, samples, device)
        self.criterion = next(part for part in method.parts() if isinstance(part, Criterion))

    def sample_values(self, step: Step, labels: Tensor) -> dict[str, Tensor]:
        more = {
            "observed": observed_confidence(step.probs, labels),
            "score": self.criterion(step.probs, labels),
        }
        return {**super().sample_values(step, labels), **more}


def measure(samples: dict[str, Array], clean: Array) -> dict[str, Any]:
    guesses = guesses_from_run(samples, 10)
    wrong = guesses.labels != clean
    alone = label_probability(guesses)
    final = add_training_margin(alone, samples["mean_margin"], samples["seen"])
    scores = {
        "confidence in the label, delivered network": samples["confidence"],
        "confidence in the label, mean of training": samples["mean_observed"],
        "Criteria_ALL, mean of training": samples["mean_score"],
        "margin, mean of training": samples["mean_margin"],
        "how often selected": samples["mean_selected"],
        "posterior, delivered network": alone,
        "posterior and margin of training": final,
    }
    issues = final < THRESHOLD
    return {
        "wrong": float(wrong.mean()),
        "noise_rate": estimate_in_sample_noise(guesses).rate._asdict(),
        "issues": float(issues.mean()),
        "precision": float(wrong[issues].mean()) if issues.any() else None,
        "recall": float(issues[wrong].mean()) if wrong.any() else None,
        "scores": {name: ranking(wrong, score) for name, score in scores.items()} if wrong.any() else {},
    }


def main(first: int = 3, seeds: int = 3, folder: str = "runs/audit") -> None:
    out = Path(__file__).parent / "results" / "audit_scores.json"
    record = []
    for seed in range(first, first + seeds):
        for noise, rate in SETTINGS:
            experiment = experiment_for("fashion", noise=noise, rate=rate, noise_rate=rate, seed=seed)
            path = Path(folder) / experiment.name()
            with patch("labelsieve.train.loop.Tally", WideTally):
                run(experiment, path)
            train = gather(experiment, Shelf()).train
            clean = (train.labels if train.clean is None else train.clean).numpy()
            samples = read_samples(path)
            assert samples is not None
            record.append({"noise": noise, "rate": rate, "seed": seed, **measure(samples, clean)})
            out.write_text(json.dumps(record, indent=1) + "\n")
            print(noise, rate, seed, flush=True)


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:3]), *sys.argv[3:4])
