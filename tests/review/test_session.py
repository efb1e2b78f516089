"""A review session from start to Ctrl-C."""

import json
import signal
import subprocess
import sys
from urllib.parse import urlsplit

from labelsieve.cli import execute
from tests.review.conftest import KEEP, TIMEOUT, Client


def test_ctrl_c_before_the_page_is_served_ends_the_session(run, monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("labelsieve.review.session.has_display", interrupt)
    assert execute(["review", str(run)]) == 0
    assert "no decisions were made" in capsys.readouterr().out


def test_ctrl_c_prints_where_decisions_are_saved_and_the_next_commands(run, serve):
    command = "labelsieve train 'my photos' --labels old.csv --skip-bad --out run --seed 3"
    (run / "spec.json").write_text(json.dumps({"experiment": {"data": "my photos"}, "command": command}))
    (run / "done").touch()
    server = serve(run)
    client = Client(server.url)
    assert client.decide({**KEEP, "decision": "accept"})[0] == client.decide({**KEEP, "index": 38})[0] == 200
    server.send_signal(signal.SIGINT)
    output, _ = server.communicate(timeout=TIMEOUT)
    assert server.returncode == 0
    assert f"saved in {run / 'review' / 'decisions.jsonl'}: 2 decided (1 changed), 33 suspects left" in output
    reviewed = run / "review" / "reviewed.csv"
    assert f"continue:      labelsieve review {run}\n" in output
    assert f"labelsieve review {run} --export {reviewed}" in output
    assert f"labelsieve train 'my photos' --skip-bad --seed 3 --labels {reviewed} --out {run}-reviewed\n" in output


def test_port_in_use_is_an_error(run, serve, capsys):
    port = urlsplit(serve(run).url).port
    assert execute(["review", str(run), "--no-browser", "--port", str(port)]) == 2
    assert "omit --port to use a free port" in capsys.readouterr().err


def test_review_does_not_import_torch():
    code = "import sys, labelsieve.review.session, labelsieve.review.export; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
