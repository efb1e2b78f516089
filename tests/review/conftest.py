"""An audited run with made-up samples, a review server and a client, shared by the tests of the review."""

import contextlib
import csv
import http.client
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from labelsieve.data.load import ReadOptions, find
from labelsieve.review.decisions import Decision
from labelsieve.runs.spec import Experiment
from labelsieve.text import escape_cell
from tests.conftest import LONG_WAIT

TIMEOUT = LONG_WAIT  # seconds; only reached if something hangs
CLASSES = ["cat", "dog", "eel"]
HEADER = ["index", "id", "given_label", "suggested_label", "label_quality", "is_label_issue", "why"]
KEEP = {"index": 39, "decision": "keep", "over": None, "since": 0, "tab": "t"}


def make_audited_run(run: Path, count=40, shown=35, classes=CLASSES, names=None, suspects=40, **content) -> Path:
    """Write a run folder as `labelsieve audit` leaves it; the most suspicious sample is the last one of the data."""
    (run / "audit" / "thumbs").mkdir(parents=True)
    rows = []
    for rank, index in enumerate(reversed(range(count))):
        name = names[index] if names else f"{classes[index % len(classes)]}/{index}.png"
        labels = {"given_label": classes[index % len(classes)], "suggested_label": classes[(index + 1) % len(classes)]}
        row = {"index": index, "id": name, **labels, "label_quality": rank / count, "is_label_issue": rank < suspects}
        rows.append({**row, "why": "It looks like another class."})
    with (run / "audit" / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, HEADER)
        writer.writeheader()
        texts = ("id", "given_label", "suggested_label")
        writer.writerows({**row, **{name: escape_cell(row[name]) for name in texts}} for row in rows)
    (run / "audit" / "summary.json").write_text(json.dumps({"samples": count, "classes": classes}))
    for row in rows[:shown]:
        row.update(content or {"image": f"thumbs/{row['index']}.webp"})
        if content:
            continue
        Image.new("RGB", (12, 12), (5 * row["index"], 90, 120)).save(run / "audit" / "thumbs" / f"{row['index']}.webp")
    lines = [json.dumps(row, ensure_ascii=False) for row in rows[:shown]]
    (run / "audit" / "gallery.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run


def add_data(run: Path, **settings) -> Path:
    """Say in the specification of a run where its data is, and how it was read."""
    spec = {"experiment": asdict(Experiment(**settings)), "command": ""}
    (run / "spec.json").write_text(json.dumps(spec))
    (run / "done").touch()
    return run


def make_photographs(folder: Path) -> dict[str, Image.Image]:
    """Write photographs of 3,000 pixels and images of odd modes and formats; return what each must look like."""
    folder.mkdir(parents=True)
    rows, columns = np.mgrid[0:2000, 0:3000]
    pixels = np.stack([columns // 12, rows // 8, (columns // 250 + rows // 250) % 2 * 200], 2).astype(np.uint8)
    photo = Image.fromarray(pixels)
    small = photo.resize((300, 200))
    clear = small.copy()
    clear.putalpha(Image.linear_gradient("L").resize((300, 200)))
    turned = Image.Exif()
    turned[0x0112] = 6  # to be rotated by 90 degrees clockwise
    files = {
        "a-large.jpg": (photo, {"quality": 90}),
        "b-turned.jpg": (photo, {"quality": 90, "exif": turned}),
        "c-cmyk.jpg": (small.convert("CMYK"), {}),
        "d-large.tif": (photo, {"compression": "tiff_lzw"}),
        "e-16bit.png": (Image.fromarray((np.asarray(small.convert("L")).astype(np.uint16) << 8) + 7), {}),
        "f-palette.png": (small.quantize(200), {}),
        "g-clear.png": (clear, {}),
        "h-small.bmp": (small, {}),
        "i-small.webp": (small, {"lossless": True}),
        "j-moving.gif": (small.quantize(64), {"save_all": True, "append_images": [Image.new("P", (300, 200))]}),
        "k-plain.jpg": (small, {"quality": 95}),
        "l-one-bit.tif": (small.convert("1"), {}),
    }
    for name, (image, options) in files.items():
        image.save(folder / name, **options)
    white = Image.new("RGBA", clear.size, "white")
    expected = {name: image.convert("RGB") for name, (image, _) in files.items()}
    expected["b-turned.jpg"] = photo.transpose(Image.Transpose.ROTATE_270)
    expected["e-16bit.png"] = small.convert("L").convert("RGB")
    expected["g-clear.png"] = Image.alpha_composite(white, clear).convert("RGB")
    return expected


def make_photo_run(root: Path) -> tuple[Path, dict[str, Image.Image]]:
    """Write a run on 36 photographs of three classes, 12 of odd formats, with features; return what these look like."""
    expected = make_photographs(root / "photos" / "cat")
    for number in range(24):
        name = root / "photos" / CLASSES[1 + number % 2] / f"{number}.jpg"
        name.parent.mkdir(exist_ok=True)
        Image.new("RGB", (640, 480), (10 * number, 90, 120)).save(name)
    names = find(str(root / "photos"), ReadOptions()).train.names
    np.save(root / "features.npy", np.random.default_rng(0).normal(size=(36, 5)).astype(np.float32))
    run = make_audited_run(root / "run", 36, 36, names=names, suspects=30)
    labels = (run / "audit" / "labels.csv").read_text().splitlines()
    sure = [line.split(",") for line in labels[-6:]]  # two of each class
    labels[-6:] = [",".join([*cells[:3], cells[2], *cells[4:]]) for cells in sure]
    (run / "audit" / "labels.csv").write_text("\n".join(labels) + "\n")
    return add_data(run, data=str(root / "photos"), features=str(root / "features.npy")), expected


def add_other_issues(run: Path, pairs, outlier=None) -> None:
    """Add near-duplicates, as pairs of samples of the gallery, and an outlier that follows the other samples."""
    path = run / "audit" / "gallery.jsonl"
    rows = {row["index"]: {**row, "listed": ["label"]} for row in map(json.loads, path.read_text().splitlines())}
    for pair in pairs:
        for one, other in (pair, pair[::-1]):
            rows[one]["twin"] = {name: rows[other][name] for name in ("index", "id", "given_label", "image")}
            rows[one]["listed"] = ["label", "near_duplicate"]
    if outlier is not None:
        facts = {"index": outlier, "id": f"{CLASSES[outlier % 3]}/{outlier}.png", "label_quality": 0.99}
        given = {"given_label": CLASSES[outlier % 3], "suggested_label": CLASSES[outlier % 3], "is_label_issue": False}
        rows[outlier] = {**facts, **given, "why": "It resembles none of the classes.", "listed": ["outlier"]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))


def make_decision(index=1, kind="keep", label=None, tab="t", reviewer="") -> Decision:
    return Decision(index, f"{CLASSES[index % 3]}/{index}.png", kind, label, "2026-01-01T00:00:00+00:00", tab, reviewer)


def logged_decisions(run: Path) -> list[dict]:
    """Return the lines of a run's decisions.jsonl."""
    return [json.loads(line) for line in (run / "review" / "decisions.jsonl").read_text().splitlines()]


def read_labels(path: Path) -> dict[int, str]:
    """Return the labels of an exported file by index."""
    with path.open(newline="", encoding="utf-8") as file:
        return {int(row["index"]): row["label"] for row in csv.DictReader(file)}


class Client:
    """HTTP client that sends exactly the given headers."""

    def __init__(self, url):
        self.host = urlsplit(url).netloc
        self.token = urlsplit(url).query

    def send(self, path, method="GET", body=None, token=None, **headers):
        token = self.token if token is None else token
        sent = {"Host": self.host, **headers}
        if body is not None:
            sent = {"Content-Length": str(len(body)), "Content-Type": "application/json", **sent}
        with contextlib.closing(http.client.HTTPConnection(self.host, timeout=TIMEOUT)) as connection:
            target = f"{path}{'&' if '?' in path else '?'}{token}"
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name.replace("_", "-"), value)
            connection.endheaders(body)
            with connection.getresponse() as answer:
                return answer.status, answer.read(), answer.headers

    def decide(self, request, path="/decide", **headers):
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        status, content, _ = self.send(path, "POST", body, **{"Origin": f"http://{self.host}", **headers})
        return status, json.loads(content)

    def get(self, path):
        """Return the status and the JSON of an answer."""
        status, content, _ = self.send(path)
        return status, json.loads(content)


@pytest.fixture
def run(tmp_path):
    return make_audited_run(tmp_path / "run")


def shown_index(page) -> int:
    return page.evaluate("samples[current]?.index ?? -1")


def wait_until(page, condition: str) -> None:
    """Wait until a JavaScript expression is true; wait_for_function needs eval, which the page's policy forbids."""
    end = time.monotonic() + TIMEOUT
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(10)


def press(page, key: str) -> None:
    """Press a key once the page accepts keys, and wait until the decision is saved."""
    wait_until(page, "acceptsKeys()")
    page.keyboard.press(key)
    wait_until(page, "!saving")


@pytest.fixture
def page_of(browser):
    """Open pages, and record their console messages, errors and requests; `reviewer` None: the page asks for a name."""
    contexts, messages = [], []

    def open_page(url, reviewer="", **options):
        context = browser.new_context(**options)
        contexts.append(context)
        if reviewer is not None:
            context.add_cookies([{"name": "reviewer", "value": reviewer, "domain": "127.0.0.1", "path": "/"}])
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("dialog", lambda dialog: (messages.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.requests = []
        page.on("request", lambda request: page.requests.append(request.url))
        page.messages = messages
        page.set_default_timeout(1000 * TIMEOUT)
        page.goto(url)
        wait_until(page, "samples.length > 0")
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def serve():
    """Start review servers as processes; all are killed at the end of the test."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "labelsieve", "review", "--no-browser", *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        process.url = re.search(r"http://\S+", process.stdout.readline())[0]
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
