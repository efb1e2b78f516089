"""labelsieve report: one HTML file, read by a parser, opened in a browser."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.report import svg, words
from labelsieve.report.audit import Estimate, read_findings, readable
from labelsieve.report.page import Told, filled, measured, page, report
from labelsieve.runs.read import read_progress, read_run
from labelsieve.text import percent
from tests.made_runs import make_audit, make_run

MEGABYTE = 2**20
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "'><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "' onfocus='alert(1)' autofocus='",
    "<svg onload=alert(1)>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<iframe src=javascript:alert(1)></iframe>",
    "<a href=javascript:alert(1)>x</a>",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<form action=//evil.example><button>",
    "<object data=//evil.example></object>",
    "<math><mtext><script>alert(1)</script>",
    "<details open ontoggle=alert(1)>",
    "<!--<script>alert(1)</script>-->",
    "]]><script>alert(1)</script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "{{7*7}}",
    "{% for x in range(9) %}x{% endfor %}",
    "${7*7}",
    "\u202egnp.tac",
    "\u2066mirrored\u2069",
    "zero\u200bwidth",
    "\u200fright to left",
    "שלום עולם",
    "x" * 3000,
    "a b " * 400,
    "\U0001f600" * 200,
    "'single'",
    '"double"',
    "back\\slash\\",
    'it\'s "both" & <more>',
]
PICTURE = re.compile(r"data:image/webp;base64,[A-Za-z0-9+/=]+")


class Skeleton(HTMLParser):
    """Elements and attribute names in order, texts, and every address."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.texts: list[str] = []
        self.addresses: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.addresses |= {value for name, value in attrs if name in ("href", "src", "action", "data")}

    def handle_data(self, data):
        self.texts.append(data)


def said(text: str) -> str:
    """What a reader sees, without style and script."""
    body = text[text.index("<main") : text.index("</main>")]
    return " ".join("".join(Skeleton(body).texts).split())


def written(*runs: Path, gallery: int = 200) -> str:
    return report(runs, None if len(runs) == 1 else runs[0] / "several.html", gallery).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """A finished run with an audit of 200 noisy pictures, the worst case for their size."""
    run = make_run(tmp_path_factory.mktemp("runs") / "photos")
    make_audit(run)
    return run


@pytest.fixture(scope="module")
def photos_page(photos) -> Path:
    return report([photos], None, 200)


# What is in the file


def test_two_hundred_pictures_fit_into_five_megabytes(photos_page):
    text = photos_page.read_text(encoding="utf-8")
    assert len(PICTURE.findall(text)) == 200
    assert photos_page.stat().st_size <= 5 * MEGABYTE


def test_pictures_beyond_the_limit_are_left_out_not_the_samples(tmp_path):
    run = make_run(tmp_path / "run")
    folder = make_audit(run)
    for thumb in (folder / "thumbs").iterdir():
        thumb.write_bytes(b"RIFF\0\0\0\0WEBP" + bytes(40_000))
    text = written(run)
    assert 0 < len(PICTURE.findall(text)) < 200
    assert text.count('<li class="card') == 200
    assert len(text.encode()) <= 5 * MEGABYTE


def test_three_hundred_long_runs_fit_too(tmp_path):
    path = make_run(tmp_path / "run", epochs=200)
    told = [Told(f"runs/{k}", read_run(path)) for k in range(300)]
    assert len(page(told).encode()) <= 5 * MEGABYTE


def test_the_same_input_gives_the_same_bytes_without_torch(photos, photos_page):
    first = photos_page.read_bytes()
    code = """
import sys, types
from pathlib import Path
sys.modules["torch"] = None  # whoever imports it fails
package = sys.modules["labelsieve"] = types.ModuleType("labelsieve")
package.__path__ = ["labelsieve"]
from labelsieve.report.audit import read_findings
from labelsieve.report.page import Told, page
from labelsieve.runs.read import read_run
run = Path(sys.argv[1])
sys.stdout.buffer.write(page([Told(str(run), read_run(run), read_findings(run, 200))]).encode())
"""
    done = subprocess.run([sys.executable, "-c", code, str(photos)], check=True, capture_output=True)
    assert done.stdout == first


def test_first_screen_says_what_was_found_and_what_to_do(photos_page):
    first = said(photos_page.read_text(encoding="utf-8")).split("Suspect images")[0]
    assert "About 38% (35 to 40%) of the 6,000 labels look wrong, mostly between neighbouring classes." in first
    assert "2,210 suspects, labels that are more likely wrong than right, the 200 most suspicious below." in first
    # by hand: class 8 has the highest share, 0.55 of 600 labels, all of them from the class before it
    assert "About 330 of the 600 labelled “Bag” seem to be “Sneaker”." in first
    assert "The delivered model is wrong on 16.2% of the test images." in first
    assert "labelsieve review " in first and "labelsieve train photos --labels " in first


def test_the_first_screen_warns_of_a_class_that_was_hardly_learnt_from(photos):
    run, findings = read_run(photos), read_findings(photos, 200)
    kept = [0.07, *(1 - run.spec["noise_rate"] for _ in run.classes[1:])]
    hungry = replace(run, epochs=[*run.epochs[:-1], {**run.epochs[-1], "kept": kept}])
    warning = f"Beware: little was learnt from {run.classes[0]} (7%)"
    first, usual = (said(page([Told("mine", each, findings)])).split("Suspect images")[0] for each in (hungry, run))
    assert warning in first and "Beware" not in usual


@pytest.mark.parametrize(("back", "uncertain"), [(0.1, False), (0.125, True), (0.3, True)])
def test_a_mix_up_that_goes_both_ways_is_said_to_be_uncertain(photos, back, uncertain):
    matrix = np.eye(10)
    matrix[8, 7:9], matrix[7, 7:9] = 0.5, (1 - back, back)
    (line,) = words.confusions(replace(read_findings(photos, 200), noise_matrix=matrix), 2)
    one_way = "About 300 of the 600 labelled “Bag” seem to be “Sneaker”."
    numbers = f"300 of 600 labelled “Bag”, {round(600 * back)} of 600 labelled “Sneaker”"
    either = f"“Bag” and “Sneaker” are mixed up: {numbers}; which way is uncertain."
    assert re.sub("<.*?>", "", line) == (either if uncertain else one_way)


def test_clean_labels_need_nothing_done(tmp_path):
    run = make_run(tmp_path / "run")
    make_audit(run, clean=True, shown=5)
    text = written(run)
    assert "The labels look clean: nothing should be done." in said(text)
    assert "Nothing needs to be done about the labels." in said(text)
    assert "labelsieve review" not in said(text) and "<s>" not in text


def test_headings_come_in_order_and_ids_once(photos, photos_page, tmp_path):
    other = make_run(tmp_path / "other", method="default")
    for text in (photos_page.read_text(encoding="utf-8"), written(photos, other)):
        levels = [int(level) for level in re.findall(r"<h(\d)", text)]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        ids = re.findall(r' id="([^"]+)"', text)
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)


def test_policy_allows_the_page_itself_and_nothing_else(photos_page):
    text = photos_page.read_text(encoding="utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy
    assert " style=" not in text and not re.search(r" on\w+=", text.split("<script>")[0])


@pytest.mark.parametrize("place", ["class", "id", "why", "text", "row", "run", "spec"])
def test_hostile_strings_are_shown_and_nothing_more(tmp_path, place):
    """The page has the same elements and attributes as with harmless strings, and each string is there as typed."""
    harmless = [f"name {k}" for k in range(len(HOSTILE))]
    pages = {kind: hostile_page(tmp_path / kind, place, names) for kind, names in (("a", harmless), ("b", HOSTILE))}
    plain, attacked = (Skeleton(text) for text in pages.values())
    assert attacked.elements == plain.elements
    assert {a for a in attacked.addresses if not a.startswith("data:image/webp")} <= plain.addresses
    shown = "\n".join(attacked.texts)
    for name in HOSTILE:
        assert name[:70] in shown, name


def hostile_page(folder: Path, place: str, names: list[str]) -> str:
    classes = names if place == "class" else [f"class {k}" for k in range(30)]
    settings = {"spec": {f"option{k}": name for k, name in enumerate(names)}}.get(place, {})
    run = make_run(folder / "run", classes=classes, epochs=5, **settings)
    ids, why = (names if place == "id" else ["id"]), (" ; ".join(names) if place == "why" else "why")
    audit = make_audit(run, classes=classes, kind="none", shown=40, ids=ids, why=why)
    if place in ("text", "row"):
        lines = [json.loads(line) for line in (audit / "gallery.jsonl").read_text(encoding="utf-8").splitlines()]
        for line, name in zip(lines, names, strict=True):
            line[place] = name if place == "text" else {name[:70]: name}
        (audit / "gallery.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found, read = read_findings(run, 200), read_run(run)
    if place == "run":
        return page([Told(name, read, found if k == 0 else None) for k, name in enumerate(names)])
    return page([Told("run", read, found)])


def test_names_that_are_no_text_do_not_stop_the_page(tmp_path):
    run = make_run(tmp_path / "run")
    make_audit(run, ids=["odd\udcff.png"], kind="none", shown=3)
    assert r"odd\udcff.png" in written(run)


@pytest.mark.parametrize("name", ["../../secret.webp", "/etc/passwd", "thumbs/0.txt", "thumbs/none.webp", "thumbs"])
def test_only_pictures_of_the_audit_get_into_the_page(tmp_path, name):
    run = make_run(tmp_path / "run")
    audit = make_audit(run, shown=1)
    (tmp_path / "secret.webp").write_bytes(b"RIFF\0\0\0\0WEBPsecret")
    (audit / "thumbs" / "0.txt").write_bytes(b"words")
    line = json.loads((audit / "gallery.jsonl").read_text(encoding="utf-8"))
    (audit / "gallery.jsonl").write_text(json.dumps({**line, "image": name}) + "\n", encoding="utf-8")
    assert not PICTURE.findall(written(run))


def test_folders_of_the_machine_are_not_told(tmp_path):
    run = make_run(tmp_path / "run", data="/home/somebody/secret/photos", cache="/home/somebody/cache")
    make_audit(run, shown=3)
    text = page([Told("runs/mine", read_run(run), read_findings(run, 3))])
    assert "somebody" not in text and "photos" in text


# Several runs, and what is missing


def test_several_runs_are_compared(tmp_path):
    runs = [make_run(tmp_path / f"d{s}", method="default", seed=s, last=30.0 + 2 * s) for s in range(2)]
    runs += [make_run(tmp_path / f"m{s}", seed=s, last=16.0 + s) for s in range(2)]
    make_audit(runs[2], shown=7)
    cut = make_run(tmp_path / "cut", seed=2, done=False)
    text = written(*runs, cut)
    assert "Last test error, lowest first: mentornet-prop 16.5 ± 0.5%; default 31.0 ± 1.0%." in text
    assert "unfinished, 6 epochs done" in text
    assert text.count('<li class="card') == 7 and f"Run <bdi>{runs[2]}</bdi>, beside 4 others" in text
    assert "unlike" not in text
    assert len(re.findall("<polyline", text)) == 3 * 5  # test error, loss and precision of every run


def test_unlike_runs_are_said_to_be_unlike(tmp_path):
    runs = [make_run(tmp_path / "a", batch=64), make_run(tmp_path / "b", method="default", batch=128)]
    text = said(written(*runs))
    assert "2 runs side by side. None of them was audited" in text
    assert "differ in more than method and seed (batch), so the means above mix unlike things" in text
    assert "lowest first" not in text


def test_a_table_with_nothing_in_it_is_not_shown(tmp_path):
    runs = [make_run(tmp_path / f"m{s}", seed=s, test=False, truth=False, batch=64 + s) for s in range(2)]
    make_audit(runs[1])
    html = written(*runs)
    text = said(html)
    assert "Methods side by side" not in text and "Means over" not in text and "means above" not in text
    assert "These runs differ in more than method and seed (batch)." in text
    head = html.partition("Run by run</h3>")[2].partition("</thead>")[0]
    assert re.findall('<th scope="col"[^>]*><bdi>([^<]*)', head) == [
        "run",
        "method",
        "state",
        "seed",
        "labels look wrong",
    ]
    assert f"above and below, is about the run {runs[1]}; how the training went" in text


def test_a_table_keeps_the_columns_that_say_something():
    table = [["method", "a", "b", "seeds"], ["x", "–", "1.0", "2"], ["y", "–", "–", "1"]]
    assert filled(table) == [["method", "b", "seeds"], ["x", "1.0", "2"], ["y", "–", "1"]]
    assert measured(table) == filled(table) and filled(table[:1]) == table[:1]
    assert measured([["method", "a", "seeds"], ["x", "–", "2"]]) == [] == measured(table[:1])


def test_without_an_audit_the_page_says_so(tmp_path):
    text = written(make_run(tmp_path / "run"))
    assert "No audit was made of this run" in said(text) and "labelsieve audit " in said(text)
    assert 'id="gallery"' not in text and 'id="samples"' not in text
    assert "Ankle boot" in said(text)  # names of the penalty table, from the model


def test_a_missing_audit_is_made_where_somebody_can_make_it(tmp_path):
    run, cut = make_run(tmp_path / "run"), make_run(tmp_path / "cut", done=False)
    asked = []
    out = report([run, cut], tmp_path / "r.html", 5, audit=lambda path: asked.append(make_audit(path)))
    assert asked == [run / "audit"] and out.read_text(encoding="utf-8").count('<li class="card') == 5
    report([run], None, 5, audit=lambda path: pytest.fail("it is there"))


def test_an_unfinished_run_is_shown_as_such(tmp_path):
    run = make_run(tmp_path / "run", done=False)
    with (run / "record.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "epo')  # cut in the middle of a line
    text = said(page([Told("run", read_progress(run)), Told("done", read_run(make_run(tmp_path / "done")))]))
    assert "The run is unfinished: 6 of 12 epochs are done." in text
    assert "labelsieve predict" not in text


def test_a_run_that_was_cut_before_its_first_epoch(tmp_path):
    text = page([Told("run", read_progress(make_run(tmp_path / "run", epochs=1, done=False, warmup=0)))])
    assert "0 of 1 epochs are done" in text and "<svg" not in text


def test_without_test_set_and_truth(tmp_path):
    run = make_run(tmp_path / "run", test=False, truth=False)
    make_audit(run, kind="text", shown=4)
    text = written(run)
    assert "how often the delivered model is wrong is not known; labelsieve train with --test 0.2 keeps" in text
    assert "experiment" not in said(text)
    assert text.count("<blockquote") == 4


def test_rounds_are_counted_on(tmp_path):
    run = make_run(tmp_path / "run", epochs=6)
    rows = [json.loads(line) for line in (run / "record.jsonl").read_text(encoding="utf-8").splitlines()]
    first, middle, end = rows[0], rows[1:-1], rows[-1]
    both = [{**row, "round": number} for number in (1, 2) for row in middle]
    text = "".join(json.dumps(row) + "\n" for row in (first, *both, end))
    (run / "record.jsonl").write_text(text, encoding="utf-8")
    drawn = written(run)
    assert "test, epoch 12:" in drawn and drawn.count('class="mark"') == 2 * 3


def test_many_classes_are_a_map_and_a_list(tmp_path):
    classes = [f"species {k}" for k in range(300)]
    run = make_run(tmp_path / "run", classes=classes, epochs=5)
    make_audit(run, classes=classes, kind="row", shown=20)
    text = written(run)
    assert '<table class="heat">' not in text and text.count('<svg class="map"') == 3
    assert len(text.encode()) < MEGABYTE


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({"summary.json": "{"}, "summary.json"),
        ({"summary.json": "{}"}, "'classes' is missing"),
        ({"gallery.jsonl": "nonsense\n"}, "gallery.jsonl"),
        ({"gallery.jsonl": '{"id": 1}\n'}, "gallery.jsonl: 'given_label' is missing"),
    ],
)
def test_a_broken_audit_is_one_line(tmp_path, broken, named):
    run = make_run(tmp_path / "run")
    audit = make_audit(run, shown=2)
    for name, content in broken.items():
        (audit / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(named)) as caught:
        report([run], None, 10)
    assert "\n" not in str(caught.value) and "make it again with labelsieve audit" in str(caught.value)
    assert not (run / "report.html").exists()


def test_a_wrong_folder_is_one_line(tmp_path, capsys):
    for argv in (["report", str(tmp_path)], ["report", str(tmp_path / "none")], ["report"]):
        assert execute(argv) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1


def test_the_command_says_where_the_page_is(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    assert execute(["report", str(run), "--gallery", "3"]) == 0
    assert capsys.readouterr().out == f"report: {run / 'report.html'}\n"
    assert execute(["report", str(run), str(run), "--out", str(tmp_path / "no" / "x.html")]) == 2
    assert execute(["report", str(run), "--gallery", "-1"]) == 2


# Drawings and words


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_enclose_what_is_drawn(low, width):
    found = svg.ticks(low, low + width)
    assert 2 <= len(found) <= 9
    slack = 1e-6 * max(abs(low), width, 1)
    assert found[0] <= low + slack and found[-1] >= low + width - slack
    assert found == sorted(set(found))


def test_a_chart_by_hand():
    line = svg.Line("a & b", 0, [(1, 0.0), (3, 10.0)])
    drawn = svg.line_chart("k", "t", "d", [line], "%", [1])
    assert 'points="44.0,192.0 330.0,22.0"' in drawn
    assert "a &amp; b, epoch 3: 10%" in drawn and "end of warm-up" in drawn
    assert 'role="img"' in drawn and 'aria-labelledby="k-t k-d"' in drawn


def test_a_bar_by_hand():
    drawn = svg.bar(0.2, 0.1, 0.4, 0.4)
    assert 'width="50.0%"' in drawn and 'x1="25.0%" x2="100.0%"' in drawn


def test_a_map_draws_what_lies_beside_the_diagonal():
    drawn = svg.matrix_map("k", "t", "d", np.array([[0.9, 0.1], [0.0, 1.0]]))
    assert drawn.count('class="cell"') == 1 and 'x="1" y="0"' in drawn


def test_numbers_in_words():
    assert [percent(x) for x in (0, 0.0004, 0.042, 0.0996, 0.384)] == ["0%", "under 0.1%", "4.2%", "10%", "38%"]
    assert words.spoken(Estimate(0.38, 0.05, 0.4)) == "38% (5.0 to 40%)"
    assert [readable(x) for x in (0, 0.00001, 0.00123, 0.02, 0.5, 1)] == [
        "0",
        "under 0.0001",
        "0.0012",
        "0.020",
        "0.50",
        "1.00",
    ]


def test_a_run_is_called_by_what_tells_it_apart(tmp_path):
    runs = [("runs/a", read_progress(make_run(tmp_path / "a"))), ("runs/b", read_progress(make_run(tmp_path / "b")))]
    assert words.labels_of(runs[:1]) == ["mentornet-prop"]
    assert words.labels_of(runs) == ["mentornet-prop, a", "mentornet-prop, b"]


# In a browser


class Visit:
    """A page that is open, and everything that it complained about or asked for."""

    def __init__(self, browser, path: Path, **options) -> None:
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.trouble.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.resolve().as_uri())

    def count(self) -> int:
        return int(self.page.evaluate("[...document.querySelectorAll('#gallery > li')].filter(c => !c.hidden).length"))

    def overflow(self) -> int:
        root = "document.documentElement"
        return int(self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_) -> None:
        self.context.close()
        assert self.trouble == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []


def eventually(holds, seconds=10.0):
    """The page's own policy forbids the polling that Playwright has for this."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_filters_narrow_the_gallery(browser, photos_page):
    with Visit(browser, photos_page) as visit:
        page = visit.page
        assert visit.count() == 200 and page.inner_text("#count") == "200 of 200 suspects shown"
        loaded = "[...document.images].slice(0, 5).every(i => i.complete && i.naturalWidth === 96)"
        eventually(lambda: page.evaluate(loaded))
        page.select_option("[name=given]", "=Trouser")
        given = visit.count()  # k² ≡ 1 (mod 10) for k = 1 and 9 of every ten
        assert given == 40 and page.inner_text("#count") == "40 of 200 suspects shown"
        page.select_option("[name=suggested]", "=Bag")
        assert visit.count() == 0
        page.click("[type=reset]")
        eventually(lambda: page.inner_text("#count") == "200 of 200 suspects shown")
        page.fill("[name=quality]", "9")  # the tenth lowest quality
        assert visit.count() == 10 and page.inner_text("output") == "0.020"


def test_keyboard_reaches_the_filters_and_moves_them(browser, photos_page):
    with Visit(browser, photos_page) as visit:
        page = visit.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        box = page.locator(".skip").bounding_box()
        assert box["x"] >= 0 and box["y"] >= 0
        reached = []
        for _ in range(12):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.name || document.activeElement.type || ''"))
            if reached[-1] == "quality":
                break
        assert [name for name in reached if name in ("given", "suggested", "quality")] == [
            "given",
            "suggested",
            "quality",
        ]
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Home")
        assert visit.count() == 1
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("T")
        assert page.evaluate("document.activeElement.value") in ("=T-shirt/top", "=Trouser")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_sideways(browser, photos_page, tmp_path, scheme):
    run = make_run(tmp_path / "other", method="default")
    several = report([photos_page.parent, run], tmp_path / "several.html", 20)
    for path in (photos_page, several):
        with Visit(browser, path, color_scheme=scheme) as visit:
            visit.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            for width in (320, 360, 768, 1280):
                visit.page.set_viewport_size({"width": width, "height": 700})
                assert visit.overflow() == 0, width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(browser, photos_page, scheme):
    with Visit(browser, photos_page, color_scheme=scheme) as visit:
        visit.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        weak = visit.page.evaluate(CONTRAST)
    assert weak == []


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const part = (x) => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const weak = new Set();
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || ["SCRIPT", "TITLE", "DESC", "OPTION"].includes(e.tagName.toUpperCase())) continue;
    const style = getComputedStyle(e);
    const ink = light(rgba(e.ownerSVGElement ? style.fill : style.color)), behind = light(ground(e));
    const ratio = (Math.max(ink, behind) + 0.05) / (Math.min(ink, behind) + 0.05);
    if (ratio < 4.5) weak.add(`${e.tagName}.${e.className.baseVal ?? e.className} ${ratio.toFixed(2)}`);
  }
  return [...weak];
}"""


def test_hostile_strings_do_nothing_in_a_browser(browser, tmp_path):
    for place in ("class", "id", "why", "text", "row", "run", "spec"):
        path = tmp_path / f"{place}.html"
        path.write_text(hostile_page(tmp_path / place, place, HOSTILE), encoding="utf-8")
        with Visit(browser, path, viewport={"width": 320, "height": 700}) as visit:
            assert visit.overflow() == 0
            if place == "class":
                for name in (HOSTILE[0], HOSTILE[1], HOSTILE[4], HOSTILE[9]):  # squares: those that are given
                    visit.page.select_option("[name=given]", f"={name}")
                    assert visit.count() >= 1
            shown = visit.page.evaluate("document.body.textContent")
            assert all(name[:70] in shown for name in HOSTILE)


@pytest.fixture(scope="module")
def padded_page(tmp_path_factory) -> Path:
    """30 suspects, and 20 samples that are not marked."""
    run = make_run(tmp_path_factory.mktemp("runs") / "padded")
    make_audit(run, shown=50, marked=30)
    return report([run], None, 200)


def test_what_is_not_marked_is_named_so_and_lies_behind_the_suspects(browser, padded_page, tmp_path):
    assert "30 suspects, labels that are more likely wrong than right, all of them below." in padded_page.read_text()
    with Visit(browser, padded_page) as visit:
        page, beyond = visit.page, visit.page.locator("#beyond li")
        assert visit.count() == 30 and page.inner_text("#count") == "30 of 30 suspects shown"
        assert page.inner_text("output") == "0.060"  # of the thirtieth: the threshold begins at the last suspect
        assert page.inner_text("#beyond summary").startswith("The next 20 most suspicious, which are not marked")
        assert beyond.count() == 20 and not beyond.first.is_visible()
        page.click("#beyond summary")
        assert beyond.first.is_visible() and all("not marked" in text for text in beyond.all_inner_texts())
        page.select_option("[name=given]", "=Trouser")
        assert visit.count() == 6 and sum(card.is_visible() for card in beyond.all()) == 4
        page.click("[type=reset]")
        eventually(lambda: page.inner_text("#count") == "30 of 30 suspects shown" and beyond.last.is_visible())
    clean = make_run(tmp_path / "clean")
    make_audit(clean, shown=12, clean=True)
    with Visit(browser, report([clean], None, 200)) as visit:
        assert visit.count() == 0 and "There are none." in visit.page.inner_text("main")
        assert visit.page.inner_text("#beyond summary").startswith("The 12 most suspicious, which are not marked")
        assert not visit.page.locator("#filters").is_visible()


def test_the_page_says_what_its_shares_rest_on(tmp_path):
    run = make_run(tmp_path / "run")
    summary = make_audit(run, shown=3) / "summary.json"
    assert "come from the" not in written(run)
    basis = "The 38% come from the 300 samples that the model did not learn from."
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "basis": basis}))
    assert f"Over all classes 38% (35 to 40%). {basis} The thin line" in said(written(run))


def test_a_rate_that_a_probe_found_is_called_an_estimate(tmp_path):
    run = make_run(tmp_path / "run")
    assert "(method mentornet-prop, 12 epochs), told that 40% of the labels are wrong." in said(written(run))
    record = run / "record.jsonl"
    record.write_text(record.read_text().replace('"event": "start"', '"event": "start", "chosen": {}'))
    assert "12 epochs), on a first and rougher estimate that 40% of the labels are wrong." in said(written(run))


def test_without_scripts_everything_is_shown(browser, photos_page):
    with Visit(browser, photos_page, java_script_enabled=False) as visit:
        assert visit.page.locator("#gallery > li").count() == 200
        assert not visit.page.locator("#filters").is_visible()


def test_it_prints(browser, photos_page):
    with Visit(browser, photos_page) as visit:
        assert visit.page.pdf(format="A4").startswith(b"%PDF")
