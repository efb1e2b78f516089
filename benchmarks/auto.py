"""Compare `labelsieve train --noise-rate auto` with a training that is given the true noise rate.

    python -m benchmarks.auto --seeds 3,4,5 --out runs/auto
    python -m benchmarks.auto --data cifar10n --seeds 3,4,5

Finished runs are not run again. `digits` needs scikit-learn. `cifar10n` is CIFAR-10 with the human labels of
CIFAR-10_human.pt; both must be in the folder given by LABELSIEVE_DATA.
"""

import argparse
import json
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import labelsieve
from benchmarks.audit import Task, part_of
from labelsieve.auto.judge import noise_of_run, reported_rate
from labelsieve.runs.read import Run, read_run

NOISES = (("pair", 0.4), ("mixed", 0.4), ("symmetry", 0.4), ("pair", 0.1), ("pair", 0.0))
HUMAN = (("worst", 0.402), ("aggregate", 0.09))  # human labels, and the share of wrong ones
PHOTOGRAPHS = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="3,4,5")
    parser.add_argument("--data", default="fashion,digits")
    parser.add_argument("--out", type=Path, default=Path("runs/auto"))
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results/auto.json"))
    args = parser.parse_args()
    jobs = [
        (data, noise, rate, int(seed))
        for data in args.data.split(",")
        for seed in args.seeds.split(",")
        for noise, rate in (HUMAN if data == "cifar10n" else NOISES)
    ]
    if "digits" in args.data:
        write_digits(args.out / "digits.npz")
    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda job: one(*job, args.out), jobs))
    known = json.loads(args.record.read_text()) if args.record.exists() else {"rows": []}
    merged = {(r["data"], r["noise"], r["rate"], r["seed"]): r for r in [*known["rows"], *rows]}
    about = {"torch": torch.__version__, "python": platform.python_version(), "labelsieve": labelsieve.__version__}
    text = json.dumps({**about, "rows": list(merged.values())}, indent=1)
    args.record.write_text(text + "\n", encoding="utf-8")
    print(table(list(merged.values())))


def one(data: str, noise: str, rate: float, seed: int, out: Path) -> dict[str, Any]:
    """Run an automatic training and one with the true noise rate."""
    source, truth = human(noise, seed, out) if data == "cifar10n" else synthetic(data, noise, rate, out)
    common = [*source, "--seed", str(seed), "--threads", "1"]
    auto, told = (out / f"{data}-{noise}-{rate:g}-{seed}-{how}" for how in ("auto", "told"))
    trained([*common, "--noise-rate", "auto", "--out", str(auto)])
    trained([*common, "--noise-rate", str(truth), "--out", str(told)])
    run, informed = read_run(auto), read_run(told)
    drawn = informed.start.get("noise", {}).get("realised_rate", truth)
    return {
        "data": data,
        "noise": noise,
        "rate": rate,
        "seed": seed,
        "wrong": round(drawn, 4),
        "told": run.spec["noise_rate"],
        "estimate": [round(value, 4) for value in reported_rate(noise_of_run(auto).rate)],
        "method": run.method,
        "error selecting": error_of(run),
        "error": error_of(run.delivered),
        "error told": error_of(informed),
    }


def synthetic(data: str, noise: str, rate: float, out: Path) -> tuple[list[str], float]:
    """Return the command line arguments for the data, and the share of wrong labels."""
    source = str(out / "digits.npz") if data == "digits" else data
    return [source, "--noise", noise, "--rate", str(rate)], rate


def human(kind: str, seed: int, out: Path) -> tuple[list[str], float]:
    """Return the command line arguments for photographs drawn with the seed, and the share of wrong labels."""
    folder = out / f"photographs-{kind}-{seed}"
    path = folder / "part-cifar10.npz"
    if not path.exists():
        part_of("cifar10", folder, Task("cifar10", None, 0.0, f"CIFAR-10_human.pt:{kind}", seed, None, PHOTOGRAPHS))
    with np.load(path) as arrays:
        return [str(path)], round(float((arrays["labels"] != arrays["clean_labels"]).mean()), 4)


def trained(options: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "labelsieve", "train", *options], check=True, stdout=subprocess.DEVNULL)


def error_of(run: Run) -> float:
    """Return the test error of the model of a run."""
    return float(run.epochs[run.end["chosen_epoch"] - 1]["test_error"])


def write_digits(path: Path) -> None:
    """Write scikit-learn's digits, with every fourth image in the test set."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = np.round(images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    test = np.arange(len(labels)) % 4 == 3
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {"images": images[~test], "labels": labels[~test], "test_images": images[test], "test_labels": labels[test]}
    np.savez(path, **parts)


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per kind of noise."""
    lines = [
        "| data | noise | seeds | wrong, % | estimate, % | error, % | error before final training, % | "
        "error, true rate, % |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    kinds = dict.fromkeys((row["data"], row["noise"], row["rate"]) for row in rows)
    for data, noise, rate in kinds:
        same = [row for row in rows if (row["data"], row["noise"], row["rate"]) == (data, noise, rate)]
        same.sort(key=lambda row: row["seed"])
        cells = [
            ", ".join(f"{100 * row['wrong']:.1f}" for row in same),
            ", ".join(f"{100 * row['estimate'][0]:.1f}" for row in same),
            *(", ".join(f"{row[name]:.1f}" for row in same) for name in ("error", "error selecting", "error told")),
        ]
        kind = f"{noise} {100 * rate:g}%" if rate else "none"
        lines.append(f"| {data} | {kind} | {', '.join(str(row['seed']) for row in same)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
