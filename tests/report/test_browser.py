"""The HTML page of the report in a browser."""

import time
from pathlib import Path

import pytest

from labelsieve.report.page import write_report
from tests.browser import axe_violations
from tests.conftest import LONG_WAIT
from tests.made_runs import make_audit, make_run
from tests.report.conftest import HOSTILE, hostile_page

TIMEOUT = LONG_WAIT  # seconds; only reached if something hangs


class Visit:
    """An open page with its console messages, errors and requests; it must have none of the first two."""

    def __init__(self, browser, path: Path, **options) -> None:
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.messages.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.set_default_timeout(1000 * TIMEOUT)
        self.page.goto(path.resolve().as_uri())

    def visible_cards(self) -> int:
        return int(self.page.evaluate("[...document.querySelectorAll('#gallery > li')].filter(c => !c.hidden).length"))

    def overflow_width(self) -> int:
        root = "document.documentElement"
        return int(self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_) -> None:
        self.context.close()
        assert self.messages == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []


def wait_until(condition):
    """Wait until a condition holds; wait_for_function needs eval, which the page's policy forbids."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_filters_hide_samples(browser, photos_page):
    with Visit(browser, photos_page) as visit:
        page = visit.page
        assert visit.visible_cards() == 200 and page.inner_text("#count") == "200 of 2,210 suspects shown"
        loaded = "[...document.images].slice(0, 5).every(i => i.complete && i.naturalWidth === 96)"
        wait_until(lambda: page.evaluate(loaded))
        page.select_option("[name=given]", "=Trouser")
        given = visit.visible_cards()  # k² ≡ 1 (mod 10) for k = 1 and 9 of every ten
        assert given == 40 and page.inner_text("#count") == "40 of 2,210 suspects shown"
        page.select_option("[name=suggested]", "=Bag")
        assert visit.visible_cards() == 0
        page.click("[type=reset]")
        wait_until(lambda: page.inner_text("#count") == "200 of 2,210 suspects shown")
        page.fill("[name=quality]", "1")  # the second lowest percentage: qualities are 0.2% apart
        assert visit.visible_cards() == 12 and page.inner_text("output") == "2%"


def test_filters_work_with_the_keyboard(browser, photos_page):
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
        assert 1 < visit.visible_cards() < 10  # those of 1%
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("T")
        assert page.evaluate("document.activeElement.value") in ("=T-shirt/top", "=Trouser")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_has_no_horizontal_overflow(browser, photos_page, page_with_other_issues, tmp_path, scheme):
    run = make_run(tmp_path / "other", method="default")
    several = write_report([photos_page.parent, run], tmp_path / "several.html", 20)
    for path in (photos_page, several, page_with_other_issues):
        with Visit(browser, path, color_scheme=scheme) as visit:
            visit.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            for width in (320, 360, 768, 1280):
                visit.page.set_viewport_size({"width": width, "height": 700})
                assert visit.overflow_width() == 0, width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(browser, photos_page, page_with_other_issues, scheme):
    for path in (photos_page, page_with_other_issues):
        with Visit(browser, path, color_scheme=scheme) as visit:
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


def test_hostile_strings_do_not_run_in_a_browser(browser, tmp_path):
    for place in ("class", "id", "why", "text", "row", "run", "spec", "twin"):
        path = tmp_path / f"{place}.html"
        path.write_text(hostile_page(tmp_path / place, place, HOSTILE), encoding="utf-8")
        with Visit(browser, path, viewport={"width": 320, "height": 700}) as visit:
            assert visit.overflow_width() == 0
            if place == "class":
                for name in (HOSTILE[0], HOSTILE[1], HOSTILE[4], HOSTILE[9]):  # given labels are at squares
                    visit.page.select_option("[name=given]", f"={name}")
                    assert visit.visible_cards() >= 1
            shown = visit.page.evaluate("document.body.textContent")
            assert all(name[:70] in shown for name in HOSTILE)


@pytest.fixture(scope="module")
def page_with_further_samples(tmp_path_factory) -> Path:
    """Write the page of a run with 30 suspects and 20 further samples."""
    run = make_run(tmp_path_factory.mktemp("runs") / "padded")
    make_audit(run, shown=50, marked=30)
    return write_report([run], None, 200)


def test_further_samples_are_folded_below_the_suspects(browser, page_with_further_samples, tmp_path):
    assert "; all of them are shown below." in page_with_further_samples.read_text()
    with Visit(browser, page_with_further_samples) as visit:
        page, further = visit.page, visit.page.locator("#beyond li")
        assert visit.visible_cards() == 30 and page.inner_text("#count") == "30 of 30 suspects shown"
        assert page.inner_text("output") == "6%"  # the last of the suspects
        assert page.inner_text("#beyond summary").startswith("The next 20 most suspicious samples, not marked")
        assert further.count() == 20 and not further.first.is_visible()
        page.click("#beyond summary")
        assert further.first.is_visible() and further.first.locator(".numbers").inner_text().startswith("#31")
        page.select_option("[name=given]", "=Trouser")
        assert visit.visible_cards() == 6 and sum(card.is_visible() for card in further.all()) == 4
        page.click("[type=reset]")
        wait_until(lambda: page.inner_text("#count") == "30 of 30 suspects shown" and further.last.is_visible())
    clean = make_run(tmp_path / "clean")
    make_audit(clean, shown=12, clean=True)
    with Visit(browser, write_report([clean], None, 200)) as visit:
        assert visit.visible_cards() == 0 and "There are no suspects." in visit.page.inner_text("main")
        assert visit.page.inner_text("#beyond summary").startswith("The 12 most suspicious samples, not marked")
        assert not visit.page.locator("#filters").is_visible()


def test_page_without_javascript_shows_all_samples(browser, photos_page):
    with Visit(browser, photos_page, java_script_enabled=False) as visit:
        assert visit.page.locator("#gallery > li").count() == 200
        assert not visit.page.locator("#filters").is_visible()


def test_page_can_be_printed(browser, photos_page):
    with Visit(browser, photos_page) as visit:
        assert visit.page.pdf(format="A4").startswith(b"%PDF")


def test_near_duplicates_are_shown_side_by_side(browser, page_with_other_issues):
    with Visit(browser, page_with_other_issues, reduced_motion="reduce") as visit:
        page = visit.page
        page.click("nav a[href='#duplicates']")
        one, other = (page.locator("#different .pair img").nth(k) for k in (0, 1))
        wait_until(lambda: all(image.evaluate("i => i.naturalWidth === 96") for image in (one, other)))
        left, right = one.bounding_box(), other.bounding_box()
        assert left["y"] == right["y"] and left["x"] + left["width"] < right["x"]
        labels = page.locator("#different .pair .labels").all_inner_texts()
        assert [label.split()[-1] for label in labels] == ["T-shirt/top", "Trouser"]
        assert not page.locator("#equal .pair").is_visible()
        page.click("#equal summary")
        assert page.locator("#equal .pair").is_visible()
        page.select_option("[name=given]", "=Trouser")  # filters suspects only
        assert page.locator("#different .pair").is_visible() and page.locator("#outliers ~ ol li").is_visible()


TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def test_map_names_samples_and_highlights_a_class(browser, page_with_other_issues):
    with Visit(browser, page_with_other_issues, reduced_motion="reduce") as visit:
        page, peek = visit.page, visit.page.locator("#peek")
        page.locator("circle[data-index='297']").scroll_into_view_if_needed()
        page.evaluate(TWO_FRAMES)  # the event of scrolling comes with a frame, and hides the name
        assert not peek.is_visible()
        page.locator("circle[data-index='297']").hover()
        assert peek.is_visible() and peek.inner_text() == "297.png: Sneaker → Shirt" and not peek.locator("img").count()
        page.locator("circle[data-index='18']").dispatch_event("pointerover")
        assert peek.locator("img").count() == 1 and "→" in peek.inner_text()
        page.locator("circle[data-index='18']").dispatch_event("click")
        wait_until(lambda: page.locator("#sample-18").evaluate("e => e.getBoundingClientRect().top < innerHeight"))
        page.select_option("#only select", "k1")
        bright = page.evaluate("[...document.querySelectorAll('.points g:not(.faded)')].map(g => g.classList.value)")
        assert bright == ["point k1", "point marked k1"]
        page.select_option("#only select", "")
        assert page.locator(".points .faded").count() == 0


def test_names_are_cut_in_the_middle_and_whole_under_the_pointer(browser, tmp_path):
    run, name = make_run(tmp_path / "run"), "longsleeve/e77efa63-0477-4af2-b56d-c15da31bdad6.jpg"
    make_audit(run, shown=2, ids=[name, "short.png"])
    with Visit(browser, write_report([run], None, 5)) as visit:
        long, short = (visit.page.locator(".card .id").nth(k) for k in (0, 1))
        assert long.get_attribute("title") == name == long.text_content()
        cut = "e => e.firstElementChild.scrollWidth > e.firstElementChild.clientWidth"
        assert long.evaluate(cut) and not short.evaluate(cut)
        box, end = long.bounding_box(), long.locator("span").nth(1).bounding_box()
        assert box["height"] < 30 and end["x"] + end["width"] <= box["x"] + box["width"] + 1  # one line, with its end


def test_pictures_fill_their_cards(browser, photos_page):
    with Visit(browser, photos_page) as visit:
        card, picture = (visit.page.locator(f"#gallery > li{rest}").first.bounding_box() for rest in ("", " img"))
        assert picture["width"] >= card["width"] - 3 and picture["height"] == pytest.approx(picture["width"], abs=1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_nothing_wrong(browser, page_with_other_issues, page_of_texts, scheme, width):
    for path in (page_with_other_issues, page_of_texts):
        with Visit(browser, path, color_scheme=scheme, viewport={"width": width, "height": 800}) as visit:
            visit.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            assert axe_violations(visit.page) == []


def test_axe_finds_nothing_wrong_with_folded_and_compared_runs(
    browser, page_with_other_issues, page_of_texts, tmp_path
):
    several = write_report([page_with_other_issues.parent, page_of_texts.parent], tmp_path / "several.html", 5)
    with Visit(browser, several) as visit:
        assert axe_violations(visit.page) == []


@pytest.fixture(scope="module")
def page_of_texts(tmp_path_factory) -> Path:
    """Write the page of a run on texts of many classes."""
    classes = [f"intent {k}" for k in range(30)]
    run = make_run(tmp_path_factory.mktemp("runs") / "texts", classes=classes)
    make_audit(run, classes=classes, kind="text", shown=12, marked=8)
    return write_report([run], None, 200)
