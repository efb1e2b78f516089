"""benchmarks/given_up.py: its experiments and its counts."""

import json
from pathlib import Path

from benchmarks.given_up import AFTER, CHANGES, cells_of, row_of, table, usual
from labelsieve.paper.tables import experiment
from labelsieve.runs.read import Run

CPU = "cpu"


def made_up(seed, kept):
    spec = {
        "data": "cifar100",
        "noise": "pair",
        "method": "mentornet",
        "criterion": None,
        "options": [],
        "seed": seed,
        "noise_rate": 0.4,
    }
    epochs = [{"kept": [1.0, 1.0, 1.0]}, {"kept": kept, "precision": 0.8, "test_error": 50.0 + seed}]
    return Run(spec, epochs, {}, {})


def test_experiments_are_the_start_of_the_papers_runs():
    papers, ours = experiment("cifar100", "mentornet", "pair", 0.4, 2), usual("cifar100", "pair", "mentornet", 2, CPU)
    different = {name for name, value in papers.as_dict().items() if ours.as_dict()[name] != value}
    assert different == {"epochs", "drops", "forward"}
    assert ours.epochs == papers.warmup + AFTER and ours.drops == ()  # the learning rate would drop later


def test_every_change_is_a_different_experiment():
    names = list(CHANGES)
    cells = list(cells_of("cifar10", ["pair"], ["mentornet"], [name for name in names if name != "fp32"], 1, CPU))
    assert len({cell.name() for _, cell in cells}) == len(names) - 1
    both = dict(cells)["both"]
    assert (both.forward, both.sampler) == ("second", "independent")
    ((_, aligned),) = cells_of("cifar100", ["pair"], ["sl-prop"], ["align"], 1, CPU)
    assert aligned.options == (("align", True), ("beta", 0.3))  # the paper's β for CIFAR-100 stays


def test_classes_given_up_are_counted():
    rows = [row_of("as it is", made_up(0, [0.29, 0.9, 0.1])), row_of("as it is", made_up(1, [0.31, 0.6, 0.6]))]
    assert [row["given up"] for row in rows] == [2, 0]
    better = [row | {"change": "align", "error": row["error"] - 1 - row["seed"]} for row in rows]
    header, line, other = table([*rows, *better])
    assert line == ["cifar100", "pair", "mentornet", "as it is", "2", "1.00 of 3", "80.0", "50.5", ""]
    assert other[-2:] == ["49.0", "-1.50 ± 0.50"] and len(header) == len(line) == len(other)


def test_decision_matches_the_record():
    root = Path(__file__).parents[2]
    rows = json.loads((root / "benchmarks/results/given_up.json").read_text())
    page = (root / "docs/decisions/032-aligned-predictions.md").read_text()
    for line in table([row for row in rows if row["data"] == "fashion"]):
        assert "| " + " | ".join(line[1:]) + " |" in page


def test_log_matches_the_record_of_samplers():
    root = Path(__file__).parents[2]
    log = (root / "docs/log.md").read_text()
    for line in table(json.loads((root / "benchmarks/results/samplers.json").read_text())):
        assert "| " + " | ".join([*line[1:5], *line[7:]]) + " |" in log
