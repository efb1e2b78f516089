"""labelsieve table: which runs count, the numbers by hand, what is printed, what is run and what is not."""

import csv
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.paper import reproduce as module
from labelsieve.paper.comparison import Entry, blocks, difference, measured, ours, paired_rows, papers, within
from labelsieve.paper.tables import Cell, Table, experiment, small_table, tables
from labelsieve.runs.execute import prepare, run
from labelsieve.runs.find import identity, known_runs
from labelsieve.runs.read import Run
from labelsieve.runs.record import errors
from labelsieve.runs.spec import Experiment
from labelsieve.runs.tables import Block, Document, written
from labelsieve.sweep import sweep as sweep_module
from labelsieve.sweep import watch
from labelsieve.sweep.sweep import folder_of, sweep
from tests.conftest import blobs

CELL = experiment("cifar10", "mentornet-prop", "pair", 0.4)
TWO = ["table", "2", "--dataset", "cifar10", "--noise", "pair", "--rate", "0.4", "--methods", "default,mentornet-prop"]


def record(folder: Path, what: Experiment, best: float, rounds: dict[int, float] | None = None, **spec) -> Path:
    """A finished run as it would be committed: no weights."""
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
    """An empty folder to be in, without any published data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABELSIEVE_DATA", raising=False)
    return tmp_path


def quick(folder: Path, **more) -> Experiment:
    """A run of a second, on images of its own."""
    path = folder / "blobs.npz"
    if not path.exists():
        arrays = {}
        for prefix, data in (("", blobs(150, 0)), ("test_", blobs(40, 1))):
            arrays |= {f"{prefix}images": data.images[:, 0].numpy(), f"{prefix}labels": data.labels.numpy()}
        np.savez(path, **arrays)
    usual = {"noise": "pair", "rate": 0.4, "noise_rate": 0.4, "method": "default", "model": "small", "lr": 0.02}
    return Experiment(data=str(path), **{**usual, "batch": 32, "epochs": 2, "warmup": 0, **more})


# ---- which runs count


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
def test_where_it_ran_and_usual_options_do_not_matter(elsewhere):
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
def test_all_that_changes_the_result_matters(other):
    assert identity({**CELL.as_dict(), **other}) != identity(CELL.as_dict())


def test_old_specifications_lack_newer_fields():
    new = {"weights", "nesterov", "drops", "drop_factor", "drop_last", "augment", "normalise", "weight_decay", "init"}
    old = {name: value for name, value in CELL.as_dict().items() if name not in new}
    assert identity(old) == identity(CELL.as_dict())


def test_weights_are_known_by_name_and_a_start_by_being_there():
    fine = tables()["7"].cells[-1]
    spec = fine.experiment.as_dict()
    assert identity({**spec, "init": "a"}) == identity({**spec, "init": "b/c"}) != identity(spec)
    first = fine.start.as_dict()
    assert identity({**first, "weights": f"elsewhere/{first['weights']}"}) == identity(first)
    assert identity({**first, "weights": "other.pth"}) != identity(first)


def test_of_two_that_match_the_one_in_out_counts_then_the_first_by_name(tmp_path):
    record(tmp_path / "results" / "deep" / "b", CELL, 12.0, device="cuda")
    record(tmp_path / "results" / "deep" / "a", CELL, 11.0, precision="bf16", device="cuda")
    unfinished = record(tmp_path / "out" / "0", CELL, 1.0)
    (unfinished / "done").unlink()
    roots = tmp_path / "out", tmp_path / "results"
    assert known_runs(*roots) == {identity(CELL.as_dict()): tmp_path / "results" / "deep" / "a"}
    record(tmp_path / "out" / "z", CELL, 13.0)
    assert known_runs(*roots) == {identity(CELL.as_dict()): tmp_path / "out" / "z"}


def test_a_record_that_cannot_be_read_is_named(here, capsys):
    (record(here / "results" / "x", CELL, 12.0) / "spec.json").write_text("{")
    assert execute([*TWO, "--show"]) == 2
    assert "results/x/spec.json is damaged: it is no JSON" in capsys.readouterr().err


# ---- the numbers


def entry(errors, published=(12.2, 0.12), **more):
    return Entry("cifar10", "sl", "pair", 0.4, dict(enumerate(errors)), published, **more)


def test_statistics_by_hand():
    """11, 12, 13: mean 12, deviation 1, standard error 1/sqrt(3) = 0.577."""
    cell = entry([11.0, 12.0, 13.0], (13.0, 0.2))
    assert ours(cell) == "12.00 ± 0.58 (3)" and papers(cell) == "13.0 ± 0.20" and difference(cell) == "-1.00"
    assert within(cell) == "yes"  # 2 * sqrt(0.333 + 0.04) = 1.222
    assert within(entry([11.0, 12.0, 13.0], (13.25, 0.2))) == "no"
    assert within(entry([11.0, 12.0, 13.0], (13.25, 0.3))) == "yes"  # 2 * sqrt(0.333 + 0.09) = 1.301
    edge = 2 * math.hypot(math.sqrt(1 / 3), 0.2)
    assert within(entry([11.0, 12.0, 13.0], (12 + edge, 0.2))) == "yes"


def test_what_cannot_be_said_is_not_said():
    assert (ours(entry([12.5])), within(entry([12.5])), difference(entry([12.5]))) == (
        "12.50 (1)",
        "n too small",
        "+0.30",
    )
    assert within(entry([12.0, 13.0], (12.2, None))) == "no spread printed"
    nothing = entry([])
    assert (ours(nothing), within(nothing), difference(nothing)) == ("not run", "", "")
    assert within(entry([1.0, 2.0], None)) == "" and papers(entry([1.0], None)) == ""


def test_the_papers_digits_are_kept():
    assert papers(entry([], (16.0, 0.3))) == "16.0 ± 0.30"
    assert papers(entry([], (30.7, None), digits=2)) == "30.70"


def test_which_error_of_a_run():
    def row(epoch, error, **more):
        return {"epoch": epoch, "test_error": error, **more}

    one = Run({"seed": 0}, [row(1, 30.0), row(2, 20.0), row(3, 25.0)], {"best": 20.0, "chosen_epoch": 3}, {})
    assert measured(one, "best") == 20.0 and measured(one, "chosen") == 25.0
    three = [row(n, e + n, round=k) for k, e in ((1, 40.0), (2, 30.0), (3, 35.0)) for n in (1, 2)]
    selfie = Run({"seed": 0, "method": "selfie", "criterion": None}, three, {"best": 36.0, "chosen_epoch": 2}, {})
    assert [measured(selfie, f"round {k}") for k in (1, 2, 3)] == [41.0, 31.0, 36.0]
    assert measured(selfie, "chosen") == 37.0
    with pytest.raises(InputError, match="has no round 4"):
        measured(selfie, "round 4")


def test_pairs_are_compared_seed_by_seed_where_both_are_there():
    def cell(method, errors, rate=0.4):
        return Entry("cifar10", method, "pair", rate, errors)

    rows = paired_rows(
        [
            cell("default", {0: 20.0, 1: 22.0}),
            cell("mentornet", {}),
            cell("mentornet-prop", {0: 12.0, 1: 13.0, 2: 99.0}),
            cell("sl", {0: 5.0}, 0.2),
            cell("sl-prop", {1: 5.0}, 0.2),
        ]
    )
    expected = ["mentornet-prop minus default", "pair 40%", "-8.00, -9.00", "-8.50 ± 0.50 (2)"]
    assert rows[1:] == [expected]


# ---- how it looks


def test_few_cells_are_lines_and_many_have_a_column_per_noise():
    def some(methods, rates):
        return [Entry("cifar10", m, "pair", r, {0: 1.0}, (1.0, 0.1)) for m in methods for r in rates]

    (few,) = blocks(some("ab", (0.1, 0.2)), by_noise=True)
    assert len(few.rows) == 5 and few.rows[1][:3] == ["cifar10", "a", "pair 10%"]
    (many,) = blocks(some("abcdefgh", (0.1, 0.2, 0.3)), by_noise=True)
    assert many.title == "cifar10, pair noise" and many.rows[0] == ["method", "", "pair 10%", "pair 20%", "pair 30%"]
    assert many.rows[1:4] == [
        ["a", "ours (n)", *["1.00 (1)"] * 3],
        ["", "paper", *["1.0 ± 0.10"] * 3],
        ["", "difference", *["+0.00 ?"] * 3],
    ]
    alone = some("abcdefghijklmnopqrstuvwxyz", (0.1,))
    assert len(blocks(alone, by_noise=True)[0].rows) == 27  # one column would be a waste


DOCUMENT = Document(
    "Errors in %",
    [Block("", [["data", "method", "ours"], ["cifar_10", "a & b", "-1.5 ± 0.20 (3)"]])],
    ["note {1} #2"],
)


def test_text_is_aligned():
    assert written(DOCUMENT, "text") == (
        "Errors in %\n\n"
        "data      method  ours\n"
        "--------  ------  ---------------\n"
        "cifar_10  a & b   -1.5 ± 0.20 (3)\n\n"
        "note {1} #2\n"
    )


def test_markdown():
    assert "| cifar_10 | a & b | -1.5 ± 0.20 (3) |" in written(DOCUMENT, "markdown")


def test_csv_reads_back():
    rows = list(csv.reader(io.StringIO(written(DOCUMENT, "csv"))))
    assert rows == DOCUMENT.blocks[0].rows


def test_latex_is_whole_and_escaped():
    found = written(DOCUMENT, "latex")
    assert r"cifar\_10 & a \& b & $-1.5$ $\pm$ 0.20 (3) \\" in found and r"note \{1\} \#2" in found
    assert r"\caption{Errors in \%}" in found
    for one in ("toprule", "midrule", "bottomrule"):
        assert found.count(rf"\{one}") == 1
    opened, closed = (re.findall(rf"\\{word}{{(\w+)}}", found) for word in ("begin", "end"))
    assert opened == closed[::-1] == ["table", "tabular"]
    columns = re.search(r"\\begin{tabular}{(l+)}", found)[1]
    body = found[found.index(r"\toprule") : found.index(r"\bottomrule")]
    assert all(line.replace(r"\&", "").count("&") == len(columns) - 1 for line in body.splitlines() if "&" in line)
    assert found.isascii() and found.count("{") == found.count("}")
    outside = re.sub(r"\\[%&_#${}]", "", found.split("\n", 1)[1])
    assert not re.search(r"[#%_]", outside) and outside.count("$") % 2 == 0


def test_remarks_are_told_but_are_no_part_of_a_latex_table():
    remarked = replace(DOCUMENT, remarks=["not run: 3_of #4"])
    assert written(remarked, "text").endswith("\nnote {1} #2\nnot run: 3_of #4\n")
    assert written(remarked, "markdown").endswith("\n- note {1} #2\n- not run: 3_of #4\n")
    first, second, rest = written(remarked, "latex").split("\n", 2)
    assert second == "% not run: 3_of #4" and first + "\n" + rest == written(DOCUMENT, "latex")


# ---- the command


def test_show_reads_records_and_runs_nothing(here, monkeypatch, capsys):
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
    assert "not run: 2 of the runs; no finished run in runs/paper or results, and no cifar10 in data: put" in said
    (here / "data" / "cifar-10-batches-py").mkdir(parents=True)
    assert execute([*TWO, "--show"]) == 0
    assert "no finished run in runs/paper or results: without --show they are run" in capsys.readouterr().out


def test_without_data_and_runs_there_is_nothing_to_show(here, monkeypatch, capsys):
    monkeypatch.setattr(module, "run_all", lambda *_: pytest.fail("ran something"))
    assert execute(TWO) == 2
    captured = capsys.readouterr()
    assert "nothing that was asked of table 2 is there or can be run: no cifar10 in data: put cifar-10" in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
    assert execute([*TWO, "--show"]) == 0 and "and no cifar10 in data" in capsys.readouterr().out
    record(here / "results" / "one", CELL, 12.0)  # then there is something
    assert execute(TWO) == 0 and "not run: 5 of the runs; no cifar10 in data" in capsys.readouterr().out


def test_a_csv_has_one_number_in_each_place(here, capsys):
    for seed, best in enumerate((12.0, 12.5, 13.0)):
        record(here / "results" / f"prop-{seed}", replace(CELL, seed=seed), best)
    assert execute([*TWO, "--show", "--format", "csv"]) == 0
    default, prop = csv.DictReader(io.StringIO(capsys.readouterr().out))
    own, papers = ["3", "12.50", "0.29", "12.00 12.50 13.00"], ["12.2", "0.12", "0.30", "yes"]
    assert list(prop.values()) == ["cifar10", "mentornet-prop", "pair", "0.4", *own, *papers]
    assert list(default.values())[1:] == ["default", "pair", "0.4", "0", "", "", "", "18.4", "0.35", "", "not run"]


def test_rounds_come_from_one_run(here, capsys):
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
    assert "not run: 3 of the runs" in capsys.readouterr().out  # twelve cells are four runs


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv"])
@pytest.mark.parametrize("name", ["1", "2", "3", "5", "6", "7", "8", "small"])
def test_every_table_can_be_shown_in_every_format(name, form, here, capsys):
    file = here / "table"
    assert execute(["table", name, "--show", "--format", form, "--save", str(file)]) == 0
    assert capsys.readouterr().out == f"table: {file}\n"
    assert file.read_text().count("not run") >= 6


def test_cells_whose_data_is_not_there_do_not_stop_the_others(here, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(module, "run_all", lambda experiments, *_: asked.extend(experiments) or {})
    (here / "data" / "cifar-10-batches-py").mkdir(parents=True)
    assert execute(["table", "1", "--seeds", "2", "--device", "cpu", "--threads", "2"]) == 0
    assert {(e.data, e.seed, e.threads) for e in asked} == {("cifar10", 0, 2), ("cifar10", 1, 2)} and len(asked) == 6
    said = capsys.readouterr().out
    assert said.count("not run: 6 of the runs; no cifar100 in data") == 1
    assert said.count("not run: 6 of the runs; no tiny-imagenet in data") == 1


def test_weights_that_are_not_there_are_said_once(here, monkeypatch, capsys):
    monkeypatch.setattr(module, "run_all", lambda *_: pytest.fail("ran something"))
    (here / "data" / "clothing1m").mkdir(parents=True)
    assert execute(["table", "7", "--seeds", "1", "--device", "cpu"]) == 2
    assert capsys.readouterr().err.count("no data/resnet50-0676ba61.pth: put") == 1


def test_clothing1m_is_fine_tuned_from_its_own_cross_entropy_model(here, monkeypatch, capsys):
    """With weights and data there, cross-entropy runs first, and all others from the folder that it left."""
    asked = []

    def pretend(experiments, out, *_):
        asked.append(experiments)
        for e in experiments:
            record(folder_of(e, out), e, 30.0)
        return {}

    monkeypatch.setattr(module, "run_all", pretend)
    (here / "data" / "clothing1m").mkdir(parents=True)
    (here / "data" / "resnet50-0676ba61.pth").touch()
    assert execute(["table", "7", "--seeds", "1", "--device", "cpu"]) == 0
    (first,), second = asked
    assert first.weights == "data/resnet50-0676ba61.pth" and first.init is None
    assert len(second) == 9 and {e.init for e in second} == {str(folder_of(first, Path("runs/paper")))}
    assert "not run" not in capsys.readouterr().out
    assert execute(["table", "7", "--seeds", "1", "--device", "cpu"]) == 0 and len(asked) == 2


def test_finished_runs_are_never_run_again(here, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "run_all", lambda experiments, *_: asked.extend(experiments) or {})
    (here / "data" / "cifar-10-batches-py").mkdir(parents=True)
    record(here / "results" / "x", CELL, 12.0, device="cuda:1", precision="bf16", threads=16)
    assert execute([*TWO, "--seeds", "2", "--device", "cpu"]) == 0
    assert [(e.method, e.seed) for e in asked] == [("default", 0), ("default", 1), ("mentornet-prop", 1)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["4"], "no table '4' with numbers; there are: 1, 2, 3, 5, 6, 7, 8, small"),
        (["2", "--dataset", "cifar-10"], "has no dataset 'cifar-10': did you mean cifar10?"),
        (["2", "--methods", "default,mentornett"], "has no methods 'mentornett': did you mean mentornet?"),
        (["2", "--methods", "elr"], "has no methods 'elr': any method goes with labelsieve table small and with"),
        (["small", "--methods", "mine"], "table small has no methods 'mine': "),
        (["2", "--noise", "pear"], "did you mean pair?"),
        (["2", "--rate", "0.5"], "has no rate '0.5': there are: 0, 0.1, 0.2, 0.3, 0.4, 0.6"),
        (["2", "--rate", "forty"], "--rate takes numbers such as 0.2,0.4, got 'forty'"),
        (["2", "--noise", "mixed", "--rate", "0.1"], "table 2 has no cell with --noise mixed --rate 0.1"),
        (["2", "--epochs", "3"], "--epochs goes with the table small alone"),
        (["2", "--seeds", "0"], "seeds must be at least 1"),
        (["2", "--format", "html"], "unknown format 'html'"),
        (["2", "--save", "gone/table.md"], "cannot write gone/table.md"),
        (["2", "--results", "gone"], "no folder gone to search for records"),
        (["2", "--show", "--model", "small"], "--model"),
        (["small", "--epochs", "0"], "epochs must be at least 1"),
        ([], "labelsieve table --help"),
    ],
)
def test_wrong_options_are_one_line(arguments, says, here, capsys):
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


# ---- what is run


def one_after_another(experiments, out, *_):
    failed = {}
    for e in experiments:
        if reason := sweep_module._run_one(e, out):
            failed[e] = reason
    return failed


def test_methods_of_a_trial_share_its_noise():
    cells = [c.experiment for c in small_table().cells if c.experiment.noise == "symmetry"]
    prints = {seed: {prepare(replace(e, seed=seed)).fingerprint for e in cells} for seed in (0, 1)}
    assert [len(found) for found in prints.values()] == [1, 1] and prints[0] != prints[1]
    paper = [
        c.experiment for c in tables()["2"].cells if (c.experiment.data, c.experiment.noise) == ("cifar10", "pair")
    ]
    pair40 = [replace(e, data="fashion", model="small") for e in paper if e.rate == 0.4][:3]
    labels = [prepare(e).train.labels for e in pair40]
    assert all((other == labels[0]).all() for other in labels)


def test_one_that_fails_is_told_and_the_others_are_shown(here, monkeypatch, capsys):
    table = Table("small", "Test", (Cell(quick(here, lr=1e30)), Cell(quick(here, noise="symmetry"))), seeds=1)
    monkeypatch.setattr(module, "small_table", lambda *_: table)
    assert execute(["table", "small", "--device", "cpu"]) == 1
    captured = capsys.readouterr()
    assert "failed: blobs.npz, pair 40%, default, seed 0: training diverged" in captured.err
    assert captured.err.endswith("error: 1 of the runs failed; see above\n")
    assert re.search(r"default +pair 40% +not run\n.*default +symmetry 40% +\d+\.\d+ \(1\)", captured.out)
    assert "not run: 1 of the runs; failed: training diverged" in captured.out


def test_a_bug_in_one_run_does_not_lose_the_others(tmp_path, monkeypatch):
    import labelsieve.runs.execute

    def broken(what, path):
        if what.seed == 0:
            raise ZeroDivisionError("oops")
        return record(path, what, 1.0)

    monkeypatch.setattr(labelsieve.runs.execute, "run", broken)
    every = [replace(CELL, seed=seed) for seed in (0, 1)]
    failed = one_after_another(every, tmp_path)
    assert list(failed) == [every[0]] and re.search(r"test_table.py:\d+ raised Zero.*Error: oops; ", failed[every[0]])
    log = Path(failed[every[0]].split()[-1])
    assert "oops" in log.read_text()
    log.unlink()
    assert (folder_of(every[1], tmp_path) / "done").exists()


def test_a_process_that_dies_does_not_lose_the_others(tmp_path):
    """A worker is killed while it trains; the runs that its pool took along are run again."""
    every = [quick(tmp_path, seed=seed, epochs=50) for seed in range(2)]
    killed = []

    def report(done, total):
        for e in every:
            lock = folder_of(e, tmp_path) / "lock"
            if not killed and lock.exists() and (owner := lock.read_text()):
                killed.append(int(owner))
                os.kill(killed[0], signal.SIGKILL)

    assert sweep(every, tmp_path, report) == {}
    assert killed and sweep_module.runs_done(every, tmp_path) == 2


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


def test_fine_tuning_waits_for_a_start_that_failed(here, monkeypatch, capsys):
    monkeypatch.setattr(module, "run_all", one_after_another)
    start = quick(here, lr=1e30)
    table = Table("small", "Test", (Cell(start), Cell(replace(start, lr=1e-6), start=start)), seeds=1)
    monkeypatch.setattr(module, "small_table", lambda *_: table)
    assert execute(["table", "small", "--device", "cpu"]) == 1
    assert "not run: 1 of the runs; the run that they start from failed" in capsys.readouterr().out


# ---- how far it is


def test_standing_is_read_from_the_folders(tmp_path):
    every = [experiment("cifar10", "selfie", "pair", 0.4, seed=seed) for seed in range(4)]
    record(folder_of(every[0], tmp_path), every[0], 12.0)
    for e, lines, owner in ((every[1], 130, "123"), (every[2], 10, "")):
        folder = folder_of(e, tmp_path)
        folder.mkdir()
        (folder / "record.jsonl").write_text('{"event": "epoch"}\n' * lines)
        (folder / "lock").write_text(owner)
    found = watch.standing(every, tmp_path, time.time() - 5)
    assert str(found) == "1 of 4 runs done, 1 running, 2 to come"
    assert found.running == {"cifar10, pair 40%, selfie:history=15, seed 1": "round 2/3, epoch 30/100"}
    assert (found.epochs, found.epochs_done) == (1200, 300 + 130 + 10)
    assert watch.cut_before(every, tmp_path) == "of 4 runs 2 go on from the epochs that they had reached"
    assert watch.cut_before(every[:2], tmp_path) == "of 2 runs 1 goes on from the epoch that it had reached"
    assert watch.cut_before(every[3:], tmp_path) == watch.cut_before(every[:1], tmp_path) == ""
    assert watch.standing(every, tmp_path, time.time() + 60).running == {}  # taken before, by one that was killed
    assert watch.seconds_left(1200, 400, 600, 10.0) == 30.0 and watch.seconds_left(1200, 400, 400, 10.0) is None


def test_the_method_says_how_many_rounds_it_has():
    patrini = Experiment(method="f-correction", options=(("estimate", "patrini"),), epochs=10, warmup=3)
    assert watch.epochs_of(patrini) == 20 and watch.place(patrini, 14) == "round 2/2, epoch 4/10"
    assert watch.epochs_of(replace(patrini, options=())) == 10
    assert watch.epochs_of(replace(patrini, method="selfie", options=())) == 30
    assert watch.epochs_of(replace(patrini, options=(("unknown", 1),))) == 10


def test_lines_come_when_runs_end_and_now_and_then(capsys, monkeypatch):
    lines, clock = watch.Lines(), [0.0]
    monkeypatch.setattr(watch.time, "time", lambda: clock[0])
    for clock[0], done in ((100.0, 0), (101.0, 0), (102.0, 1), (120.0, 1), (140.0, 1)):
        lines.show(watch.Standing(3, done, {}, 30, 0), "")
    assert capsys.readouterr().err.splitlines() == [
        "0 of 3 runs done, 0 running, 3 to come",
        "1 of 3 runs done, 0 running, 2 to come",
        "1 of 3 runs done, 0 running, 2 to come",
    ]


def test_the_screen_shows_what_runs():
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with watch.Screen(console) as screen:
        screen.show(watch.Standing(3, 1, {"[mine], seed 0": "epoch 5/12"}, 36, 17), ", about 20 s left")
    said = console.file.getvalue()
    assert "1 of 3 runs done, 1 running, 1 to come, about 20 s left" in said and "[mine], seed 0" in said


def test_who_leaves_a_folder_empties_its_lock(tmp_path):
    run(quick(tmp_path), tmp_path / "run")
    assert (tmp_path / "run" / "lock").read_text() == ""


def test_on_is_passed_on_only_when_it_is_not_here(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(watch, "sweep", lambda *_, **more: given.append(more) or {})
    watch.run_all([CELL], tmp_path)
    watch.run_all([CELL], tmp_path, on="ray")
    assert given == [{}, {"on": "ray"}]


# ---- the real thing


SMALL = ["table", "small", "--methods", "default,mentornet-prop", "--noise", "pair", "--epochs", "3", "--device", "cpu"]


def start(out):
    return subprocess.Popen(
        [sys.executable, "-m", "labelsieve.cli", *SMALL, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_killed_and_started_again_it_ends_in_the_same_table(tmp_path, capsys):
    whole, _ = start(tmp_path / "whole").communicate(timeout=120)
    process = start(tmp_path / "pieces")
    while sum(p.read_bytes().count(b'"epoch"') for p in (tmp_path / "pieces").glob("*/record.jsonl")) < 7:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()  # it alone: its workers must notice
    assert b"leaked" not in process.communicate()[1]
    assert len(list((tmp_path / "pieces").glob("*/done"))) < 4
    second = start(tmp_path / "pieces")
    again, told = second.communicate(timeout=120)
    assert second.returncode == 0 and again == whole
    assert re.search(rb"mentornet-prop +pair 40% +\d+\.\d\d \xc2\xb1 \d+\.\d\d \(2\)", whole)
    assert b"4 of 4 runs done, 0 running, 0 to come" in told
    assert re.match(rb"of 4 runs \d goe?s? on from the epochs? that (it|they) had reached\n", told)
    prints = [json.loads(p.read_text())["data"] for p in (tmp_path / "pieces").glob("*/spec.json")]
    assert len(prints) == 4 and len(set(prints)) == 2  # the noise of a trial is both methods'
    assert execute([*SMALL, "--out", str(tmp_path / "pieces"), "--show"]) == 0
    assert capsys.readouterr().out.encode() == whole
