"""Kill real processes at random moments (kill -9), start them again, and compare the end with that of an unbroken run.

    python -m tests.fuzz.kills --minutes 10 --seed 0 --record kills.json

Trainings are killed again and again until they have finished: one with selection, one of several rounds (selfie), an
automatic one, one on the features of a pretrained network, a sweep (the command or one of its workers is killed), and
one of two processes that torchrun starts (one of the two is killed). Reviews are killed while decisions are sent; every
decision that was acknowledged must be on disk.

A kill comes when the processes of a command have used a random amount of CPU time, so that the load of the machine has
no influence on how far they have come. Linux only: CPU times are read from /proc.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from labelsieve.catalogue import default_backbone
from labelsieve.review.decisions import DecisionLog, decisions_path
from tests.conftest import save_blobs, without_resumes
from tests.fuzz.confined import quietly
from tests.fuzz.record import FAILURES, add
from tests.fuzz.seeds import seed_run

LABELSIEVE = (sys.executable, "-m", "labelsieve")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *LABELSIEVE[1:])
FILES = (
    *("model.safetensors", "samples.safetensors", "tables.safetensors", "judgment.safetensors"),
    *("targets.npy", "corrected.npy", "labels.csv", "table.md"),
)
POLL = 0.05  # seconds
KILLS = 6  # of one training at most; then it may finish
EARLIEST, LATEST = 0.9, 0.7  # bounds of the moments: share of the time before the first file, and of that after it


class Started(NamedTuple):
    """A command that runs, and the file of what it prints."""

    process: "subprocess.Popen[str]"
    log: Path

    def end(self) -> tuple[int, str]:
        """Wait until it ends; return its exit code and what it printed."""
        return self.process.wait(), self.log.read_text(errors="replace")


class Member(NamedTuple):
    """A process of a command."""

    parent: int
    seconds: float  # of CPU, with those of its ended children
    words: str  # its command line


class Kind(NamedTuple):
    """A command to kill."""

    words: tuple[str, ...]  # DATA stands for a file
    program: tuple[str, ...] = LABELSIEVE
    victims: Callable[[int, dict[int, Member]], list[int]] = lambda root, family: [root]
    fails: bool = False  # it may end with an error if one of its processes is killed


def workers(root: int, family: dict[int, Member]) -> list[int]:
    """Return the command and the processes that train for it."""
    return [pid for pid, member in family.items() if pid == root or "spawn_main" in member.words]


def ranks(root: int, family: dict[int, Member]) -> list[int]:
    """Return the processes that torchrun has started."""
    return [pid for pid, member in family.items() if member.parent == root and "labelsieve" in member.words]


SMALL = ("--model", "small", "--lr", "0.05", "--batch", "16")
GIVEN = (*SMALL, "--noise-rate", "0.2")
ONE = ("--threads", "1")
KINDS = {
    "plain": Kind(("train", "DATA", "--epochs", "60", "--warmup", "10", *GIVEN, *ONE)),
    "selfie": Kind(("train", "DATA", "--method", "selfie", "--epochs", "20", "--warmup", "5", *GIVEN, *ONE)),
    "automatic": Kind(("train", "DATA", "--epochs", "8", "--warmup", "3", *SMALL, *ONE)),
    "embedding": Kind(("train", "photos", "--noise", "symmetry", "--rate", "0.2", "--noise-rate", "auto", *ONE)),
    "sweep": Kind(
        ("compare", "DATA", "--methods", "default,selfie", "--seeds", "2", "--epochs", "20", "--warmup", "5", *GIVEN),
        victims=workers,
        fails=True,
    ),
    "ranks": Kind(("train", "DATA", "--epochs", "30", "--warmup", "5", *GIVEN, *ONE), TORCHRUN, ranks, fails=True),
}
REVIEW = "review"


def start(kind: Kind, data: Path, out: Path, cache: Path) -> Started:
    """Start a command that writes to a folder."""
    words = [str(data) if word == "DATA" else word for word in kind.words]
    return launch([*kind.program, *words, "--out", str(out)], out.with_name(f"{out.name}.log"), cache)


def launch(command: list[str], log: Path, cache: Path) -> Started:
    environment = {**os.environ, "LABELSIEVE_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
        )
    return Started(process, log)


def family_of(root: int) -> dict[int, Member]:
    """Return a process and its descendants that live, by process id."""
    every: dict[int, tuple[int, float]] = {}  # parent and CPU seconds
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            state, *numbers = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if state != "Z":
                ticks = sum(map(int, numbers[10:14]))  # user, system, and both of its ended children
                every[int(folder.name)] = (int(numbers[0]), ticks / os.sysconf("SC_CLK_TCK"))
    found = {root} & every.keys()
    while more := {pid for pid, (parent, _) in every.items() if parent in found} - found:
        found |= more
    return {pid: Member(*every[pid], _words(pid)) for pid in found}


def _words(pid: int) -> str:
    """Return the command line of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def measured(started: Started, out: Path) -> tuple[float, float]:
    """Return the CPU seconds of a command until its folder exists, and until its end."""
    begun = spent = 0.0
    while started.process.poll() is None:
        spent = max(spent, sum(member.seconds for member in family_of(started.process.pid).values()))
        begun = begun or (spent if out.exists() else 0.0)
        time.sleep(POLL)
    code, printed = started.end()
    assert code == 0, printed
    return begun, spent


def kill_at(process: "subprocess.Popen[str]", moment: float, kind: Kind, chance: random.Random) -> bool:
    """Kill a process of a command when all have used this much CPU time; return False if the command ended before."""
    while process.poll() is None:
        family = family_of(process.pid)
        victims = kind.victims(process.pid, family)
        if victims and sum(member.seconds for member in family.values()) >= moment:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(sorted(victims)), signal.SIGKILL)
                return True
        time.sleep(POLL)
    return False


def kill_until_finished(
    kind: Kind, begin: Callable[[], Started], span: tuple[float, float], chance: random.Random
) -> int:
    """Kill a command at random moments and resume it until it has finished; return the number of kills."""
    begun, spent = span
    kills = 0
    while True:
        started, before = begin(), kills
        moment = chance.uniform(EARLIEST * begun, begun + LATEST * (spent - begun))
        while kills < KILLS and kill_at(started.process, moment, kind, chance):
            kills += 1
            moment += chance.uniform(0, LATEST * (spent - begun))  # a sweep goes on without its worker
        code, printed = started.end()
        if code == 0:
            return kills
        errors = [line for line in printed.splitlines() if line.startswith("error: ")]
        told = kind.fails and len(errors) <= 1  # another process says it, unless it has not begun
        assert kills > before and (code == -signal.SIGKILL or told), printed


def ending(run: Path) -> dict[str, object]:
    """Return all results in a run folder that do not depend on time."""
    found: dict[str, object] = {}
    for file in sorted(run.rglob("*")):
        if file.name in FILES:
            found[str(file.relative_to(run))] = file.read_bytes()
        elif file.name == "record.jsonl":
            found[str(file.relative_to(run))] = without_resumes(file.parent)
    found["checkpoints"] = [str(folder) for folder in run.rglob("checkpoints")]
    return found


def kill_review(run: Path, cache: Path, chance: random.Random) -> int:
    """Send decisions until the server is killed, and check that every acknowledged one is on disk; return how many."""
    started = launch([*LABELSIEVE, "review", str(run), "--no-browser"], run.with_name("review.log"), cache)
    while not (url := re.search(r"http://\S+(?=\s)", started.log.read_text())):
        assert started.process.poll() is None, started.end()
        time.sleep(POLL)
    threading.Timer(chance.uniform(0.01, 0.5), started.process.kill).start()
    base, token = url[0].split("?")
    known = len(DecisionLog(decisions_path(run)).decisions())
    over: dict[int, int | None] = {}
    acknowledged = known
    try:
        with urllib.request.urlopen(f"{base}samples?{token}") as reply:
            page = json.loads(reply.read())
        over = {sample["index"]: None for sample in page["samples"]}
        over |= {int(index): made and made["line"] for index, made in page["changed"].items()}
        for index in itertools.cycle(list(over)):
            body = {"index": index, "decision": "keep", "tab": "t", "since": acknowledged, "over": over[index]}
            request = urllib.request.Request(f"{base}decide?{token}", json.dumps(body).encode())
            request.add_header("Content-Type", "application/json")
            request.add_header("Origin", base.rstrip("/"))
            with urllib.request.urlopen(request) as reply:
                answer = json.loads(reply.read())
            acknowledged = over[index] = answer["version"]
    except (http.client.HTTPException, OSError, ValueError):  # killed
        pass
    code, printed = started.end()
    assert code == -signal.SIGKILL, printed
    written = len(DecisionLog(decisions_path(run)).decisions())
    assert written in (acknowledged, acknowledged + 1), f"{acknowledged} decisions acknowledged, {written} on disk"
    return acknowledged - known


class Campaign:
    """Runs that are killed in a folder, what unbroken ones give, and how long these take."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.chance = place, random.Random(seed)
        self.data = save_blobs(place / "data.npz", 200, wrong=0.2, test=20)
        self.whole: dict[str, tuple[dict[str, object], tuple[float, float]]] = {}
        self.number = 0

    def attack(self, name: str) -> dict[str, int]:
        """Kill the commands of a kind, and return what was done."""
        return self._review() if name == REVIEW else self._train(name)

    def _train(self, name: str) -> dict[str, int]:
        if name not in self.whole:
            out = self.place / name
            span = measured(start(KINDS[name], self.data, out, self.place / "cache"), out)
            self.whole[name] = (ending(out), span)
        self.number += 1
        wanted, span = self.whole[name]
        run, cache = (self.place / f"{each}-{self.number}" for each in (name, "cache"))
        kills = kill_until_finished(KINDS[name], lambda: start(KINDS[name], self.data, run, cache), span, self.chance)
        found = ending(run)
        different = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
        assert not different, f"after {kills} kills {', '.join(different)} differs"
        shutil.rmtree(run)
        return {"ended_equal": 1, "kills": kills}

    def _review(self) -> dict[str, int]:
        reviewed = self.place / "reviewed"
        if not reviewed.exists():
            shutil.copytree(seed_run("finished"), reviewed)
            (reviewed / "review" / "decisions.jsonl").unlink()
        kills = 5
        decisions = sum(kill_review(reviewed, self.place / "cache", self.chance) for _ in range(kills))
        code, _, errors = quietly(["review", str(reviewed), "--export", str(self.place / "out.csv")])
        assert code == 0, errors
        return {"kills": kills, "decisions_kept": decisions}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="begin nothing new after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=[*KINDS, REVIEW], default=[*KINDS, REVIEW], metavar="KIND")
    parser.add_argument("--record", type=Path, help="JSON file to which the results are added")
    options = parser.parse_args()
    kinds = [kind for kind in options.only if kind != "embedding" or default_backbone("images")]
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        campaign, record = Campaign(Path(folder), options.seed), options.record or Path(folder) / "record.json"
        failures = 0
        for kind in itertools.cycle(kinds):
            if time.monotonic() > end:
                break
            try:
                found = add(record, kind, **campaign.attack(kind))
            except AssertionError as error:
                found = add(record, kind, failure=str(error))
                failures += 1
            print(found["kinds"], *found[FAILURES], flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
