"""A review session: serve the page until Ctrl-C, then print what was saved and the next commands."""

import contextlib
import os
import secrets
import shlex
import sys
import threading
import webbrowser
from pathlib import Path

from labelsieve.errors import InputError
from labelsieve.review.export import retrain_command
from labelsieve.review.server import ReviewServer
from labelsieve.review.state import ReviewState
from labelsieve.runs.read import is_separate_audit, plain_command, read_json
from labelsieve.text import printable


def serve_review(run: Path, port: int | None = None, browser: bool = True) -> None:
    """Serve the review page of a run until Ctrl-C.

    Args:
        run: folder of a run, or of an audit without a run.
        port: port on 127.0.0.1; a free one by default.
        browser: open the page in the default browser.
    """
    state = ReviewState(run)
    with ReviewServer(state, secrets.token_urlsafe(24), port) as server, contextlib.suppress(KeyboardInterrupt):
        print(f"{state.counts().left:,} suspects to review: {server.url}")
        print("Each decision is saved immediately. Press Ctrl-C to stop.", flush=True)
        if browser and has_display():
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        server.serve_forever()
    print()  # end the line with ^C
    print("\n".join(map(printable, closing_lines(state))))


def closing_lines(state: ReviewState) -> list[str]:
    """Return the lines printed at the end: what was saved, and commands to continue and to use the decisions."""
    decided, unsure, changed, left = state.counts()
    run = shlex.quote(str(state.run))
    if not decided and not unsure:
        return ["no decisions were made", f"start again: labelsieve review {run}"]
    reviewed = state.log.path.with_name("reviewed.csv")
    not_sure = f"{unsure:,} unsure, " if unsure else ""
    return [
        f"saved in {state.log.path}: {decided:,} decided ({changed:,} changed), {not_sure}{left:,} suspects left",
        *([f"continue:      labelsieve review {run}"] if left else []),
        f"export labels: labelsieve review {run} --export {shlex.quote(str(reviewed))}",
        *([f"train on them: {command}"] if (command := retrain_line(state.run, reviewed)) else []),
    ]


def retrain_line(run: Path, labels: Path) -> str:
    """Return the command that repeats a run's training with a label file; empty for an audit of unknown data."""
    if is_separate_audit(run):
        data = read_json(run / "summary.json").get("made", {}).get("data")
        return shlex.join(retrain_command(str(run), "", {"data": data}, str(labels))) if data else ""
    try:
        head = read_json(run / "spec.json")
    except InputError:
        head = {}
    command, spec = plain_command(str(head.get("command", ""))), head.get("experiment")
    return shlex.join(retrain_command(str(run), command, spec if isinstance(spec, dict) else {}, str(labels)))


def has_display() -> bool:
    """Return whether a graphical browser can open; a text browser would take over this terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
