"""Kill real processes at random moments (kill -9), start them again, and compare the end with that of an unbroken run.

    python -m tests.fuzz.kills --minutes 10 --seed 0

Trainings are killed again and again until they have finished: one with selection, one of several rounds (selfie), an
automatic one, and one on the features of a pretrained network. Reviews are killed while decisions are sent; every
decision that was acknowledged must be on disk. A kill comes at a random moment after the process has begun to work.
"""

import argparse
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
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

from labelsieve.features.installed import default_backbone
from labelsieve.review.decisions import DecisionLog, decisions_path
from tests.conftest import save_blobs, without_resumes
from tests.fuzz.seeds import quietly, seed_run

SCRATCH = ("--model", "small", "--lr", "0.05", "--batch", "16", "--threads", "1")
TRAININGS = {
    "plain": ("--noise-rate", "0.2", "--epochs", "60", "--warmup", "10", *SCRATCH),
    "selfie": ("--method", "selfie", "--noise-rate", "0.2", "--epochs", "20", "--warmup", "5", *SCRATCH),
    "automatic": ("--epochs", "8", "--warmup", "3", *SCRATCH),
    "embedding": ("--noise", "symmetry", "--rate", "0.2", "--noise-rate", "auto", "--threads", "1"),
}
FILES = ("model.safetensors", "samples.safetensors", "tables.safetensors", "judgment.safetensors", "targets.npy")
KILLS = 6  # of one training at most; then it may finish


def start(argv: list[str], cache: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "LABELSIEVE_CACHE": str(cache)}
    command = [sys.executable, "-m", "labelsieve", *argv]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


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


def seconds_of(argv: list[str], cache: Path) -> float:
    """Run a command to its end and return how long it took."""
    began = time.monotonic()
    process = start(argv, cache)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return time.monotonic() - began


def kill_training(argv: list[str], run: Path, cache: Path, length: float, chance: random.Random) -> int:
    """Kill a training at random moments and resume it until it has finished; return the number of kills."""
    for kills in itertools.count():
        process = start([*argv, "--out", str(run)], cache)
        if kills < KILLS:
            time.sleep(chance.uniform(0.15, 0.6) * length)
            process.kill()
        output, _ = process.communicate()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, output
            return kills
    raise AssertionError


def kill_review(run: Path, cache: Path, chance: random.Random) -> int:
    """Send decisions until the server is killed, and check that every acknowledged one is on disk; return how many."""
    process = start(["review", str(run), "--no-browser"], cache)
    assert process.stdout is not None
    url = re.search(r"http://\S+", process.stdout.readline())[0]  # type: ignore[index]
    threading.Timer(chance.uniform(0.01, 0.5), process.kill).start()
    base, token = url.split("?")
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
    except (urllib.error.URLError, OSError, ValueError):  # killed
        pass
    process.communicate()
    written = len(DecisionLog(decisions_path(run)).decisions())
    assert written in (acknowledged, acknowledged + 1), f"{acknowledged} decisions acknowledged, {written} on disk"
    return acknowledged - known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=TRAININGS, default=list(TRAININGS), help="trainings to kill")
    options = parser.parse_args()
    chance, end, counts = random.Random(options.seed), time.monotonic() + 60 * options.minutes, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        data = save_blobs(place / "data.npz", 200, wrong=0.2, test=20)
        reviewed = place / "reviewed"
        shutil.copytree(seed_run("finished"), reviewed)
        (reviewed / "review" / "decisions.jsonl").unlink()
        whole: dict[str, tuple[dict[str, object], float]] = {}
        kinds = [kind for kind in options.only if kind != "embedding" or default_backbone("images")]
        for round_number in itertools.count():
            for kind in kinds:
                if time.monotonic() > end:
                    return
                argv = ["train", "photos" if kind == "embedding" else str(data), *TRAININGS[kind]]
                if kind not in whole:
                    length = seconds_of([*argv, "--out", str(place / kind)], place / "cache")
                    whole[kind] = (ending(place / kind), length)
                run, cache = place / f"{kind}-{round_number}", place / f"cache-{kind}-{round_number}"
                kills = kill_training(argv, run, cache, whole[kind][1], chance)
                assert ending(run) == whole[kind][0], f"{kind} ended differently after {kills} kills"
                counts += Counter({f"{kind} runs": 1, f"{kind} kills": kills})
                print(dict(counts), flush=True)
                shutil.rmtree(run)
            for _ in range(5):
                counts += Counter({"review kills": 1, "decisions": kill_review(reviewed, place / "cache", chance)})
                print(dict(counts), flush=True)
            code, _, errors = quietly(["review", str(reviewed), "--export", str(place / "out.csv")])
            assert code == 0, errors


if __name__ == "__main__":
    main()
