"""results: the page about all committed records, and its figures; or whether they are what they would be now."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError, LabelsieveError
from labelsieve.experiments.cell import Cell, Table
from labelsieve.experiments.figure import DRAWN, look_up
from labelsieve.experiments.figure import Known as Mark
from labelsieve.experiments.matching import Identity, identity, known_runs
from labelsieve.experiments.paper import NOISE_RATE, SL_BETA, experiment, tables
from labelsieve.experiments.paper_figures import DATASETS, USUAL, points
from labelsieve.experiments.reproduce import Known, Trial, entries
from labelsieve.experiments.spec import Experiment
from labelsieve.files import write_atomically
from labelsieve.report.account import ACCOUNT
from labelsieve.report.beside import Entry
from labelsieve.report.facts import Outcome, Outcomes
from labelsieve.report.records import Run, read_run
from labelsieve.report.results_page import Part, Picture, results_page

FIGURES = "figures"  # folder beside the page
DRAWINGS = ((7, None), (3, None), (8, None), (9, None), (10, None), (11, None), (11, "cifar10"))
CAPTIONS = {
    3: "the scores of single samples at the end of the warm-up, one class of one run",
    7: "the kinds of noise as they are drawn here",
    8: "best test error under pair noise",
    9: "best test error under symmetry noise",
    10: "best test error by λ",
    11: "right labels among the selected samples, epoch by epoch",
}
NOT_AT_HAND = ("tiny-imagenet", "animal10n", "clothing1m")
TRIALS = 3  # the paper's


@dataclass(frozen=True)
class Drawing:
    """A figure and the runs that there are of it."""

    number: int
    dataset: str | None  # None: the paper's
    marks: list[Mark]

    @property
    def file(self) -> str:
        return f"figure-{self.number}" + (f"-{self.dataset}" if self.dataset else "") + ".svg"

    @property
    def caption(self) -> str:
        text = f"Figure {self.number}: {CAPTIONS[self.number]}"
        if self.dataset:
            papers = " and ".join(DATASETS[data] for data in USUAL[self.number])
            text += f", on {DATASETS[self.dataset]} (the paper's is of {papers})"
        there = sum(bool(mark.paths) for mark in self.marks)
        parts = f"; of its {len(self.marks)} experiments {there} were run" if there < len(self.marks) else ""
        return f"{text}{parts}."

    def svg(self) -> bytes:
        return DRAWN[self.number](self.marks)["svg"]


def results(folder: Path, out: Path, check: bool) -> None:
    """Write the page and its figures, or fail if those that are there are not what would be written."""
    if not folder.is_dir():
        raise InputError(f"no folder {folder} with records: name another with --results")
    text, drawings = page_of(folder)
    files = {out: text.encode()} | {out.parent / FIGURES / one.file: one.svg() for one in drawings}
    if check:
        stale = [str(path) for path, content in files.items() if not current(path, content)]
        if stale:
            raise LabelsieveError(f"{', '.join(stale)}: not what the records give; run labelsieve results and commit")
        print(f"{out} is what the records give")
    else:
        write(files)
        print(f"page: {out}, with {len(drawings)} figures")


def write(files: dict[Path, bytes]) -> None:
    for path, content in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {path.parent}: {error.strerror}") from error
        write_atomically(path, content)


def current(path: Path, content: bytes) -> bool:
    """Whether a file holds this; a figure of another version of matplotlib only has to be there."""
    if not path.is_file():
        return False
    there = path.read_bytes()
    return there == content or (path.suffix == ".svg" and drawn_by(there) != drawn_by(content))


def drawn_by(svg: bytes) -> bytes | None:
    found = re.search(rb"Matplotlib v([\w.+]+)", svg)
    return found and found[1]


def page_of(folder: Path) -> tuple[str, list[Drawing]]:
    """The page and the figures that belong to it."""
    known = known_runs(folder)
    seeds = trials_of(known)
    drawings = list(drawings_of(folder, seeds))
    parts: list[Part] = []
    outcomes: dict[str, Outcome] = {}
    used: set[Identity] = set()
    for table in tables().values():
        for data in dict.fromkeys(cell.experiment.data for cell in table.cells):
            cells = [cell for cell in table.cells if cell.experiment.data == data]
            trials = [Trial(cell, seed) for cell in cells for seed in range(seeds)]
            found = outcomes_of(table, cells, trials, known)
            parts.append(part_of(table, data, found, missing(trials, known)))
            outcomes |= {one.name: one for one in found if one.name not in outcomes}
            used |= {trial.identity for trial in trials if not trial.cell.variant}
    early = {identity(point.experiment.as_dict()) for point in points(3)}  # they end when the selecting begins
    rest = {each: path for each, path in known.items() if each not in used and dict(each)["data"] in SL_BETA}
    others = other_outcomes({each: path for each, path in rest.items() if each not in early}, outcomes)
    outcomes |= {one.name: one for one in others}
    of_figures = {path for one in drawings for mark in one.marks for path in mark.paths.values()}
    of_tables = {known[each] for each in used if each in known}
    runs = [cached_run(path) for path in sorted(of_tables | of_figures | set(rest.values()))]
    pictures = [Picture(f"{FIGURES}/{one.file}", one.caption) for one in drawings]
    account = ACCOUNT.read_text(encoding="utf-8")
    return results_page(parts, outcomes, others, runs, pictures, account), drawings


@cache
def cached_run(path: Path) -> Run:
    return read_run(path, with_tables=False)


def trials_of(known: Known) -> int:
    """The most trials that any of the paper's experiments has, three at least."""
    fields = map(dict, known)
    return max(TRIALS, *(1 + int(one["seed"]) for one in fields if one["data"] in SL_BETA), 0)


def outcomes_of(table: Table, cells: list[Cell], trials: list[Trial], known: Known) -> list[Outcome]:
    """Every cell with its runs."""
    runs: dict[Cell, dict[int, Run]] = {cell: {} for cell in cells}
    for trial in trials:
        if trial.identity in known:
            runs[trial.cell][trial.seed] = cached_run(known[trial.identity])
    found = entries(table, cells, trials, known)
    return [Outcome(entry, runs[cell]) for cell, entry in zip(cells, found, strict=True)]


def missing(trials: Iterable[Trial], known: Known) -> int:
    """How many of the paper's trials are not there."""
    return len({trial.identity for trial in trials if trial.seed < TRIALS} - known.keys())


def part_of(table: Table, data: str, found: list[Outcome], missing: int) -> Part:
    why = "its data is not at hand" if data in NOT_AT_HAND else "not run yet"
    title = table.title.replace(" of the paper", "")
    return Part(table.name, title, data, [one.entry for one in found], missing, table.notes, why)


def drawings_of(folder: Path, seeds: int) -> Iterator[Drawing]:
    """The figures of which there is a run, or that need none."""
    for number, dataset in DRAWINGS:
        marks = look_up(points(number, dataset), 1 if number == 3 else seeds, folder)
        if not marks or any(mark.paths for mark in marks):
            yield Drawing(number, dataset, marks)


def other_outcomes(known: Known, outcomes: Outcomes) -> list[Outcome]:
    """Runs that no table has, named by what they do differently."""
    groups: dict[str, Outcome] = {}
    for each, path in known.items():
        fields = dict(each)
        entry = Entry(fields["data"], fields["method"], fields["noise"], fields["rate"], {})
        cell = outcomes.get(Outcome(entry, {}).name)
        run = cached_run(path)
        there = replace(
            entry,
            method=" ".join(filter(None, [entry.method, changes(each)])),
            errors={fields["seed"]: float(run.end["best"])},
            published=cell.entry.published if cell else None,
        )
        one = Outcome(there, {fields["seed"]: run})
        before = groups.get(one.name, one)
        errors = {**before.entry.errors, **there.errors}
        groups[one.name] = Outcome(replace(there, errors=errors), {**before.runs, **one.runs})
    return [groups[name] for name in sorted(groups)]


def changes(each: Identity) -> str:
    """What an experiment does differently from the paper's with the same data, noise, method and seed, in brackets."""
    fields, usual = dict(each), dict(identity(usual_for(dict(each)).as_dict()))
    fields, usual = ({**one, **dict(one["options"]), "options": ()} for one in (fields, usual))
    different = sorted(name for name in fields.keys() | usual.keys() if fields.get(name) != usual.get(name))
    words = [f"{name} {fields[name]}" if name in fields else f"{name} by default" for name in different]
    return f"({', '.join(words)})" if words else ""


def usual_for(fields: dict[str, Any]) -> Experiment:
    data, method, noise, rate, seed = (fields[name] for name in ("data", "method", "noise", "rate", "seed"))
    if noise or data in NOISE_RATE:
        return experiment(data, method, noise, rate, seed)
    return replace(experiment(data, method, "its own", rate, seed), noise=None)
