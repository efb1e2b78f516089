"""Kill one node of a Ray cluster in the middle of a sweep, and compare the results with those of a serial sweep.

    python -m tests.sweep.two_nodes

starts a real cluster of two nodes with `ray start` on the addresses 127.0.0.2 and 127.0.0.3 of this machine, runs
`labelsieve compare --on ray:127.0.0.2:PORT` in a process, kills the second node (its raylet, with SIGKILL) while a run
trains there, and runs the same comparison with `--on here`. It ends with exit code 1 if records, models, tables or
specifications differ. It takes minutes, so it is run by hand; only its own processes are ended.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import save_blobs
from tests.sweep.test_ray import a_running_process, parent, rows

HEAD, SECOND = "127.0.0.2", "127.0.0.3"
BIN = Path(sys.executable).parent
MARK = "LABELSIEVE_TWO_NODES"  # in the environment of every process of the cluster
COMPARED = ("model.safetensors", "tables.safetensors", "samples.safetensors", "spec.json")
METHODS, SEEDS, EPOCHS = "default,mentornet-prop", 3, 40


def start_node(arguments: list[str], environment: dict[str, str], place: Path) -> None:
    """Start a node whose workers have their temporary files in a folder of its own."""
    place.mkdir()
    command = [BIN / "ray", "start", "--num-cpus=1", "--disable-usage-stats", *arguments]
    done = subprocess.run(command, env={**environment, "TMPDIR": str(place)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def end_marked(mark: str) -> int:
    """Kill every process with the mark in its environment; return their number."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
                count += 1
        except OSError:
            continue  # ended meanwhile, or of another user
    return count


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HEAD, 0))
        return int(listener.getsockname()[1])


def compare(data: Path, out: Path, on: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start `labelsieve compare`."""
    words = ["compare", str(data), "--methods", METHODS, "--noise", "pair", "--rate", "0.3", "--seeds", str(SEEDS)]
    words += ["--model", "small", "--epochs", str(EPOCHS), "--warmup", "1", "--batch", "32", "--device", "cpu"]
    command = [sys.executable, "-m", "labelsieve", *words, "--out", str(out), "--on", on]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def main() -> None:
    folder, mark = Path(tempfile.mkdtemp(prefix="ray2")), secrets.token_hex(8)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = {**os.environ, **token, "RAY_USAGE_STATS_ENABLED": "0"}
    marked = {**environment, MARK: mark}
    data, port = save_blobs(folder / "data.npz", 300, test=60), free_port()
    temporary = ["--temp-dir", str(folder / "ray")]
    try:
        head = ["--head", f"--node-ip-address={HEAD}", f"--port={port}", "--include-dashboard=false", *temporary]
        start_node(head, marked, folder / "one")
        start_node([f"--address={HEAD}:{port}", f"--node-ip-address={SECOND}"], marked, folder / "two")
        began = time.perf_counter()
        sweep = compare(data, folder / "on-ray", f"ray:{HEAD}:{port}", environment)
        worker = a_running_process(folder / "two")
        node = parent(worker)
        finished = len(list((folder / "on-ray").glob("*/done")))
        for process in (node, worker):
            os.kill(process, signal.SIGKILL)
        said = sweep.communicate()[1]
        seconds = time.perf_counter() - began
        assert sweep.returncode == 0, said
        print(f"killed raylet {node} and its worker with {finished} runs finished; the sweep took {seconds:.0f} s")
        print("\n".join(line for line in said.splitlines() if line.startswith("on Ray")))
    finally:
        print(f"{end_marked(mark)} processes of the cluster ended")
    serial = compare(data, folder / "here", "here", environment)
    assert serial.communicate()[1] is not None and serial.returncode == 0
    runs = sorted(path.parent.name for path in (folder / "here").glob("*/done"))
    assert len(runs) == len(METHODS.split(",")) * SEEDS
    different = [
        f"{run}/{name}"
        for run in runs
        for name in COMPARED
        if (folder / "here" / run / name).read_bytes() != (folder / "on-ray" / run / name).read_bytes()
    ]
    different += [f"{run}/record.jsonl" for run in runs if rows(folder / "here" / run) != rows(folder / "on-ray" / run)]
    print(json.dumps({"runs": len(runs), "files compared": len(runs) * (1 + len(COMPARED)), "different": different}))
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
