"""Predictions and scores per sample: values, resumed runs and errors."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from labelsieve.cli import execute
from labelsieve.core.part import label_dtype
from labelsieve.errors import InputError
from labelsieve.models.networks import make_networks
from labelsieve.predict import load
from labelsieve.runs.data import Shelf
from labelsieve.runs.execute import prepare, run
from labelsieve.runs.spec import Experiment
from labelsieve.train import Training
from labelsieve.train.evaluate import sample_predictions
from tests.train.test_loop import densenet

FILES = ("record.jsonl", "model.safetensors", "tables.safetensors")


@pytest.fixture
def experiment(data):
    options = {"noise": "pair", "rate": 0.3, "noise_rate": 0.3, "options": (("lam", 0.5),)}
    return Experiment(data=str(data), model="small", epochs=4, warmup=2, batch=32, lr=0.02, **options)


class StopAfter:
    """A watcher that interrupts after an epoch."""

    def __init__(self, epoch):
        self.last = epoch

    def step(self, done, total):
        pass

    def epoch(self, row):
        if row["epoch"] == self.last:
            raise InterruptedError


def contents(folder):
    """Return the record without times, the model and the tables."""
    rows = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    story = [{k: v for k, v in row.items() if k != "seconds"} for row in rows if row["event"] != "resume"]
    return story, *[(folder / name).read_bytes() for name in FILES[1:]]


def test_scores_match_hand_computation(experiment, tmp_path):
    run(replace(experiment, scores=(4,)), tmp_path / "run")
    kept = load_file(tmp_path / "run" / "scores-4.safetensors")
    train = prepare(experiment, Shelf()).train
    model = load(tmp_path / "run")
    with torch.no_grad():
        probs = model.network.eval()(train.inputs(torch.arange(len(train)))).softmax(-1)
    penalty = load_file(tmp_path / "run" / "tables.safetensors")["last/penalty"][0]
    for i in range(len(train)):
        observed = train.labels[i]
        ol, pl = probs[i, observed], (probs[i] * penalty[observed]).sum()
        torch.testing.assert_close(kept["ol"][i], ol, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(kept["pl"][i], pl, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(kept["all"][i], ol - 0.5 * pl, atol=1e-6, rtol=1e-5)
    assert kept["label"].tolist() == train.labels.tolist() and kept["clean"].tolist() == train.clean.tolist()
    assert (kept["label"] != kept["clean"]).any() and kept["label"].dtype == torch.int8


def test_saving_scores_does_not_change_the_training(experiment, tmp_path):
    run(experiment, tmp_path / "without")
    run(replace(experiment, scores=(1, 2, 3)), tmp_path / "with")
    assert contents(tmp_path / "without") == contents(tmp_path / "with")
    assert sorted(path.name for path in (tmp_path / "with").glob("scores-*")) == [
        f"scores-{epoch}.safetensors" for epoch in (1, 2, 3)
    ]
    assert experiment.name() == replace(experiment, scores=(2,)).name()


@pytest.mark.parametrize("stopped_after", [2, 3])
def test_resumed_run_has_all_scores(experiment, tmp_path, stopped_after):
    requested = replace(experiment, scores=(2, 3))
    run(requested, tmp_path / "uninterrupted")
    with pytest.raises(InterruptedError):
        run(requested, tmp_path / "stopped", StopAfter(stopped_after))
    assert (tmp_path / "stopped" / f"scores-{stopped_after}.safetensors").exists()
    run(requested, tmp_path / "stopped")
    for epoch in (2, 3):
        name = f"scores-{epoch}.safetensors"
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "uninterrupted" / name).read_bytes()
    assert contents(tmp_path / "stopped") == contents(tmp_path / "uninterrupted")


def test_run_without_scores_is_rejected_when_scores_are_requested(experiment, tmp_path):
    with pytest.raises(InterruptedError):
        run(experiment, tmp_path / "run", StopAfter(2))
    with pytest.raises(InputError, match="is past epoch 2 and has no scores of it"):
        run(replace(experiment, scores=(2, 3)), tmp_path / "run")
    assert run(replace(experiment, scores=(3,)), tmp_path / "run")
    assert not run(replace(experiment, scores=(3,)), tmp_path / "run")
    with pytest.raises(InputError, match="is past epoch 4 and has no scores"):
        run(replace(experiment, scores=(4,)), tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "names"),
    [("mentornet", {"ol"}), ("co-teaching", {"ol"}), ("selfie-prop", {"ol", "pl", "all"})],
)
def test_only_methods_with_penalty_labels_have_penalty_scores(experiment, tmp_path, method, names):
    run(replace(experiment, method=method, options=(), scores=(4,)), tmp_path / "run")
    kept = load_file(tmp_path / "run" / "scores-4.safetensors")
    assert set(kept) == names | {"label", "clean"} and all(len(values) == 203 for values in kept.values())


def test_command_saves_scores_and_rejects_invalid_epochs(data, tmp_path, capsys):
    arguments = ["train", str(data), "--noise", "pair", "--rate", "0.3", "--epochs", "2", "--warmup", "1"]
    arguments += ["--model", "small", "--threads", "1", "--out", str(tmp_path / "run")]
    assert execute([*arguments, "--scores", "1,two"]) == 2
    assert "such as 25,40, got '1,two'" in capsys.readouterr().err
    assert execute([*arguments, "--scores", "3"]) == 2
    assert "scores can be saved after the epochs 1 to 2, not after 3" in capsys.readouterr().err
    assert execute([*arguments, "--scores", "2,1"]) == 0
    assert len(list((tmp_path / "run").glob("scores-*"))) == 2


@pytest.mark.parametrize(
    ("classes", "kind"), [(127, torch.int8), (128, torch.int16), (32767, torch.int16), (32768, torch.int32)]
)
def test_label_dtype_holds_all_classes(classes, kind):
    packed = torch.tensor([-1, 0, classes - 1]).to(label_dtype(classes))
    assert packed.dtype == kind and packed.tolist() == [-1, 0, classes - 1]


def test_sample_predictions_average_the_networks(noisy_blobs):
    networks = make_networks(densenet, 2, 0, 0)
    found = sample_predictions(networks, noisy_blobs, Training())
    probs = networks.eval()(noisy_blobs.inputs(torch.arange(203))).softmax(-1).mean(0)
    assert torch.equal(found["label"].long(), noisy_blobs.labels)
    torch.testing.assert_close(found["likelihood"].sum(1), torch.ones(203))  # with 4 classes, all are returned
    assert torch.equal(found["likeliest"][:, 0].long(), probs.argmax(1))
    torch.testing.assert_close(found["confidence"], probs[torch.arange(203), noisy_blobs.labels])
