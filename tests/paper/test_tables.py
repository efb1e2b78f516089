"""The cells of the paper's tables: complete, with the printed numbers and valid options."""

import csv
from collections import Counter
from pathlib import Path

from labelsieve.catalogue import options_of
from labelsieve.methods import Problem, make
from labelsieve.paper.tables import options, tables
from labelsieve.train.settings import Training

TABLES = tables()
CELLS = [(name, cell) for name, table in TABLES.items() for cell in table.cells]
NUMBERS = Path(__file__).parent / "paper_numbers.csv"  # extracted independently from the paper's source


def key(name, cell):
    e = cell.experiment
    return name, e.data, e.noise or "", e.rate, e.method, cell.variant


def test_all_numbers_match_the_paper():
    with NUMBERS.open() as file:
        printed = {
            (r["table"], r["dataset"], r["noise"], float(r["rate"]), r["method"], r["variant"]): (
                float(r["error"]),
                float(r["standard_error"]) if r["standard_error"] else None,
            )
            for r in csv.DictReader(file)
        }
    assert {key(name, cell): cell.published for name, cell in CELLS} == printed


def test_every_cell_occurs_once():
    assert Counter(name for name, _ in CELLS) == {"1": 9, "2": 270, "3": 12, "5": 12, "6": 10, "7": 10, "8": 6}
    assert len({(name, cell.experiment.name(), cell.measure, cell.start) for name, cell in CELLS}) == len(CELLS)


def test_some_numbers_copied_by_hand():
    """Samples from several tables, copied from the paper by hand."""
    published = {key(name, cell): cell.published for name, cell in CELLS}
    assert published["2", "cifar10", "pair", 0.1, "default", ""] == (10.2, 0.24)
    assert published["2", "cifar10", "mixed", 0.4, "mentornet", ""] == (15.2, 0.27)
    assert published["2", "tiny-imagenet", "symmetry", 0.6, "mentornet", ""][0] == 67.2
    assert published["8", "tiny-imagenet", "symmetry", 0.4, "f-correction", ""] == (75.3, None)
    assert published["3", "cifar100", "pair", 0.4, "selfie", "round 1"] == (46.70, None)
    assert published["7", "clothing1m", "", 0.0, "sl-prop", ""] == (26.98, None)


def test_method_of_every_cell_can_be_created():
    for _, cell in CELLS:
        e = cell.experiment
        method = make(e.method, Problem(10, e.noise_rate, e.warmup, num_samples=4), e.criterion, **dict(e.options))
        assert method.num_rounds == (3 if "selfie" in e.method else 1)


def test_hyperparameters_match_the_paper():
    experiments = [cell.experiment for name, cell in CELLS if name in "26"]
    by = {(e.data, e.method): {**options_of(e.method), **dict(e.options)} for e in experiments}
    assert by["cifar100", "sl"]["beta"] == 0.3 and by["animal10n", "sl-prop"]["beta"] == 0.01
    assert options("sl", "clothing1m")["beta"] == by["cifar10", "sl"]["beta"] == 0.08
    assert by["cifar10", "selfie"].items() >= {"threshold": 0.05, "history": 15, "rounds": 3}.items()
    assert by["cifar10", "selfie-prop"].items() >= {"threshold": 0.005, "history": 25, "rounds": 3, "lam": 1.0}.items()
    assert by["cifar10", "co-teaching"]["ramp"] == 15
    assert {e.lr for e in experiments} == {0.1} and {e.epochs for e in experiments} == {100}
    assert {e.data: e.size for e in experiments if e.size} == {"tiny-imagenet": 32}


def test_protocol_of_clothing1m():
    """Cross-entropy starts from ImageNet weights, every other method from its best epoch; the best epoch is tested."""
    first, *others = TABLES["7"].cells
    assert first.start is None and first.experiment.weights and first.experiment.method == "default"
    assert all(cell.start == first.experiment and cell.experiment.weights is None for cell in others)
    for cell, rates in [(first, (0.01, 0.001)), *((cell, (1e-6, 5e-7)) for cell in others)]:
        e = cell.experiment
        training = Training(epochs=e.epochs, lr=e.lr, drops=e.drops, drop_factor=e.drop_factor)
        expected = [rates[0]] * 5 + [rates[1]] * 5
        assert all(abs(training.lr_at(epoch) - rate) < 1e-12 for epoch, rate in enumerate(expected))
        assert (e.model, e.epochs, e.warmup, e.batch) == ("resnet-50", 10, 0, 256)
        assert (e.weight_decay, e.nesterov, e.drop_last, cell.measure) == (1e-3, False, True, "chosen")
        assert (e.augment, e.normalise, e.noise, e.noise_rate) == ("window224,flip", "imagenet", None, 0.3846)
    scale = {cell.experiment.method: dict(cell.experiment.options).get("lr_scale") for cell in others}
    assert scale["dmi"] == 1.0  # the learning rate of fine-tuning is already small
