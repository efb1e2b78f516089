"""benchmarks/missing.py: which runs are wanted, and that a time limit loses none of them."""

import tarfile
from itertools import product
from pathlib import Path

import pytest
import torch

from benchmarks import missing
from benchmarks.missing import DATA, NOISES, SEEDS, TWICE, Wanted, overview, wanted
from labelsieve.data import Labelled
from labelsieve.paper.tables import TABLE_2, tables
from labelsieve.runs.execute import method_of
from labelsieve.runs.find import identity, known_runs
from labelsieve.runs.spec import experiment_for

RESULTS = Path(__file__).parents[2] / "results"


def test_every_cell_with_40_percent_noise_is_there_or_wanted():
    known = known_runs(RESULTS)
    found = known.keys() | {identity(one.experiment.as_dict()) for one in wanted()}
    cells = [cell.experiment for cell in tables()["2"].cells if cell.experiment.data in DATA]
    cells = [one for one in cells if (one.rate, one.noise in NOISES) == (0.4, True)]
    assert len(cells) == len(DATA) * len(NOISES) * len(TABLE_2["cifar10"])
    for one, seed in product(cells, SEEDS):
        spec = one.as_dict() | {"seed": seed}
        assert identity(spec | {"forward": "second"} if one.method in TWICE else spec) in found


def test_missing_runs_are_wanted_runs_without_a_record_each_once():
    known, found = known_runs(RESULTS), missing.missing(RESULTS)
    every = [identity(one.experiment.as_dict()) for one in found]
    assert len(set(every)) == len(every) and not set(every) & known.keys()
    assert {identity(one.experiment.as_dict()) for one in wanted()} - known.keys() == set(every)
    assert missing.missing(RESULTS / "cut") != found  # without the records, there is more to run


def test_every_wanted_experiment_has_a_method_that_accepts_its_settings():
    train = Labelled(torch.zeros(20, 3, 8, 8, dtype=torch.uint8), torch.arange(20) % 10, ("",) * 10)
    for one in {
        (e.method, e.criterion, e.options, e.forward): e for e in (one.experiment for one in wanted())
    }.values():
        assert method_of(one, train).networks in (1, 2)


def test_the_overview_counts_runs_and_epochs_of_all_rounds():
    selfie = [Wanted("a", one.experiment) for one in wanted() if one.experiment.method == "selfie"][:2]
    rows = overview(selfie)
    assert rows[1:] == [
        ["a", "cifar10", "pair", "0.4", "selfie", "2", "600"],
        ["all", "", "", "", "", "2", "600"],
    ]


@pytest.fixture
def two_runs(monkeypatch, tmp_path):
    """Two short runs on the embedded data are wanted; return the command line that trains them."""
    small = {"noise": "pair", "rate": 0.4, "noise_rate": 0.4, "epochs": 2, "warmup": 1}
    runs = [Wanted("small", experiment_for("fashion", method="default", seed=seed, **small)) for seed in range(2)]
    monkeypatch.setattr(missing, "wanted", lambda: iter(runs))
    monkeypatch.setattr(missing, "best_device", lambda: "cpu")
    archive = tmp_path / "records.tar"
    command = [
        "missing",
        "--run",
        "--results",
        str(tmp_path),
        "--out",
        str(tmp_path / "runs"),
        "--archive",
        str(archive),
    ]
    return command, archive


def kept(archive):
    with tarfile.open(archive) as file:
        return sorted(Path(name).name for name in file.getnames())


def test_a_time_limit_ends_the_runs_and_the_same_command_completes_them(two_runs, monkeypatch, capsys):
    command, archive = two_runs
    monkeypatch.setattr("sys.argv", [*command, "--minutes", "0"])
    missing.main()
    assert "run the same command again to resume" in capsys.readouterr().out
    assert kept(archive) == []
    monkeypatch.setattr("sys.argv", [*command, "--minutes", "60", "--most", "1"])
    missing.main()
    assert kept(archive) == ["done", "record.jsonl", "spec.json"]  # only as many runs are started as requested
    monkeypatch.setattr("sys.argv", [*command, "--minutes", "60"])
    missing.main()
    assert kept(archive) == sorted(2 * ["done", "record.jsonl", "spec.json"])
    monkeypatch.setattr("sys.argv", ["missing", *command[2:]])
    missing.main()
    assert capsys.readouterr().out.endswith("| all |  |  |  |  | 0 | 0 |\n")
