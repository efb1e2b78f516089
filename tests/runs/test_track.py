"""Curves in TensorBoard, Weights & Biases and MLflow: with the packages themselves, without network."""

import json
import signal
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from labelsieve.cli import execute
from labelsieve.runs.track import (
    IMAGE,
    PROJECT,
    Point,
    Tracking,
    facts_of,
    parse_trackers,
    penalty_image,
    points_of,
)
from labelsieve.train import Record, Training, fit
from tests.conftest import LONG_WAIT, kill_after_epoch, read_rows, save_blobs, start_interrupted
from tests.train.test_loop import make_method, network_maker

QUICK = ["--warmup", "1", "--lr", "0.02", "--batch", "32", "--threads", "1", "--model", "small", "--device", "cpu"]
pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages
NOISY = ["--noise", "pair", "--rate", "0.3"]


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Let all trackers write below a folder of their own."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # MLflow writes images to ./mlruns
    return tmp_path


def expected_curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the curves of a record, step by step."""
    rows = [row for row in read_rows(run) if row["event"] == "epoch"]
    names = {"train/loss": "train_loss", "train/lr": "lr", "test/error": "test_error", "valid/error": "valid_error"}
    names |= {"selection/kept_share": "kept_share", "selection/precision": "precision"}
    curves = {
        shown: [(k, row[name]) for k, row in enumerate(rows, 1) if row.get(name) is not None]
        for shown, name in names.items()
    }
    start = read_rows(run)[0]
    curves["noise/true"] = [(1, start["noise"]["realised_rate"])] if "noise" in start else []
    curves["noise/estimate"] = [(1, start["chosen"]["noise_rate"])] if "chosen" in start else []
    return {name: curve for name, curve in curves.items() if curve}


def tensorboard_curves(run: Path):
    """Return the curves, and the images by step, that TensorBoard reads from a folder."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run), size_guidance={"images": 0, "scalars": 0}).Reload()
    tags = events.Tags()
    curves = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in tags["scalars"]}
    return curves, [event.step for event in events.Images(IMAGE)] if IMAGE in tags["images"] else []


def mlflow_curves(name: str):
    """Return the curves, the images and the status of the one run of this name."""
    client = pytest.importorskip("mlflow").MlflowClient()
    experiment = client.get_experiment_by_name(PROJECT)
    (run,) = [each for each in client.search_runs([experiment.experiment_id]) if each.info.run_name == name]
    history = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
    images = [each.path for each in client.list_artifacts(run.info.run_id, "images") if each.path.endswith(".png")]
    curves = {key: sorted((metric.step, metric.value) for metric in metrics) for key, metrics in history.items()}
    return curves, images, run


def wandb_records(file: Path):
    """Yield the records of an offline run: protocol buffers in LevelDB's log format (32 KiB blocks)."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    content, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            record = proto.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def wandb_history(folder: Path):
    """Return the ids of all runs below a folder, and every logged value as (step, name, value)."""
    ids, values = set(), []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in wandb_records(file):
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                values.append((record.history.step.num, name, json.loads(item.value_json)))
    return ids, values


def close(curves, expected):
    assert set(curves) == set(expected)
    for name, curve in expected.items():
        assert [step for step, _ in curves[name]] == [step for step, _ in curve], name
        np.testing.assert_allclose([v for _, v in curves[name]], [v for _, v in curve], rtol=1e-6, err_msg=name)


def test_points_are_the_epochs_of_all_rounds():
    rows = [
        {"event": "start", "noise": {"realised_rate": 0.25}, "chosen": {"noise_rate": 0.2}},
        {"event": "epoch", "round": 1, "epoch": 1, "train_loss": 2.0, "lr": 0.1, "precision": None, "seconds": 1.5},
        {"event": "resume", "epochs_done": 1},
        {
            "event": "epoch",
            "round": 2,
            "epoch": 1,
            "train_loss": 1,
            "test_error": 30.0,
            "kept_share": 0.5,
            "seconds": 2,
        },
        {"event": "end", "chosen_epoch": 1},
    ]
    first = {"train/loss": 2.0, "train/lr": 0.1, "noise/estimate": 0.2, "noise/true": 0.25}
    second = {"train/loss": 1.0, "test/error": 30.0, "selection/kept_share": 0.5}
    assert points_of(rows) == [Point(1, 1.5, first), Point(2, 3.5, second)]


def test_stages_are_named_after_their_run(tmp_path):
    facts = facts_of(tmp_path / "mine" / "plain" / "3", [])
    assert (facts.name, facts.group) == ("mine/plain/3", "mine")
    assert facts_of(tmp_path / "mine", []).name == "mine"


def test_the_image_shows_every_network():
    table = np.zeros((2, 2, 2))
    table[0, 0, 1] = table[1, 1, 0] = 1.0
    pixels = penalty_image(table)
    assert pixels.shape == (320, 5 * 160, 3) and pixels.dtype == np.uint8
    assert pixels[80, 80::160, 0].tolist() == [255, 0, 128, 255, 255]
    assert pixels[240, 80::160, 0].tolist() == [255, 255, 128, 0, 255]


def test_a_killed_training_continues_the_curves(offline):
    """Killed after its third epoch, and resumed: every epoch is there once."""
    data = save_blobs(offline / "data.npz", 203, test=60)
    run = offline / "mine"
    argv = ["train", str(data), "--epochs", "6", *QUICK, *NOISY, "--out", str(run), "--log", "tensorboard,mlflow"]
    kill_after_epoch(run / "record.jsonl", argv, epochs=3, steps=1)
    state = json.loads((run / "tracking.json").read_text())
    assert {name: sent for name, (_, sent) in state.items()} == {"tensorboard": 3, "mlflow": 3}
    assert execute(argv) == 0
    expected = expected_curves(run)
    assert [step for step, _ in expected["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert set(expected) >= {"selection/kept_share", "selection/precision", "test/error", "noise/true"}
    curves, images = tensorboard_curves(run)
    close(curves, expected)
    assert images == [5, 6]
    curves, images, tracked = mlflow_curves("mine")
    close(curves, expected)
    assert len(images) == 2 and tracked.info.status == "FINISHED"
    assert tracked.data.params["method"] == "mentornet-prop" and tracked.data.params["samples"] == "203"
    assert tracked.info.run_id == state["mlflow"][0]
    before = {file: file.stat().st_mtime_ns for file in run.glob("[!lr]*")}  # all but the lock, record and report
    before[run / "record.jsonl"] = (run / "record.jsonl").stat().st_mtime_ns
    assert execute(argv) == 0  # finished, and everything is sent
    assert before == {file: file.stat().st_mtime_ns for file in before}


def test_a_stopped_training_continues_its_run_of_wandb(offline):
    """Not killed: wandb loses what it has not written when its process is killed."""
    data = save_blobs(offline / "data.npz", 203, test=60)
    run = offline / "mine"
    argv = ["train", str(data), "--epochs", "6", *QUICK, *NOISY, "--out", str(run), "--log", "wandb"]
    stopped = start_interrupted("SIGTERM", run / "record.jsonl", argv, 3, 1)
    _, error = stopped.communicate(timeout=LONG_WAIT)
    assert stopped.returncode == 128 + signal.SIGTERM, error
    assert execute(argv) == 0
    expected = expected_curves(run)
    ids, values = wandb_history(offline)
    assert len(ids) == 1 and len(list(offline.glob("wandb/offline-run-*"))) == 2
    close({name: [(step, value) for step, key, value in values if key == name] for name in expected}, expected)
    assert sorted({step for step, name, _ in values if name.startswith(IMAGE)}) == [5, 6]


def test_a_server_that_fails_does_not_end_the_training(offline, monkeypatch, capsys):
    """What was missed is sent by the same command."""
    data = save_blobs(offline / "data.npz", 120, test=40)
    argv = ["train", str(data), "--epochs", "2", *QUICK, *NOISY, "--out", str(offline / "mine"), "--log", "mlflow"]
    with monkeypatch.context() as broken:
        broken.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        broken.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        assert execute(argv) == 0
    assert capsys.readouterr().err.count("warning: mlflow failed") == 1
    assert not (offline / "mine" / "tracking.json").exists()
    assert execute(argv) == 0
    close(mlflow_curves("mine")[0], expected_curves(offline / "mine"))


def test_every_stage_of_an_automatic_training_is_a_run(offline):
    """Features are judged by linear heads, which have no epochs; the delivered head has one."""
    random = np.random.default_rng(0)
    labels = np.arange(240) % 3
    features = (random.normal(size=(240, 6)) + 3 * np.eye(6)[labels]).astype(np.float32)
    np.savez(offline / "data.npz", features=features, labels=labels)
    argv = ["train", str(offline / "data.npz"), "--out", str(offline / "mine"), "--log", "tensorboard"]
    assert execute([*argv, "--model", "linear", "--threads", "1", "--device", "cpu"]) == 0
    curves, _ = tensorboard_curves(offline / "mine")
    close(curves, expected_curves(offline / "mine"))
    assert "noise/estimate" in curves
    argv = ["train", str(save_blobs(offline / "blobs.npz", 100)), "--out", str(offline / "judged"), "--epochs", "2"]
    assert execute([*argv, *QUICK, "--log", "tensorboard"]) == 0
    records = sorted((offline / "judged").rglob("record.jsonl"))
    assert (
        len(records) == 16
    )  # five plain judges, five selecting ones, five of the second round, and the delivered model
    for record in records:
        close(tensorboard_curves(record.parent)[0], expected_curves(record.parent))


def test_fit_takes_a_tracking_as_its_watcher(offline, noisy_blobs, test_blobs):
    folder = offline / "own"
    folder.mkdir()
    method = make_method()
    with Tracking(folder, ["tensorboard"], lambda: method.tables()["penalty"].numpy()) as watcher:
        record = Record(folder / "record.jsonl")
        training = Training(epochs=3, batch=32, lr=0.01)
        fit(network_maker(), method, noisy_blobs, test_blobs, training=training, record=record, watcher=watcher)
    curves, images = tensorboard_curves(folder)
    assert [step for step, _ in curves["test/error"]] == [1, 2, 3] and images == [3]


def test_unknown_missing_and_closed_trackers_are_refused_first(offline, monkeypatch, capsys):
    argv = ["train", "nowhere", "--out", str(offline / "mine"), "--log"]
    assert execute([*argv, "tensorbord"]) == 2
    assert "did you mean tensorboard?" in capsys.readouterr().err
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(offline / "netrc"))
    assert execute([*argv, "wandb"]) == 2
    assert "run wandb login, or set the variable WANDB_MODE=offline" in capsys.readouterr().err
    for name in ("tensorboard", "wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        assert execute([*argv, name]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and f"run pip install 'labelsieve[{name}]'" in error
    assert not (offline / "mine").exists()


def test_a_damaged_state_is_named(offline, capsys):
    data = save_blobs(offline / "data.npz", 120)
    argv = ["train", str(data), "--epochs", "2", *QUICK, *NOISY, "--out", str(offline / "mine"), "--log", "tensorboard"]
    assert execute(argv) == 0
    (offline / "mine" / "tracking.json").write_text('{"tensorboard": 5}')
    assert execute(argv) == 2
    assert "tracking.json is damaged; delete it" in capsys.readouterr().err


def test_names_are_separated_by_commas_and_repeated():
    assert parse_trackers(["tensorboard, tensorboard"]) == ("tensorboard",)
    assert parse_trackers([]) == ()


def test_the_last_penalty_labels_are_those_of_the_run(offline):
    tables = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    data = save_blobs(offline / "data.npz", 120)
    argv = ["train", str(data), "--epochs", "3", *QUICK, *NOISY, "--out", str(offline / "mine"), "--log", "tensorboard"]
    assert execute(argv) == 0
    events = tables.EventAccumulator(str(offline / "mine"), size_guidance={"images": 0}).Reload()
    (image,) = events.Images(IMAGE)
    from io import BytesIO

    from PIL import Image

    shown = np.asarray(Image.open(BytesIO(image.encoded_image_string)).convert("RGB"))
    learned = load_file(offline / "mine" / "tables.safetensors")["last/penalty"]
    assert (shown == penalty_image(learned)).all() and shown.min() < 255
