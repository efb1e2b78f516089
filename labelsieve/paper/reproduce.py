"""reproduce: a table with our numbers beside the printed ones; what is missing is run first."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from labelsieve.data.published import FOLDER, PUBLISHED, where
from labelsieve.errors import InputError, LabelsieveError, nearest
from labelsieve.files import refuse_no_folder
from labelsieve.methods import METHODS
from labelsieve.paper.comparison import LEGEND, Entry, blocks, measured, paired_blocks, plain_form
from labelsieve.paper.tables import Cell, Table, small_table, tables
from labelsieve.runs.find import Identity, identity, known_runs
from labelsieve.runs.read import read_run
from labelsieve.runs.spec import Experiment
from labelsieve.runs.tables import Block, Document, publish, refuse_unwritable
from labelsieve.runtime import best_device, best_precision
from labelsieve.sweep.sweep import folder_of
from labelsieve.sweep.watch import run_all

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

    @cached_property
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
    at_once: int | None,
    on: str,
    **where_to_run: Any,
) -> None:
    """Run what is missing of a table, unless it is only to be shown, and print it."""
    table = named_table(name, epochs, words(keep["methods"] or ""))
    cells = chosen(table, keep)
    check(form, save, results, seeds)
    if not show:
        refuse_no_folder(out)
    trials = [Trial(cell, seed) for seed in range(table.seeds if seeds is None else seeds) for cell in cells]
    known = known_runs(out, results)
    missing = list({trial.identity: trial for trial in trials if trial.identity not in known}.values())
    failed: dict[Experiment, str] = {}
    why: dict[str, int] = {}
    if show:
        why = dict(Counter(unshown(trial, f"no finished run in {out} or {results}") for trial in missing))
    elif missing:
        refuse_nothing(table, trials, missing)
        failed, why = run_missing(missing, known, out, placed(**where_to_run), at_once, on)
        known = known_runs(out, results)
    publish(document(table, entries(table, cells, trials, known), why, form), form, save)
    if failed:
        raise LabelsieveError(f"{len(failed)} of the runs failed; see above")


def placed(device: str, precision: str | None, threads: int) -> dict[str, Any]:
    """The fields of an experiment that say where it runs."""
    device = best_device() if device == "auto" else device
    return {"device": device, "precision": precision or best_precision(device), "threads": threads}


def named_table(name: str, epochs: int | None, methods: Iterable[str] = ()) -> Table:
    """A table of the paper, or the small one, whose epochs may be chosen and which takes any method."""
    if name == "small":
        return small_table(epochs, [method for method in methods if method in METHODS])
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
            if not words(wanted):
                raise InputError(f"--{option} names nothing; leave it out to have all")
            cells = filtered(table, cells, option, words(wanted))
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


def words(text: str) -> list[str]:
    """What is written with commas between."""
    return [word.strip() for word in text.split(",") if word.strip()]


def filtered(table: Table, cells: Iterable[Cell], option: str, wanted: Sequence[str]) -> list[Cell]:
    """The cells with one of the wanted values."""
    value = FILTERS[option]
    there = set(map(value, table.cells))
    if option == "rate":
        wanted = [number(word) for word in wanted]
    for word in wanted:
        if word not in there:
            raise InputError(f"table {table.name} has no {option} {word!r}: {instead(option, word, there)}")
    return [cell for cell in cells if value(cell) in wanted]


def instead(option: str, word: str, there: Iterable[str]) -> str:
    """What to write instead of a value that a table does not have."""
    if option == "rate":
        return f"there are: {', '.join(sorted(there, key=float))}"
    if option == "methods" and word in METHODS:
        return "any method goes with labelsieve table small and with labelsieve compare"
    return nearest(word, there)


def number(word: str) -> str:
    try:
        return f"{float(word):g}"
    except ValueError:
        raise InputError(f"--rate takes numbers such as 0.2,0.4, got {word!r}") from None


def check(form: str, save: Path | None, results: Path, seeds: int | None) -> None:
    """Refuse at once what would otherwise fail after hours."""
    refuse_unwritable(form, save)
    if seeds is not None and seeds < 1:
        raise InputError("seeds must be at least 1")
    if results != RESULTS and not results.is_dir():
        raise InputError(f"no folder {results} to search for records; leave out --results, or name one that is there")


def unshown(trial: Trial, found: str) -> str:
    """Why a trial is not shown, and whether it could be run."""
    reason = absent(trial)
    return f"{found}, and {reason}" if reason else f"{found}: without --show they are run"


def refuse_nothing(table: Table, trials: Sequence[Trial], missing: Sequence[Trial]) -> None:
    """Say so if nothing of what was asked is there or can be run."""
    reasons = {trial: absent(trial) for trial in missing}
    if {trial.identity for trial in trials} == {trial.identity for trial in missing} and all(reasons.values()):
        every = "; ".join(dict.fromkeys(filter(None, reasons.values())))
        raise InputError(f"nothing that was asked of table {table.name} is there or can be run: {every}")


def run_missing(
    trials: Sequence[Trial], known: Known, out: Path, where_to_run: dict[str, Any], at_once: int | None, on: str
) -> tuple[dict[Experiment, str], dict[str, int]]:
    """Run these; returns why those failed that did, and for how many runs each reason not to be there holds."""

    def here(experiment: Experiment, start: Path | None = None) -> Experiment:
        weights = experiment.weights and str(beside_data(experiment.weights))
        return replace(experiment, weights=weights, init=str(start) if start else None, **where_to_run)

    def run_these(experiments: Iterable[Experiment]) -> dict[Experiment, str]:
        once = list(dict.fromkeys(experiments))
        return run_all(once, out, at_once, on) if once else {}

    reasons = {trial: absent(trial) for trial in trials}
    ready = [trial for trial, reason in reasons.items() if reason is None]
    plain = [here(trial.experiment) for trial in ready if not trial.start]
    starts = {trial: start_folder(trial.start, known) for trial in ready if trial.start}
    first = [here(trial.start) for trial, found in starts.items() if trial.start and found is None]
    failed = run_these([*plain, *first])
    second = []
    for trial, found in starts.items():
        folder = found or folder_of(here(trial.start or trial.experiment), out)
        if (folder / "done").exists():
            second.append(here(trial.experiment, folder))
        else:
            reasons[trial] = "the run that they start from failed"
    failed |= run_these(second)
    counts = Counter([r for r in reasons.values() if r] + [f"failed: {reason}" for reason in failed.values()])
    return failed, dict(counts)


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
        return Document("", [Block("", plain_form(found))], ())
    shown = blocks(found, by_noise=form != "markdown")
    marks = any("difference" in row for block in shown for row in block.rows)
    notes = ["ours: mean ± standard error over n seeds", *([LEGEND] if marks else []), *table.notes]
    left_out = [f"not run: {count} of the runs; {reason}" for reason, count in why.items()]
    return Document(table.title, [*shown, *paired_blocks(found)], notes, left_out)
