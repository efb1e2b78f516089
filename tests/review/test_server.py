"""The server of the review page: access control, decisions and their storage."""

import contextlib
import http.client
import json
import threading

import pytest

from labelsieve.review.server import ReviewServer
from labelsieve.review.state import ReviewState
from tests.review.conftest import KEEP, TIMEOUT, Client, logged_decisions, make_audited_run

ROUTES = ["/", "/page.css", "/page.js", "/samples", "/changes?since=0", "/thumbs/39", "/pictures/39", "/details/39"]
ROUTES += ["/samples?run=0", "/nowhere"]


def test_server_refuses_other_hosts_tokens_and_origins(run, serve):
    (run.parent / "secret.webp").write_bytes(b"canary")
    client = Client(serve(run).url)
    for route in ROUTES:
        assert client.send(route)[0] == (404 if route == "/nowhere" else 200)
        for host in ("evil.example", f"evil.example:{client.host[10:]}", "127.0.0.1", "127.0.0.1:1", "", None):
            assert client.send(route, Host=host)[0] in ((403, 400) if host is None else (403,)), (route, host)
        for token in (
            "",
            "token=",
            "token=wrong",
            "token=%C3%A9%ff",
            f"{client.token}x",
            f"{client.token}&{client.token}",
        ):
            assert client.send(route, token=token)[0] == 403
    assert client.send("/", Host=f"localhost:{client.host[10:]}")[0] == 200
    for route in ("/decide", "/decide-many", "/export"):
        assert client.send(route, "POST", b"{}")[0] == 403  # no origin
        assert client.send(route, "POST", b"{}", Origin="http://evil.example")[0] == 403
        assert client.send(route, "POST", b"{}", Origin="null")[0] == 403
        assert client.send(route, "POST", b"{}", token="", Origin=f"http://{client.host}")[0] == 403
        assert client.send(route, "POST", b"{}", Host="evil.example", Origin="http://evil.example")[0] == 403
        plain = {"Content_Type": "text/plain", "Origin": f"http://{client.host}"}
        assert client.send(route, "POST", b"{}", **{**plain, "Content-Type": None})[0] == 415
    assert not (run / "review").exists()
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
        assert client.send("/samples", method)[0] == 501


def test_only_images_of_the_gallery_are_served(run, serve):
    (run.parent / "secret.webp").write_bytes(b"canary")
    gallery = run / "audit" / "gallery.jsonl"
    rows = [json.loads(line) for line in gallery.read_text().splitlines()]
    rows[0]["image"] = "../../secret.webp"
    rows[1]["image"] = str(run.parent / "secret.webp")
    rows[2]["image"] = "labels.csv"
    rows[3]["image"] = "thumbs/../../../secret.webp"
    given = {"id": "twin", "given_label": "cat"}
    rows[4]["twin"] = {"index": 100, "image": "../../secret.webp", **given}
    rows[5]["twin"] = {"index": 101, "image": "thumbs/30.webp", **given}
    gallery.write_text("".join(json.dumps(row) + "\n" for row in rows))
    client = Client(serve(run).url)
    tries = ["/thumbs/100", *(f"/thumbs/{row['index']}" for row in rows[:4])]
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
        status, content, _ = client.send(path)
        assert status == 404 and b"canary" not in content and b"given_label" not in content, path
    assert client.send("/thumbs/35")[0] == client.send("/thumbs/101")[0] == 200


def test_every_answer_has_the_security_headers(run, serve):
    client = Client(serve(run).url)
    for answer in (client.send("/"), client.send("/thumbs/39"), client.send("/", token=""), client.send("/x", "PUT")):
        headers = answer[2]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
        assert headers["Server"] == "labelsieve" and headers["Set-Cookie"] is None


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"[1]", 400, "not a JSON object"),
        (b"[" * 60_000, 400, "not JSON"),
        (b"\xff\xfe{", 400, "not JSON"),
        (b" " * 70_000, 413, "larger than"),
        (b" " * 900_000, 413, "larger than"),
        ({**KEEP, "index": 4}, 404, "no such sample"),  # not in the gallery
        ({**KEEP, "index": 400}, 404, "no such sample"),
        ({**KEEP, "index": "39"}, 404, "no such sample"),
        ({**KEEP, "index": True}, 404, "no such sample"),
        ({**KEEP, "index": [39]}, 404, "no such sample"),
        ({**KEEP, "decision": "delete"}, 400, "must be one of keep"),
        ({**KEEP, "decision": ["keep"]}, 400, "must be one of keep"),
        ({**KEEP, "decision": "other", "label": "cow"}, 400, "no such class"),
        ({**KEEP, "decision": "other"}, 400, "no such class"),
        ({**KEEP, "tab": 3}, 400, "tab, reviewer and action must be"),
        ({**KEEP, "tab": "t" * 65}, 400, "tab, reviewer and action must be"),
        ({**KEEP, "since": -1}, 400, "since must be"),
        ({**KEEP, "over": 7}, 409, "another tab"),
        ({**KEEP, "decision": "undo"}, 409, "no decision to undo"),
    ],
)
def test_invalid_decision_is_refused_and_not_saved(shared, body, status, message):
    client, run = shared
    got, answer = client.decide(body)
    assert got == status and message in answer["error"]
    assert not (run / "review" / "decisions.jsonl").exists() or logged_decisions(run) == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Start one server for requests that change nothing."""
    run = make_audited_run(tmp_path_factory.mktemp("shared") / "run")
    with ReviewServer([ReviewState(run)], "a-token") as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield Client(server.url), run
        server.shutdown()


def test_missing_or_wrong_content_length_is_refused(shared):
    client, _ = shared
    origin = {"Origin": f"http://{client.host}"}
    assert client.send("/decide", "POST", b"{}", **{**origin, "Content-Length": None})[0] == 411
    assert client.send("/decide", "POST", b"", **{**origin, "Content-Length": "-5"})[0] == 411
    assert client.send("/decide", "POST", b"", **{**origin, "Content-Length": "9" * 14})[0] == 413


def test_decision_of_another_tab_is_not_overwritten(run, serve):
    one, other = Client(serve(run).url), Client(serve(run).url)  # two servers on one run
    status, answer = one.decide({**KEEP, "decision": "accept"})
    assert status == 200 and answer["version"] == 1 and answer["changed"]["39"]["label"] == "dog"
    status, answer = other.decide(KEEP)
    accepted = {"decision": "accept", "label": "dog", "tab": "t", "reviewer": "", "action": ""}
    assert status == 409 and answer["changed"]["39"] == {"line": 1, **accepted, "by": [["", "accept", "dog"]]}
    status, answer = other.decide({**KEEP, "over": 1, "since": 1, "tab": "u"})
    kept = {"decision": "keep", "label": None, "tab": "u", "reviewer": "", "action": "", "by": [["", "keep", None]]}
    assert status == 200 and answer["changed"] == {"39": {"line": 2, **kept}}
    assert json.loads(one.send("/changes?since=1")[1]) == answer
    assert [(line["decision"], line["label"], line["tab"]) for line in logged_decisions(run)] == [
        ("accept", "dog", "t"),
        ("keep", None, "u"),
    ]


def test_killed_server_has_saved_every_decision_that_it_answered(tmp_path, serve):
    run = make_audited_run(tmp_path / "run", 2000, 2000, text="a text")
    server, answered = serve(run), []

    def decide_until_killed(client, several):
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                request = {**KEEP, "index": len(answered), "decision": "unsure"}
                assert client.decide(request)[0] == 200
                answered.append(request["index"])
                if len(answered) % 7 == 0:
                    several.set()

    for _ in range(2):
        several = threading.Event()
        writer = threading.Thread(target=decide_until_killed, args=[Client(server.url), several])
        writer.start()
        assert several.wait(TIMEOUT)
        server.kill()
        writer.join()
        server = serve(run)
        saved = [line["index"] for line in logged_decisions(run)]
        assert saved[: len(answered)] == answered and len(saved) <= len(answered) + 1  # the last may be unanswered
        answered[:] = saved
