"""labelsieve results: the committed page is what the records give, and made-up records give what they should."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.paper.comparison import Entry
from labelsieve.paper.figures import points
from labelsieve.paper.results import (
    ACCOUNT,
    HEADER,
    Drawing,
    Outcome,
    claim,
    claims,
    clearly_lower,
    compared,
    drawn_by,
    fact,
    given_up,
    numbers,
    page_of,
    sentences,
    told,
    varied,
    verdict,
)
from labelsieve.paper.tables import experiment
from labelsieve.runs.read import Run
from labelsieve.runs.record import errors
from labelsieve.runs.tables import interval, mean_and_error

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
PAIR = "cifar10 pair 40%"


def record(root: Path, what, best: float, last: float | None = None, kept=None) -> Path:
    """A finished run, as it would be committed; what comes after its third epoch is as that one."""
    folder = root / what.name()
    folder.mkdir(parents=True)
    versions = {"labelsieve": "0.1.0", "torch": "2.99.0", "python": "3.11.7"}
    spec = {"experiment": what.as_dict(), "data": "x", "versions": versions}
    (folder / "spec.json").write_text(json.dumps(spec))
    last = best + 1 if last is None else last
    kept = kept or [[1.0, 1.0]] * 3
    three = list(zip((best + 2, best, last), kept, strict=True))
    epochs = [
        {"event": "epoch", "epoch": n, "test_error": e, "precision": 0.75, "kept": k}
        for n, (e, k) in enumerate([*three, *three[-1:] * (what.epochs - 3)], 1)
    ]
    end = {"event": "end", "chosen_epoch": 3, **errors(epochs)}
    rows = [{"event": "start", "device": "A device"}, *epochs, end]
    (folder / "record.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "done").touch()
    return folder


def cell(method: str, seed: int = 0, noise: str = "pair", data: str = "cifar10"):
    return experiment(data, method, noise, 0.4, seed)


def section(page: str, title: str) -> str:
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


# ---- what is committed


def test_the_committed_page_is_what_the_records_give(capsys):
    arguments = ["results", "--results", str(ROOT / "results"), "--out", str(PAGE), "--check"]
    assert execute(arguments) == 0, capsys.readouterr().err


def test_the_committed_figures_are_of_the_pinned_matplotlib():
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    shown = re.findall(r"\]\((figures/.*?\.svg)\)", PAGE.read_text(encoding="utf-8"))
    assert "figures/figure-7.svg" in shown and "figures/figure-8.svg" in shown
    for name in shown:
        assert drawn_by((PAGE.parent / name).read_bytes()) == pinned.encode()


def test_no_number_of_the_account_is_written_by_hand():
    """Digits outside of what is asked for only name experiments, tables, algorithms and the page's own threshold."""
    names = r"\{.*?\}|\[decision .*?\)|CIFAR-\d+|40%|95%|(?:table|[Ff]igure|Algorithm|λ =) [\d.]*\d|1\.5|^#.*$|^@if.*$"
    rest = re.sub(names, "", ACCOUNT.read_text(encoding="utf-8"), flags=re.M)
    assert len(rest) > 2000 and not re.findall(r".*\d.*", rest)


# ---- the check


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A page of one record; its figures are drawn in no time."""
    monkeypatch.setattr(Drawing, "svg", lambda drawing: f"<svg> Matplotlib v9.9.9 {drawing.number} </svg>".encode())
    record(tmp_path / "records", cell("default"), 20.0)
    arguments = ["results", "--results", str(tmp_path / "records"), "--out", str(tmp_path / "docs" / "page.md")]
    assert execute(arguments) == 0
    return arguments


def failing_check(arguments, capsys) -> str:
    capsys.readouterr()
    assert execute([*arguments, "--check"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_a_stale_page_is_found_and_mended(made, tmp_path, capsys):
    page = tmp_path / "docs" / "page.md"
    record(tmp_path / "records", cell("default", 1), 21.0)
    before = page.read_bytes()
    assert str(page) in failing_check(made, capsys)
    assert page.read_bytes() == before  # a check writes nothing
    assert execute(made) == 0 and execute([*made, "--check"]) == 0
    page.write_text(page.read_text(encoding="utf-8").replace("20.50", "19.50"), encoding="utf-8")
    assert str(page) in failing_check(made, capsys)


def test_a_stale_figure_is_found_unless_another_matplotlib_drew_it(made, tmp_path, capsys):
    figure = tmp_path / "docs" / "figures" / "figure-8.svg"
    drawn = figure.read_bytes()
    figure.write_bytes(drawn.replace(b"</svg>", b"<!-- --></svg>"))
    assert "figure-8.svg" in failing_check(made, capsys)
    figure.write_bytes(drawn.replace(b"Matplotlib v" + drawn_by(drawn), b"Matplotlib v3.9.0"))
    assert execute([*made, "--check"]) == 0
    figure.unlink()
    assert "figure-8.svg" in failing_check(made, capsys)


def test_a_folder_that_is_not_there_is_refused(tmp_path, capsys):
    assert execute(["results", "--results", str(tmp_path / "none"), "--out", str(tmp_path / "page.md")]) == 2
    assert "none" in capsys.readouterr().err and not (tmp_path / "page.md").exists()


# ---- the page


def test_without_records_the_page_says_so_in_a_few_lines(tmp_path):
    page, drawings = page_of(tmp_path)
    assert "Nothing yet." in page and "not run yet" in page and "### Table" not in page
    assert "- table 2, cifar10: not run yet; 270 runs\n" in page
    assert "- table 7, clothing1m: its data is not at hand; 30 runs\n" in page
    assert [one.number for one in drawings] == [7]
    assert len(page.splitlines()) < 100 and "{" not in page and "@" not in page


def test_a_part_of_the_records_gives_a_part_of_the_page(tmp_path):
    for seed, (default, prop) in enumerate([(20.0, 12.0), (21.0, 12.5), (22.0, 13.0)]):
        record(tmp_path, cell("default", seed), default, default + 10)
        record(tmp_path, cell("mentornet-prop", seed), prop)
    page, drawings = page_of(tmp_path)
    assert "| cifar10 | A device | fp32 | 2.99.0 | 3.11.7 | 0.1.0 | 6 |" in page
    table = section(page, "Tables")
    assert "### Table 2" in table and "### Table 1" not in table
    assert "| – | – | – | 21.00 ± 0.58 (3) | – |" in table  # default: by hand, std 1 over the root of 3
    assert "+2.60 out" in table and "18.4 ± 0.35" in table and "10.2 ± 0.24" in table
    assert "| mentornet-prop minus default | pair 40% | -8.00, -8.50, -9.00 | -8.50 ± 0.29 (3) |" in table
    assert "264 runs are missing" in table
    assert "cifar100" not in table and "- table 2, cifar100: not run yet; 270 runs" in page
    ends = section(page, "Best, last, and what was kept")
    assert "| cifar10 | pair 40% | default | 21.00 ± 0.58 (3) | 31.00 ± 0.58 | +10.00 | 75.00 ± 0.00 |  |" in ends
    assert ends.count("mentornet-prop") == 1
    assert [one.file for one in drawings] == ["figure-7.svg", "figure-8.svg", "figure-11-cifar10.svg"]
    assert "of its 36 experiments 2 were run" in page


def test_more_trials_than_the_papers_count_too(tmp_path):
    for seed in range(5):
        record(tmp_path, cell("default", seed), 20.0 + seed)
    page, _ = page_of(tmp_path)
    assert "22.00 ± 0.71 (5)" in page and "267 runs are missing" in page


def test_other_runs_are_named_by_what_they_do_differently(tmp_path):
    usual = cell("mentornet")
    record(tmp_path, usual, 20.0)
    for seed in (0, 1):
        record(tmp_path, replace(cell("mentornet", seed), sampler="independent"), 16.0 + seed)
    record(tmp_path, replace(cell("sl"), options=(("beta", 0.5),)), 15.0)
    record(tmp_path, replace(usual, forward="one"), 23.0)
    record(tmp_path, replace(usual, forward="one", weight_decay=1e-4), 19.0)
    record(tmp_path, replace(usual, data="fashion"), 5.0)  # not the paper's data
    page, _ = page_of(tmp_path)
    others = section(page, "Other runs")
    line = "mentornet (sampler independent) | pair 40% | 16.50 ± 0.50 (2) | -4.00 | 16.8 ± 0.55 | -0.30"
    assert line in others and "sl (beta 0.5)" in others and "fashion" not in others
    assert "mentornet (forward one) | pair 40% | 23.00 (1) | +3.00 |" in others
    assert "(forward one, weight_decay 0.0001) | pair 40% | 19.00 (1) | -4.00 |" in others  # against one pass too
    account = section(page, "What does and does not reproduce")
    assert "mentornet: not run yet, or too little to tell." in account  # one trial
    assert "Nesterov" not in account  # nothing is said of what was not run
    assert "6 finished runs" in page


def test_runs_of_table_5_are_other_runs_too(tmp_path):
    """They learn from one pass, unlike table 2's."""
    one_pass = replace(cell("mentornet-prop"), forward="one")
    record(tmp_path, one_pass, 13.0)
    record(tmp_path, replace(one_pass, options=(("update", "repredict"),)), 14.0)
    page, _ = page_of(tmp_path)
    table, others = section(page, "Tables"), section(page, "Other runs")
    assert "mentornet-prop (stack) | pair 40% | 13.00 (1)" in table and "(repredict) | pair 40% | 14.00 (1)" in table
    assert "### Table 2" not in table and "mentornet-prop (forward one) | pair 40% | 13.00 (1)" in others
    assert "(forward one, update repredict) | pair 40% | 14.00 (1) | +1.00 |" in others


def test_a_figures_own_runs_are_other_runs_but_for_those_that_end_early(tmp_path):
    lam = next(point.experiment for point in points(10) if point.x == 0.5)
    early = points(3)[0].experiment
    record(tmp_path, lam, 40.0)
    record(tmp_path, early, 30.0)
    page, drawings = page_of(tmp_path)
    assert "mentornet-prop (lam 0.5)" in section(page, "Other runs") and f"epochs {early.epochs}" not in page
    assert "2 finished runs, 1 of 100 epochs, 1 of 26 epochs:" in page and [one.number for one in drawings] == [7, 10]


# ---- the account


def test_the_account_turns_with_the_records(tmp_path):
    for seed in range(3):
        record(tmp_path / "a", cell("default", seed), 18.0 + seed / 10)
        record(tmp_path / "a", cell("mentornet", seed), 17.0 + seed / 10)
        record(tmp_path / "a", cell("mentornet-prop", seed), 12.0)
        record(tmp_path / "a", cell("sl", seed), 18.0)
        record(tmp_path / "a", cell("sl-prop", seed), 12.0 + seed / 10)
    good, _ = page_of(tmp_path / "a")
    assert "main claim reproduces** on CIFAR-10 with 40% pair noise" in good and "**not near**" not in good
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / cell("sl-prop", 2).name())
    record(tmp_path / "b", cell("sl-prop", 2), 18.5)
    for seed in range(3):
        shutil.rmtree(tmp_path / "b" / cell("mentornet", seed).name())
        record(tmp_path / "b", cell("mentornet", seed), 19.0 + seed)
        record(tmp_path / "b", replace(cell("mentornet", seed), sampler="independent"), 16.0)
    bad, _ = page_of(tmp_path / "b")
    assert "claim does not reproduce in full" in bad and "claim reproduces" not in bad
    # by hand: -6.0, -5.9, 0.5; deviation 3.72, error 2.15, times 4.30
    assert "sl,\nlower in 2 of 3 trials, on average by 3.80 ± 2.15 points (95% interval -5.45 to 13.05)" in bad
    assert "pair noise is **not near**: 20.00 ± 0.58 (3), paper 16.8 ± 0.55, difference +3.20" in bad


def test_cells_are_near_within_a_point_and_a_half():
    cells = [
        Outcome(entry("sl", [19.9], 18.3), {}),
        Outcome(entry("default", [16.9], 18.4), {}),
        Outcome(entry("own", [1.0], None), {}),
        Outcome(entry("sl", [12.0], 16.2, "mixed"), {}),
        Outcome(entry("sl-prop", [10.19], 11.7), {}),
    ]
    header, *rows = numbers(cells)
    assert header[-1] == "near"
    assert [(row[1], row[2], row[-1]) for row in rows] == [
        ("sl", "pair 40%", "no"),
        ("default", "pair 40%", "yes"),
        ("sl-prop", "pair 40%", "no"),
        ("sl", "mixed 40%", "no"),
    ]


# ---- the claims


def entry(method: str, errors: list[float], printed: float | None, noise: str = "pair") -> Entry:
    return Entry("cifar10", method, noise, 0.4, dict(enumerate(errors)), printed and (printed, 0.1))


def test_claims_are_told_by_an_interval_of_student_s_t():
    prop, base = entry("sl-prop", [10.0, 11.0, 12.0], 11.7), entry("sl", [12.0, 12.0, 14.0], 18.3)  # -2, -1, -2
    ((*_, papers, ours, ends, said),) = claims([prop, base])[1:]
    # mean -5/3, deviation 0.577, error 1/3, 4.30 times that is 1.433
    assert (papers, ours, ends, said) == ("-6.6", "-1.67 ± 0.33 (3)", "-3.10 to -0.23", "holds")


@pytest.mark.parametrize(
    ("differences", "printed", "said"),
    [
        ([-2.0, -1.0, -2.0], -6.6, "holds"),
        ([-2.0, -1.0, -2.0], 0.5, "differs"),
        ([-2.0, -1.0, -2.0], 0.0, "differs"),
        ([-2.0, 1.0, -2.0], -6.6, "uncertain"),
        ([-2.0, 1.0, -2.0], 0.0, "alike, as in the paper"),
        ([-2.0, -2.1], -6.6, "holds"),  # 12.71 times 0.05 is 0.64
        ([-2.0], -6.6, "one trial"),
        ([-2.0, -2.1], None, ""),
    ],
)
def test_the_verdict_on_a_claim(differences, printed, said):
    assert verdict(differences, printed) == said


def test_claims_come_with_dominant_noise_first_and_only_where_both_were_run():
    every = [entry(m, [1.0], 1.0, noise) for noise in ("mixed", "symmetry", "pair") for m in ("sl", "sl-prop")]
    rows = claims([*every, entry("selfie-prop", [1.0], 1.0), entry("selfie", [], 1.0)])
    assert [row[1] for row in rows[1:]] == ["pair 40%", "mixed 40%", "symmetry 40%"]
    assert claims([]) == [HEADER]


def test_the_interval_of_many_values_is_never_too_narrow():
    values = [float(n % 2) for n in range(40)]
    low, high = interval(values)
    mean, error = mean_and_error(values)
    assert high - mean == pytest.approx(2.26 * error) and low < mean < high


def fact_of(known):
    return lambda kind, about: known.get((kind, about))


def test_sentences_that_miss_a_fact_are_left_out_or_replaced():
    template = "# a remark {x: y}\nOne is {n: one}.\n\nTwo is {n: two}.\n\nTwo is {n: two}.\n@missing\nTwo was not run."
    facts = fact_of({("n", "one"): "1"})
    assert told(template, facts, lambda kind, about: True) == "One is 1.\n\nTwo was not run."


@pytest.mark.parametrize(("verdict", "said"), [(True, "Yes 1."), (False, "No 1."), (None, "Who knows.")])
def test_a_claim_decides_what_is_said(verdict, said):
    template = "@if good: one\nYes {n: one}.\n@otherwise\nNo {n: one}.\n@missing\nWho knows."
    assert told(template, fact_of({("n", "one"): "1"}), lambda kind, about: verdict) == said


def test_all_claims_must_hold():
    template = "@if good: one\n@if good: two\nYes.\n@otherwise\nNo."
    assert told(template, fact_of({}), lambda kind, about: about == "one") == "No."
    assert told(template, fact_of({}), lambda kind, about: True if about == "one" else None) == ""


def test_a_claim_needs_its_opposite():
    with pytest.raises(InputError, match="go together"):
        sentences("@if good: one\nYes.")


# ---- facts, by hand


def outcome(method: str, errors: dict[int, float], published=None, kept=None) -> Outcome:
    epochs = [{"test_error": 30.0 - n, "kept": k} for n, k in enumerate(kept or [[1.0]])]
    runs = {seed: Run({"noise_rate": 0.4}, epochs, {"best": e, "last": e + 1}, {}) for seed, e in errors.items()}
    return Outcome(Entry("cifar10", method, "pair", 0.4, errors, published), runs)


def cells(*outcomes: Outcome) -> dict[str, Outcome]:
    return {one.name: one for one in outcomes}


def test_facts_of_one_cell():
    known = cells(outcome("default", {0: 17.0, 2: 19.0}, (17.5, 0.5)), outcome("sl", {}))
    assert fact("ours", f"{PAIR} default", known) == "18.00 ± 1.00 (2)"
    assert fact("trials", f"{PAIR} default", known) == "17.00, 19.00"
    assert fact("last", f"{PAIR} default", known) == "19.00 ± 1.00 (2)"
    assert fact("beside", f"{PAIR} default", known).endswith("difference +0.50, within two standard errors")
    assert fact("given up", f"{PAIR} default", known) == "no trial"
    assert fact("ours", f"{PAIR} sl", known) is None
    assert fact("ours", f"{PAIR} sl (sampler independent)", known) is None


def test_facts_of_two_cells_are_of_the_seeds_that_both_have():
    known = cells(outcome("sl", {0: 10.0, 1: 12.0, 2: 99.0}), outcome("sl-prop", {0: 9.0, 1: 9.0}))
    about = f"{PAIR} sl-prop over sl"  # -1 and -3
    said = fact("compared", about, known)
    assert said == "lower in 2 of 2 trials, on average by 2.00 ± 1.00 points (95% interval -10.71 to 14.71)"
    assert claim("clearly lower", about, known) is False
    assert (
        claim("clearly lower", f"{PAIR} sl-prop over sl", cells(outcome("sl", {0: 1.0}), outcome("sl-prop", {})))
        is None
    )
    assert compared([0.79]) == "higher in the one trial there is, by 0.79 points"
    assert (
        compared([0.9, 1.1]) == "higher in 2 of 2 trials, on average by 1.00 ± 0.10 points (95% interval -0.27 to 2.27)"
    )
    assert clearly_lower([-1.0, -1.1]) and not clearly_lower([-1.0, -1.1, 0.1]) and not clearly_lower([-1.0, -3.0])


@pytest.mark.parametrize(
    ("errors", "holds"),
    [((18.9, 19.2), ""), ((18.0, 19.9), "near"), ((15.0, 17.1), "near"), ((15.9, 15.8), "far below")],
)
def test_near_and_far_are_told_apart_by_a_point_and_a_half(errors, holds):
    known = cells(outcome("sl", dict(enumerate(errors)), (17.5, 0.5)))
    kinds = ("near", "far below")
    assert [claim(kind, f"{PAIR} sl", known) for kind in kinds] == [kind == holds for kind in kinds]
    assert claim("below", f"{PAIR} sl", known) is (sum(errors) / 2 < 17.5)


def test_nothing_is_near_or_far_where_no_number_is_printed():
    known = cells(outcome("sl", {0: 1.0, 1: 2.0}))
    assert not any(claim(kind, f"{PAIR} sl", known) for kind in ("near", "far below"))


def test_changes_are_listed_in_the_order_of_the_seeds():
    variant = outcome("sl (beta 0.5)", {2: 13.0, 0: 11.0, 1: 12.5})
    known = cells(outcome("sl", {1: 12.0, 2: 14.0, 0: 10.0}))
    assert varied([variant], known)[1][4] == "+1.00, +0.50, -1.00"


def test_what_the_printed_numbers_differ_by():
    known = cells(outcome("sl", {0: 1.0}, (17.5, 0.5)), outcome("sl-prop", {0: 2.0}, (12.9, None)))
    assert fact("printed", f"{PAIR} sl-prop over sl", known) == "4.6 points lower"
    assert fact("printed", f"{PAIR} sl over sl-prop", known) == "4.6 points higher"
    assert fact("printed", f"{PAIR} sl over sl", known) == "the same"
    assert fact("printed", f"{PAIR} sl over default", known | cells(outcome("default", {0: 1.0}))) is None


def test_what_no_table_has_is_refused_with_what_was_meant():
    known = cells(outcome("default", {0: 17.0}))
    with pytest.raises(InputError, match="did you mean cifar10 pair 40% default"):
        fact("ours", f"{PAIR} defualt", known)
    with pytest.raises(InputError, match="'hours', which is not known"):
        fact("hours", f"{PAIR} default", known)


def test_a_class_is_given_up_below_half_of_its_share():
    """Of 60% that should be kept, half is 30%."""
    known = outcome("mentornet", {4: 17.0}, kept=[[1.0, 1.0], [0.9, 0.31], [0.9, 0.29], [0.95, 0.1], [0.6, 0.6]])
    assert given_up(known.runs[4]) == [3, 4]
    assert fact("given up", known.name, cells(known)) == "seed 4 in epochs 3 to 4 (error 27.00 at best in these)"
    assert fact("lost", known.name, cells(known)) == "0 of 2"
    ends_badly = outcome("mentornet", {0: 17.0, 1: 18.0}, kept=[[1.0, 1.0, 1.0], [0.9, 0.29, 0.1]])
    assert fact("lost", known.name, cells(ends_badly)) == "2 of 3, 2 of 3"
