"""Which network suits pictures in colour, short trainings tell."""

import numpy as np
import pytest
import torch

from labelsieve.auto import train as train_auto
from labelsieve.auto.judge import foretold
from labelsieve.auto.plan import FREE
from labelsieve.cli import execute
from labelsieve.models import candidates, make_model
from labelsieve.runs.find import unfinished
from labelsieve.runs.read import finished_runs, read_run
from labelsieve.runs.spec import planned
from tests.conftest import blobs

QUICK = ["--epochs", "4", "--warmup", "2", "--batch", "32", "--threads", "1"]


@pytest.fixture(scope="module")
def coloured(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "coloured.npz"
    data = blobs(400, 0)
    images = data.images.permute(0, 2, 3, 1).numpy().repeat(3, axis=3)
    wrong = np.random.default_rng(0).random(400) < 0.2
    np.savez(path, images=images, labels=np.where(wrong, (data.labels + 1) % 4, data.labels))
    return path


def test_pictures_in_colour_on_a_cpu_have_two_candidates():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert candidates((3, 32, 32), cpu) == ("small", "compact")
    assert [candidates(shape, cpu) for shape in ((1, 28, 28), (20,))] == [("small",), ("mlp",)]
    assert candidates((3, 32, 32), gpu) == ("densenet-25-12",)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 1, 1), (3, 5, 3), (3, 224, 200), (2, 65, 64)])
def test_the_compact_network_takes_any_picture(shape):
    network = make_model("compact", shape, 7).eval()
    inputs = torch.randn(2, *shape)
    assert network(inputs).shape == (2, 7) and sum(p.numel() for p in network.parameters()) < 25_000
    assert (network(inputs)[0] == network(inputs.flip(0))[1]).all()


def test_it_looks_at_64_pixels_a_side_at_most():
    network = make_model("compact", (3, 200, 64), 2).eval()
    coarse = torch.randn(1, 3, 50, 16)
    shapes = []
    network.layers[1].register_forward_hook(lambda module, given, out: shapes.append(out.shape[2:]))
    network(coarse.repeat_interleave(4, 2).repeat_interleave(4, 3))
    assert shapes == [(50, 16)]


def test_each_candidate_has_settings_of_its_own(coloured):
    plans = train_auto.settled(planned(str(coloured), model="auto"), FREE, unknown=True)
    assert [(plan.training.model, plan.training.lr, plan.training.epochs) for plan in plans] == [
        ("small", 0.02, 30),
        ("compact", 0.05, 30),
    ]
    assert {probe.model for probe in plans[1].probes} == {"compact"} and len(plans[1].probes) == 10
    told = train_auto.settled(planned(str(coloured), model="auto", noise_rate=0.2), FREE, unknown=False)
    assert [plan.probes for plan in told] == [[], []]
    named = train_auto.settled(planned(str(coloured), model="compact"), FREE, unknown=True)
    assert [(plan.training.model, plan.training.lr) for plan in named] == [("compact", 0.05)]


@pytest.mark.parametrize("better", [1, 2])
def test_the_network_that_foretells_held_out_labels_best_is_taken(coloured, tmp_path, monkeypatch, capsys, better):
    out = tmp_path / "run"
    monkeypatch.setattr(train_auto, "foretold", lambda run: -0.5 if run.name == str(better) else -0.7)
    assert execute(["train", str(coloured), *QUICK, "--noise-rate", "0.2", "--out", str(out)]) == 0
    model = ("small", "compact")[better - 1]
    assert f"chosen:  network {model}: " in capsys.readouterr().out
    assert read_run(out).spec["model"] == model and finished_runs(tmp_path) == [out]
    tried = [read_run(out / "network" / str(number)).spec for number in (1, 2)]
    assert [spec["model"] for spec in tried] == ["small", "compact"]
    assert {(spec["method"], spec["epochs"], spec["valid"]) for spec in tried} == {("default", 2, 0.2)}


def test_an_automatic_training_records_why(coloured, tmp_path, capsys):
    out = tmp_path / "run"
    assert execute(["train", str(coloured), *QUICK, "--valid", "0.2", "--no-final", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    scores = {("small", "compact")[number - 1]: foretold(out / "network" / str(number)) for number in (1, 2)}
    best = max(scores, key=scores.get)
    reasons = read_run(out).start["chosen"]["reasons"]
    assert reasons[0].startswith(f"network {best}: ") and said.count(f"chosen:  {reasons[0]}") == 1
    assert f"small: {scores['small']:.3f}" in reasons[0] and read_run(out).spec["model"] == best
    assert len(reasons) == 3 and said.count("chosen:  noise rate") == 1


def test_cut_between_the_networks_it_says_so_and_goes_on(coloured, tmp_path):
    out = tmp_path / "run"
    argv = ["train", str(coloured), *QUICK, "--noise-rate", "0.2", "--out", str(out)]
    assert execute(argv) == 0
    cut = tmp_path / "cut"
    for name in ("spec.json", "record.jsonl", "lock"):
        (cut / "network" / "1").mkdir(parents=True, exist_ok=True)
        (cut / "network" / "1" / name).write_bytes((out / "network" / "1" / name).read_bytes())
    assert "stopped before it was done, after 2 of 2 epochs of its probe 1; go on with: labelsieve" in unfinished(cut)
    assert execute([*argv[:-1], str(cut)]) == 0
    assert (cut / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_a_dry_run_names_the_networks(coloured, capsys):
    assert execute(["train", str(coloured), *QUICK, "--dry-run"]) == 0
    assert "first:   short trainings tell which network suits: small or compact" in capsys.readouterr().out
