"""Samples on the review page in a browser: pictures with zoom and loupe, texts, rows, comparisons, accessibility."""

import csv
import json
import shutil
import threading
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from labelsieve.data.load import ReadOptions, find
from labelsieve.features.backbones import find_backbone
from labelsieve.features.embed import Cache, embed_split
from labelsieve.features.judge import fit_head
from labelsieve.models.linear import LinearHead, one_hot
from labelsieve.predict import load
from labelsieve.review.server import ReviewServer
from labelsieve.review.state import ReviewState
from tests.browser import axe_violations
from tests.review.conftest import (
    CLASSES,
    add_data,
    add_other_issues,
    make_audited_run,
    make_photo_run,
    press,
    shown_index,
    wait_until,
)

WIDE = {"viewport": {"width": 1400, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}
SHOWN = "document.querySelector('#view img')"
LOADED = f"{SHOWN}?.getAttribute('src').startsWith('pictures/') && {SHOWN}.naturalWidth > 0"
COMPARED = "document.querySelectorAll('#compare .group').length > 0"


@pytest.fixture(scope="module")
def photo_run(tmp_path_factory):
    return make_photo_run(tmp_path_factory.mktemp("photos"))[0]


@pytest.fixture(scope="module")
def text_run(tmp_path_factory):
    """Write a run with a linear head on word vectors of texts about three animals; the audit calls the last one eel."""
    folder = tmp_path_factory.mktemp("texts")
    words = {"cat": "purring kitten whiskers", "dog": "barking puppy leash", "eel": "slippery fish river"}
    texts = []
    for k in range(30):
        one, other = (words[CLASSES[k % 3]].split()[(k + shift) % 3] for shift in (0, 1))
        texts.append(f"Number {k}: I saw a {one} near the {other} today. 🐾 " * 3)
    texts[29] = f"{'A long text. ' * 200}A purring kitten with whiskers."
    with (folder / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(texts, CLASSES * 10, strict=True)])
    names = [f"texts.csv:{k + 2}" for k in range(30)]
    run = make_audited_run(folder / "run", 30, 30, names=names, text="")
    for row in (rows := [json.loads(line) for line in (run / "audit" / "gallery.jsonl").read_text().splitlines()]):
        row["text"] = texts[row["index"]][:2000]  # as the audit shortens them
    (run / "audit" / "gallery.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    backbone, head = find_backbone("wordllama"), LinearHead((256,), 3)
    head.assign(*fit_head(backbone(texts[:29]), one_hot(torch.arange(29) % 3, 3), 0.01))
    about = {"model": "linear", "shape": [256], "classes": CLASSES, "backbone": backbone.about()}
    save_file(head.state_dict(), run / "model.safetensors", {"labelsieve": json.dumps(about)})
    embed_split(find(str(folder / "texts.csv"), ReadOptions()).train, backbone, Cache(backbone))
    return add_data(run, data=str(folder / "texts.csv"), backbone="wordllama", model="linear")


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    """Write a run on a table in which one value of the last row is far from those of its class."""
    folder = tmp_path_factory.mktemp("table")
    values = np.random.default_rng(0).normal(size=(30, 3)).round(3)
    values[29] = (0, 50, 0)
    lines = [f"{a},{b},{c},{CLASSES[k % 3]}" for k, (a, b, c) in enumerate(values)]
    (folder / "table.csv").write_text("length,width,<b>age</b>,label\n" + "\n".join(lines) + "\n")
    names = [f"table.csv:{k + 2}" for k in range(30)]
    row = {"length": 0.0, "width": 50.0, "<b>age</b>": 0.0}
    return add_data(make_audited_run(folder / "run", 30, 30, names=names, row=row), data=str(folder / "table.csv"))


@pytest.fixture(scope="module")
def url(photo_run, text_run, table_run):
    """Serve the three runs in this process, which has imported what the server needs."""
    with ReviewServer([ReviewState(run) for run in (photo_run, text_run, table_run)], "a-token") as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.url
        server.shutdown()


def test_original_fills_the_window_and_the_next_ones_are_loaded_ahead(url, page_of):
    page = page_of(url, **WIDE)
    page.evaluate("show(positions.get(2))")  # 1 is a turned photograph, 0 one of 3,000 pixels
    wait_until(page, LOADED)
    for index, size in ((1, (1365, 2048)), (0, (2048, 1365))):
        wait_until(page, f"pictures.get({index})?.complete && pictures.get({index}).naturalWidth > 0")
        press(page, "ArrowRight")  # the picture is there at once: nothing is awaited
        assert shown_index(page) == index
        assert page.evaluate(f"[{SHOWN}.naturalWidth, {SHOWN}.naturalHeight]") == list(size)
        assert page.evaluate(f"{LOADED}")
    box = page.locator("#view").bounding_box()
    assert box["width"] > 800 and box["height"] > 550
    wait_until(page, "byId('pixels').textContent === '3,000 × 2,000 pixels'")
    assert not page.is_visible("#gone") and page.messages == []


def test_every_format_is_shown(url, page_of):
    page = page_of(url)
    for index in range(12):
        page.evaluate(f"show(positions.get({index}))")
        wait_until(page, f"samples[current].index === {index} && {LOADED}")
        wait_until(page, "byId('pixels').textContent !== ''")
        assert not page.is_visible("#gone")
    assert page.messages == []


def scale_of(page) -> list[float]:
    return page.evaluate("[zoom.scale, zoom.x, zoom.y]")


def test_zoom_pan_and_loupe_by_keys(url, page_of):
    page = page_of(url, **WIDE)
    page.evaluate("show(positions.get(0))")
    wait_until(page, f"{LOADED} && byId('pixels').textContent !== ''")
    press(page, "+")
    assert scale_of(page) == [1.5, 0, 0] and page.text_content("#level") == "150%"
    press(page, "Shift+ArrowRight")
    assert scale_of(page)[1] < 0 and shown_index(page) == 0
    for _ in range(20):
        page.keyboard.press("Shift+ArrowDown")
    assert scale_of(page)[2] == pytest.approx(-0.25)  # the edge of the picture stays at the edge of the stage
    press(page, "-")
    press(page, "-")
    assert scale_of(page) == [1, 0, 0]
    press(page, "1")
    width = page.evaluate("fitted(stages()[0]).width * zoom.scale")
    assert width == pytest.approx(3000, rel=0.01)  # a pixel of the original is a pixel of the screen
    wait_until(page, f"{SHOWN}.naturalWidth === 3000")  # and all of them are loaded
    assert page.evaluate(f"{SHOWN}.style.transform").startswith("translate(")
    press(page, "0")
    assert scale_of(page)[0] == 1
    press(page, "l")
    assert page.is_visible(".loupe") and page.get_attribute("#loupe", "aria-pressed") == "true"
    before = page.locator(".loupe").bounding_box()["x"]
    press(page, "Shift+ArrowLeft")
    assert page.locator(".loupe").bounding_box()["x"] < before
    press(page, "l")
    assert page.locator(".loupe").count() == 0 and page.messages == []


def test_zoom_by_wheel_drag_and_pinch(url, page_of):
    page = page_of(url, **WIDE)
    page.evaluate("show(positions.get(0))")
    wait_until(page, LOADED)
    box = page.locator(".stage").bounding_box()
    x, y = box["x"] + box["width"] / 4, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.wheel(0, -400)
    wait_until(page, "zoom.scale > 1.5")
    scale, shift, _ = scale_of(page)
    # the point under the pointer stays there: a quarter to the left of the centre
    assert shift == pytest.approx(-0.25 + 0.25 * scale, abs=0.01)
    page.mouse.down()
    page.mouse.move(x - 100, y + 10)
    page.mouse.up()
    assert scale_of(page)[1] == pytest.approx(shift - 100 / box["width"], abs=0.01)
    page.evaluate("resetZoom()")
    touches = "new PointerEvent(kind, {pointerId: id, clientX: x, clientY: y, pointerType: 'touch', bubbles: true})"
    pinch = f"""() => {{
      const place = stages()[0];
      place.setPointerCapture = () => {{}};
      const at = place.getBoundingClientRect();
      const [mx, my] = [at.left + at.width / 2, at.top + at.height / 2];
      const send = (kind, id, x, y) => place.dispatchEvent({touches});
      send("pointerdown", 1, mx - 50, my); send("pointerdown", 2, mx + 50, my);
      send("pointermove", 1, mx - 100, my); send("pointermove", 2, mx + 100, my);
      send("pointerup", 1, mx - 100, my); send("pointerup", 2, mx + 100, my);
    }}"""
    page.evaluate(pinch)
    assert scale_of(page)[0] == pytest.approx(2) and page.evaluate("pointers.size") == 0
    press(page, "ArrowRight")
    press(page, "ArrowLeft")
    assert scale_of(page) == [1, 0, 0]  # the next sample is shown whole
    assert page.messages == []


def test_comparisons_are_beside_the_sample(url, page_of):
    page = page_of(url, **WIDE)
    page.evaluate("show(positions.get(30))")
    wait_until(page, f"samples[current].index === 30 && {COMPARED}")
    titles = page.locator("#compare h2").all_text_contents()
    assert titles[:2] == ["Sure examples of cat", "Sure examples of dog"]
    assert titles[2].startswith("Most similar samples: ") and "of 8 labelled" in titles[2]
    assert page.locator("#compare .group").nth(0).locator("img").count() == 2
    wait_until(
        page, "[...document.querySelectorAll('#compare img')].slice(0, 4).every((each) => each.naturalWidth > 0)"
    )
    picture, examples = page.locator("#view").bounding_box(), page.locator("#compare").bounding_box()
    assert picture["x"] + picture["width"] <= examples["x"]
    page.locator("#compare button").first.click()
    assert page.is_visible("#peek") and page.text_content("#peek-title") == "Labelled cat"
    wait_until(page, "document.querySelector('#peeked img').naturalWidth === 2048")
    assert axe_violations(page) == []
    page.keyboard.press("Escape")
    assert not page.is_visible("#peek") and page.messages == []


def test_thumbnail_and_a_line_if_the_data_is_gone(tmp_path, serve, page_of):
    run, _ = make_photo_run(tmp_path)
    (tmp_path / "photos" / "cat" / "a-large.jpg").unlink()
    page = page_of(serve(run).url)
    page.evaluate("show(positions.get(0))")
    page.wait_for_selector("#gone:not([hidden])")
    assert page.text_content("#gone") == "The image cannot be shown: it is no longer in the data."
    assert page.evaluate(f"{SHOWN}.naturalWidth") == 12
    page.evaluate("show(positions.get(2))")
    wait_until(page, f"{SHOWN}.naturalWidth === 300")
    assert not page.is_visible("#gone")
    shutil.rmtree(tmp_path / "photos")
    gone = page_of(serve(run).url)
    gone.wait_for_selector("#gone:not([hidden])")
    assert "The data cannot be opened" in gone.text_content("#gone") and "--data" in gone.text_content("#gone")
    assert gone.evaluate(f"{SHOWN}.naturalWidth") == 12 and gone.messages == []


def test_text_is_whole_and_its_words_are_marked(url, text_run, page_of):
    page = page_of(f"{url}&run=1", **WIDE)
    wait_until(page, "document.querySelectorAll('#view mark').length > 0")
    sample = ReviewState(text_run).samples[29]
    assert shown_index(page) == 29 and (sample.given, sample.suggested) == ("eel", "cat")
    shown = page.text_content("#view .content")
    assert len(shown) > len(sample.text) == 2000 and shown.endswith("A purring kitten with whiskers.")
    assert {"kitten", "purring", "whiskers"} & set(page.locator("#view .content mark.suggested").all_text_contents())
    assert page.locator("#compare .group").count() == 1  # the most similar texts
    press(page, "ArrowRight")
    wait_until(page, "samples[current].index === 28 && document.querySelectorAll('#view mark').length > 0")
    marked = page.locator(
        "#view .content mark"
    ).all_text_contents()  # after characters outside of Unicode's first plane
    assert set(marked) <= {"Number", "28", "I", "saw", "a", "puppy", "leash", "barking", "near", "the", "today"}
    press(page, "ArrowLeft")
    wait_until(page, "samples[current].index === 29 && document.querySelectorAll('#view mark').length > 0")
    legend = page.text_content("#view .legend")
    assert f"speak for {sample.given}." in legend and f"speak for {sample.suggested}." in legend
    assert {urlsplit(each).netloc for each in page.requests} == {urlsplit(url).netloc} and page.messages == []


def test_words_contribute_what_the_text_lacks_without_them(text_run):
    model, text = load(text_run), "A barking puppy, and a slippery fish!"
    with torch.no_grad():
        logits = model.network(find_backbone("wordllama")([text, text.replace("puppy", "")]).half().float())
    dog, eel = model.classes.index("dog"), model.classes.index("eel")
    expected = (logits[0] - logits[1])[dog] - (logits[0] - logits[1])[eel]
    contents = ReviewState(text_run).material().contents
    found = {text[word.start : word.end]: word.score for word in contents.words(text, "dog", "eel")}
    assert found["puppy"] == pytest.approx(float(expected), rel=1e-3) and found["puppy"] > 0 > found["fish"]
    opposite = {text[word.start : word.end]: -word.score for word in contents.words(text, "eel", "dog")}
    assert opposite == pytest.approx(found)
    assert contents.words(text, "dog", "dog") == [] == contents.words(text, "dog", "unknown")


def test_unusual_columns_of_a_row_are_marked(url, page_of):
    page = page_of(f"{url}&run=2", **WIDE)
    wait_until(page, "document.querySelectorAll('#view .odd').length > 0")
    assert shown_index(page) == 29
    first = page.locator("#view tbody tr").first
    assert first.locator("th bdi").text_content() == "width" and first.locator("td").first.text_content() == "50"
    assert "deviations above" in first.locator(".unusual").text_content()
    assert page.locator("#view thead th").all_text_contents() == ["Column", "Value", "Median of eel", "Median of cat"]
    assert page.locator("#view b").count() == 0 and page.locator("#view tbody tr").count() == 3
    assert page.locator("#compare .group").count() == 1  # neighbours by their columns
    assert page.messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_axe_finds_no_violation(url, page_of, size, scheme):
    for number in range(3):
        page = page_of(f"{url}&run={number}", color_scheme=scheme, **size)
        wait_until(page, COMPARED)
        assert page.evaluate("scrollY") == 0 and page.locator("header").bounding_box()["y"] >= 0
        assert page.evaluate("document.documentElement.scrollWidth") <= size["viewport"]["width"]
        assert axe_violations(page) == [], number
        press(page, "k")
        press(page, "ArrowLeft")
        assert page.get_attribute("#keep", "aria-pressed") == "true" and axe_violations(page) == []
        press(page, "z")
        press(page, "g")
        page.keyboard.press("Control+a")
        wait_until(page, "selected.size === cells.length && cells.length > 0")
        assert axe_violations(page) == [], number
        page.keyboard.press("?")
        assert page.is_visible("#keys") and axe_violations(page) == []
        page.context.close()
    assert page.messages == []


def test_landmarks_and_names_for_screen_readers(url, page_of):
    page = page_of(url)
    wait_until(page, COMPARED)
    tree = page.locator("body").aria_snapshot()
    for part in (
        "banner",
        "main",
        'region "Sample"',
        'region "Decision"',
        'region "Compare with"',
        'heading "Review run"',
    ):
        assert part in tree, part
    assert 'navigation "Next samples"' in tree and 'button "k Keep' in tree and "meter" in tree


def test_near_duplicates_zoom_together(tmp_path, serve, page_of):
    run, _ = make_photo_run(tmp_path)
    add_other_issues(run, pairs=[(35, 31)])
    page = page_of(serve(run).url, **WIDE)
    wait_until(page, "stages().length === 2 && stages().every((place) => place.firstElementChild.naturalWidth === 640)")
    press(page, "+")
    moved = page.evaluate("stages().map((place) => place.firstElementChild.style.transform)")
    assert moved[0] == moved[1] and "scale(1.5)" in moved[0]
    assert page.messages == []
