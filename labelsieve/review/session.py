"""A review session: serve the page until Ctrl-C, then print what was saved and the next commands."""

import os
import secrets
import shlex
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from labelsieve.errors import InputError
from labelsieve.review.decisions import MAX_NAME_LENGTH
from labelsieve.review.export import retrain_line
from labelsieve.review.server import ReviewServer
from labelsieve.review.state import ReviewState
from labelsieve.text import printable


def serve_review(
    runs: Sequence[Path],
    port: int | None = None,
    browser: bool = True,
    reviewer: str | None = None,
    data: str | None = None,
) -> None:
    """Serve the review page of runs until Ctrl-C.

    Args:
        runs: folders of runs, or of audits without a run.
        port: port on 127.0.0.1; a free one by default.
        browser: open the page in the default browser, if there is one.
        reviewer: name that is saved with decisions; without it, the page asks.
        data: where the data of the run is now, if it was moved.
    """
    if reviewer is not None and not 0 < len(reviewer.strip()) <= MAX_NAME_LENGTH:
        raise InputError(f"--reviewer needs a name of at most {MAX_NAME_LENGTH} characters")
    states = [ReviewState(run, data) for run in runs]
    with ReviewServer(states, secrets.token_urlsafe(24), port, reviewer) as server, suppress(KeyboardInterrupt):
        _serve(server, browser)
    print()  # end the line with ^C
    for state in states:
        print("\n".join(map(printable, closing_lines(state))))


def _serve(server: ReviewServer, browser: bool) -> None:
    """Print the address, open it and the data of the runs in the background, and serve until Ctrl-C."""
    left = sum(state.counts().left for state in server.states)
    print(f"{left:,} suspects to review: {server.url}")
    print("Each decision is saved immediately. Press Ctrl-C to stop.")
    if browser and has_display():
        threading.Thread(target=open_browser, args=(server.url,), daemon=True).start()
    else:
        tunnel = f"ssh -L {server.server_port}:127.0.0.1:{server.server_port} {socket.gethostname()}"
        print(f"Open this address in a browser on this machine; from another one, first run: {tunnel}")
    sys.stdout.flush()
    server.states[0].start()  # the others when their page is opened
    server.serve_forever()


def open_browser(url: str) -> None:
    """Open an address in the default browser; without one, the printed address is enough."""
    with suppress(webbrowser.Error, OSError):
        webbrowser.open(url)


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


def has_display() -> bool:
    """Return whether a graphical browser can open; a text browser would take over this terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
