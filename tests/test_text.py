"""Text for table cells and terminals, and numbers as text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.text import escape_cell, label_file, listed, plain_equations, printable, rounded, unescape_cell


@given(st.text(alphabet="=+-@'\t\r\n\0ax, ", max_size=6))
def test_escaped_cell_is_restored_and_never_a_formula(text):
    assert unescape_cell(escape_cell(text)) == text
    assert not escape_cell(text).startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\0"))


def test_label_files_leave_out_names_without_information():
    assert label_file(["a", "=b"]) == b"index,label\n0,a\n1,'=b\n"
    for names in (["0", "1"], ["x", "x"]):
        assert label_file(["a", "b"], names) == label_file(["a", "b"])
    cells = ["a", "b"], ["x", "y\r"], [True, False], ["b", "\udce9"]
    assert label_file(*cells) == b'index,name,label,decided,given_label\n0,x,a,true,b\n1,"y\r",b,false,\xe9\n'


def test_printable_escapes_control_characters():
    assert printable("\x1b[2J\n") == "\\x1b[2J\\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float(np.float32(13.09)), "13.09"),
        (float(np.float32(4.13)), "4.13"),
        (-0.5130000114440918, "-0.513"),
        (1234567.0, "1234567"),
        (1234567.25, "1234570"),
        (2.0, "2"),
        (1.23456789e-05, "1.23457e-05"),
        (7, "7"),
        ("13.09000015", "13.09000015"),
        (True, "True"),
        (float("inf"), "inf"),
    ],
)
def test_rounded(value, text):
    assert str(rounded(value)) == text


def test_equations_are_plain_text_in_a_terminal():
    page = (
        "Idea\n\n```math\nw = \\sqrt{v + \\frac{v^2}{n - 1}} - λ \\sum_j m_{y,j} p_j\n```\n\nand $`p_y ≤ \\text{k}`$."
    )
    assert plain_equations(page) == "Idea\n\n    w = sqrt(v + v² / (n - 1)) - λ Σ_j m[y,j] p[j]\n\nand p[y] ≤ k."


def test_the_equations_of_every_method_become_plain_text():
    from labelsieve.commands.methods import page
    from labelsieve.methods import METHODS

    for name in METHODS:
        equation = plain_equations(page(name)).split("## Equation")[1].split("## Options")[0]
        assert not set("\\$") & set(equation), name


@pytest.mark.parametrize(
    ("names", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b and 2 more")]
)
def test_names_beyond_the_limit_are_counted(names, text):
    assert listed(iter(names), 2) == text
