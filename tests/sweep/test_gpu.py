"""Experiments side by side in one process give the same results as one by one (on the CPU)."""

import json
import signal
import threading

import pytest

from labelsieve.errors import InputError, Stopped
from labelsieve.runs.data import Shelf
from labelsieve.runs.execute import prepare, run
from labelsieve.runs.folder import RunFolder
from labelsieve.runs.spec import Experiment
from labelsieve.sweep import gpu as module
from labelsieve.sweep.gpu import Fit, side_by_side
from labelsieve.train.loop import StopFlag


@pytest.fixture(autouse=True)
def plenty_of_memory(monkeypatch):
    monkeypatch.setattr(module, "_measure_fit", lambda prepared: Fit(bytes_per_run=2**30, free=5 * 2**30))


def experiment(data, seed, method="mentornet-prop", **more):
    settings = {
        "noise": "pair",
        "rate": 0.3,
        "noise_rate": 0.3,
        "model": "small",
        "epochs": 3,
        "warmup": 1,
        "batch": 32,
    }
    return Experiment(data=data, method=method, seed=seed, **{**settings, **more})


def rows(folder):
    lines = (folder / "record.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def test_results_are_the_same_as_one_by_one(data, tmp_path):
    every = [experiment(data, seed, method) for seed in range(3) for method in ("default", "co-teaching")]
    folders = [tmp_path / "together" / e.name() for e in every]
    said = []
    assert side_by_side(every, folders, lambda: None, say=said.append) == {}
    assert said == ["4 runs at a time; one run needs about 1.0 GiB of 5 GiB free: 4 fit"]
    for e, folder in zip(every, folders, strict=True):
        run(e, tmp_path / "alone" / e.name())
        assert rows(folder) == rows(tmp_path / "alone" / e.name())
        model = "model.safetensors"
        assert (folder / model).read_bytes() == (tmp_path / "alone" / e.name() / model).read_bytes()


def test_failed_run_does_not_stop_the_others(data, tmp_path):
    good, bad = experiment(data, 0), experiment(data, 0, lr=1e30)
    failed = side_by_side([bad, good], [tmp_path / "bad", tmp_path / "good"], lambda: None)
    assert list(failed) == [bad] and "diverged" in failed[bad]
    assert (tmp_path / "good" / "done").exists()


def test_signal_while_the_memory_is_measured_stops_the_sweep(data, tmp_path, monkeypatch):
    def interrupted(prepared):
        raise Stopped("SIGTERM", signal.SIGTERM)

    monkeypatch.setattr(module, "_measure_fit", interrupted)
    with pytest.raises(Stopped):
        side_by_side([experiment(data, 0)], [tmp_path / "run"], lambda: None)
    assert not (tmp_path / "run").exists()


def test_signal_stops_all_runs_and_they_can_be_resumed(data, tmp_path, monkeypatch):
    every = [experiment(data, seed, epochs=20) for seed in range(3)]
    folders = [tmp_path / e.name() for e in every]

    class SignalAfterTwoEpochs(StopFlag):
        def check(self, where):
            if (folders[0] / "record.jsonl").exists() and len(rows(folders[0])) > 2:
                self.received = signal.SIGTERM
            super().check(where)

    monkeypatch.setattr(module, "StopFlag", SignalAfterTwoEpochs)
    with pytest.raises(Stopped, match="SIGTERM"):
        side_by_side(every, folders, lambda: None, at_once=1)
    assert not any((folder / "done").exists() for folder in folders)
    monkeypatch.setattr(module, "StopFlag", StopFlag)
    assert side_by_side(every, folders, lambda: None) == {}
    assert all((folder / "done").exists() for folder in folders)
    assert any(row["event"] == "resume" for row in rows(folders[0]))


def test_shelf_loads_once_and_shares_images(data, monkeypatch):
    reads = []
    from labelsieve.runs import data as shelf_module

    original = shelf_module.load_data

    def load(*args, **more):
        reads.append(args)
        return original(*args, **more)

    monkeypatch.setattr(shelf_module, "load_data", load)
    shelf = Shelf()
    first, second = (prepare(experiment(data, seed), shelf) for seed in (0, 1))
    assert len(reads) == 1
    assert first.train.images.data_ptr() == second.train.images.data_ptr()
    assert not (first.train.labels == second.train.labels).all()
    held_out = prepare(experiment(data, 0, valid=0.2), shelf)
    assert len(held_out.train) < len(first.train) and held_out.fingerprint == first.fingerprint


def test_weights_do_not_depend_on_what_other_threads_draw():
    from labelsieve.models import make_model
    from labelsieve.models.networks import make_networks

    def weights(seed):
        return make_networks(lambda: make_model("small", (1, 8, 8), 4), 2, seed).state_dict()["1.layers.0.weight"]

    alone = [weights(seed) for seed in range(8)]
    together = [None] * 8

    def draw(seed):
        for _ in range(20):
            together[seed] = weights(seed)

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((a == b).all() for a, b in zip(alone, together, strict=True))


def test_placeholder_network_does_not_disturb_other_threads():
    from labelsieve.models import make_model
    from labelsieve.models.networks import make_networks, make_placeholder

    def make():
        return make_model("small", (1, 8, 8), 4)

    alone = make_networks(make, 1, 0).state_dict()["0.layers.0.weight"]
    ended = threading.Event()

    def disturb():
        while not ended.is_set():
            make_placeholder(make)

    thread = threading.Thread(target=disturb)
    thread.start()
    every = [make_networks(make, 1, 0).state_dict()["0.layers.0.weight"] for _ in range(30)]
    ended.set()
    thread.join()
    assert all((weights == alone).all() for weights in every)


def test_folder_cannot_be_entered_twice_in_one_process(tmp_path):
    with RunFolder(tmp_path / "one"), pytest.raises(InputError, match="in use"):
        RunFolder(tmp_path / "one").__enter__()
