"""Detection of wrong labels: labelsieve's audit compared with cleanlab and AUM on the same network and data.

python -m benchmarks.audit [--data fashion digits] [--noise pair:0.4 ...] [--seeds 3 4 5] writes
benchmarks/results/audit.json and prints it as tables. Tasks in the record are not repeated, except with
--again SYSTEM. Probabilities by cross-validation are saved in the work folder and used again.
python -m benchmarks.audit --data cifar10 --labels CIFAR-10_human.pt:worst --device cuda --out FILE does the same
with human labels; files are also looked up in the folder LABELSIEVE_DATA.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.audit_tables import everything, summary
from benchmarks.detection import Array, decision, ranking
from benchmarks.peers import (
    Clock,
    CrossValidated,
    Spent,
    cross_validated,
    load_crossed,
    normalized_margin,
    save_crossed,
    self_confidence,
    watched,
)
from benchmarks.record import made_on
from labelsieve import find_label_issues, label_quality
from labelsieve.auto.audit import findings_of_run
from labelsieve.auto.forecast import seconds_per_step
from labelsieve.cli import parse
from labelsieve.commands.train import requested_experiment
from labelsieve.data import ReadOptions, load_data
from labelsieve.data.load import stratified
from labelsieve.files import write_atomically
from labelsieve.runs.data import Shelf, labels_of
from labelsieve.runs.execute import Prepared, prepare, run
from labelsieve.runs.read import TESTED, read_samples
from labelsieve.runs.spec import Experiment
from labelsieve.runtime import best_device, generator

RECORD = Path(__file__).parent / "results" / "audit.json"
NOISE = ("pair:0.4", "mixed:0.4", "symmetry:0.4", "pair:0.1", "symmetry:0.1")
PEERS = "cleanlab is not installed: its scores are computed from their definitions and find_label_issues is left out"
INSTALL = "pip install cleanlab==2.9.0 aum scikit-learn, in an environment of their own, has it all"
Cell = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """Data with known wrong labels, and a seed."""

    data: str  # name in the record
    noise: str | None  # added noise
    rate: float
    labels: str | None  # or a file of labels, as file:kind
    seed: int
    epochs: int | None
    subset: int | None

    @property
    def key(self) -> Cell:
        """Return the fields that identify the task in the record; files by name."""
        return {**asdict(self), "labels": self.labels and Path(self.labels).name}


@dataclass(frozen=True)
class Bench:
    """Folders and settings shared by all systems."""

    work: Path  # folder for generated data and runs
    device: str
    model: str | None
    augment: str

    def options(self, task: Task) -> dict[str, Any]:
        """Return the options of `labelsieve train` that all systems share."""
        return {
            "method": "mentornet-prop",
            "noise": task.noise,
            "rate": task.rate if task.noise else None,
            "labels": None if task.subset else found(task.labels),
            "epochs": task.epochs,
            "model": self.model,
            "augment": self.augment,
            "seed": task.seed,
            "device": self.device,
            "threads": 1,
        }


def main(words: Sequence[str] | None = None) -> None:
    args = arguments(words)
    if importlib.util.find_spec("cleanlab") is None:
        print(f"{PEERS}; {INSTALL}", file=sys.stderr)
    record = json.loads(args.out.read_text()) if args.out.exists() else []
    bench = Bench(args.work, args.device, args.model, args.augment)
    left = [
        (task, name)
        for task in tasks(args)
        for name in systems()
        if name in args.again or not any(is_of(cell, task, name) for cell in record)
    ]
    if left:
        warm_up(bench)
    for task, name in left:
        cell = {"system": name, **task.key, **systems()[name](bench, task), "made": made_on(args.device)}
        record = [old for old in record if not is_of(old, task, name)] + [cell]
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.out, (json.dumps(record, indent=1) + "\n").encode())
        best = max(row["average_precision"] for row in record[-1]["scores"].values())
        print(f"{task.data} {task.noise or task.labels} {task.rate} {task.seed} {name}: {best:.3f}", flush=True)
    print(everything(record) if args.full else summary(record))


def is_of(cell: Cell, task: Task, system: str) -> bool:
    return bool(cell["system"] == system and task.key.items() <= cell.items())


def warm_up(bench: Bench) -> None:
    """Load the packages of all systems before anything is timed."""
    seconds_per_step(prepare(Experiment(model="small", device=bench.device), Shelf()))
    theirs(np.array([0, 1, 0, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]]))


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument(
        "--data", nargs="*", default=["fashion", "digits"], help="datasets; none to print the record only"
    )
    parser.add_argument("--noise", nargs="+", default=NOISE, help="kind:rate, without --labels")
    parser.add_argument("--labels", nargs="+", default=[], help="label files, CIFAR-N's as file:kind")
    parser.add_argument("--seeds", nargs="+", type=int, default=[3, 4, 5])
    parser.add_argument("--epochs", type=int, help="epochs of labelsieve and plain training; others in proportion")
    parser.add_argument("--subset", type=int, help="number of training samples, for a quick trial")
    parser.add_argument("--model", help="network (default: chosen by labelsieve)")
    parser.add_argument("--augment", default="")
    parser.add_argument("--device", default=best_device())
    parser.add_argument("--work", type=Path, default=Path("runs/audit-benchmark"))
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--again", nargs="+", default=[], choices=list(systems()), help="systems to run again")
    parser.add_argument("--full", action="store_true", help="print every figure")
    return parser.parse_args(words)


def tasks(args: argparse.Namespace) -> Iterator[Task]:
    """Yield all tasks, seed by seed, so that an interrupted record covers all noises equally."""
    noises = [(kind, float(rate), None) for kind, _, rate in (text.partition(":") for text in args.noise)]
    for data in args.data:
        for seed in args.seeds:
            for noise, rate, labels in [(None, 0.0, file) for file in args.labels] or noises:
                yield Task(data, noise, rate, labels, seed, args.epochs, args.subset)


def systems() -> dict[str, Callable[[Bench, Task], Cell]]:
    """Return the systems; each trains everything it needs."""
    known = {"labelsieve": with_true_rate, "cleanlab": by_cross_validation, "plain training": by_plain_training}
    if importlib.util.find_spec("labelsieve.auto.plan"):
        known["labelsieve, auto"] = with_estimated_rate
    return known


# --- the systems


def with_true_rate(bench: Bench, task: Task) -> Cell:
    """Audit a run of mentornet-prop that is given the true noise rate."""
    rate = round(float(wrong_labels(prepared_for(bench, task)).mean()), 4)
    experiment = experiment_of(bench, task, rate)
    found = audited(bench, task, "labelsieve, true rate", lambda path: run(experiment, path))
    return {**found, "told": rate}


def with_estimated_rate(bench: Bench, task: Task) -> Cell:
    """Audit a run of `labelsieve train --noise-rate auto`, which estimates the noise rate."""
    from labelsieve.cli import execute

    known = bench.options(task)
    given = {key: value for key, value in known.items() if value is not None and key != "method"}  # found out as well
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]

    def train(path: Path) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            failed = execute(
                ["train", data_of(bench, task), *flags, "--noise-rate=auto", "--no-final", f"--out={path}"]
            )
        if failed:
            raise SystemExit("labelsieve train --noise-rate auto failed")

    return audited(bench, task, "labelsieve, auto", train)


def audited(bench: Bench, task: Task, name: str, train: Callable[[Path], object]) -> Cell:
    """Train a run and measure its audit."""
    prepared = prepared_for(bench, task)
    wrong = wrong_labels(prepared)
    path = bench.work / "run"
    shutil.rmtree(path, ignore_errors=True)
    clock = Clock()
    train(path)
    samples = read_samples(path)
    assert samples is not None
    findings = findings_of_run(path, samples, prepared.train.classes)
    spent = clock.read()
    looked_at = samples["split"] != TESTED  # held-out samples are audited as well
    assert (findings.labels[looked_at] == prepared.train.labels.cpu().numpy()).all()
    scores = {name: scored(wrong, findings.quality[looked_at], spent, findings.issues[looked_at])}
    return {**facts(prepared), "estimate": findings.noise.rate.estimate, "scores": scores}


def by_cross_validation(bench: Bench, task: Task) -> Cell:
    """Score the probabilities of five folds with cleanlab and with labelsieve."""
    prepared = prepared_for(bench, task)
    wrong, labels = wrong_labels(prepared), prepared.train.labels.cpu().numpy()
    crossed = crossed_for(bench, task, prepared)
    trained = crossed.search + crossed.folds
    clock = Clock()
    confidence, margin, issues = theirs(labels, crossed.probs)
    theirs_spent, clock = clock.read(), Clock()
    quality, ours = label_quality(labels, crossed.probs), find_label_issues(labels, crossed.probs)
    ours_spent = clock.read()
    scores = {
        "cleanlab, self-confidence": scored(wrong, confidence, trained + theirs_spent, issues),
        "cleanlab, normalized margin": scored(wrong, margin, trained + theirs_spent),
        "labelsieve on cleanlab's probabilities": scored(wrong, quality, trained + ours_spent, ours),
    }
    search = {"chosen_epochs": crossed.epochs, "held_out_accuracy": crossed.accuracies, **crossed.search._asdict()}
    return {**facts(prepared), "search": search, "scores": scores}


def crossed_for(bench: Bench, task: Task, prepared: Prepared) -> CrossValidated:
    """Return probabilities by cross-validation and their time, from the work folder if they are there."""
    parts = (*task.key.values(), bench.model, bench.augment, bench.device)
    path = bench.work / "crossed" / f"{'-'.join(str(part) for part in parts)}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_crossed(path, cross_validated(prepared, task.seed))
    return load_crossed(path)


def theirs(labels: Array, probs: Array) -> tuple[Array, Array, Array | None]:
    """Return cleanlab's self-confidence, normalized margin and decision; without cleanlab, the scores by definition."""
    if importlib.util.find_spec("cleanlab") is None:
        return self_confidence(labels, probs), normalized_margin(labels, probs), None
    from cleanlab.filter import find_label_issues as decide
    from cleanlab.rank import get_label_quality_scores as score

    both = (score(labels, probs, method=method) for method in ("self_confidence", "normalized_margin"))
    return *both, decide(labels, probs, n_jobs=1)


def by_plain_training(bench: Bench, task: Task) -> Cell:
    """Score the samples with AUM, mean loss and mean confidence of a plain training."""
    prepared = prepared_for(bench, task)
    wrong = wrong_labels(prepared)
    scores = {name: scored(wrong, score, spent) for name, (score, spent) in watched(prepared).items()}
    return {**facts(prepared), "scores": scores}


def scored(wrong: Array, score: Array, spent: Spent, issues: Array | None = None) -> dict[str, float]:
    """Return all figures of one score, and its time."""
    decided = {} if issues is None else decision(wrong, issues)
    return {**ranking(wrong, score), **decided, **spent._asdict()}


# --- the data


def prepared_for(bench: Bench, task: Task) -> Prepared:
    """Prepare data and network as labelsieve does."""
    torch.set_num_threads(1)
    return prepare(experiment_of(bench, task, 0.0), Shelf())


def experiment_of(bench: Bench, task: Task, noise_rate: float) -> Experiment:
    """Return the experiment of `labelsieve train` with these options."""
    given = {**bench.options(task), "noise_rate": str(noise_rate), "precision": None}
    _, options = parse(["train", data_of(bench, task)])
    vars(options).update(given)
    return requested_experiment(options)[0]


def wrong_labels(prepared: Prepared) -> Array:
    """Return which labels differ from the true ones (n)."""
    train = prepared.train
    if train.clean is None:
        raise SystemExit("the true labels are unknown; give --labels or --noise")
    return (train.labels != train.clean).cpu().numpy()


def facts(prepared: Prepared) -> Cell:
    return {
        "samples": len(prepared.train),
        "wrong": float(wrong_labels(prepared).mean()),
        "model": prepared.model,
        "trained_epochs": prepared.training.epochs,
    }


def data_of(bench: Bench, task: Task) -> str:
    """Return the data to read: the dataset, or a file generated from it."""
    source = digits(bench.work) if task.data == "digits" else task.data
    return part_of(source, bench.work, task) if task.subset else source


def digits(work: Path) -> str:
    """Write scikit-learn's 1,797 handwritten digits as a .npz file, a quarter of them as test set."""
    path = work / "digits.npz"
    if not path.exists():
        if importlib.util.find_spec("sklearn") is None:
            raise SystemExit(f"the digits are scikit-learn's: {INSTALL}")
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        pixels = (15 * images.reshape(-1, 8, 8)).astype(np.uint8)  # 0 to 16 -> 0 to 240
        kept, drawn = (part.numpy() for part in stratified(torch.from_numpy(labels).long(), 0.25, 0))
        work.mkdir(parents=True, exist_ok=True)
        np.savez(path, images=pixels[kept], labels=labels[kept], test_images=pixels[drawn], test_labels=labels[drawn])
    return str(path)


def part_of(source: str, work: Path, task: Task) -> str:
    """Write samples drawn by the seed as a .npz file with given and true labels."""
    train, test, _ = load_data(source, ReadOptions())
    if task.labels:
        train = train.relabelled(labels_of(found(task.labels) or "", train).labels)
    drawn = torch.randperm(len(train), generator=generator(task.seed, "subset"))[: task.subset].sort().values
    some = train.at(drawn)
    path = work / f"part-{task.data}.npz"
    work.mkdir(parents=True, exist_ok=True)
    arrays = {"images": some.images, "labels": some.labels}
    if some.clean is not None:
        arrays["clean_labels"] = some.clean
    if test is not None:
        arrays |= {"test_images": test.images[: task.subset], "test_labels": test.labels[: task.subset]}
    plain = {k: (a.permute(0, 2, 3, 1) if a.dim() == 4 else a).numpy() for k, a in arrays.items()}
    np.savez(path, classes=np.array(some.classes), **plain)
    return str(path)


def found(labels: str | None) -> str | None:
    """Return the path of a label file, looked up in the folder LABELSIEVE_DATA if needed."""
    folder = os.environ.get("LABELSIEVE_DATA")
    file = labels and (labels.rpartition(":")[0] or labels)
    if labels and folder and not Path(file or "").exists() and (Path(folder) / labels).parent.exists():
        return str(Path(folder) / labels)
    return labels


if __name__ == "__main__":
    main()
