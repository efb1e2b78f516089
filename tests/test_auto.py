"""The noise rate found in the data: the estimate from held-out labels, the probe, the choice, a run that is cut."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.audit.estimate import Interval, Noise
from labelsieve.audit.guesses import guesses_of
from labelsieve.audit.unseen import Unseen, dense, tempered, unseen_noise
from labelsieve.audit.verdict import verdict
from labelsieve.cli import execute
from labelsieve.experiments import single
from labelsieve.experiments.auto import cautious, choice, held_out_noise, probe_of, share_held_out, starved, suited
from labelsieve.experiments.prepare import prepare, training_of
from labelsieve.experiments.spec import Experiment
from labelsieve.report.records import read_run
from tests.conftest import blobs

CLASSES = 6


def held_out(kind, rate, count=3000, seed=0):
    """True classes drawn from known probabilities, and labels under noise."""
    random = np.random.default_rng(seed)
    probs = tempered(random.dirichlet(np.full(CLASSES, 0.3), count), 0.7)
    true = (probs.cumsum(1) > random.random((count, 1))).argmax(1)
    step = 1 if kind == "pair" else random.integers(1, CLASSES, count)
    labels = np.where(random.random(count) < rate, (true + step) % CLASSES, true)
    return labels, probs, (labels != true).mean()


@pytest.mark.parametrize("kind", ["pair", "symmetry"])
@pytest.mark.parametrize("rate", [0.1, 0.25, 0.4])
def test_the_rate_of_known_noise_is_found(kind, rate):
    labels, probs, true = held_out(kind, rate)
    seen = unseen_noise(labels, probs)
    assert abs(seen.rate.estimate - true) < 0.03
    assert seen.rate.low <= seen.rate.estimate <= seen.rate.high and seen.rate.low - 0.02 < true < seen.rate.high + 0.02
    assert (seen.chance > seen.rate.estimate / 2) is (kind == "symmetry")
    assert np.allclose(seen.matrix.sum(1), 1)
    if kind == "pair":
        assert all(seen.matrix[k, (k + 1) % CLASSES] > rate - 0.1 for k in range(CLASSES))


@pytest.mark.parametrize("sureness", [0.5, 1.0, 2.0])
def test_clean_labels_look_clean_however_sure_the_network_is(sureness):
    labels, probs, _ = held_out("pair", 0.0)
    assert unseen_noise(labels, tempered(probs, sureness)).rate.estimate < 0.02


@given(st.integers(2, 5), st.integers(1, 40), st.integers(0, 1000))
def test_an_estimate_is_always_a_share(classes, count, seed):
    random = np.random.default_rng(seed)
    labels, probs = random.integers(0, classes, count), random.dirichlet(np.ones(classes), count)
    seen = unseen_noise(labels, probs)
    assert 0 <= seen.rate.low <= seen.rate.estimate <= seen.rate.high <= 1 and np.isfinite(seen.matrix).all()


def test_guesses_become_a_table_again():
    random = np.random.default_rng(0)
    probs = random.dirichlet(np.full(8, 0.2), 20)
    again = dense(guesses_of(random.integers(0, 8, 20), probs))
    assert np.allclose(again.sum(1), 1, atol=1e-6) and (again.argmax(1) == probs.argmax(1)).all()
    assert np.abs(again - probs).max() < 0.05
    few = random.dirichlet(np.ones(3), 5)
    assert np.allclose(dense(guesses_of(np.zeros(5, int), few)), few, atol=1e-6)


@pytest.mark.parametrize(("epochs", "warmup"), [(20, 10), (100, 25), (30, 7), (3, 1), (28, 14), (50, 19)])
def test_until_the_end_of_the_warm_up_the_probe_is_the_training(epochs, warmup):
    asked = Experiment(epochs=epochs, warmup=warmup, valid=0.1)
    probe = probe_of(asked)
    assert warmup < probe.epochs <= epochs and probe.seed == asked.seed and probe.valid == asked.valid
    rates, real = (training_of(each).lr_at for each in (probe, asked))
    assert [rates(epoch) for epoch in range(probe.epochs)] == [real(epoch) for epoch in range(probe.epochs)]


def unseen(rate, chance):
    return Unseen(Interval(rate, rate / 2, 2 * rate), chance, np.eye(3), 1.0)


@pytest.mark.parametrize(
    ("rate", "chance", "method", "reason"),
    [
        (0.4, 0.05, "mentornet-prop", "certain classes"),
        (0.4, 0.35, "mentornet", "all classes alike"),
        (0.01, 0.0, "mentornet-prop", "so few wrong labels"),
    ],
)
def test_the_choice_follows_what_was_seen(rate, chance, method, reason):
    chosen = choice(Experiment(), unseen(rate, chance), None)
    assert (chosen.experiment.method, chosen.experiment.noise_rate) == (method, rate)
    assert reason in chosen.reasons[1] and f"{100 * rate:.1f}%" in chosen.reasons[0]
    insisted = choice(Experiment(options=(("beta", 1.0),)), unseen(rate, chance), "sl")
    assert insisted.experiment == Experiment(method="sl", noise_rate=rate, options=(("beta", 1.0),))


def test_how_much_is_held_out():
    assert [share_held_out(n) for n in (500, 3000, 4000, 6000, 50_000)] == [0.2, 0.2, 0.15, 0.1, 0.1]


def test_a_class_that_starves_is_named():
    assert starved([0.6, 0.22, 0.9], 0.4, ["Coat", "Dress", "Bag"]) == ["Dress (22%)"]
    assert starved([0.6, 0.55, 0.65], 0.4, ["Coat", "Dress", "Bag"]) == []


QUICK = ["--model", "small", "--epochs", "12", "--warmup", "4", "--batch", "32", "--lr", "0.05", "--threads", "1"]


@pytest.fixture(scope="module")
def noisy_file(tmp_path_factory):
    """Easy images, 30% of whose labels are that of the next class."""
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    train, test = blobs(1200, 0), blobs(200, 1)
    random = np.random.default_rng(0)
    labels = np.where(random.random(1200) < 0.3, (train.labels.numpy() + 1) % 4, train.labels.numpy())
    images = [each.images.permute(0, 2, 3, 1).numpy() for each in (train, test)]
    np.savez(path, images=images[0], labels=labels, test_images=images[1], test_labels=test.labels.numpy())
    return path


@pytest.fixture(scope="module")
def auto_run(noisy_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "auto"
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(out)]) == 0
    return out


def test_own_data_is_trained_without_a_noise_rate(auto_run, noisy_file, capsys):
    run = read_run(auto_run)
    assert abs(held_out_noise(auto_run).rate.estimate - 0.3) < 0.1 and abs(run.spec["noise_rate"] - 0.3) < 0.1
    assert run.start["chosen"]["method"] == run.spec["method"] == "mentornet-prop"
    assert run.start["chosen"]["noise_rate"] == run.spec["noise_rate"] and len(run.start["chosen"]["reasons"]) == 2
    assert run.spec["valid"] == 0.2 and run.end["chosen_epoch"] > 9
    assert run.epochs[run.end["chosen_epoch"] - 1]["test_error"] < 5
    before = (auto_run / "record.jsonl").read_bytes()
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(auto_run)]) == 0
    said = capsys.readouterr().out
    assert "already trained" in said and "of the labels look wrong" in said and "labelsieve review" in said
    assert "probe of" not in said and (auto_run / "record.jsonl").read_bytes() == before


def test_killed_in_the_probe_and_in_the_training_it_ends_in_the_same_bits(auto_run, noisy_file, tmp_path):
    out = tmp_path / "cut"
    command = [sys.executable, "-m", "labelsieve", "train", str(noisy_file), *QUICK, "--out", str(out)]
    for record in (out / "probe" / "record.jsonl", out / "record.jsonl"):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while not (record.exists() and b'"epoch"' in record.read_bytes()):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert not (record.parent / "done").exists()
    assert execute(command[3:]) == 0

    def rows(path):
        lines = map(json.loads, (path / "record.jsonl").read_text().splitlines())
        return [{k: v for k, v in row.items() if k != "seconds"} for row in lines if row["event"] != "resume"]

    assert rows(out) == rows(auto_run) and rows(out / "probe") == rows(auto_run / "probe")
    for name in ("model.safetensors", "samples.safetensors"):
        assert (out / name).read_bytes() == (auto_run / name).read_bytes()


def test_a_folder_with_other_files_is_left_alone(noisy_file, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(tmp_path)]) == 2
    assert "holds other files" in capsys.readouterr().err and [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_too_little_to_hold_out_is_said(tmp_path, capsys):
    data = blobs(60, 0)
    images = data.images.permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "few.npz", images=images, labels=data.labels.numpy())
    assert execute(["train", str(tmp_path / "few.npz"), *QUICK, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "held out 12 samples, too few to estimate a noise rate; say --noise-rate, or --valid" in error


def test_a_dry_run_says_that_a_probe_comes_first(noisy_file, capsys):
    assert execute(["train", str(noisy_file), *QUICK, "--dry-run"]) == 0
    assert "cost:    a probe of 9 epochs, then 12 epochs" in capsys.readouterr().out


def test_the_probe_keeps_every_class_alive(auto_run):
    spec = json.loads((auto_run / "probe" / "spec.json").read_text())["experiment"]
    assert spec["options"] == [["floor", 0.5]] and spec["noise_rate"] == 0.4 and spec["choose"] == "last"
    assert torch.tensor(read_run(auto_run / "probe").epochs[-1]["kept"]).min() > 0.2


def test_the_audit_tells_the_rate_of_what_was_held_out(auto_run, capsys):
    assert execute(["audit", str(auto_run)]) == 0
    summary = json.loads((auto_run / "audit" / "summary.json").read_text())
    assert list(summary["noise_rate"].values()) == pytest.approx(
        list(cautious(held_out_noise(auto_run).rate)), abs=1e-5
    )
    said = capsys.readouterr().out
    assert "% of the 1,200 labels look wrong" in said
    expected = sum(row["estimate"] * row["samples"] for row in summary["per_class"]) / 1200
    assert expected == pytest.approx(summary["noise_rate"]["estimate"], abs=1e-5)  # the classes tell the same story
    off_diagonal = 1 - np.diagonal(summary["noise_matrix"])
    assert off_diagonal == pytest.approx([row["estimate"] for row in summary["per_class"]], abs=0.02)
    assert (
        "come from the 240 samples that the model did not learn from" in summary["basis"] and summary["basis"] in said
    )


@pytest.mark.parametrize(("rate", "clean"), [((0.05, 0.01, 0.08), True), ((0.05, 0.03, 0.08), False)])
def test_training_and_audit_call_the_same_labels_clean(auto_run, monkeypatch, rate, clean):
    monkeypatch.setattr(single, "held_out_noise", lambda _: Unseen(Interval(*rate), 0.0, np.eye(4), 1.0))
    assert single.after(auto_run)[0].startswith("the labels look clean") is clean
    said = verdict(Noise(cautious(Interval(*rate)), [], np.eye(4)), 3, 1200, list("abcd"))
    assert said.startswith("The labels look clean") is clean


def test_settings_suit_the_small_network_where_nobody_names_them():
    asked = Experiment(data="photos", model="auto", valid=0.1)
    every = suited(asked, "small", ["epochs", "warmup", "lr"])
    assert (every.epochs, every.warmup, every.lr) == (60, 20, 0.02)
    some = suited(replace(asked, epochs=9, warmup=4), "small", ["warmup", "lr"])
    assert (some.epochs, some.warmup, some.lr) == (9, 3, 0.02)
    assert suited(asked, "densenet-25-12", ["lr"]) == asked
    fashion = Experiment(data="fashion")
    assert suited(fashion, "small", ["lr", "epochs"]) == fashion


def test_corrected_labels_do_not_make_the_old_ones_true(noisy_file, tmp_path):
    """What a person corrects is not the truth, and nothing may be measured against it."""
    np.save(tmp_path / "y.npy", np.zeros(1200, np.int64))
    asked = Experiment(data=str(noisy_file), labels=str(tmp_path / "y.npy"), model="small", warmup=1)
    assert prepare(asked).train.clean is None
    assert prepare(replace(asked, labels=None, noise="pair", rate=0.1)).train.clean is not None
    np.save(tmp_path / "y.npy", np.zeros(6000, np.int64))
    assert prepare(replace(asked, data="fashion")).train.clean is not None
