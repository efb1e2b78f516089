"""`labelsieve figure`: the runs behind the paper's figures 3, 7, 8, 9, 10 and 11, and the figures drawn from them.

Figure 3 shows samples that are labelled as the fifth class (e^5 in the paper, counted from 1). In the paper their wrong
labels come from class 6; here class k is mislabelled as k + 1, so they come from class 4. Its runs are the first epochs
of the paper's protocol, up to the end of the warm-up.

λ = 0 in figure 10 and Criteria_OL in figure 11 are MentorNet, λ = 1 and Criteria_ALL are MentorNet-Prop: these points
share the runs of figures 8 and 9. draw.py does the drawing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from labelsieve.data.published import PUBLISHED, locate_published
from labelsieve.errors import InputError, LabelsieveError
from labelsieve.files import DONE, make_folder, refuse_no_folder, write_atomically
from labelsieve.noise import transition
from labelsieve.paper import draw
from labelsieve.paper.draw import Pictures
from labelsieve.paper.reproduce import placement
from labelsieve.paper.tables import COLUMNS, SL_BETA, TABLE_2, Published
from labelsieve.paper.tables import experiment as paper_experiment
from labelsieve.runs.find import identity, known_runs
from labelsieve.runs.folder import scores_name
from labelsieve.runs.read import Run, read_run, read_scores
from labelsieve.runs.spec import Experiment, experiment_for
from labelsieve.sweep.watch import run_all, title

FIGURES = (3, 7, 8, 9, 10, 11)
DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
    "fashion": "Fashion-MNIST",  # not in the paper: to try a figure on the embedded data
}
PAPER_DATASETS = {3: ("cifar10",), 8: tuple(TABLE_2), 9: tuple(TABLE_2), 10: ("cifar100",), 11: ("cifar100",)}
SERIES = {"default": "Default", "mentornet": "MentorNet", "mentornet-prop": "MentorNet-Prop"}
LAMBDAS = (0.0, 0.5, 1.0, 1.5, 2.0)
RATE = 0.4  # of figures 3, 10 and 11
OBSERVED, DOMINANT = 4, 3  # classes of figure 3, counted from 0
MIXED = "mixed:0.6"  # of 40%: 24% from the next class, 16% from the others
NOISES_3 = {"pair": "pair, 40% from class 4", MIXED: "mixed, 24% from class 4, 16% from the others"}
SHOWN_3 = 1250  # samples of all classes in figure 3: the paper shows every 40th of CIFAR-10
CRITERIA_11: dict[str, tuple[str, str | None]] = {
    "Criteria_OL": ("mentornet", None),
    "Criteria_PL": ("mentornet", "pl"),
    "Criteria_ALL": ("mentornet-prop", None),
}
# Approximate percentages that the paper's text gives for figure 11 (CIFAR-100).
TEXT_11 = {
    "pair": {"Criteria_OL": 70.0, "Criteria_PL": 85.0, "Criteria_ALL": 92.0},
    "symmetry": {"Criteria_OL": 92.0, "Criteria_PL": 60.0},
}


@dataclass(frozen=True)
class _Point:
    """A mark or a curve of a figure and the experiment behind it."""

    panel: str
    series: str
    x: float
    experiment: Experiment  # with seed 0
    published: Published | None = None


@dataclass(frozen=True)
class PointRuns:
    """A point with its finished runs."""

    point: _Point
    paths: dict[int, Path]  # by seed

    def runs(self) -> list[Run]:
        return [read_run(path) for path in self.paths.values()]


def reproduce_figure(
    number: int,
    dataset: str | None,
    seeds: int,
    *,
    show: bool,
    out: Path,
    results: Path,
    save: Path | None,
    at_once: int | None,
    on: str,
    **machine: Any,
) -> None:
    """Run the missing trials of a figure and draw it from all finished runs.

    Args:
        number: One of FIGURES.
        dataset: A key of DATASETS; None for the paper's datasets.
        seeds: Runs per point; figure 3 always uses one.
        save: Folder for the pictures; None for `out`.
        show, out, results, at_once, on, machine: As in `reproduce`.
    """
    if seeds < 1:
        raise InputError("seeds must be at least 1")
    seeds = 1 if number == 3 else seeds
    wanted = points(number, dataset)
    if save is not None:
        refuse_no_folder(save, "--save")
    if save is None or not show:
        refuse_no_folder(out)
    failure = None
    if not show:
        missing = _missing_experiments(find_runs(wanted, seeds, out, results), seeds)
        failure = _train([replace(each, **placement(**machine)) for each in missing], out, at_once, on)
    found = find_runs(wanted, seeds, out, results)
    missing = _missing_experiments(found, seeds)
    every = seeds * len(wanted)
    if every and len(missing) == every:
        raise failure or InputError(f"no finished run of figure {number} in {out} or {results}: leave out --show")
    name = f"figure-{number}-{dataset}" if dataset and wanted else f"figure-{number}"
    _write_pictures(DRAWN[number](found), save or out, name)
    if missing:
        print(f"{len(missing)} of {every} runs are missing, such as {title(missing[0])}")
    if failure:
        raise failure


def points(number: int, dataset: str | None = None) -> list[_Point]:
    """Return every point of a figure, on the paper's datasets or on another one."""
    if number not in FIGURES:
        raise InputError(f"there is no figure {number} to reproduce: there are {', '.join(map(str, FIGURES))}")
    if dataset is not None and dataset not in DATASETS:
        raise InputError(f"unknown dataset {dataset!r} for a figure: there are {', '.join(DATASETS)}")
    figure_9 = partial(_figure_8, noise="symmetry")
    every: dict[int, Callable[[str], Iterator[_Point]]]
    every = {3: _figure_3, 8: _figure_8, 9: figure_9, 10: _figure_10, 11: _figure_11}
    datasets = (dataset,) if dataset else PAPER_DATASETS.get(number, ())
    return [point for data in datasets for point in every[number](data)] if number in every else []


def find_runs(wanted: list[_Point], seeds: int, *roots: Path) -> list[PointRuns]:
    """Return every point with its finished runs below the given folders."""
    epochs = {epoch for point in wanted for epoch in point.experiment.scores}
    there = known_runs(*roots, holding=scores_name(epochs.pop()) if epochs else DONE)
    found = []
    for point in wanted:
        every = {seed: identity(replace(point.experiment, seed=seed).as_dict()) for seed in range(seeds)}
        found.append(PointRuns(point, {seed: there[each] for seed, each in every.items() if each in there}))
    return found


# ---- the points of each figure


def _figure_3(data: str) -> Iterator[_Point]:
    """Yield the runs whose scores at the end of the warm-up are shown."""
    for noise, panel in NOISES_3.items():
        whole = _protocol(data, "mentornet-prop", noise, RATE)
        short = replace(whole, epochs=whole.warmup + 1, drops=(), scores=(whole.warmup,))
        yield _Point(panel, "", 0.0, short)


def _figure_8(data: str, noise: str = "pair") -> Iterator[_Point]:
    """Yield the errors over noise rates."""
    for method, name in SERIES.items():
        for rate in (rate for kind, rate in COLUMNS if kind == noise):
            run, printed = _protocol(data, method, noise, rate), _printed_error(data, method, noise, rate)
            yield _Point(DATASETS[data], name, 100 * rate, run, printed)


def _figure_10(data: str) -> Iterator[_Point]:
    """Yield the errors over λ."""
    known = {0.0: "mentornet", 1.0: "mentornet-prop"}
    for noise in ("pair", "symmetry"):
        for lam in LAMBDAS:
            method = known.get(lam, "mentornet-prop")
            run = _protocol(data, method, noise, RATE, options=() if lam in known else (("lam", lam),))
            printed = _printed_error(data, method, noise, RATE) if lam in known else None
            yield _Point(DATASETS[data], f"{noise}, 40%", lam, run, printed)


def _figure_11(data: str) -> Iterator[_Point]:
    """Yield the precision of the selection over epochs."""
    for noise in ("pair", "symmetry"):
        for name, (method, criterion) in CRITERIA_11.items():
            run = _protocol(data, method, noise, RATE, criterion=criterion)
            about = TEXT_11[noise].get(name) if data == "cifar100" else None
            yield _Point(f"{noise}, 40%", name, 0.0, run, None if about is None else (about, None))


def _protocol(data: str, method: str, noise: str, rate: float, **changes: Any) -> Experiment:
    """Return a run of the paper's protocol on its datasets, and with the dataset's own settings on others."""
    if data in SL_BETA:
        return replace(paper_experiment(data, method, noise, rate), **changes)
    return experiment_for(data, method=method, noise=noise, rate=rate, noise_rate=rate, **changes)


def _printed_error(data: str, method: str, noise: str, rate: float) -> Published | None:
    """Return the error printed in table 2."""
    if data not in TABLE_2:
        return None
    error, spread = TABLE_2[data][method].split(", ")[COLUMNS.index((noise, rate))].split()
    return float(error), float(spread)


# ---- missing runs


def _missing_experiments(found: list[PointRuns], seeds: int) -> list[Experiment]:
    """Return the experiments without a finished run."""
    return [replace(one.point.experiment, seed=seed) for one in found for seed in range(seeds) if seed not in one.paths]


def _train(experiments: list[Experiment], out: Path, at_once: int | None, on: str) -> LabelsieveError | None:
    """Train the experiments; return the error if runs failed, so that the others can still be drawn."""
    for data in sorted({experiment.data for experiment in experiments} & set(PUBLISHED)):
        locate_published(data)  # raises if the data is not on this machine
    if not experiments:
        return None
    print(f"training {len(experiments)} runs in {out}", flush=True)
    failed = run_all(experiments, out, at_once, on)
    if not failed:
        return None
    return LabelsieveError(f"{len(failed)} of {len(experiments)} runs failed; the reasons are printed above")


# ---- drawing


def _write_pictures(pictures: Pictures, folder: Path, name: str) -> None:
    make_folder(folder)
    for ending, content in pictures.items():
        write_atomically(folder / f"{name}.{ending}", content)
    print(f"pictures: {folder / name}.{{{','.join(pictures)}}}")


def by_panel(found: list[PointRuns]) -> dict[str, dict[str, list[PointRuns]]]:
    """Group points by panel and series. Panel titles end with the number of seeds; panels without runs are left out."""
    panels: dict[str, dict[str, list[PointRuns]]] = {}
    for one in found:
        panels.setdefault(one.point.panel, {}).setdefault(one.point.series, []).append(one)
    every = {name: [one for series in panel.values() for one in series] for name, panel in panels.items()}
    return {f"{name}; {count_seeds(every[name])}": panels[name] for name in panels if any(o.paths for o in every[name])}


def count_seeds(found: list[PointRuns]) -> str:
    """Format the number of seeds: 3 seeds, 1 to 3 seeds, one seed."""
    counts = sorted({len(one.paths) for one in found if one.paths})
    if counts == [1]:
        return "one seed"
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def spread_note(found: list[PointRuns]) -> str:
    """Return the part of a title that explains error bars and bands, if there are any."""
    return "\nmean and standard error over the seeds" if any(len(one.paths) > 1 for one in found) else ""


def _draw_figure_3(found: list[PointRuns]) -> Pictures:
    run = found[0].point.experiment
    kept = {
        one.point.panel: read_scores(path / scores_name(run.scores[0])) for one in found for path in one.paths.values()
    }
    panels = {
        name: draw.Scored(scores, OBSERVED, DOMINANT, 1 - RATE, max(1, len(scores["label"]) // SHOWN_3))
        for name, scores in kept.items()
    }
    after = f"after epoch {run.scores[0]}; right of the dashed line is selected"
    return draw.draw_scores(panels, f"{DATASETS[run.data]}: samples labelled as class {OBSERVED + 1}, {after}")


def _draw_figure_7(found: list[PointRuns]) -> Pictures:
    kinds = {"pair, 40%": "pair", "symmetry, 40%": "symmetry", "mixed, 30% + 10%": "mixed"}
    panels = {name: transition(kind, 10, RATE).numpy() for name, kind in kinds.items()}
    return draw.draw_matrices(panels, "Label noise: observed labels of each of ten classes, %")


def _draw_figures_8_to_10(heading: str, xlabel: str, found: list[PointRuns]) -> Pictures:
    panels = {
        name: [
            draw.Line(
                series,
                {one.point.x: [run.end["best"] for run in one.runs()] for one in marks if one.paths},
                {one.point.x: one.point.published for one in marks if one.point.published},
            )
            for series, marks in panel.items()
        ]
        for name, panel in by_panel(found).items()
    }
    return draw.draw_errors(panels, f"{heading}{spread_note(found)}", xlabel, "paper (hollow)")


def _draw_figure_11(found: list[PointRuns]) -> Pictures:
    panels = {
        name: [
            draw.Curve(
                series,
                [[100 * (p or 0) for p in run.series("precision")] for run in one.runs()],
                one.point.published and one.point.published[0],
            )
            for series, (one,) in panel.items()
        ]
        for name, panel in by_panel(found).items()
    }
    run = found[0].point.experiment
    heading = f"{DATASETS[run.data]}: correct labels among the selected samples{spread_note(found)}"
    return draw.draw_precision(panels, heading, run.warmup, "paper, approximate, from its text")


DRAWN: dict[int, Callable[[list[PointRuns]], Pictures]] = {
    3: _draw_figure_3,
    7: _draw_figure_7,
    8: partial(_draw_figures_8_to_10, "Test error under pair noise", "noise rate, % of the labels"),
    9: partial(_draw_figures_8_to_10, "Test error under symmetry noise", "noise rate, % of the labels"),
    10: partial(_draw_figures_8_to_10, "Test error by λ, the weight of the penalty label", "λ"),
    11: _draw_figure_11,
}
