"""README and docs: examples run, figures match the records, links and commands are valid."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import photos, stages
from labelsieve.catalogue import options_of
from labelsieve.methods import METHODS
from labelsieve.paper.figures import points
from labelsieve.paper.tables import experiment, tables
from labelsieve.runs.find import identity, known_runs
from labelsieve.runs.read import by_method, read_run
from labelsieve.runs.spec import MethodChoice, with_defaults
from labelsieve.runs.tables import comparison, markdown, mean_and_error, paired_differences, plus_minus
from tests.conftest import LONG_WAIT

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
AUTO = (ROOT / "docs" / "auto.md").read_text(encoding="utf-8")
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
FEATURES = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
LOG = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
THREE = ["default", "mentornet", "mentornet-prop"]
ALIGNED = "mentornet-prop (align True)"
SELECTING = ["mentornet", "mentornet-prop", "sl-prop"]
EVERY = [*METHODS, "co-teaching (all)"]


def demo(noise: str, seeds: range, methods: list[str], folder: str = "demo"):
    """Return the runs of each method, which is named as in the tables of the demo."""
    runs = [read_run(path.parent) for path in sorted((ROOT / "results" / folder).glob("*/done"))]
    chosen = [run for run in runs if run.spec["noise"] == noise and run.spec["seed"] in seeds]
    groups = {method: [run for run in chosen if name_of(run) == method] for method in methods}
    return {method: sorted(group, key=lambda run: run.spec["seed"]) for method, group in groups.items() if group}


def name_of(run):
    return str(MethodChoice(run.spec["method"], run.spec["criterion"], tuple(map(tuple, run.spec["options"]))))


def test_the_sweep_of_the_docs_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8"), re.S)
    script = tmp_path / "mine.py"
    script.write_text(code.replace('"epochs": 12', '"epochs": 1').replace("range(3)", "range(1)"))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=LONG_WAIT
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs" / "mine").glob("*/done"))) == 2


def test_the_features_of_the_docs_are_computed(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", FEATURES, re.S)
    exec(code, {})
    shown = capsys.readouterr().out
    assert re.fullmatch(r"torch\.Size\(\[\d+, 1280\]\) \S+\ntorch\.Size\(\[2, 1280\]\)\n", shown)


def test_the_table_of_backbones_names_all():
    from labelsieve.features.backbones import BACKBONES

    table = FEATURES.split("## Backbones")[1].split("- **Nothing")[0]
    first_cells = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([\w:-]+)`", first_cells)) == {*BACKBONES, "timm:NAME", "hf:NAME"}


def test_the_cost_of_embedding_comes_from_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "embed.json").read_text())
    costs = {name: way["CPU ms per image"] for name, way in record["speed"]["ways"].items()}
    plain = min(cost for name, cost in costs.items() if name.startswith("plain"))
    words = " ".join(FEATURES.split())
    assert f"takes {costs['labelsieve, workers: 1']:.0f} ms of one CPU core" in words
    assert f"{plain:.0f} ms in the best plain loop" in words
    rates = {name: way["images per second"] for name, way in record["speed"]["ways"].items()}
    best = max(rate for name, rate in rates.items() if name.startswith("plain"))
    ours = rates["labelsieve, workers: 2"]
    assert f"embed {ours:.0f} images per second; the best plain loop reaches {best:.0f}" in words
    resumption = record["resumption"]
    assert f"{resumption['files']:,} files, embedded by a process that was killed three times" in words
    assert f"with a full cache they take {resumption['seconds with a full cache']:.1f} s" in words
    assert resumption["features equal bit for bit"] and len(resumption["killed"]) == 3


def test_figures_of_a_million_samples_match_the_record():
    records = json.loads((ROOT / "benchmarks" / "results" / "large.json").read_text())
    text = (ROOT / "docs" / "large.md").read_text(encoding="utf-8")
    assert [(record["samples"], record["device"]) for record in records] == [(10**6, "cpu")] * 2
    for record in records:
        heads = sum(
            stage["cpu_s"] for stage in record["stages"] if "heads" in stage["stage"] or "choose" in stage["stage"]
        )
        estimate, low, high = record["estimate"]
        row = [f"{record['classes']:,}", record["features"], f"{record['wall_s']:.0f} s", f"{record['cpu_s']:.0f} s"]
        row += [f"{heads:.0f} s", f"{record['peak_mb']:,} MB", f"{estimate:.0%} ({low:.0%} to {high:.0%})"]
        row += [f"{record['suspects']:,}", f"{record['precision']:.1%}", f"{record['recall']:.1%}"]
        assert f"| {' | '.join(map(str, row))} |" in text


def test_figures_of_forecasts_match_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "forecast.json").read_text())
    idle, busy = (sorted(case["took / forecast"] for case in record[way].values()) for way in ("idle", "busy"))
    words = " ".join(AUTO.split())
    assert f"Four commands took {idle[0]:.2f} to {idle[-1]:.2f} times the forecast on two idle cores, and " in words
    assert f"{busy[0]:.2f} to {busy[-1]:.2f} times beside two busy programs" in words and len(idle) == len(busy) == 4


def test_tables_of_the_stages_match_the_records():
    assert stages.tables(*stages.read_records()) in AUTO


def test_tables_of_photographs_match_the_record():
    rows = [json.loads(line) for line in photos.RESULTS.read_text().splitlines()]
    assert photos.short_table(rows) in README
    assert photos.table(rows) in AUTO
    assert photos.reliability(rows) in " ".join((ROOT / "docs" / "audit.md").read_text(encoding="utf-8").split())
    cost = json.loads(photos.COST.read_text())
    empty, full = cost["empty cache"], cost["full cache"]
    words = f"takes {empty['wall_s']:.0f} s on two CPU cores ({empty['cpu_s']:.0f} CPU seconds), and"
    assert f"{words} {full['wall_s']:.0f} s with a full cache" in " ".join(AUTO.split())
    lite0 = [cost["lite0"][state]["wall_s"] for state in ("empty cache", "full cache")]
    assert f"with `--backbone lite0` {lite0[0]:.0f} and {lite0[1]:.0f} s" in " ".join(AUTO.split())
    each = [
        1000 * (row["empty cache"]["cpu_s"] - row["full cache"]["cpu_s"]) / cost["images"]
        for row in (cost, cost["lite0"])
    ]
    text = " ".join((ROOT / "docs" / "features.md").read_text(encoding="utf-8").split())
    assert f"needs {each[0]:.0f} ms of CPU time per photograph for its features, with `lite0` {each[1]:.0f} ms" in text


def test_the_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=LONG_WAIT
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"tensor\(\[ ?(True|False)", done.stdout) and "\ntensor([[0.0000, " in done.stdout


def test_demo_table_matches_records():
    groups = demo("pair", range(3), [*THREE, ALIGNED], "demo-aligned")
    table = markdown(comparison(groups))
    assert table in README and table in DEMO
    least = {name: min(min(run.epochs[-1]["kept"]) for run in runs) for name, runs in groups.items()}
    assert f"it keeps only {least['mentornet-prop']:.0%} of the dresses" in DEMO and least[ALIGNED] > 0.5
    for method in ("mentornet", "mentornet-prop"):
        assert plus_minus([run.end["last"] for run in demo("symmetry", range(3), THREE)[method]]) in DEMO


def test_figures_of_fresh_seeds_match_records():
    aligned = demo("pair", range(10, 20), [ALIGNED], "demo-aligned")
    for runs in [*demo("pair", range(10, 20), THREE).values(), aligned[ALIGNED]]:
        assert len(runs) == 10 and plus_minus([run.end["last"] for run in runs]) in DEMO


def test_the_table_of_all_methods_comes_from_the_records():
    groups = demo("pair", range(3), EVERY)
    assert [len(runs) for runs in groups.values()] == [3] * 20
    assert markdown(comparison(groups)) in DEMO
    for line in paired_differences(groups):
        assert line in LOG


def test_the_logs_figures_come_from_the_records():
    for noise, seeds in (("pair", range(5)), ("symmetry", range(5)), ("pair", range(10, 20))):
        groups = demo(noise, seeds, THREE)
        assert all(len(runs) == len(seeds) for runs in groups.values())
        assert markdown(comparison(groups)) in LOG
        for line in paired_differences(groups):
            assert line in LOG


def test_the_speeds_come_from_the_records():
    first, before, record = (
        json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        for name in ("h200", "h200-before", "h200-after")
    )
    seconds = {row["way"]: row["seconds"] for row in first["epochs"][:1] + record["epochs"]}
    over = {step["classes"]: step for step in record["steps"] if step["method"] == "mentornet-prop"}
    for old, new in zip(before["epochs"], record["epochs"], strict=True):
        assert f"| {old['seconds']:.3f} | {new['seconds']:.3f} |" in LOG, new["way"]
    for kernel in ("_backward", "_conv_forward", "_transition_forward", "_statistics"):
        times = [next(k["us"] for k in one["kernels"] if k["kernel"] == kernel) for one in (before, record)]
        assert f"| {times[0]:.0f} | {times[1]:.0f} |" in LOG, kernel
    assert f"takes {seconds['recorded, bf16']:.2f} s in bf16" in GUARANTEES
    assert f"against {seconds['plain loop, fp32']:.2f} s for a plain" in GUARANTEES
    assert f"adds {over[10]['over_default_us']:.0f} µs to a step of {over[10]['ms']:.1f} ms" in GUARANTEES
    assert f"take {seconds['6 side by side']:.2f} s each" in GUARANTEES


def test_cifar_table_matches_records():
    known = known_runs(ROOT / "results" / "cifar10")
    methods = ("default", "mentornet", "mentornet-prop", "sl", "sl-prop")
    trials = [experiment("cifar10", method, "pair", 0.4, seed) for method in methods for seed in range(3)]
    best = best_of(known, trials)
    assert f"| here | {' | '.join(f'{best[method]:.2f}' for method in methods)} |" in README
    printed = {cell.experiment.method: cell.published for cell in tables()["2"].cells if is_pair_40(cell.experiment)}
    assert f"| paper | {' | '.join(f'{printed[method][0]:.1f}' for method in methods)} |" in README
    one_pass = [replace(trial, forward="one") for trial in trials if trial.method == "mentornet-prop"]
    clean = [f"{100 * read_run(known[identity(one.as_dict())]).epochs[-1]['precision']:.1f}" for one in one_pass]
    assert f"at the end: {', '.join(clean)}%" in " ".join(LOG.split())


def is_pair_40(experiment):
    return (experiment.data, experiment.noise, experiment.rate) == ("cifar10", "pair", 0.4)


def best_of(known, experiments):
    """Each method's mean of the best errors, from the records of all its trials."""
    runs = by_method(read_run(known[identity(one.as_dict())]) for one in experiments)
    return {method: mean_and_error([run.end["best"] for run in runs[method]])[0] for method in runs}


def test_the_logs_trials_with_a_second_pass_come_from_the_records():
    known = known_runs(ROOT / "results" / "cifar10")
    for method in SELECTING:
        wanted = [experiment("cifar10", method, "mixed", 0.4, seed) for seed in range(3)]
        best = [read_run(known[identity(one.as_dict())]).end["best"] for one in wanted]
        assert f"{method} {', '.join(f'{error:.2f}' for error in best)} (" in " ".join(LOG.split())


def test_what_a_second_pass_gains_comes_from_the_records():
    known = known_runs(ROOT / "results" / "cifar10")
    wanted = [experiment("cifar10", method, "pair", 0.4, seed) for method in SELECTING for seed in range(3)]
    one, second = (best_of(known, [replace(each, forward=way) for each in wanted]) for way in ("one", "second"))
    page = (ROOT / "docs" / "decisions" / "002-one-forward-masked-loss.md").read_text(encoding="utf-8")
    for method in SELECTING:
        assert f"| {method} | {one[method]:.2f} | {second[method]:.2f} |" in page
    rows = json.loads((ROOT / "benchmarks" / "results" / "given_up.json").read_text())
    for network, *changes in (
        ("with dropout", "as it is", "second pass"),
        ("without dropout", "no dropout", "no dropout and second pass"),
    ):
        correct = [
            [f"{100 * row['precision']:.1f}" for row in rows if (row["data"], row["change"]) == ("cifar10", change)]
            for change in changes
        ]
        assert f"| {network} | {' and '.join(correct[0])}% | {' and '.join(correct[1])}% |" in page


def test_what_a_second_pass_keeps_comes_from_the_records():
    """Decision 2: right labels among those that mentornet keeps, from the third selecting epoch to the drop."""
    shares = {"one": [], "second": []}
    for path in (ROOT / "results" / "cifar10").glob("*/done"):
        run = read_run(path.parent)
        spec = with_defaults(run.spec)
        if (run.method, spec["noise"], spec["weight_decay"], spec["options"]) == ("mentornet", "pair", 5e-4, []):
            shares[spec["forward"]] += [100 * row["precision"] for row in run.epochs[27:50]]
    (second, one) = (f"{min(shares[way]):.0f} to {max(shares[way]):.0f}%" for way in ("second", "one"))
    page = (ROOT / "docs" / "decisions" / "002-one-forward-masked-loss.md").read_text(encoding="utf-8")
    sentence = f"{second} of the labels that mentornet keeps are correct with a second pass, and {one} with one pass"
    assert sentence in " ".join(page.split())


def test_the_figures_of_reading_come_from_the_records():
    log = " ".join(LOG.split())
    found = json.loads((ROOT / "benchmarks" / "results" / "streaming.json").read_text())["images per second"]
    best, streamed, cached = (found[f"{kind}, 4 workers"] for kind in ("DataLoader", "Streamed", "cached"))
    assert best["median"] == max(row["median"] for name, row in found.items() if name.startswith("DataLoader"))
    times = streamed["times the best DataLoader"]
    assert f"{best['median']} images/s" in log and f"{streamed['median']:,} ({times} times)" in log
    assert f"{cached['median']:,} ({cached['times the best DataLoader']:.0f} times)" in log
    for table in json.loads((ROOT / "benchmarks" / "results" / "tables.json").read_text()).values():
        if isinstance(table, dict):
            assert re.search(rf"{table['seconds']} s and\s+{table['peak_mb']} MB", log)


def test_costs_of_commands_match_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "commands.json").read_text())
    minutes = record["after"]["train"]["wall_s"] / 60
    assert f"{record['pictures']:,} small pictures take {minutes:.0f} minutes on two CPU cores" in AUTO
    for row in ("--help, s", "train --help, s"):
        before, after = (record[name][row] for name in ("before", "after"))
        assert f"| `labelsieve {row.removesuffix(', s')}` | {before:.2f} s | {after:.2f} s |" in LOG
    for name, digits in (("train", 0), ("train, again when finished", 1)):
        before, after = (record[when][name]["cpu_s"] for when in ("before", "after"))
        assert f"CPU seconds | {before:.{digits}f} | {after:.{digits}f} |" in LOG


def test_costs_of_a_review_match_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "review.json").read_text())
    page = (ROOT / "docs" / "review.md").read_text()
    measured = [each for group in record.values() if "one by one" in group for each in group.values()]
    for found in (each for each in measured if isinstance(each, dict)):
        shown = f"{found['shown_ms_median']} ms ({found['shown_ms_95']} ms)" if "shown_ms_95" in found else ""
        waits = f"{found['wait_ms_median']} ms ({found['wait_ms_95']} ms) | {found['wait_s_total']} s"
        assert found["decisions"] == 200 and shown in page
        assert f"| {waits} | {found['picture_width']:,} px |" in page and f"| {found['actions']} |" in page
    assert record["before"]["by pairs"] is None


def test_readme_is_short():
    assert README.count("\n") <= 150


def test_links_lead_to_files():
    """Every relative link of README and docs names an existing file or folder."""
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "benchmarks/README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]:
        for link in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page}: {link}"


def test_tree_names_every_package():
    tree = README.split("## The code")[1].split("```")[1]
    packages = {path.parent.name for path in (ROOT / "labelsieve").glob("*/__init__.py")}
    assert {word.rstrip("/") for word in re.findall(r"\b\w+/", tree)} == packages | {"labelsieve"}


def test_commands_of_readme_parse():
    """Every `labelsieve ...` line parses; none is run."""
    from labelsieve.cli import parse

    lines = re.findall(r"^labelsieve (.*?)(?: +#.*)?$", README, re.M)
    assert len(lines) >= 7
    for line in lines:
        parse(line.split())


def test_pages_of_methods_list_the_tables_and_figures_of_the_paper():
    found: dict[str, set[str]] = {}
    for name, table in tables().items():
        for cell in table.cells:
            found.setdefault(cell.experiment.method, set()).add(f"table {name}")
    for number in (3, 8, 9, 10, 11):
        for point in points(number):
            found.setdefault(point.experiment.method, set()).add(f"figure {number}")
    for name in METHODS:
        text = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
        text = text.split("## Experiments in the paper")[1].split("##")[0].replace("(2021)", "")
        of_tables, _, of_figures = text.partition("figure")
        listed = {f"table {n}" for n in re.findall(r"\d+", of_tables)}
        listed |= {f"figure {n}" for n in re.findall(r"\d+", of_figures)}
        assert listed == found.get(name, set()) - {"table small"}, name


def test_every_method_has_its_page_with_its_options():
    from labelsieve.commands.methods import page

    assert {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")} == set(METHODS)
    for name in METHODS:
        text = page(name)
        assert text.startswith(f"# {name}\n\n")
        parts = ("Idea", "Equation", "Options", "Cost", "Experiments in the paper", "Differences from", "In a custom")
        assert all(f"\n\n## {part}" in text for part in parts)
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.M)
        assert dict(rows) == {key: str(value) for key, value in options_of(name).items()}


def test_costs_of_a_step_match_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "step_cost.json").read_text())
    page = (ROOT / "docs" / "decisions" / "044-the-cost-of-a-step.md").read_text(encoding="utf-8")
    before, now = record["before (765fee9)"], record["now"]
    for classes in ("10 classes", "1000 classes"):
        for name in set(now[classes]) - {"cross_entropy"}:
            cells = [
                f"{each[classes][name]['us']:.0f} µs, {each[classes][name]['times']:.1f}x" for each in (before, now)
            ]
            assert f"| {name}, {classes} | {cells[0]} | {cells[1]} |" in page


def test_times_of_the_audit_match_the_record():
    rows = json.loads((ROOT / "benchmarks" / "results" / "audit_speed.json").read_text())["rows"]
    taken = {(row["samples"], row["call"], row["system"]): row for row in rows}
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    ours, alone = "find_label_issues", "find_label_issues, n_jobs=1"
    for field, digits in (("wall_s", 2), ("cpu_s", 2), ("added_mb", 0)):
        cells = []
        for samples in (200_000, 1_000_000):
            cells += [
                f"{taken[samples, ours, system][field]:.{digits}f}" for system in ("labelsieve", "labelsieve before")
            ]
            cells.append(", ".join(f"{taken[samples, call, 'cleanlab'][field]:.{digits}f}" for call in (ours, alone)))
        assert f"| {' | '.join(cells)} |" in page
    slower = [
        [
            taken[samples, ours, "labelsieve"][field] / min(taken[samples, call, "cleanlab"][field] for call in calls)
            for samples in (200_000, 1_000_000)
        ]
        for field, calls in (("wall_s", (ours, alone)), ("cpu_s", (alone,)))
    ]
    words = (
        "takes {:.1f} and {:.1f} times as long as the faster call of cleanlab, and {:.1f} and {:.1f} times its CPU time"
    )
    assert words.format(*slower[0], *slower[1]) in page


def test_times_with_threads_match_the_record_and_the_default_is_never_far_from_the_best():
    workloads = json.loads((ROOT / "benchmarks" / "results" / "threads.json").read_text())["workloads"]
    page = (ROOT / "docs" / "decisions" / "045-threads.md").read_text(encoding="utf-8")
    for name, found in workloads.items():
        idle, busy, ratios = *found["ms per step"].values(), found["default, times the best"]
        cells = [f"{idle[way]:.1f}, {busy[way]:.1f}" for way in idle]
        cells += [found["default"], f"{ratios['idle']:.2f}, {ratios['busy']:.2f}"]
        assert f"| {name} | {' | '.join(cells)} |" in page
        assert max(ratios.values()) <= 1.5
    ratio = max(
        found["ms per step"]["idle"]["one thread"] / min(found["ms per step"]["idle"].values())
        for found in workloads.values()
    )
    assert f"up to {ratio:.1f}\ntimes as slow" in page
