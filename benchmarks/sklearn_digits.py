"""Compare SieveClassifier with plain training and logistic regression on scikit-learn's digits.

    python -m benchmarks.sklearn_digits

writes benchmarks/results/sklearn_digits.json and prints its table in about six minutes on one core. Every fourth image
belongs to the test set, whose labels are correct. The settings were chosen on seeds 0 to 9; with 40% pair noise these
seeds are also trained with and without `align` and `floor`.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.record import made_on
from labelsieve.integrations.sklearn import SieveClassifier
from labelsieve.noise import corrupt, transition
from labelsieve.runs.tables import markdown

RECORD = Path(__file__).parent / "results" / "sklearn_digits.json"
NOISES = (("pair", 0.0), ("pair", 0.2), ("pair", 0.4), ("symmetry", 0.2), ("symmetry", 0.4))
GUARDED, BARE = "true rate", "true rate, without align and floor"
SETTLED = range(10)  # the settings were chosen on these seeds
Array = np.ndarray[Any, Any]
Row = dict[str, Any]
CLASSIFIERS: dict[str, Callable[[float, int], Any]] = {  # called with the true noise rate and the seed
    "auto": lambda rate, seed: SieveClassifier(random_state=seed),
    GUARDED: lambda rate, seed: SieveClassifier(noise_rate=rate, random_state=seed),
    BARE: lambda rate, seed: SieveClassifier(
        noise_rate=rate, options={"align": False, "floor": 0.0}, random_state=seed
    ),
    "plain": lambda rate, seed: SieveClassifier(method="default", noise_rate=0.0, random_state=seed),
    "logistic regression": lambda rate, seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)),
}


def noisy(labels: Array, noise: str, rate: float, seed: int) -> Array:
    return corrupt(torch.from_numpy(labels), transition(noise, 10, rate), seed).numpy()


def row_of(name: str, noise: str, rate: float, seed: int) -> Row:
    """Train and test one classifier with one kind of noise."""
    X, y = load_digits(return_X_y=True)
    test = np.arange(len(y)) % 4 == 3
    labels = noisy(y[~test], noise, rate, seed)
    began = time.perf_counter()
    model = CLASSIFIERS[name](rate, seed).fit(X[~test], labels)
    seconds = time.perf_counter() - began
    return {
        "classifier": name,
        "noise": noise,
        "rate": rate,
        "seed": seed,
        "wrong": round(float((labels != y[~test]).mean()), 4),
        "estimate": round(model.noise_rate_, 4) if name == "auto" else None,
        "error": round(100 * (1 - model.score(X[test], y[test])), 2),
        "seconds": round(seconds, 2),
    }


def table(rows: Sequence[Row]) -> str:
    """Return a row for each noise: true and estimated noise rates, then test errors, in percent, seed by seed."""
    lines = [["noise", "wrong labels", "estimate", *CLASSIFIERS]]
    for noise, rate in NOISES:
        same = [row for row in rows if (row["noise"], row["rate"]) == (noise, rate)]
        groups = {name: [row for row in same if row["classifier"] == name] for name in CLASSIFIERS}
        shares = [listed(100 * row[key] for row in groups["auto"]) for key in ("wrong", "estimate")]
        errors = [listed(row["error"] for row in group) for group in groups.values()]
        lines.append([f"{noise} {100 * rate:.0f}%" if rate else "none", *shares, *errors])
    return markdown(lines)


def guards(rows: Sequence[Row]) -> str:
    """Return the ranges of the test error with and without `align` and `floor`, in words."""
    by_name = {name: [row["error"] for row in rows if row["classifier"] == name] for name in (GUARDED, BARE)}
    ranges = [f"{min(errors):.1f} to {max(errors):.1f}%" for errors in by_name.values()]
    return f"from {ranges[0]} with `align` and `floor`, and from {ranges[1]} without"


def listed(values: Any) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[10, 11, 12])
    parser.add_argument("--record", type=Path, default=RECORD)
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    jobs = [(name, *noise, seed) for noise in NOISES for name in CLASSIFIERS for seed in args.seeds]
    settled = [(name, "pair", 0.4, seed) for name in (GUARDED, BARE) for seed in SETTLED]
    record = {**made_on("cpu"), "threads": 1, "rows": [row_of(*job) for job in jobs]}
    record["guards"] = [row_of(*job) for job in settled]
    args.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(record["rows"]), guards(record["guards"]), sep="\n\n")


if __name__ == "__main__":
    main()
