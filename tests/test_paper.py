"""The paper's cells: all there, each with options that its method has."""

from collections import Counter

from labelsieve.experiments.paper import SELFIE_ROUNDS, TABLE_7, cells, options
from labelsieve.methods import Problem, make, options_of

CELLS = list(cells())


def test_every_cell_is_there_once():
    assert Counter(cell.table for cell in CELLS) == {"2": 270, "5": 12, "6": 10, "8": 6}
    assert len({(cell.table, cell.experiment.name()) for cell in CELLS}) == len(CELLS)


def published(table, data, method, noise, rate=0.4):
    found = [
        cell.published
        for cell in CELLS
        if cell.table == table
        and (cell.experiment.data, cell.experiment.method) == (data, method)
        and (cell.experiment.noise, cell.experiment.rate) == (noise, rate)
    ]
    assert len(found) == 1
    return found[0]


def test_numbers_as_printed():
    """One of each corner, read off the paper."""
    assert published("2", "cifar10", "default", "pair", 0.1) == (10.2, 0.24)
    assert published("2", "cifar10", "mentornet-prop", "pair")[0] == 12.2
    assert published("2", "cifar10", "mentornet", "mixed")[0] == 15.2
    assert published("2", "cifar100", "selfie-prop", "pair")[0] == 35.3
    assert published("2", "tiny-imagenet", "mentornet", "symmetry", 0.6)[0] == 67.2
    assert published("8", "tiny-imagenet", "f-correction", "symmetry") == (75.3, None)
    assert SELFIE_ROUNDS["selfie", "pair"] == (46.70, 43.40, 41.30)


def test_every_cell_can_be_made():
    for cell in CELLS:
        e = cell.experiment
        method = make(e.method, Problem(10, e.noise_rate, e.warmup, num_samples=4), e.criterion, **dict(e.options))
        assert method.rounds == (3 if "selfie" in e.method else 1)


def test_hyper_parameters_of_the_paper():
    experiments = [c.experiment for c in CELLS if c.table in "26"]
    by = {(e.data, e.method): {**options_of(e.method), **dict(e.options)} for e in experiments}
    assert by["cifar100", "sl"]["beta"] == 0.3 and by["animal10n", "sl-prop"]["beta"] == 0.01
    assert options("sl", "clothing1m")["beta"] == by["cifar10", "sl"]["beta"] == 0.08
    assert by["cifar10", "selfie"].items() >= {"threshold": 0.05, "history": 15, "rounds": 3}.items()
    assert by["cifar10", "selfie-prop"].items() >= {"threshold": 0.005, "history": 25, "rounds": 3, "lam": 1.0}.items()
    assert by["cifar10", "co-teaching"]["ramp"] == 15
    assert {c.experiment.lr for c in CELLS} == {0.1} and TABLE_7["sl-prop"] == (26.98, None)
