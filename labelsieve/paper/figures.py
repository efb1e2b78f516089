"""The paper's figures: which runs make each of them, and the paper's points where they are known.

Figure 3 shows samples that are labelled as the fifth class (the paper's e^5, counted from 1). There their wrong labels
come from class 6; here class k becomes k + 1, so that those of class 5 come from class 4, which plays the part of 6.
Its runs are the first epochs of the paper's protocol, up to the end of the warm-up.

λ = 0 in figure 10 and Criteria_OL in figure 11 are MentorNet, λ = 1 and Criteria_ALL are MentorNet-Prop: the runs of
figures 8 and 9."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from labelsieve.data.published import PUBLISHED, where
from labelsieve.errors import InputError, LabelsieveError
from labelsieve.files import refuse_no_folder, write_atomically
from labelsieve.noise import transition
from labelsieve.paper import draw as figures
from labelsieve.paper.draw import Pictures, Published
from labelsieve.paper.tables import COLUMNS, SL_BETA, TABLE_2
from labelsieve.paper.tables import experiment as paper_experiment
from labelsieve.runs.find import Identity, identity, known_runs
from labelsieve.runs.folder import scores_name
from labelsieve.runs.read import Run, read_run, read_scores
from labelsieve.runs.spec import Experiment, planned
from labelsieve.runtime import best_device, best_precision
from labelsieve.sweep.watch import run_all

FIGURES = (3, 7, 8, 9, 10, 11)
DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
    "fashion": "Fashion-MNIST",  # not the paper's: to try a figure out on the embedded data
}
USUAL = {3: ("cifar10",), 8: tuple(TABLE_2), 9: tuple(TABLE_2), 10: ("cifar100",), 11: ("cifar100",)}
METHODS = {"default": "Default", "mentornet": "MentorNet", "mentornet-prop": "MentorNet-Prop"}
LAMBDAS = (0.0, 0.5, 1.0, 1.5, 2.0)
RATE = 0.4  # of figures 3, 10 and 11
OBSERVED, DOMINANT = 4, 3  # of figure 3, counted from 0
MIXED = "mixed:0.6"  # of 40%: 24% from the next class, 16% from the others
NOISES_3 = {"pair": "pair, 40% from class 4", MIXED: "mixed, 24% from class 4, 16% from the others"}
CRITERIA_11: dict[str, tuple[str, str | None]] = {
    "Criteria_OL": ("mentornet", None),
    "Criteria_PL": ("mentornet", "pl"),
    "Criteria_ALL": ("mentornet-prop", None),
}
# What the text of the paper says of figure 11 (CIFAR-100), in approximate percent.
TEXT_11 = {
    "pair": {"Criteria_OL": 70.0, "Criteria_PL": 85.0, "Criteria_ALL": 92.0},
    "symmetry": {"Criteria_OL": 92.0, "Criteria_PL": 60.0},
}


@dataclass(frozen=True)
class Point:
    """A mark or a curve of a figure, and the run that makes it."""

    panel: str
    series: str
    x: float
    experiment: Experiment  # of seed 0
    published: Published | None = None


def points(number: int, dataset: str | None = None) -> list[Point]:
    """Every point of a figure, on the paper's datasets or another one."""
    if number not in FIGURES:
        raise InputError(f"there is no figure {number} to reproduce: there are {', '.join(map(str, FIGURES))}")
    if dataset is not None and dataset not in DATASETS:
        raise InputError(f"figures are drawn of {', '.join(DATASETS)}, not of {dataset!r}")
    every = {3: figure_3, 8: figure_8, 9: figure_9, 10: figure_10, 11: figure_11}
    datasets = (dataset,) if dataset else USUAL.get(number, ())
    return [point for data in datasets for point in every[number](data)] if number in every else []


def figure_3(data: str) -> Iterator[Point]:
    """Scores at the end of the warm-up."""
    for noise, title in NOISES_3.items():
        whole = protocol(data, "mentornet-prop", noise, RATE)
        short = replace(whole, epochs=whole.warmup + 1, drops=(), scores=(whole.warmup,))
        yield Point(title, "", 0.0, short)


def figure_8(data: str, noise: str = "pair") -> Iterator[Point]:
    """Error over noise rates."""
    for method, name in METHODS.items():
        for rate in (rate for kind, rate in COLUMNS if kind == noise):
            run, printed = protocol(data, method, noise, rate), published(data, method, noise, rate)
            yield Point(DATASETS[data], name, 100 * rate, run, printed)


def figure_9(data: str) -> Iterator[Point]:
    return figure_8(data, "symmetry")


def figure_10(data: str) -> Iterator[Point]:
    """Error over λ."""
    known = {0.0: "mentornet", 1.0: "mentornet-prop"}
    for noise in ("pair", "symmetry"):
        for lam in LAMBDAS:
            method = known.get(lam, "mentornet-prop")
            run = protocol(data, method, noise, RATE, options=() if lam in known else (("lam", lam),))
            printed = published(data, method, noise, RATE) if lam in known else None
            yield Point(DATASETS[data], f"{noise}, 40%", lam, run, printed)


def figure_11(data: str) -> Iterator[Point]:
    """Precision over epochs."""
    for noise in ("pair", "symmetry"):
        for name, (method, criterion) in CRITERIA_11.items():
            run = protocol(data, method, noise, RATE, criterion=criterion)
            about = TEXT_11[noise].get(name) if data == "cifar100" else None
            yield Point(f"{noise}, 40%", name, 0.0, run, None if about is None else (about, None))


def protocol(data: str, method: str, noise: str, rate: float, **changes: Any) -> Experiment:
    """The paper's protocol on its datasets, what suits the data on another."""
    if data in SL_BETA:
        return replace(paper_experiment(data, method, noise, rate), **changes)
    return planned(data, method=method, noise=noise, rate=rate, noise_rate=rate, **changes)


def published(data: str, method: str, noise: str, rate: float) -> Published | None:
    """What table 2 prints."""
    if data not in TABLE_2:
        return None
    error, spread = TABLE_2[data][method].split(", ")[COLUMNS.index((noise, rate))].split()
    return float(error), float(spread)


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
    panels = {title: transition(kind, 10, RATE).numpy() for title, kind in kinds.items()}
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
