"""An audited run with made-up samples, a review server and a client, shared by the tests of the review."""

import contextlib
import csv
import http.client
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from PIL import Image

from labelsieve.review.decisions import Decision
from labelsieve.text import escape_cell

TIMEOUT = 120  # seconds; only reached if something hangs
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


def make_decision(index=1, kind="keep", label=None, tab="t") -> Decision:
    return Decision(index, f"{CLASSES[index % 3]}/{index}.png", kind, label, "2026-01-01T00:00:00+00:00", tab)


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

    def decide(self, request, **headers):
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        status, content, _ = self.send("/decide", "POST", body, **{"Origin": f"http://{self.host}", **headers})
        return status, json.loads(content)


@pytest.fixture
def run(tmp_path):
    return make_audited_run(tmp_path / "run")


@pytest.fixture
def serve():
    """Start review servers as processes; all are killed at the end of the test."""
    started = []

    def start(run, *options):
        process = subprocess.Popen(
            [sys.executable, "-m", "labelsieve", "review", str(run), "--no-browser", *options],
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
