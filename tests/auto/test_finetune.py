"""Fine-tuning of the whole network after the linear head: stages, delivery, resumption, refusals."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import labelsieve
from labelsieve.auto.plan import FINETUNING
from labelsieve.cli import execute
from labelsieve.data.sets import normalise_inputs
from labelsieve.features.backbones import OWN_NORMALISE, OWN_PIXELS, find_backbone, own_backbone, weights_with_head
from labelsieve.features.judge import fit_head
from labelsieve.models import make_model
from labelsieve.models.linear import LinearHead, one_hot
from labelsieve.report.page import write_report
from labelsieve.runs.find import unfinished
from labelsieve.runs.read import read_run, read_samples
from tests.auto.conftest import save_photos
from tests.conftest import kill_after_epoch

ROOT = Path(__file__).parents[2]
QUICK = ["--finetune", "--size", "32", "--epochs", "2", "--threads", "1"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return save_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert execute(["train", str(photos), *QUICK, "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize(("name", "grayscale"), [("lite0", False), ("lite0", True), ("resnet-18", False)])
def test_network_with_the_head_equals_head_on_features(name, grayscale):
    body = make_model(name, (3, 32, 32), 1).state_dict()
    weights = {key: tensor for key, tensor in body.items() if not key.startswith(("fc.", "_fc."))}
    backbone = find_backbone(name, size=32) if name == "lite0" else own_backbone(name, weights, 32)
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 1 if grayscale else 3, 32, 32), generator=random, dtype=torch.uint8)
    features = backbone(images)
    head = LinearHead((backbone.dim,), 3)
    head.assign(*fit_head(features, one_hot(torch.arange(40) % 3, 3), 0.1))
    network = make_model(name, tuple(images.shape[1:]), 3)
    network.load_state_dict(weights_with_head(backbone, head, grayscale))
    with torch.no_grad():
        expected, found = head.eval()(features), network.eval()(normalise_inputs(images, OWN_NORMALISE[name]))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_normalisation_is_that_of_the_backbone():
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in OWN_PIXELS["lite0"])
    torch.testing.assert_close(normalise_inputs(images, "lite"), (images.float() - mean) / deviation)


def test_whole_network_is_delivered(run, photos, tmp_path):
    spec = read_run(run).spec
    assert (spec["model"], spec["normalise"], spec["size"], spec["backbone"]) == ("lite0", "lite", 32, None)
    assert (spec["method"], spec["epochs"], spec["lr"], spec["batch"]) == ("default", 2, 0.002, 32)
    before, after = read_samples(run / "head" / "1"), read_samples(run)
    corrected = np.load(run / "corrected.npy")
    assert (after["label"] == corrected).all() and (corrected != before["label"]).any()
    predictor = labelsieve.load(run)
    assert predictor.backbone is None and predictor.shape == (3, 32, 32)
    assert execute(["predict", str(run), str(photos / "test"), "--out", str(tmp_path / "p.csv")]) == 0
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    wrong = np.mean([row["predicted_label"] not in row["id"] for row in rows])
    assert 100 * wrong == pytest.approx(read_run(run).end["last"])


def test_all_layers_are_trained_and_statistics_are_kept(run):
    body = labelsieve.load(run / "head" / "1").backbone.network.body.state_dict()
    tuned = labelsieve.load(run).network.state_dict()
    assert body.keys() < tuned.keys()
    for name, tensor in body.items():
        kept = name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")
        assert torch.equal(tensor, tuned[name]) == kept, name


def test_audit_report_and_moved_run(run, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    assert execute(["audit", str(moved)]) == 0
    assert (moved / "audit" / "labels.csv").read_bytes() == (run / "audit" / "labels.csv").read_bytes()
    page = write_report([run], tmp_path / "page.html", 10).read_text()
    assert "the whole network lite0, fine-tuned for 2 epochs on labels corrected by the audit" in page


def test_same_command_again_is_finished(run, photos, capsys):
    assert execute(["train", str(photos), *QUICK, "--out", str(run)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("already trained") == 1 and "stage" not in shown


def test_interrupted_fine_tuning_is_resumed_bit_for_bit_elsewhere(run, photos, tmp_path):
    cut, moved = tmp_path / "cut", tmp_path / "moved"
    argv = ["train", str(photos), *QUICK, "--out"]
    kill_after_epoch(cut / "record.jsonl", [*argv, str(cut)])
    assert "interrupted after 1 of 2 epochs of the training" in unfinished(cut)
    cut.rename(moved)
    assert execute([*argv, str(moved)]) == 0
    for name in ("corrected.npy", "model.safetensors", "head/1/model.safetensors"):
        assert (moved / name).read_bytes() == (run / name).read_bytes()


def test_finished_run_without_fine_tuning_is_refused(photos, tmp_path, capsys):
    out = tmp_path / "run"
    argv = ["train", str(photos), "--size", "32", "--epochs", "2", "--threads", "1", "--out", str(out)]
    assert execute(argv) == 0 and not (out / "head").exists()
    model = (out / "model.safetensors").read_bytes()
    assert execute([*argv, "--finetune"]) == 2
    assert "another" in capsys.readouterr().err and (out / "model.safetensors").read_bytes() == model


def test_documented_settings_are_the_defaults():
    settings = "{epochs} epochs, batches of {batch} and a learning rate of {lr}".format(**FINETUNING)
    assert settings in " ".join((ROOT / "docs" / "auto.md").read_text(encoding="utf-8").split())


def test_dry_run_lists_the_stage(photos, tmp_path, capsys):
    assert execute(["train", str(photos), *QUICK, "--dry-run", "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "3. training: train the whole network lite0 on all images with corrected labels" in shown
    assert "fine-tuning takes" in shown and not (tmp_path / "run").exists()


def test_cpu_is_warned_about(photos, tmp_path, capsys):
    """Streamed and augmented images are fine-tuned on; the heads use features."""
    argv = ["train", str(photos), *QUICK, "--stream", "--augment", "flip", "--out", str(tmp_path / "run")]
    assert execute(argv) == 0
    assert "fine-tuning takes about" in capsys.readouterr().out
    assert read_run(tmp_path / "run").spec["augment"] == "flip"
    assert read_run(tmp_path / "run" / "head" / "1").spec["augment"] == ""


def test_grayscale_photographs(tmp_path):
    data, out = save_photos(tmp_path / "gray", gray=True, per_class=12), tmp_path / "run"
    assert execute(["train", str(data), "--finetune", "--size", "32", "--epochs", "1", "--out", str(out)]) == 0
    assert labelsieve.load(out).shape == (1, 32, 32)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--features", "x.npy"], "omit --features"),
        (["--method", "mentornet"], "omit --method"),
        (["--noise-rate", "0.2"], "omit --method, --set, --noise-rate and --no-final"),
        (["--no-final"], "and --no-final"),
        (["--model", "small"], "omit --model"),
        (["--backbone", "none"], "needs a pretrained network: pass --backbone lite0"),
        (["--backbone", "timm:resnet18"], "cannot train timm:resnet18; use --backbone with one of lite0"),
        (["--backbone", "hf:model"], "cannot train hf:model"),
        (["--backbone", "wordllama"], "cannot train wordllama"),
    ],
)
def test_what_cannot_be_fine_tuned_is_refused(photos, options, reason, tmp_path, capsys):
    assert execute(["train", str(photos), "--finetune", *options, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1 and not (tmp_path / "run").exists()


def test_arrays_are_refused(tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "arrays.npz", images=images, labels=np.arange(40) % 2)
    argv = ["train", str(tmp_path / "arrays.npz"), "--backbone", "lite0", "--finetune"]
    assert execute([*argv, "--out", str(tmp_path / "run")]) == 2
    assert "contains arrays" in capsys.readouterr().err
