"""compare: methods as they are named, and what is shown of them."""

import csv
import io
import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.runs.read import Run
from labelsieve.runs.spec import Experiment
from labelsieve.runs.tables import pairs_among, run_by_run
from labelsieve.sweep.compare import Named, expanded, named
from labelsieve.sweep.watch import title


def test_a_method_with_a_criterion_and_options():
    assert named("sl") == Named("sl", None, ())
    assert (
        named("co-teaching:all") == Named("co-teaching", "all", ())
        and str(named("co-teaching:all")) == "co-teaching (all)"
    )
    both = named("mentornet:all:lam=0.5:align=true")
    assert both == Named("mentornet", "all", (("align", True), ("lam", 0.5)))
    assert str(both) == "mentornet (all, align True, lam 0.5)"
    with pytest.raises(InputError, match="names two criteria, ol and all"):
        named("mentornet:ol:all")
    with pytest.raises(InputError, match="the option lam is given twice"):
        named("mentornet-prop:lam=1:lam=2")


def test_methods_are_named_with_commas_and_count_once():
    assert expanded("sl, sl-prop,sl") == ["sl", "sl-prop"]
    assert expanded("all")[-1] == "co-teaching:all" and expanded("sl,,") == ["sl"]
    with pytest.raises(InputError, match="--methods names no method; write such as default,mentornet-prop"):
        expanded(" ,")


def compared(tmp_path, methods, *more):
    images = np.random.default_rng(0).integers(0, 255, size=(60, 8, 8), dtype=np.uint8)
    labels = np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", images=images, labels=labels, test_images=images[:12], test_labels=labels[:12])
    short = ["--epochs", "2", "--warmup", "1", "--model", "small", "--seeds", "1", "--noise", "pair", "--rate", "0.3"]
    return execute(
        ["compare", str(tmp_path / "mine.npz"), "--methods", methods, *short, "--out", str(tmp_path / "out"), *more]
    )


def test_one_method_with_different_options_side_by_side(tmp_path, capsys):
    assert compared(tmp_path, "mentornet-prop,mentornet-prop:lam=0.5,mentornet-prop") == 0
    said = capsys.readouterr().out
    assert said.startswith("2 runs: mentornet-prop, mentornet-prop:lam=0.5; 30% pair noise; seed 0")
    assert "mentornet-prop (lam 0.5) minus mentornet-prop, last test error seed by seed:" in said
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert table[0] == "**mine, 60 images, 30% pair noise, seed 0**"
    assert [line.split(" | ")[0] for line in table[4:6]] == ["| mentornet-prop", "| mentornet-prop (lam 0.5)"]
    assert table[-1].startswith("- mentornet-prop (lam 0.5) minus mentornet-prop, last test error seed by seed: ")


@pytest.mark.parametrize(
    ("methods", "says"),
    [("mentornet:lam=0.5", "mentornet has no option 'lam'"), ("mentornet-prop:lam=", "option lam cannot be ''")],
)
def test_options_that_a_method_does_not_have_are_refused(tmp_path, capsys, methods, says):
    assert compared(tmp_path, methods) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_variants_of_a_method_are_told_apart_while_they_run():
    usual = Experiment("fashion", method="mentornet-prop", noise="pair", rate=0.4, seed=1)
    other = replace(usual, criterion="ol", options=(("lam", 0.5),))
    assert title(usual) == "fashion, pair 40%, mentornet-prop, seed 1"
    assert title(other) == "fashion, pair 40%, mentornet-prop:ol:lam=0.5, seed 1"


def test_all_can_be_set_against_one_that_is_named():
    assert pairs_among(["sl", "sl-prop", "mine"], "sl-prop") == [("sl", "sl-prop"), ("mine", "sl-prop")]
    many = ["default", "mentornet-prop", *"abcdef"]
    assert pairs_among(many, "c") == [(method, "c") for method in many if method != "c"]


def made(method, seed, last, precision):
    end = {"best": last - 2, "last": last, "last_ten": last + 0.125}
    return Run({"method": method, "criterion": None, "seed": seed}, [{"precision": precision}], end, {})


def test_a_row_per_run_by_hand():
    groups = {"a": [made("a", 0, 20.0, 0.5), made("a", 1, 30.0, None)], "b": [made("b", 1, 25.5, 0.75)]}
    assert run_by_run(groups, "a")[1:] == [
        ["a", "0", "18.00", "20.00", "20.12", "50.00", "", ""],
        ["a", "1", "28.00", "30.00", "30.12", "", "", ""],
        ["b", "1", "23.50", "25.50", "25.62", "75.00", "a", "-4.50"],
    ]
    assert [row[6:] for row in run_by_run(groups, "b")[1:]] == [["", ""], ["b", "4.50"], ["", ""]]


def test_it_is_written_in_other_formats_and_alone_on_the_terminal(tmp_path, capsys):
    both = ["default,mentornet", "--against", "mentornet", "--seeds", "2"]
    assert compared(tmp_path, *both, "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["method"], row["seed"]) for row in rows] == [(m, s) for m in ("default", "mentornet") for s in "01"]
    ends = {}
    for record in (tmp_path / "out").glob("*/record.jsonl"):
        spec = json.loads((record.parent / "spec.json").read_text())["experiment"]
        ends[spec["method"], str(spec["seed"])] = json.loads(record.read_text().splitlines()[-1])
    for row in rows:
        end = ends[row["method"], row["seed"]]
        assert (row["best test error"], row["last test error"]) == (f"{end['best']:.2f}", f"{end['last']:.2f}")
        if row["method"] == "default":
            base = ends["mentornet", row["seed"]]["last"]
            assert (row["against"], row["last minus that"]) == ("mentornet", f"{end['last'] - base:.2f}")
    file = tmp_path / "table.tex"
    assert compared(tmp_path, *both, "--format", "latex", "--save", str(file)) == 0
    text = file.read_text()
    assert f"table: {file}\n" in capsys.readouterr().out and r"\begin{tabular}{lllll}" in text
    assert "default minus mentornet, last test error seed by seed" in text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--format html", "unknown format 'html'"),
        ("--save gone/table.md", "cannot write gone/table.md"),
        ("--against sl", "--against sl is not among the methods; "),
        ("--forward second", "--forward second does not go with co-teaching: "),
        ("--forward third", "forward must be one or second"),
        ("--sampler none", "sampler must be permutation or independent"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(tmp_path, capsys, more, says):
    assert compared(tmp_path, "mentornet,co-teaching", *shlex.split(more)) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1 and not captured.out
    assert not (tmp_path / "out").exists()


def test_another_sampler_and_forward_pass(tmp_path):
    assert compared(tmp_path, "default,mentornet", "--forward", "second", "--sampler", "independent") == 0
    specs = [json.loads(path.read_text())["experiment"] for path in (tmp_path / "out").glob("*/spec.json")]
    assert [(spec["forward"], spec["sampler"]) for spec in specs] == [("second", "independent")] * 2


@pytest.mark.parametrize(
    "command",
    [
        "compare --noise pair --rate 0.4 --out {file}",
        "compare --noise pair --rate 0.4 --out {file}/deep/er",
        "demo --out {file}",
        "train --noise pair --rate 0.4 --epochs 2 --out {file}",
        "train --noise pair --rate 0.4 --epochs 2 --out {file}/deep",
        "train --noise-rate auto --epochs 2 --out {file}",
        "table small --out {file}",
        "figure 8 --dataset fashion --out {file}",
        "figure 7 --save {file}",
    ],
)
def test_a_file_is_no_folder_for_runs(tmp_path, capsys, command):
    file = tmp_path / "mine.txt"
    file.write_text("my own work\n")
    assert execute(command.format(file=file).split()) == 2
    captured = capsys.readouterr()
    wanted = f"error: {file} is a file, not a folder"
    assert captured.err.startswith(wanted) and captured.err.count("\n") == 1 and captured.out == ""
    assert file.read_text() == "my own work\n" and list(Path(tmp_path).iterdir()) == [file]


def test_the_bench_does_not_write_over_ones_own_file(tmp_path, capsys):
    file = tmp_path / "mine.txt"
    file.write_text("my own work\n")
    assert execute(["bench", "--out", str(file)]) == 2
    assert "may be your own work" in capsys.readouterr().err and file.read_text() == "my own work\n"
