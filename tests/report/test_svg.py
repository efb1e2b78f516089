"""SVG drawings of the report."""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.report import svg
from labelsieve.report.charts import neighbouring_order


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_enclose_the_values(low, width):
    found = svg.ticks(low, low + width)
    assert 2 <= len(found) <= 9
    slack = 1e-6 * max(abs(low), width, 1)
    assert found[0] <= low + slack and found[-1] >= low + width - slack
    assert found == sorted(set(found))


def test_line_chart_by_hand():
    line = svg.Line("a & b", 0, [(1, 0.0), (3, 10.0)])
    drawn = svg.line_chart("k", "t", "d", [line], "%", [1])
    assert 'points="44.0,192.0 330.0,22.0"' in drawn
    assert "a &amp; b, epoch 3: 10%" in drawn and "end of warm-up" in drawn
    assert 'role="img"' in drawn and 'aria-labelledby="k-t k-d"' in drawn


def test_bar_by_hand():
    drawn = svg.bar(0.2, 0.1, 0.4, 0.4)
    assert 'width="50.0%"' in drawn and 'x1="25.0%" x2="100.0%"' in drawn


def test_map_draws_off_diagonal_entries():
    drawn = svg.matrix_map("k", "t", "d", np.array([[0.9, 0.1], [0.0, 1.0]]))
    assert drawn.count('class="cell"') == 1 and 'x="1" y="0"' in drawn


def test_graph_by_hand():
    drawn = svg.directed_graph("k", "t", "d", ["a & b", "x" * 20], [(0, 1, 30), (1, 0, 10)])
    # two nodes: at the top and at the bottom of a circle of radius 125 around (240, 180)
    assert 'class="node" cx="240.0" cy="55.0"' in drawn and 'class="node" cx="240.0" cy="305.0"' in drawn
    assert 'stroke-width="9.0"' in drawn and 'stroke-width="4.0"' in drawn  # 1.5 + 7.5 / 3
    assert f"<title>a &amp; b → {'x' * 20}: 30</title>" in drawn and ">xxxxxxxxxxxxxx…<title>" in drawn
    one, other = re.findall(r'd="M([\d.]+),[\d.]+Q([\d.]+)', drawn)
    assert float(one[1]) < 240 < float(other[1])  # both directions bend to their own side


def test_scatter_by_hand():
    points = [svg.Point(0, 100, 0, False, 5, "<one>"), svg.Point(1000, 600, 1, True, 6, "two")]
    drawn = svg.scatter("k", "t", "d", points)
    assert 'viewBox="0 0 1028 528"' in drawn  # a margin of 14 on each side
    assert '<circle cx="14" cy="514" r="4" data-index="5"><title>&lt;one&gt;</title>' in drawn  # y points upwards
    assert '<g class="point marked k1"><circle cx="1014" cy="14"' in drawn


def test_confused_classes_are_neighbours():
    confusions = [("a", "b", 9), ("c", "d", 8), ("b", "c", 1), ("d", "a", 1), ("e", "a", 5)]
    circle = neighbouring_order(confusions)
    assert sorted(circle) == list("abcde")
    places = {name: k for k, name in enumerate(circle)}
    for one, other in (("a", "b"), ("c", "d"), ("e", "a")):
        assert abs(places[one] - places[other]) in (1, 4)
