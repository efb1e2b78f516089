"""SVG drawings of the report."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.report import svg


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
