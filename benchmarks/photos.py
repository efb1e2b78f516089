"""Photographs, texts and human labels through pretrained features: labelsieve train and cleanlab, side by side.

For every set and draw of noise, `labelsieve train FOLDER` runs as a command of its own, with nothing else named.
cleanlab 2.9 gets out-of-fold probabilities of scikit-learn's logistic regression on the same features, with the
strength of the regularisation chosen by cross-validation on the noisy labels.

    python -m benchmarks.photos --clothing clothing/ --banking banking77/ --cifar cifar10.npz --cifar-n labels.npz \\
        --cifar100 cifar100.npz

Needs cleanlab 2.9 and scikit-learn. Noise A: 30% of the labels of eight classes of clothes move to the visually nearest
class; for other data, 25% of the labels move to the class with the nearest mean of features. Noise B: 15% symmetric. C:
labels as they are. Rows are added to benchmarks/results/photos.jsonl as they are finished; finished ones are skipped.
"""

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image
from threadpoolctl import threadpool_limits

from benchmarks.detection import decision
from benchmarks.record import Row, add_row, made_here, read_rows
from labelsieve.runs.tables import markdown

RESULTS = Path(__file__).parent / "results" / "photos.jsonl"
COST = RESULTS.with_name("photos_cost.json")
NEAREST = {  # of the classes of clothes
    "t-shirt": "longsleeve",
    "longsleeve": "outwear",
    "outwear": "longsleeve",
    "dress": "skirt",
    "skirt": "dress",
    "pants": "shorts",
    "shorts": "pants",
    "shirt": "longsleeve",
}
CLOTHES_RATE, NEAREST_RATE, SYMMETRIC_RATE = 0.3, 0.25, 0.15
STRENGTHS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)  # C of scikit-learn, on standardised features
TEST_IMAGES = 2000  # of CIFAR-10 and CIFAR-100
FINE_IMAGES = 5000  # of CIFAR-100, with its 100 classes
SEED = 0
WORDS, SENTENCES = "wordllama", "minilm"  # backbones for texts
MAX_ITER = 100  # the default of scikit-learn
_TRUE: dict[str, float] = {}  # accuracy with the true labels, by set


@dataclass
class Cell:
    """A data set with one draw of noise."""

    name: str
    seed: int
    true: np.ndarray  # (n) class numbers
    given: np.ndarray  # (n)
    classes: list[str]
    folder: Path  # data for `labelsieve train`
    order: list[str]  # (n) file names, or row names, of the samples
    backbone: str | None = None  # None: the default one


def clothes(source: Path, kind: str, seed: int, room: Path) -> Cell:
    files = sorted((source / "train").glob("*/*.jpg"))
    classes = sorted({file.parent.name for file in files})
    true = np.array([classes.index(file.parent.name) for file in files])
    draw = np.random.default_rng(seed)
    given = true.copy()
    if kind == "A":
        moved = {classes.index(a): classes.index(b) for a, b in NEAREST.items()}
        for i, label in enumerate(true.tolist()):
            if label in moved and draw.random() < CLOTHES_RATE:
                given[i] = moved[label]
    elif kind == "B":
        given = symmetric(true, len(classes), seed)
    for file, label in zip(files, given.tolist(), strict=True):
        link(file, room / "train" / classes[label] / file.name)
    for file in sorted((source / "test").glob("*/*.jpg")):
        link(file, room / "test" / file.parent.name / file.name)
    return Cell(f"clothes {kind}", seed, true, given, classes, room, [file.name for file in files])


def banking(source: Path, kind: str, backbone: str, seed: int, room: Path) -> Cell:
    rows = {part: list(csv.DictReader((source / f"{part}.csv").open(encoding="utf-8"))) for part in ("train", "test")}
    classes = sorted({row["category"] for row in rows["train"]})
    true = np.array([classes.index(row["category"]) for row in rows["train"]])
    given = true
    if kind == "A":
        texts = write_texts(room / "clean", rows, true, classes)
        given = to_nearest(features_of(texts, WORDS)[0], true, len(classes), seed)
    elif kind == "B":
        given = symmetric(true, len(classes), seed)
    folder = write_texts(room / "noisy", rows, given, classes)
    name = f"banking77 {kind}, sentences" if backbone == SENTENCES else f"banking77 {kind}"
    return Cell(name, seed, true, given, classes, folder, [], backbone)


def write_texts(folder: Path, rows: dict, labels: np.ndarray, classes: list[str]) -> Path:
    folder.mkdir(parents=True)
    for part, lines in rows.items():
        with (folder / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "category"])
            names = [classes[k] for k in labels.tolist()] if part == "train" else [row["category"] for row in lines]
            writer.writerows(zip([row["text"] for row in lines], names, strict=True))
    return folder


def cifar_n(arrays: Path, labels: Path, kind: str, count: int, seed: int, room: Path) -> Cell:
    data, people = dict(np.load(arrays)), np.load(labels)  # decompress each array once
    chosen = np.random.default_rng(seed).permutation(len(data["train_images"]))[:count]
    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    true = data["train_labels"][chosen].astype(int)
    given = people[f"cifar10_{kind}_label"][chosen].astype(int)
    names = write_images(data, chosen, given, classes, room)
    return Cell(f"CIFAR-10N {kind} {count:,}", seed, true, given, classes, room, names)


def cifar100(arrays: Path, kind: str, seed: int, room: Path) -> Cell:
    data = dict(np.load(arrays))
    chosen = np.random.default_rng(SEED).permutation(len(data["train_images"]))[:FINE_IMAGES]
    classes = [f"class {k:02d}" for k in range(100)]
    true = given = data["train_labels"][chosen].astype(int)
    if kind == "A":
        names = write_images(data, chosen, true, classes, room / "clean")
        features, _, _, found = features_of(room / "clean", "lite0")
        place = {Path(name).name: at for at, name in enumerate(found)}
        given = to_nearest(features[[place[name] for name in names]], true, len(classes), seed)
    elif kind == "B":
        given = symmetric(true, len(classes), seed)
    names = write_images(data, chosen, given, classes, room / "noisy")
    return Cell(f"CIFAR-100 {kind}", seed, true, given, classes, room / "noisy", names)


def write_images(data: dict, chosen: np.ndarray, given: np.ndarray, classes: list[str], room: Path) -> list[str]:
    """Write training images to folders of their given labels, and test images; return the names of the former."""
    names = [f"{place:05d}.png" for place in chosen.tolist()]
    for name, place, label in zip(names, chosen.tolist(), given.tolist(), strict=True):
        save(data["train_images"][place], room / "train" / classes[label] / name)
    for place in range(TEST_IMAGES):
        save(data["test_images"][place], room / "test" / classes[int(data["test_labels"][place])] / f"{place:05d}.png")
    return names


def save(pixels: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def link(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    os.link(file, to)


def symmetric(true: np.ndarray, classes: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    given, flipped = true.copy(), draw.random(len(true)) < SYMMETRIC_RATE
    given[flipped] = (true[flipped] + draw.integers(1, classes, flipped.sum())) % classes
    return given


def to_nearest(features: np.ndarray, true: np.ndarray, classes: int, seed: int) -> np.ndarray:
    means = np.stack([features[true == k].mean(0) for k in range(classes)])
    means -= means.mean(0)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    likeness = means @ means.T
    np.fill_diagonal(likeness, -np.inf)
    given, moved = true.copy(), np.random.default_rng(seed).random(len(true)) < NEAREST_RATE
    given[moved] = likeness.argmax(1)[true[moved]]
    return given


def features_of(folder: Path, backbone: str | None = None) -> tuple[np.ndarray, np.ndarray, list[str], list[str]]:
    """Return features of training and test set, test labels as class names, and the names of the samples."""
    with tempfile.TemporaryDirectory() as room:
        file = Path(room) / "features.npz"
        command = [sys.executable, "-m", "labelsieve", "embed", str(folder), "--out", str(file), *named(backbone)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = np.load(file)
        classes = found["classes"].tolist()
        test = [classes[k] for k in found["test_labels"].tolist()]
        return (
            found["features"].astype(np.float32),
            found["test_features"].astype(np.float32),
            test,
            found["names"].tolist(),
        )


def named(backbone: str | None) -> list[str]:
    return ["--backbone", backbone] if backbone else []


def train(cell: Cell) -> dict:
    """Run the command on a folder and read what it delivers."""
    with tempfile.TemporaryDirectory() as room:
        run = Path(room) / "run"
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "labelsieve", "train", str(cell.folder), "--out", str(run)]
        command += named(cell.backbone)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
        summary = json.loads((run / "audit" / "summary.json").read_text())
        end = json.loads((run / "record.jsonl").read_text().splitlines()[-1])
        rows = list(csv.DictReader((run / "audit" / "labels.csv").open(encoding="utf-8")))
    quality, issues, suggested = np.empty(len(rows)), np.empty(len(rows), bool), np.empty(len(rows), int)
    place = {name: at for at, name in enumerate(cell.order)}
    for row in rows:
        at = place[Path(row["id"]).name] if place else int(row["index"])
        quality[at] = float(row["label_quality"])
        issues[at] = row["is_label_issue"] == "true"
        suggested[at] = cell.classes.index(row["suggested_label"])
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rate = summary["noise_rate"]
    return {
        **scored(cell, quality, issues, suggested),
        "estimate": [rate["estimate"], rate["low"], rate["high"]],
        "test_accuracy": 100 - end["last"],
        "cpu_seconds": round(spent, 1),
        "wall_seconds": round(wall, 1),
    }


def scored(cell: Cell, quality: np.ndarray, issues: np.ndarray, suggested: np.ndarray) -> dict:
    wrong = cell.given != cell.true
    decided = decision(wrong, issues)
    found = {"f1": decided["f1"], "flagged": float(issues.mean())}
    if wrong.any():
        found["average_precision"] = average_precision(wrong, quality)
        found |= {name: decided[name] for name in ("precision", "recall")}
    found["wrong_after"] = float((np.where(issues, suggested, cell.given) != cell.true).mean())
    return {name: round(value, 4) for name, value in found.items()}


def average_precision(wrong: np.ndarray, quality: np.ndarray) -> float:
    """Return the mean precision at each wrong label; samples of equal quality count in the order of the data."""
    ranked = wrong[np.argsort(quality, kind="stable")]
    return float((np.cumsum(ranked) / np.arange(1, len(ranked) + 1))[ranked].mean())


def peers(cell: Cell) -> dict:
    """Return cleanlab's results and the accuracies of logistic regression, on the same features."""
    from cleanlab.count import num_label_issues
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    features, test, test_names, names = features_of(cell.folder, cell.backbone)
    if cell.order:  # in the order of the folder
        place = {name: at for at, name in enumerate(cell.order)}
        places = [place[Path(name).name] for name in names]
        reordered = np.empty_like(features)
        reordered[places] = features
        features = reordered
    mean, scale = features.mean(0), features.std(0) + 1e-6
    x, x_test = (features - mean) / scale, (test - mean) / scale
    y_test = np.array([cell.classes.index(name) for name in test_names])
    began = time.perf_counter()
    strength, probs = best_strength(x, cell.given)
    issues = find_label_issues(cell.given, probs)
    spent = time.perf_counter() - began
    confidence, margin = (
        get_label_quality_scores(cell.given, probs, method=method)
        for method in ("self_confidence", "normalized_margin")
    )
    predicted = probs.argmax(1)
    name = (
        f"{cell.name} {cell.seed}" if cell.name.startswith("CIFAR-10N") else f"{cell.name.split()[0]} {cell.backbone}"
    )
    if name not in _TRUE:
        _TRUE[name] = accuracy(x, cell.true, x_test, y_test, best_strength(x, cell.true)[0])
    return {
        "cleanlab": {
            **scored(cell, confidence, issues, predicted),
            "average_precision_margin": round(average_precision(cell.given != cell.true, margin), 4)
            if (cell.given != cell.true).any()
            else None,
            "estimate": num_label_issues(cell.given, probs) / len(cell.given),
            "seconds": round(spent, 1),
        },
        "logistic_regression": {
            "noisy": accuracy(x, cell.given, x_test, y_test, strength),
            "true": _TRUE[name],
            "pruned": accuracy(x[~issues], cell.given[~issues], x_test, y_test, strength),
            "strength": strength,
        },
    }


def best_strength(x: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Return C with the best log-likelihood of held-out labels, and its out-of-fold probabilities (n, K)."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(5, shuffle=True, random_state=SEED)
    best, chosen = -np.inf, (0.0, np.empty(0))
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=MAX_ITER)
        probs = cross_val_predict(model, x, labels, cv=folds, method="predict_proba")
        likelihood = float(np.log(np.maximum(probs[np.arange(len(labels)), labels], 1e-9)).mean())
        if likelihood < best:
            break
        best, chosen = likelihood, (strength, probs)
    return chosen


def accuracy(x: np.ndarray, labels: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, strength: float) -> float:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=strength, max_iter=MAX_ITER).fit(x, labels)
    return round(100 * float((model.predict(x_test) == y_test).mean()), 2)


def cells(options: argparse.Namespace) -> Iterator[tuple[str, int, Callable[[Path], Cell]]]:
    """Yield name, draw and maker of every cell whose data is given."""
    suffix = f", {options.backbone}" if options.backbone else ""
    for seed in range(options.draws):
        for kind in "ABC":
            if options.clothing:
                yield f"clothes {kind}{suffix}", seed, partial(clothes, options.clothing, kind, seed)
            if options.banking:
                yield f"banking77 {kind}", seed, partial(banking, options.banking, kind, WORDS, seed)
                yield f"banking77 {kind}, sentences", seed, partial(banking, options.banking, kind, SENTENCES, seed)
            if options.cifar100:
                yield f"CIFAR-100 {kind}{suffix}", seed, partial(cifar100, options.cifar100, kind, seed)
        for kind in ("worse", "aggre"):
            for count in options.counts if options.cifar and options.cifar_n else ():
                make = partial(cifar_n, options.cifar, options.cifar_n, kind, count, seed)
                yield f"CIFAR-10N {kind} {count:,}{suffix}", seed, make


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table with the means over the draws of each set; cleanlab's better ranking counts."""
    header = (
        "data | draws | wrong, % | estimate, % | truth in range | average precision | cleanlab | F1 | cleanlab | "
        "flagged, % | cleanlab | wrong after, % | accuracy, % | noisy labels | true labels"
    )
    lines = [header.split(" | ")]
    for name in dict.fromkeys(row["set"] for row in rows):
        cells = [row for row in rows if row["set"] == name]
        lines.append([name, str(len(cells)), *_means(cells)])
    return markdown(lines)


def _means(cells: Sequence[Row]) -> list[str]:
    """Return the cells of the table; those of peers are empty if they were not measured."""
    ours = [cell["labelsieve"] for cell in cells]
    theirs, plain = ([cell[key] for cell in cells if key in cell] for key in ("cleanlab", "logistic_regression"))
    inside = sum(
        each["estimate"][1] <= cell["wrong"] <= each["estimate"][2] for cell, each in zip(cells, ours, strict=True)
    )
    noisy = cells[0]["wrong"] > 0

    def mean(rows: Sequence[Row], key: str, form: str, scale: float = 1) -> str:
        return format(scale * np.mean([row[key] for row in rows]), form) if rows else ""

    best = [{"best": max(each["average_precision"], each["average_precision_margin"])} for each in theirs if noisy]
    return [
        mean(cells, "wrong", ".1f", 100),
        ", ".join(f"{100 * each['estimate'][0]:.1f}" for each in ours),
        f"{inside} of {len(cells)}",
        mean(ours if noisy else [], "average_precision", ".3f"),
        mean(best, "best", ".3f"),
        mean(ours if noisy else [], "f1", ".3f"),
        mean(theirs if noisy else [], "f1", ".3f"),
        mean(ours, "flagged", ".1f", 100),
        mean(theirs, "flagged", ".1f", 100),
        mean(ours, "wrong_after", ".1f", 100),
        mean(ours, "test_accuracy", ".1f"),
        mean(plain, "noisy", ".1f"),
        mean(plain, "true", ".1f"),
    ]


def short_table(rows: Sequence[Row], name: str = "clothes A") -> str:
    """Return a small Markdown table of one set, for the README."""
    cells = [row for row in rows if row["set"] == name]

    def mean(*path: str) -> float:
        return float(np.mean([reduce(lambda value, key: value[key], path, cell) for cell in cells]))

    scores = ("average_precision", "average_precision_margin")
    best = float(np.mean([max(cell["cleanlab"][key] for key in scores) for cell in cells]))
    pruned, noisy, true = (mean("logistic_regression", key) for key in ("pruned", "noisy", "true"))
    systems = (
        (
            "`labelsieve train photos/`",
            "labelsieve",
            mean("labelsieve", scores[0]),
            mean("labelsieve", "test_accuracy"),
        ),
        ("cleanlab on logistic regression, same features", "cleanlab", best, pruned),
    )
    lines = ["| | average precision | F1 | labels wrong afterwards | test accuracy |", "| --- |" + " ---: |" * 4]
    for title, system, precision, right in systems:
        after = f"{100 * mean(system, 'wrong_after'):.0f}%"
        lines.append(f"| {title} | {precision:.2f} | {mean(system, 'f1'):.2f} | {after} | {right:.1f}% |")
    shares = f"{100 * mean('wrong'):.0f}% / 0% | {noisy:.1f}% / {true:.1f}%"
    lines.append(f"| logistic regression, given / true labels | | | {shares} |")
    return "\n".join(lines)


def reliability(rows: Sequence[Row]) -> str:
    """Return how far the estimates and suspects of all cells can be trusted, in two sentences."""
    ours = [(row["wrong"], row["labelsieve"]) for row in rows]
    errors = [100 * abs(found["estimate"][0] - wrong) for wrong, found in ours]
    inside = sum(found["estimate"][1] <= wrong <= found["estimate"][2] for wrong, found in ours)
    right, seen = ([100 * found[name] for wrong, found in ours if wrong] for name in ("precision", "recall"))
    return (
        f"In {len(rows)} trainings with known errors, the estimate was off by {np.median(errors):.1f} points in the "
        f"median and {max(errors):.0f} at most, and the range held the truth in {inside}. With wrong labels, "
        f"{np.median(right):.0f}% of the suspects were wrong in the median and {min(right):.0f}% at least, and "
        f"{np.median(seen):.0f}% of the wrong labels were suspects, {min(seen):.0f}% at least."
    )


def cost(folder: Path) -> Row:
    """Return what the command costs with an empty and with a full cache, with the default features and with lite0."""
    found: Row = {"images": sum(1 for _ in folder.rglob("*.jpg")), "load": os.getloadavg()[0], "lite0": {}}
    for backbone, row in ((None, found), ("lite0", found["lite0"])):
        with tempfile.TemporaryDirectory() as room:
            for state in ("empty cache", "full cache"):
                before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
                command = [sys.executable, "-m", "labelsieve", "train", str(folder), "--out", f"{room}/{state[:4]}"]
                environment = {**os.environ, "LABELSIEVE_CACHE": f"{room}/cache"}
                subprocess.run([*command, *named(backbone)], check=True, stdout=subprocess.DEVNULL, env=environment)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                row[state] = {"wall_s": round(time.perf_counter() - began, 1), "cpu_s": round(spent, 1)}
                found.setdefault("peak MB", round(after.ru_maxrss / 1024))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clothing", type=Path)
    parser.add_argument("--banking", type=Path)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--cifar-n", type=Path)
    parser.add_argument("--cifar100", type=Path)
    parser.add_argument("--counts", type=int, nargs="*", default=[2500, 10_000])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--backbone", help="for photographs, also part of the name of a set. Default: labelsieve's")
    parser.add_argument("--without-peers", action="store_true", help="only labelsieve")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="print the table of the finished rows")
    parser.add_argument("--cost", type=Path, metavar="FOLDER", help="only measure the cost of training on a folder")
    options = parser.parse_args()
    if options.show:
        print(table(read_rows(options.out)), reliability(read_rows(options.out)), sep="\n\n")
        return
    if options.cost:
        text = json.dumps({**cost(options.cost), "cores": os.cpu_count(), "torch": version("torch")}, indent=1)
        COST.write_text(text + "\n")
        print(text)
        return
    done = read_rows(options.out)
    for name, seed, make in cells(options):
        if any((row["set"], row["draw"]) == (name, seed) for row in done):
            continue
        with tempfile.TemporaryDirectory(dir=options.clothing.parent if options.clothing else None) as room:
            cell = make(Path(room) / "data")
            cell.backbone = cell.backbone or options.backbone
            row = {
                "set": name,
                "draw": seed,
                "samples": len(cell.true),
                "wrong": round(float((cell.given != cell.true).mean()), 4),
            }
            row["labelsieve"] = train(cell)
            with threadpool_limits(1):  # several threads wait for each other on two cores
                row |= {} if options.without_peers else peers(cell)
        row["made"] = made_here("labelsieve", "torch", "numpy", "scikit-learn")
        add_row(options.out, row)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
