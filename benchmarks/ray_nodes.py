"""Kill one of two nodes of a Ray cluster in the middle of a sweep, and compare the results with a serial sweep.

    python -m benchmarks.ray_nodes

starts a cluster of two nodes with `ray start` on 127.0.0.1, runs `labelsieve compare --on ray:127.0.0.1:PORT`, kills
all processes of the second node with SIGKILL while a run trains there, and trains the same runs here, one after the
other. Models, tables and specifications of all runs must be equal byte for byte, and records apart from durations. Then
it runs the command with addresses at which no cluster answers. It writes benchmarks/results/ray.json, and ends with
exit code 1 if files differ, or if an address is not refused with one line within 30 seconds. It takes a few minutes,
connects to 127.0.0.1 only, and ends only the processes that it started.
"""

import json
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import commit_of

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "ray.json"
HOST = "127.0.0.1"
MARK = "LABELSIEVE_RAY_NODE"  # in the environment of every process of the cluster
METHODS, SEEDS, EPOCHS = ("default", "mentornet-prop", "co-teaching"), 2, 40
SETTINGS = [
    *("--noise", "pair", "--rate", "0.3", "--model", "small", "--epochs", str(EPOCHS), "--warmup", "1"),
    *("--batch", "32", "--device", "cpu"),
]
SWEEP = ["--methods", ",".join(METHODS), "--seeds", str(SEEDS), *SETTINGS]
COMPARED = ("record.jsonl", "model.safetensors", "tables.safetensors", "samples.safetensors", "spec.json")
PATIENCE = 400  # seconds to wait for a run, and for a sweep; workers start slowly on a busy machine
LIMIT = 30  # seconds in which an address without a cluster must be refused


def write_data(path: Path) -> None:
    """Write noisy images of four classes; the position of a bright spot is the class."""
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for prefix, count in {"": 300, "test_": 60}.items():
        labels = np.arange(count) % 4
        images = random.integers(0, 120, (count, 8, 8, 1)).astype(np.uint8)
        images[np.arange(count), labels, 2 * labels] = 255
        arrays |= {f"{prefix}images": images, f"{prefix}labels": labels}
    np.savez(path, **arrays)


# --- the cluster


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def start_node(arguments: list[str], environment: dict[str, str], mark: str, place: Path) -> None:
    """Start a node of one CPU whose processes have a mark, and their temporary files in a folder of their own."""
    place.mkdir()
    ray = str(Path(sys.executable).parent / "ray")
    command = [ray, "start", f"--node-ip-address={HOST}", "--num-cpus=1", *arguments]
    marked = {**environment, MARK: mark, "TMPDIR": str(place)}
    done = subprocess.run(command, env=marked, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def end_marked(mark: str) -> int:
    """Kill every process whose mark begins with this one; return their number."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
                count += 1
        except OSError:
            continue  # ended meanwhile, or of another user
    return count


def running(place: Path, besides: Collection[int] = ()) -> tuple[int, int]:
    """Wait for a run in the middle of its training on a node; return its process and its number of epochs."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        for record in place.glob("labelsieve-*/*/record.jsonl"):
            epochs = record.read_bytes().count(b'"epoch"')
            if 3 < epochs < 30 and (lock := record.with_name("lock")).exists():
                process = int(lock.read_text())
                if process not in besides:
                    return process, epochs
        time.sleep(0.01)
    raise AssertionError("no run was seen in the middle of its training")


# --- the sweeps


def start(folder: Path, words: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    """Start `labelsieve compare` with these options."""
    command = [sys.executable, "-m", "labelsieve", "compare", "data.npz", *words]
    output = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=output, stderr=output)


def finish(sweep: "subprocess.Popen[str]") -> str:
    """Wait for a sweep that must succeed; return its messages."""
    try:
        _, messages = sweep.communicate(timeout=PATIENCE)
    finally:
        sweep.kill()
    assert sweep.returncode == 0, messages
    return messages


def sweep_with_a_kill(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Run the sweep on two nodes, of which one is killed; return what happened."""
    mark, port = secrets.token_hex(8), free_port()
    head = ["--head", f"--port={port}", "--include-dashboard=false", "--temp-dir", str(folder / "ray")]
    try:
        start_node(head, environment, f"{mark}-first", folder / "first")
        start_node([f"--address={HOST}:{port}"], environment, f"{mark}-second", folder / "second")
        began = time.perf_counter()
        words = [*SWEEP, "--out", "on-ray", "--on", f"ray:{HOST}:{port}"]
        sweep = start(folder, words, {**environment, MARK: f"{mark}-sweep"})
        _, epochs = running(folder / "second")
        finished = len(list((folder / "on-ray").glob("*/done")))
        killed = end_marked(f"{mark}-second")
        messages = finish(sweep)
        return {
            "epochs of the run on the killed node": epochs,
            "runs finished before": finished,
            "processes killed": killed,
            "seconds": round(time.perf_counter() - began, 1),
            "messages": [line for line in messages.splitlines() if line.startswith("on Ray")],
        }
    finally:
        end_marked(mark)


def train_serially(folder: Path, environment: dict[str, str]) -> None:
    """Train every run of the sweep in a command of its own, one after the other."""
    for method, seed in product(METHODS, range(SEEDS)):
        one = ["--methods", method, "--seeds", "1", "--first-seed", str(seed)]
        finish(start(folder, [*one, *SETTINGS, "--out", "serial"], environment))


def content(file: Path) -> Any:
    """Return the bytes of a file, or the rows of a record."""
    return rows(file.parent) if file.name == "record.jsonl" else file.read_bytes()


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a record without durations, which differ between equal runs."""
    lines = map(json.loads, (run / "record.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def compare_folders(one: Path, other: Path) -> dict[str, Any]:
    """Compare the files of all runs of two sweeps."""
    runs = sorted(path.parent.name for path in one.glob("*/done"))
    assert len(runs) == len(METHODS) * SEEDS
    files = [f"{run}/{name}" for run in runs for name in COMPARED]
    different = [file for file in files if content(one / file) != content(other / file)]
    return {"runs": len(runs), "files of a run": COMPARED, "files": len(files), "different": different}


# --- addresses at which no cluster answers


def refusal(folder: Path, on: str, environment: dict[str, str]) -> dict[str, Any]:
    """Run the sweep with an address at which no cluster answers; return the seconds and what it printed."""
    began = time.perf_counter()
    sweep = start(folder, [*SWEEP, "--out", "refused", "--on", on], environment)
    printed = "".join(sweep.communicate(timeout=PATIENCE))
    seconds = round(time.perf_counter() - began, 1)
    line = printed.strip().replace(on.rpartition(":")[2], "PORT")
    right = sweep.returncode == 2 and printed.count("\n") == 1 and seconds < LIMIT
    return {"seconds": seconds, "exit code": sweep.returncode, "printed": line, "as promised": right}


def refusals(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Try a port that is closed, and one where a program accepts connections and never answers."""
    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen()
        addresses = {"closed port": free_port(), "port of another program": silent.getsockname()[1]}
        return {name: refusal(folder, f"ray:{HOST}:{port}", environment) for name, port in addresses.items()}


def about() -> dict[str, Any]:
    """Return date, machine, versions and commit."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load before": round(os.getloadavg()[0], 1),
        "versions": {name: version(name) for name in ("labelsieve", "torch", "ray")}
        | {"python": platform.python_version()},
        "commit": commit_of(),
    }


def main() -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**os.environ, **token, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("RAY_ADDRESS", None)
    record = about() | {"command": " ".join(["labelsieve compare data.npz", *SWEEP, "--on", f"ray:{HOST}:PORT"])}
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        write_data(folder / "data.npz")
        record["killed"] = sweep_with_a_kill(folder, environment)
        train_serially(folder, environment)
        record["compared"] = compare_folders(folder / "serial", folder / "on-ray")
        record["nobody answers"] = refusals(folder, environment)
    print(json.dumps(record, indent=1))
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    good = all(each["as promised"] for each in record["nobody answers"].values())
    sys.exit(bool(record["compared"]["different"]) or not good)


if __name__ == "__main__":
    main()
