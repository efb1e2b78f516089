"""Sweeps in processes: a failed or killed run does not lose the others, and a process decodes its data once."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from labelsieve.runs import data as data_module
from labelsieve.runs import execute
from labelsieve.runs.spec import Experiment
from labelsieve.sweep.sweep import Worker, count_done, folder_of, sweep


@pytest.fixture
def experiments(data) -> list[Experiment]:
    """Two short runs on the same data."""
    settings = {"noise": "pair", "rate": 0.4, "noise_rate": 0.4, "method": "default", "model": "small", "lr": 0.02}
    return [Experiment(data=data, batch=32, epochs=2, warmup=0, seed=seed, **settings) for seed in range(2)]


@pytest.fixture(autouse=True)
def fresh_worker(monkeypatch):
    monkeypatch.setattr(Worker, "shelf", None)
    monkeypatch.setattr(Worker, "loaded", None)


def test_bug_in_one_run_does_not_lose_the_others(experiments, tmp_path, monkeypatch):
    original = execute.run

    def broken(experiment, path, **more):
        if experiment.seed == 0:
            raise ZeroDivisionError("oops")
        return original(experiment, path, **more)

    monkeypatch.setattr(execute, "run", broken)
    reasons = [Worker.run(experiment, tmp_path) for experiment in experiments]
    assert re.search(r"test_sweep.py:\d+ raised Zero.*Error: oops; ", reasons[0]) and reasons[1] is None
    log = Path(reasons[0].split()[-1])
    assert "oops" in log.read_text()
    log.unlink()
    assert (folder_of(experiments[1], tmp_path) / "done").exists()


def test_killed_process_does_not_lose_the_others(experiments, tmp_path):
    """A worker is killed during training; the runs that were lost with its pool are repeated."""
    longer = [replace(experiment, epochs=50) for experiment in experiments]
    killed = []

    def report(done, total):
        for experiment in longer:
            lock = folder_of(experiment, tmp_path) / "lock"
            if not killed and lock.exists() and (owner := lock.read_text()):
                killed.append(int(owner))
                os.kill(killed[0], signal.SIGKILL)

    assert sweep(longer, tmp_path, report) == {}
    assert killed and count_done(longer, tmp_path) == 2


def test_worker_decodes_consecutive_data_once(experiments, tmp_path, monkeypatch):
    loaded = []
    original = data_module.load_data
    monkeypatch.setattr(
        data_module, "load_data", lambda data, *more, **rest: loaded.append(data) or original(data, *more, **rest)
    )
    other = replace(experiments[0], data="fashion")
    for experiment in (*experiments, replace(experiments[0], method="sl"), other):
        assert Worker.run(experiment, tmp_path) is None
    assert loaded == [experiments[0].data, "fashion"]
    assert len(Worker.shelf._sets) == 1


def test_lock_of_a_finished_run_is_empty(experiments, tmp_path):
    assert Worker.run(experiments[0], tmp_path) is None
    assert (folder_of(experiments[0], tmp_path) / "lock").read_text() == ""


def test_same_experiment_twice_runs_once(experiments, tmp_path):
    assert sweep(experiments[:1] * 2, tmp_path) == {}
    assert len(list(tmp_path.glob("*/done"))) == 1
