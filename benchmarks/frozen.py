"""Which training of a head on frozen features withstands wrong labels?

    python -m benchmarks.frozen CLOTHING [--draws 3] [--work FOLDER]
    python -m benchmarks.frozen --show

CLOTHING is the folder of clothes with train/ and test/ that `benchmarks/photos.py` uses; the noise A, B and C is that
of its draws, one draw of C. `labelsieve embed` computes the features once. Every way is `labelsieve train` on these
features with noisy labels: a linear head or the network mlp with methods that are given the true share of wrong
labels, and the linear head that is delivered when nothing is given. Test accuracies are those of the last epoch. Then
two ways to find wrong labels are compared: the samples that small-loss selection (mentornet) mostly leaves out, and
those whose labels the out-of-fold predictions of linear heads contradict. Writes benchmarks/results/frozen.json and
prints its tables.
"""

import argparse
import contextlib
import io
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import photos
from benchmarks.record import Row, made_here
from labelsieve.cli import execute
from labelsieve.runs.read import Array, read_judgment, read_run, read_samples
from labelsieve.runs.tables import markdown

RECORD = Path(__file__).parent / "results" / "frozen.json"
METHODS = ("default", "mentornet", "mentornet-prop", "elr")
MODELS = ("linear", "mlp")
DELIVERED = "linear, delivered head in two rounds"
WAYS = {  # name: options of labelsieve train
    "linear, default (logistic regression)": ["--model", "linear", "--method", "default"],
    **{f"linear, {method}": ["--model", "linear", "--method", method] for method in METHODS[1:]},
    **{f"mlp, {method}": ["--model", "mlp", "--method", method] for method in METHODS},
    DELIVERED: ["--model", "linear"],
}
FOUND = {  # columns of a record: rows of the second table
    "linear, mentornet": "left out by mentornet, linear",
    "mlp, mentornet": "left out by mentornet, mlp",
    "first": "contradicted by linear heads, first round",
    "second": "contradicted by linear heads, second round",
}


def measure(clothing: Path, draws: int, work: Path) -> Iterator[Row]:
    """Yield a row for every draw and kind of noise."""
    with contextlib.ExitStack() as stack:
        whole = photos.clothes(clothing, "C", 0, _room(stack, work) / "data")
        features = photos.features_of(whole.folder, "lite0")
        for seed in range(draws):
            for kind in "AB" if seed else "ABC":
                room = _room(stack, work)
                cell = photos.clothes(clothing, kind, seed, room / "data")
                yield _measure_cell(cell, features, room)


def _room(stack: contextlib.ExitStack, work: Path) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(dir=work)))


def _measure_cell(cell: photos.Cell, features: tuple[Any, ...], room: Path) -> Row:
    train, test, test_names, names = features
    place = {name: at for at, name in enumerate(cell.order)}
    order = [place[Path(name).name] for name in names]
    given, wrong = cell.given[order], (cell.given != cell.true)[order]
    arrays = {"features": train, "labels": given, "classes": np.array(cell.classes), "test_features": test}
    np.savez(room / "noisy.npz", **arrays, test_labels=[cell.classes.index(name) for name in test_names])
    row: Row = {"set": cell.name, "draw": cell.seed, "wrong": round(float(wrong.mean()), 4), "accuracy": {}}
    row |= {"found": {}, "seconds": {}}
    for number, (name, options) in enumerate(WAYS.items()):
        rate = [] if name == DELIVERED else ["--noise-rate", str(row["wrong"])]
        out, began = room / str(number), time.process_time()
        command = ["train", str(room / "noisy.npz"), *options, *rate, "--threads", "1", "--out", str(out)]
        with contextlib.redirect_stdout(io.StringIO()):
            assert execute(command) == 0
        row["seconds"][name] = round(time.process_time() - began, 1)
        row["accuracy"][name] = round(100 - read_run(out).end["last"], 2)
        if name in FOUND:
            samples = read_samples(out) or {}
            order_of_doubt = np.lexsort((samples["mean_margin"], samples["mean_selected"]))
            row["found"][name] = found(wrong, samples["mean_selected"] < 0.5, order_of_doubt)
        if name == DELIVERED:
            judgment = read_judgment(out) or {}
            for turn in ("first", "second"):
                contradicted = judgment[f"{turn}/likeliest"][:, 0] != given
                row["found"][turn] = found(wrong, contradicted, judgment[f"{turn}/confidence"].argsort())
    return row


def found(wrong: Array, doubted: Array, order: Array) -> dict[str, float]:
    """Return the share of samples (n) that are doubted, of wrong labels among them, and of wrong labels found.

    `first`: the share of wrong labels among the first samples of an order (n), as many as there are wrong labels.
    """
    both = int((wrong & doubted).sum())
    shares = {
        "doubted": doubted.mean(),
        "precision": both / max(1, doubted.sum()),
        "recall": both / max(1, wrong.sum()),
    }
    if wrong.any():
        shares["first"] = wrong[order[: wrong.sum()]].mean()
    return {name: round(float(share), 4) for name, share in shares.items()}


def tables(rows: Sequence[Row]) -> str:
    """Return two Markdown tables with the means over the draws of each kind of noise."""
    kinds = list(dict.fromkeys(row["set"] for row in rows))

    def mean(kind: str, *path: str) -> str:
        values = [reduce(lambda value, key: value[key], path, row) for row in rows if row["set"] == kind]
        return f"{np.mean(values) * (1 if path[0] == 'accuracy' else 100):.1f}"

    accuracies = [[name, *(mean(kind, "accuracy", name) for kind in kinds)] for name in WAYS]
    noisy = [kind for kind in kinds if kind != "clothes C"]
    parts = ("doubted", "precision", "recall", "first")
    findings = [
        [title, *(mean(kind, "found", key, part) for kind in noisy for part in parts)] for key, title in FOUND.items()
    ]
    titles = [
        f"{kind[-1]}: {title}"
        for kind in noisy
        for title in ("doubted", "of these wrong", "of wrong found", "first N wrong")
    ]
    first, second = (
        markdown([["test accuracy, %", *kinds], *accuracies]),
        markdown([["samples, %", *titles], *findings]),
    )
    return f"{first}\n\n{second}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clothing", type=Path, nargs="?", help="folder of clothes")
    parser.add_argument("--draws", type=int, default=3, help="of noise A and B")
    parser.add_argument("--work", type=Path, help="folder for links to the photographs, on the same file system")
    parser.add_argument("--show", action="store_true", help="print the tables of the record")
    options = parser.parse_args()
    if not options.show:
        made = made_here("labelsieve", "torch", "numpy")
        rows = []
        for row in measure(options.clothing, options.draws, options.work or options.clothing.parent):
            rows.append(row)
            print(json.dumps(row), flush=True)
            RECORD.write_text(json.dumps({"made": made, "rows": rows}, indent=1) + "\n")
    print(tables(json.loads(RECORD.read_text())["rows"]))


if __name__ == "__main__":
    main()
