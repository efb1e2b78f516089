"""labelsieve figure: the runs and points of each figure, reproducible pictures, and one-line errors."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from labelsieve.cli import execute
from labelsieve.paper import draw, figures
from labelsieve.paper.draw import Curve, Line, Scored, selected_precision, sorted_scores
from labelsieve.paper.figures import FIGURES, MIXED, PointRuns, by_panel, count_seeds, points, spread_note
from labelsieve.paper.tables import tables
from labelsieve.runs import spec
from labelsieve.runs.data import noise_matrix
from labelsieve.runs.find import identity, known_runs
from labelsieve.runs.record import errors
from labelsieve.runs.spec import Experiment
from tests.conftest import blobs


def write_run(experiment, root, best=20.0, precision=0.7):
    """Write the folder of a finished run as it would be committed."""
    folder = root / experiment.name()
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"experiment": experiment.as_dict()}))
    measured = {"precision": precision, "test_error": best}
    epochs = [{"event": "epoch", "epoch": e + 1, **measured} for e in range(experiment.epochs)]
    rows = [{"event": "start"}, *epochs, {"event": "end", "chosen_epoch": 1, **errors(epochs)}]
    (folder / "record.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "done").touch()
    return folder


def write_scores(path, count=4000):
    random = np.random.default_rng(0)
    clean = random.integers(0, 10, count).astype(np.uint8)
    label = np.where(random.random(count) < 0.4, (clean + 1) % 10, clean).astype(np.uint8)
    ol, pl = (random.random(count).astype(np.float32) for _ in range(2))
    save_file({"ol": ol, "pl": pl, "all": ol - pl, "label": label, "clean": clean}, path)


def show(number, *arguments, out, results=None):
    results = results or out / "nowhere"
    return execute(["figure", str(number), "--show", "--out", str(out), "--results", str(results), *arguments])


@pytest.mark.parametrize(("number", "noise", "count"), [(8, "pair", 36), (9, "symmetry", 36)])
def test_figures_8_and_9_are_cells_of_table_2(number, noise, count):
    table = {cell.experiment: cell.published for cell in tables()["2"].cells}
    found = points(number)
    assert len(found) == count and all(table[point.experiment] == point.published for point in found)
    assert {point.experiment.noise for point in found} == {noise}
    assert all(point.x == 100 * point.experiment.rate for point in found)


def test_figures_10_and_11_share_their_runs_with_table_2():
    table = {cell.experiment: cell.published for cell in tables()["2"].cells}
    tens = {(point.series, point.x): point for point in points(10)}
    assert [x for series, x in tens if series == "pair, 40%"] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert tens["pair, 40%", 0.0].published == (52.8, 0.69) and tens["symmetry, 40%", 1.0].published == (38.3, 0.11)
    assert tens["pair, 40%", 1.5].published is None and tens["pair, 40%", 1.5].experiment.options == (("lam", 1.5),)
    assert all((point.experiment in table) == (x in (0.0, 1.0)) for (_, x), point in tens.items())
    elevens = points(11)
    assert [point.experiment in table for point in elevens] == [True, False, True] * 2
    assert elevens[1].experiment.criterion == "pl" and elevens[1].published == (85.0, None)


def test_figure_3_uses_the_first_epochs_of_the_protocol():
    pair, mixed = (point.experiment for point in points(3))
    assert (pair.epochs, pair.warmup, pair.drops, pair.scores, pair.seed) == (26, 25, (), (25,), 0)
    assert mixed == replace(pair, noise=MIXED)
    row = noise_matrix(mixed.noise, mixed.rate, "", 10)[3].tolist()  # of the class that becomes the observed one
    assert row[4] == pytest.approx(0.24) and row[3] == pytest.approx(0.6)
    assert [row[k] for k in (0, 1, 2, 5, 6, 7, 8, 9)] == pytest.approx([0.02] * 8)


@pytest.mark.parametrize("noise", ["mixed:", "mixed:much", "mixed:1.5", "pair:0.5", "mixt"])
def test_wrong_noise_is_a_one_line_error(noise, capsys, tmp_path):
    assert execute(["train", "--noise", noise, "--rate", "0.4", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and ("mixed:0.6" in error or "dominant" in error or "did you mean" in error)


def test_run_is_found_wherever_it_ran(tmp_path):
    experiment = points(8)[-1].experiment
    elsewhere = replace(experiment, device="cuda", precision="bf16", threads=7, workers=3, scores=(5,))
    folder = write_run(elsewhere, tmp_path / "a")
    write_run(elsewhere, tmp_path / "b")
    found = known_runs(tmp_path / "a", tmp_path / "b")
    assert found == {identity(experiment.as_dict()): folder}
    assert known_runs(tmp_path, holding="scores-5.safetensors") == {}


def test_old_specification_is_found():
    point = points(8)[0]
    old = {name: v for name, v in point.experiment.as_dict().items() if name not in ("drops", "nesterov", "scores")}
    assert identity(old) == identity(point.experiment.as_dict())


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"options": (("lam", 1.0),)}, True),
        ({"options": (("lam", 0.5),)}, False),
        ({"data": "cifar100"}, False),
        ({"drops": ()}, False),
        ({"seed": 1}, False),
        ({"criterion": "ol"}, False),
    ],
)
def test_identity_has_only_settings_that_change_the_result(change, same):
    base = Experiment(data="cifar10", method="mentornet-prop")
    assert (identity(base.as_dict()) == identity(replace(base, **change).as_dict())) is same


def scored(step):
    """Return ten samples of label 4, with wrong labels from class 3 (dominant) and class 7."""
    clean = np.array([4, 3, 4, 7, 4, 3, 4, 4, 3, 4, 9, 9])
    label = np.array([4] * 10 + [9, 9])
    ol = np.array([0.9, 0.8, 0.7, 0.1, 0.6, 0.2, 0.5, 0.4, 0.3, 0.95, 0.0, 1.0])
    pl = np.array([0.0, 0.7, 0.1, 0.2, 0.15, 0.6, 0.05, 0.3, 0.5, 0.01, 0.9, 0.9])
    return Scored({"ol": ol, "pl": pl, "all": ol - pl, "label": label, "clean": clean}, 4, 3, 0.6, step)


def test_figure_3_sorts_the_samples_of_one_label():
    values, kinds = sorted_scores(scored(1), "ol")
    assert values.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
    assert kinds.tolist() == [2, 1, 1, 0, 0, 0, 0, 1, 0, 0]
    assert selected_precision(scored(1), "ol") == 5 / 6
    values, kinds = sorted_scores(scored(1), "pl")
    assert values.tolist() == [0.7, 0.6, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05, 0.01, 0.0]
    assert kinds.tolist() == [1, 1, 1, 0, 2, 0, 0, 0, 0, 0]
    assert selected_precision(scored(5), "pl") == 5 / 6  # of all samples, shown or not
    values, kinds = sorted_scores(scored(3), "ol")  # samples 0, 3, 6, 9
    assert values.tolist() == [0.1, 0.5, 0.9, 0.95] and kinds.tolist() == [2, 0, 0, 0]


PICTURES = {
    "errors": lambda: draw.draw_errors(
        {"data": [Line("a", {10: [1.0, 2.0], 20: [3.0]}, {10: (1.5, 0.1), 20: (2.0, None)}), Line("b", {})]},
        "title",
        "x",
        "paper",
    ),
    "precision": lambda: draw.draw_precision(
        {"pair": [Curve("a", [[60.0, 70.0], [60.0, 80.0]], 70.0), Curve("b", [])]}, "title", 1, "paper"
    ),
    "scores": lambda: draw.draw_scores({"pair": scored(1)}, "title"),
    "matrices": lambda: draw.draw_matrices({"pair": np.eye(3)}, "title"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_reproducible(name):
    first, second = PICTURES[name](), PICTURES[name]()
    assert first["png"].startswith(b"\x89PNG") and b"<svg" in first["svg"] and b"<dc:date>" not in first["svg"]
    assert first == second


def test_mean_and_standard_error_are_drawn(monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    errorbar = Axes.errorbar
    monkeypatch.setattr(Axes, "errorbar", lambda self, *a, **k: (drawn.append(a), errorbar(self, *a, **k))[1])
    PICTURES["errors"]()
    (at, means, spread), paper, _ = drawn
    assert at == pytest.approx([10, 20], abs=0.2) and (means, list(spread)) == ((1.5, 3.0), [0.5, 0.0])
    assert paper == (pytest.approx(10, abs=0.2), 1.5, 0.1)


def test_finished_runs_are_drawn_and_missing_ones_are_counted(tmp_path, capsys):
    rated = [point.experiment for point in points(8, "cifar10") if point.experiment.rate == 0.4]
    for experiment in rated[1:]:
        write_run(experiment, tmp_path / "results")
    out = tmp_path / "out"
    assert show(8, "--seeds", "1", out=out, results=tmp_path / "results") == 0
    said = capsys.readouterr().out
    assert "34 of 36 runs are missing, such as cifar10, pair 10%, default, seed 0\n" in said
    assert sorted(path.name for path in out.iterdir()) == ["figure-8.png", "figure-8.svg"]
    assert show(11, "--dataset", "cifar10", "--save", str(tmp_path / "docs"), out=tmp_path / "results") == 0
    assert (tmp_path / "docs" / "figure-11-cifar10.svg").exists()
    assert "such as cifar10, pair 40%, mentornet, seed 1" in capsys.readouterr().out


@pytest.mark.parametrize("number", [3, 8, 9, 10, 11])
def test_figure_without_runs_is_an_error(tmp_path, capsys, number):
    assert show(number, out=tmp_path) == 2
    assert capsys.readouterr().err == (
        f"error: no finished run of figure {number} in {tmp_path} or {tmp_path / 'nowhere'}: leave out --show\n"
    )
    assert not list(tmp_path.iterdir())


def test_figure_7_needs_no_runs(tmp_path, capsys):
    assert show(7, out=tmp_path) == 0
    assert capsys.readouterr().out == f"pictures: {tmp_path / 'figure-7'}.{{png,svg}}\n"


def test_figure_3_is_drawn_from_saved_scores(tmp_path, capsys):
    pair, mixed = (point.experiment for point in points(3))
    write_scores(write_run(pair, tmp_path) / "scores-25.safetensors")
    write_run(mixed, tmp_path)  # finished, but without scores
    assert show(3, out=tmp_path) == 0
    assert "1 of 2 runs are missing, such as cifar10, mixed:0.6 40%, mentornet-prop" in capsys.readouterr().out
    (tmp_path / pair.name() / "scores-25.safetensors").write_bytes(b"broken")
    assert show(3, out=tmp_path) == 2
    assert "cannot read the scores" in capsys.readouterr().err


def test_unknown_figures_and_data_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LABELSIEVE_DATA", str(tmp_path))
    for arguments, reason in {
        ("5",): f"there are {', '.join(map(str, FIGURES))}",
        ("8", "--dataset", "mnist"): "unknown dataset 'mnist' for a figure",
        ("8", "--seeds", "0"): "seeds must be at least 1",
        ("9",): "no cifar10 in",
    }.items():
        assert execute(["figure", *arguments, "--out", str(tmp_path / "out"), "--results", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert reason in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture
def blob_data(tmp_path, monkeypatch):
    """Make a tiny dataset known to the figures."""
    train, test = blobs(300, 0, classes=6), blobs(30, 1, classes=6)
    arrays = {"images": train.images[:, 0].numpy(), "labels": train.labels.numpy()}
    arrays |= {"test_images": test.images[:, 0].numpy(), "test_labels": test.labels.numpy()}
    monkeypatch.chdir(tmp_path)
    np.savez("blobs.npz", **arrays)
    monkeypatch.setitem(spec.DATASET_SETTINGS, "blobs.npz", {"model": "small", "epochs": 4, "lr": 0.02})
    monkeypatch.setitem(figures.DATASETS, "blobs.npz", "Blobs")
    monkeypatch.setattr("labelsieve.paper.figures.run_all", one_after_another)


def test_missing_runs_are_trained_once_and_then_drawn(blob_data, capsys):
    arguments = ["figure", "3", "--dataset", "blobs.npz", "--out", "out", "--device", "cpu"]
    assert execute(arguments) == 0
    assert "training 2 runs in out" in capsys.readouterr().out
    before = Path("out/figure-3-blobs.npz.svg").read_bytes()
    assert execute(arguments) == 0
    assert "training" not in capsys.readouterr().out
    assert Path("out/figure-3-blobs.npz.svg").read_bytes() == before


def test_figure_is_drawn_even_if_a_run_fails(blob_data, capsys, monkeypatch):
    def first_alone(experiments, out, *_):
        return one_after_another(experiments[:1], out) | {experiments[1]: "no reason"}

    monkeypatch.setattr("labelsieve.paper.figures.run_all", first_alone)
    assert execute(["figure", "3", "--dataset", "blobs.npz", "--out", "out", "--device", "cpu"]) == 1
    said = capsys.readouterr()
    assert "1 of 2 runs are missing" in said.out and said.err.startswith("error: 1 of 2 runs failed; ")
    assert Path("out/figure-3-blobs.npz.png").exists()


def one_after_another(experiments, out, *_):
    """Run a sweep in this process."""
    from labelsieve.runs.execute import run
    from labelsieve.sweep.sweep import folder_of

    for experiment in experiments:
        run(experiment, folder_of(experiment, out))
    return {}


def test_titles_contain_the_number_of_seeds(tmp_path):
    point = points(10)[0]
    known = [PointRuns(point, {0: tmp_path}), PointRuns(point, {})]
    assert count_seeds(known) == "one seed" and spread_note(known) == ""
    known.append(PointRuns(point, {0: tmp_path, 2: tmp_path}))
    assert count_seeds(known) == "1 to 2 seeds" and "standard error" in spread_note(known)
    assert count_seeds(known[2:]) == "2 seeds"
    assert list(by_panel(known)) == ["CIFAR-100; 1 to 2 seeds"] and by_panel(known[1:2]) == {}


def test_legend_shows_lines_and_marks_as_drawn():
    """Joined marks have a line, a single mark has none, and marks of the paper alone are hollow."""
    panels = {
        "a": [
            Line("joined", {0.0: [1.0], 1.0: [2.0]}),
            Line("alone", {0.0: [1.0]}),
            Line("paper's", {}, {0.0: (3.0, None)}),
        ],
        "b": [Line("joined", {0.0: [1.0]}), Line("alone", {}), Line("paper's", {}, {0.0: (3.0, 0.1)})],
    }
    figure = draw.draw_errors.__wrapped__(panels, "title", "x", "paper")
    (legend,) = figure.legends
    lines = {line.get_label(): (line.get_linestyle(), line.get_markerfacecolor()) for line in legend.get_lines()}
    assert lines["joined"][0] == ":" and lines["alone"] == ("None", "#D55E00") and lines["paper's"] == ("None", "none")


def test_legend_has_only_series_that_are_drawn():
    curves = {
        "pair": [Curve("Criteria_OL", [[60.0, 70.0]]), Curve("Criteria_PL", []), Curve("Criteria_ALL", [[60.0, 90.0]])]
    }
    svg = draw.draw_precision(curves, "title", 1, "paper")["svg"].decode()
    assert "Criteria_OL" in svg and "Criteria_ALL" in svg and "Criteria_PL" not in svg


def test_legend_of_a_single_panel_fits_the_picture():
    curves = [Curve(name, [[60.0, 70.0]], 70.0) for name in ("Criteria_OL", "Criteria_PL", "Criteria_ALL")]
    figure = draw.draw_precision.__wrapped__({"pair": curves}, "title", 1, "paper, approximate, from its text")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    place = legend.get_window_extent()
    assert place.x0 >= 0 and place.x1 <= figure.bbox.width
