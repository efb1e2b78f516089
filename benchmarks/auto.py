"""Automatic training from scratch, on data whose wrong labels are known: what it finds, its error and its cost.

    python -m benchmarks.auto --prepare                          # write digits.npz; needs scikit-learn
    python -m benchmarks.auto --code . --code ../before --jobs 16 --seeds 0,1,2
    python -m benchmarks.auto --table                            # print the record

Every cell is `labelsieve train DATA --noise-rate auto --threads 1` of one checkout, as a process of its own. Records
are added to benchmarks/results/auto.jsonl as they are finished; finished ones are skipped. With --true-rate, a training
that is given the true noise rate follows for each cell. --data may also name a .npz file with labels and clean_labels,
such as labels of people.
"""

import argparse
import csv
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.detection import Array, average_precision, decision
from benchmarks.record import Row, add_row, read_rows
from labelsieve.audit.findings import findings_from_guesses
from labelsieve.auto.judge import best_judges
from labelsieve.runs import record as run_record
from labelsieve.runs.data import Shelf, gather
from labelsieve.runs.read import PLAIN, SELECTING, read_json
from labelsieve.runs.spec import experiment_for
from labelsieve.runs.tables import markdown

RESULTS = Path(__file__).parent / "results" / "auto.jsonl"
NOISES = (("pair", 0.4), ("mixed", 0.4), ("symmetry", 0.4), ("pair", 0.1), ("pair", 0.0))
NO_NOISE = (("none", 0.0),)  # is added to a file that has wrong labels
TRUE_RATE = "true rate"  # name of the trainings that are given it
_WRITING = threading.Lock()


class Cell(NamedTuple):
    """One training."""

    code: str  # name of the checkout, or TRUE_RATE
    data: str
    noise: str
    rate: float
    seed: int


def main(words: Sequence[str] | None = None) -> None:
    args = _arguments(words)
    if args.prepare:
        write_digits(args.work / "digits.npz")
    elif not args.table:
        codes = {path.resolve().name: path.resolve() for path in args.code}
        known = {_cell_of(row) for row in read_rows(args.record)}
        left = [cell for cell in cells(args, codes) if cell._replace(data=Path(cell.data).name) not in known]
        with ThreadPoolExecutor(args.jobs) as pool:
            for done in [pool.submit(record, cell, codes, args) for cell in left]:
                done.result()
    print(table(read_rows(args.record)))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", type=Path, action="append", help="checkout to measure; repeatable. Default: this one")
    parser.add_argument("--data", default="fashion,digits")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--noise", default="", help="kind:rate, separated by commas. Default: all")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, with one thread each")
    parser.add_argument("--true-rate", action="store_true", help="also train with the true noise rate")
    parser.add_argument("--work", type=Path, default=Path("runs/auto"), help="folder of generated data and runs")
    parser.add_argument("--record", type=Path, default=RESULTS)
    parser.add_argument("--keep", action="store_true", help="keep the run folders")
    parser.add_argument("--prepare", action="store_true", help="only write digits.npz into the work folder")
    parser.add_argument("--table", action="store_true", help="only print the record")
    args = parser.parse_args(words)
    args.code = args.code or [Path(__file__).parents[1]]
    args.work = args.work.resolve()  # the processes have other working directories
    return args


def cells(args: argparse.Namespace, codes: dict[str, Path]) -> list[Cell]:
    """Return all trainings, seed by seed, so that an interrupted record covers all noises equally."""
    given = [(kind, float(rate)) for kind, _, rate in (text.partition(":") for text in args.noise.split(",") if text)]
    return [
        Cell(code, data, noise, rate, int(seed))
        for seed in args.seeds.split(",")
        for data in args.data.split(",")
        for noise, rate in given or (NO_NOISE if data.endswith(".npz") else NOISES)
        for code in [*codes, *([TRUE_RATE] if args.true_rate else [])]
    ]


def record(cell: Cell, codes: dict[str, Path], args: argparse.Namespace) -> None:
    """Train a cell and add a line to the record; a training that fails is reported and left out."""
    run = args.work / "-".join(Path(str(part)).name.replace(" ", "-") for part in cell)
    shutil.rmtree(run, ignore_errors=True)
    row = measure(cell, codes.get(cell.code, next(iter(codes.values()))), run, args.work)
    with _WRITING:
        if row is not None:
            add_row(args.record, row)
        print(*cell, "failed" if row is None else f"{row['cpu_seconds']} CPU seconds", flush=True)
    if row is not None and not args.keep:
        shutil.rmtree(run)


def measure(cell: Cell, code: Path, run: Path, work: Path) -> Row | None:
    """Train a cell with a checkout; None if the command fails."""
    source, options = source_of(cell, work)
    given, true = labels_of(cell, source)
    wrong = given != true
    rate = f"{wrong.mean():.4f}" if cell.code == TRUE_RATE else "auto"
    argv = [source, *options, "--noise-rate", rate, "--seed", str(cell.seed), "--threads", "1", "--out", str(run)]
    began = time.perf_counter()
    if (cpu := cpu_seconds_of(["train", *argv], code, run.with_name(f"{run.name}.log"))) is None:
        return None
    row = {**cell._asdict(), "samples": len(wrong), "wrong": float(wrong.mean()), "error": error_of(run)}
    row |= {"cpu_seconds": round(cpu, 1), "seconds": round(time.perf_counter() - began, 1)}
    if cell.code != TRUE_RATE:
        row |= {**audited(run, given, true), "trainings": len(list(run.rglob("done"))), "judges": judges_in(run)}
        row |= {
            f"{kind} judges": judged_by(kind, run, true) for kind in (PLAIN, SELECTING) if (run / SELECTING).exists()
        }
    row["data"] = Path(cell.data).name
    return {**row, "torch": torch.__version__, "python": platform.python_version()}


def source_of(cell: Cell, work: Path) -> tuple[str, list[str]]:
    """Return the data of a cell, and the options that add its noise."""
    if cell.data.endswith(".npz"):
        return str(Path(cell.data).resolve()), []
    noise = ["--noise", cell.noise, "--rate", str(cell.rate)]
    return str(work / "digits.npz") if cell.data == "digits" else cell.data, noise


def labels_of(cell: Cell, source: str) -> tuple[Array, Array]:
    """Return the labels (n) that a cell is trained on, and the true ones."""
    noise = {} if cell.data.endswith(".npz") else {"noise": cell.noise, "rate": cell.rate}
    train = gather(experiment_for(source, seed=cell.seed, **noise), Shelf()).train
    assert train.clean is not None
    return train.labels.numpy(), train.clean.numpy()


def cpu_seconds_of(argv: list[str], code: Path, log: Path) -> float | None:
    """Run labelsieve of a checkout and return its CPU seconds; None if it fails."""
    path = os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        command = [sys.executable, "-m", "labelsieve", *argv]
        process = subprocess.Popen(command, cwd=code, env=env, stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return None if process.returncode else used.ru_utime + used.ru_stime


def audited(run: Path, given: Array, true: Array) -> Row:
    """Return how well the audit of a run found the wrong labels (n), from its files."""
    summary = read_json(run / "audit" / "summary.json")
    with (run / "audit" / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))  # the most suspicious first
    place = np.array([int(row["index"]) for row in rows])
    rank, issues, suggested = np.empty(len(place)), np.zeros(len(place), bool), given.copy()
    rank[place] = np.arange(len(place))
    issues[place] = [row["is_label_issue"] == "true" for row in rows]
    classes = [name.removeprefix("'") for name in summary["classes"]]
    suggested[place] = [classes.index(row["suggested_label"]) for row in rows]
    rate, wrong = summary["noise_rate"], given != true
    estimate = [rate["estimate"], rate["low"], rate["high"]]
    holds = bool(rate["low"] <= wrong.mean() <= rate["high"])
    return {
        "estimate": estimate,
        "holds": holds,
        **figures(wrong, rank, issues, np.where(issues, suggested, given) != true),
    }


def figures(wrong: Array, score: Array, issues: Array, wrong_after: Array) -> Row:
    """Return the figures of a score and a decision; without wrong labels, only what was flagged."""
    flagged = {"flagged": float(issues.mean()), "wrong_after": float(wrong_after.mean())}
    if not wrong.any():
        return {"average_precision": None, "f1": None, **flagged}
    return {"average_precision": average_precision(wrong, score), "f1": decision(wrong, issues)["f1"], **flagged}


def judged_by(kind: str, run: Path, true: Array) -> Row:
    """Return the figures that one kind of judges would have had, whoever judged."""
    judges = best_judges(run, kind)
    assert judges is not None
    found = findings_from_guesses(
        judges.guesses, [str(k) for k in range(judges.guesses.num_classes)], out_of_sample=True
    )
    row = figures(found.labels != true, found.quality, found.issues, found.corrected != true)
    return {**row, "estimate": list(found.noise.rate), "log_likelihood": judges.log_likelihood}


def judges_in(run: Path) -> str:
    """Return who judged the labels of a run, also of the versions before decision 37."""
    start = next(row for row in run_record.read_rows(run) if row["event"] == "start")
    reasons = [reason for reason in start["chosen"]["reasons"] if reason.startswith("judges: ")]
    if reasons:
        return "selecting" if "select samples" in reasons[0] else "plain"
    plain, long = (len(list((run / folder).glob("*/done"))) for folder in ("plain", "longer"))
    if long == 5:
        return "long plain"
    own = read_json(run / "spec.json")["experiment"]["valid"] > 0  # it held samples out itself
    return "plain" if plain == 5 and (own or not read_json(run / "audit" / "summary.json")["basis"]) else "selecting"


def error_of(run: Path) -> float:
    """Return the test error of the delivered model; versions before decision 37 have it in a folder of its own."""
    rows = run_record.read_rows(run / "final" if (run / "final").exists() else run)
    epoch = rows[-1]["chosen_epoch"]
    return next(float(row["test_error"]) for row in reversed(rows) if row.get("epoch") == epoch)


def write_digits(path: Path) -> None:
    """Write scikit-learn's digits, with every fourth image in the test set."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = np.round(images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    test = np.arange(len(labels)) % 4 == 3
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {"images": images[~test], "labels": labels[~test], "test_images": images[test], "test_labels": labels[test]}
    np.savez(path, **parts)


def _cell_of(row: Row) -> Cell:
    return Cell(*(row[name] for name in Cell._fields))


def table(rows: Sequence[Row]) -> str:
    """Return a table with a row for each kind of noise and each checkout, with means over the seeds."""
    found = ("wrong, %", "estimate, %", "truth in range", "average precision", "F1", "plain judges", "selecting judges")
    lines = [["data", "noise", "code", "seeds", *found, "wrong after, %", "error, %", "judges", "trainings", "CPU s"]]
    for key in sorted({(row["data"], row["noise"], row["rate"], row["code"]) for row in rows}, key=str):
        same = [row for row in rows if (row["data"], row["noise"], row["rate"], row["code"]) == key]
        lines.append(_line(key, sorted(same, key=lambda row: int(row["seed"]))))
    return markdown(lines)


def _line(key: tuple[str, str, float, str], rows: Sequence[Row]) -> list[str]:
    data, noise, rate, code = key
    kind = f"{noise} {100 * rate:g}%" if rate else "none"
    audits = [row for row in rows if "estimate" in row]
    names = dict.fromkeys(row["judges"] for row in audits)
    return [
        *(data, kind, code, ", ".join(str(row["seed"]) for row in rows)),
        ", ".join(f"{100 * row['wrong']:.1f}" for row in rows),
        ", ".join(f"{100 * row['estimate'][0]:.1f}" for row in audits),
        f"{sum(row['holds'] for row in audits)} of {len(audits)}" if audits else "",
        *(_mean([row[name] for row in audits], 1, 3) for name in ("average_precision", "f1")),
        *(_both([row[name] for row in audits if name in row]) for name in ("plain judges", "selecting judges")),
        _mean([row["wrong_after"] for row in audits], 100, 1),
        ", ".join(f"{row['error']:.1f}" for row in rows),
        ", ".join(f"{name} {sum(row['judges'] == name for row in audits)}" for name in names),
        _mean([row["trainings"] for row in audits], 1, 0),
        _mean([row["cpu_seconds"] for row in rows], 1, 0),
    ]


def _both(rows: Sequence[Row]) -> str:
    """Return mean average precision and F1."""
    return " / ".join(filter(None, (_mean([row[name] for row in rows], 1, 3) for name in ("average_precision", "f1"))))


def _mean(values: Sequence[float | None], scale: float, digits: int) -> str:
    known = [value for value in values if value is not None]
    return f"{scale * np.mean(known):.{digits}f}" if known else ""


if __name__ == "__main__":
    main()
