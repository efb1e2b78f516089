"""Runs with made-up audits, and helpers that read HTML pages, shared by the tests of the report."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from labelsieve.report.audit import read_audit
from labelsieve.report.page import ReportedRun, run_page, write_report
from labelsieve.runs.read import read_run
from tests.made_runs import add_map, add_other_issues, make_audit, make_run

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
IMAGE = re.compile(r"data:image/webp;base64,[A-Za-z0-9+/=]+")


class Skeleton(HTMLParser):
    """Elements and attribute names in order, texts and addresses of an HTML page."""

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


def visible_text(text: str) -> str:
    """Return the text of the page without style and script."""
    body = text[text.index("<main") : text.index("</main>")]
    return " ".join("".join(Skeleton(body).texts).split())


def report_html(*runs: Path, gallery: int = 200) -> str:
    return write_report(runs, None if len(runs) == 1 else runs[0] / "several.html", gallery).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Make a finished run with an audit of 200 images of noise, which compress worst."""
    run = make_run(tmp_path_factory.mktemp("runs") / "photos")
    make_audit(run)
    return run


@pytest.fixture(scope="module")
def photos_page(photos) -> Path:
    return write_report([photos], None, 200)


@pytest.fixture(scope="module")
def page_with_other_issues(tmp_path_factory) -> Path:
    """Write the page of a run with near-duplicates, an outlier and a map."""
    run = make_run(tmp_path_factory.mktemp("runs") / "others")
    audit = make_audit(run, shown=30, marked=20)
    add_other_issues(audit)
    add_map(audit)
    return write_report([run], None, 200)


def hostile_page(folder: Path, place: str, names: list[str]) -> str:
    """Return a page with the given strings in one place of its data."""
    classes = names if place == "class" else [f"class {k}" for k in range(30)]
    settings = {"spec": {f"option{k}": name for k, name in enumerate(names)}}.get(place, {})
    run = make_run(folder / "run", classes=classes, epochs=5, **settings)
    ids, why = (names if place == "id" else ["id"]), (" ; ".join(names) if place == "why" else "why")
    audit = make_audit(run, classes=classes, kind="none", shown=40, ids=ids, why=why)
    add_map(audit, 60)
    if place in ("text", "row"):
        lines = [json.loads(line) for line in (audit / "gallery.jsonl").read_text(encoding="utf-8").splitlines()]
        for line, name in zip(lines, names, strict=True):
            line[place] = name if place == "text" else {name[:70]: name}
        (audit / "gallery.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if place == "twin":
        add_other_issues(audit)
        lines = [json.loads(line) for line in (audit / "gallery.jsonl").read_text(encoding="utf-8").splitlines()]
        for line, name in zip(lines, names, strict=False):
            line |= {
                "twin": {"index": 5000, "id": name, "given_label": name, "text": name},
                "listed": ["near_duplicate"],
            }
            line["twin"]["index"] += line["index"]
        (audit / "gallery.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    results, record = read_audit(run, 200), read_run(run)
    if place == "run":
        return run_page([ReportedRun(name, record, results if k == 0 else None) for k, name in enumerate(names)])
    return run_page([ReportedRun("run", record, results)])
