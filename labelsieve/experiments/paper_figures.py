"""The paper's figures: which runs make each of them, and the paper's points where they are known.

Figure 3 shows samples that are labelled as the fifth class (the paper's e^5, counted from 1). There their wrong labels
come from class 6; here class k becomes k + 1, so that those of class 5 come from class 4, which plays the part of 6.
Its runs are the first epochs of the paper's protocol, up to the end of the warm-up.

λ = 0 in figure 10 and Criteria_OL in figure 11 are MentorNet, λ = 1 and Criteria_ALL are MentorNet-Prop: the runs of
figures 8 and 9.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from labelsieve.errors import InputError
from labelsieve.experiments.paper import COLUMNS, SL_BETA, TABLE_2, experiment
from labelsieve.experiments.spec import Experiment, planned
from labelsieve.report.figures import Published

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
        return replace(experiment(data, method, noise, rate), **changes)
    return planned(data, method=method, noise=noise, rate=rate, noise_rate=rate, **changes)


def published(data: str, method: str, noise: str, rate: float) -> Published | None:
    """What table 2 prints."""
    if data not in TABLE_2:
        return None
    error, spread = TABLE_2[data][method].split(", ")[COLUMNS.index((noise, rate))].split()
    return float(error), float(spread)
