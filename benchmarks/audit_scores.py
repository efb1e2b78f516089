"""Variants of the audit: scores of a training run, and the steps from predicted probabilities to a decision.

    python -m benchmarks.audit_scores runs [--seeds 3 4 5] [--work FOLDER]
    python -m benchmarks.audit_scores probabilities [--seeds 0 1] [--work FOLDER]

runs: the scores that a run of the embedded data offers, compared with each other; writes
benchmarks/results/audit_scores.json. probabilities: the steps of the audit one by one, compared with cleanlab; writes
benchmarks/results/posthoc.json and prints its tables. It needs cleanlab and scikit-learn, and uses the networks of
benchmarks/audit.py from the same work folder.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.audit import Bench, Task, crossed_for, data_of, prepared_for, theirs
from benchmarks.detection import Array, average_precision, decision, ranking
from benchmarks.record import Row
from labelsieve.audit.estimate import estimate_in_sample_noise
from labelsieve.audit.findings import add_training_margin
from labelsieve.audit.guesses import Guesses, guesses_from_probs, guesses_from_run
from labelsieve.audit.posterior import (
    best_temperature,
    count_confident,
    label_given_true,
    label_probability,
    shrunk_label_given_true,
    unmix_with,
)
from labelsieve.audit.quality import THRESHOLD
from labelsieve.core.criteria import Criterion, observed_confidence
from labelsieve.core.method import Method, Step
from labelsieve.data import ReadOptions, load_data
from labelsieve.noise import corrupt, transition
from labelsieve.runs.data import Shelf, gather
from labelsieve.runs.execute import run
from labelsieve.runs.read import read_samples
from labelsieve.runs.spec import experiment_for
from labelsieve.runs.tables import markdown
from labelsieve.train.counters import Tally

RESULTS = Path(__file__).parent / "results"
RUNS, PROBABILITIES = RESULTS / "audit_scores.json", RESULTS / "posthoc.json"
SETTINGS = (("pair", 0.4), ("mixed", 0.4), ("symmetry", 0.4), ("pair", 0.1), (None, 0.0))
NOISE = (("pair", 0.4), ("mixed", 0.4), ("symmetry", 0.4), ("pair", 0.1), ("symmetry", 0.1), (None, 0.0))
NETWORK = "network"
CLASSIFIERS = ("logistic regression", "random forest", "20 nearest neighbours", "naive Bayes")
OURS, THEIRS = "temperature, then unmixed", "cleanlab"


# --- scores of a run


class WideTally(Tally):
    """Also sums the confidence in the observed label and the score of the criterion."""

    names = (*Tally.names, "observed", "score")

    def __init__(self, method: Method, samples: int, device: torch.device) -> None:
        super().__init__(method, samples, device)
        self.criterion = next(part for part in method.parts() if isinstance(part, Criterion))

    def sample_values(self, step: Step, labels: Tensor) -> dict[str, Tensor]:
        more = {"observed": observed_confidence(step.probs, labels), "score": self.criterion(step.probs, labels)}
        return {**super().sample_values(step, labels), **more}


def measure(samples: dict[str, Array], clean: Array) -> Row:
    """Return the figures of every score of a run, and of its decisions."""
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


def measure_runs(seeds: Sequence[int], work: Path) -> None:
    """Train, and write the figures of every run."""
    record = []
    for seed in seeds:
        for noise, rate in SETTINGS:
            experiment = experiment_for("fashion", noise=noise, rate=rate, noise_rate=rate, seed=seed)
            path = work / experiment.name()
            with patch("labelsieve.train.loop.Tally", WideTally):
                run(experiment, path)
            train = gather(experiment, Shelf()).train
            clean = (train.labels if train.clean is None else train.clean).numpy()
            samples = read_samples(path)
            assert samples is not None
            record.append({"noise": noise, "rate": rate, "seed": seed, **measure(samples, clean)})
            RUNS.write_text(json.dumps(record, indent=1) + "\n")
            print(noise, rate, seed, flush=True)


# --- probabilities of a classifier


class Labelled(NamedTuple):
    """Given labels, true labels, and out-of-sample probabilities (n, K)."""

    labels: Array
    clean: Array
    probs: Array


def network_probs(bench: Bench, data: str, noise: str | None, rate: float, seed: int) -> Labelled:
    task = Task(data, noise, rate, None, seed, None, None)
    prepared = prepared_for(bench, task)
    train = prepared.train
    clean = train.labels if train.clean is None else train.clean
    return Labelled(train.labels.numpy(), clean.numpy(), crossed_for(bench, task, prepared).probs)


def classifier_probs(bench: Bench, name: str, data: str, noise: str | None, rate: float, seed: int) -> Labelled:
    """Cross-validate a classifier with five folds on the 50 largest principal components."""
    from sklearn.decomposition import PCA
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    train = load_data(data_of(bench, Task(data, noise, rate, None, seed, None, None)), ReadOptions()).train
    clean, classes = train.labels, train.num_classes
    labels = corrupt(clean, transition(noise, classes, rate), seed) if noise else clean
    path = bench.work / "classified" / f"{data}-{name}-{noise}-{rate}-{seed}.npy"
    if not path.exists():
        rows = PCA(50, random_state=0).fit_transform(train.images.reshape(len(train), -1).numpy() / 255)
        folds = StratifiedKFold(5, shuffle=True, random_state=seed)
        probs = cross_val_predict(classifier(name, seed), rows, labels.numpy(), cv=folds, method="predict_proba")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, probs.astype(np.float32))
    return Labelled(labels.numpy(), clean.numpy(), np.load(path))


def classifier(name: str, seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier

    makers = (
        lambda: LogisticRegression(max_iter=2000),
        lambda: RandomForestClassifier(100, random_state=seed),
        lambda: KNeighborsClassifier(20),
        lambda: GaussianNB(),
    )
    return makers[CLASSIFIERS.index(name)]()


# --- steps of the audit


def steps() -> dict[str, Callable[[Guesses], Array]]:
    """Return label qualities (n) with more and more steps of the audit, and then with variants of a step."""
    return {
        "Bayes' rule with the joint that settles": label_probability,
        "T counted where it is surest": lambda g: label_probability(g, confident_counts(g)),
        "and unmixed": lambda g: label_probability(unmix_with(g, confident_counts(g), 1.0), confident_counts(g)),
        OURS: lambda g: qualities_with(g, confident_counts(g)),
        "the same, T not levelled": lambda g: qualities_with(g, label_given_true(count_confident(g))),
        "the same, T from a tenth": lambda g: qualities_with(g, confident_counts(g, 0.1)),
        "the same, T from a half": lambda g: qualities_with(g, confident_counts(g, 0.5)),
        "the same, T from all": lambda g: qualities_with(g, confident_counts(g, 1.0)),
    }


def confident_counts(guesses: Guesses, share: float = 0.25) -> Array:
    return shrunk_label_given_true(count_confident(guesses, share))


def qualities_with(guesses: Guesses, label_given: Array) -> Array:
    return label_probability(unmix_with(guesses, label_given, best_temperature(guesses, label_given)), label_given)


def rows_of(found: Labelled, about: Row, only: Sequence[str] | None = None) -> Iterator[Row]:
    """Yield a row for cleanlab, with the better of its two scores, and one for each step."""
    wrong = found.labels != found.clean
    confidence, margin, issues = theirs(found.labels, found.probs)
    assert issues is not None, "cleanlab is not installed"
    precise = max(average_precision(wrong, score) for score in (confidence, margin)) if wrong.any() else None
    yield {**about, "step": THEIRS, **figures(wrong, issues), "average_precision": precise, "estimate": None}
    for name, step in steps().items():
        if only is None or name in only:
            good = step(guesses_from_probs(found.labels, found.probs))
            precise = average_precision(wrong, good) if wrong.any() else None
            yield {
                **about,
                "step": name,
                **figures(wrong, good < THRESHOLD),
                "average_precision": precise,
                "estimate": float(1 - good.mean()),
            }


def figures(wrong: Array, issues: Array) -> Row:
    return {"wrong": float(wrong.mean()), "issues": float(issues.mean()), "f1": decision(wrong, issues)["f1"]}


# --- tables


def cell(rows: Sequence[Row]) -> str:
    """Format average precision and F1; for clean labels, the share of flagged samples."""
    if rows[0]["average_precision"] is None:
        return f"{100 * np.mean([row['issues'] for row in rows]):.1f}%"
    return " / ".join(f"{np.mean([row[name] for row in rows]):.3f}" for name in ("average_precision", "f1"))


def table(record: Sequence[Row], title: str, key: Callable[[Row], str]) -> str:
    """Return a table with a row per key and a column per noise."""
    noises = [f"{kind} {100 * rate:.0f}%" if kind else "none, flagged" for kind, rate in NOISE]
    lines = [[title, *noises]]
    for name in dict.fromkeys(map(key, record)):
        same = [row for row in record if key(row) == name]
        groups = ([row for row in same if (row["noise"], row["rate"]) == noise] for noise in NOISE)
        lines.append([name, *(cell(group) if group else "–" for group in groups)])
    return markdown(lines)


def steps_table(record: Sequence[Row]) -> str:
    """Return the table of networks with a row per step."""
    return table([row for row in record if row["classifier"] == NETWORK], "average precision / F1", lambda r: r["step"])


def classifiers_table(record: Sequence[Row]) -> str:
    """Return the table of other classifiers: labelsieve and cleanlab."""
    names = {OURS: "labelsieve", THEIRS: "cleanlab"}
    rows = [row for row in record if row["classifier"] != NETWORK]
    return table(
        rows, "average precision / F1", lambda r: f"{r['data']}, {r['classifier']}: {names.get(r['step'], r['step'])}"
    )


def measure_probabilities(seeds: Sequence[int], work: Path) -> None:
    """Compute the figures of every classifier and step, and write and print them."""
    torch.set_num_threads(1)
    bench = Bench(work, "cpu", None, "")
    record: list[Row] = []
    for seed in seeds:
        for noise, rate in NOISE:
            about = {"data": "fashion", "classifier": NETWORK, "noise": noise, "rate": rate, "seed": seed}
            record += rows_of(network_probs(bench, "fashion", noise, rate, seed), about)
    for data in ("fashion", "digits"):
        for name in CLASSIFIERS:
            for noise, rate in NOISE:
                about = {"data": data, "classifier": name, "noise": noise, "rate": rate, "seed": seeds[0]}
                found = classifier_probs(bench, name, data, noise, rate, seeds[0])
                record += rows_of(found, about, [OURS])
    PROBABILITIES.write_text(json.dumps(record, indent=1) + "\n")
    print(steps_table(record), classifiers_table(record), sep="\n\n")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("runs", "probabilities"))
    parser.add_argument("--seeds", nargs="+", type=int, help="default: 3 4 5 for runs, 0 1 for probabilities")
    parser.add_argument("--work", type=Path, help="default: runs/audit, or runs/audit-benchmark for probabilities")
    options = parser.parse_args(words)
    if options.what == "runs":
        measure_runs(options.seeds or [3, 4, 5], options.work or Path("runs/audit"))
    else:
        measure_probabilities(options.seeds or [0, 1], options.work or Path("runs/audit-benchmark"))


if __name__ == "__main__":
    main()
