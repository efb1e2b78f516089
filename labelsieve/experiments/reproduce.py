"""reproduce: a table with our numbers beside the printed ones; what is missing is run first."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labelsieve.data.published import FOLDER, PUBLISHED, where
from labelsieve.devices import best_device, best_precision
from labelsieve.errors import InputError, LabelsieveError, nearest
from labelsieve.experiments.cell import Cell, Table
from labelsieve.experiments.matching import Identity, identity, known_runs
from labelsieve.experiments.paper import tables
from labelsieve.experiments.small_table import small_table
from labelsieve.experiments.spec import Experiment
from labelsieve.experiments.sweep import folder_of
from labelsieve.experiments.watch import run_all
from labelsieve.report.beside import LEGEND, Entry, blocks, long_form, measured, paired_rows
from labelsieve.report.formats import FORMATS, Block, Document, written
from labelsieve.report.records import read_run
from labelsieve.train.files import write_atomically

RESULTS = Path("results")  # committed records
Known = dict[Identity, Path]


@dataclass(frozen=True)
class Trial:
    """One seed of one cell."""

    cell: Cell
    seed: int

    @property
    def experiment(self) -> Experiment:
        return replace(self.cell.experiment, seed=self.seed)

    @property
    def start(self) -> Experiment | None:
        return self.cell.start and replace(self.cell.start, seed=self.seed)

    @property
    def identity(self) -> Identity:
        return identity({**self.experiment.as_dict(), "init": "a run" if self.start else None})


def reproduce(
    name: str,
    *,
    keep: dict[str, str | None],
    seeds: int | None,
    epochs: int | None,
    show: bool,
    out: Path,
    results: Path,
    form: str,
    save: Path | None,
    device: str,
    precision: str | None,
    **how: Any,
) -> None:
    """Run what is missing of a table, unless it is only to be shown, and print it. `how` as of `run_missing`."""
    table = named_table(name, epochs)
    cells = chosen(table, keep)
    check(form, save, results, seeds)
    trials = [Trial(cell, seed) for seed in range(table.seeds if seeds is None else seeds) for cell in cells]
    known = known_runs(out, results)
    why: dict[str, int] = {}
    failed: dict[Experiment, str] = {}
    if show:
        missing = sum(trial.identity not in known for trial in trials)
        why = {f"no finished run in {out} or {results}: without --show they are run": missing} if missing else {}
    else:
        device = best_device() if device == "auto" else device
        placed = {"device": device, "precision": precision or best_precision(device), "threads": how.pop("threads")}
        failed, why = run_missing([t for t in trials if t.identity not in known], known, out, placed, **how)
        known = known_runs(out, results)
        why |= {f"failed: {reason}": list(failed.values()).count(reason) for reason in failed.values()}
    publish(written(document(table, entries(table, cells, trials, known), why, form), form), save)
    if failed:
        raise LabelsieveError(f"{len(failed)} runs failed; see above")


def named_table(name: str, epochs: int | None) -> Table:
    """A table of the paper, or the small one, whose epochs may be chosen."""
    if name == "small":
        return small_table() if epochs is None else small_table(epochs)
    every = tables()
    if name not in every:
        raise InputError(f"there is no table {name!r} with numbers; there are: {', '.join([*every, 'small'])}")
    if epochs is not None:
        raise InputError("--epochs goes with the table small alone: the paper's tables say how long each run is")
    return every[name]


def chosen(table: Table, keep: dict[str, str | None]) -> list[Cell]:
    """The cells that all filters let through: the option, and what is wanted with commas between."""
    cells = list(table.cells)
    for option, wanted in keep.items():
        if wanted is not None:
            cells = filtered(table, cells, option, wanted.split(","))
    if not cells:
        given = " ".join(f"--{option} {wanted}" for option, wanted in keep.items() if wanted is not None)
        raise InputError(f"table {table.name} has no cell with {given}")
    return cells


FILTERS: dict[str, Callable[[Cell], str]] = {
    "dataset": lambda cell: cell.experiment.data,
    "noise": lambda cell: cell.experiment.noise or "own",
    "rate": lambda cell: f"{cell.experiment.rate:g}",
    "methods": lambda cell: cell.experiment.method,
}


def filtered(table: Table, cells: Iterable[Cell], option: str, wanted: Sequence[str]) -> list[Cell]:
    """The cells with one of the wanted values."""
    value = FILTERS[option]
    there = list(dict.fromkeys(map(value, table.cells)))
    if option == "rate":
        wanted = [number(word) for word in wanted]
    for word in wanted:
        if word not in there:
            hint = nearest(word, there) if option != "rate" else f"there are: {', '.join(there)}"
            raise InputError(f"table {table.name} has no {option} {word!r}: {hint}")
    return [cell for cell in cells if value(cell) in wanted]


def number(word: str) -> str:
    try:
        return f"{float(word):g}"
    except ValueError:
        raise InputError(f"--rate takes numbers such as 0.2,0.4, got {word!r}") from None


def check(form: str, save: Path | None, results: Path, seeds: int | None) -> None:
    """Refuse at once what would otherwise fail after hours."""
    if form not in FORMATS:
        raise InputError(f"unknown format {form!r}: {nearest(form, FORMATS)}")
    if seeds is not None and seeds < 1:
        raise InputError("seeds must be at least 1")
    if results != RESULTS and not results.is_dir():
        raise InputError(f"no folder {results} to search for records; leave out --results, or name one that is there")
    if save is not None and (save.is_dir() or not save.absolute().parent.is_dir()):
        raise InputError(f"cannot write {save}: its folder is not there, or it is one itself")


def run_missing(
    trials: Sequence[Trial], known: Known, out: Path, placed: dict[str, Any], at_once: int | None, on: str
) -> tuple[dict[Experiment, str], dict[str, int]]:
    """Run these; returns why those failed that did, and why how many were not tried."""
    ready, why = [], dict[str, int]()
    for trial in trials:
        reason = absent(trial)
        if reason:
            why[reason] = why.get(reason, 0) + 1
        else:
            ready.append(trial)

    def here(experiment: Experiment) -> Experiment:
        weights = experiment.weights and str(beside_data(experiment.weights))
        return replace(experiment, weights=weights, **placed)

    starts = {trial.start: start_folder(trial.start, known) for trial in ready if trial.start}
    first = [trial.experiment for trial in ready if not trial.start] + [e for e, path in starts.items() if not path]
    failed = run_all([here(e) for e in dict.fromkeys(first)], out, at_once, on) if first else {}
    second = []
    for trial in ready:
        if trial.start:
            folder = starts[trial.start] or folder_of(here(trial.start), out)
            second.append(replace(here(trial.experiment), init=str(folder)))
    can = [e for e in second if (Path(str(e.init)) / "done").exists()]
    failed |= run_all(can, out, at_once, on) if can else {}
    if len(can) < len(second):
        why["the run that they start from failed"] = len(second) - len(can)
    return failed, why


def start_folder(experiment: Experiment, known: Known) -> Path | None:
    """A finished run to start from; committed records have no model."""
    folder = known.get(identity(experiment.as_dict()))
    return folder if folder and (folder / "model.safetensors").exists() else None


def absent(trial: Trial) -> str | None:
    """Why a trial cannot be run here: data or weights that are not there."""
    data = trial.experiment.data
    if data in PUBLISHED and not Path(data).exists():
        try:
            where(data)
        except InputError as error:
            return str(error)
    weights = (trial.start or trial.experiment).weights
    if weights and not beside_data(weights).exists():
        return f"no {beside_data(weights)}: put torchvision's ImageNet weights of ResNet-50 there"
    return None


def beside_data(name: str) -> Path:
    """A file in the folder of published datasets."""
    return Path(os.environ.get(FOLDER, "data")) / name


def entries(table: Table, cells: Sequence[Cell], trials: Sequence[Trial], known: Known) -> list[Entry]:
    """Every cell with the errors of the runs that are known."""
    errors: dict[Cell, dict[int, float]] = {cell: {} for cell in cells}
    for trial in trials:
        if trial.identity in known:
            run = read_run(known[trial.identity], with_tables=False)
            errors[trial.cell][trial.seed] = measured(run, trial.cell.measure)
    return [
        Entry(e.data, cell.row, e.noise, e.rate, errors[cell], cell.published, table.digits)
        for cell in cells
        for e in [cell.experiment]
    ]


def document(table: Table, found: Sequence[Entry], why: dict[str, int], form: str) -> Document:
    """The table, the paired comparisons, and what is to be said about them."""
    if form == "csv":
        return Document("", [Block("", long_form(found))], ())
    shown = blocks(found, by_noise=form == "text")
    pairs = paired_rows(found)
    more = [Block("on the same noise and seed", pairs)] if len(pairs) > 1 else []
    ours = "mean ± standard error over n seeds" + (
        "" if table.name == "small" else f"; table {table.name} of the paper"
    )
    marks = any("difference" in row for block in shown for row in block.rows)
    notes = [ours, *([LEGEND] if marks else []), *table.notes]
    notes += [f"not run: {count} of the runs; {reason}" for reason, count in why.items()]
    return Document(table.title, [*shown, *more], notes)


def publish(text: str, save: Path | None) -> None:
    if save is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_atomically(save, text.encode())
        print(f"table: {save}")
