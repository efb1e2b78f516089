"""The paper's tables: every printed number with the experiment that reproduces it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from labelsieve.catalogue import options_of
from labelsieve.runs.spec import Experiment, experiment_for

Published = tuple[float, float | None]  # printed error in percent, and its standard error if printed


@dataclass(frozen=True)
class Cell:
    """One number of a table and the experiment that reproduces it."""

    experiment: Experiment  # with seed 0; device and precision are chosen when it runs
    published: Published | None = None
    variant: str = ""  # distinguishes cells of the same method
    measure: str = "best"  # error of the run to report: see comparison.measured_error
    start: Experiment | None = None  # run whose model is fine-tuned

    @property
    def row(self) -> str:
        return f"{self.experiment.method} ({self.variant})" if self.variant else self.experiment.method


@dataclass(frozen=True)
class Table:
    """The cells of one table."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    digits: int = 1  # after the decimal point, as printed
    seeds: int = 3
    notes: tuple[str, ...] = ()


BENCHMARK: dict[str, Any] = {"model": "densenet-25-12", "epochs": 100, "warmup": 25, "batch": 128, "lr": 0.1}

SIZE = {"tiny-imagenet": 32}  # side of the images; others keep their size

# Clothing1M: every method except default fine-tunes a cross-entropy model from its best epoch on the clean validation
# set, and is tested at its own best epoch. Half of the epochs use the first learning rate, half the second.
CLOTHING1M: dict[str, Any] = {
    "model": "resnet-50",
    "epochs": 10,
    "warmup": 0,
    "batch": 256,
    "weight_decay": 1e-3,
    "nesterov": False,
    "drops": (0.5,),
    "drop_last": True,
    "augment": "window224,flip",
    "normalise": "imagenet",
}
CROSS_ENTROPY: dict[str, Any] = {"lr": 0.01, "drop_factor": 0.1, "weights": "resnet50-0676ba61.pth"}  # 0.01, 0.001
FINE_TUNING: dict[str, Any] = {"lr": 1e-6, "drop_factor": 0.5}  # 1e-6, 5e-7

NOISE_RATE = {"animal10n": 0.08, "clothing1m": 0.3846}  # of datasets with real label noise

# Methods of one network that only select samples run a second forward pass over the kept samples, as in SELFIE's code,
# which the paper builds on (decision 2). That code does the same for selfie and co-teaching; their runs here are older and
# train on the pass that selects.
SECOND_PASS = ("mentornet", "mentornet-prop", "sl-prop")

SL_BETA = {"cifar10": 0.08, "cifar100": 0.3, "tiny-imagenet": 0.3, "animal10n": 0.01, "clothing1m": 0.08}

# Table 1 is the mixed column of table 2 for these methods.
TABLE_1 = ("default", "mentornet", "mentornet-prop")

# Table 2: its columns, then error and standard error per column. The mentornet rows are commented out in the paper's
# source.
COLUMNS = (
    ("pair", 0.1),
    ("pair", 0.2),
    ("pair", 0.3),
    ("pair", 0.4),
    ("symmetry", 0.0),
    ("symmetry", 0.2),
    ("symmetry", 0.4),
    ("symmetry", 0.6),
    ("mixed", 0.4),
)
TABLE_2 = {
    "cifar10": {
        "default": "10.2 0.24, 11.8 0.03, 13.6 0.07, 18.4 0.35, 8.6 0.07, 13.2 0.08, 17.4 0.25, 25.7 0.55, 16 0.16",
        "active-bias": "9.5 0.08, 10.8 0.13, 12.1 0.09, 17.6 0.33, 8.5 0.09, 12.2 0.16, 15.7 0.39, 24.2 0.21, 14.4 0.23",
        "co-teaching": "10 0.09, 11.3 0.13, 12.7 0.01, 15.3 0.3, 8.8 0.05, 11 0.01, 14.1 0.18, 19.4 0.12, 14.4 0.36",
        "co-teaching+": "12.4 0.13, 14 0.21, 15.8 0.22, 23.1 2.17, 11.2 0.25, 13.7 0.17, 17.2 0.3, 33.5 1.9, 17.9 0.49",
        "mentornet": "10.1 0.14, 11.9 0.19, 13.4 0.07, 16.8 0.55, 8.8 0.1, 11.4 0.24, 14.4 0.02, 21 0.54, 15.2 0.27",
        "sl": "10.2 0.12, 11.2 0.03, 13.7 0.2, 18.3 0.46, 8.5 0.04, 12.6 0.17, 17 0.32, 25.6 0.16, 16.2 0.15",
        "selfie": "9.5 0.1, 10.6 0.08, 11.5 0.05, 13.3 0.08, 8.7 0.09, 10.9 0.01, 13.5 0.04, 20.5 0.23, 13.3 0.17",
        "mentornet-prop": "9.5 0.05, 10.5 0.04, 11.1 0.04, 12.2 0.12, 8.6 0.05, 11.1 0.11, 14.4 0.26, 20.5 0.11, 13.4 0.11",
        "sl-prop": "9.3 0.13, 10.2 0.07, 10.8 0.18, 11.7 0.13, 8.6 0.13, 11 0.07, 13.7 0.03, 19.9 0.08, 13.2 0.23",
        "selfie-prop": "8.9 0.13, 9.7 0.07, 10.8 0.12, 11.7 0.11, 8.4 0.09, 10.5 0.02, 13.7 0.1, 20.4 0.1, 13 0.11",
    },
    "cifar100": {
        "default": "34.9 0.29, 37.4 0.13, 43.6 0.49, 53.2 0.46, 31.7 0.18, 37.5 0.18, 43.5 0.21, 53.8 0.08, 47.6 0.71",
        "active-bias": "34.1 0.32, 36.6 0.16, 40.9 0.27, 50.8 0.08, 31.1 0.31, 36.6 0.28, 42.1 0.29, 52.9 0.19, 44.8 0.14",
        "co-teaching": "33.2 0.2, 36.2 0.13, 41.4 0.15, 51.8 0.75, 31.9 0.16, 34.3 0.11, 37.5 0.01, 44.3 0.57, 45.7 0.42",
        "co-teaching+": "35.6 0.17, 37.2 0.17, 40.3 0.18, 47.3 0.2, 33.8 0.19, 36.2 0.15, 40.6 0.21, 49.1 0.31, 43.7 0.18",
        "mentornet": "33.4 0.41, 36.7 0.32, 42.1 0.53, 52.8 0.69, 31.7 0.29, 34.5 0.2, 38.2 0.05, 46.1 0.8, 46.7 0.54",
        "sl": "34.1 0.14, 36.5 0.08, 42 0.42, 52.3 0.59, 31.1 0.05, 36.5 0.3, 42.7 0.23, 52.4 0.53, 45.7 0.23",
        "selfie": "32.7 0.09, 34.1 0.12, 35.8 0.18, 41.3 0.15, 31.7 0.05, 33.8 0.08, 37.1 0.02, 44.6 0.13, 38.5 0.16",
        "mentornet-prop": "32.5 0.04, 33.8 0.19, 34.6 0.2, 36.6 0.11, 31.3 0.16, 34.6 0.1, 38.3 0.11, 45.4 0.34, 37.8 0.23",
        "sl-prop": "32.4 0.11, 33.3 0.11, 34.4 0.09, 36.2 0.4, 31.1 0.23, 34.4 0.07, 38 0.11, 46 0.63, 37.2 0.42",
        "selfie-prop": "32.6 0.14, 33.1 0.03, 34.1 0.16, 35.3 0.19, 30.9 0.17, 33.7 0.18, 36.6 0.15, 42.6 0.05, 36 0.29",
    },
    "tiny-imagenet": {
        "default": "56.6 0.07, 59.1 0.45, 63.5 0.18, 69.9 0.28, 54.5 0.13, 59.2 0.35, 64.6 0.21, 72.9 0.62, 66.4 0.2",
        "active-bias": "56.6 0.05, 58.9 0.12, 62.1 0.29, 68.2 0.06, 55 0.23, 58.7 0.11, 64.1 0.35, 72.2 0.14, 65 0.01",
        "co-teaching": "56.3 0.13, 59 0.15, 63.7 0.38, 71.5 0.19, 54.9 0.07, 56.9 0.29, 60.9 0.13, 65.7 0.08, 66.8 0.12",
        "co-teaching+": "58.3 0.11, 60 0.15, 62.9 0.13, 69.3 0.46, 56.9 0.16, 59 0.09, 63.1 0.13, 71.6 0.21, 65.7 0.28",
        "mentornet": "56.4 0.2, 59 0.31, 64.4 0.2, 71.6 0.13, 54.9 0.14, 57.7 0.35, 60.8 0.14, 67.2 0.28, 66.9 0.24",
        "sl": "56 0.22, 58.4 0.35, 61.9 0.14, 67.5 0.26, 54.1 0.1, 58.4 0.12, 64.4 0.14, 72.3 0.28, 64.5 0.25",
        "selfie": "56.1 0.19, 57.9 0.11, 59.7 0.06, 64.7 0.08, 54.7 0.19, 56.4 0.22, 60.3 0.08, 69.4 0.19, 63.3 0.18",
        "mentornet-prop": "55.8 0.1, 57.1 0.12, 58.7 0.14, 62.5 0.22, 54.9 0.06, 57.7 0.04, 61 0.1, 67 0.29, 60.9 0.17",
        "sl-prop": "54.9 0.07, 56.8 0.23, 58 0.29, 60.1 0.26, 54 0.04, 57.5 0.21, 60.9 0.11, 66.9 0.26, 60.7 0.3",
        "selfie-prop": "55.5 0.04, 56.8 0.13, 57.6 0.2, 60.5 0.21, 54.1 0.1, 57.1 0.12, 59.7 0.21, 64 0.01, 60.1 0.17",
    },
}

# Table 3, commented out in the paper's source: CIFAR-100, 40% noise, best error of SELFIE's rounds 1 to 3.
TABLE_3 = {
    ("selfie", "pair"): (46.70, 43.40, 41.30),
    ("selfie", "symmetry"): (38.71, 37.15, 37.04),
    ("selfie-prop", "pair"): (36.58, 35.64, 35.20),
    ("selfie-prop", "symmetry"): (38.72, 37.67, 36.38),
}

# Table 5: ways to update the penalty labels, 40% noise: (repredict, stack).
TABLE_5 = {
    "cifar10": {"pair": (30.8, 12.2), "symmetry": (14.5, 14.4)},
    "cifar100": {"pair": (42.9, 36.6), "symmetry": (39.4, 38.4)},
    "tiny-imagenet": {"pair": (73.0, 62.5), "symmetry": (62.1, 61.0)},
}

TABLE_6: dict[str, Published] = {  # ANIMAL-10N
    "default": (17.9, 0.02),
    "active-bias": (17.6, 0.17),
    "co-teaching": (17.5, 0.17),
    "co-teaching+": (23.6, 0.2),
    "mentornet": (18, 0.15),
    "sl": (17.3, 0.05),
    "selfie": (17, 0.1),
    "mentornet-prop": (16.5, 0.19),
    "sl-prop": (16.3, 0.04),
    "selfie-prop": (16.1, 0.13),
}

TABLE_7: dict[str, Published] = {  # Clothing1M
    "default": (31.06, None),
    "vat": (30.43, None),
    "f-correction": (29.17, None),
    "gce": (30.91, None),
    "lccn": (28.37, None),
    "dmi": (27.54, None),
    "mentornet": (30.7, None),
    "sl": (29.4, None),
    "mentornet-prop": (27.44, None),
    "sl-prop": (26.98, None),
}

# Table 8: Tiny-ImageNet, 40% noise: (pair, symmetry). f-correction estimates T from the stacked predictions.
TABLE_8 = {"default": (69.9, 64.7), "f-correction": (72.8, 75.3), "mentornet-prop": (62.5, 61.0)}

SMALL_METHODS = ("default", "mentornet", "mentornet-prop", "sl-prop")
SMALL_RATE = 0.4
SMALL_EPOCHS = 12

NOTES_2 = ("the mentornet rows are commented out in the paper's source; table 1 prints those for mixed noise",)
NOTES_3 = ("the whole table is commented out in the paper's source",)
NOTES_5 = ("both ways train on the pass that selects, without the second pass of table 2",)
NOTES_7 = (
    "the paper copies default, vat, f-correction, gce, lccn and dmi from the L_DMI paper; here all methods are run",
)


def tables() -> dict[str, Table]:
    """Return the paper's tables of results by number."""

    def table(name: str, about: str, cells: Iterable[Cell], digits: int = 1, notes: tuple[str, ...] = ()) -> Table:
        return Table(name, f"Table {name} of the paper: {about}", tuple(cells), digits, notes=notes)

    every = (
        table("1", "mixed noise, best test error in percent", _table_1()),
        table("2", "best test error in percent", _table_2(), notes=NOTES_2),
        table("3", "best test error in percent of each run of SELFIE", _table_3(), 2, NOTES_3),
        table("5", "ways to update the penalty labels, best test error in percent", _table_5(), notes=NOTES_5),
        table("6", "ANIMAL-10N, best test error in percent", _table_6()),
        table("7", "Clothing1M, test error in percent", _table_7(), 2, NOTES_7),
        table("8", "transition matrix or penalty labels, best test error in percent", _table_8()),
    )
    return {one.name: one for one in every}


def small_table(epochs: int | None = None, others: Iterable[str] = ()) -> Table:
    """Return a table of four methods, and `others`, under two kinds of noise on the embedded data."""
    settings = {"noise_rate": SMALL_RATE, "rate": SMALL_RATE, "epochs": SMALL_EPOCHS if epochs is None else epochs}
    cells = tuple(
        Cell(experiment_for("fashion", method=method, noise=noise, **settings))
        for noise in ("pair", "symmetry")
        for method in dict.fromkeys((*SMALL_METHODS, *others))
    )
    return Table("small", "Embedded Fashion-MNIST, best test error in percent", cells, seeds=2)


def experiment(data: str, method: str, noise: str | None, rate: float, seed: int = 0, **more: Any) -> Experiment:
    """Return one run of the paper's protocol; `more` are further options of the method."""
    return Experiment(
        data=data,
        size=SIZE.get(data),
        method=method,
        noise=noise,
        rate=rate,
        noise_rate=rate if noise else NOISE_RATE[data],
        options=_without_defaults(method, {**options(method, data), **more}),
        forward="second" if method in SECOND_PASS else "one",
        seed=seed,
        **BENCHMARK,
    )


def _clothing1m(method: str, **schedule: Any) -> Experiment:
    """Return one run of the Clothing1M protocol with this schedule."""
    return Experiment(
        data="clothing1m",
        method=method,
        noise_rate=NOISE_RATE["clothing1m"],
        options=_without_defaults(method, options(method, "clothing1m")),
        **CLOTHING1M,
        **schedule,
    )


def options(method: str, data: str) -> dict[str, Any]:
    """Return the paper's options of a method on a dataset."""
    symmetric = {"alpha": 1.0, "beta": SL_BETA[data]}
    every: dict[str, dict[str, Any]] = {
        "active-bias": {"smoothness": 0.2},
        "co-teaching": {"ramp": 15},
        "co-teaching+": {"ramp": 15, "init_epoch": 25},
        "sl": symmetric,
        "selfie": {"threshold": 0.05, "history": 15, "rounds": 3},
        "mentornet-prop": {"lam": 1.0},
        "sl-prop": {**symmetric, "lam": 1.0},
        "selfie-prop": {"threshold": 0.005, "history": 25, "rounds": 3, "lam": 1.0},
        "gce": {"q": 0.7},
        "dmi": {"lr_scale": 1.0},  # the learning rate of fine-tuning is already small
    }
    return every.get(method, {})


def _without_defaults(method: str, chosen: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the options that differ from the method's defaults."""
    defaults = options_of(method)
    return tuple(sorted((name, value) for name, value in chosen.items() if defaults.get(name) != value))


def _table_1() -> Iterator[Cell]:
    for cell in _table_2():
        if cell.experiment.noise == "mixed" and cell.experiment.method in TABLE_1:
            yield cell


def _table_2() -> Iterator[Cell]:
    for data, rows in TABLE_2.items():
        for method, row in rows.items():
            for (noise, rate), text in zip(COLUMNS, row.split(", "), strict=True):
                error, spread = map(float, text.split())
                yield Cell(experiment(data, method, noise, rate), (error, spread))


def _table_3() -> Iterator[Cell]:
    for (method, noise), errors in TABLE_3.items():
        for number, error in enumerate(errors, 1):
            name = f"round {number}"
            yield Cell(experiment("cifar100", method, noise, 0.4), (error, None), name, measure=name)


def _table_5() -> Iterator[Cell]:
    for data, noises in TABLE_5.items():
        for noise, errors in noises.items():
            for update, error in zip(("repredict", "stack"), errors, strict=True):
                one_pass = replace(experiment(data, "mentornet-prop", noise, 0.4, update=update), forward="one")
                yield Cell(one_pass, (error, None), update)


def _table_6() -> Iterator[Cell]:
    for method, published in TABLE_6.items():
        yield Cell(experiment("animal10n", method, None, 0.0), published)


def _table_7() -> Iterator[Cell]:
    cross_entropy = _clothing1m("default", **CROSS_ENTROPY)
    for method, published in TABLE_7.items():
        if method == "default":
            yield Cell(cross_entropy, published, measure="chosen")
        else:
            yield Cell(_clothing1m(method, **FINE_TUNING), published, measure="chosen", start=cross_entropy)


def _table_8() -> Iterator[Cell]:
    for method, errors in TABLE_8.items():
        for noise, error in zip(("pair", "symmetry"), errors, strict=True):
            yield Cell(experiment("tiny-imagenet", method, noise, 0.4), (error, None))
