"""Exported models: the same probabilities in onnxruntime, torch.export and transformers, without labelsieve."""

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import labelsieve
from labelsieve.cli import execute
from labelsieve.export import TIMM_NAMES, _as_timm, _can_load_timm, export_model, exportable
from labelsieve.features.backbones import find_backbone, own_backbone
from labelsieve.models import make_model
from labelsieve.models.linear import LinearHead
from labelsieve.models.lite import VARIANTS
from labelsieve.predict import Predictor, predict_data
from tests.conftest import LONG_WAIT, save_blobs

pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporters
ROOT = Path(__file__).parents[1]
QUICK = ["--epochs", "1", "--warmup", "0", "--noise-rate", "0", "--threads", "1", "--device", "cpu", "--batch", "32"]
SERVE = """
import json, sys
import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1])
facts = session.get_modelmeta().custom_metadata_map
classes, about = json.loads(facts["classes"]), json.loads(facts["labelsieve"])
images = []
for file in sys.argv[3:]:
    image = Image.open(file).convert("RGB").resize((about["width"], about["height"]), Image.Resampling.BILINEAR)
    images.append(np.asarray(image))
(probabilities,) = session.run(None, {"images": np.stack(images)})
np.save(sys.argv[2], probabilities)
print([classes[k] for k in probabilities.argmax(1)])
"""


def seeded(name, shape, classes=4):
    """Return a network whose batch-norms have statistics of their own."""
    torch.manual_seed(0)
    network = make_model(name, shape, classes)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return network.eval()


def run_onnx(content, inputs):
    session = pytest.importorskip("onnxruntime").InferenceSession(content)
    return session.run(None, inputs)[0], session.get_modelmeta().custom_metadata_map


@pytest.mark.parametrize(
    ("name", "shape", "normalise"),
    [
        ("small", (1, 12, 9), "image"),
        ("compact", (3, 70, 70), "image"),
        ("densenet-25-12", (3, 16, 16), "image"),
        ("resnet-18", (3, 32, 32), "imagenet"),
        ("vgg-19", (3, 32, 32), "image"),
        ("mlp", (6,), "image"),
        ("linear", (6,), "image"),
    ],
)
def test_networks_compute_the_same_in_onnxruntime(name, shape, normalise, tmp_path):
    """For batches of any size, other than those that the export itself checks."""
    classes = ["a", "b", "ç", "d"]
    predictor = Predictor(seeded(name, shape), shape, classes, normalise, model=name)
    written = export_model(predictor, "onnx", tmp_path / "model.onnx")
    assert written.difference is not None and written.difference <= 1e-5
    random = np.random.default_rng(1)
    for count in (1, 5):
        if len(shape) == 1:
            samples, given = random.normal(size=(count, *shape)).astype(np.float32), "rows"
        else:
            samples, given = random.integers(0, 256, (count, *shape[1:], shape[0]), dtype=np.uint8), "images"
        found, facts = run_onnx(written.path.read_bytes(), {given: samples})
        np.testing.assert_allclose(found, predictor.predict_proba(samples), atol=1e-5)
    assert json.loads(facts["classes"]) == classes and json.loads(facts["labelsieve"])["inputs"] == [given]


def test_a_head_on_a_backbone_is_served_without_labelsieve(tmp_path, capsys):
    """Train on photographs, export with the command, and classify files with onnxruntime, numpy and Pillow alone."""
    pytest.importorskip("onnxruntime")
    random = np.random.default_rng(0)
    for number, name in enumerate(("dusk", "noon", "sea")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(8):
            pixels = random.integers(0, 120, (96 + index, 80, 3), dtype=np.uint8)
            pixels[..., number] += 100
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.jpg")
    run, file = tmp_path / "run", tmp_path / "model.onnx"
    argv = ["train", str(tmp_path / "photos"), "--backbone", "lite0", "--size", "64", "--model", "linear"]
    assert execute([*argv, "--method", "default", "--device", "cpu", "--threads", "1", "--out", str(run)]) == 0
    capsys.readouterr()
    assert execute(["export", str(run), "--out", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "checked with onnxruntime on generated samples" in shown and str(file) in shown
    photos = sorted((tmp_path / "photos").glob("*/*.jpg"))
    command = [sys.executable, "-c", SERVE, str(file), str(tmp_path / "p.npy"), *map(str, photos)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_WAIT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    predictor = labelsieve.load(run)
    expected, _, names = predict_data(predictor, str(tmp_path / "photos"))
    assert [Path(name).name for name in names] == [photo.name for photo in photos]
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), expected, atol=1e-4)
    assert done.stdout.strip() == str([predictor.classes[k] for k in expected.argmax(1)])
    assert execute(["export", str(run), "--out", str(file)]) == 2
    assert "exists; pass --force to replace it" in capsys.readouterr().err
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    content = bytearray((damaged / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(content)
    assert execute(["export", str(damaged), "--out", str(tmp_path / "other.onnx")]) == 2
    assert "model.safetensors is damaged" in capsys.readouterr().err and not (tmp_path / "other.onnx").exists()


def test_torch_export_is_loaded_without_labelsieve(tmp_path):
    data = save_blobs(tmp_path / "data.npz", 80)
    run, file = tmp_path / "run", tmp_path / "model.pt2"
    assert execute(["train", str(data), "--model", "small", *QUICK, "--out", str(run)]) == 0
    assert execute(["export", str(run), "--format", "torch-export", "--out", str(file)]) == 0
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    code = (
        "import sys; sys.modules['labelsieve'] = None; import json, numpy as np, torch\n"
        f"extra = {{'labelsieve.json': ''}}; program = torch.export.load({str(file)!r}, extra_files=extra)\n"
        f"found = program.module()(images=torch.from_numpy(np.load({str(tmp_path / 'images.npy')!r})))\n"
        f"np.save({str(tmp_path / 'found.npy')!r}, found.detach().numpy()); print(json.loads(extra['labelsieve.json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_WAIT)
    assert done.returncode == 0, done.stderr
    assert "'classes': ['0', '1', '2', '3']" in done.stdout and "resize to 8 x 8" in done.stdout
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), labelsieve.load(run).predict_proba(images), atol=1e-6)


@pytest.mark.parametrize(("name", "special"), [("wordllama", False), ("minilm", True)])
def test_texts_are_exported_with_their_tokenizer(tmp_path, name, special):
    tokenizers = pytest.importorskip("tokenizers")
    backbone = find_backbone(name)
    head = LinearHead((backbone.dim,), 3)
    torch.manual_seed(0)
    head.linear.weight.data.normal_()
    predictor = Predictor(head.eval(), (backbone.dim,), ["a", "b", "c"], backbone=backbone, model="linear")
    written = export_model(predictor, "onnx", tmp_path / "texts.onnx")
    texts = ["My card was not accepted at the shop.", "top up", ""]
    _, facts = run_onnx(
        written.path.read_bytes(), {name: value.numpy() for name, value in exportable(predictor).inputs.items()}
    )
    tokenizer = tokenizers.Tokenizer.from_str(facts["tokenizer"])
    tokenizer.enable_padding()
    tokenizer.no_truncation()
    tokens = tokenizer.encode_batch(texts, add_special_tokens=special)
    assert f"{'with' if special else 'without'} special tokens" in facts["labelsieve"]
    inputs = {
        "input_ids": np.array([t.ids for t in tokens]),
        "attention_mask": np.array([t.attention_mask for t in tokens]),
    }
    found, _ = run_onnx(written.path.read_bytes(), inputs)
    np.testing.assert_allclose(found, predictor.predict_proba(texts), atol=1e-5)


@pytest.mark.parametrize("name", [*VARIANTS, "resnet-18", "resnet-50"])
def test_weights_have_the_names_of_timm(name):
    if not _can_load_timm():
        pytest.skip("timm and a torchvision that matches torch are needed")
    network = import_module("timm").create_model(TIMM_NAMES[name], num_classes=5)
    own = _as_timm(name, make_model(name, (3, 64, 64), 5).state_dict())
    assert {key: value.shape for key, value in network.state_dict().items()} == {k: v.shape for k, v in own.items()}


def test_a_backbone_with_its_head_is_a_model_of_transformers(tmp_path):
    if not _can_load_timm():
        pytest.skip("transformers, timm and a torchvision that matches torch are needed")
    body = seeded("lite0", (3, 64, 64), 1)
    body._fc = nn.Identity()
    head = LinearHead((1280,), 3)
    torch.manual_seed(0)
    head.linear.weight.data.normal_()
    backbone = own_backbone("lite0", body.state_dict(), 64)
    predictor = Predictor(head.eval(), (1280,), ["a", "b", "c"], backbone=backbone, model="linear")
    written = export_model(predictor, "huggingface", tmp_path / "hub")
    assert written.difference is not None and written.difference < 1e-3
    from transformers import pipeline

    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)).save(tmp_path / "one.png")
    best = pipeline("image-classification", model=str(tmp_path / "hub"))(str(tmp_path / "one.png"))[0]
    pixels = np.asarray(Image.open(tmp_path / "one.png").resize((64, 64), Image.Resampling.BILINEAR))
    expected = predictor.predict_proba(pixels[None])[0]
    assert best["label"] == "abc"[expected.argmax()] and abs(best["score"] - expected.max()) < 1e-2


def test_a_hugging_face_folder_has_weights_names_and_preprocessing(tmp_path):
    predictor = Predictor(seeded("resnet-18", (3, 32, 32)), (3, 32, 32), list("abcd"), "imagenet", model="resnet-18")
    export_model(predictor, "huggingface", tmp_path / "hub")
    files = {file.name for file in (tmp_path / "hub").iterdir()}
    assert files == {"config.json", "model.safetensors", "preprocessor_config.json", "README.md"}
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert config["label_names"] == list("abcd") and config["pretrained_cfg"]["mean"] == [0.485, 0.456, 0.406]
    (tmp_path / "hub" / "mine.txt").touch()
    with pytest.raises(labelsieve.errors.InputError, match=r"contains other files \(mine.txt\)"):
        export_model(predictor, "huggingface", tmp_path / "hub", force=True)
    (tmp_path / "hub" / "mine.txt").unlink()
    export_model(predictor, "huggingface", tmp_path / "hub", force=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hub"]


def test_a_failed_replacement_leaves_the_earlier_folder(tmp_path, monkeypatch):
    predictor = Predictor(seeded("resnet-18", (3, 32, 32)), (3, 32, 32), list("abcd"), "imagenet", model="resnet-18")
    hub = tmp_path / "hub"
    export_model(predictor, "huggingface", hub)
    before = {file.name: file.read_bytes() for file in hub.iterdir()}
    rename = Path.rename

    def fail(self, target):
        if self.name == ".hub.new":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(labelsieve.errors.LabelsieveError, match="Input/output error"):
        export_model(predictor, "huggingface", hub, force=True)
    assert {file.name: file.read_bytes() for file in hub.iterdir()} == before


def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path, capsys, monkeypatch):
    small = Predictor(seeded("small", (1, 8, 8)), (1, 8, 8), list("abcd"), model="small")
    with pytest.raises(labelsieve.errors.InputError, match="use onnx or torch-export"):
        export_model(small, "huggingface", tmp_path / "hub")
    with pytest.raises(labelsieve.errors.InputError, match="must be one of onnx, torch-export, huggingface"):
        export_model(small, "tflite", tmp_path / "model")
    with pytest.raises(labelsieve.errors.InputError, match="is a folder; name another --out"):
        export_model(small, "onnx", tmp_path)
    assert execute(["export", str(tmp_path / "none"), "--out", str(tmp_path / "model.onnx")]) == 2
    assert "no model at" in capsys.readouterr().err
    monkeypatch.setattr("labelsieve.export.find_spec", lambda name: None)
    with pytest.raises(labelsieve.errors.InputError, match=r"pip install 'labelsieve\[onnx\]'"):
        export_model(small, "onnx", tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_export_is_not_written(tmp_path, monkeypatch):
    """Were the exporter wrong, the comparison would notice."""
    small = Predictor(seeded("small", (1, 8, 8)), (1, 8, 8), list("abcd"), model="small")
    predict = Predictor.predict_proba
    monkeypatch.setattr(Predictor, "predict_proba", lambda *given: predict(*given) + 2e-4)
    with pytest.raises(labelsieve.errors.LabelsieveError, match="nothing was written"):
        export_model(small, "torch-export", tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_the_docs_say_what_the_record_of_served_photographs_says():
    record = json.loads((ROOT / "benchmarks" / "results" / "served.json").read_text())
    largest, others = record["largest difference of a probability"], record["other classes"]
    words = " ".join((ROOT / "docs" / "export.md").read_text(encoding="utf-8").split())
    assert f"for {record['photographs']} photographs of {record['classes']} kinds of clothes" in words
    assert f"differ by at most {largest}, and {others} have another class" in words and largest < 1e-4


def test_the_docs_show_a_server_that_runs(tmp_path):
    """The script of docs/export.md classifies a photograph."""
    pytest.importorskip("onnxruntime")
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    network = seeded("resnet-18", (3, 32, 32))
    export_model(Predictor(network, (3, 32, 32), list("abcd"), model="resnet-18"), "onnx", tmp_path / "clothes.onnx")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)).save(tmp_path / "photo.jpg")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_WAIT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout[0] in "abcd"
