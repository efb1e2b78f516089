"""Numbers and pictures made from records."""

import math

import numpy as np
import pytest

from labelsieve.errors import InputError
from labelsieve.runs.read import Run, by_method, read_run
from labelsieve.runs.tables import comparison, markdown, mean_and_error, paired_differences, pairs_among
from labelsieve.sweep.compare import draw, true_penalty


def finished(method, seed, last, precision=0.9):
    epochs = [{"test_error": last + 1, "precision": 0.6}, {"test_error": last, "precision": precision}]
    tables = {"noise": np.array([[6, 4], [0, 10]]), "last/penalty": np.array([[[0, 1], [1, 0]]], dtype=np.float32)}
    spec = {"method": method, "criterion": None, "seed": seed, "warmup": 1}
    return Run(spec, epochs, {"best": last - 2, "last": last}, tables)


GROUPS = by_method(
    [finished("sl", 1, 30.0), finished("sl-prop", 0, 10.0), finished("sl", 0, 20.0), finished("sl-prop", 1, 14.0)]
)


def test_standard_error_by_hand():
    assert mean_and_error([1.0, 2.0, 6.0]) == (3.0, pytest.approx(math.sqrt(7 / 3)))
    assert math.isnan(mean_and_error([5.0])[1])


def test_table_and_paired_differences():
    assert comparison(GROUPS)[1] == ["sl", "23.0 ± 5.0", "25.0 ± 5.0", "90.0 ± 0.0", "2"]
    assert paired_differences(GROUPS) == [
        "sl-prop minus sl, last test error seed by seed: -10.0, -16.0; mean -13.0 ± 3.0"
    ]
    assert markdown(comparison(GROUPS)).splitlines()[1] == "| --- | ---: | ---: | ---: | ---: |"


def test_true_penalty_is_where_the_wrong_labels_come_from():
    noise = np.array([[6, 4, 0], [0, 10, 0], [0, 1, 9]])
    assert true_penalty(noise).tolist() == [[0, 0, 0], [0.8, 0, 0.2], [0, 0, 0]]


def test_picture_is_a_png(tmp_path):
    draw(GROUPS, ["x", "y"], "title", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_is_not_done_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a finished run"):
        read_run(tmp_path)


def test_a_method_of_ones_own_is_set_against_the_first():
    assert pairs_among(["mentornet", "mine"]) == [("mine", "mentornet")]
    assert pairs_among(["sl", "sl-prop", "mine"]) == [("sl-prop", "sl"), ("mine", "sl")]
    assert pairs_among(["mine"]) == []
    many = ["default", "mentornet-prop", *"abcde"]
    assert pairs_among(many) == [("mentornet-prop", "default")]  # all differences of so many would not be read


def test_the_legend_lies_on_no_curve(tmp_path, monkeypatch):
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    named = {f"mentornet-prop (align True, lam {n})": runs for n, runs in enumerate(GROUPS.values())}
    draw(named, ["x", "y"], "title", tmp_path / "picture.png")
    figure = pyplot.gcf()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(named)
    assert not any(axis.get_tightbbox().overlaps(legend.get_window_extent()) for axis in figure.axes)
    monkeypatch.undo()
    pyplot.close(figure)
