"""Sweeps on Ray: on a real local cluster of two workers; runs that die are repeated, with the same results."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.ray_nodes import rows, running
from labelsieve.errors import InputError, Stopped
from labelsieve.runs.execute import run, versions
from labelsieve.runs.folder import RunFolder
from labelsieve.runs.spec import Experiment
from labelsieve.sweep.ray import check_versions, resources, run_remotely, save_run, too_large
from labelsieve.sweep.sweep import folder_of, sweep


def experiment(data, seed, method="mentornet-prop", **more):
    settings = {"noise": "pair", "rate": 0.3, "noise_rate": 0.3, "model": "small", "epochs": 40, "warmup": 1}
    return Experiment(data=data, method=method, seed=seed, **{"batch": 32, **settings, **more})


def parent(process):
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds a worker's node in /proc")
def test_killed_workers_and_machines_do_not_change_results(data, cluster, place, tmp_path, capfd):
    good = [experiment(data, seed, method) for seed in range(3) for method in ("default", "co-teaching")]
    bad, missing, wide = experiment(data, 0, lr=1e30), experiment("missing.npz", 0), experiment(data, 0, threads=64)
    handler, killed = signal.getsignal(signal.SIGTERM), []

    def kill():
        worker, _ = running(place)
        os.kill(worker, signal.SIGKILL)
        other, _ = running(place, besides=[worker])
        node = parent(other)
        for process in (node, other):
            os.kill(process, signal.SIGKILL)
        killed.extend([worker, other, node])

    killer = threading.Thread(target=kill)
    killer.start()
    root, said, counts = tmp_path / "ray", [], []
    failed = sweep([*good, bad, missing, wide], root, lambda *now: counts.append(now), say=said.append, on=cluster)
    killer.join()
    assert len(killed) == 3 and capfd.readouterr() == ("", "")
    before, *after = said
    assert before == "on Ray: 2 CPUs and 0 GPUs, machines: 3"
    assert after in ([], ["on Ray: 1 CPUs and 0 GPUs, machines: 2"])  # Ray may see it after the last run has ended
    assert counts[-1] == (6, 9) and counts == sorted(counts)
    assert signal.getsignal(signal.SIGTERM) is handler

    assert set(failed) == {bad, missing, wide}
    assert "diverged" in failed[bad] and "missing.npz" in failed[missing]
    assert failed[wide] == "no machine of the cluster has 64 CPUs"
    assert {path.name for path in root.iterdir()} == {e.name() for e in good}
    for e in good:
        here, there = folder_of(e, tmp_path / "here"), folder_of(e, root)
        run(e, here)
        assert rows(here) == rows(there)
        for name in ("model.safetensors", "tables.safetensors", "spec.json"):
            assert (here / name).read_bytes() == (there / name).read_bytes()
        assert {f.name for f in here.iterdir()} == {f.name for f in there.iterdir()}


def test_signal_ends_the_sweep_and_finished_runs_are_kept(data, place, tmp_path):
    short, long = experiment(data, 0, epochs=2), experiment(data, 1, epochs=4000)
    root = tmp_path / "runs"

    def report(done, total):
        if done == 1 and list(place.glob(f"labelsieve-*/{long.name()}/record.jsonl")):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped, match="Ctrl-C with all finished runs saved"):
        sweep([short, long], root, report, on="ray")
    assert [path.name for path in root.iterdir()] == [short.name()]
    assert (folder_of(short, root) / "done").exists()
    assert not list(place.glob("labelsieve-*"))  # the worker of the other run has cleaned up


def test_interrupted_run_is_replaced(data, tmp_path):
    e = experiment(data, 0, epochs=3)
    files = run_remotely(e, str(Path.cwd()), versions())
    run(e, tmp_path / "alone")
    with RunFolder(tmp_path / "cut") as folder:
        folder.claim(e, json.loads(files["spec.json"])["data"], versions())
        folder.record.append({"event": "start"})
        folder.checkpoints.save(1, {}, {})
    save_run(files, e, tmp_path / "cut")
    assert rows(tmp_path / "cut") == rows(tmp_path / "alone")
    assert {f.name for f in (tmp_path / "cut").iterdir()} == {f.name for f in (tmp_path / "alone").iterdir()}
    with pytest.raises(InputError, match="holds another run: it was trained with --seed 0, not with --seed 1"):
        save_run(files, experiment(data, 1, epochs=3), tmp_path / "cut")


def test_partly_written_folder_starts_again(data, tmp_path, monkeypatch):
    e = experiment(data, 0, epochs=3)
    files = run_remotely(e, str(Path.cwd()), versions())
    monkeypatch.setattr(RunFolder, "finish", lambda folder: None)
    save_run(files, e, tmp_path / "cut")
    monkeypatch.undo()
    assert run(e, tmp_path / "cut")
    run(e, tmp_path / "alone")
    assert rows(tmp_path / "cut") == rows(tmp_path / "alone")


def test_missing_ray_is_a_one_line_error(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"^several machines need Ray; run pip install 'labelsieve\[ray\]'$"):
        sweep([experiment(data, 0)], tmp_path, on="ray")


def test_ray_is_imported_only_if_requested():
    code = "import sys, labelsieve.cli, labelsieve.sweep.ray as it; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_resources_of_a_run_and_machines_that_fit():
    cpu, gpu = Experiment(threads=4), Experiment(device="cuda")
    assert resources(cpu, 3) == {"num_cpus": 4, "num_gpus": 0}
    assert resources(gpu, None) == {"num_cpus": 1, "num_gpus": 1}
    assert resources(gpu, 4) == {"num_cpus": 1, "num_gpus": 0.25}
    machines = [{"CPU": 8.0}, {"CPU": 2.0, "GPU": 1.0}]
    assert too_large(resources(cpu, None), machines) is None and too_large(resources(gpu, None), machines) is None
    both = resources(Experiment(device="cuda", threads=4), None)
    assert too_large(both, machines) == "no machine of the cluster has 4 CPUs and a GPU"


def test_other_versions_are_refused():
    here = {"labelsieve": "1.0", "torch": "2.13.0+cpu", "python": "3.11.7"}
    check_versions(here, {**here, "torch": "2.13.0+cu130", "python": "3.12.1"})
    with pytest.raises(InputError, match=r"a worker has torch 2\.12\.0, this machine 2\.13\.0"):
        check_versions(here, {**here, "torch": "2.12.0"})
