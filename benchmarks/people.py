"""Estimates and decisions on labels given by people, and on simulated errors of several kinds, beside other tools.

    python -m benchmarks.people --probs label_probs.npz --clothing clothing/ --banking banking77/ \\
        --cifar cifar10.npz --cifar-n labels.npz --cifar100 cifar100.npz
    python -m benchmarks.people --show

Every cell has given and true labels and out-of-fold predictions: of fine-tuned networks (--probs: arrays named
SET_NET_pred_probs, SET_NET_labels and SET_NET_true), of linear heads on features of lite0 or wordllama, and of
scikit-learn's logistic regression and multilayer perceptron on pixels. Constants of labelsieve were chosen on cells
with the role "development"; those with the roles "validation" and "confirmation" were evaluated afterwards, the latter
once the lowest quality had been chosen. Needs cleanlab 2.9 and scikit-learn. Rows are added to
benchmarks/results/people.jsonl as they are finished; finished ones are skipped.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from benchmarks.detection import decision
from benchmarks.photos import average_precision, to_nearest
from benchmarks.record import Row, add_row, made_here, read_rows
from labelsieve.audit.guesses import guesses_from_probs
from labelsieve.audit.quality import THRESHOLD, judge_labels
from labelsieve.data import ReadOptions
from labelsieve.data.load import find
from labelsieve.features.judge import FOLDS, Judgment, judge_features, out_of_fold, stratified_folds
from labelsieve.models.linear import one_hot, standardise
from labelsieve.runs.tables import markdown

Array = np.ndarray[Any, Any]
RESULTS = Path(__file__).parent / "results" / "people.jsonl"
REPEATED = RESULTS.with_name("people_repeated.json")
REVIEWED = RESULTS.with_name("people_reviewed.json")
NOISES = (
    ("none", 0.0),
    ("pair", 0.4),
    ("mixed", 0.4),
    ("symmetric", 0.15),
    ("symmetric", 0.4),
    ("nearest", 0.25),
    ("one-way", 0.4),
    ("instance", 0.2),
    ("instance", 0.4),
    ("annotator", 0.1),
)
PEOPLE = ("aggre", "random1", "random2", "random3", "worse")
PHOTOGRAPHS = 20_000  # of CIFAR-10, embedded once
SUPERCLASS_IMAGES = 4000  # of CIFAR-100, with its 20 superclasses
ROLES = ("development", "validation", "confirmation")
BINS = 10  # of the calibration error
LOW_QUALITY = 0.1
HOC_STEPS, HOC_CLASSES, HOC_SAMPLES = 400, 20, 5000
REPEATS = 10
REVIEWS = (0, 50, 100, 200, 400, None)  # suspects decided on; None: all


class Cell(NamedTuple):
    """Labels with known errors, and what judges them: features, or out-of-fold probabilities."""

    given: Array  # (n)
    true: Array  # (n)
    features: Array | None  # (n, F)
    probs: Array | None = None  # (n, K)


def moved(true: Array, kind: str, rate: float, features: Array, seed: int) -> Array:
    """Return labels with errors of a kind."""
    classes = int(true.max()) + 1
    draw = np.random.default_rng(seed)
    chosen = draw.random(len(true)) < rate
    following, anywhere = (true + 1) % classes, (true + draw.integers(1, classes, len(true))) % classes
    if kind == "nearest":
        return to_nearest(features, true, classes, seed)
    if kind == "instance":
        return instance_dependent(true, features, classes, rate, draw)
    if kind == "annotator":
        return annotated(true, features, classes, rate, draw)
    others = {
        "none": true,
        "pair": following,
        "symmetric": anywhere,
        "mixed": np.where(draw.random(len(true)) < 0.5, following, anywhere),
        "one-way": np.where(true % 2 == 0, following, true),  # every second class, and none back
    }
    return np.where(chosen, others[kind], true)


def instance_dependent(true: Array, features: Array, classes: int, rate: float, draw: np.random.Generator) -> Array:
    """Return labels as of Xia et al. 2020: each sample has its own rate, and a random projection chooses the class."""
    x = standard(features)
    rates = np.clip(draw.normal(rate, 0.1, len(true)), 0, 1)
    given = true.copy()
    for k in range(classes):
        rows = np.flatnonzero(true == k)
        scores = x[rows] @ draw.normal(size=(x.shape[1], classes)).astype(np.float32)
        scores[:, k] = -np.inf
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares *= (rates[rows] / shares.sum(1))[:, None]
        shares[:, k] = 1 - rates[rows]
        given[rows] = drawn(shares, draw)
    return given


def annotated(true: Array, features: Array, classes: int, rate: float, draw: np.random.Generator) -> Array:
    """Return labels drawn from the predictions of a classifier that sees a sixteenth of the features.

    Its temperature is such that the given rate of its labels is wrong: it errs where classes look alike.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    seen = draw.permutation(features.shape[1])[: max(12, features.shape[1] // 16)]
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    model = LogisticRegression(C=0.01, max_iter=60)
    log_probs = np.log(cross_val_predict(model, standard(features[:, seen]), true, cv=folds, method="predict_proba"))
    low, high = 0.01, 20.0
    for _ in range(40):
        temperature = np.sqrt(low * high)
        probs = np.exp((log_probs - log_probs.max(1, keepdims=True)) / temperature)
        probs /= probs.sum(1, keepdims=True)
        error = 1 - probs[np.arange(len(true)), true].mean()
        low, high = (low, temperature) if error > rate else (temperature, high)
    if error > rate:  # even the most confident annotator errs more often: some labels are the true ones
        probs *= rate / error
        probs[np.arange(len(true)), true] += 1 - rate / error
    return drawn(probs, draw)


def drawn(shares: Array, draw: np.random.Generator) -> Array:
    """Draw a class for each row of shares (n, K)."""
    upper = shares.cumsum(1)
    found: Array = (draw.random((len(shares), 1)) * upper[:, -1:] > upper).sum(1)
    return np.minimum(found, shares.shape[1] - 1)


def standard(features: Array) -> Array:
    """Return features (n, F) with mean 0 and deviation 1."""
    x = features.astype(np.float32)
    scaled: Array = (x - x.mean(0)) / (x.std(0) + 1e-6)
    return scaled


def embed(source: Path, backbone: str) -> dict[str, Array]:
    """Return what `labelsieve embed` writes: features, labels as numbers, and classes."""
    with tempfile.TemporaryDirectory() as room:
        file = Path(room) / "features.npz"
        command = [sys.executable, "-m", "labelsieve", "embed", str(source), "--out", str(file), "--backbone", backbone]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return dict(np.load(file))


def embedded(images: Array, labels: Array) -> Array:
    """Return features (n, F) of images."""
    with tempfile.TemporaryDirectory() as room:
        np.savez(Path(room) / "images.npz", images=images, labels=labels)
        return embed(Path(room) / "images.npz", "lite0")["features"].astype(np.float32)


@cache
def cifar10(arrays: Path) -> tuple[Array, Array, Array]:
    """Return features and true labels of some photographs of CIFAR-10, and their places."""
    data = np.load(arrays)
    places = np.random.default_rng(0).permutation(len(data["train_labels"]))[:PHOTOGRAPHS]
    labels = data["train_labels"][places].astype(int)
    return embedded(data["train_images"][places], labels), labels, places


@cache
def superclasses(arrays: Path) -> tuple[Array, Array]:
    data = np.load(arrays)
    places = np.random.default_rng(0).permutation(len(data["train_labels"]))[:SUPERCLASS_IMAGES]
    labels = data["train_coarse_labels"][places].astype(int)
    return embedded(data["train_images"][places], labels), labels


@cache
def labelled(source: Path, backbone: str) -> tuple[Array, Array]:
    """Return features and labels of a folder of images or of texts."""
    found = embed(source, backbone)
    return found["features"].astype(np.float32), found["labels"].astype(int)


@cache
def pixels(name: str) -> tuple[Array, Array]:
    if name == "digits":
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return (images / 16).astype(np.float32), labels
    train = find("fashion", ReadOptions()).splits()["train"]
    return train.images.flatten(1).float().numpy() / 255, train.labels.numpy().astype(int)


def of_people(arrays: Path, labels: Path, kind: str, count: int, seed: int) -> Cell:
    """Return photographs of CIFAR-10 with labels given by people; draws do not overlap."""
    features, true, places = cifar10(arrays)
    name = f"cifar10_{kind[:-1]}_label{kind[-1]}" if kind[-1].isdigit() else f"cifar10_{kind}_label"
    rows = np.random.default_rng(count).permutation(len(true))[seed * count : (seed + 1) * count]
    return Cell(np.load(labels)[name][places[rows]].astype(int), true[rows], features[rows])


def simulated(source: Callable[[], tuple[Array, ...]], kind: str, rate: float, seed: int, count: int = 0) -> Cell:
    """Return data with simulated errors, of all samples or of some."""
    features, true = source()[:2]
    rows = np.random.default_rng(100 + seed).permutation(len(true))[: count or len(true)]
    return Cell(moved(true[rows], kind, rate, features[rows], seed), true[rows], features[rows])


def predicted(name: str, model: str, kind: str, rate: float, seed: int) -> Cell:
    """Return pixels with simulated errors, and the out-of-fold probabilities of a classifier."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.neural_network import MLPClassifier

    cell = simulated(partial(pixels, name), kind, rate, seed)
    logistic = LogisticRegression(C=0.1, max_iter=100)
    classifier = logistic if model == "logistic" else MLPClassifier((64,), max_iter=12, random_state=seed)
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    probs = cross_val_predict(classifier, cell.features, cell.given, cv=folds, method="predict_proba")
    return cell._replace(features=None, probs=probs)


def of_network(path: Path, name: str) -> Cell:
    data = np.load(path)
    probs = data[f"{name}_pred_probs"].astype(np.float32)
    labels, true = (data[f"{name}_{key}"].astype(int) for key in ("labels", "true"))
    return Cell(labels, true, None, probs / probs.sum(1, keepdims=True))


def cells(options: argparse.Namespace) -> Iterator[tuple[str, str, str, Callable[[], Cell]]]:
    """Yield name, kind of noise, role and maker of every cell whose data is given."""
    if options.probs:
        for name in sorted(key.removesuffix("_true") for key in np.load(options.probs) if key.endswith("_true")):
            kind = "class" if name.startswith("class") else "people"
            yield (
                name.replace("_", " ", 1),
                kind,
                ROLES["resnet18" not in name],
                partial(of_network, options.probs, name),
            )
    for seed, role in enumerate(ROLES):
        if options.cifar and options.cifar_n:
            for count in (500, 2500, 10_000):
                if (seed + 1) * count > PHOTOGRAPHS:
                    continue
                for kind in PEOPLE if count < 10_000 else ("aggre", "worse"):
                    make = partial(of_people, options.cifar, options.cifar_n, kind, count, seed)
                    yield f"CIFAR-10N {kind} {count:,} draw {seed}", "people", role, make
        for kind, rate in NOISES:
            noise = {"none": "none", "instance": "instance", "annotator": "annotator"}.get(kind, "class")
            title = f"{kind} {100 * rate:g}%" if rate else kind
            for name, source, count in sources(options):
                yield f"{name} {title} draw {seed}", noise, role, partial(simulated, source, kind, rate, seed, count)
            if options.banking and seed and title in ("none", "symmetric 15%", "nearest 25%"):
                source = partial(labelled, options.banking, "wordllama")
                yield f"banking77 {title} draw {seed}", noise, role, partial(simulated, source, kind, rate, seed)
            for name, model in (("digits", "logistic"), ("digits", "mlp"), ("fashion", "logistic"), ("fashion", "mlp")):
                yield (
                    f"{name} {model} {title} draw {seed}",
                    noise,
                    role,
                    partial(predicted, name, model, kind, rate, seed),
                )


def sources(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], tuple[Array, ...]], int]]:
    if options.clothing:
        yield "clothes", partial(labelled, options.clothing, "lite0"), 0
    if options.cifar:
        yield "CIFAR-10 2,500", partial(cifar10, options.cifar), 2500
    if options.cifar100:
        yield "superclasses", partial(superclasses, options.cifar100), 0


def evaluate(cell: Cell) -> Row:
    """Return the results of labelsieve, cleanlab and the HOC estimate."""
    from cleanlab.count import num_label_issues
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    wrong = cell.given != cell.true
    classes = int(max(cell.given.max(), cell.true.max())) + 1
    second = None
    if cell.features is None:
        assert cell.probs is not None
        first, probs = guesses_from_probs(cell.given, cell.probs), cell.probs
    else:
        features = torch.from_numpy(cell.features.astype(np.float32))
        judgment = judge_features(features, cell.given, classes)
        first, second, probs = judgment.first, judgment.second, first_round(features, cell.given, judgment)
    found = judge_labels(first, second)
    rate, issues = found.noise.rate, found.quality < THRESHOLD
    theirs = find_label_issues(cell.given, probs)
    row = {
        "samples": len(wrong),
        "wrong": float(wrong.mean()),
        "predictions right": float((probs.argmax(1) == cell.true).mean()),
        "labelsieve": {
            "estimate": list(rate),
            "sample_dependent": found.noise.sample_dependent,
            "class_dependent": found.noise.class_dependent,  # estimate for errors that depend on the class alone
            "average_precision": average_precision(wrong, found.quality) if wrong.any() else None,
            "f1": decision(wrong, issues)["f1"],
            "flagged": float(issues.mean()),
            **calibration(found.quality, ~wrong),
        },
        "cleanlab": {
            "estimate": num_label_issues(cell.given, probs) / len(wrong),
            **{
                method: average_precision(wrong, get_label_quality_scores(cell.given, probs, method=method))
                for method in ("self_confidence", "normalized_margin")
                if wrong.any()
            },
            "f1": decision(wrong, theirs)["f1"],
            "flagged": float(theirs.mean()),
        },
    }
    if cell.features is not None and classes <= HOC_CLASSES:
        row["hoc"] = hoc(cell.features, cell.given, classes)
    return rounded(row)


def first_round(features: torch.Tensor, labels: Array, judgment: Judgment) -> Array:
    """Return all probabilities (n, K) of the first round; a judgment keeps the most likely ones."""
    given = torch.from_numpy(labels)
    targets = one_hot(given, judgment.first.num_classes)
    return out_of_fold(standardise(features)[0], targets, stratified_folds(given, FOLDS, 0), judgment.strength)[0]


def calibration(quality: Array, right: Array) -> Row:
    """Return the expected calibration error, and mean and share of right labels among those of low quality."""
    bins = np.minimum((quality * BINS).astype(int), BINS - 1)
    weights = np.bincount(bins, minlength=BINS)
    gaps = np.abs(np.bincount(bins, quality, BINS) - np.bincount(bins, right, BINS))
    low = quality < LOW_QUALITY
    sums = np.stack([weights, np.bincount(bins, quality, BINS), np.bincount(bins, right, BINS)], axis=1)
    return {
        "calibration_error": float(gaps.sum() / weights.sum()),
        "bins": sums.tolist(),  # (BINS, 3) number of labels, sum of their qualities, and right ones
        "low": [int(low.sum()), float(quality[low].mean()), float(right[low].mean())] if low.any() else [0, 0.0, 0.0],
    }


def hoc(features: Array, labels: Array, classes: int) -> float:
    """Return the noise rate of Zhu et al. 2021, re-derived from the paper.

    A sample and its two nearest neighbours are assumed to have the same true class. Then the frequencies of the labels
    of one, two and three of them are polynomials in the priors and the noise matrix, which are fitted to them.
    """
    x = torch.from_numpy(standard(features)[:HOC_SAMPLES])
    x = torch.nn.functional.normalize(x)
    y = torch.from_numpy(labels[:HOC_SAMPLES])
    near = (x @ x.T).fill_diagonal_(-1).topk(2).indices
    one, two, three = y, y[near[:, 0]], y[near[:, 1]]

    def counted(*places: torch.Tensor) -> torch.Tensor:
        cells = sum(place * classes ** (len(places) - 1 - k) for k, place in enumerate(places))
        return torch.bincount(cells, minlength=classes ** len(places)).float() / len(y)

    wanted = counted(one), counted(one, two), counted(one, two, three)
    prior = torch.zeros(classes, requires_grad=True)
    flips = (4 * torch.eye(classes)).requires_grad_(True)
    solver = torch.optim.Adam([prior, flips], lr=0.1)
    for _ in range(HOC_STEPS):
        p, t = prior.softmax(0), flips.softmax(1)  # (K), (K, K) from true class to label
        modelled = p @ t, torch.einsum("k,ka,kb->ab", p, t, t), torch.einsum("k,ka,kb,kc->abc", p, t, t, t)
        loss = sum((m.flatten() - w).square().sum() * len(w) for m, w in zip(modelled, wanted, strict=True))
        solver.zero_grad()
        loss.backward()
        solver.step()
    return float(1 - (prior.softmax(0) * flips.softmax(1).diagonal()).sum().detach())


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def repeated(make: Callable[[], Cell]) -> Row:
    """Return estimates, ranges and numbers of suspects with ten divisions into folds."""
    cell = make()
    assert cell.features is not None
    rates, suspects = [], []
    for seed in range(REPEATS):
        judgment = judge_features(torch.from_numpy(cell.features), cell.given, int(cell.given.max()) + 1, seed=seed)
        found = judge_labels(judgment.first, judgment.second)
        rates.append([round(value, 4) for value in found.noise.rate])
        suspects.append(int((found.quality < THRESHOLD).sum()))
    return {"wrong": round(float((cell.given != cell.true).mean()), 4), "rates": rates, "suspects": suspects}


def reviewed(cell: Cell) -> list[Row]:
    """Return what a second training finds after a perfect reviewer decided on some of the suspects of the first.

    With the labels before the decisions, as exported reviews contain them, and without.
    """
    assert cell.features is not None
    features, classes = torch.from_numpy(cell.features), int(cell.given.max()) + 1
    judgment = judge_features(features, cell.given, classes)
    quality = judge_labels(judgment.first, judgment.second).quality
    order, suspects = np.argsort(quality, kind="stable"), int((quality < THRESHOLD).sum())
    rows = []
    for count in REVIEWS:
        decided = np.zeros(len(quality), bool)
        decided[order[: suspects if count is None else count]] = True
        labels = np.where(decided, cell.true, cell.given)
        wrong = labels != cell.true
        row: Row = {"decided": int(decided.sum()), "wrong": float(wrong.mean())}
        for name, before in (("with given labels", cell.given), ("without", None)):
            again = judge_features(features, labels, classes, decided, before=before)
            found = judge_labels(again.first, again.second)
            scores = np.where(decided, 1.0, found.quality)
            row[name] = {
                "estimate": list(found.noise.rate),
                "average_precision": average_precision(wrong, scores),
                "f1": decision(wrong, scores < THRESHOLD)["f1"],
                "flagged": float((scores < THRESHOLD).mean()),
            }
        rows.append(rounded(row))
    return rows


def reviewed_table(cells: dict[str, list[Row]]) -> str:
    """Return a Markdown table of partial reviews."""
    header = ["data", "suspects decided", "wrong labels left, %", "estimate, %", "F1"]
    lines = [[*header, "without given labels: estimate, %", "F1"]]
    for name, rows in cells.items():
        for row in rows:
            lines.append([name, f"{row['decided']:,}", f"{100 * row['wrong']:.1f}"])
            for way in (row["with given labels"], row["without"]):
                lines[-1] += [f"{100 * way['estimate'][0]:.1f}", f"{way['f1']:.2f}"]
    return markdown(lines)


def summary(rows: Sequence[Row]) -> str:
    """Return a Markdown table with one row per kind of noise and role."""
    lines = [
        "| errors | role | cells | truth in range, % | mean width, points | mean error of the estimate, points "
        "| cleanlab | class-dependent errors only | average precision minus the better peer, mean "
        "| cells behind by over 0.005 | F1 minus cleanlab, mean | cells behind by over 0.005 "
        "| calibration error, mean of cells | all samples | quality below 0.1, mean, % | of these right, % "
        "| cells within a factor of 2 |",
        "| --- | --- |" + " ---: |" * 15,
    ]
    for kind in ("people", "instance", "class", "annotator", "none"):
        for role in ROLES:
            part = [row for row in rows if (row["kind"], row["role"]) == (kind, role)]
            if part:
                lines.append(f"| {kind} | {role} | {len(part)} | {' | '.join(_figures(part, kind != 'none'))} |")
    for role in ROLES:
        part = [row for row in rows if row["role"] == role and row["kind"] in ("people", "instance", "class")]
        if part:
            lines.append(f"| these three | {role} | {len(part)} | {' | '.join(_figures(part, True))} |")
    return "\n".join(lines)


def pooled_calibration(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Return the calibration error over the samples of all rows, and mean and share of right ones of low quality."""
    bins = np.sum([row["labelsieve"]["bins"] for row in rows], axis=0)  # (BINS, 3)
    error = np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum()
    count, stated, right = bins[0]  # the first bin is that of low quality
    return float(error), float(stated / max(count, 1)), float(right / max(count, 1))


def _figures(rows: Sequence[Row], noisy: bool) -> list[str]:
    ours, theirs = [row["labelsieve"] for row in rows], [row["cleanlab"] for row in rows]
    wrong = np.array([row["wrong"] for row in rows])
    estimate, low, high = np.array([each["estimate"] for each in ours]).T
    only = np.array([each["class_dependent"] for each in ours])
    counted = np.array([each["estimate"] for each in theirs])
    figures = [
        f"{100 * ((low <= wrong) & (wrong <= high)).mean():.0f}",
        f"{100 * (high - low).mean():.1f}",
        *(f"{100 * np.abs(each - wrong).mean():.1f}" for each in (estimate, counted, only)),
    ]
    error, stated, right = pooled_calibration(rows)
    calibrated = [f"{np.mean([each['calibration_error'] for each in ours]):.3f}", f"{error:.3f}"]
    if not noisy:
        return [*figures, "", "", "", "", *calibrated, "", "", ""]
    gains = np.array(
        [
            (a["average_precision"] - max(b["self_confidence"], b["normalized_margin"]), a["f1"] - b["f1"])
            for a, b in zip(ours, theirs, strict=True)
        ]
    )
    lows = [each["low"] for each in ours if each["low"][0] >= 20]
    within = [0.5 <= (found + 1e-3) / (said + 1e-3) <= 2 for _, said, found in lows]
    return [
        *figures,
        *(text for gain in gains.T for text in (f"{gain.mean():+.3f}", str(int((gain < -0.005).sum())))),
        *calibrated,
        f"{100 * stated:.1f}",
        f"{100 * right:.1f}",
        f"{sum(within)} of {len(within)}",
    ]


def details(rows: Sequence[Row]) -> str:
    """Return a Markdown table of the cells with labels given by people."""
    header = ["data", "wrong, %", "estimate, %", "range", "cleanlab, %", "HOC, %"]
    lines = [[*header, "average precision", "cleanlab", "F1", "cleanlab"]]
    for row in rows:
        if row["kind"] != "people":
            continue
        ours, theirs = row["labelsieve"], row["cleanlab"]
        best = max(theirs["self_confidence"], theirs["normalized_margin"])
        estimate, low, high = (100 * value for value in ours["estimate"])
        lines.append([row["cell"], f"{100 * row['wrong']:.1f}", f"{estimate:.1f}", f"{low:.1f} to {high:.1f}"])
        lines[-1] += [f"{100 * theirs['estimate']:.1f}", f"{100 * row['hoc']:.1f}" if "hoc" in row else ""]
        lines[-1] += [f"{value:.3f}" for value in (ours["average_precision"], best, ours["f1"], theirs["f1"])]
    return markdown(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("probs", "clothing", "banking", "cifar", "cifar-n", "cifar100"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--role", choices=ROLES, help="only cells with this role")
    parser.add_argument("--show", action="store_true", help="print the tables of the finished rows")
    parser.add_argument("--repeat", action="store_true", help="only repeat some cells with ten divisions into folds")
    parser.add_argument("--review", action="store_true", help="only simulate partial reviews of some cells")
    options = parser.parse_args()
    done = read_rows(options.out)
    if options.show:
        print(summary(done), details(done), sep="\n\n")
        if REVIEWED.exists():
            print("\n" + reviewed_table(json.loads(REVIEWED.read_text())["cells"]))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of classifiers that stop early on purpose
    made = made_here("labelsieve", "torch", "numpy", "scikit-learn", "cleanlab")
    if options.repeat:
        chosen = ("CIFAR-10N worse 2,500 draw 0", "CIFAR-10N aggre 2,500 draw 0", "clothes nearest 25% draw 0")
        found = {name: repeated(make) for name, _, _, make in cells(options) if name in chosen}
        REPEATED.write_text(json.dumps({**made, "cells": found}, indent=1) + "\n")
        return
    if options.review:
        chosen = ("clothes symmetric 15% draw 1", "clothes nearest 25% draw 1", "CIFAR-10N worse 2,500 draw 1")
        results = {name: reviewed(make()) for name, _, _, make in cells(options) if name in chosen}
        REVIEWED.write_text(json.dumps({**made, "cells": results}, indent=1) + "\n")
        return
    for name, kind, role, make in cells(options):
        if any(row["cell"] == name for row in done) or options.role not in (None, role):
            continue
        with threadpool_limits(1):
            row = {"cell": name, "kind": kind, "role": role, **evaluate(make()), "made": made}
        add_row(options.out, row)
        print(name, row["wrong"], row["labelsieve"], flush=True)


if __name__ == "__main__":
    main()
