"""labelsieve results: the committed page matches the records, and made-up records give the expected blocks."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from labelsieve.cli import execute
from labelsieve.paper.comparison import CellResult
from labelsieve.paper.figures import points
from labelsieve.paper.results import (
    BLOCK,
    BLOCKS,
    NEAR,
    Drawing,
    Evidence,
    classes_given_up,
    collect,
    epochs_given_up,
    fill,
    given_up_at_end,
    matplotlib_version,
    paired,
    verdict,
)
from labelsieve.paper.tables import experiment
from labelsieve.runs.read import Run
from labelsieve.runs.record import errors
from labelsieve.runs.tables import interval, plus_minus

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"
PAIR, MIXED, SYMMETRY, HARD = "cifar10 pair 40%", "cifar10 mixed 40%", "cifar10 symmetry 40%", "cifar100 pair 40%"
HARD_MIXED, HARD_SYMMETRY = "cifar100 mixed 40%", "cifar100 symmetry 40%"
ONE = "(forward one)"


def record(root: Path, what, best: float, last: float | None = None) -> Path:
    """Write a finished run as it would be committed: 100 epochs, of which all but the second have the last error."""
    folder = root / what.name()
    folder.mkdir(parents=True)
    versions = {"labelsieve": "0.1.0", "torch": "2.99.0", "python": "3.11.7"}
    (folder / "spec.json").write_text(json.dumps({"experiment": what.as_dict(), "data": "x", "versions": versions}))
    last = best + 1 if last is None else last
    epochs = [
        {"event": "epoch", "epoch": n, "test_error": best if n == 2 else last, "precision": 0.75, "kept": [1.0, 1.0]}
        for n in range(1, what.epochs + 1)
    ]
    rows = [{"event": "start", "device": "A device"}, *epochs, {"event": "end", "chosen_epoch": 3, **errors(epochs)}]
    (folder / "record.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "done").touch()
    return folder


def cell(method: str, seed: int = 0, noise: str = "pair", data: str = "cifar10"):
    return experiment(data, method, noise, 0.4, seed)


# ---- the committed page


def test_committed_page_matches_the_records(capsys):
    arguments = ["results", "--results", str(ROOT / "results"), "--out", str(PAGE), "--check"]
    assert execute(arguments) == 0, capsys.readouterr().err


def test_committed_page_has_every_block_and_figures_of_the_pinned_matplotlib():
    text = PAGE.read_text(encoding="utf-8")
    assert [name for _, name, _ in BLOCK.findall(text)] == list(BLOCKS)
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    for name in re.findall(r"\]\((figures/.*?\.svg)\)", text):
        assert matplotlib_version((PAGE.parent / name).read_bytes()) == pinned.encode()


def test_numbers_in_the_text_match_the_records():
    """Every number of the text is in one of these fragments; other digits only name experiments."""
    evidence = collect(ROOT / "results")
    cells = {**evidence.cells, **{one.name: one for one in evidence.variants}}

    def ours(name: str) -> str:
        return plus_minus(cells[name].errors.values(), 2)

    def seeds(name: str) -> str:
        return f"(seeds: {', '.join(f'{cells[name].errors[seed]:.2f}' for seed in sorted(cells[name].errors))})"

    def apart(where: str, method: str, base: str) -> list[float]:
        first, second = (cells[f"{where} {name}"].errors for name in (method, base))
        found = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
        return found if sum(found) > 0 else [-one for one in found]

    def gap(*pair: str) -> str:
        found = apart(*pair)
        if len(found) == 1:
            return f"{found[0]:.2f} points"
        return f"{plus_minus(found, 2)} points"

    def ends(*pair: str) -> str:
        return "95% interval {:.2f} to {:.2f}".format(*interval(apart(*pair)))

    def agree(*pair: str) -> str:
        return f"in {sum(one > 0 for one in apart(*pair))} of {len(apart(*pair))} seeds"

    def printed(name: str) -> str:
        return f"paper {cells[name].published[0]}" + (f" ± {s}" if (s := cells[name].published[1]) else "")

    def last(name: str) -> str:
        return plus_minus([run.end["last"] for run in cells[name].runs.values()], 2)

    def clean(name: str) -> str:
        return plus_minus([100 * run.epochs[-1]["precision"] for run in cells[name].runs.values()], 2)

    def lost(name: str) -> str:
        return given_up_at_end(cells[name])

    prop, one_prop = ("mentornet-prop", "mentornet"), (f"mentornet-prop {ONE}", f"mentornet {ONE}")
    weights = [f"mentornet-prop{lam}" for lam in (" (lam 0.5)", "", " (lam 1.5)", " (lam 2.0)")]
    fragments = [
        f"is {gap(PAIR, *prop)} below that of mentornet ({ends(PAIR, *prop)}; paper: 4.6 points), and lower "
        + agree(PAIR, *prop),
        f"is {gap(MIXED, *prop)} below mentornet ({ends(MIXED, *prop)}; paper: 1.8 points), and lower "
        + agree(MIXED, *prop),
        f"is {gap(SYMMETRY, *prop)} above mentornet ({ends(SYMMETRY, *prop)}), and higher {agree(SYMMETRY, *prop)}",
        f"is {gap(HARD, *prop)} below mentornet ({ends(HARD, *prop)}; paper: 16.2 points), sl-prop "
        f"{gap(HARD, 'sl-prop', 'sl')} below sl ({ends(HARD, 'sl-prop', 'sl')}; paper: 16.1 points); both are lower "
        + agree(HARD, *prop),
        f"is {gap(HARD_MIXED, *prop)} below mentornet ({ends(HARD_MIXED, *prop)}; paper: 8.9 points), and lower "
        + agree(HARD_MIXED, *prop),
        f"is {gap(HARD_SYMMETRY, *prop)} above mentornet ({ends(HARD_SYMMETRY, *prop)}), and higher "
        f"{agree(HARD_SYMMETRY, *prop)}. The paper prints {cells[f'{HARD_SYMMETRY} mentornet-prop'].published[0]} and "
        f"{cells[f'{HARD_SYMMETRY} mentornet'].published[0]}.",
        *(
            f"{name} {ours(f'{HARD_MIXED} {name}')} ({printed(f'{HARD_MIXED} {name}')})"
            for name in ("default", "mentornet", "sl")
        ),
        f"not near: {ours(f'{PAIR} mentornet')}, {printed(f'{PAIR} mentornet')}, a difference of "
        f"{cells[f'{PAIR} mentornet'].difference:+.2f}, more than two standard errors {seeds(f'{PAIR} mentornet')}",
        f"it is {ours(f'{PAIR} mentornet (sampler independent)')}.",
        f"default on CIFAR-10 has {ours(f'{SYMMETRY} default (sampler independent)')} with 40% symmetry noise (2 "
        f"seeds; {printed(f'{SYMMETRY} default')}) and {ours(f'{PAIR} default (sampler independent)')} with 40% pair "
        f"noise (1 seed; {printed(f'{PAIR} default')})",
        f"not near either: {ours(f'{HARD} mentornet')}, {printed(f'{HARD} mentornet')}, a difference of "
        f"{cells[f'{HARD} mentornet'].difference:+.2f}, more than two standard errors",
        f"not near: {ours(f'{HARD} mentornet-prop')}, {printed(f'{HARD} mentornet-prop')}, a difference of "
        f"{cells[f'{HARD} mentornet-prop'].difference:+.2f}.",
        f"the seeds differ {seeds(f'{HARD} mentornet-prop')}",
        f"in the last epoch {lost(f'{HARD} mentornet-prop')} classes",
        f"is {gap(PAIR, one_prop[1], 'mentornet')} worse ({ends(PAIR, one_prop[1], 'mentornet')}): "
        f"{ours(f'{PAIR} mentornet {ONE}')} {seeds(f'{PAIR} mentornet {ONE}')}, while default has "
        f"{ours(f'{PAIR} default')}",
        f"is {gap(PAIR, one_prop[0], prop[0])} worse ({ends(PAIR, one_prop[0], prop[0])}), sl-prop "
        f"{gap(PAIR, f'sl-prop {ONE}', 'sl-prop')} ({ends(PAIR, f'sl-prop {ONE}', 'sl-prop')})",
        f"is {gap(PAIR, *one_prop)} below mentornet ({ends(PAIR, *one_prop)})",
        *(
            f"in {agree(where, f'{name} {ONE}', name)[3:]}. On CIFAR-100"
            for where in (MIXED, SYMMETRY)
            for name in (*prop, "sl-prop")
        ),
        f"mentornet-prop is {gap(HARD, one_prop[0], prop[0])} worse ({ends(HARD, one_prop[0], prop[0])}; no difference "
        f"is shown) and sl-prop, with one seed, {gap(HARD, f'sl-prop {ONE}', 'sl-prop')} worse",
        f"mentornet gave up {lost(f'{HARD} mentornet')} classes (seed by seed), that of mentornet-prop "
        f"{lost(f'{HARD} mentornet-prop')} and that of sl-prop {lost(f'{HARD} sl-prop')}",
        f"{ours(f'{PAIR} mentornet-prop (repredict)')} {seeds(f'{PAIR} mentornet-prop (repredict)')}, paper 30.8, a "
        f"difference of {cells[f'{PAIR} mentornet-prop (repredict)'].difference:+.2f}",
        f"is {gap(PAIR, 'mentornet-prop (repredict)', 'mentornet-prop (stack)')} worse "
        f"({ends(PAIR, 'mentornet-prop (repredict)', 'mentornet-prop (stack)')})",
        "seed 0 alone: {:.2f} for λ = 0 (mentornet), {:.2f} for λ = 0.5, {:.2f} for λ = 1, {:.2f} for λ = 1.5 and "
        "{:.2f} for λ = 2".format(*(cells[f"{HARD} {name}"].errors[0] for name in ("mentornet", *weights))),
        "last epoch: {}, {}, {} and {} of 100".format(
            *(classes_given_up(run := cells[f"{HARD} {name}"].runs[0], run.epochs[-1]) for name in weights)
        ),
        f"(mentornet) {clean(f'{HARD} mentornet')}, Criteria_PL alone {clean(f'{HARD} mentornet (criterion pl)')} "
        f"(one seed), Criteria_ALL (mentornet-prop) {clean(f'{HARD} mentornet-prop')}",
        f"Criteria_OL {clean(f'{PAIR} mentornet')}, Criteria_ALL {clean(f'{PAIR} mentornet-prop')}",
        f"dominates: {clean(f'{SYMMETRY} mentornet')} and {clean(f'{SYMMETRY} mentornet-prop')}",
        f"default has {ours(f'{PAIR} default')} in its best epoch and {last(f'{PAIR} default')} in its last, "
        f"mentornet-prop {ours(f'{PAIR} mentornet-prop')} and {last(f'{PAIR} mentornet-prop')}",
    ]
    text = " ".join(BLOCK.sub("", PAGE.read_text(encoding="utf-8")).split())
    missing = [fragment for fragment in fragments if fragment not in text]
    assert not missing
    for fragment in fragments:
        text = text.replace(fragment, "")
    names = r"\]\(.*?\)|CIFAR-\d+|40% (?:pair|mixed|symmetry)|95%|(?:ecision|Algorithm|table|[Ff]igure|λ >) \d+"
    assert not re.findall(
        r"\S*\d\S*", re.sub(names, "", text).replace(f"within {NEAR} points", "").replace(f"than {NEAR} apart", "")
    )
    aligned = [one for one in evidence.variants if one.method.endswith(" (align True)")]
    assert (
        aligned and not any(map(epochs_given_up, aligned)) and {one.data for one in aligned} == {"cifar10", "cifar100"}
    )
    for where in (HARD, HARD_MIXED):
        for name in ("mentornet-prop", "sl-prop") if where is HARD else ("mentornet-prop",):
            one, other = cells[f"{where} {name} (align True)"].errors, cells[f"{where} {name}"].errors
            assert all(one[seed] < other[seed] for seed in range(3))
    effects = {
        (where, name): [
            cells[f"{where} {name} (align True)"].errors[seed] - cells[f"{where} {name}"].errors[seed]
            for seed in range(3)
        ]
        for where in (PAIR, MIXED)
        for name in ("mentornet-prop", "sl-prop")
    }
    for differences in effects.values():
        low, high = interval(differences)
        assert -NEAR < low < 0 < high < NEAR
    assert sum(effect > 0 for where in (PAIR, MIXED) for effect in effects[where, "sl-prop"]) == 5
    best = cells[f"{HARD} mentornet-prop (align True)"].errors.values()
    assert max(best) - min(best) < 0.5
    every = (PAIR, MIXED, SYMMETRY, HARD, HARD_MIXED, HARD_SYMMETRY)
    better = [cells[f"{where} {name}"].difference for where in every for name in ("default", "sl")]
    assert max(better) < 0
    far = [cells[f"{HARD_MIXED} {name}"].difference for name in ("default", "mentornet", "sl")]
    assert max(far) < -NEAR
    near = [cells[f"{HARD_MIXED} {name}"].difference for name in ("mentornet-prop", "sl-prop")]
    assert min(near) >= -NEAR
    default, *others = (cells[f"{HARD_SYMMETRY} {name}"].errors.values() for name in ("default", *prop))
    assert max(map(max, others)) < min(default)
    for measure in ("last", "last_ten"):
        at_the_end = list(paired(evidence, measure))
        for (found, method, base, best), (*_, end) in zip(paired(evidence, "best"), at_the_end, strict=True):
            where = f"{found[method].data} {found[method].column}"
            assert interval(best)[1] > 0 or interval(end)[1] < 0
            assert base not in ("default", "sl") or sum(end) < sum(best)
            assert (where, base) != (HARD_SYMMETRY, "mentornet") or (interval(best)[0] > 0 > interval(end)[0])
    spans = {name: epochs_given_up(cells[f"{PAIR} {name}"]) for name in ("mentornet", "sl-prop", "co-teaching")}
    assert not any(spans.values()) and re.match(
        r"seed \d in epoch 26 ", epochs_given_up(cells[f"{PAIR} mentornet-prop"])
    )
    to_the_end = [epochs_given_up(cells[f"{PAIR} {name}"]) for name in (one_prop[1], "co-teaching+")]
    assert all(re.fullmatch(r"seed \d in epochs 26 to 100 \(.*?\)", text) for text in to_the_end)


# ---- updating a page


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A page of one record; its figures are not really drawn."""
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


def test_stale_page_is_found_and_updated_and_its_text_is_kept(made, tmp_path, capsys):
    page = tmp_path / "docs" / "page.md"
    page.write_text(page.read_text(encoding="utf-8").replace("# Results", "# My title 19.50"), encoding="utf-8")
    assert execute([*made, "--check"]) == 0
    record(tmp_path / "records", cell("default", 1), 21.0)
    before = page.read_bytes()
    assert str(page) in failing_check(made, capsys)
    assert page.read_bytes() == before
    assert execute(made) == 0 and execute([*made, "--check"]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# My title 19.50\n") and "20.50 ± 0.50 (2)" in text
    page.write_text(text.replace("20.50", "19.50"), encoding="utf-8")
    assert str(page) in failing_check(made, capsys)


def test_stale_figure_is_found_unless_drawn_by_another_matplotlib(made, tmp_path, capsys):
    figure = tmp_path / "docs" / "figures" / "figure-8.svg"
    drawn = figure.read_bytes()
    figure.write_bytes(drawn.replace(b"</svg>", b"<!-- --></svg>"))
    assert "figure-8.svg" in failing_check(made, capsys)
    figure.write_bytes(drawn.replace(b"v9.9.9", b"v3.9.0"))
    assert execute([*made, "--check"]) == 0
    figure.unlink()
    assert "figure-8.svg" in failing_check(made, capsys)


@pytest.mark.parametrize(
    ("page", "says"), [("my own work", "no generated blocks"), ("<!-- generated: claim -->\n<!-- end -->", "claims?")]
)
def test_pages_without_known_blocks_are_refused(made, tmp_path, capsys, page, says):
    (tmp_path / "docs" / "page.md").write_text(page)
    assert execute(made) == 2
    assert says in capsys.readouterr().err and (tmp_path / "docs" / "page.md").read_text() == page


def test_missing_folder_of_records_is_refused(tmp_path, capsys):
    assert execute(["results", "--results", str(tmp_path / "none"), "--out", str(tmp_path / "page.md")]) == 2
    assert "none" in capsys.readouterr().err and not (tmp_path / "page.md").exists()


# ---- the blocks


def block(name: str, root: Path) -> str:
    return fill(f"<!-- generated: {name} -->\n<!-- end -->", collect(root), Path("page"))


def test_no_records(tmp_path):
    assert "There are no runs yet." in block("runs", tmp_path) and "No runs yet." in block("claims", tmp_path)
    missing = block("not run", tmp_path)
    assert "- table 2, cifar10: not run yet; 270 runs\n" in missing
    assert "- table 7, clothing1m: the data is not available; 30 runs\n" in missing
    assert [one.number for one in collect(tmp_path).drawings] == [7]


def test_some_records(tmp_path):
    for seed, (default, prop) in enumerate([(20.0, 12.0), (21.0, 12.5), (22.0, 13.0)]):
        record(tmp_path, cell("default", seed), default, default + 10)
        record(tmp_path, cell("mentornet-prop", seed), prop)
    assert "| cifar10 | A device | fp32 | 2.99.0 | 3.11.7 | 0.1.0 | 6 |" in block("runs", tmp_path)
    table = block("tables", tmp_path)
    assert "### Table 2" in table and "### Table 1" not in table and "cifar100" not in table
    assert "| – | – | – | 21.00 ± 0.58 (3) | – |" in table  # default: deviation 1 over the root of 3
    assert "+2.60 out" in table and "18.4 ± 0.35" in table and "264 runs are missing" in table
    assert "| mentornet-prop minus default | pair 40% | -8.00, -8.50, -9.00 | -8.50 ± 0.29 (3) |" in table
    # 4.30 * 0.2887 = 1.24
    row = "| cifar10 | pair 40% | mentornet-prop minus default | -6.2 | -8.50 ± 0.29 (3) | -9.74 to -7.26 | holds |"
    assert row in block("claims", tmp_path)
    assert re.search(r"default \| pair 40% \| 21.00 .* \| \+2.60 \| no \| no \|", block("numbers", tmp_path))
    ends = block("endings", tmp_path)
    assert "| default | 21.00 ± 0.58 (3) | 31.00 ± 0.58 | +10.00 | 75.00 ± 0.00 |  | 0, 0, 0 of 2 |" in ends
    files = [one.file for one in collect(tmp_path).drawings]
    assert files == ["figure-7.svg", "figure-8.svg", "figure-11-cifar10.svg"]
    assert "2 of its 36 experiments were run" in block("figures", tmp_path)


def test_differences_at_the_end_are_those_of_the_last_epochs(tmp_path):
    for seed, prop in enumerate([12.0, 12.5, 13.0]):
        record(tmp_path, cell("mentornet", seed), 20.0, 26.0)
        record(tmp_path, cell("mentornet-prop", seed), prop, prop + 4)
    row = "| cifar10 | pair 40% | mentornet-prop minus mentornet |"
    assert f"{row} -4.6 | -7.50 ± 0.29 (3) |" in block("claims", tmp_path)  # 12.5 - 20
    same = "-9.50 ± 0.29 | -10.74 to -8.26"  # 16.5 - 26; all epochs but the best have the last error
    assert f"{row} {same} | {same} |" in block("claims at the end", tmp_path)


def test_coverage_counts_cells_and_runs_without_counting_shared_runs_twice(tmp_path):
    for seed in range(3):
        record(tmp_path, cell("mentornet-prop", seed, "mixed"), 12.0)
        record(tmp_path, cell("mentornet-prop", seed), 12.0)
    record(tmp_path, cell("mentornet", 1), 14.0)
    rows = block("coverage", tmp_path).splitlines()
    assert "| table 1 | cifar10 | 3 | 1 | 0 | 2 | 6 |" in rows
    # 30 cells = 10 methods x 3 kinds of noise: 2 are whole, 1 has one of three seeds
    assert "| table 2, 40% noise | cifar10 | 30 | 2 | 1 | 27 | 83 |" in rows
    assert "| table 2, other rates | cifar10 | 60 | 0 | 0 | 60 | 180 |" in rows
    assert "| table 2, 40% noise | cifar100 | 30 | 0 | 0 | 30 | 90 |" in rows
    assert not any("clothing1m" in row or "tiny-imagenet" in row for row in rows)
    found = re.findall(r"^\| (table|figure) (\d+)", "\n".join(rows), re.M)
    assert found == sorted(found, key=lambda one: (one[0] == "figure", int(one[1])))


def test_more_seeds_than_the_paper_count(tmp_path):
    for seed in range(5):
        record(tmp_path, cell("default", seed), 20.0 + seed)
    table = block("tables", tmp_path)
    assert "22.00 ± 0.71 (5)" in table and "267 runs are missing" in table


def test_variants_are_named_by_their_changes(tmp_path):
    usual, one_pass = cell("mentornet"), replace(cell("mentornet-prop"), forward="one")
    record(tmp_path, usual, 20.0)
    for seed in (1, 0):
        record(tmp_path, replace(cell("mentornet", seed), sampler="independent"), 16.0 + seed)
    record(tmp_path, replace(cell("sl"), options=(("beta", 0.5),)), 15.0)
    record(tmp_path, replace(usual, forward="one"), 23.0)
    record(tmp_path, replace(usual, forward="one", weight_decay=1e-4), 19.0)
    record(tmp_path, replace(usual, data="fashion"), 5.0)
    record(tmp_path, one_pass, 13.0)  # also in table 5
    record(tmp_path, replace(one_pass, options=(("update", "repredict"),)), 14.0)
    record(tmp_path, next(point.experiment for point in points(10) if point.x == 0.5), 40.0)
    record(tmp_path, points(3)[0].experiment, 30.0)  # 26 epochs: in figure 3 only
    others, table = block("variants", tmp_path), block("tables", tmp_path)
    line = "mentornet (sampler independent) | pair 40% | 16.50 ± 0.50 (2) | -4.00 | -4.00 |  | 16.8 ± 0.55 | -0.30"
    assert line in others and "sl (beta 0.5)" in others and "fashion" not in others
    assert "mentornet (forward one) | pair 40% | 23.00 (1) | +3.00 |" in others
    assert "(forward one, weight_decay 0.0001) | pair 40% | 19.00 (1) | -4.00 |" in others  # compared with one pass
    assert "(forward one, update repredict) | pair 40% | 14.00 (1) | +1.00 |" in others
    assert "(stack) | pair 40% | 13.00 (1)" in table and "(repredict) | pair 40% | 14.00 (1)" in table
    assert "mentornet-prop (lam 0.5)" in others and "epochs 26" not in others
    assert "10 finished runs, 9 of 100 epochs, 1 of 26 epochs:" in block("runs", tmp_path)
    assert block("endings", tmp_path).count(" 13.00 (1)") == 1  # once, though table and variants have it


@pytest.mark.parametrize(
    ("differences", "printed", "expected"),
    [
        ([-2.0, -1.0, -2.0], -6.6, "holds"),
        ([-2.0, -1.0, -2.0], 0.5, "differs"),
        ([-2.0, -1.0, -2.0], 0.0, "differs"),
        ([2.0, 1.0, 2.0], 0.1, "worse"),
        ([2.0, 1.0, 2.0], -6.6, "worse"),
        ([-2.0, 1.0, -2.0], -6.6, "no difference shown"),
        ([-0.2, 0.1, 0.3], 0.0, "less than 1.5 apart"),  # 4.30 * 0.15 = 0.62
        ([-2.0, -2.1], -6.6, "holds"),  # 12.71 * 0.05 = 0.64
        ([-2.0], -6.6, "one seed"),
        ([-2.0, -2.1], None, ""),
    ],
)
def test_verdict(differences, printed, expected):
    assert verdict(differences, printed) == expected


def test_claims_list_dominant_noise_first_and_near_is_a_point_and_a_half():
    def made_up(method: str, error: float, noise: str = "pair") -> CellResult:
        return CellResult("cifar10", method, noise, 0.4, {0: error}, (18.0, 0.1))

    cells = [made_up(m, 18.0, noise) for noise in ("mixed", "symmetry", "pair") for m in ("sl", "sl-prop")]
    cells += [made_up("default", 19.5), made_up("mentornet", 16.4)]
    evidence = Evidence([], {one.name: one for one in cells}, [], [], [])
    rows = [line.split(" | ") for line in BLOCKS["claims"](evidence).splitlines()[2:]]
    assert [row[1] for row in rows] == ["pair 40%", "mixed 40%", "symmetry 40%"]
    near = {line.split(" | ")[1]: line.split(" | ")[-1] for line in BLOCKS["numbers"](evidence).splitlines()[2:]}
    assert near["default"] == near["sl"] == "yes |" and near["mentornet"] == "no |"


def test_class_is_given_up_below_half_of_its_share():
    """60% should be kept; half of it is 30%."""
    kept = [[1.0, 1.0], [0.9, 0.31], [0.9, 0.29], [0.95, 0.1], [0.6, 0.6], [0.29, 0.6], [0.6, 0.6]]
    epochs = [{"test_error": 30.0 - n, "kept": shares} for n, shares in enumerate(kept)]
    run = Run({"noise_rate": 0.4}, epochs, {}, {})
    assert [classes_given_up(run, row) for row in epochs] == [0, 0, 1, 1, 0, 1, 0]
    result = CellResult("cifar10", "mentornet", "pair", 0.4, {}, runs={4: run, 5: replace(run, epochs=epochs[:4])})
    expected = "seed 4 in 3 of the epochs 3 to 6 (lowest error 25.00); seed 5 in epochs 3 to 4 (lowest error 27.00)"
    assert epochs_given_up(result) == expected and given_up_at_end(result) == "0, 1 of 2"
