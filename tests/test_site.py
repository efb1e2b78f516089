"""The documentation site builds without a warning, its links are alive, and it loads nothing from elsewhere."""

import doctest
import os
import re
import subprocess
import sys
import urllib.parse
from functools import cache
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

import labelsieve
from labelsieve.methods import METHODS
from tests.conftest import LONG_WAIT

ROOT = Path(__file__).parents[1]
NAMES = [f"labelsieve.{name}" for name in labelsieve.__all__]
INTEGRATIONS = ["lightning.SieveCallback", "huggingface.SieveTrainer", "sklearn.SieveClassifier"]
NAMES += [f"labelsieve.integrations.{name}" for name in INTEGRATIONS]
SOURCES = {"script": "src", "img": "src", "source": "src", "iframe": "src", "video": "src", "link": "href"}
WRITTEN = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob(".github/**/*.md")]


class Page(HTMLParser):
    """The anchors, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = {"", "__codelineno"}, [], []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        source = values.get(SOURCES.get(tag, ""))
        if source and values.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(source)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site as `make docs` does, and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "COLUMNS": "100"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONG_WAIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@cache
def parsed(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_links_and_anchors_of_the_site_are_alive(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        for link in parsed(page).links + parsed(page).loaded:
            target, _, anchor = urllib.parse.unquote(link).partition("#")
            if re.match(r"(https?|mailto|data):", target) or page.name == "404.html":
                continue
            path = (page.parent / target).resolve() if target else page
            path = path / "index.html" if path.is_dir() else path
            assert path.is_relative_to(site) and path.is_file(), f"{page.relative_to(site)}: {link}"
            if anchor and path.suffix == ".html":
                assert anchor in parsed(path).anchors, f"{page.relative_to(site)}: {link}"


def test_links_and_anchors_of_the_repository_are_alive():
    """Links are paths of the repository, and anchors are those of the hosting service."""
    for page in WRITTEN:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", text):
            if re.match(r"https?:", target):
                continue
            path = page.parent / target if target else page
            assert path.exists(), f"{page}: {target}"
            if anchor:
                assert anchor in anchors_of(path), f"{page}: {target}#{anchor}"


@cache
def anchors_of(path: Path) -> list[str]:
    """Return the anchors of a Markdown file: headings in lower case, without punctuation, with dashes for spaces."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    headings = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.M)]
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        elsewhere = [source for source in parsed(page).loaded if re.match(r"(https?:)?//", source)]
        assert elsewhere == [], page.relative_to(site)
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_every_method_and_example_is_in_the_navigation(site):
    links = [link for name in ("methods", "examples") for link in parsed(site / name / "index.html").links]
    links = urllib.parse.unquote("\n".join(links))
    for name in METHODS:
        assert f"{name}.html" in links
    for path in (ROOT / "examples").glob("*.py"):
        assert f"{path.stem}.html" in links


def test_equations_are_rendered(site):
    for name in METHODS:
        text = (site / "methods" / f"{name}.html").read_text(encoding="utf-8")
        assert "<math " in text and "$" not in re.sub(r"<(script|head).*?</\1>", "", text, flags=re.S), name


def test_every_public_name_has_a_reference_with_types_and_an_example(site):
    pages = {path: path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html")}
    for name in NAMES:
        (text,) = [text for text in pages.values() if f'id="{name}"' in text]
        section = re.split(r'<h2 id="', text.split(f'id="{name}"', 1)[1])[0]
        assert "&gt;&gt;&gt;" in section, name
        assert name.endswith("METHODS") or 'class="doc-signature' in section, name


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(("METHODS", "SieveLoss"))])
def test_the_example_of_a_public_name_runs(name, finished_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module, _, attribute = name.rpartition(".")
    value = getattr(__import__(module, fromlist=[attribute]), attribute)
    names = {"labelsieve": labelsieve, "np": np, "torch": torch, "run": finished_run}
    (test,) = doctest.DocTestFinder(recurse=False).find(value, attribute, globs=names)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test).failed == 0


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> str:
    from labelsieve.cli import execute

    folder = tmp_path_factory.mktemp("run") / "run"
    options = "--method default --noise-rate 0 --epochs 1 --threads 1"
    assert execute(["train", "fashion", *options.split(), "--out", str(folder)]) == 0
    return str(folder)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_pages_in_a_browser(site, browser, scheme, width):
    """No request leaves the site, no script fails, no page is wider than the window, and all pictures are shown."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: Quiet(*args, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, seen, errors = context.new_page(), [], []
    page.on("request", lambda request: seen.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    for path in ("index.html", "guides/photographs.html", "methods/selfie.html", "api/training.html", "results.html"):
        page.goto(home + path)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
        assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)"), path
        if path.startswith("methods/"):
            assert page.evaluate("document.querySelector('math').getBoundingClientRect().height > 20")
    context.close()
    server.shutdown()
    server.server_close()
    assert [url for url in seen if not url.startswith((home, "data:"))] == [] and errors == []
