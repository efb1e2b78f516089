"""Label issues from the probabilities of any classifier: the steps of the audit one by one, compared with cleanlab.

python -m benchmarks.posthoc [--seeds 0 1] [--work FOLDER] writes benchmarks/results/posthoc.json and prints its tables.
It needs cleanlab and scikit-learn, and uses the networks of benchmarks/audit.py from the same work folder.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.audit import Bench, Task, crossed_for, data_of, prepared_for, theirs
from benchmarks.detection import Array, average_precision, decision
from labelsieve.audit.guesses import Guesses, guesses_from_probs
from labelsieve.audit.posterior import (
    best_temperature,
    count_confident,
    label_given_true,
    label_probability,
    shrunk_label_given_true,
    unmix_with,
)
from labelsieve.audit.quality import THRESHOLD
from labelsieve.data import ReadOptions, load_data
from labelsieve.noise import corrupt, transition
from labelsieve.runs.tables import markdown

RECORD = Path(__file__).parent / "results" / "posthoc.json"
NOISE = (("pair", 0.4), ("mixed", 0.4), ("symmetry", 0.4), ("pair", 0.1), ("symmetry", 0.1), (None, 0.0))
NETWORK = "network"
CLASSIFIERS = ("logistic regression", "random forest", "20 nearest neighbours", "naive Bayes")
OURS, THEIRS = "temperature, then unmixed", "cleanlab"
Row = dict[str, Any]


class Labelled(NamedTuple):
    """Given labels, true labels, and out-of-sample probabilities (n, K)."""

    labels: Array
    clean: Array
    probs: Array


# --- probabilities


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


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.posthoc", description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--work", type=Path, default=Path("runs/audit-benchmark"))
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    bench = Bench(options.work, "cpu", None, "")
    record: list[Row] = []
    for seed in options.seeds:
        for noise, rate in NOISE:
            about = {"data": "fashion", "classifier": NETWORK, "noise": noise, "rate": rate, "seed": seed}
            record += rows_of(network_probs(bench, "fashion", noise, rate, seed), about)
    for data in ("fashion", "digits"):
        for name in CLASSIFIERS:
            for noise, rate in NOISE:
                about = {"data": data, "classifier": name, "noise": noise, "rate": rate, "seed": options.seeds[0]}
                found = classifier_probs(bench, name, data, noise, rate, options.seeds[0])
                record += rows_of(found, about, [OURS])
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(steps_table(record), classifiers_table(record), sep="\n\n")


if __name__ == "__main__":
    main()
