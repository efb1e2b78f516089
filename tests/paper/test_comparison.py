"""Our numbers beside the paper's: statistics checked by hand, and the layout of the tables."""

import math

import pytest

from labelsieve.errors import InputError
from labelsieve.paper.comparison import (
    CellResult,
    agreement,
    comparison_blocks,
    format_difference,
    format_ours,
    format_paper,
    measured_error,
    paired_rows,
)
from labelsieve.runs.read import Run


def result(errors, published=(12.2, 0.12), **more):
    return CellResult("cifar10", "sl", "pair", 0.4, dict(enumerate(errors)), published, **more)


def test_statistics_by_hand():
    """11, 12, 13: mean 12, deviation 1, standard error 1/sqrt(3) = 0.577."""
    cell = result([11.0, 12.0, 13.0], (13.0, 0.2))
    shown = ["12.00 ± 0.58 (3)", "13.0 ± 0.20", "-1.00"]
    assert [show(cell) for show in (format_ours, format_paper, format_difference)] == shown
    assert agreement(cell) == "yes"  # 2 * sqrt(0.333 + 0.04) = 1.222
    assert agreement(result([11.0, 12.0, 13.0], (13.25, 0.2))) == "no"
    assert agreement(result([11.0, 12.0, 13.0], (13.25, 0.3))) == "yes"  # 2 * sqrt(0.333 + 0.09) = 1.301
    edge = 2 * math.hypot(math.sqrt(1 / 3), 0.2)
    assert agreement(result([11.0, 12.0, 13.0], (12 + edge, 0.2))) == "yes"


def test_agreement_needs_several_seeds_and_a_printed_spread():
    assert (format_ours(result([12.5])), agreement(result([12.5])), format_difference(result([12.5]))) == (
        "12.50 (1)",
        "n too small",
        "+0.30",
    )
    assert agreement(result([12.0, 13.0], (12.2, None))) == "no spread printed"
    nothing = result([])
    assert (format_ours(nothing), agreement(nothing), format_difference(nothing)) == ("not run", "", "")
    assert agreement(result([1.0, 2.0], None)) == "" and format_paper(result([1.0], None)) == ""


def test_printed_digits_are_kept():
    assert format_paper(result([], (16.0, 0.3))) == "16.0 ± 0.30"
    assert format_paper(result([], (30.7, None), digits=2)) == "30.70"


def test_measured_error_of_a_run():
    def row(epoch, error, **more):
        return {"epoch": epoch, "test_error": error, **more}

    one = Run({"seed": 0}, [row(1, 30.0), row(2, 20.0), row(3, 25.0)], {"best": 20.0, "chosen_epoch": 3}, {})
    assert measured_error(one, "best") == 20.0 and measured_error(one, "chosen") == 25.0
    three = [row(n, e + n, round=k) for k, e in ((1, 40.0), (2, 30.0), (3, 35.0)) for n in (1, 2)]
    selfie = Run({"seed": 0, "method": "selfie", "criterion": None}, three, {"best": 36.0, "chosen_epoch": 2}, {})
    assert [measured_error(selfie, f"round {k}") for k in (1, 2, 3)] == [41.0, 31.0, 36.0]
    assert measured_error(selfie, "chosen") == 37.0
    with pytest.raises(InputError, match="has no round 4"):
        measured_error(selfie, "round 4")


def test_pairs_are_compared_on_common_seeds():
    def cell(method, errors, rate=0.4):
        return CellResult("cifar10", method, "pair", rate, errors)

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


def test_few_cells_have_a_line_each_and_many_a_column_per_noise():
    def some(methods, rates):
        return [CellResult("cifar10", m, "pair", r, {0: 1.0}, (1.0, 0.1)) for m in methods for r in rates]

    (few,) = comparison_blocks(some("ab", (0.1, 0.2)), by_noise=True)
    assert len(few.rows) == 5 and few.rows[1][:3] == ["cifar10", "a", "pair 10%"]
    (many,) = comparison_blocks(some("abcdefgh", (0.1, 0.2, 0.3)), by_noise=True)
    assert many.title == "cifar10, pair noise" and many.rows[0] == ["method", "", "pair 10%", "pair 20%", "pair 30%"]
    assert many.rows[1:4] == [
        ["a", "ours (n)", *["1.00 (1)"] * 3],
        ["", "paper", *["1.0 ± 0.10"] * 3],
        ["", "difference", *["+0.00 ?"] * 3],
    ]
    alone = some("abcdefghijklmnopqrstuvwxyz", (0.1,))
    assert len(comparison_blocks(alone, by_noise=True)[0].rows) == 27  # with a single column, a line each
