"""A review from its start to Ctrl-C."""

import contextlib
import json
import os
import secrets
import shlex
import sys
import threading
import webbrowser
from pathlib import Path

from labelsieve.files import audited_alone
from labelsieve.review.desk import Desk
from labelsieve.review.export import train_again
from labelsieve.review.server import Server
from labelsieve.text import printable


def review(run: Path, port: int | None = None, browser: bool = True) -> None:
    """Serve the page until Ctrl-C, and say how many decisions there are and what to do with them."""
    desk = Desk(run)
    with Server(desk, secrets.token_urlsafe(24), port) as server, contextlib.suppress(KeyboardInterrupt):
        print(f"{desk.tally().left:,} suspects to look at: {server.url}")
        print("each decision is saved at once; Ctrl-C ends the page", flush=True)
        if browser and has_screen():
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        server.serve_forever()
    print()  # ends the line that shows ^C
    print("\n".join(map(printable, farewell(desk))))


def farewell(desk: Desk) -> list[str]:
    """What was saved where, and what to do next."""
    decided, unsure, changed, left = desk.tally()
    run = shlex.quote(str(desk.run))
    if not decided and not unsure:
        return ["no decisions were made", f"begin again: labelsieve review {run}"]
    reviewed = shlex.quote(str(desk.log.path.with_name("reviewed.csv")))
    doubtful = f"{unsure:,} unsure; " if unsure else ""
    return [
        f"saved in {desk.log.path}: {decided:,} decided, {changed:,} of them changed; {doubtful}{left:,} suspects left",
        *([f"go on:    labelsieve review {run}"] if left else []),
        f"use them: labelsieve review {run} --export {reviewed}",
        *([f"          {go_on}"] if (go_on := again(desk.run, desk.log.path.with_name("reviewed.csv"))) else []),
    ]


def again(run: Path, reviewed: Path) -> str:
    """The command that trains as the run was trained, with the reviewed labels; empty where no data is known."""
    if audited_alone(run):
        data = json.loads((run / "summary.json").read_bytes()).get("made", {}).get("data")
        return shlex.join(train_again(str(run), "", {"data": data}, str(reviewed))) if data else ""
    try:
        spec = json.loads((run / "spec.json").read_bytes())
        return shlex.join(train_again(str(run), spec.get("command", ""), spec["experiment"], str(reviewed)))
    except (OSError, ValueError, KeyError, TypeError):
        return shlex.join(train_again(str(run), "", {"data": "DATA"}, str(reviewed)))


def has_screen() -> bool:
    """Without one, a browser would be a text browser in this very terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
