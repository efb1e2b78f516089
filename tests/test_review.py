"""The review page: decisions on disk, a guarded server, and a real browser."""

import contextlib
import csv
import errno
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from labelsieve.cli import execute
from labelsieve.errors import InputError, ResourceError
from labelsieve.review import decisions as log_module
from labelsieve.review.decisions import Decision, DecisionLog, reviewed, state
from labelsieve.review.decisions import standing_on_disk as standing_in
from labelsieve.review.desk import Desk
from labelsieve.review.export import export
from labelsieve.review.session import farewell
from labelsieve.review.suspects import read_gallery
from labelsieve.text import guarded

CLASSES = ["cat", "dog", "eel"]
HEADER = ["index", "id", "given_label", "suggested_label", "label_quality", "is_label_issue", "why"]


def audited(run: Path, count=40, shown=35, classes=CLASSES, names=None, marked=40, **content) -> Path:
    """A run folder as `labelsieve audit` leaves it; the worst sample is the last one of the data."""
    (run / "audit" / "thumbs").mkdir(parents=True)
    rows = []
    for place, index in enumerate(reversed(range(count))):
        name = names[index] if names else f"{classes[index % len(classes)]}/{index}.png"
        labels = {"given_label": classes[index % len(classes)], "suggested_label": classes[(index + 1) % len(classes)]}
        row = {"index": index, "id": name, **labels, "label_quality": place / count, "is_label_issue": place < marked}
        rows.append({**row, "why": "It looks like another class."})
    with (run / "audit" / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, HEADER)
        writer.writeheader()
        texts = ("id", "given_label", "suggested_label")
        writer.writerows({**row, **{name: guarded(row[name]) for name in texts}} for row in rows)
    (run / "audit" / "summary.json").write_text(json.dumps({"samples": count, "classes": classes}))
    for row in rows[:shown]:
        row.update(content or {"image": f"thumbs/{row['index']}.webp"})
        if content:
            continue
        Image.new("RGB", (12, 12), (5 * row["index"], 90, 120)).save(run / "audit" / "thumbs" / f"{row['index']}.webp")
    lines = [json.dumps(row, ensure_ascii=False) for row in rows[:shown]]
    (run / "audit" / "gallery.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run


@pytest.fixture
def run(tmp_path):
    return audited(tmp_path / "run")


def decision(index=1, kind="keep", label=None, tab="t"):
    return Decision(index, f"{CLASSES[index % 3]}/{index}.png", kind, label, "2026-01-01T00:00:00+00:00", tab)


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "review" / "decisions.jsonl").read_text().splitlines()]


def labels_in(path: Path) -> dict[int, str]:
    with path.open(newline="", encoding="utf-8") as file:
        return {int(row["index"]): row["label"] for row in csv.DictReader(file)}


# What stands


def test_the_last_decision_stands_and_undo_brings_back_the_one_before():
    first, second = decision(1, "keep"), decision(1, "other", "eel")
    undo = decision(1, "undo")
    assert state([first, second]) == {1: second}
    assert state([first, second, undo]) == {1: first}
    assert state([first, second, undo, undo]) == {}
    assert state([first, undo, undo, second]) == {1: second}
    assert state([first, decision(2, "undo")]) == {1: first}


kinds = st.sampled_from(["keep", "accept", "unsure", "undo"])
decision_lists = st.lists(
    st.builds(lambda i, k: decision(i, k, "dog" if k == "accept" else None), st.integers(0, 3), kinds), max_size=30
)


@given(decision_lists, st.integers(0, 3))
def test_undo_is_the_inverse_of_deciding(past, index):
    assert state([*past, decision(index, "unsure"), decision(index, "undo")]) == state(past)


@given(decision_lists)
def test_the_report_reads_the_same_of_the_file(tmp_path_factory, past):
    place = tmp_path_factory.mktemp("run")
    assert standing_in(place) == {}
    (place / "review").mkdir()
    lines = b"".join(made.line() for made in past)
    (place / "review" / "decisions.jsonl").write_bytes(lines + b'{"index": 0, "deci')  # being written
    assert standing_in(place) == {index: made.label for index, made in state(past).items()}


def test_how_far_a_review_came_by_hand(tmp_path):
    run = audited(tmp_path / "run", marked=4)  # 39 to 36
    made = [decision(39, "accept", "dog"), decision(38, "other", "eel"), decision(37, "unsure"), decision(35, "keep")]
    assert reviewed(run, run / "audit" / "gallery.jsonl") == (0, 0)
    for one in made:  # 38 is called eel already, 35 is not marked
        DecisionLog(run / "review" / "decisions.jsonl").append(lambda past, one=one: one)
    assert reviewed(run, run / "audit" / "gallery.jsonl") == (3, 1)
    (run / "review" / "decisions.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"cannot read .*decisions\.jsonl: 'index'; mend it or move it away"):
        reviewed(run, run / "audit" / "gallery.jsonl")


@given(decision_lists)
def test_what_stands_of_a_sample_depends_on_its_own_lines_only(past):
    alone = {i: state([d for d in past if d.index == i]).get(i) for i in range(4)}
    assert state(past) == {i: stands for i, stands in alone.items() if stands}
    taken_back = [decision(d.index, "undo") for d in past]
    assert state([*past, *taken_back]) == {}


# The file


def test_a_decision_is_one_line_that_another_reader_sees(tmp_path):
    one, other = DecisionLog(tmp_path / "review" / "d.jsonl"), DecisionLog(tmp_path / "review" / "d.jsonl")
    assert one.decisions() == ()
    one.append(lambda past: decision(1))
    assert list(other.decisions()) == [decision(1)]
    other.append(lambda past: decision(len(past) + 1, "unsure"))
    assert list(one.decisions()) == [decision(1), decision(2, "unsure")]
    assert one.path.read_bytes() == decision(1).line() + decision(2, "unsure").line()


@pytest.mark.parametrize("cut", range(len(decision(2).line())))
def test_a_cut_last_line_is_repaired_and_whole_lines_stay(tmp_path, cut):
    path = tmp_path / "d.jsonl"
    path.write_bytes(decision(1).line() + decision(2).line()[:cut])
    log = DecisionLog(path)
    log.mend()
    whole = [decision(1), decision(2)] if cut == len(decision(2).line()) - 1 else [decision(1)]
    assert list(log.decisions()) == whole
    log.append(lambda past: decision(3))
    assert path.read_bytes() == b"".join(d.line() for d in [*whole, decision(3)])


def test_zeros_that_a_power_cut_left_are_no_line(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(decision(1).line() + bytes(100))
    DecisionLog(path).append(lambda past: decision(2))
    assert path.read_bytes() == decision(1).line() + decision(2).line()


def test_a_whole_line_that_is_no_decision_is_named(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(decision(1).line() + b'{"index": 3}\n' + decision(2).line())
    with pytest.raises(InputError, match=r"d\.jsonl:2 is no decision"):
        DecisionLog(path).decisions()


WRITER = """
import sys
from pathlib import Path
from labelsieve.review.decisions import Decision
from labelsieve.review.decisions import DecisionLog
log = DecisionLog(Path(sys.argv[1]))
for index in range(150):
    log.append(lambda past: Decision(index, str(len(past)), "keep", None, "now", sys.argv[2]))
assert "torch" not in sys.modules
"""


def test_two_processes_lose_nothing(tmp_path):
    path = tmp_path / "d.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), tab]) for tab in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    found = DecisionLog(path).decisions()
    assert [d.index for d in found if d.tab == "a"] == [d.index for d in found if d.tab == "b"] == list(range(150))
    assert [d.id for d in found] == [str(line) for line in range(300)]  # each saw all that was written before it


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_a_full_disk_leaves_no_part_of_the_line(tmp_path, monkeypatch, fails):
    log = DecisionLog(tmp_path / "d.jsonl")
    log.append(lambda past: decision(1))
    real = getattr(os, fails)

    def full(handle, *content):
        if fails == "write":
            real(handle, content[0][:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log_module.os, fails, full)
        with pytest.raises(ResourceError, match="the disk is full"):
            log.append(lambda past: decision(2))
    assert log.path.read_bytes() == decision(1).line()
    log.append(lambda past: decision(3))
    assert [d.index for d in log.decisions()] == [1, 3]


def test_the_disk_has_the_line_before_anybody_is_told(tmp_path, monkeypatch):
    path, seen = tmp_path / "review" / "d.jsonl", []
    real = os.fsync
    monkeypatch.setattr(log_module.os, "fsync", lambda handle: (real(handle), seen.append(path.read_bytes())))
    DecisionLog(path).append(lambda past: decision(1))
    assert seen[0] == decision(1).line()
    assert len(seen) == 3  # the file, its folder, and the run's


# The export


def test_the_export_is_what_train_reads(run, tmp_path, capsys):
    from labelsieve.data.labels import read_label_file

    log = DecisionLog(run / "review" / "decisions.jsonl")
    for made in (
        decision(39, "accept", "dog"),
        decision(38, "other", "cat"),
        decision(37, "unsure"),
        decision(36, "keep"),
        decision(35, "accept", "cat"),
        decision(35, "undo"),
    ):
        log.append(lambda past, made=made: made)
    out = tmp_path / "reviewed.csv"
    desk = Desk(run)
    assert desk.tally() == (3, 1, 2, 31)
    assert "3 decided, 2 of them changed; 1 unsure; 31 suspects left" in farewell(desk)[0]
    assert execute(["review", str(run), "--export", str(out)]) == 0
    assert "40 labels, 2 of them changed; 3 samples are decided, 1 unsure\n" in capsys.readouterr().out
    expected = {i: CLASSES[i % 3] for i in range(40)} | {39: "dog", 38: "cat"}
    assert labels_in(out) == expected
    numbers = [CLASSES.index(expected[i]) for i in range(40)]
    names = [f"{CLASSES[i % 3]}/{i}.png" for i in range(40)]
    assert read_label_file(out, CLASSES, 40, names).labels.tolist() == numbers
    assert read_label_file(out, CLASSES, 40).labels.tolist() == numbers


def test_the_export_writes_over_its_own_file_alone(run, tmp_path, capsys):
    DecisionLog(run / "review" / "decisions.jsonl").append(lambda past: decision(39, "accept", "dog"))
    out = tmp_path / "reviewed.csv"
    for mine in ("index;name;label;decided\n", "index,name,label\n0,a.png,cat\n"):
        out.write_text(mine)
        assert execute(["review", str(run), "--export", str(out)]) == 2
        assert f"{out} is there already" in capsys.readouterr().err and out.read_text() == mine
    out.unlink()
    assert [execute(["review", str(run), "--export", str(out)]) for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("names", [[str(i) for i in range(40)], ["same"] * 40])
def test_names_that_say_nothing_are_left_out(tmp_path, names):
    run = audited(tmp_path / "run", names=names)
    made = Decision(39, names[39], "accept", "dog", "now", "t")
    DecisionLog(run / "review" / "decisions.jsonl").append(lambda past: made)
    export(run, tmp_path / "r.csv")
    assert (tmp_path / "r.csv").read_text().startswith("index,label,decided\n0,cat,false\n")


def test_odd_names_come_back_as_they_were(tmp_path):
    from labelsieve.data.labels import read_label_file

    classes = ["a,b", 'q"q', "line\nbreak", "sep\u2028\x0b", "=1+1", "'-quoted", " spaced "]
    names = [f"{name}/{i}" for i, name in enumerate(classes * 3)]
    run = audited(tmp_path / "run", 21, 21, classes, names)
    desk = Desk(run)
    desk.decide({"index": 4, "decision": "other", "label": "line\nbreak", "over": None, "since": 0, "tab": "t"})
    export(run, tmp_path / "r.csv")
    labels = read_label_file(tmp_path / "r.csv", classes, 21, names).labels.tolist()
    assert labels == [2 if i == 4 else i % 7 for i in range(21)]
    with (tmp_path / "r.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not any(cell[:1] in tuple("=+-@\t\r\n") and cell for cell in cells)  # no spreadsheet runs them


def test_what_cannot_be_exported_is_said_in_a_line(run, tmp_path, capsys):
    def said(*arguments):
        code = execute(["review", *map(str, arguments)])
        err = capsys.readouterr().err
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
        return err

    assert "no decisions" in said(run, "--export", tmp_path / "r.csv")
    assert not (tmp_path / "r.csv").exists()
    assert ".csv" in said(run, "--export", tmp_path / "r.npy")
    DecisionLog(run / "review" / "decisions.jsonl").append(lambda past: Decision(3, "x.png", "keep", None, "now", "t"))
    assert "other data: sample 3 was 'x.png'" in said(run, "--export", tmp_path / "r.csv")
    assert "there is no folder" in said(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    assert "is neither a run (it has no spec.json) nor an audit" in said(tmp_path / "bare")
    assert "--port takes" in said(audited(tmp_path / "other"), "--port", "80", "--no-browser")


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"index": true, "id": "a", "given_label": "cat", "suggested_label": "dog"}', '{"index": 1}']
)
def test_a_damaged_gallery_is_named(run, line):
    path = run / "audit" / "gallery.jsonl"
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(InputError, match=r"gallery\.jsonl:36 is no sample"):
        read_gallery(run)


# The server


@pytest.fixture
def serve():
    """Starts real servers; whatever happens, they end."""
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


class Client:
    """Says exactly what a test wants to a server."""

    def __init__(self, url):
        self.host = urlsplit(url).netloc
        self.token = urlsplit(url).query

    def ask(self, path, method="GET", body=None, token=None, **headers):
        token = self.token if token is None else token
        sent = {"Host": self.host, **headers}
        if body is not None:
            sent = {"Content-Length": str(len(body)), "Content-Type": "application/json", **sent}
        with contextlib.closing(http.client.HTTPConnection(self.host, timeout=10)) as connection:
            target = f"{path}{'&' if '?' in path else '?'}{token}"
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name.replace("_", "-"), value)
            connection.endheaders(body)
            with connection.getresponse() as answer:
                return answer.status, answer.read(), answer.headers

    def decide(self, asked, **headers):
        body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        status, content, _ = self.ask("/decide", "POST", body, **{"Origin": f"http://{self.host}", **headers})
        return status, json.loads(content)


KEEP = {"index": 39, "decision": "keep", "over": None, "since": 0, "tab": "t"}
ROUTES = ["/", "/page.css", "/page.js", "/suspects", "/changes?since=0", "/thumbs/39", "/nowhere"]


def test_the_server_refuses_what_is_not_its_page(run, serve):
    (run.parent / "secret.webp").write_bytes(b"canary")
    client = Client(serve(run).url)
    for route in ROUTES:
        assert client.ask(route)[0] == (404 if route == "/nowhere" else 200)
        for host in ("evil.example", f"evil.example:{client.host[10:]}", "127.0.0.1", "127.0.0.1:1", "", None):
            assert client.ask(route, Host=host)[0] in ((403, 400) if host is None else (403,)), (route, host)
        for token in (
            "",
            "token=",
            "token=wrong",
            "token=%C3%A9%ff",
            f"{client.token}x",
            f"{client.token}&{client.token}",
        ):
            assert client.ask(route, token=token)[0] == 403
    assert client.ask("/", Host=f"localhost:{client.host[10:]}")[0] == 200
    for route in ("/decide", "/export"):
        assert client.ask(route, "POST", b"{}")[0] == 403  # no origin
        assert client.ask(route, "POST", b"{}", Origin="http://evil.example")[0] == 403
        assert client.ask(route, "POST", b"{}", Origin="null")[0] == 403
        assert client.ask(route, "POST", b"{}", token="", Origin=f"http://{client.host}")[0] == 403
        assert client.ask(route, "POST", b"{}", Host="evil.example", Origin="http://evil.example")[0] == 403
        plain = {"Content_Type": "text/plain", "Origin": f"http://{client.host}"}
        assert client.ask(route, "POST", b"{}", **{**plain, "Content-Type": None})[0] == 415
    assert not (run / "review").exists()
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
        assert client.ask("/suspects", method)[0] == 501


def test_no_path_leads_out_of_the_thumbs(run, serve):
    (run.parent / "secret.webp").write_bytes(b"canary")
    gallery = run / "audit" / "gallery.jsonl"
    rows = [json.loads(line) for line in gallery.read_text().splitlines()]
    rows[0]["image"] = "../../secret.webp"
    rows[1]["image"] = str(run.parent / "secret.webp")
    rows[2]["image"] = "labels.csv"
    (run / "audit" / "thumbs" / "link.webp").symlink_to(run.parent / "secret.webp")
    rows[3]["image"] = "thumbs/link.webp"
    gallery.write_text("".join(json.dumps(row) + "\n" for row in rows))
    client = Client(serve(run).url)
    tries = [f"/thumbs/{row['index']}" for row in rows[:4]]
    tries += [
        "/thumbs/../../secret.webp",
        "/thumbs/%2e%2e/%2e%2e/secret.webp",
        "//etc/passwd",
        "/thumbs/39%00",
        "/../secret.webp",
    ]
    tries += [
        "/thumbs/..%2f..%2fsecret.webp",
        "/thumbs/39.webp",
        "/thumbs/-1",
        "/thumbs/4",
        "/thumbs/999999999999",
        "/review/decisions.jsonl",
    ]
    for path in tries:
        status, content, _ = client.ask(path)
        assert status == 404 and b"canary" not in content and b"given_label" not in content, path
    assert client.ask("/thumbs/35")[0] == 200


def test_every_answer_has_the_headers(run, serve):
    client = Client(serve(run).url)
    for answer in (client.ask("/"), client.ask("/thumbs/39"), client.ask("/", token=""), client.ask("/x", "PUT")):
        headers = answer[2]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
        assert headers["Server"] == "labelsieve" and headers["Set-Cookie"] is None


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        (b"{", 400, "no JSON"),
        (b"[1]", 400, "no JSON object"),
        (b"[" * 60_000, 400, "no JSON"),
        (b"\xff\xfe{", 400, "no JSON"),
        (b" " * 70_000, 413, "at most"),
        (b" " * 900_000, 413, "at most"),
        ({**KEEP, "index": 4}, 404, "no such sample"),  # not in the gallery
        ({**KEEP, "index": 400}, 404, "no such sample"),
        ({**KEEP, "index": "39"}, 404, "no such sample"),
        ({**KEEP, "index": True}, 404, "no such sample"),
        ({**KEEP, "index": [39]}, 404, "no such sample"),
        ({**KEEP, "decision": "delete"}, 400, "one of keep"),
        ({**KEEP, "decision": ["keep"]}, 400, "one of keep"),
        ({**KEEP, "decision": "other", "label": "cow"}, 400, "no such class"),
        ({**KEEP, "decision": "other"}, 400, "no such class"),
        ({**KEEP, "tab": 3}, 400, "names its tab"),
        ({**KEEP, "tab": "t" * 65}, 400, "names its tab"),
        ({**KEEP, "since": -1}, 400, "names its tab"),
        ({**KEEP, "over": 7}, 409, "meanwhile"),
        ({**KEEP, "decision": "undo"}, 409, "nothing to take back"),
    ],
)
def test_a_decision_that_cannot_be_is_refused_and_not_written(shared, asked, status, words):
    client, run = shared
    got, answer = client.decide(asked)
    assert got == status and words in answer["error"]
    assert not (run / "review" / "decisions.jsonl").exists() or lines_of(run) == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server for requests that change nothing."""
    run = audited(tmp_path_factory.mktemp("shared") / "run")
    from labelsieve.review.server import Server

    with Server(Desk(run), "a-token") as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield Client(server.url), run
        server.shutdown()


def test_a_body_without_or_with_a_false_length_is_refused(shared):
    client, _ = shared
    origin = {"Origin": f"http://{client.host}"}
    assert client.ask("/decide", "POST", b"{}", **{**origin, "Content-Length": None})[0] == 411
    assert client.ask("/decide", "POST", b"", **{**origin, "Content-Length": "-5"})[0] == 411
    assert client.ask("/decide", "POST", b"", **{**origin, "Content-Length": "9" * 14})[0] == 413


def test_a_sample_that_was_decided_meanwhile_is_not_decided_over(run, serve):
    one, other = Client(serve(run).url), Client(serve(run).url)  # two servers on one run
    status, answer = one.decide({**KEEP, "decision": "accept"})
    assert status == 200 and answer["version"] == 1 and answer["changed"]["39"]["label"] == "dog"
    status, answer = other.decide(KEEP)
    assert status == 409 and answer["changed"]["39"] == {"line": 1, "decision": "accept", "label": "dog", "tab": "t"}
    status, answer = other.decide({**KEEP, "over": 1, "since": 1, "tab": "u"})
    assert status == 200 and answer["changed"] == {"39": {"line": 2, "decision": "keep", "label": None, "tab": "u"}}
    assert json.loads(one.ask("/changes?since=1")[1]) == answer
    assert [(line["decision"], line["label"], line["tab"]) for line in lines_of(run)] == [
        ("accept", "dog", "t"),
        ("keep", None, "u"),
    ]


def test_a_server_that_is_killed_at_any_moment_has_saved_all_that_it_answered(tmp_path, serve):
    run = audited(tmp_path / "run", 2000, 2000, text="a text")
    server, answered = serve(run), []

    def decide_on_and_on(client):
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                asked = {**KEEP, "index": len(answered), "decision": "unsure"}
                assert client.decide(asked)[0] == 200
                answered.append(asked["index"])

    for pause in (0.03, 0.07):
        writer = threading.Thread(target=decide_on_and_on, args=[Client(server.url)])
        writer.start()
        time.sleep(pause)
        server.kill()
        writer.join()
        server = serve(run)
        found = [line["index"] for line in lines_of(run)]
        assert found[: len(answered)] == answered and len(found) <= len(answered) + 1  # one may be saved, not answered
        answered = found


def test_ctrl_c_before_the_page_is_served_is_no_failure(run, monkeypatch, capsys):
    def impatient():
        raise KeyboardInterrupt

    monkeypatch.setattr("labelsieve.review.session.has_screen", impatient)
    assert execute(["review", str(run)]) == 0
    assert "no decisions were made" in capsys.readouterr().out


def test_ctrl_c_says_what_is_saved_where_and_what_to_do_next(run, serve):
    command = "labelsieve train 'my photos' --labels old.csv --skip-bad --out run --seed 3"
    (run / "spec.json").write_text(json.dumps({"experiment": {"data": "my photos"}, "command": command}))
    (run / "done").touch()
    server = serve(run)
    client = Client(server.url)
    assert client.decide({**KEEP, "decision": "accept"})[0] == client.decide({**KEEP, "index": 38})[0] == 200
    server.send_signal(signal.SIGINT)
    said, _ = server.communicate(timeout=20)
    assert server.returncode == 0
    assert f"saved in {run / 'review' / 'decisions.jsonl'}: 2 decided, 1 of them changed; 33 suspects left" in said
    reviewed = run / "review" / "reviewed.csv"
    assert f"go on:    labelsieve review {run}\n" in said
    assert f"labelsieve review {run} --export {reviewed}" in said
    assert f"labelsieve train 'my photos' --skip-bad --seed 3 --labels {reviewed} --out {run}-reviewed\n" in said


def test_a_port_in_use_is_said(run, serve, capsys):
    port = urlsplit(serve(run).url).port
    assert execute(["review", str(run), "--no-browser", "--port", str(port)]) == 2
    assert "without --port a free one is found" in capsys.readouterr().err


# The page


@pytest.fixture
def page_of(browser):
    """Opens pages that may go nowhere else, and must not complain."""
    contexts, heard = [], []

    def open_page(url, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("dialog", lambda dialog: (heard.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        page.heard = heard
        page.goto(url)
        until(page, "suspects.length > 0")
        return page

    yield open_page
    for context in contexts:
        context.close()


def shown(page) -> int:
    return page.evaluate("suspects[now]?.index ?? -1")


def until(page, truth: str) -> None:
    """Wait for it; what the page's own policy forbids, such as eval, is not needed."""
    end = time.monotonic() + 10
    while not page.evaluate(truth):
        assert time.monotonic() < end, truth
        page.wait_for_timeout(10)


def press(page, key: str) -> None:
    """Press a key as soon as the page takes one, and wait until what it does is done."""
    until(page, "settled()")
    page.keyboard.press(key)
    until(page, "!saving")


def test_thirty_decisions_by_keyboard_survive_a_kill_and_are_exported(run, serve, page_of):
    server = serve(run)
    page = page_of(server.url)
    expected = {}
    for number in range(30):
        index, kind = shown(page), ("keep", "accept", "unsure", "other")[number % 4]
        assert index == 39 - number
        press(page, kind[0])
        if kind == "other":
            page.keyboard.type(CLASSES[(index + 2) % 3][:2])
            page.keyboard.press("Enter")
        until(page, f"suspects[now].index !== {index}")
        expected[index] = kind
    assert page.text_content("#progress") == "23 of 35 suspects decided, 7 unsure · 15 changed"
    server.kill()  # -9
    server.wait()
    assert {line["index"]: line["decision"] for line in lines_of(run)} == expected
    again = page_of(serve(run).url)
    assert shown(again) == 9 and again.text_content("#progress") == "23 of 35 suspects decided, 7 unsure · 15 changed"
    again.click("#export")
    again.wait_for_selector("#notice:not([hidden])")
    assert "40 labels, 15 of them changed; 23 samples are decided, 7 unsure" in again.text_content("#notice")
    new = {"keep": 0, "accept": 1, "unsure": 0, "other": 2}
    wanted = {i: CLASSES[(i + new[expected.get(i, "keep")]) % 3] for i in range(40)}
    assert labels_in(run / "review" / "reviewed.csv") == wanted
    for _ in range(5):
        press(again, "k")
    assert (
        "Done: all 35 suspects are gone through, 7 of them unsure." in again.text_content("#none")
        and len(lines_of(run)) == 35
    )
    assert not again.is_visible("#beyond")  # nothing comes after them
    press(again, "z")
    assert shown(again) == 5 and lines_of(run)[-1]["decision"] == "undo"
    assert [heard for heard in again.heard if "ERR_CONNECTION" not in heard] == []  # the killed server's page asks on


def test_a_held_or_doubled_key_decides_one_sample(run, serve, page_of):
    page = page_of(serve(run).url)
    until(page, "settled()")
    for _ in range(20):  # without an up in between: the browser marks all but the first as repeats
        page.keyboard.down("k")
        page.wait_for_timeout(25)
    page.keyboard.up("k")
    assert [line["index"] for line in lines_of(run)] == [39] and shown(page) == 38
    until(page, "settled()")
    page.keyboard.press("a")
    page.keyboard.press("a")
    until(page, "settled()")
    assert [line["index"] for line in lines_of(run)] == [39, 38] and shown(page) == 37
    page.evaluate("show(now); document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'a', bubbles: true}))")
    until(page, "settled()")  # the sample had only just appeared
    assert len(lines_of(run)) == 2 and shown(page) == 37
    page.focus("#keep")
    for _ in range(20):
        page.keyboard.down("Enter")
        page.wait_for_timeout(25)
    page.keyboard.up("Enter")
    assert [line["index"] for line in lines_of(run)] == [39, 38, 37]


def test_going_back_undoing_and_filtering(run, serve, page_of):
    page = page_of(serve(run).url)
    for key in "kau":
        press(page, key)
    press(page, "ArrowLeft")
    assert shown(page) == 37 and "unsure, stays dog" in page.text_content("#place")
    press(page, "ArrowLeft")
    press(page, "z")  # of the sample that is shown
    assert shown(page) == 38 and lines_of(run)[-1] == {**lines_of(run)[-1], "index": 38, "decision": "undo"}
    press(page, "ArrowRight")
    press(page, "ArrowRight")
    assert shown(page) == 36
    press(page, "z")  # else of the last in this tab
    assert shown(page) == 37 and lines_of(run)[-1]["index"] == 37
    page.reload()
    until(page, "suspects.length > 0")
    assert shown(page) == 38  # the first that is undecided
    press(page, "z")  # a reload is no new tab
    assert shown(page) == 39 and lines_of(run)[-1]["decision"] == "undo"
    press(page, "k")
    page.check("#open")
    page.evaluate("document.activeElement.blur()")
    press(page, "ArrowLeft")
    press(page, "ArrowLeft")
    assert shown(page) == 38  # 39 is decided
    page.select_option("#filter", label="eel (12)")
    assert shown(page) == 38 and "12 left in this class" in page.text_content("#progress")
    press(page, "k")
    assert shown(page) == 35
    press(page, "?")
    assert page.is_visible("#keys")
    page.keyboard.press("k")  # not a decision while the help is open
    page.keyboard.press("Escape")
    assert not page.is_visible("#keys") and shown(page) == 35
    page.click("#accept")
    until(page, "suspects[now].index === 32")
    page.click("#strip button:first-child")
    assert shown(page) == 29
    assert "labelled eel, suggested cat" in page.text_content("#live")
    assert page.heard == []


def test_done_is_when_the_suspects_are_done_and_then_one_may_go_on(tmp_path, serve, page_of):
    run = audited(tmp_path / "run", marked=3)
    server = serve(run)
    page = page_of(server.url)
    assert page.text_content("#progress") == "0 of 3 suspects decided · 0 changed"
    assert "1 of 3 suspects" in page.text_content("#place")
    for _ in range(4):
        press(page, "ArrowRight")  # not beyond the suspects
    assert shown(page) == 37 and page.locator("#strip button").count() == 0
    assert page.text_content("#filter option:nth-child(2)") == "cat (1)"
    for key in "kak":
        press(page, key)
    assert shown(page) == -1 and page.text_content("#progress") == "3 of 3 suspects decided · 1 changed"
    assert page.evaluate("document.getElementById('bar').value") == 1
    assert "Done: all 3 suspects are decided. Export labels" in page.text_content("#none")
    assert page.text_content("#beyond") == "Go on with the next 32 most suspicious, which are probably right"
    page.keyboard.press("Enter")  # the offer has the focus
    assert shown(page) == 36 and "1 of 32 after the suspects · not marked, probably right" in page.text_content(
        "#place"
    )
    press(page, "a")
    assert page.text_content("#progress") == "3 of 3 suspects decided · 1 of the next 32 · 2 changed"
    press(page, "u")
    assert page.text_content("#progress") == "3 of 3 suspects decided · 1 of the next 32, 1 unsure · 2 changed"
    press(page, "ArrowLeft")
    press(page, "z")
    assert page.text_content("#filter option:nth-child(2)") == "cat (12)"
    page.reload()  # this tab goes on where it was
    until(page, "suspects.length > 0")
    assert shown(page) == 35
    again = page_of(server.url)  # another one is asked again
    assert shown(again) == -1 and again.is_visible("#beyond")
    assert again.text_content("#beyond").startswith("Go on with the next 31 most")
    server.send_signal(signal.SIGINT)
    said = server.communicate(timeout=10)[0]
    assert "4 decided, 2 of them changed; 0 suspects left\nuse them: " in said and "go on:" not in said


def test_without_suspects_the_most_suspicious_can_be_looked_at_all_the_same(tmp_path, serve, page_of):
    server = serve(audited(tmp_path / "run", marked=0))
    page = page_of(server.url)
    assert "There are no suspects" in page.text_content("#none")
    assert page.text_content("#beyond") == "Look at the 35 most suspicious, which are probably right"
    page.click("#beyond")
    assert shown(page) == 39 and page.text_content("#progress").startswith("0 of 0 suspects decided · 0 of the next 35")
    assert page.heard == []


def test_two_tabs_see_each_other(run, serve, page_of):
    url = serve(run).url
    one, other = page_of(url), page_of(url)
    press(one, "a")
    until(other, "decided.size === 1")
    assert shown(other) == 39 and "changed to dog, earlier or in another tab" in other.text_content("#place")
    other.evaluate("clearTimeout(polling)")
    press(one, "k")
    press(other, "ArrowRight")
    press(other, "a")  # on 38, of which it does not know that it was decided
    assert "Not saved. This sample was decided meanwhile" in other.text_content("#problem")
    assert shown(other) == 38 and "kept as eel" in other.text_content("#place")
    press(other, "a")  # knowing it, one may change it
    assert [(line["index"], line["decision"]) for line in lines_of(run)] == [
        (39, "accept"),
        (38, "keep"),
        (38, "accept"),
    ]
    assert not other.is_visible("#problem")


def test_what_is_not_saved_is_not_shown_as_saved(run, page_of, monkeypatch):
    from labelsieve.review.server import Server

    def full(handle, line):
        raise OSError(errno.ENOSPC, "No space left on device")

    with Server(Desk(run), "a-token") as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        page = page_of(server.url)
        with monkeypatch.context() as patch:
            patch.setattr(log_module, "write_line", full)
            press(page, "k")
        assert "Not saved. The disk is full" in page.text_content("#problem")
        assert shown(page) == 39 and page.text_content("#progress").startswith("0 of 35 suspects decided")
        with monkeypatch.context() as patch:
            patch.setattr(
                log_module.os, "open", lambda *_: (_ for _ in ()).throw(OSError(errno.EROFS, "Read-only file system"))
            )
            press(page, "k")
        assert "Read-only file system" in page.text_content("#problem") and shown(page) == 39
        press(page, "k")
        assert shown(page) == 38 and not page.is_visible("#problem")
        server.shutdown()
    assert [line["index"] for line in lines_of(run)] == [39]


def test_a_server_that_is_gone_is_said(run, serve, page_of):
    server = serve(run)
    page = page_of(server.url)
    server.kill()
    server.wait()
    press(page, "k")
    assert "Not saved. The server does not answer." in page.text_content("#problem") and shown(page) == 39


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


WALK = """() => suspects.map((_, where) => {
  show(where);
  return ["given", "suggested", "name", "view"].map((id) => at(id).textContent);
})"""
ACTIVE = "document.querySelectorAll('script, link, style, iframe, form, a, base, meta, svg, #view *, #name *').length"


def test_hostile_strings_are_shown_as_text(tmp_path, serve, page_of):
    names = [f"{name}/{i}" for i, name in enumerate(HOSTILE)]
    run = audited(tmp_path / HOSTILE[2].replace("/", "_"), len(HOSTILE), len(HOSTILE), HOSTILE, names)
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
    until(page, "decided.size === 1")
    assert lines_of(run)[0]["label"] == "{{7*7}}"
    page.evaluate("show(0)")
    assert page.evaluate(ACTIVE) == own
    assert page.heard == []
    assert {urlsplit(asked).netloc for asked in page.asked} == {urlsplit(url).netloc}
    page.set_viewport_size({"width": 360, "height": 740})
    widths = page.evaluate("suspects.map((_, where) => (show(where), document.documentElement.scrollWidth))")
    assert max(widths) <= 360


def test_names_are_whole_on_the_buttons_of_a_phone(tmp_path, serve, page_of):
    classes = ["Lastwagen groß", "Fluggeräte der Bundeswehr, zwei- und mehrmotorig"]
    page = page_of(serve(audited(tmp_path / "run", 6, 6, classes)).url)
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        for choice in ("keep", "accept"):
            hidden = page.evaluate(f"(s => s.scrollHeight - s.clientHeight)(document.querySelector('#{choice} span'))")
            assert hidden <= 0, (width, choice)


def test_a_thousand_classes_are_found_by_typing(tmp_path, serve, page_of):
    classes = [f"class {number:03}" for number in range(1000)]
    run = audited(tmp_path / "run", 1000, 20, classes)
    page = page_of(serve(run).url)
    press(page, "o")
    assert page.locator("#matches li").count() == 50 and page.text_content("#rest") == "and 950 more: type to narrow"
    page.keyboard.type("77")
    assert page.text_content("#rest") == "" and page.locator("#matches li").count() == 19
    page.keyboard.press("ArrowDown")
    chosen = page.text_content("#matches [aria-selected=true]")
    page.keyboard.press("Enter")
    until(page, "decided.size === 1")
    assert lines_of(run)[0]["label"] == chosen
    press(page, "o")
    page.keyboard.type("no such")
    page.keyboard.press("Enter")  # there is nothing to take
    page.keyboard.press("Escape")
    assert not page.is_visible("#picker") and len(lines_of(run)) == 1


def test_classes_are_found_without_case_and_diacritics(tmp_path, serve, page_of):
    classes = ["Sac à main", "Winter-Mäntel", "Ma\u0308ntel", "Robe d'été", "Größe", "manteln"]
    run = audited(tmp_path / "run", 12, 12, classes)
    page = page_of(serve(run).url)

    def found(words):
        return page.evaluate(f"matching({json.dumps(classes)}, {json.dumps(words)})")

    assert found("mantel") == found("MÄNTEL ") == ["Ma\u0308ntel", "manteln", "Winter-Mäntel"]
    assert found("ete") == ["Robe d'été"] and found("a m") == ["Sac à main"] and found("grosse") == ["Größe"]
    assert found("mänteln") == ["manteln"] and found("mentel") == []
    press(page, "o")
    page.keyboard.type("d'ete")
    page.keyboard.press("Enter")
    until(page, "decided.size === 1")
    assert lines_of(run)[0]["label"] == "Robe d'été"


def test_reviewing_needs_no_torch(run):
    code = "import sys, labelsieve.review.session, labelsieve.review.export; assert 'torch' not in sys.modules"
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert time.monotonic() - began < 10
