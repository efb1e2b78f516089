"""Tables of finished runs: statistics, comparisons and output formats."""

import csv
import io
import math
import re
from dataclasses import replace

import pytest

from labelsieve.runs.read import Run, by_method
from labelsieve.runs.tables import (
    Block,
    Document,
    comparison,
    interval,
    markdown,
    mean_and_error,
    paired_differences,
    pairs_among,
    render,
    run_by_run,
)


def finished(method, seed, last, precision=0.9):
    epochs = [{"test_error": last + 1, "precision": 0.6}, {"test_error": last, "precision": precision}]
    spec = {"method": method, "criterion": None, "seed": seed, "warmup": 1}
    return Run(spec, epochs, {"best": last - 2, "last": last}, {})


GROUPS = by_method(
    [finished("sl", 1, 30.0), finished("sl-prop", 0, 10.0), finished("sl", 0, 20.0), finished("sl-prop", 1, 14.0)]
)


def test_mean_and_standard_error_by_hand():
    assert mean_and_error([1.0, 2.0, 6.0]) == (3.0, pytest.approx(math.sqrt(7 / 3)))
    assert math.isnan(mean_and_error([5.0])[1])


def test_interval_of_many_values_is_not_too_narrow():
    values = [float(n % 2) for n in range(40)]
    low, high = interval(values)
    mean, error = mean_and_error(values)
    assert high - mean == pytest.approx(2.26 * error) and low < mean < high


def test_table_and_paired_differences():
    assert comparison(GROUPS)[1] == ["sl", "23.0 ± 5.0", "25.0 ± 5.0", "90.0 ± 0.0", "2"]
    assert paired_differences(GROUPS) == [
        "sl-prop minus sl, last test error seed by seed: -10.0, -16.0; mean -13.0 ± 3.0"
    ]
    assert markdown(comparison(GROUPS)).splitlines()[1] == "| --- | ---: | ---: | ---: | ---: |"


def test_other_methods_are_compared_with_the_first():
    assert pairs_among(["mentornet", "mine"]) == [("mine", "mentornet")]
    assert pairs_among(["sl", "sl-prop", "mine"]) == [("sl-prop", "sl"), ("mine", "sl")]
    assert pairs_among(["mine"]) == []
    many = ["default", "mentornet-prop", *"abcde"]
    assert pairs_among(many) == [("mentornet-prop", "default")]  # too many to compare all


def made(method, seed, last, precision):
    end = {"best": last - 2, "last": last, "last_ten": last + 0.125}
    return Run({"method": method, "criterion": None, "seed": seed}, [{"precision": precision}], end, {})


def test_run_by_run_by_hand():
    groups = {"a": [made("a", 0, 20.0, 0.5), made("a", 1, 30.0, None)], "b": [made("b", 1, 25.5, 0.75)]}
    assert run_by_run(groups, "a")[1:] == [
        ["a", "0", "18.00", "20.00", "20.12", "50.00", "", ""],
        ["a", "1", "28.00", "30.00", "30.12", "", "", ""],
        ["b", "1", "23.50", "25.50", "25.62", "75.00", "a", "-4.50"],
    ]
    assert [row[6:] for row in run_by_run(groups, "b")[1:]] == [["", ""], ["b", "4.50"], ["", ""]]


def test_all_methods_compared_with_a_chosen_one():
    assert pairs_among(["sl", "sl-prop", "mine"], "sl-prop") == [("sl", "sl-prop"), ("mine", "sl-prop")]
    many = ["default", "mentornet-prop", *"abcdef"]
    assert pairs_among(many, "c") == [(method, "c") for method in many if method != "c"]


DOCUMENT = Document(
    "Errors in %",
    [Block("", [["data", "method", "ours"], ["cifar_10", "a & b", "-1.5 ± 0.20 (3)"]])],
    ["note {1} #2"],
)


def test_text_is_aligned():
    assert render(DOCUMENT, "text") == (
        "Errors in %\n\n"
        "data      method  ours\n"
        "--------  ------  ---------------\n"
        "cifar_10  a & b   -1.5 ± 0.20 (3)\n\n"
        "note {1} #2\n"
    )


def test_markdown():
    assert "| cifar_10 | a & b | -1.5 ± 0.20 (3) |" in render(DOCUMENT, "markdown")


def test_csv_is_read_back():
    rows = list(csv.reader(io.StringIO(render(DOCUMENT, "csv"))))
    assert rows == DOCUMENT.blocks[0].rows


def test_latex_is_complete_and_escaped():
    found = render(DOCUMENT, "latex")
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


def test_remarks_are_comments_in_latex():
    remarked = replace(DOCUMENT, remarks=["not run: 3_of #4"])
    assert render(remarked, "text").endswith("\nnote {1} #2\nnot run: 3_of #4\n")
    assert render(remarked, "markdown").endswith("\n- note {1} #2\n- not run: 3_of #4\n")
    first, second, rest = render(remarked, "latex").split("\n", 2)
    assert second == "% not run: 3_of #4" and first + "\n" + rest == render(DOCUMENT, "latex")
