"""The review page in a browser."""

import errno
import io
import json
import signal
import threading
from urllib.parse import urlsplit

import pytest
from PIL import Image

from labelsieve.review import decisions
from labelsieve.review.server import ReviewServer
from labelsieve.review.state import ReviewState
from tests.review.conftest import (
    CLASSES,
    TIMEOUT,
    add_other_issues,
    logged_decisions,
    make_audited_run,
    press,
    read_labels,
    shown_index,
    wait_until,
)

PRESS_A = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'a', bubbles: true}))"


def test_thirty_decisions_by_keyboard_survive_a_kill_and_are_exported(run, serve, page_of):
    server = serve(run)
    page = page_of(server.url)
    expected = {}
    for number in range(30):
        index, kind = shown_index(page), ("keep", "accept", "unsure", "other")[number % 4]
        assert index == 39 - number
        press(page, kind[0])
        if kind == "other":
            page.keyboard.type(CLASSES[(index + 2) % 3][:2])
            page.keyboard.press("Enter")
        wait_until(page, f"samples[current].index !== {index}")
        expected[index] = kind
    assert page.text_content("#progress") == "23 of 35 suspects decided, 7 unsure · 15 changed"
    server.kill()  # -9
    server.wait()
    assert {line["index"]: line["decision"] for line in logged_decisions(run)} == expected
    again = page_of(serve(run).url)
    assert (
        shown_index(again) == 9
        and again.text_content("#progress") == "23 of 35 suspects decided, 7 unsure · 15 changed"
    )
    again.click("#export")
    again.wait_for_selector("#notice:not([hidden])")
    assert "40 labels, 15 changed; 23 decided, 7 unsure" in again.text_content("#notice")
    assert again.text_content("#notice code").endswith(f"--labels {run}/review/reviewed.csv --out {run}-reviewed")
    new = {"keep": 0, "accept": 1, "unsure": 0, "other": 2}
    wanted = {i: CLASSES[(i + new[expected.get(i, "keep")]) % 3] for i in range(40)}
    assert read_labels(run / "review" / "reviewed.csv") == wanted
    for _ in range(5):
        press(again, "k")
    assert (
        "All 35 suspects are reviewed (7 unsure)." in again.text_content("#none") and len(logged_decisions(run)) == 35
    )
    assert not again.is_visible("#beyond")  # there are no further samples
    press(again, "z")
    assert shown_index(again) == 5 and logged_decisions(run)[-1]["decision"] == "undo"
    assert [
        message for message in again.messages if "ERR_CONNECTION" not in message
    ] == []  # the page keeps polling the killed server


def test_held_or_repeated_key_decides_one_sample(run, serve, page_of):
    page = page_of(serve(run).url)
    wait_until(page, "acceptsKeys()")
    for _ in range(20):  # without a key-up in between, all but the first are marked as repeats
        page.keyboard.down("k")
    page.keyboard.up("k")
    wait_until(page, "samples[current].index === 38 && acceptsKeys()")
    assert [line["index"] for line in logged_decisions(run)] == [39]
    page.evaluate(f"{PRESS_A}; {PRESS_A}")  # the second while the first is being saved
    wait_until(page, "samples[current].index === 37 && acceptsKeys()")
    assert [line["index"] for line in logged_decisions(run)] == [39, 38]
    page.evaluate(f"show(current); {PRESS_A}")  # the sample has just appeared
    wait_until(page, "acceptsKeys()")
    assert len(logged_decisions(run)) == 2 and shown_index(page) == 37
    page.focus("#keep")
    for _ in range(20):
        page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    wait_until(page, "samples[current].index === 36 && acceptsKeys()")
    assert [line["index"] for line in logged_decisions(run)] == [39, 38, 37]


def test_navigation_undo_and_filters(run, serve, page_of):
    page = page_of(serve(run).url)
    for key in "kau":
        press(page, key)
    press(page, "ArrowLeft")
    assert shown_index(page) == 37 and "unsure, label stays dog" in page.text_content("#place")
    press(page, "ArrowLeft")
    press(page, "z")  # the decision on the shown sample
    assert shown_index(page) == 38 and logged_decisions(run)[-1] == {
        **logged_decisions(run)[-1],
        "index": 38,
        "decision": "undo",
    }
    press(page, "ArrowRight")
    press(page, "ArrowRight")
    assert shown_index(page) == 36
    press(page, "z")  # otherwise the last decision of this tab
    assert shown_index(page) == 37 and logged_decisions(run)[-1]["index"] == 37
    page.reload()
    wait_until(page, "samples.length > 0")
    assert shown_index(page) == 38  # the first undecided sample
    press(page, "z")  # a reload is the same tab
    assert shown_index(page) == 39 and logged_decisions(run)[-1]["decision"] == "undo"
    press(page, "k")
    page.select_option("#shown", "open")
    page.evaluate("document.activeElement.blur()")
    press(page, "ArrowLeft")
    press(page, "ArrowLeft")
    assert shown_index(page) == 38  # 39 is decided
    page.select_option("#filter", label="eel (12)")
    assert shown_index(page) == 38 and "12 left in these filters" in page.text_content("#progress")
    press(page, "k")
    assert shown_index(page) == 35
    press(page, "?")
    assert page.is_visible("#keys")
    page.keyboard.press("k")  # keys do nothing while the help is open
    page.keyboard.press("Escape")
    assert not page.is_visible("#keys") and shown_index(page) == 35
    page.click("#accept")
    wait_until(page, "samples[current].index === 32")
    page.click("#strip button:first-child")
    assert shown_index(page) == 29
    assert "labelled eel, suggested cat" in page.text_content("#live")
    assert page.messages == []


def test_review_ends_after_the_suspects_and_can_continue(tmp_path, serve, page_of):
    run = make_audited_run(tmp_path / "run", suspects=3)
    server = serve(run)
    page = page_of(server.url)
    assert page.text_content("#progress") == "0 of 3 suspects decided · 0 changed"
    assert "1 of 3 suspects" in page.text_content("#place")
    for _ in range(4):
        press(page, "ArrowRight")  # the strip ends with the suspects
    assert shown_index(page) == 37 and page.locator("#strip button").count() == 0
    assert page.text_content("#filter option:nth-child(2)") == "cat (1)"
    for key in "kak":
        press(page, key)
    assert shown_index(page) == -1 and page.text_content("#progress") == "3 of 3 suspects decided · 1 changed"
    assert page.evaluate("document.getElementById('bar').value") == 1
    assert "All 3 suspects are decided. “Export” writes" in page.text_content("#none")
    assert page.text_content("#beyond") == "Continue with the next 32 most suspicious samples (labels probably correct)"
    page.keyboard.press("Enter")  # the button has the focus
    assert shown_index(page) == 36 and "1 of 32 further samples · label probably correct" in page.text_content("#place")
    press(page, "a")
    assert page.text_content("#progress") == "3 of 3 suspects decided · 1 of the next 32 · 2 changed"
    press(page, "u")
    assert page.text_content("#progress") == "3 of 3 suspects decided · 1 of the next 32, 1 unsure · 2 changed"
    press(page, "ArrowLeft")
    press(page, "z")
    assert page.text_content("#filter option:nth-child(2)") == "cat (12)"
    page.reload()  # this tab continues with the further samples
    wait_until(page, "samples.length > 0")
    assert shown_index(page) == 35
    again = page_of(server.url)  # another tab offers them again
    assert shown_index(again) == -1 and again.is_visible("#beyond")
    assert again.text_content("#beyond").startswith("Continue with the next 31 most")
    server.send_signal(signal.SIGINT)
    output = server.communicate(timeout=TIMEOUT)[0]
    assert "4 decided (2 changed), 0 suspects left\nexport labels: " in output and "continue:" not in output


def test_without_suspects_the_most_suspicious_samples_can_be_reviewed(tmp_path, serve, page_of):
    server = serve(make_audited_run(tmp_path / "run", suspects=0))
    page = page_of(server.url)
    assert "There are no suspects" in page.text_content("#none")
    assert page.text_content("#beyond") == "Review the 35 most suspicious samples (labels probably correct)"
    page.click("#beyond")
    assert shown_index(page) == 39 and page.text_content("#progress").startswith(
        "0 of 0 suspects decided · 0 of the next 35"
    )
    assert page.messages == []


def test_kinds_of_issues_can_be_chosen(tmp_path, serve, page_of):
    run = make_audited_run(tmp_path / "run", shown=10, suspects=3)
    add_other_issues(run, pairs=[(39, 31), (32, 35)], outlier=2)  # cat and dog, eel and eel
    page = page_of(serve(run).url)
    kinds = page.locator("#kind option").all_text_contents()
    assert kinds == ["Suspect labels (3)", "Near-duplicates (2)", "No class (1)"]
    assert shown_index(page) == 39 and page.text_content("#progress") == "0 of 3 suspects decided · 0 changed"
    page.select_option("#kind", "near_duplicate")
    assert shown_index(page) == 39 and "1 of 2 near-duplicates with another label" in page.text_content("#place")
    press(page, "k")
    assert shown_index(page) == 31 and page.locator("#strip button").count() == 0
    assert page.text_content("#progress") == "1 of 2 near-duplicates with another label decided · 0 changed"
    assert page.evaluate("document.getElementById('bar').value") == 0.5
    press(page, "a")
    ended = "All near-duplicates with another label are decided. Still undecided: 1 sample of no class; choose them"
    assert ended in page.text_content("#none") and not page.is_visible("#beyond")
    page.select_option("#kind", "outlier")
    assert shown_index(page) == 2 and page.text_content("#why") == "It resembles none of the classes."
    assert page.is_disabled("#accept") and page.text_content("#suggested") == "none"
    weight = "(each) => getComputedStyle(each).fontWeight"
    assert page.eval_on_selector("#suggested", weight) == "400"  # it is no class
    press(page, "z")  # the last decision of this tab, on a sample of another kind
    assert shown_index(page) == 31
    assert page.input_value("#kind") == "label" and "of 7 further samples" in page.text_content("#place")
    page.select_option("#kind", "label")
    assert shown_index(page) == 38 and page.text_content("#progress").startswith("1 of 3 suspects decided")
    assert [(line["index"], line["decision"]) for line in logged_decisions(run)] == [
        (39, "keep"),
        (31, "accept"),
        (31, "undo"),
    ]
    assert page.messages == []


def test_twin_is_shown_beside_the_sample(tmp_path, serve, page_of):
    run = make_audited_run(tmp_path / "run", shown=10)
    add_other_issues(run, pairs=[(39, 31), (32, 35)])
    page = page_of(serve(run).url, viewport={"width": 1280, "height": 900})
    pictures = page.locator("#view img")
    wait_until(page, "ready && stages().every((place) => place.firstElementChild.src.includes('/pictures/'))")
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 900})
        wait_until(page, "[...document.querySelectorAll('#view img')].every(i => i.naturalWidth === 12)")
        left, right = pictures.nth(0).bounding_box(), pictures.nth(1).bounding_box()
        assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#view figcaption").all_text_contents() == ["This sample: cat", "Near-duplicate: dog"]
    sources = page.eval_on_selector_all("#view img", "all => all.map(image => image.getAttribute('src').split('?')[0])")
    assert sources == ["pictures/39", "pictures/31"]  # thumbnails: the data is not there
    press(page, "ArrowRight")
    assert page.locator("#view figure").count() == 0 and pictures.count() == 1
    assert page.evaluate("scrollY") == 0 and page.messages == []


@pytest.mark.parametrize("content", [{"text": "<b>some</b> words"}, {"row": {"a": 1}}, {"id": "39"}])
def test_twin_of_any_content_is_shown(tmp_path, serve, page_of, content):
    run = make_audited_run(tmp_path / "run", shown=2, **content)
    gallery = run / "audit" / "gallery.jsonl"
    one, other = (json.loads(line) for line in gallery.read_text().splitlines())
    one |= {"listed": ["label"], "twin": {**content, "index": 900, "id": "<i>twin</i>", "given_label": "<u>cat</u>"}}
    gallery.write_text(f"{json.dumps(one)}\n{json.dumps(other)}\n")
    page = page_of(serve(run).url)
    assert page.locator("#view figcaption").all_text_contents()[1] == "Near-duplicate: <u>cat</u>"
    assert page.locator("#view figure").count() == 2 and page.locator("#view b, #view u").count() == 0
    assert not page.is_visible("#kind") and page.messages == []


def test_two_tabs_see_the_decisions_of_each_other(run, serve, page_of):
    url = serve(run).url
    one, other = page_of(url), page_of(url)
    press(one, "a")
    wait_until(other, "decisions.size === 1")
    assert shown_index(other) == 39 and "changed to dog earlier or in another tab" in other.text_content("#place")
    held = []
    other.route(
        "**/changes*", lambda route: held.append(route)
    )  # from now on, the tab does not learn of decisions elsewhere
    while not held:
        other.wait_for_timeout(10)
    press(one, "k")
    press(other, "ArrowRight")
    press(other, "a")  # on 38; the tab does not know of the decision yet
    assert "Not saved. This sample was changed in another tab." in other.text_content("#problem")
    assert shown_index(other) == 38 and "kept as eel" in other.text_content("#place")
    press(other, "a")  # now it knows, and may change it
    assert [(line["index"], line["decision"]) for line in logged_decisions(run)] == [
        (39, "accept"),
        (38, "keep"),
        (38, "accept"),
    ]
    assert not other.is_visible("#problem")


def test_failed_save_is_shown_as_an_error(run, page_of, monkeypatch):
    def full(handle, line):
        raise OSError(errno.ENOSPC, "No space left on device")

    with ReviewServer([ReviewState(run)], "a-token") as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        page = page_of(server.url)
        with monkeypatch.context() as patch:
            patch.setattr(decisions, "_append_lines", full)
            press(page, "k")
        assert "Not saved. The disk is full" in page.text_content("#problem")
        assert shown_index(page) == 39 and page.text_content("#progress").startswith("0 of 35 suspects decided")
        with monkeypatch.context() as patch:
            patch.setattr(
                decisions.os, "open", lambda *_: (_ for _ in ()).throw(OSError(errno.EROFS, "Read-only file system"))
            )
            press(page, "k")
        assert "Read-only file system" in page.text_content("#problem") and shown_index(page) == 39
        press(page, "k")
        assert shown_index(page) == 38 and not page.is_visible("#problem")
        server.shutdown()
    assert [line["index"] for line in logged_decisions(run)] == [39]


def test_lost_server_is_shown_as_an_error(run, serve, page_of):
    server = serve(run)
    page = page_of(server.url)
    server.kill()
    server.wait()
    press(page, "k")
    assert "Not saved. The server does not respond." in page.text_content("#problem") and shown_index(page) == 39


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    '"><script>alert(1)</script>',
    "'><img src=//evil.example/x>",
    "</script><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "<!-- --><b>",
    "<iframe src=javascript:alert(1)>",
    '<a href="javascript:alert(1)">x</a>',
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<style>@import '//evil.example'</style>",
    "<form action=//evil.example><input>",
    "<details open ontoggle=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;",
    "\\u003cscript\\u003ealert(1)",
    "%3Cscript%3Ealert(1)",
    "{{7*7}}",
    "${7*7}",
    "__proto__",
    "constructor",
    "\u202egnp.exe",
    "\u2066a\u2069b\u200b\u200d",
    "\u200f\u061cright",
    "\ufeffbom",
    "e\u0301\u0300\u0302" * 20,
    "x" * 3_000,
    "word " * 600 + "end",
    "a/" * 500 + "b",
    "quote ' and \" and ` and \\",
    "\\\\server\\share",
    "new\nline\tand tab",
]


WALK = """() => samples.map((_, where) => {
  show(where);
  return ["given", "suggested", "name", "view"].map((id) => byId(id).textContent);
})"""
ACTIVE = "document.querySelectorAll('script, link, style, iframe, form, a, base, meta, svg, #view *, #name *').length"


def test_hostile_strings_are_shown_as_text(tmp_path, serve, page_of):
    names = [f"{name}/{i}" for i, name in enumerate(HOSTILE)]
    run = make_audited_run(tmp_path / HOSTILE[2].replace("/", "_"), len(HOSTILE), len(HOSTILE), HOSTILE, names)
    gallery = run / "audit" / "gallery.jsonl"
    rows = [json.loads(line) for line in gallery.read_text().split("\n")[:-1]]
    for place, row in enumerate(rows):
        if place % 3:
            del row["image"]
            name = HOSTILE[row["index"]]
            row.update({"text": name} if place % 3 == 1 else {"row": {f"of {name}": name, "n": float("nan")}})
    gallery.write_text("".join(json.dumps(row) + "\n" for row in rows))
    url = serve(run).url
    page = page_of(url)
    own = page.evaluate(ACTIVE)
    for place, shown_as in enumerate(page.evaluate(WALK)):
        index = 39 - place
        view = ("", HOSTILE[index], f"of {HOSTILE[index]}{HOSTILE[index]}nNaN")[place % 3]
        assert shown_as == [HOSTILE[index], HOSTILE[(index + 1) % 40], names[index], view]
    page.evaluate("show(0)")
    press(page, "o")
    assert page.eval_on_selector_all("#matches li", "all => all.map(line => line.textContent)") == HOSTILE
    page.keyboard.type("{{7")
    page.keyboard.press("Enter")
    wait_until(page, "decisions.size === 1")
    assert logged_decisions(run)[0]["label"] == "{{7*7}}"
    page.evaluate("show(0)")
    assert page.evaluate(ACTIVE) == own
    assert page.messages == []
    assert {urlsplit(url_).netloc for url_ in page.requests} == {urlsplit(url).netloc}
    page.set_viewport_size({"width": 360, "height": 740})
    widths = page.evaluate("samples.map((_, where) => (show(where), document.documentElement.scrollWidth))")
    assert max(widths) <= 360


def test_class_names_fit_on_the_buttons_of_a_phone(tmp_path, serve, page_of):
    classes = ["Lastwagen groß", "Fluggeräte der Bundeswehr, zwei- und mehrmotorig"]
    page = page_of(serve(make_audited_run(tmp_path / "run", 6, 6, classes)).url)
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        for choice in ("keep", "accept"):
            hidden = page.evaluate(f"(s => s.scrollHeight - s.clientHeight)(document.querySelector('#{choice} span'))")
            assert hidden <= 0, (width, choice)


def test_a_thousand_classes_are_searchable(tmp_path, serve, page_of):
    classes = [f"class {number:03}" for number in range(1000)]
    run = make_audited_run(tmp_path / "run", 1000, 20, classes)
    page = page_of(serve(run).url)
    press(page, "o")
    assert (
        page.locator("#matches li").count() == 50
        and page.text_content("#rest") == "And 950 more; type to narrow the list"
    )
    page.keyboard.type("77")
    assert page.text_content("#rest") == "" and page.locator("#matches li").count() == 19
    page.keyboard.press("ArrowDown")
    chosen = page.text_content("#matches [aria-selected=true]")
    page.keyboard.press("Enter")
    wait_until(page, "decisions.size === 1")
    assert logged_decisions(run)[0]["label"] == chosen
    press(page, "o")
    page.keyboard.type("no such")
    page.keyboard.press("Enter")  # no match
    page.keyboard.press("Escape")
    assert not page.is_visible("#picker") and len(logged_decisions(run)) == 1


def test_list_of_classes_has_room_or_shows_that_it_scrolls(tmp_path, serve, page_of):
    classes = [f"class {number}" for number in range(10)]
    page = page_of(serve(make_audited_run(tmp_path / "run", 20, 20, classes)).url)
    press(page, "o")

    def is_shaded(top):
        """Return whether an edge of the list, at its right end where there is no text, has another colour."""
        image = Image.open(io.BytesIO(page.locator("#matches").screenshot())).convert("L")
        column = image.width - 40
        edge = image.getpixel((column, 1 if top else image.height - 2))
        return edge < 245

    hidden = "(list => list.scrollHeight - list.clientHeight)(byId('matches'))"
    page.set_viewport_size({"width": 1280, "height": 720})
    assert page.evaluate(hidden) <= 0 and not is_shaded(top=False)
    page.set_viewport_size({"width": 1280, "height": 450})
    assert page.evaluate(hidden) > 0 and is_shaded(top=False)
    assert page.evaluate("(dialog => dialog.scrollHeight - dialog.clientHeight)(byId('picker'))") <= 0
    page.keyboard.press("ArrowDown")  # the first class would cover the shadow
    page.evaluate("byId('matches').scrollTop = 1000")
    assert is_shaded(top=True) and not is_shaded(top=False)


@pytest.mark.parametrize("width", [360, 1000, 1280])
def test_entries_of_the_list_of_what_to_show_are_not_cut(run, serve, page_of, width):
    page = page_of(serve(run).url, viewport={"width": width, "height": 800})
    page.evaluate("byId('filters').open = true")
    needed = """(list) => {
      const free = list.cloneNode(true);
      Object.assign(free.style, { maxWidth: "none", minWidth: "0", width: "max-content", position: "absolute" });
      list.parentNode.append(free);
      const width = free.offsetWidth;
      free.remove();
      return width - list.offsetWidth;
    }"""
    assert page.eval_on_selector("#shown", needed) <= 0


def test_search_for_a_file_that_is_not_a_suspect(run, serve, page_of):
    page = page_of(serve(run).url)
    press(page, "/")
    page.keyboard.type("cat/0.png")  # 35 of the 40 samples are suspects
    assert page.evaluate("document.activeElement.id") == "name-search"
    expected = "No suspect has “cat/0.png” in its name. The file may not be a suspect."
    assert page.text_content("#none p") == expected and page.is_visible("#clear")
    page.keyboard.press("Enter")  # leaves the field
    page.keyboard.press("Enter")  # "Clear filters"
    assert page.input_value("#name-search") == "" and shown_index(page) == 39
    press(page, "k")
    press(page, "g")
    page.fill("#name-search", "cat/0.png")
    assert page.text_content("#none p") == expected
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.evaluate("cells.length") > 0 and not page.is_visible("#none") and page.messages == []


def test_search_ignores_case_and_diacritics(tmp_path, serve, page_of):
    classes = ["Sac à main", "Winter-Mäntel", "Ma\u0308ntel", "Robe d'été", "Größe", "manteln"]
    run = make_audited_run(tmp_path / "run", 12, 12, classes)
    page = page_of(serve(run).url)

    def found(text):
        return page.evaluate(f"matching({json.dumps(classes)}, {json.dumps(text)})")

    assert found("mantel") == found("MÄNTEL ") == ["Ma\u0308ntel", "manteln", "Winter-Mäntel"]
    assert found("ete") == ["Robe d'été"] and found("a m") == ["Sac à main"] and found("grosse") == ["Größe"]
    assert found("mänteln") == ["manteln"] and found("mentel") == []
    press(page, "o")
    page.keyboard.type("d'ete")
    page.keyboard.press("Enter")
    wait_until(page, "decisions.size === 1")
    assert logged_decisions(run)[0]["label"] == "Robe d'été"
