"""The HTML page of the report, read by a parser."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from labelsieve.audit.files import THUMBNAIL_BYTES
from labelsieve.audit.map import MAX_POINTS
from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.report.audit import read_audit
from labelsieve.report.page import ReportedRun, method_table, run_page, without_empty_columns, write_report
from labelsieve.runs.read import read_progress, read_run
from tests.made_runs import add_map, add_other_issues, make_audit, make_run
from tests.report.conftest import HOSTILE, IMAGE, MEGABYTE, Skeleton, hostile_page, report_html, visible_text


def test_page_with_200_images_is_at_most_5_megabytes(photos_page):
    text = photos_page.read_text(encoding="utf-8")
    assert len(IMAGE.findall(text)) == 200
    assert photos_page.stat().st_size <= 5 * MEGABYTE


def test_page_with_the_largest_thumbnails_and_map_is_at_most_5_megabytes(tmp_path):
    run = make_run(tmp_path / "run")
    folder = make_audit(run, ids=[f"longsleeve/{'0123456789abcdef' * 2}-{k}.jpg" for k in range(200)])
    add_map(folder, MAX_POINTS)
    for thumb in (folder / "thumbs").iterdir():
        thumb.write_bytes(b"RIFF\0\0\0\0WEBP".ljust(THUMBNAIL_BYTES, b"x"))
    text = report_html(run)
    assert len(IMAGE.findall(text)) == 200 and text.count("<circle cx") >= MAX_POINTS
    assert len(text.encode()) <= 5 * MEGABYTE


def test_samples_beyond_the_size_limit_are_shown_without_image(tmp_path):
    run = make_run(tmp_path / "run")
    folder = make_audit(run)
    for thumb in (folder / "thumbs").iterdir():
        thumb.write_bytes(b"RIFF\0\0\0\0WEBP" + bytes(40_000))
    text = report_html(run)
    assert 0 < len(IMAGE.findall(text)) < 200
    assert text.count('<li class="card') == 200
    assert len(text.encode()) <= 5 * MEGABYTE


def test_page_of_300_long_runs_is_at_most_5_megabytes(tmp_path):
    path = make_run(tmp_path / "run", epochs=200)
    reported = [ReportedRun(f"runs/{k}", read_run(path)) for k in range(300)]
    assert len(run_page(reported).encode()) <= 5 * MEGABYTE


def test_page_is_reproducible_and_does_not_import_torch(photos, photos_page):
    first = photos_page.read_bytes()
    code = """
import sys, types
from pathlib import Path
sys.modules["torch"] = None  # any import of it fails
package = sys.modules["labelsieve"] = types.ModuleType("labelsieve")
package.__path__ = ["labelsieve"]
from labelsieve.report.audit import read_audit
from labelsieve.report.page import ReportedRun, run_page
from labelsieve.runs.read import read_run
run = Path(sys.argv[1])
sys.stdout.buffer.write(run_page([ReportedRun(str(run), read_run(run), read_audit(run, 200))]).encode())
"""
    done = subprocess.run([sys.executable, "-c", code, str(photos)], check=True, capture_output=True)
    assert done.stdout == first


def test_first_screen_has_findings_and_next_steps(photos_page):
    first = visible_text(photos_page.read_text(encoding="utf-8")).split("Suspect images")[0]
    assert "About 38% (35 to 40%) of the 6,000 labels look wrong, mostly between neighbouring classes." in first
    assert (
        "2,210 suspects (labels that are more likely wrong than correct); the 200 most suspicious are shown below."
        in first
    )
    # by hand: class 8 has the highest share, 0.55 of 600 labels, all of them from the class before it
    assert "About 330 of the 600 samples labelled “Bag” seem to be “Sneaker”." in first
    assert "The delivered model is wrong on 16.2% of the test images." in first
    assert "labelsieve review " in first and "labelsieve train photos --labels " in first


def test_first_screen_warns_about_neglected_classes(photos):
    run, audit = read_run(photos), read_audit(photos, 200)
    kept = [0.07, *(1 - run.spec["noise_rate"] for _ in run.classes[1:])]
    neglecting = replace(run, epochs=[*run.epochs[:-1], {**run.epochs[-1], "kept": kept}])
    warning = f"Warning: few samples of these classes were used for training: {run.classes[0]} (7%)."
    first, usual = (
        visible_text(run_page([ReportedRun("mine", each, audit)])).split("Suspect images")[0]
        for each in (neglecting, run)
    )
    assert warning in first and "Warning" not in usual


def test_clean_labels_need_no_review(tmp_path):
    run = make_run(tmp_path / "run")
    make_audit(run, clean=True, shown=5)
    text = report_html(run)
    assert "The labels look clean: nothing should be done." in visible_text(text)
    assert "The labels do not need to be changed." in visible_text(text)
    assert "labelsieve review" not in visible_text(text) and "<s>" not in text


def test_headings_are_nested_and_ids_are_unique(photos, photos_page, tmp_path):
    other = make_run(tmp_path / "other", method="default")
    for text in (photos_page.read_text(encoding="utf-8"), report_html(photos, other)):
        levels = [int(level) for level in re.findall(r"<h(\d)", text)]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        ids = re.findall(r' id="([^"]+)"', text)
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)


def test_policy_allows_only_the_inlined_style_and_script(photos_page):
    text = photos_page.read_text(encoding="utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy
    assert " style=" not in text and not re.search(r" on\w+=", text.split("<script>")[0])


@pytest.mark.parametrize("place", ["class", "id", "why", "text", "row", "run", "spec", "twin"])
def test_hostile_strings_are_escaped(tmp_path, place):
    """The page has the same elements and attributes as with harmless strings, and contains each string."""
    harmless = [f"name {k}" for k in range(len(HOSTILE))]
    pages = {kind: hostile_page(tmp_path / kind, place, names) for kind, names in (("a", harmless), ("b", HOSTILE))}
    plain, attacked = (Skeleton(text) for text in pages.values())
    assert attacked.elements == plain.elements
    assert {a for a in attacked.addresses if not a.startswith("data:image/webp")} <= plain.addresses
    shown = "".join(attacked.texts)
    for name in HOSTILE:
        assert name[:70] in shown, name


def test_names_with_invalid_unicode_are_escaped(tmp_path):
    run = make_run(tmp_path / "run")
    make_audit(run, ids=["odd\udcff.png"], kind="none", shown=3)
    assert r"odd\udcff.png" in report_html(run)


@pytest.mark.parametrize("name", ["../../secret.webp", "/etc/passwd", "thumbs/0.txt", "thumbs/none.webp", "thumbs"])
def test_only_images_of_the_audit_are_included(tmp_path, name):
    run = make_run(tmp_path / "run")
    audit = make_audit(run, shown=1)
    (tmp_path / "secret.webp").write_bytes(b"RIFF\0\0\0\0WEBPsecret")
    (audit / "thumbs" / "0.txt").write_bytes(b"words")
    line = json.loads((audit / "gallery.jsonl").read_text(encoding="utf-8"))
    (audit / "gallery.jsonl").write_text(json.dumps({**line, "image": name}) + "\n", encoding="utf-8")
    assert not IMAGE.findall(report_html(run))


def test_folders_of_the_machine_are_not_shown(tmp_path):
    run = make_run(tmp_path / "run", data="/home/somebody/secret/photos", cache="/home/somebody/cache")
    make_audit(run, shown=3)
    text = run_page([ReportedRun("runs/mine", read_run(run), read_audit(run, 3))])
    assert "somebody" not in text and "photos" in text


def test_several_runs_are_compared(tmp_path):
    runs = [make_run(tmp_path / f"d{s}", method="default", seed=s, last=30.0 + 2 * s) for s in range(2)]
    runs += [make_run(tmp_path / f"m{s}", seed=s, last=16.0 + s) for s in range(2)]
    make_audit(runs[2], shown=7)
    cut = make_run(tmp_path / "cut", seed=2, done=False)
    text = report_html(*runs, cut)
    assert "Last test error, lowest first: mentornet-prop 16.5 ± 0.5%; default 31.0 ± 1.0%." in text
    assert "unfinished, 6 epochs done" in text
    assert text.count('<li class="card') == 7 and f"Run <bdi>{runs[2]}</bdi>, compared with 4 others" in text
    assert "different settings" not in text
    assert len(re.findall("<polyline", text)) == 3 * 5  # test error, loss and precision of every run


def test_differing_settings_of_runs_are_named(tmp_path):
    runs = [make_run(tmp_path / "a", batch=64), make_run(tmp_path / "b", method="default", batch=128)]
    text = visible_text(report_html(*runs))
    assert "2 runs compared. None of them was audited" in text
    assert "differ in more than method and seed (batch); the means above combine runs with different settings" in text
    assert "lowest first" not in text


def test_empty_table_is_not_shown(tmp_path):
    runs = [make_run(tmp_path / f"m{s}", seed=s, test=False, truth=False, batch=64 + s) for s in range(2)]
    make_audit(runs[1])
    html = report_html(*runs)
    text = visible_text(html)
    assert "Means over" not in text and "means above" not in text
    assert "These runs differ in more than method and seed (batch)." in text
    head = html.partition("Runs</h3>")[2].partition("</thead>")[0]
    assert re.findall('<th scope="col"[^>]*><bdi>([^<]*)', head) == [
        "Run",
        "Method",
        "State",
        "Seed",
        "Labels look wrong",
    ]
    assert f"are those of the run {runs[1]}; the training curves show all runs." in text


def test_empty_columns_are_removed_from_tables():
    table = [["method", "a", "b", "seeds"], ["x", "–", "1.0", "2"], ["y", "–", "–", "1"]]
    assert without_empty_columns(table) == [["method", "b", "seeds"], ["x", "1.0", "2"], ["y", "–", "1"]]
    assert method_table(table) == without_empty_columns(table) and without_empty_columns(table[:1]) == table[:1]
    assert method_table([["method", "a", "seeds"], ["x", "–", "2"]]) == [] == method_table(table[:1])


def test_page_without_an_audit(tmp_path):
    text = report_html(make_run(tmp_path / "run"))
    assert "This run was not audited" in visible_text(text) and "labelsieve audit " in visible_text(text)
    assert 'id="gallery"' not in text and 'id="samples"' not in text
    assert "Ankle boot" in visible_text(text)  # class names of the penalty matrix, from the model


def test_missing_audit_is_made(tmp_path):
    run, cut = make_run(tmp_path / "run"), make_run(tmp_path / "cut", done=False)
    made = []
    out = write_report([run, cut], tmp_path / "r.html", 5, audit=lambda path: made.append(make_audit(path)))
    assert made == [run / "audit"] and out.read_text(encoding="utf-8").count('<li class="card') == 5
    write_report([run], None, 5, audit=lambda path: pytest.fail("it exists"))


def test_unfinished_run_is_marked_as_unfinished(tmp_path):
    run = make_run(tmp_path / "run", done=False)
    with (run / "record.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "epo')  # an incomplete line
    text = visible_text(
        run_page([ReportedRun("run", read_progress(run)), ReportedRun("done", read_run(make_run(tmp_path / "done")))])
    )
    assert "The run is unfinished: 6 of 12 epochs are done." in text
    assert "labelsieve predict" not in text


def test_run_interrupted_before_its_first_epoch(tmp_path):
    text = run_page([ReportedRun("run", read_progress(make_run(tmp_path / "run", epochs=1, done=False, warmup=0)))])
    assert "0 of 1 epochs are done" in text and "<svg" not in text


def test_page_without_test_set_and_true_labels(tmp_path):
    run = make_run(tmp_path / "run", test=False, truth=False)
    make_audit(run, kind="text", shown=4)
    text = report_html(run)
    assert "the error of the delivered model is unknown. To measure it, labelsieve train --test 0.2 holds out" in text
    assert "experiment" not in visible_text(text)
    assert text.count("<blockquote") == 4


def test_epochs_are_counted_across_rounds(tmp_path):
    run = make_run(tmp_path / "run", epochs=6)
    rows = [json.loads(line) for line in (run / "record.jsonl").read_text(encoding="utf-8").splitlines()]
    first, middle, end = rows[0], rows[1:-1], rows[-1]
    both = [{**row, "round": number} for number in (1, 2) for row in middle]
    text = "".join(json.dumps(row) + "\n" for row in (first, *both, end))
    (run / "record.jsonl").write_text(text, encoding="utf-8")
    drawn = report_html(run)
    assert "test, epoch 12:" in drawn and drawn.count('class="mark"') == 2 * 3


def test_many_classes_are_drawn_as_a_map_with_a_list(tmp_path):
    classes = [f"species {k}" for k in range(300)]
    run = make_run(tmp_path / "run", classes=classes, epochs=5)
    make_audit(run, classes=classes, kind="row", shown=20)
    text = report_html(run)
    assert '<table class="heat">' not in text and text.count('<svg class="map"') == 3
    assert "Given label ↓, estimated class →" in text and "Given label ↓, true class →" in text
    assert len(text.encode()) < MEGABYTE


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({"summary.json": "{"}, "summary.json"),
        ({"summary.json": "{}"}, "'samples' is missing"),
        ({"gallery.jsonl": "nonsense\n"}, "gallery.jsonl"),
        ({"gallery.jsonl": '{"id": 1}\n'}, "gallery.jsonl:1 is not a sample ('given_label' is missing)"),
    ],
)
def test_damaged_audit_is_a_one_line_error(tmp_path, broken, named):
    run = make_run(tmp_path / "run")
    audit = make_audit(run, shown=2)
    for name, content in broken.items():
        (audit / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(named)) as caught:
        write_report([run], None, 10)
    assert "\n" not in str(caught.value) and "run labelsieve audit again" in str(caught.value)
    assert not (run / "report.html").exists()


def test_wrong_folder_is_a_one_line_error(tmp_path, capsys):
    for argv in (["report", str(tmp_path)], ["report", str(tmp_path / "none")], ["report"]):
        assert execute(argv) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1


def test_command_prints_the_path_of_the_page(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    assert execute(["report", str(run), "--gallery", "3"]) == 0
    assert capsys.readouterr().out == f"report: {run / 'report.html'}\n"
    assert execute(["report", str(run), str(run), "--out", str(tmp_path / "no" / "x.html")]) == 2
    assert execute(["report", str(run), "--gallery", "-1"]) == 2


def test_a_named_page_may_be_a_link(tmp_path):
    run, link = make_run(tmp_path / "run"), tmp_path / "link.html"
    link.symlink_to("page.html")
    assert execute(["report", str(run), "--out", str(link)]) == 0
    assert link.is_symlink() and (tmp_path / "page.html").read_bytes().startswith(b"<!DOCTYPE html>")
    (run / "report.html").symlink_to("record.jsonl")  # a link in the run is replaced
    assert execute(["report", str(run)]) == 0
    assert not (run / "report.html").is_symlink() and (run / "record.jsonl").read_bytes().startswith(b"{")


def test_page_states_the_basis_of_its_estimates(tmp_path):
    run = make_run(tmp_path / "run")
    summary = make_audit(run, shown=3) / "summary.json"
    assert "come from the" not in report_html(run)
    basis = "The 38% come from the 300 samples that the model did not learn from."
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "basis": basis}))
    assert f"All classes: 38% (35 to 40%). {basis} The thin lines" in visible_text(report_html(run))


def test_estimated_noise_rate_is_called_estimated(tmp_path):
    run = make_run(tmp_path / "run")
    assert "(method mentornet-prop, 12 epochs, noise rate 40%)." in visible_text(report_html(run))
    record = run / "record.jsonl"
    record.write_text(record.read_text().replace('"event": "start"', '"event": "start", "chosen": {}'))
    assert "12 epochs, estimated noise rate 40%)." in visible_text(report_html(run))


def test_other_issues_have_sections_of_their_own(page_with_other_issues, photos_page):
    text = page_with_other_issues.read_text(encoding="utf-8")
    shown = visible_text(text)
    assert "4 of the 6,000 images have a near-duplicate, 2 of them one with a different label." in shown
    assert "At least one label of each of these pairs is probably wrong:" in shown
    assert text.count('<li class="pair">') == 2 and "1 pair with the same label" in shown
    assert "1 of the 6,000 images is far from all classes" in shown
    assert shown.count("strange.png") == 1  # not among the suspects and the samples that follow them
    assert "The next 10 most suspicious samples" in shown
    without = photos_page.read_text(encoding="utf-8")
    assert 'id="duplicates"' not in without and 'id="outliers"' not in without


@pytest.mark.parametrize("kind", ["text", "row", "none"])
def test_pairs_of_any_kind_are_shown(tmp_path, kind):
    run = make_run(tmp_path / "run")
    add_other_issues(make_audit(run, shown=12, kind=kind))
    text = report_html(run)
    pair = text[text.index('<li class="pair">') : text.index("</li>", text.index('<li class="pair">'))]
    assert pair.count("T-shirt/top") and pair.count("Trouser") and pair.count("<img") == 0
    assert pair.count("<blockquote") == 2 * (kind == "text") and pair.count("<dl>") == 2 * (kind == "row")


def test_numbers_of_shown_samples_are_limited_for_each_kind(tmp_path):
    run = make_run(tmp_path / "run")
    add_other_issues(make_audit(run, shown=30))
    text = report_html(run, gallery=1)
    assert text.count('<li class="card') == 2 and text.count('<li class="pair">') == 1  # a suspect, an outlier
    assert 'id="different"' in text and 'id="equal"' not in text


def test_rest_of_the_suspects_is_one_command_away(tmp_path):
    run = make_run(tmp_path / "run")
    audit = make_audit(run, shown=30)
    shown = visible_text(report_html(run))
    assert "30 of 2,210 suspects shown" in shown
    assert f"Review all 2,210 in the browser with labelsieve review {run}, or list them in audit/labels.csv." in shown
    summary = json.loads((audit / "summary.json").read_text())
    (audit / "summary.json").write_text(json.dumps({**summary, "issues": 30}))
    assert "30 of 30 suspects shown" in visible_text(report_html(run)) and "Review all" not in report_html(run)


def test_cards_have_one_probability_and_no_repeated_sentence(tmp_path):
    run = make_run(tmp_path / "run")
    make_audit(run, shown=4, why="Looks more like Ankle boot than T-shirt/top.")
    text = report_html(run)
    cards = re.findall(r'<li class="card.*?</li>', text, re.DOTALL)
    assert len(cards) == 4
    texts = ["".join(Skeleton(card).texts) for card in cards]
    assert [text.count("%") for text in texts] == [1, 1, 1, 1] and "#1 Quality under 1%" in texts[0]
    assert "Looks more" not in texts[0]  # given T-shirt/top, suggested Ankle boot: the labels say so
    assert "Looks more" in texts[1]


def test_confusions_are_a_graph_with_a_table(photos_page, tmp_path):
    text = photos_page.read_text(encoding="utf-8")
    graph = text[text.index('<svg class="chart graph"') :].partition("</svg>")[0]
    # by hand: nine of ten classes have different shares, 0.15 to 0.55; the tenth has 0.15 again
    assert graph.count('class="edge"') == 10 and graph.count('class="node"') == 10
    assert (
        "<title>Bag → Sneaker: 330</title>" in graph and "Arrows: Bag to Sneaker, 330; Sneaker to Shirt, 300;" in graph
    )
    assert "The arrows stand for 1,980 of the 2,210 suspects." in visible_text(text)
    clean = make_run(tmp_path / "clean")
    make_audit(clean, clean=True, shown=3)
    assert 'id="confused"' not in report_html(clean)


def test_map_shows_samples_by_given_label(page_with_other_issues, photos_page):
    text = page_with_other_issues.read_text(encoding="utf-8")
    drawn = text[text.index('<svg class="points"') :].partition("</svg>")[0]
    assert drawn.count("<circle") == 300 and drawn.count('<g class="point marked') == 10
    assert "<title>T-shirt/top/0000.png: T-shirt/top → Ankle boot</title>" in drawn  # the first, a suspect
    assert "<title>Trouser/0001.png: Trouser</title>" in drawn  # the second, not marked
    assert "300 of the 6,000 images; similar images lie near each other" in visible_text(text)
    assert 'id="map"' not in photos_page.read_text(encoding="utf-8")


def test_map_of_many_classes_has_few_colours(tmp_path):
    classes = [f"species {k}" for k in range(40)]
    run = make_run(tmp_path / "run", classes=classes)
    add_map(make_audit(run, classes=classes, shown=3))
    text = report_html(run)
    assert "28 other classes" in visible_text(text) and 'class="point k12"' in text and "k13" not in text


@pytest.mark.parametrize("change", [{"given": [99] * 300}, {"x": [1]}, {"index": ["<b>"] * 300}])
def test_damaged_map_is_a_one_line_error(tmp_path, change):
    run = make_run(tmp_path / "run")
    audit = make_audit(run, shown=2)
    add_map(audit)
    columns = json.loads((audit / "map.json").read_text())
    (audit / "map.json").write_text(json.dumps({**columns, **change}))
    with pytest.raises(InputError, match=r"map\.json: .*; run labelsieve audit again"):
        write_report([run], None, 10)


def test_single_epoch_is_not_drawn(tmp_path):
    text = report_html(make_run(tmp_path / "run", epochs=1, warmup=0))
    assert 'id="training"' not in text and 'class="chart"' not in text
    assert 'id="training"' in report_html(make_run(tmp_path / "two", epochs=2, warmup=0))


def test_settings_are_folded_and_readable(tmp_path):
    run = make_run(tmp_path / "run", data="/home/somebody/photos")
    head = json.loads((run / "spec.json").read_text())
    head["command"] = "labelsieve train /home/somebody/photos --out runs/mine"
    (run / "spec.json").write_text(json.dumps(head))
    text = report_html(run)
    section = text[text.index('id="settings"') :]
    assert section.index("<details>") < section.index("<dl") and "somebody" not in text
    rows = dict(re.findall(r"<dt>(.*?)</dt><dd><bdi>(.*?)</bdi>", section))
    assert rows["command"] == "labelsieve train DATA --out runs/mine" and rows["versions torch"] == "2.13.0"
    assert rows["criterion"] == "none" and "{" not in "".join(rows.values())
