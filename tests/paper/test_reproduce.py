"""labelsieve table: which runs match a cell, what is printed, what is run, and resuming."""

import csv
import io
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelsieve.cli import execute
from labelsieve.paper import reproduce as module
from labelsieve.paper.tables import Cell, Table, experiment, small_table, tables
from labelsieve.runs.data import Shelf
from labelsieve.runs.execute import prepare
from labelsieve.runs.find import identity, known_runs
from labelsieve.runs.record import errors
from labelsieve.runs.spec import Experiment
from labelsieve.sweep.sweep import Worker, folder_of
from tests.conftest import LONG_WAIT, blobs

CELL = experiment("cifar10", "mentornet-prop", "pair", 0.4)
TWO = ["table", "2", "--dataset", "cifar10", "--noise", "pair", "--rate", "0.4", "--methods", "default,mentornet-prop"]


def record(folder: Path, what: Experiment, best: float, rounds: dict[int, float] | None = None, **spec) -> Path:
    """Write a finished run as it would be committed, without a model."""
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"experiment": {**what.as_dict(), **spec}, "data": "x"}))
    epochs = [
        {"event": "epoch", "epoch": n, **({"round": k} if rounds else {}), "test_error": e + (n != 2)}
        for k, e in (rounds or {1: best}).items()
        for n in range(1, what.epochs + 1)
    ]
    rows = [{"event": "start"}, *epochs, {"event": "end", "chosen_epoch": 2, **errors(epochs)}]
    (folder / "record.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "done").touch()
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty folder without published data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABELSIEVE_DATA", raising=False)
    return tmp_path


def quick(folder: Path, **more) -> Experiment:
    """Return a very short run on tiny images."""
    path = folder / "blobs.npz"
    if not path.exists():
        arrays = {}
        for prefix, data in (("", blobs(150, 0)), ("test_", blobs(40, 1))):
            arrays |= {f"{prefix}images": data.images[:, 0].numpy(), f"{prefix}labels": data.labels.numpy()}
        np.savez(path, **arrays)
    usual = {"noise": "pair", "rate": 0.4, "noise_rate": 0.4, "method": "default", "model": "small", "lr": 0.02}
    return Experiment(data=str(path), **{**usual, "batch": 32, "epochs": 2, "warmup": 0, **more})


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"device": "cuda"},
        {"precision": "bf16"},
        {"threads": 8},
        {"cache": "/somewhere"},
        {"workers": 3},
        {"options": [["lam", 1.0]]},
        {"options": [["update", "stack"], ["lam", 1]]},
    ],
)
def test_machine_and_default_options_do_not_change_the_identity(elsewhere):
    assert identity({**CELL.as_dict(), **elsewhere}) == identity(CELL.as_dict())


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"data": "cifar100"},
        {"data": "/data/cifar10"},
        {"method": "mentornet"},
        {"criterion": "ol"},
        {"options": [["lam", 0.5]]},
        {"options": [["update", "repredict"]]},
        {"rate": 0.3},
        {"noise": "mixed"},
        {"noise_rate": 0.45},
        {"epochs": 99},
        {"warmup": 10},
        {"lr": 0.05},
        {"batch": 64},
        {"model": "resnet-18"},
        {"weight_decay": 0.0},
        {"nesterov": False},
        {"drops": [0.5]},
        {"augment": "flip"},
        {"exact_noise": True},
        {"init": "runs/x"},
        {"labels": "file.csv"},
        {"size": 64},
        {"valid": 0.1},
    ],
)
def test_settings_that_change_the_result_change_the_identity(other):
    assert identity({**CELL.as_dict(), **other}) != identity(CELL.as_dict())


def test_old_specifications_without_newer_fields_match():
    new = {"weights", "nesterov", "drops", "drop_factor", "drop_last", "augment", "normalise", "weight_decay", "init"}
    old = {name: value for name, value in CELL.as_dict().items() if name not in new}
    assert identity(old) == identity(CELL.as_dict())


def test_identity_has_the_name_of_weights_and_whether_there_is_a_start():
    fine = tables()["7"].cells[-1]
    spec = fine.experiment.as_dict()
    assert identity({**spec, "init": "a"}) == identity({**spec, "init": "b/c"}) != identity(spec)
    first = fine.start.as_dict()
    assert identity({**first, "weights": f"elsewhere/{first['weights']}"}) == identity(first)
    assert identity({**first, "weights": "other.pth"}) != identity(first)


def test_first_of_several_matching_runs_counts(tmp_path):
    record(tmp_path / "results" / "deep" / "b", CELL, 12.0, device="cuda")
    record(tmp_path / "results" / "deep" / "a", CELL, 11.0, precision="bf16", device="cuda")
    unfinished = record(tmp_path / "out" / "0", CELL, 1.0)
    (unfinished / "done").unlink()
    roots = tmp_path / "out", tmp_path / "results"
    assert known_runs(*roots) == {identity(CELL.as_dict()): tmp_path / "results" / "deep" / "a"}
    record(tmp_path / "out" / "z", CELL, 13.0)
    assert known_runs(*roots) == {identity(CELL.as_dict()): tmp_path / "out" / "z"}


def test_damaged_record_is_named(here, capsys):
    (record(here / "results" / "x", CELL, 12.0) / "spec.json").write_text("{")
    assert execute([*TWO, "--show"]) == 2
    assert "results/x/spec.json is damaged: the file is not JSON" in capsys.readouterr().err


def test_show_runs_nothing(here, monkeypatch, capsys):
    monkeypatch.setattr(module, "run_all", lambda *_: pytest.fail("ran something"))
    for seed, best in enumerate((12.0, 12.5, 13.0)):
        where = here / "results" / "cifar10" / f"prop-{seed}"
        record(where, replace(CELL, seed=seed), best, device="cuda", precision="bf16")
    plain = experiment("cifar10", "default", "pair", 0.4)
    record(here / "runs" / "paper" / "any name", plain, 18.0)
    assert execute([*TWO, "--show"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"default +pair 40% +18.00 \(1\) +18.4 ± 0.35 +-0.40 +n too small", said)
    assert re.search(r"mentornet-prop +pair 40% +12.50 ± 0.29 \(3\) +12.2 ± 0.12 +\+0.30 +yes", said)
    assert re.search(r"mentornet-prop minus default +pair 40% +-6.00 +-6.00 \(1\)", said)
    assert "2 runs are missing: no finished run in runs/paper or results, and no cifar10 in data: put" in said
    (here / "data" / "cifar-10-batches-py").mkdir(parents=True)
    assert execute([*TWO, "--show"]) == 0
    assert "no finished run in runs/paper or results; leave out --show to run them" in capsys.readouterr().out


def test_table_without_data_and_runs_is_an_error(here, monkeypatch, capsys):
    monkeypatch.setattr(module, "run_all", lambda *_: pytest.fail("ran something"))
    assert execute(TWO) == 2
    captured = capsys.readouterr()
    assert "table 2 has no finished runs, and none can be run: no cifar10 in data: put cifar-10" in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
    assert execute([*TWO, "--show"]) == 0 and "and no cifar10 in data" in capsys.readouterr().out
    record(here / "results" / "one", CELL, 12.0)
    assert execute(TWO) == 0 and "5 runs are missing: no cifar10 in data" in capsys.readouterr().out


def test_csv_has_one_number_per_column(here, capsys):
    for seed, best in enumerate((12.0, 12.5, 13.0)):
        record(here / "results" / f"prop-{seed}", replace(CELL, seed=seed), best)
    assert execute([*TWO, "--show", "--format", "csv"]) == 0
    default, prop = csv.DictReader(io.StringIO(capsys.readouterr().out))
    own, papers = ["3", "12.50", "0.29", "12.00 12.50 13.00"], ["12.2", "0.12", "0.30", "yes"]
    assert list(prop.values()) == ["cifar10", "mentornet-prop", "pair", "0.4", *own, *papers]
    assert list(default.values())[1:] == ["default", "pair", "0.4", "0", "", "", "", "18.4", "0.35", "", "not run"]


def test_rounds_of_one_run_fill_several_cells(here, capsys):
    selfie = experiment("cifar100", "selfie", "pair", 0.4)
    record(here / "results" / "selfie", selfie, 40.0, rounds={1: 45.0, 2: 43.0, 3: 40.0})
    command = ["table", "3", "--show", "--methods", "selfie", "--noise", "pair", "--format", "csv"]
    assert execute(command) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:]
    assert [(row[1], row[5], row[8]) for row in rows] == [
        ("selfie (round 1)", "45.00", "46.70"),
        ("selfie (round 2)", "43.00", "43.40"),
        ("selfie (round 3)", "40.00", "41.30"),
    ]
    assert execute(["table", "3", "--show", "--seeds", "1"]) == 0
    assert "3 runs are missing" in capsys.readouterr().out  # twelve cells are four runs


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv"])
@pytest.mark.parametrize("name", ["1", "2", "3", "5", "6", "7", "8", "small"])
def test_every_table_can_be_shown_in_every_format(name, form, here, capsys):
    file = here / "table"
    assert execute(["table", name, "--show", "--format", form, "--save", str(file)]) == 0
    assert capsys.readouterr().out == f"table: {file}\n"
    assert file.read_text().count("not run") >= 6


def test_missing_data_does_not_stop_other_cells(here, monkeypatch, capsys):
    requested = []
    monkeypatch.setattr(module, "run_all", lambda experiments, *_: requested.extend(experiments) or {})
    (here / "data" / "cifar-10-batches-py").mkdir(parents=True)
    assert execute(["table", "1", "--seeds", "2", "--device", "cpu", "--threads", "2"]) == 0
    assert {(e.data, e.seed, e.threads) for e in requested} == {("cifar10", 0, 2), ("cifar10", 1, 2)} and len(
        requested
    ) == 6
    said = capsys.readouterr().out
    assert said.count("6 runs are missing: no cifar100 in data") == 1
    assert said.count("6 runs are missing: no tiny-imagenet in data") == 1


def test_missing_weights_are_reported_once(here, monkeypatch, capsys):
    monkeypatch.setattr(module, "run_all", lambda *_: pytest.fail("ran something"))
    (here / "data" / "clothing1m").mkdir(parents=True)
    assert execute(["table", "7", "--seeds", "1", "--device", "cpu"]) == 2
    assert capsys.readouterr().err.count("no data/resnet50-0676ba61.pth: put") == 1


def test_clothing1m_is_fine_tuned_from_its_own_cross_entropy_model(here, monkeypatch, capsys):
    """Cross-entropy runs first; all other methods start from its run folder."""
    requested = []

    def pretend(experiments, out, *_):
        requested.append(experiments)
        for e in experiments:
            record(folder_of(e, out), e, 30.0)
        return {}

    monkeypatch.setattr(module, "run_all", pretend)
    (here / "data" / "clothing1m").mkdir(parents=True)
    (here / "data" / "resnet50-0676ba61.pth").touch()
    assert execute(["table", "7", "--seeds", "1", "--device", "cpu"]) == 0
    (first,), second = requested
    assert first.weights == "data/resnet50-0676ba61.pth" and first.init is None
    assert len(second) == 9 and {e.init for e in second} == {str(folder_of(first, Path("runs/paper")))}
    assert "missing" not in capsys.readouterr().out
    assert execute(["table", "7", "--seeds", "1", "--device", "cpu"]) == 0 and len(requested) == 2


def test_finished_runs_are_never_run_again(here, monkeypatch):
    requested = []
    monkeypatch.setattr(module, "run_all", lambda experiments, *_: requested.extend(experiments) or {})
    (here / "data" / "cifar-10-batches-py").mkdir(parents=True)
    record(here / "results" / "x", CELL, 12.0, device="cuda:1", precision="bf16", threads=16)
    assert execute([*TWO, "--seeds", "2", "--device", "cpu"]) == 0
    assert [(e.method, e.seed) for e in requested] == [("default", 0), ("default", 1), ("mentornet-prop", 1)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["4"], "no table '4' of results; there are: 1, 2, 3, 5, 6, 7, 8, small"),
        (["2", "--dataset", "cifar-10"], "has no dataset 'cifar-10': did you mean cifar10?"),
        (["2", "--methods", "default,mentornett"], "has no methods 'mentornett': did you mean mentornet?"),
        (["2", "--methods", "elr"], "has no methods 'elr': use labelsieve table small or labelsieve compare"),
        (["small", "--methods", "mine"], "table small has no methods 'mine': "),
        (["2", "--noise", "pear"], "did you mean pair?"),
        (["2", "--rate", "0.5"], "has no rate '0.5': there are: 0, 0.1, 0.2, 0.3, 0.4, 0.6"),
        (["2", "--rate", "forty"], "--rate takes numbers such as 0.2,0.4, got 'forty'"),
        (["2", "--noise", "mixed", "--rate", "0.1"], "table 2 has no cell with --noise mixed --rate 0.1"),
        (["2", "--epochs", "3"], "--epochs is only for the table small"),
        (["2", "--seeds", "0"], "seeds must be at least 1"),
        (["2", "--format", "html"], "unknown format 'html'"),
        (["2", "--save", "gone/table.md"], "cannot write gone/table.md"),
        (["2", "--results", "gone"], "there is no folder gone of records"),
        (["2", "--show", "--model", "small"], "--model"),
        (["small", "--epochs", "0"], "epochs must be at least 1"),
        ([], "labelsieve table --help"),
    ],
)
def test_wrong_options_are_one_line_errors(arguments, says, here, capsys):
    assert execute(["table", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1 and not list(here.iterdir())


def test_the_small_table_takes_any_method(here, monkeypatch, capsys):
    monkeypatch.setitem(module.METHODS, "mine", module.METHODS["gce"])
    assert execute(["table", "small", "--show", "--methods", "mine, sl-prop", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["method"], row["noise"]) for row in rows] == [
        (method, noise) for noise in ("pair", "symmetry") for method in ("sl-prop", "mine")
    ]
    assert {row["paper"] for row in rows} == {""}
    assert [cell.experiment.method for cell in small_table().cells][:4] == [
        "default",
        "mentornet",
        "mentornet-prop",
        "sl-prop",
    ]


def test_rates_are_numbers(here, capsys):
    assert execute(["table", "2", "--show", "--rate", "0.40,.2", "--dataset", "cifar10", "--methods", "sl"]) == 0
    assert capsys.readouterr().out.count("\ncifar10 ") == 5  # pair and symmetry at both, mixed at one


def one_after_another(experiments, out, *_):
    failed = {}
    for e in experiments:
        if reason := Worker.run(e, out):
            failed[e] = reason
    return failed


def test_methods_of_a_trial_share_its_noise():
    cells = [c.experiment for c in small_table().cells if c.experiment.noise == "symmetry"]
    prints = {seed: {prepare(replace(e, seed=seed), Shelf()).fingerprint for e in cells} for seed in (0, 1)}
    assert [len(found) for found in prints.values()] == [1, 1] and prints[0] != prints[1]
    paper = [
        c.experiment for c in tables()["2"].cells if (c.experiment.data, c.experiment.noise) == ("cifar10", "pair")
    ]
    pair40 = [replace(e, data="fashion", model="small") for e in paper if e.rate == 0.4][:3]
    labels = [prepare(e, Shelf()).train.labels for e in pair40]
    assert all((other == labels[0]).all() for other in labels)


def test_failed_run_is_reported_and_the_others_are_shown(here, monkeypatch, capsys):
    table = Table("small", "Test", (Cell(quick(here, lr=1e30)), Cell(quick(here, noise="symmetry"))), seeds=1)
    monkeypatch.setattr(module, "small_table", lambda *_: table)
    assert execute(["table", "small", "--device", "cpu"]) == 1
    captured = capsys.readouterr()
    assert "failed: blobs.npz, pair 40%, default, seed 0: training diverged" in captured.err
    assert captured.err.splitlines()[-1].startswith("error: 1 runs failed; ")
    assert re.search(r"default +pair 40% +not run\n.*default +symmetry 40% +\d+\.\d+ \(1\)", captured.out)
    assert "1 runs are missing: failed: training diverged" in captured.out


def test_fine_tuning_starts_from_the_run_before(here, monkeypatch, capsys):
    monkeypatch.setattr(module, "run_all", one_after_another)
    start = quick(here)
    fine = replace(start, method="mentornet", lr=1e-12)
    table = Table("small", "Test", (Cell(start), Cell(fine, measure="chosen", start=start)), seeds=1)
    monkeypatch.setattr(module, "small_table", lambda *_: table)
    assert execute(["table", "small", "--device", "cpu", "--format", "csv", "--out", "out"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[1][3] == rows[2][3] != "not run"  # so small a learning rate changes nothing
    specs = [json.loads(path.read_text())["experiment"] for path in (here / "out").glob("*/spec.json")]
    assert {spec["method"]: spec["init"] is None for spec in specs} == {"default": True, "mentornet": False}
    monkeypatch.setattr(module, "run_all", lambda *_: pytest.fail("ran again"))
    assert execute(["table", "small", "--device", "cpu", "--out", "out"]) == 0


def test_fine_tuning_is_skipped_if_its_start_failed(here, monkeypatch, capsys):
    monkeypatch.setattr(module, "run_all", one_after_another)
    start = quick(here, lr=1e30)
    table = Table("small", "Test", (Cell(start), Cell(replace(start, lr=1e-6), start=start)), seeds=1)
    monkeypatch.setattr(module, "small_table", lambda *_: table)
    assert execute(["table", "small", "--device", "cpu"]) == 1
    assert "1 runs are missing: the run that they start from failed" in capsys.readouterr().out


SMALL = ["table", "small", "--methods", "default,mentornet-prop", "--noise", "pair", "--epochs", "3", "--device", "cpu"]


def start(out):
    return subprocess.Popen(
        [sys.executable, "-m", "labelsieve.cli", *SMALL, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_killed_table_is_resumed_to_the_same_result(tmp_path, capsys):
    whole, _ = start(tmp_path / "whole").communicate(timeout=LONG_WAIT)
    process = start(tmp_path / "pieces")
    while sum(p.read_bytes().count(b'"epoch"') for p in (tmp_path / "pieces").glob("*/record.jsonl")) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()  # the workers must notice
    assert b"leaked" not in process.communicate()[1]
    assert len(list((tmp_path / "pieces").glob("*/done"))) < 4
    second = start(tmp_path / "pieces")
    again, messages = second.communicate(timeout=LONG_WAIT)
    assert second.returncode == 0 and again == whole
    assert re.search(rb"mentornet-prop +pair 40% +\d+\.\d\d \xc2\xb1 \d+\.\d\d \(2\)", whole)
    assert b"4 of 4 runs done, 0 running, 0 waiting" in messages
    assert re.match(rb"resuming \d of 4 runs from their last epochs\n", messages)
    prints = [json.loads(p.read_text())["data"] for p in (tmp_path / "pieces").glob("*/spec.json")]
    assert len(prints) == 4 and len(set(prints)) == 2  # both methods of a trial have the same noise
    assert execute([*SMALL, "--out", str(tmp_path / "pieces"), "--show"]) == 0
    assert capsys.readouterr().out.encode() == whole
