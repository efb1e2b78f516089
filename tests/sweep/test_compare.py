"""labelsieve compare: parsing of methods, tables, formats and the picture."""

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
from labelsieve.runs.read import Run, by_method
from labelsieve.runs.spec import Experiment, MethodChoice, parse_method, parse_methods
from labelsieve.sweep.compare import _given_up, draw_comparison, true_penalty
from labelsieve.sweep.watch import title


def test_parse_method_with_criterion_and_options():
    assert parse_method("sl") == MethodChoice("sl", None, ())
    assert (
        parse_method("co-teaching:all") == MethodChoice("co-teaching", "all", ())
        and str(parse_method("co-teaching:all")) == "co-teaching (all)"
    )
    both = parse_method("mentornet:all:lam=0.5:align=true")
    assert both == MethodChoice("mentornet", "all", (("align", True), ("lam", 0.5)))
    assert str(both) == "mentornet (all, align True, lam 0.5)"
    with pytest.raises(InputError, match="has two criteria, ol and all"):
        parse_method("mentornet:ol:all")
    with pytest.raises(InputError, match="the option lam is given twice"):
        parse_method("mentornet-prop:lam=1:lam=2")


def test_parse_methods_removes_duplicates():
    assert parse_methods("sl, sl-prop,sl") == ["sl", "sl-prop"]
    assert parse_methods("all")[-1] == "co-teaching:all" and parse_methods("sl,,") == ["sl"]
    with pytest.raises(InputError, match="--methods is empty; write for example default,mentornet-prop"):
        parse_methods(" ,")


def run_compare(tmp_path, methods, *more):
    images = np.random.default_rng(0).integers(0, 255, size=(60, 8, 8), dtype=np.uint8)
    labels = np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", images=images, labels=labels, test_images=images[:12], test_labels=labels[:12])
    short = ["--epochs", "2", "--warmup", "1", "--model", "small", "--seeds", "1", "--noise", "pair", "--rate", "0.3"]
    return execute(
        ["compare", str(tmp_path / "mine.npz"), "--methods", methods, *short, "--out", str(tmp_path / "out"), *more]
    )


def test_one_method_with_different_options(tmp_path, capsys):
    assert run_compare(tmp_path, "mentornet-prop,mentornet-prop:lam=0.5,mentornet-prop") == 0
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
def test_unknown_options_of_a_method_are_refused(tmp_path, capsys, methods, says):
    assert run_compare(tmp_path, methods) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_titles_of_runs_contain_criterion_and_options():
    usual = Experiment("fashion", method="mentornet-prop", noise="pair", rate=0.4, seed=1)
    other = replace(usual, criterion="ol", options=(("lam", 0.5),))
    assert title(usual) == "fashion, pair 40%, mentornet-prop, seed 1"
    assert title(other) == "fashion, pair 40%, mentornet-prop:ol:lam=0.5, seed 1"


def test_other_formats_and_nothing_else_on_standard_output(tmp_path, capsys):
    both = ["default,mentornet", "--against", "mentornet", "--seeds", "2"]
    assert run_compare(tmp_path, *both, "--format", "csv") == 0
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
    assert run_compare(tmp_path, *both, "--format", "latex", "--save", str(file)) == 0
    text = file.read_text()
    assert f"table: {file}\n" in capsys.readouterr().out and r"\begin{tabular}{lllll}" in text
    assert "default minus mentornet, last test error seed by seed" in text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--format html", "unknown format 'html'"),
        ("--save gone/table.md", "cannot write gone/table.md"),
        ("--against sl", "--against sl is not one of the methods; "),
        ("--forward second", "--forward second does not work with jocor: "),
        ("--forward third", "forward must be one or second"),
        ("--sampler none", "sampler must be permutation or independent"),
    ],
)
def test_unusable_options_are_refused_before_anything_runs(tmp_path, capsys, more, says):
    assert run_compare(tmp_path, "mentornet,jocor", *shlex.split(more)) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1 and not captured.out
    assert not (tmp_path / "out").exists()


def test_sampler_and_forward_are_passed_on(tmp_path):
    assert run_compare(tmp_path, "default,mentornet", "--forward", "second", "--sampler", "independent") == 0
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
def test_file_in_place_of_a_folder_is_refused(tmp_path, capsys, command):
    file = tmp_path / "mine.txt"
    file.write_text("my own work\n")
    assert execute(command.format(file=file).split()) == 2
    captured = capsys.readouterr()
    wanted = f"error: {file} is a file, not a folder"
    assert captured.err.startswith(wanted) and captured.err.count("\n") == 1 and captured.out == ""
    assert file.read_text() == "my own work\n" and list(Path(tmp_path).iterdir()) == [file]


def finished(method, seed, last, precision=0.9):
    epochs = [{"test_error": last + 1, "precision": 0.6}, {"test_error": last, "precision": precision}]
    tables = {"noise": np.array([[6, 4], [0, 10]]), "last/penalty": np.array([[[0, 1], [1, 0]]], dtype=np.float32)}
    spec = {"method": method, "criterion": None, "seed": seed, "warmup": 1}
    return Run(spec, epochs, {"best": last - 2, "last": last}, tables)


GROUPS = by_method(
    [finished("sl", 1, 30.0), finished("sl-prop", 0, 10.0), finished("sl", 0, 20.0), finished("sl-prop", 1, 14.0)]
)


def test_classes_that_were_given_up_are_named_with_a_remedy():
    def run(options, kept):
        spec = {"method": "mentornet-prop", "criterion": None, "seed": 0, "noise_rate": 0.4, "options": options}
        return Run(spec, [{"kept": [0.6, 0.6]}, {"kept": kept}], {}, {}, classes=["boot", "shirt"])

    plain, aligned = run([], [0.6, 0.1]), run([["align", True]], [0.6, 0.5])
    what = "mentornet-prop, seed 0: the selection kept few samples of shirt (10%), and the network hardly learned them"
    assert _given_up({"mentornet-prop": [plain]}) == [
        f"{what}; to prevent this, add mentornet-prop:align=true to --methods"
    ]
    both = {"mentornet-prop": [plain], "mentornet-prop (align True)": [aligned]}
    assert _given_up(both) == [f"{what}; mentornet-prop (align True) prevents this"]


def test_true_penalty_by_hand():
    noise = np.array([[6, 4, 0], [0, 10, 0], [0, 1, 9]])
    assert true_penalty(noise).tolist() == [[0, 0, 0], [0.8, 0, 0.2], [0, 0, 0]]


def test_picture_is_a_png(tmp_path):
    draw_comparison(GROUPS, ["x", "y"], "title", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_legend_does_not_cover_the_panels(tmp_path, monkeypatch):
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    named = {f"mentornet-prop (align True, lam {n})": runs for n, runs in enumerate(GROUPS.values())}
    draw_comparison(named, ["x", "y"], "title", tmp_path / "picture.png")
    figure = pyplot.gcf()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(named)
    assert not any(axis.get_tightbbox().overlaps(legend.get_window_extent()) for axis in figure.axes)
    monkeypatch.undo()
    pyplot.close(figure)
