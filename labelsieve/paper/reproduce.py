"""`labelsieve table`: run the missing trials of a table, and print our numbers next to the paper's."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from labelsieve.data.published import DATA_VARIABLE, PUBLISHED, locate_published
from labelsieve.errors import InputError, LabelsieveError, nearest
from labelsieve.files import DONE, refuse_no_folder
from labelsieve.methods import METHODS
from labelsieve.paper.comparison import LEGEND, CellResult, comparison_blocks, csv_form, measured_error, paired_blocks
from labelsieve.paper.tables import Cell, Table, small_table, tables
from labelsieve.runs.find import Identity, identity, known_runs
from labelsieve.runs.read import Run, read_run
from labelsieve.runs.spec import Experiment
from labelsieve.runs.tables import Block, Document, check_output, output
from labelsieve.runtime import best_device, best_precision
from labelsieve.sweep.sweep import folder_of
from labelsieve.sweep.watch import run_all

RESULTS = Path("results")  # committed records
Records = dict[Identity, Path]  # folders of finished runs
FILTERS: dict[str, Callable[[Cell], str]] = {
    "dataset": lambda cell: cell.experiment.data,
    "noise": lambda cell: cell.experiment.noise or "own",
    "rate": lambda cell: f"{cell.experiment.rate:g}",
    "methods": lambda cell: cell.experiment.method,
}


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
    **machine: Any,
) -> None:
    """Run the missing trials of a table and print the table.

    Args:
        name: A table of the paper, or "small".
        keep: Filters of the cells by option name (a key of FILTERS): wanted values separated by commas.
        seeds: Trials per cell; None for the table's own number.
        epochs: Epochs of the small table's runs.
        show: Only print; run nothing.
        out: Folder for new runs, searched for finished ones first.
        results: Folder of committed records, searched second.
        form: A key of runs.tables.FORMATS.
        save: File for the table; None for standard output.
        at_once, on: See sweep().
        machine: Device, precision and threads; see `placement`.
    """
    table = _named_table(name, epochs, _words(keep["methods"] or ""))
    cells = _chosen_cells(table, keep)
    _check_options(form, save, results, seeds)
    if not show:
        refuse_no_folder(out)
    trials = [Trial(cell, seed) for seed in range(table.seeds if seeds is None else seeds) for cell in cells]
    known = known_runs(out, results)
    missing = list({trial.identity: trial for trial in trials if trial.identity not in known}.values())
    failed: dict[Experiment, str] = {}
    reasons: dict[str, int] = {}
    if show:
        reasons = dict(Counter(_reason_not_shown(trial, f"no finished run in {out} or {results}") for trial in missing))
    elif missing:
        _refuse_if_nothing_runs(table, trials, missing)
        failed, reasons = _run_missing(missing, known, out, placement(**machine), at_once, on)
        known = known_runs(out, results)
    output(_table_document(table, cell_results(table, cells, trials, known), reasons, form), form, save)
    if failed:
        raise LabelsieveError(f"{len(failed)} runs failed; the reasons are printed above")


def placement(device: str, precision: str | None, threads: int) -> dict[str, Any]:
    """Return the fields of an experiment that define where it runs."""
    device = best_device() if device == "auto" else device
    return {"device": device, "precision": precision or best_precision(device), "threads": threads}


def cell_results(table: Table, cells: Sequence[Cell], trials: Sequence[Trial], known: Records) -> list[CellResult]:
    """Return the result of every cell, with the errors of its finished runs."""
    runs: dict[Cell, dict[int, Run]] = {cell: {} for cell in cells}
    for trial in trials:
        if trial.identity in known:
            runs[trial.cell][trial.seed] = read_run(known[trial.identity], with_tables=False)
    found = []
    for cell in cells:
        e = cell.experiment
        errors = {seed: measured_error(run, cell.measure) for seed, run in runs[cell].items()}
        found.append(CellResult(e.data, cell.row, e.noise, e.rate, errors, cell.published, table.digits, runs[cell]))
    return found


# ---- options


def _named_table(name: str, epochs: int | None, methods: Iterable[str] = ()) -> Table:
    """Return a table of the paper, or the small table with the given epochs and any further methods."""
    if name == "small":
        return small_table(epochs, [method for method in methods if method in METHODS])
    every = tables()
    if name not in every:
        raise InputError(f"there is no table {name!r} of results; there are: {', '.join([*every, 'small'])}")
    if epochs is not None:
        raise InputError("--epochs is only for the table small: the paper's tables define the epochs of their runs")
    return every[name]


def _chosen_cells(table: Table, keep: dict[str, str | None]) -> list[Cell]:
    """Return the cells that pass all filters."""
    cells = list(table.cells)
    for option, wanted in keep.items():
        if wanted is not None:
            if not _words(wanted):
                raise InputError(f"--{option} is empty; leave it out to keep all cells")
            cells = _filtered(table, cells, option, _words(wanted))
    if not cells:
        given = " ".join(f"--{option} {wanted}" for option, wanted in keep.items() if wanted is not None)
        raise InputError(f"table {table.name} has no cell with {given}")
    return cells


def _words(text: str) -> list[str]:
    """Split a list separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _filtered(table: Table, cells: Iterable[Cell], option: str, wanted: Sequence[str]) -> list[Cell]:
    """Return the cells with one of the wanted values."""
    value = FILTERS[option]
    there = set(map(value, table.cells))
    if option == "rate":
        wanted = [_number(word) for word in wanted]
    for word in wanted:
        if word not in there:
            raise InputError(f"table {table.name} has no {option} {word!r}: {_suggestion(option, word, there)}")
    return [cell for cell in cells if value(cell) in wanted]


def _suggestion(option: str, word: str, there: Iterable[str]) -> str:
    """Return what to write instead of a value that the table does not have."""
    if option == "rate":
        return f"there are: {', '.join(sorted(there, key=float))}"
    if option == "methods" and word in METHODS:
        return "use labelsieve table small or labelsieve compare, which take any method"
    return nearest(word, there)


def _number(word: str) -> str:
    try:
        return f"{float(word):g}"
    except ValueError:
        raise InputError(f"--rate takes numbers such as 0.2,0.4, got {word!r}") from None


def _check_options(form: str, save: Path | None, results: Path, seeds: int | None) -> None:
    """Raise InputError for options that would fail only after the runs."""
    check_output(form, save)
    if seeds is not None and seeds < 1:
        raise InputError("seeds must be at least 1")
    if results != RESULTS and not results.is_dir():
        raise InputError(f"there is no folder {results} of records; name another one with --results, or leave it out")


# ---- missing trials


def _run_missing(
    trials: Sequence[Trial], known: Records, out: Path, machine: dict[str, Any], at_once: int | None, on: str
) -> tuple[dict[Experiment, str], dict[str, int]]:
    """Run the trials, first those that others are fine-tuned from.

    Returns the reason of each failed run, and for each reason why trials are missing the number of them.
    """

    def placed(experiment: Experiment, start: Path | None = None) -> Experiment:
        weights = experiment.weights and str(_beside_data(experiment.weights))
        return replace(experiment, weights=weights, init=str(start) if start else None, **machine)

    def run_once(experiments: Iterable[Experiment]) -> dict[Experiment, str]:
        unique = list(dict.fromkeys(experiments))
        return run_all(unique, out, at_once, on) if unique else {}

    reasons = {trial: _reason_not_runnable(trial) for trial in trials}
    ready = [trial for trial, reason in reasons.items() if reason is None]
    plain = [placed(trial.experiment) for trial in ready if not trial.start]
    starts = {trial: _start_folder(trial.start, known) for trial in ready if trial.start}
    first = [placed(trial.start) for trial, found in starts.items() if trial.start and found is None]
    failed = run_once([*plain, *first])
    second = []
    for trial, found in starts.items():
        folder = found or folder_of(placed(trial.start or trial.experiment), out)
        if (folder / DONE).exists():
            second.append(placed(trial.experiment, folder))
        else:
            reasons[trial] = "the run that they start from failed"
    failed |= run_once(second)
    counts = Counter([r for r in reasons.values() if r] + [f"failed: {reason}" for reason in failed.values()])
    return failed, dict(counts)


def _start_folder(experiment: Experiment, known: Records) -> Path | None:
    """Return the folder of a finished run to fine-tune; committed records have no model and do not count."""
    folder = known.get(identity(experiment.as_dict()))
    return folder if folder and (folder / "model.safetensors").exists() else None


def _reason_not_runnable(trial: Trial) -> str | None:
    """Return which data or weights a trial lacks on this machine; None if it can run."""
    data = trial.experiment.data
    if data in PUBLISHED and not Path(data).exists():
        try:
            locate_published(data)
        except InputError as error:
            return str(error)
    weights = (trial.start or trial.experiment).weights
    if weights and not _beside_data(weights).exists():
        return f"no {_beside_data(weights)}: put torchvision's ImageNet weights of ResNet-50 there"
    return None


def _reason_not_shown(trial: Trial, reason: str) -> str:
    """Return why a trial is not in the table, and whether it can be run."""
    lacking = _reason_not_runnable(trial)
    return f"{reason}, and {lacking}" if lacking else f"{reason}; leave out --show to run them"


def _refuse_if_nothing_runs(table: Table, trials: Sequence[Trial], missing: Sequence[Trial]) -> None:
    """Raise InputError if no trial is finished and none can run."""
    reasons = {trial: _reason_not_runnable(trial) for trial in missing}
    if {trial.identity for trial in trials} == {trial.identity for trial in missing} and all(reasons.values()):
        every = "; ".join(dict.fromkeys(filter(None, reasons.values())))
        raise InputError(f"table {table.name} has no finished runs, and none can be run: {every}")


def _beside_data(name: str) -> Path:
    """Return the path of a file in the folder of published datasets."""
    return Path(os.environ.get(DATA_VARIABLE, "data")) / name


def _table_document(table: Table, found: Sequence[CellResult], reasons: dict[str, int], form: str) -> Document:
    """Return the table, the paired differences, and notes; for CSV only the table with one number per column."""
    if form == "csv":
        return Document("", [Block("", csv_form(found))], ())
    blocks = comparison_blocks(found, by_noise=form != "markdown")
    wide = any("difference" in row for block in blocks for row in block.rows)
    notes = ["ours: mean ± standard error over n seeds", *([LEGEND] if wide else []), *table.notes]
    missing = [f"{count} runs are missing: {reason}" for reason, count in reasons.items()]
    return Document(table.title, [*blocks, *paired_blocks(found)], notes, missing)
