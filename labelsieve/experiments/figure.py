"""figure: one of the paper's figures from finished runs; those that are missing are trained first."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from labelsieve import noise
from labelsieve.data.published import PUBLISHED, where
from labelsieve.devices import best_device, best_precision
from labelsieve.errors import InputError, LabelsieveError
from labelsieve.experiments.folder import scores_name
from labelsieve.experiments.matching import Identity, identity, known_runs
from labelsieve.experiments.paper_figures import DATASETS, DOMINANT, OBSERVED, RATE, Point, points
from labelsieve.experiments.spec import Experiment
from labelsieve.experiments.watch import run_all
from labelsieve.files import refuse_no_folder, write_atomically
from labelsieve.report import figures
from labelsieve.report.figures import Pictures
from labelsieve.report.records import Run, read_run, read_scores

SHOWN = 1250  # samples of figure 3, all classes together: the paper's interval of 40 on CIFAR-10


@dataclass(frozen=True)
class Known:
    """A point with those of its runs that are finished."""

    point: Point
    paths: dict[int, Path]  # by seed

    def runs(self) -> list[Run]:
        return [read_run(path) for path in self.paths.values()]


def figure_options(
    number: int, dataset: str | None, seeds: int, device: str, precision: str | None, threads: int, **rest: Any
) -> None:
    """The figure that a person's options mean."""
    if seeds < 1:
        raise InputError("seeds must be at least 1")
    device = best_device() if device == "auto" else device
    place = {"device": device, "precision": precision or best_precision(device), "threads": threads}
    figure(number, dataset, 1 if number == 3 else seeds, place, **rest)


def figure(
    number: int,
    dataset: str | None,
    seeds: int,
    place: dict[str, Any],
    *,
    show: bool,
    out: Path,
    results: Path,
    save: Path | None,
    at_once: int | None,
    on: str,
) -> None:
    """Run what is missing, unless only to show; draw what there is, say what is left out. `place`: where to run."""
    wanted = points(number, dataset)
    if save is not None:
        refuse_no_folder(save, "--save")
    if save is None or not show:
        refuse_no_folder(out)
    failure = None
    if not show:
        left = missing(look_up(wanted, seeds, out, results), seeds)
        failure = train([replace(experiment, **place) for experiment in left], out, at_once, on)
    known = look_up(wanted, seeds, out, results)
    left = missing(known, seeds)
    every = seeds * len(wanted)
    if every and len(left) == every:
        raise failure or InputError(f"no finished run of figure {number} in {out} or {results}: leave out --show")
    name = f"figure-{number}-{dataset}" if dataset and wanted else f"figure-{number}"
    keep(DRAWN[number](known), save or out, name)
    if left:
        print(f"left out: {len(left)} of {every} runs are not there, such as {spoken(left[0])}")
    if failure:
        raise failure


def look_up(wanted: list[Point], seeds: int, *roots: Path) -> list[Known]:
    """Every point with its finished runs."""
    epochs = {epoch for point in wanted for epoch in point.experiment.scores}
    there = known_runs(*roots, holding=scores_name(epochs.pop()) if epochs else "done")
    return [
        Known(point, {seed: there[each] for seed in range(seeds) if (each := identity_of(point, seed)) in there})
        for point in wanted
    ]


def identity_of(point: Point, seed: int) -> Identity:
    return identity(replace(point.experiment, seed=seed).as_dict())


def missing(known: list[Known], seeds: int) -> list[Experiment]:
    """The runs that are not finished."""
    return [replace(one.point.experiment, seed=seed) for one in known for seed in range(seeds) if seed not in one.paths]


def train(experiments: list[Experiment], out: Path, at_once: int | None, on: str) -> LabelsieveError | None:
    """Train these; what went wrong is returned, so that the rest can be drawn."""
    for data in sorted({experiment.data for experiment in experiments} & set(PUBLISHED)):
        where(data)  # refuses data that is not there before anything runs
    if not experiments:
        return None
    print(f"{len(experiments)} runs to be trained, in {out}", flush=True)
    failed = run_all(experiments, out, at_once, on)
    return LabelsieveError(f"{len(failed)} of {len(experiments)} runs failed; see above") if failed else None


def keep(pictures: Pictures, folder: Path, name: str) -> None:
    """Write them, and say where."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    for ending, content in pictures.items():
        write_atomically(folder / f"{name}.{ending}", content)
    print(f"pictures: {folder / name}.{{{','.join(pictures)}}}")


def spoken(experiment: Experiment) -> str:
    """cifar10 pair 0.4 mentornet seed 0"""
    e = experiment
    chosen = [e.criterion or "", *(f"{name}={value}" for name, value in e.options)]
    return " ".join(filter(None, [e.data, str(e.noise), f"{e.rate:g}", e.method, *chosen, f"seed {e.seed}"]))


def by_panel(known: list[Known]) -> dict[str, dict[str, list[Known]]]:
    """Points by panel, which says how many seeds it has, and series; panels without any run are left out."""
    panels: dict[str, dict[str, list[Known]]] = {}
    for one in known:
        panels.setdefault(one.point.panel, {}).setdefault(one.point.series, []).append(one)
    every = {name: [one for series in panel.values() for one in series] for name, panel in panels.items()}
    return {f"{name}; {seeds_of(every[name])}": panels[name] for name in panels if any(o.paths for o in every[name])}


def seeds_of(known: list[Known]) -> str:
    """3 seeds; 1 to 3 seeds; one seed"""
    counts = sorted({len(one.paths) for one in known if one.paths})
    return " to ".join(map(str, counts)) + " seeds" if counts != [1] else "one seed"


def spread_of(known: list[Known]) -> str:
    """What bars and bands are, if there are any."""
    return "\nmean and standard error over the seeds" if any(len(one.paths) > 1 for one in known) else ""


def scores_figure(known: list[Known]) -> Pictures:
    """Figure 3."""
    run = known[0].point.experiment
    kept = {
        one.point.panel: read_scores(path / scores_name(run.scores[0])) for one in known for path in one.paths.values()
    }
    panels = {
        name: figures.Scored(scores, OBSERVED, DOMINANT, 1 - RATE, max(1, len(scores["label"]) // SHOWN))
        for name, scores in kept.items()
    }
    after = f"after epoch {run.scores[0]}; right of the dashed line is selected"
    return figures.scores(panels, f"{DATASETS[run.data]}: samples labelled as class {OBSERVED + 1}, {after}")


def matrices_figure(known: list[Known]) -> Pictures:
    """Figure 7, which needs no runs."""
    kinds = {"pair, 40%": "pair", "symmetry, 40%": "symmetry", "mixed, 30% + 10%": "mixed"}
    panels = {title: noise.transition(kind, 10, RATE).numpy() for title, kind in kinds.items()}
    return figures.matrices(panels, "Which label each class gets, %, of ten classes")


def errors_figure(title: str, xlabel: str, known: list[Known]) -> Pictures:
    """Figures 8, 9 and 10."""
    panels = {
        name: [
            figures.Line(
                series,
                {one.point.x: [run.end["best"] for run in one.runs()] for one in marks if one.paths},
                {one.point.x: one.point.published for one in marks if one.point.published},
            )
            for series, marks in panel.items()
        ]
        for name, panel in by_panel(known).items()
    }
    return figures.errors(panels, f"{title}{spread_of(known)}", xlabel, "paper (hollow)")


def precision_figure(known: list[Known]) -> Pictures:
    """Figure 11."""
    panels = {
        name: [
            figures.Curve(
                series,
                [[100 * (p or 0) for p in run.series("precision")] for run in one.runs()],
                one.point.published and one.point.published[0],
            )
            for series, (one,) in panel.items()
        ]
        for name, panel in by_panel(known).items()
    }
    run = known[0].point.experiment
    title = f"{DATASETS[run.data]}: how clean the selected samples are{spread_of(known)}"
    return figures.precision(panels, title, run.warmup, "paper, approximate, from its text")


RATES = "noise rate, % of the labels"
DRAWN: dict[int, Callable[[list[Known]], Pictures]] = {
    3: scores_figure,
    7: matrices_figure,
    8: partial(errors_figure, "Test error under pair noise", RATES),
    9: partial(errors_figure, "Test error under symmetry noise", RATES),
    10: partial(errors_figure, "Test error by λ, the weight of the penalty label", "λ"),
    11: precision_figure,
}
