"""Scores of every sample: right by hand, no trace in the training, there after a cut, refused where they come late."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from labelsieve.cli import execute
from labelsieve.core.part import label_dtype
from labelsieve.errors import InputError
from labelsieve.predict import load
from labelsieve.runs.execute import prepare, run
from labelsieve.runs.spec import Experiment
from tests.test_cli import data as data_file

data = data_file
FILES = ("record.jsonl", "model.safetensors", "tables.safetensors")


@pytest.fixture
def experiment(data):
    options = {"noise": "pair", "rate": 0.3, "noise_rate": 0.3, "options": (("lam", 0.5),)}
    return Experiment(data=str(data), model="small", epochs=4, warmup=2, batch=32, lr=0.02, **options)


class StopAfter:
    """Breaks off once an epoch is whole."""

    def __init__(self, epoch):
        self.last = epoch

    def step(self, done, total):
        pass

    def epoch(self, row):
        if row["epoch"] == self.last:
            raise InterruptedError


def contents(folder):
    """Record without times, model and tables."""
    rows = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    story = [{k: v for k, v in row.items() if k != "seconds"} for row in rows if row["event"] != "resume"]
    return story, *[(folder / name).read_bytes() for name in FILES[1:]]


def test_scores_of_the_last_epoch_by_hand(experiment, tmp_path):
    run(replace(experiment, scores=(4,)), tmp_path / "run")
    kept = load_file(tmp_path / "run" / "scores-4.safetensors")
    train = prepare(experiment).train
    model = load(tmp_path / "run")
    with torch.no_grad():
        probs = model.network.eval()(train.inputs(torch.arange(150))).softmax(-1)
    penalty = load_file(tmp_path / "run" / "tables.safetensors")["last/penalty"][0]
    for i in range(150):
        observed = train.labels[i]
        ol, pl = probs[i, observed], (probs[i] * penalty[observed]).sum()
        torch.testing.assert_close(kept["ol"][i], ol, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(kept["pl"][i], pl, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(kept["all"][i], ol - 0.5 * pl, atol=1e-6, rtol=1e-5)
    assert kept["label"].tolist() == train.labels.tolist() and kept["clean"].tolist() == train.clean.tolist()
    assert (kept["label"] != kept["clean"]).any() and kept["label"].dtype == torch.int8


def test_keeping_scores_leaves_no_trace_in_the_training(experiment, tmp_path):
    run(experiment, tmp_path / "without")
    run(replace(experiment, scores=(1, 2, 3)), tmp_path / "with")
    assert contents(tmp_path / "without") == contents(tmp_path / "with")
    assert sorted(path.name for path in (tmp_path / "with").glob("scores-*")) == [
        f"scores-{epoch}.safetensors" for epoch in (1, 2, 3)
    ]
    assert experiment.name() == replace(experiment, scores=(2,)).name()


@pytest.mark.parametrize("cut", [2, 3])
def test_a_cut_run_has_them_all(experiment, tmp_path, cut):
    asked = replace(experiment, scores=(2, 3))
    run(asked, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        run(asked, tmp_path / "cut", StopAfter(cut))
    assert (tmp_path / "cut" / f"scores-{cut}.safetensors").exists()
    run(asked, tmp_path / "cut")
    for epoch in (2, 3):
        name = f"scores-{epoch}.safetensors"
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_run_without_scores_is_not_taken_for_one_with_them(experiment, tmp_path):
    with pytest.raises(InterruptedError):
        run(experiment, tmp_path / "run", StopAfter(2))
    with pytest.raises(InputError, match="is past epoch 2 and kept no scores of it"):
        run(replace(experiment, scores=(2, 3)), tmp_path / "run")
    assert run(replace(experiment, scores=(3,)), tmp_path / "run")
    assert not run(replace(experiment, scores=(3,)), tmp_path / "run")
    with pytest.raises(InputError, match="is past epoch 4 and kept no scores"):
        run(replace(experiment, scores=(4,)), tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "names"),
    [("mentornet", {"ol"}), ("co-teaching", {"ol"}), ("selfie-prop", {"ol", "pl", "all"})],
)
def test_only_methods_with_penalty_labels_have_their_scores(experiment, tmp_path, method, names):
    run(replace(experiment, method=method, options=(), scores=(4,)), tmp_path / "run")
    kept = load_file(tmp_path / "run" / "scores-4.safetensors")
    assert set(kept) == names | {"label", "clean"} and all(len(values) == 150 for values in kept.values())


def test_the_command_keeps_them_and_refuses_what_is_no_epoch(data, tmp_path, capsys):
    arguments = ["train", str(data), "--noise", "pair", "--rate", "0.3", "--epochs", "2", "--warmup", "1"]
    arguments += ["--model", "small", "--threads", "1", "--out", str(tmp_path / "run")]
    assert execute([*arguments, "--scores", "1,two"]) == 2
    assert "such as 25,40, got '1,two'" in capsys.readouterr().err
    assert execute([*arguments, "--scores", "3"]) == 2
    assert "scores can be kept of the epochs 1 to 2, not of 3" in capsys.readouterr().err
    assert execute([*arguments, "--scores", "2,1"]) == 0
    assert len(list((tmp_path / "run").glob("scores-*"))) == 2


@pytest.mark.parametrize(
    ("classes", "kind"), [(127, torch.int8), (128, torch.int16), (32767, torch.int16), (32768, torch.int32)]
)
def test_class_numbers_survive_in_few_bytes(classes, kind):
    packed = torch.tensor([-1, 0, classes - 1]).to(label_dtype(classes))
    assert packed.dtype == kind and packed.tolist() == [-1, 0, classes - 1]
