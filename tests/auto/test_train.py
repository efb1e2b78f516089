"""Automatic training: noise rate and learning rate from judges, resuming, one decoding per image, refusals."""

import hashlib
import io
import json
import re
import shutil
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from labelsieve.auto import samples as samples_module
from labelsieve.auto import train as train_module
from labelsieve.auto.judge import best_judges
from labelsieve.auto.request import make_request
from labelsieve.auto.train import predicted_class
from labelsieve.cli import execute
from labelsieve.data import images as images_module
from labelsieve.runs.data import Shelf
from labelsieve.runs.read import PLAIN, read_run
from labelsieve.runs.spec import OPEN_SETTINGS, experiment_for
from tests.auto.conftest import QUICK, SAMPLES
from tests.conftest import kill_after_epoch, save_blobs, without_resumes

BRIEF = ["--epochs", "2", "--warmup", "1", "--threads", "1"]


def content_of(folder):
    """Return the content of every file except locks, which record the process."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def forget_sources(run):
    """Turn a run into one of an older version, which stored no request, no fingerprint of the files and no digests."""
    (run / "request.json").unlink(missing_ok=True)
    for file in run.rglob("spec.json"):
        head = json.loads(file.read_text())
        head.pop("source")
        file.write_text(json.dumps(head))
        (file.parent / "done").write_bytes(b"")  # without digests


# From the noise rate to the report


def test_noise_rate_and_judges_are_found(auto_run, noisy_file, capsys):
    run, selecting = read_run(auto_run), read_run(auto_run / "selecting" / "1")
    chosen = run.start["chosen"]
    assert abs(chosen["noise_rate"] - 0.3) < 0.1 and selecting.spec["noise_rate"] == chosen["noise_rate"]
    assert [reason.partition(":")[0] for reason in chosen["reasons"]] == [
        "noise rate for the selection",
        "selection",
        "judges",
    ]
    assert selecting.spec["method"] == "mentornet-prop" and "mentornet-prop (most wrong" in chosen["reasons"][1]
    assert (run.spec["method"], run.spec["valid"], run.end["chosen_epoch"]) == ("default", 0.0, 12)
    assert run.start["samples"] == SAMPLES and run.epochs[-1]["test_error"] < 5
    before = content_of(auto_run)
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(auto_run)]) == 0
    shown = capsys.readouterr().out
    assert "\n".join(chosen["reasons"]) in shown and f"already trained: {auto_run}" in shown
    assert f"review the suspect labels: labelsieve review {auto_run}" in shown and "stage" not in shown
    assert content_of(auto_run) == before


def test_suspects_and_report_are_written(auto_run):
    assert (auto_run / "audit" / "labels.csv").stat().st_size and "<html" in (auto_run / "report.html").read_text()


def test_selecting_judges_keep_samples_of_every_class(auto_run):
    spec = json.loads((auto_run / "selecting" / "5" / "spec.json").read_text())["experiment"]
    assert spec["options"] == [["align", True], ["floor", 0.5]] and spec["choose"] == "last"
    assert torch.tensor(read_run(auto_run / "selecting" / "5").epochs[-1]["kept"]).min() > 0.2


def test_best_learning_rate_is_chosen(noisy_file, tmp_path, capsys):
    out = tmp_path / "chosen"
    brief = ["--model", "small", "--epochs", "4", "--warmup", "1", "--threads", "1"]
    assert execute(["train", str(noisy_file), *brief, "--out", str(out)]) == 0
    tried = [read_run(out / "plain" / str(number)).spec["lr"] for number in range(1, 11)]
    assert tried == [0.02] * 5 + [0.05] * 5
    one, both = tmp_path / "one", best_judges(out, PLAIN)
    shutil.copytree(out / "plain", one / "plain")
    for number in range(1, 6) if both.lr == 0.05 else range(6, 11):
        shutil.rmtree(one / "plain" / str(number))
    assert best_judges(one, PLAIN).log_likelihood == both.log_likelihood  # those that were chosen are left
    run = read_run(out)
    assert run.spec["lr"] == both.lr and run.spec["batch"] == 32
    assert f"learning rate: {both.lr:g} (best log-likelihood on held-out labels)" in capsys.readouterr().out
    assert {read_run(out / "selecting" / str(number)).spec["lr"] for number in range(1, 6)} == {both.lr}


def test_share_given_by_the_user_is_held_out(noisy_file, tmp_path):
    out = tmp_path / "run"
    assert execute(["train", str(noisy_file), *QUICK, *BRIEF, "--valid", "0.1", "--no-final", "--out", str(out)]) == 0
    assert read_run(out).start["samples"] == 0.9 * SAMPLES
    assert read_run(out / "selecting" / "1").start["samples"] == 0.8 * SAMPLES


def test_given_noise_rate_leads_to_the_same_settings(tmp_path):
    data = str(save_blobs(tmp_path / "blobs.npz", 200))
    experiment = experiment_for(data, model="auto", noise_rate=0.2)

    def candidates(experiment, unknown):
        options = {"noise_is_unknown": unknown, "method": None, "final": True, "shelf": Shelf()}
        return make_request(experiment, OPEN_SETTINGS, **options).candidates

    ((training, judges),) = candidates(experiment, unknown=False)
    ((found, _),) = candidates(experiment, unknown=True)
    assert judges == () and training == found != experiment
    own = replace(experiment, model="mlp")
    assert candidates(own, unknown=False) == ((own, ()),)


# Resuming


def test_killed_automatic_run_is_resumed_bit_for_bit(auto_run, noisy_file, tmp_path):
    out = tmp_path / "cut"
    argv = ["train", str(noisy_file), *QUICK, "--out", str(out)]
    for folder in (out / "plain" / "2", out / "selecting" / "3", out / "second" / "1", out):
        kill_after_epoch(folder / "record.jsonl", argv, steps=3)
    assert execute(argv) == 0
    for name in (".", "plain/2", "selecting/3", "second/1", "second/5"):
        assert without_resumes(out / name) == without_resumes(auto_run / name)
        for file in ("model.safetensors", "samples.safetensors"):
            assert (out / name / file).read_bytes() == (auto_run / name / file).read_bytes()


def test_run_of_an_older_version_is_still_finished(auto_run, noisy_file, tmp_path, capsys):
    old = tmp_path / "old"
    shutil.copytree(auto_run, old)
    forget_sources(old)
    before = content_of(old)
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(old)]) == 0
    shown = capsys.readouterr().out
    assert f"already trained: {old}" in shown and not re.search("stage|epoch 1/", shown)
    after = content_of(old)
    assert after.pop(old / "request.json")  # the next time, it is recognised at once
    for page in (old / "report.html", old / "audit" / "summary.json"):
        del before[page], after[page]
    assert after == before


def test_run_without_its_delivered_training_is_resumed_bit_for_bit(auto_run, noisy_file, tmp_path):
    cut = tmp_path / "cut"
    for folder in ("plain", "selecting"):
        shutil.copytree(auto_run / folder, cut / folder)
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(cut)]) == 0
    for name in ("corrected.npy", "model.safetensors", "samples.safetensors"):
        assert (cut / name).read_bytes() == (auto_run / name).read_bytes()


# Decoding


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a folder of 120 colour images of two classes."""
    folder, random = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for index in range(120):
        pixels = random.integers(0, 90, (12, 12, 3)).astype(np.uint8)
        pixels[..., index % 2] += 120
        name = ("red", "green")[(index + (index % 10 == 0)) % 2]  # some labels are wrong
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name / f"{index:03}.png")
    return folder


class Decoder:
    """Counts how often each image is decoded."""

    def __init__(self):
        self.counts = Counter()

    def __call__(self, content, frame):
        self.counts[hashlib.sha256(content).digest()] += 1
        return DECODE(content, frame)


DECODE = images_module.decode


@pytest.fixture(scope="module")
def photo_run(photos, tmp_path_factory):
    """Train automatically; return the run, the decodings of training and of thumbnails, and what was printed."""
    out = tmp_path_factory.mktemp("runs") / "photos"
    training, thumbnails = Decoder(), Decoder()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as shown:
        patch.setattr(images_module, "decode", training)
        patch.setattr(samples_module, "decode", thumbnails)
        assert execute(["train", str(photos), *BRIEF, "--backbone", "none", "--out", str(out)]) == 0
    return out, training.counts, thumbnails.counts, shown.getvalue().splitlines()


def test_automatic_training_decodes_every_image_once(photos, photo_run):
    out, training, thumbnails, _ = photo_run
    images = {hashlib.sha256(path.read_bytes()).digest() for path in photos.rglob("*.png")}
    assert len(images) == 120 and training.keys() == images
    assert set(training.values()) == {1}
    assert set(thumbnails.values()) <= {1} and thumbnails.keys() <= images  # samples shown in the gallery, larger
    trainings = [path.parent for path in out.rglob("done")]
    assert len(trainings) == 2 + 10 + 5 + 5 + 1
    assert {path.parent.name for path in trainings} > {"network", "plain", "selecting"}


def test_progress_names_stage_and_training(photo_run):
    *_, lines = photo_run
    stages = [line for line in lines if re.match(r"stage \d of 5: ", line)]
    assert stages[0] == "stage 1 of 5: choose the network: small or compact (2 trainings of 1 epoch)"
    assert stages[1].startswith("stage 2 of 5: estimate the noise rate and choose the learning rate with networks ")
    assert stages[1].endswith(" (10 trainings of 1 epoch)") and stages[2].endswith(" (5 trainings of 2 epochs)")
    assert stages[4].endswith("with corrected labels (1 training of 2 epochs)") and len(stages) == 5
    assert any(line.startswith("stage 1 of 5, network 2/2, epoch 1/1: loss ") for line in lines)
    assert any(line.startswith("stage 2 of 5, plain judges 1/10, epoch 1/1: loss ") for line in lines)
    assert any(line.startswith("stage 5 of 5, training, epoch 2/2: ") for line in lines)


@pytest.mark.parametrize("rate", ["auto", "0.1"])
def test_finished_command_decodes_nothing_until_the_data_changes(
    photos, photo_run, rate, tmp_path, capsys, monkeypatch
):
    folder, out = tmp_path / "photos", tmp_path / "run"
    shutil.copytree(photos, folder)
    argv = ["train", str(folder), *BRIEF, "--backbone", "none", "--noise-rate", rate, "--out", str(out)]
    if rate == "auto":
        shutil.copytree(photo_run[0], out)
    assert execute(argv) == 0
    before = content_of(out)
    with monkeypatch.context() as patch:
        for module in (images_module, samples_module):
            patch.setattr(module, "decode", lambda *_: pytest.fail("an image was decoded"))
        capsys.readouterr()
        assert execute(argv) == 0
        assert "already trained" in capsys.readouterr().out and content_of(out) == before
    Image.new("RGB", (12, 12), "blue").save(next(iter(sorted(folder.rglob("*.png")))))
    assert execute(argv) == 2
    error = capsys.readouterr().err
    assert re.search("the data or labels changed since .*name another --out", error)
    assert error.count("\n") == 1 and content_of(out) == before


# Refusals and warnings


def test_folder_with_other_files_is_left_alone(noisy_file, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    for rate in ("auto", "0.3"):
        assert execute(["train", str(noisy_file), *QUICK, "--noise-rate", rate, "--out", str(tmp_path)]) == 2
        assert "contains other files (thesis.txt)" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("rate", ["auto", "0.3"])
def test_file_in_place_of_the_run_folder_is_refused(rate, noisy_file, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert execute(["train", str(noisy_file), *QUICK, "--noise-rate", rate, "--out", str(tmp_path / "thesis.txt")]) == 2
    assert "thesis.txt is a file, not a folder; name another --out\n" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_run_with_a_given_rate_is_refused_before_any_judge(noisy_file, tmp_path, capsys):
    argv = ["train", str(noisy_file), *QUICK, *BRIEF, "--out", str(tmp_path / "given")]
    assert execute([*argv, "--noise-rate", "0.3"]) == 0
    before = content_of(tmp_path)
    assert execute(argv) == 2
    assert "given holds another run: its noise rate was given; name another --out" in capsys.readouterr().err
    assert content_of(tmp_path) == before


def test_too_few_samples_are_refused(tmp_path, capsys):
    data = save_blobs(tmp_path / "few.npz", 45)
    assert execute(["train", str(data), *QUICK, *BRIEF, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "45 samples are too few to estimate the noise rate; set --noise-rate" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "mentornetprop"], "did you mean mentornet-prop?"),
        (["--criterion", "oll"], "did you mean ol?"),
        (["--set", "flor=0.5"], "has no option 'flor'"),
        (["--method", "sl", "--set", "beta=much"], "option beta cannot be 'much'"),
        (["--method", "selfie", "--set", "rounds=0"], "rounds must be at least 1"),
        (["--method", "vat", "--forward", "second"], "--forward second"),
        (["--method", "co-teaching", "--init", "runs/other"], "networks that differ"),
    ],
)
@pytest.mark.parametrize("rate", [[], ["--noise-rate", "auto"]])
def test_unusable_method_is_refused_before_any_judge(options, message, rate, noisy_file, capsys, monkeypatch):
    monkeypatch.setattr(train_module, "train", lambda *_: pytest.fail("a stage was started"))
    assert execute(["train", str(noisy_file), *options, *rate]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_network_that_predicts_one_class_is_detected():
    samples = {"likeliest": np.array([[1, 0]] * 97 + [[0, 1]] * 3), "label": np.array([0, 1] * 50)}
    assert predicted_class(samples, ["a", "b"]) == "b"
    assert predicted_class({**samples, "label": np.array([1] * 95 + [0] * 5)}, ["a", "b"]) == ""  # as the labels are
    assert predicted_class({**samples, "likeliest": np.array([[1, 0]] * 90 + [[0, 1]] * 10)}, ["a", "b"]) == ""


def test_warning_about_a_network_that_predicts_one_class(auto_run, noisy_file, capsys, monkeypatch):
    monkeypatch.setattr(train_module, "predicted_class", lambda samples, classes: classes[1])
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(auto_run)]) == 0
    assert "warning: the model predicts 1 for nearly every sample; try a lower --lr" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "advice"), [([], ", or with --set align=true\n"), (["--set", "align=true"], "with another --seed\n")]
)
def test_warning_about_a_neglected_class(options, advice, noisy_file, tmp_path, capsys):
    run = tmp_path / "run"
    argv = ["train", str(noisy_file), *QUICK, *BRIEF, "--noise-rate", "0.3", *options, "--out", str(run)]
    assert execute(argv) == 0
    assert "warning:" not in capsys.readouterr().out
    *rest, last, end = (run / "record.jsonl").read_text().splitlines()
    row = json.loads(last)
    row["kept"][1] = 0.07
    (run / "done").write_bytes(b"")  # as of an older version, without digests
    (run / "record.jsonl").write_text("\n".join([*rest, json.dumps(row), end]) + "\n")
    assert execute(argv) == 0  # finished: its record is described again
    shown = capsys.readouterr().out
    assert f"warning: few samples of {read_run(run).classes[1]} (7%) were kept; " in shown and advice in shown
