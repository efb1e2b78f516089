"""`labelsieve results`: regenerate the tables and figures of docs/results.md from the records; nothing is trained.

The page is Markdown written by hand. Between `<!-- generated: NAME -->` and `<!-- end -->` stands a generated block,
where NAME is a key of BLOCKS. The text around the blocks is left alone; tests/paper/test_results.py checks its numbers.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError, LabelsieveError, nearest
from labelsieve.files import make_folder, write_atomically
from labelsieve.paper.comparison import (
    LEGEND,
    NOT_RUN,
    CellResult,
    comparison_blocks,
    dominant_first,
    format_difference,
    format_ours,
    format_paper,
    long_form,
    paired_blocks,
)
from labelsieve.paper.figures import DATASETS, DRAWN, PAPER_DATASETS, RATE, PointRuns, find_runs, points
from labelsieve.paper.reproduce import Records, Trial, cell_results
from labelsieve.paper.tables import NOISE_RATE, SL_BETA, Table, experiment, tables
from labelsieve.runs.find import Identity, identity, known_runs
from labelsieve.runs.read import Run, read_run
from labelsieve.runs.spec import Experiment
from labelsieve.runs.tables import UNKNOWN, Rows, interval, markdown, mean_and_error, pairs, plus_minus

NEAR = 1.5  # points: the largest difference from the paper's mean that counts as near, set before the runs
TRIALS = 3  # per cell, in the paper
ONE_PASS = "forward one"
NOT_AVAILABLE = ("tiny-imagenet", "animal10n", "clothing1m")  # datasets that could not be obtained
MARKS = (8, 9, 10, 11)  # figures whose marks or curves are runs with several seeds
FIGURES = "figures"  # folder next to the page
DRAWINGS = ((7, None), (3, None), (8, None), (9, None), (10, None), (11, None), (11, "cifar10"))
CAPTIONS = {
    3: "scores of single samples at the end of the warm-up, one class of one run",
    7: "the kinds of label noise",
    8: "best test error under pair noise",
    9: "best test error under symmetry noise",
    10: "best test error by λ",
    11: "correct labels among the selected samples, by epoch",
}
BLOCK = re.compile(r"(<!-- generated: (.*?) -->\n).*?(<!-- end -->)", re.S)


@dataclass(frozen=True)
class _TablePart:
    """The cells of one table on one dataset."""

    table: Table
    data: str
    trials: Sequence[Sequence[Trial]]  # of each cell
    cells: Sequence[CellResult]
    missing: int  # runs

    @property
    def started(self) -> bool:
        return any(cell.errors for cell in self.cells)


@dataclass(frozen=True)
class Drawing:
    """A figure and its runs."""

    number: int
    dataset: str | None  # None: the paper's
    found: list[PointRuns]

    @property
    def file(self) -> str:
        return f"figure-{self.number}" + (f"-{self.dataset}" if self.dataset else "") + ".svg"

    @property
    def caption(self) -> str:
        text = f"Figure {self.number}: {CAPTIONS[self.number]}"
        if self.dataset:
            papers = " and ".join(DATASETS[data] for data in PAPER_DATASETS[self.number])
            text += f", on {DATASETS[self.dataset]} (in the paper: {papers})"
        done = sum(bool(one.paths) for one in self.found)
        partly = f"; {done} of its {len(self.found)} experiments were run" if done < len(self.found) else ""
        return f"{text}{partly}."

    def svg(self) -> bytes:
        return DRAWN[self.number](self.found)["svg"]


@dataclass(frozen=True)
class Evidence:
    """All records, arranged for the page."""

    parts: Sequence[_TablePart]
    cells: Mapping[str, CellResult]  # of all tables, by name
    variants: Sequence[CellResult]  # runs that no table has, named by what they change
    runs: Sequence[Run]
    drawings: Sequence[Drawing]


def results(folder: Path, out: Path, check: bool) -> None:
    """Update the generated blocks and figures of the page `out` from the records in `folder`.

    A new page gets all blocks and no text. With `check`, nothing is written; a page out of date raises an error.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder} of records; name another one with --results")
    evidence = collect(folder)
    page = fill(out.read_text(encoding="utf-8") if out.exists() else EMPTY_PAGE, evidence, out)
    files = {out: page.encode()} | {out.parent / FIGURES / one.file: one.svg() for one in evidence.drawings}
    if check:
        stale = [str(path) for path, content in files.items() if not _is_current(path, content)]
        if stale:
            raise LabelsieveError(f"{', '.join(stale)} does not match the records; run labelsieve results")
        print(f"{out} matches the records")
        return
    for path, content in files.items():
        make_folder(path.parent)
        write_atomically(path, content)
    print(f"page: {out}, with {len(evidence.drawings)} figures")


def fill(page: str, evidence: Evidence, path: Path) -> str:
    """Return the page with every generated block replaced."""

    def block(match: re.Match[str]) -> str:
        opening, name, end = match.groups()
        if name not in BLOCKS:
            raise InputError(f"{path} has an unknown block {name!r}: {nearest(name, BLOCKS)}")
        return f"{opening}\n{BLOCKS[name](evidence)}\n\n{end}"

    filled, count = BLOCK.subn(block, page)
    if not count:
        raise InputError(f"{path} has no generated blocks; add <!-- generated: claims --> and <!-- end -->")
    return filled


def _is_current(path: Path, content: bytes) -> bool:
    """Return whether a file has this content; a figure by another version of matplotlib only has to exist."""
    if not path.is_file():
        return False
    there = path.read_bytes()
    return there == content or (path.suffix == ".svg" and matplotlib_version(there) != matplotlib_version(content))


def matplotlib_version(svg: bytes) -> bytes | None:
    found = re.search(rb"Matplotlib v([\w.+]+)", svg)
    return found and found[1]


# ---- reading the records


def collect(folder: Path) -> Evidence:
    """Read all records of the paper's experiments and of variants of them."""
    known = known_runs(folder)
    seeds = max([TRIALS, *(1 + int(spec["seed"]) for spec in map(dict, known) if spec["data"] in SL_BETA)])
    drawings = list(_drawings_of(folder, seeds))
    parts: list[_TablePart] = []
    cells: dict[str, CellResult] = {}
    in_tables: set[Identity] = set()
    for table in tables().values():
        for data in dict.fromkeys(cell.experiment.data for cell in table.cells):
            those = [cell for cell in table.cells if cell.experiment.data == data]
            by_cell = [[Trial(cell, seed) for seed in range(seeds)] for cell in those]
            trials = [trial for of_cell in by_cell for trial in of_cell]
            found = cell_results(table, those, trials, known)
            missing = {trial.identity for trial in trials if trial.seed < TRIALS} - known.keys()
            parts.append(_TablePart(table, data, by_cell, found, len(missing)))
            cells |= {cell.name: cell for cell in found if cell.name not in cells}
            in_tables |= {trial.identity for trial in trials if not trial.cell.variant}
    warmups = {identity(point.experiment.as_dict()) for point in points(3)}  # they end when the selection starts
    others = {each: path for each, path in known.items() if each not in in_tables and dict(each)["data"] in SL_BETA}
    variants = _variant_results({each: path for each, path in others.items() if each not in warmups}, cells)
    in_figures = {path for one in drawings for point in one.found for path in point.paths.values()}
    used = {known[each] for each in in_tables if each in known} | in_figures | set(others.values())
    return Evidence(parts, cells, variants, [read_run(path, with_tables=False) for path in sorted(used)], drawings)


def _drawings_of(folder: Path, seeds: int) -> Iterator[Drawing]:
    """Yield the figures that have at least one run or need none."""
    for number, dataset in DRAWINGS:
        found = find_runs(points(number, dataset), 1 if number == 3 else seeds, folder)
        if not found or any(one.paths for one in found):
            yield Drawing(number, dataset, found)


def _variant_results(known: Records, cells: Mapping[str, CellResult]) -> list[CellResult]:
    """Group runs that are in no table by data, noise, method and changed settings; sorted by name."""
    groups: dict[str, CellResult] = {}
    for each, path in sorted(known.items(), key=lambda item: int(dict(item[0])["seed"])):
        spec, run = dict(each), read_run(path, with_tables=False)
        plain = CellResult(spec["data"], spec["method"], spec["noise"], spec["rate"], {})
        cell = cells.get(plain.name)
        one = replace(plain, method=f"{plain.method}{_changes(each)}", published=cell.published if cell else None)
        before = groups.get(one.name, one)
        errors = {**before.errors, spec["seed"]: float(run.end["best"])}
        groups[one.name] = replace(one, errors=errors, runs={**before.runs, spec["seed"]: run})
    return [groups[name] for name in sorted(groups)]


def _changes(each: Identity) -> str:
    """Return the settings that differ from the paper's experiment of the same method: " (sampler independent)"."""
    spec, usual = dict(each), dict(identity(_paper_experiment_like(dict(each)).as_dict()))
    spec, usual = ({**one, **dict(one["options"]), "options": ()} for one in (spec, usual))
    different = sorted(name for name in spec.keys() | usual.keys() if spec.get(name) != usual.get(name))
    words = [f"{name} {spec[name]}" if name in spec else f"{name} by default" for name in different]
    return f" ({', '.join(words)})" if words else ""


def _paper_experiment_like(spec: Mapping[str, Any]) -> Experiment:
    """Return the paper's experiment with the data, method, noise and seed of a specification."""
    data, method, noise, rate, seed = (spec[name] for name in ("data", "method", "noise", "rate", "seed"))
    if noise or data in NOISE_RATE:
        return experiment(data, method, noise, rate, seed)
    return replace(experiment(data, method, "its own", rate, seed), noise=None)


# ---- the blocks


def _claims(evidence: Evidence) -> Rows:
    """Return a row per noise and pair of methods: the best error of the first minus that of its baseline."""
    rows = [["data", "noise", "pair", "paper", "ours (n)", "95% interval", "verdict"]]
    for found, method, base, differences in paired(evidence, "best"):
        first, second = found[method].published, found[base].published
        printed = round(first[0] - second[0], 2) if first and second else None
        papers = "" if printed is None else f"{printed:+.1f}"
        ours = f"{plus_minus(differences, 2, '+')} ({len(differences)})"
        ends, where = _format_interval(differences), (found[method].data, found[method].column)
        rows.append([*where, f"{method} minus {base}", papers, ours, ends, verdict(differences, printed)])
    return rows


def _claims_at_the_end(evidence: Evidence) -> Rows:
    """Return the same differences in the last epoch, and in the mean of the last ten."""
    ends = (("last", "last epoch"), ("last_ten", "mean of the last ten epochs"))
    rows = [["data", "noise", "pair", *(word for _, title in ends for word in (title, "95% interval"))]]
    for of_last, of_ten in zip(*(paired(evidence, measure) for measure, _ in ends), strict=True):
        found, method, base, _ = of_last
        words = [word for *_, each in (of_last, of_ten) for word in (plus_minus(each, 2, "+"), _format_interval(each))]
        rows.append([found[method].data, found[method].column, f"{method} minus {base}", *words])
    return rows


def paired(evidence: Evidence, measure: str) -> Iterator[tuple[Mapping[str, CellResult], str, str, list[float]]]:
    """Yield the cells of a noise by method, two methods, and their differences in a measure, seed by seed."""
    groups: dict[tuple[str, str], dict[str, CellResult]] = {}
    for cell in sorted(evidence.cells.values(), key=dominant_first):
        groups.setdefault((cell.data, cell.column), {})[cell.method] = cell
    for found in groups.values():
        for method, base, differences in pairs({name: _errors(cell, measure) for name, cell in found.items()}):
            yield found, method, base, differences


def _errors(cell: CellResult, measure: str) -> Mapping[int, float]:
    """Return the errors of a cell by seed: "best", "last" or "last_ten"."""
    if measure == "best":
        return cell.errors
    return {seed: float(run.end[measure]) for seed, run in cell.runs.items()}


def _format_interval(values: Sequence[float]) -> str:
    """Format the 95% interval of the mean: -3.10 to -0.23; empty for a single value."""
    return " to ".join(f"{end:+.2f}" for end in interval(values)) if len(values) > 1 else ""


def verdict(differences: Sequence[float], printed: float | None) -> str:
    """Return whether penalty labels are certainly better or worse, and whether the paper prints the same sign."""
    if printed is None:
        return ""
    if len(differences) < 2:
        return "one seed"
    low, high = interval(differences)
    if low <= 0 <= high:
        return f"less than {NEAR} apart" if low > -NEAR and high < NEAR else "no difference shown"
    if low > 0:
        return "worse"
    return "holds" if printed < 0 else "differs"


def _numbers(evidence: Evidence) -> Rows:
    """Return a row per cell that was run, with the printed error and whether our mean is near it."""
    cells = sorted((cell for cell in evidence.cells.values() if cell.difference is not None), key=dominant_first)
    header, *rows = long_form(cells)
    near = ["yes" if abs(cell.difference or 0) <= NEAR else "no" for cell in cells]
    return [[*header, "near"], *([*row, word] for row, word in zip(rows, near, strict=True))]


def _what_was_run(evidence: Evidence) -> str:
    """Return the number of runs by data, device and versions."""
    if not evidence.runs:
        return "There are no runs yet."
    header = ["data", "device", "precision", "torch", "Python", "labelsieve", "runs"]
    rows = [[*place, str(count)] for place, count in sorted(Counter(map(_place_of, evidence.runs)).items())]
    lengths = Counter(run.spec["epochs"] for run in evidence.runs)
    epochs = ", ".join(f"{count} of {length} epochs" for length, count in sorted(lengths.items(), reverse=True))
    count = len(evidence.runs)
    return f"{count} finished {'run' if count == 1 else 'runs'}, {epochs}:\n\n{markdown([header, *rows])}"


def _place_of(run: Run) -> tuple[str, ...]:
    """Return data, device, precision and versions of a run."""
    versions = [run.versions.get(name, "?") for name in ("torch", "python", "labelsieve")]
    return (run.spec["data"], run.start.get("device", "?"), run.spec.get("precision", "?"), *versions)


def _coverage(evidence: Evidence) -> Rows:
    """Return how many cells of every table and figure have how many seeds, for the data that is available."""
    groups: dict[tuple[str, str], list[set[Identity]]] = {}  # of each cell, the trials that have no run
    for part in evidence.parts:
        for trials, cell in zip(part.trials, part.cells, strict=True):
            rate = trials[0].experiment.rate
            column = "" if part.table.name != "2" else ", 40% noise" if rate == RATE else ", other rates"
            lacking = {trial.identity for trial in trials[:TRIALS] if trial.seed not in cell.errors}
            groups.setdefault((f"table {part.table.name}{column}", part.data), []).append(lacking)
    for one in (one for one in evidence.drawings if one.number in MARKS and not one.dataset):
        for point in one.found:
            wanted = point.point.experiment
            seeds = [seed for seed in range(TRIALS) if seed not in point.paths]
            lacking = {identity(replace(wanted, seed=seed).as_dict()) for seed in seeds}
            groups.setdefault((f"figure {one.number}", wanted.data), []).append(lacking)
    rows = [["table or figure", "data", "cells", f"{TRIALS} seeds", "fewer", "none", "runs missing"]]
    for (name, data), cells in sorted(groups.items(), key=lambda item: _in_order(item[0][0])):
        if data not in NOT_AVAILABLE:
            counts = [len(lacking) for lacking in cells]
            whole, none = counts.count(0), counts.count(TRIALS)
            numbers = (len(cells), whole, len(cells) - whole - none, none, len(set().union(*cells)))
            rows.append([name, data, *map(str, numbers)])
    return rows


def _in_order(name: str) -> tuple[bool, int, str]:
    """Return a key that sorts tables and figures by number, tables first, and columns by name."""
    return name.startswith("figure"), int(re.findall(r"\d+", name)[0]), name


def _not_run(evidence: Evidence) -> str:
    """Return a line per table and dataset without any run."""
    lines = []
    for part in (part for part in evidence.parts if not part.started):
        reason = "the data is not available" if part.data in NOT_AVAILABLE else "not run yet"
        lines.append(f"- table {part.table.name}, {part.data}: {reason}; {part.missing} runs")
    return "\n".join(lines) or "Every table has runs on every dataset."


def _all_tables(evidence: Evidence) -> str:
    """Return the tables that have runs, one per dataset, with paired differences and notes."""
    texts = [f"- ours: mean ± standard error over (n) seeds; {UNKNOWN}: {NOT_RUN}\n- {LEGEND}"]
    for part in (part for part in evidence.parts if part.started):
        texts.append(f"### {part.table.title.replace(' of the paper', '')}: {part.data}")
        for block in [*comparison_blocks(part.cells, by_noise=False), *paired_blocks(part.cells)]:
            texts += [block.title] if block.title not in ("", part.data) else []
            texts.append(markdown([[UNKNOWN if cell == NOT_RUN else cell for cell in row] for row in block.rows]))
        notes = [*part.table.notes, *([f"{part.missing} runs are missing"] if part.missing else [])]
        texts += ["\n".join(f"- {note}" for note in notes)] if notes else []
    return "\n\n".join(texts)


def _endings(evidence: Evidence) -> Rows:
    """Return best and last error, precision of the selection and classes given up of every cell and variant."""
    header = ["data", "noise", "method", "best (n)", "last", "last - best", "kept clean"]
    rows = [[*header, "epochs with a class given up", "classes given up at the end"]]
    for cell in _once([*evidence.cells.values(), *evidence.variants]):
        best, last = ([float(run.end[name]) for run in cell.runs.values()] for name in ("best", "last"))
        shares = [run.epochs[-1].get("precision") for run in cell.runs.values()]
        precision = plus_minus([100 * share for share in shares if share is not None], 2)
        gap = mean_and_error(last)[0] - mean_and_error(best)[0]
        rows.append([cell.data, cell.column, cell.method, f"{plus_minus(best, 2)} ({len(best)})", plus_minus(last, 2)])
        rows[-1] += [f"{gap:+.2f}", precision, epochs_given_up(cell), given_up_at_end(cell)]
    return rows


def _once(cells: Iterable[CellResult]) -> list[CellResult]:
    """Return the cells that have runs, sorted by data and noise; of cells with the same runs the first."""
    first: dict[str, CellResult] = {}
    for cell in cells:
        if cell.runs:
            first.setdefault(str(sorted(sorted(run.spec.items()) for run in cell.runs.values())), cell)
    return sorted(first.values(), key=lambda cell: (cell.data, cell.column))


def classes_given_up(run: Run, row: Mapping[str, Any]) -> int:
    """Count the classes of which an epoch kept less than half of the share that is kept of all samples."""
    least = (1 - run.spec["noise_rate"]) / 2
    return sum(share < least for share in row.get("kept") or [])


def epochs_given_up(cell: CellResult) -> str:
    """Format the epochs in which a class was given up: seed 2 in 37 of the epochs 26 to 95 (lowest error 20.80)."""
    found = []
    for seed, run in cell.runs.items():
        epochs = [number for number, row in enumerate(run.epochs, 1) if classes_given_up(run, row)]
        if epochs:
            lowest = min(run.epochs[number - 1]["test_error"] for number in epochs)
            first, last = epochs[0], epochs[-1]
            span = f"epochs {first} to {last}" if first < last else f"epoch {first}"
            if len(epochs) <= last - first:
                span = f"{len(epochs)} of the {span}"
            found.append(f"seed {seed} in {span} (lowest error {lowest:.2f})")
    return "; ".join(found)


def given_up_at_end(cell: CellResult) -> str:
    """Format the number of classes given up in the last epoch, seed by seed: 4, 0 of 100."""
    ends = [(run, run.epochs[-1]) for run in cell.runs.values()]
    counts = ", ".join(str(classes_given_up(run, row)) for run, row in ends)
    return f"{counts} of {len(ends[0][1].get('kept') or [])}"


def _variants(evidence: Evidence) -> Rows:
    """Return the effect of each changed setting on the best error, seed by seed."""
    header = ["data", "method", "noise", "ours (n)", "minus the unchanged, seed by seed", "mean", "95% interval"]
    rows = [[*header, "paper", "ours - paper"]]
    every = {**evidence.cells, **{variant.name: variant for variant in evidence.variants}}
    for variant in evidence.variants:
        unchanged = every.get(_unchanged_name(variant.name))
        before = unchanged.errors if unchanged else {}
        effects = [error - before[seed] for seed, error in variant.errors.items() if seed in before]
        seeds = ", ".join(f"{effect:+.2f}" for effect in effects)
        mean = plus_minus(effects, 2, "+") if effects else ""
        rows.append([variant.data, variant.method, variant.column, format_ours(variant), seeds, mean])
        rows[-1] += [_format_interval(effects), format_paper(variant), format_difference(variant)]
    return rows


def _aligned(evidence: Evidence) -> Rows:
    """Return the effect of aligned predictions on the best error and on the classes that are given up."""
    header = [
        "data",
        "noise",
        "method",
        "unchanged (n)",
        "aligned (n)",
        "aligned minus unchanged, seed by seed",
        "mean",
    ]
    rows = [[*header, "95% interval", "epochs with a class given up"]]
    for aligned in evidence.variants:
        method, _, change = aligned.method.partition(" (")
        unchanged = evidence.cells.get(replace(aligned, method=method).name)
        if change != "align True)" or unchanged is None:
            continue
        seeds = sorted(aligned.errors.keys() & unchanged.errors.keys())
        effects = [aligned.errors[seed] - unchanged.errors[seed] for seed in seeds]
        rows.append([aligned.data, aligned.column, method, format_ours(unchanged), format_ours(aligned)])
        rows[-1] += [", ".join(f"{effect:+.2f}" for effect in effects), plus_minus(effects, 2, "+")]
        counts = [sum(_epochs_with_loss(cell.runs[seed]) for seed in seeds) for cell in (unchanged, aligned)]
        rows[-1] += [_format_interval(effects), f"{counts[0]} unchanged, {counts[1]} aligned"]
    return rows


def _epochs_with_loss(run: Run) -> int:
    """Count the epochs in which a class was given up."""
    return sum(classes_given_up(run, row) > 0 for row in run.epochs)


def _unchanged_name(name: str) -> str:
    """Return the name of the runs that a variant is compared with: those with one pass if it has other changes too."""
    usual, _, changed = name.partition(" (")
    return f"{usual} ({ONE_PASS})" if ONE_PASS in changed and changed != f"{ONE_PASS})" else usual


def _figures(evidence: Evidence) -> str:
    """Return the figures as images with captions."""
    return "\n\n".join(f"![{one.caption}]({FIGURES}/{one.file})\n\n{one.caption}" for one in evidence.drawings)


def _as_block(rows_of: Callable[[Evidence], Rows]) -> Callable[[Evidence], str]:
    """Make a block of a function that returns rows."""
    return lambda evidence: markdown(rows) if (rows := rows_of(evidence))[1:] else "No runs yet."


BLOCKS: dict[str, Callable[[Evidence], str]] = {
    "claims": _as_block(_claims),
    "claims at the end": _as_block(_claims_at_the_end),
    "numbers": _as_block(_numbers),
    "aligned": _as_block(_aligned),
    "coverage": _as_block(_coverage),
    "runs": _what_was_run,
    "not run": _not_run,
    "tables": _all_tables,
    "endings": _as_block(_endings),
    "variants": _as_block(_variants),
    "figures": _figures,
}
EMPTY_PAGE = "# Results\n\n" + "\n".join(f"<!-- generated: {name} -->\n<!-- end -->\n" for name in BLOCKS)
