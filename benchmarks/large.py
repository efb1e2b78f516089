"""Large datasets: time and memory of the audit beside cleanlab, and a million samples of 1,000 classes on features.

    python -m benchmarks.large audit [--before FOLDER]     writes benchmarks/results/audit_speed.json
    python -m benchmarks.large mapped [SAMPLES] [CLASSES]  writes benchmarks/results/audit_memory.json
    python -m benchmarks.large features [SAMPLES] [CLASSES] adds to benchmarks/results/large.json
    python -m benchmarks.large state                       writes benchmarks/results/state.json
    python -m benchmarks.large tables [ROWS]               writes benchmarks/results/tables.json

audit: `find_label_issues` and `label_quality` on tables in memory, each in a process of its own, at the same time as
nothing else of this benchmark. --before names a checkout of an earlier version, which is measured in turn. Needs
cleanlab. mapped: the same on a memory-mapped file. features: labels of which a fifth is wrong are judged by features on
disk, stage by stage. state: bytes of the state of every method, at 1,000 classes. tables: time and memory to open a
table of paths and one of numbers, each in a new process.
"""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FOLDERS, LABELS = 1000, 100  # of a table of paths
SIZES = ((200_000, 100), (1_000_000, 20))
REPEATS = 3
ROWS = 10_000  # written at once
Array = np.ndarray[Any, Any]


def probabilities(samples: int, classes: int) -> tuple[Array, Array]:
    """Return labels (n), a tenth of them wrong, and out-of-sample predictions (n, K) of labels, in float32."""
    random = np.random.default_rng(0)
    true = random.integers(0, classes, samples)
    place = np.arange(samples)
    probs = random.normal(size=(samples, classes)).astype(np.float32)
    probs[place, true] += random.normal(6, 2, samples)
    probs[place, (true + 1) % classes] += random.normal(2, 2, samples)
    np.exp(probs, out=probs)
    probs /= probs.sum(1, keepdims=True)
    given = np.full((classes, classes), 0.05 / (classes - 1), np.float32)  # row: true class
    given[np.arange(classes), np.arange(classes)] = 0.9
    given[np.arange(classes), (np.arange(classes) + 1) % classes] += 0.05
    other = np.where(random.random(samples) < 0.5, true + 1, true + random.integers(1, classes, samples)) % classes
    labels = np.where(random.random(samples) < 0.1, other, true)
    probs = probs @ (given / given.sum(1, keepdims=True))
    return labels, probs / probs.sum(1, keepdims=True)


def calls() -> dict[str, Callable[[Array, Array], object]]:
    """Return what is measured; cleanlab with its default number of processes and with one."""
    from labelsieve import find_label_issues, label_quality

    found: dict[str, Callable[[Array, Array], object]] = {
        "find_label_issues": find_label_issues,
        "label_quality, ol": lambda y, p: label_quality(y, p, criterion="ol"),
        "label_quality, margin": lambda y, p: label_quality(y, p, criterion="margin"),
    }
    if "--theirs" in sys.argv:
        from cleanlab.filter import find_label_issues as theirs
        from cleanlab.rank import get_label_quality_scores

        found = {
            "find_label_issues": theirs,
            "find_label_issues, n_jobs=1": lambda y, p: theirs(y, p, n_jobs=1),
            "label_quality, ol": lambda y, p: get_label_quality_scores(y, p, method="self_confidence"),
            "label_quality, margin": lambda y, p: get_label_quality_scores(y, p, method="normalized_margin"),
        }
    return found


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def measure_here(name: str, samples: int, classes: int) -> dict[str, float]:
    """Return the least CPU and wall seconds of several calls, and the memory that the first one added."""
    labels, probs = probabilities(samples, classes)
    call = calls()[name]
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the data
    figures = []
    for _ in range(REPEATS):
        cpu, wall = cpu_seconds(), time.perf_counter()
        call(labels, probs)
        figures.append((cpu_seconds() - cpu, time.perf_counter() - wall))
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) // 1024
    return {
        "cpu_s": round(min(each[0] for each in figures), 3),
        "wall_s": round(min(each[1] for each in figures), 3),
        "added_mb": peak - before,
    }


def audit(before: Path | None) -> None:
    """Measure all calls, one after the other, and write the record."""
    systems = {"labelsieve": (ROOT, []), "cleanlab": (ROOT, ["--theirs"])}
    if before is not None:
        systems["labelsieve before"] = (before, [])
    record: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "cpu": platform.processor(), "rows": []}
    for samples, classes in SIZES:
        names = ("find_label_issues", "find_label_issues, n_jobs=1", "label_quality, ol", "label_quality, margin")
        for name in names:
            for system, (folder, words) in systems.items():
                if "n_jobs" in name and system != "cleanlab":
                    continue
                command = [sys.executable, __file__, "one", name, str(samples), str(classes), *words]
                environment = {**os.environ, "PYTHONPATH": str(folder)}
                done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
                figures = json.loads(done.stdout.splitlines()[-1])
                row = {"samples": samples, "classes": classes, "call": name, "system": system, **figures}
                print(row, flush=True)
                record["rows"].append(row)
    record["load"] = os.getloadavg()[0]
    (RESULTS / "audit_speed.json").write_text(json.dumps(record, indent=1) + "\n")


# --- a memory-mapped file


def write_probabilities(path: Path, labels: Array, classes: int) -> None:
    """Write random predictions that are mostly correct, in half precision."""
    table = np.lib.format.open_memmap(path, "w+", np.float16, (len(labels), classes))
    random = np.random.default_rng(0)
    for first in range(0, len(labels), ROWS):
        rows = slice(first, first + ROWS)
        logits = random.normal(size=(len(labels[rows]), classes)).astype(np.float32)
        logits[np.arange(len(logits)), labels[rows]] += 9
        np.exp(logits, out=logits)
        table[rows] = logits / logits.sum(1, keepdims=True)
    table.flush()


def in_process(function: Callable[..., None], *arguments: object) -> None:
    """Run a function in another process: its memory does not count."""
    process = multiprocessing.Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def mapped(samples: int, classes: int) -> None:
    """Measure the audit of probabilities on disk, and write the record."""
    from labelsieve import estimate_noise, label_quality

    labels = np.random.default_rng(1).integers(0, classes, samples)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "probs.npy"
        in_process(write_probabilities, path, labels, classes)
        record = {"samples": samples, "classes": classes, "file_mb": path.stat().st_size // 2**20, "figures": {}}
        for name, call in {
            "label_quality, posterior": label_quality,
            "label_quality, all": lambda y, p: label_quality(y, p, criterion="all"),
            "estimate_noise": estimate_noise,
        }.items():
            cpu, began = cpu_seconds(), time.perf_counter()
            call(labels, np.load(path, mmap_mode="r"))
            record["figures"][name] = {
                "seconds": round(time.perf_counter() - began, 1),
                "cpu_s": round(cpu_seconds() - cpu, 1),
                "peak_mb": peak_mb(),
            }
            print(name, record["figures"][name], flush=True)
    (RESULTS / "audit_memory.json").write_text(json.dumps(record, indent=1) + "\n")


# --- features


def write_features(path: Path, true: Array, classes: int, dim: int) -> None:
    """Write features of samples in families of ten similar classes, in half precision."""
    random = np.random.default_rng(0)
    means = 0.5 * random.normal(size=(-(-classes // 10), dim)).repeat(10, 0)[:classes]
    means = (means + 0.35 * random.normal(size=means.shape)).astype(np.float32)
    table = np.lib.format.open_memmap(path, "w+", np.float16, (len(true), dim))
    for first in range(0, len(true), ROWS):
        rows = slice(first, first + ROWS)
        table[rows] = means[true[rows]] + random.normal(size=(len(true[rows]), dim)).astype(np.float32)
    table.flush()


def noisy(true: Array, classes: int) -> Array:
    """Return labels (n), a fifth of them wrong: half of these the next class of the family, half any class."""
    random = np.random.default_rng(1)
    near = true - true % 10 + (true + 1) % 10
    other = np.where(random.random(len(true)) < 0.5, near % classes, random.integers(0, classes, len(true)))
    return np.where(random.random(len(true)) < 0.2, other, true)


@contextmanager
def stages(record: list[dict[str, Any]]) -> Iterator[None]:
    """Record time and peak memory of the steps of `labelsieve.features.judge`."""
    import torch

    from labelsieve import quality
    from labelsieve.features import judge

    def wait() -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            wait()
            cpu, began = cpu_seconds(), time.perf_counter()
            result = function(*arguments, **options)
            wait()
            figures = {"cpu_s": round(cpu_seconds() - cpu, 1), "wall_s": round(time.perf_counter() - began, 1)}
            record.append({"stage": name, **figures, "peak_mb": peak_mb()})
            print(record[-1], flush=True)
            return result

        return call

    steps = {
        (quality, "_feature_rows"): "read the features",
        (judge, "standardise"): "standardise",
        (judge, "_best_strength"): "choose the regularisation",
        (judge, "_fit_folds"): "fit the heads",
        (judge, "_held_out_guesses"): "predict all samples",
        (judge, "explain"): "estimate the noise",
        (quality, "judge_labels"): "judge the labels",
    }
    whole = judge._best_strength
    patches = [
        patch.object(module, name, timed(title, getattr(module, name))) for (module, name), title in steps.items()
    ]

    def choose(*arguments: Any, **options: Any) -> Any:
        with patch.object(judge, "_fit_folds", fit):  # these fits belong to the choice
            return whole(*arguments, **options)

    fit = judge._fit_folds
    patches[2] = patch.object(judge, "_best_strength", timed("choose the regularisation", choose))
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def features(samples: int, classes: int, dim: int, device: str, out: Path) -> None:
    """Judge noisy labels by features on disk, and add the figures to the record."""
    import torch

    from benchmarks.record import commit_of
    from labelsieve import quality

    true = np.random.default_rng(2).integers(0, classes, samples)
    labels = noisy(true, classes)
    wrong = labels != true
    about: dict[str, Any] = {"samples": samples, "classes": classes, "features": dim, "device": device}
    about |= {"threads": torch.get_num_threads(), "load": round(os.getloadavg()[0], 1)}
    about |= {"torch": torch.__version__, "commit": commit_of()}
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "features.npy"
        in_process(write_features, path, true, classes, dim)
        about["file_mb"] = path.stat().st_size // 2**20
        cpu, began = cpu_seconds(), time.perf_counter()
        table = np.load(path, mmap_mode="r")
        with stages(found):
            given = table if device == "cpu" else torch.from_numpy(np.array(table)).to(device)
            good, noise = quality._quality_and_noise(labels, given)
        about |= {"cpu_s": round(cpu_seconds() - cpu, 1), "wall_s": round(time.perf_counter() - began, 1)}
    issues = good < 0.5
    about |= {
        "peak_mb": peak_mb(),
        "gpu_peak_mb": torch.cuda.max_memory_allocated() // 2**20 if device != "cpu" else 0,
        "wrong": round(float(wrong.mean()), 4),
        "estimate": [round(float(value), 4) for value in noise.rate],
        "suspects": int(issues.sum()),
        "precision": round(float(wrong[issues].mean()), 4),
        "recall": round(float(issues[wrong].mean()), 4),
        "stages": found,
    }
    print(json.dumps(about, indent=1))
    record = json.loads(out.read_text()) if out.exists() else []
    out.write_text(json.dumps([*record, about], indent=1) + "\n")


def state(classes: int = 1000) -> None:
    """Write the bytes of the state of every method: at one sample, and for every further one."""
    from labelsieve.methods import METHODS, Problem, make

    def size(name: str, samples: int) -> int:
        method = make(name, Problem(num_classes=classes, noise_rate=0.2, warmup=2, num_samples=samples))
        return sum(part.numel() * part.element_size() for part in (*method.buffers(), *method.parameters()))

    record = {name: {"fixed": size(name, 1), "per_sample": size(name, 2) - size(name, 1)} for name in METHODS}
    print(json.dumps(record, indent=1))
    (RESULTS / "state.json").write_text(json.dumps({"classes": classes, "bytes": record}, indent=1) + "\n")


# --- tables


def write_paths(folder: Path, rows: int) -> Path:
    """Write a table of image paths, with empty files, since opening a table decodes nothing."""
    for number in range(FOLDERS):
        (folder / f"{number:03}").mkdir()
    table = folder / "paths.csv"
    with table.open("w") as file:
        file.write("path,label\n")
        for row in range(rows):
            name = f"{row % FOLDERS:03}/{row}.jpg"
            os.close(os.open(folder / name, os.O_CREAT))
            file.write(f"{name},class {row % LABELS}\n")
    return table


def write_numbers(folder: Path, rows: int) -> Path:
    """Write a table of five columns of numbers and a label."""
    table = folder / "numbers.csv"
    values = np.random.default_rng(0).normal(size=(rows, 5)).round(4)
    with table.open("w") as file:
        file.write("a,b,c,d,e,label\n")
        file.writelines(f"{','.join(map(str, line))},{row % LABELS}\n" for row, line in enumerate(values.tolist()))
    return table


def open_here(path: str) -> dict[str, float]:
    """Open a table and return seconds and peak megabytes, the latter including imports."""
    from labelsieve.data.load import ReadOptions, find

    began = time.perf_counter()
    found = find(path, ReadOptions())
    return {"rows": len(found.train), "seconds": round(time.perf_counter() - began, 2), "peak_mb": peak_mb()}


def tables(rows: int) -> None:
    """Open each table in a new process, and write the record."""
    record: dict[str, Any] = {"cores": os.cpu_count(), "python": platform.python_version()}
    with tempfile.TemporaryDirectory() as folder:
        for name, write in {"paths and labels": write_paths, "five columns of numbers": write_numbers}.items():
            command = [sys.executable, "-m", "benchmarks.large", "open", str(write(Path(folder), rows))]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            record[name] = json.loads(done.stdout)
            print(f"{name}: {record[name]}", flush=True)
    (RESULTS / "tables.json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("audit").add_argument("--before", type=Path)
    commands.add_parser("state")
    commands.add_parser("tables").add_argument("rows", nargs="?", type=int, default=1_000_000)
    commands.add_parser("open").add_argument("path")
    one = commands.add_parser("one")
    one.add_argument("name")
    one.add_argument("--theirs", action="store_true")
    for name in ("mapped", "features", "one"):
        sub = commands.choices[name] if name == "one" else commands.add_parser(name)
        many = {"nargs": "?", "type": int}
        sub.add_argument("samples", default=1_000_000, **many)
        sub.add_argument("classes", default=1000, **many)
    commands.choices["features"].add_argument("--dim", type=int, default=128)
    commands.choices["features"].add_argument("--device", default="cpu")
    commands.choices["features"].add_argument("--out", type=Path, default=RESULTS / "large.json")
    options = parser.parse_args()
    if options.command == "state":
        state()
    elif options.command == "audit":
        audit(options.before)
    elif options.command == "one":
        print(json.dumps(measure_here(options.name, options.samples, options.classes)))
    elif options.command == "tables":
        tables(options.rows)
    elif options.command == "open":
        print(json.dumps(open_here(options.path)))
    elif options.command == "mapped":
        mapped(options.samples, options.classes)
    else:
        features(options.samples, options.classes, options.dim, options.device, options.out)


if __name__ == "__main__":
    main()
