"""Choice of the network for colour images by short trainings."""

import shutil

import pytest

from labelsieve.auto import train as train_module
from labelsieve.auto.judge import held_out_log_likelihood
from labelsieve.auto.request import make_request
from labelsieve.cli import execute
from labelsieve.runs.data import Shelf
from labelsieve.runs.find import unfinished
from labelsieve.runs.read import finished_runs, read_run
from labelsieve.runs.spec import OPEN_SETTINGS, experiment_for
from tests.conftest import save_blobs

QUICK = ["--epochs", "4", "--warmup", "2", "--batch", "32", "--threads", "1"]


@pytest.fixture(scope="module")
def coloured(tmp_path_factory):
    """Return a file of colour images, 20% of whose labels are wrong."""
    return save_blobs(tmp_path_factory.mktemp("data") / "coloured.npz", 400, wrong=0.2, channels=3)


@pytest.fixture(scope="module")
def given_rate_run(coloured, tmp_path_factory):
    """Train with a given noise rate; return the command without its last word, the run folder."""
    out = tmp_path_factory.mktemp("runs") / "run"
    argv = ["train", str(coloured), *QUICK, "--noise-rate", "0.2", "--out"]
    assert execute([*argv, str(out)]) == 0
    return argv, out


def test_each_candidate_has_its_own_settings(coloured):
    def candidates(unknown, **settings):
        options = {"noise_is_unknown": unknown, "method": None, "final": True, "shelf": Shelf()}
        return make_request(experiment_for(str(coloured), **settings), OPEN_SETTINGS, **options).candidates

    small, compact = candidates(True, model="auto")
    assert (small.training.model, small.training.lr, small.training.epochs) == ("small", 0.02, 30)
    assert (compact.training.model, compact.training.lr, compact.training.epochs) == ("compact", 0.05, 30)
    assert {judge.model for judge in compact.judges} == {"compact"} and len(compact.judges) == 10
    assert [each.judges for each in candidates(False, model="auto", noise_rate=0.2)] == [(), ()]
    (named,) = candidates(True, model="compact")
    assert (named.training.model, named.training.lr) == ("compact", 0.05)


@pytest.mark.parametrize("better", [1, 2])
def test_network_that_predicts_held_out_labels_best_is_chosen(coloured, tmp_path, monkeypatch, capsys, better):
    out = tmp_path / "run"
    scores = {str(better): -0.5}
    monkeypatch.setattr(train_module, "held_out_log_likelihood", lambda run: scores.get(run.name, -0.7))
    assert execute(["train", str(coloured), *QUICK, "--noise-rate", "0.2", "--out", str(out)]) == 0
    model, other = ("small", "compact") if better == 1 else ("compact", "small")
    expected = f"network: {model} (best log-likelihood on held-out labels: -0.50, {other}: -0.70)\n"
    assert expected in capsys.readouterr().out
    assert read_run(out).spec["model"] == model and finished_runs(tmp_path) == [out]
    tried = [read_run(out / "network" / str(number)).spec for number in (1, 2)]
    assert [spec["model"] for spec in tried] == ["small", "compact"]
    assert {(spec["method"], spec["epochs"], spec["valid"]) for spec in tried} == {("default", 2, 0.2)}


def test_automatic_run_records_the_reasons(coloured, tmp_path, capsys):
    out = tmp_path / "run"
    assert execute(["train", str(coloured), *QUICK, "--valid", "0.2", "--no-final", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    scores = {name: held_out_log_likelihood(out / "network" / str(n)) for n, name in ((1, "small"), (2, "compact"))}
    best = max(scores, key=scores.get)
    network, lr, rate, selection, judges = read_run(out).start["chosen"]["reasons"]
    assert network.startswith(f"network: {best} (") and shown.count(network) == 1
    assert all(f"{score:.2f}" in network for score in scores.values()) and read_run(out).spec["model"] == best
    assert (
        rate.startswith("noise rate for the selection: ")
        and shown.count(rate) == 1
        and lr.startswith("learning rate: ")
    )
    assert selection.startswith("selection: ") and judges.startswith("judges: ") and shown.count(judges) == 1


def test_run_interrupted_between_the_networks_is_resumed(given_rate_run, tmp_path):
    argv, out = given_rate_run
    cut = tmp_path / "cut"
    (cut / "network" / "1").mkdir(parents=True)
    for name in ("spec.json", "record.jsonl", "lock"):
        shutil.copy(out / "network" / "1" / name, cut / "network" / "1")
    message = unfinished(cut)
    assert (
        " was interrupted after 2 of 2 epochs of network training 1; run the command that started it again" in message
    )
    assert execute([*argv, str(cut)]) == 0
    assert (cut / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_dry_run_names_the_networks(coloured, capsys):
    assert execute(["train", str(coloured), *QUICK, "--dry-run"]) == 0
    assert (
        "1. network           choose the network: small or compact (2 trainings of 2 epochs)" in capsys.readouterr().out
    )
