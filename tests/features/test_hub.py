"""Backbones from transformers and timm, with small models of random weights in local folders."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    Dinov2Config,
    Dinov2Model,
    PreTrainedTokenizerFast,
    ResNetConfig,
    ResNetModel,
    ViTConfig,
    ViTForImageClassification,
)

from labelsieve.errors import InputError
from labelsieve.features.backbones import find_backbone, restore_backbone

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
PROCESSOR = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.5], "size": {"height": 28, "width": 28}}
SENTENCE = "my card is lost where bank money send a to the of it now"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *SENTENCE.split()]
TEXTS = [
    "my card is lost",
    "where is the bank",
    "",
    "money " * 30,
    "send money to the bank",
    "a",
    "it",
    "of",
    "now",
]


def saved(model, folder, processor=None):
    model.save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return f"hf:{folder}"


def normalised(images):
    mean, deviation = (torch.tensor(PROCESSOR[key]).view(3, 1, 1) for key in ("image_mean", "image_std"))
    return (images.float() / 255 - mean) / deviation


def images_of(size, count=3):
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)


@pytest.fixture
def bert(tmp_path):
    """Save a small text model and its tokenizer; return its folder."""
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=20, **SMALL)).save_pretrained(tmp_path)
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]").save_pretrained(tmp_path)
    return tmp_path


@torch.no_grad()
def test_dinov2_features_are_the_first_token(tmp_path):
    model = Dinov2Model(Dinov2Config(image_size=28, patch_size=7, mlp_ratio=2, **SMALL)).eval()
    backbone = find_backbone(saved(model, tmp_path, PROCESSOR))
    assert (backbone.kind, backbone.dim, backbone.size, backbone.own) == ("images", 16, 28, False)
    images = images_of(28, 6)
    expected = model(pixel_values=normalised(images)).last_hidden_state[:, 0]
    torch.testing.assert_close(backbone(images), expected, rtol=1e-5, atol=1e-5)
    assert backbone(images[4:]).equal(backbone(images)[4:])
    assert restore_backbone(backbone.about(), backbone.weights()).identity == backbone.identity
    larger = find_backbone(backbone.name, size=42)
    assert larger(images).shape == (6, 16) and larger.identity != backbone.identity


@torch.no_grad()
def test_classifiers_give_the_features_below_their_head(tmp_path):
    model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=3, **SMALL)).eval()
    backbone = find_backbone(saved(model, tmp_path, {**PROCESSOR, "size": 32}))  # the file has no pooling layer
    images = images_of(32)
    expected = model.vit(pixel_values=normalised(images)).last_hidden_state[:, 0]
    torch.testing.assert_close(backbone(images), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=r"fails on images of 40 x 40 pixels: .*; try another --size"):
        find_backbone(backbone.name, size=40)


@torch.no_grad()
def test_convolutional_features_are_the_mean_over_the_plane(tmp_path):
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = ResNetModel(config).eval()
    crop = {"do_center_crop": True, "crop_size": {"height": 48, "width": 48}, "size": {"shortest_edge": 60}}
    backbone = find_backbone(saved(model, tmp_path, {**PROCESSOR, **crop}))
    images = images_of(48)
    expected = model(pixel_values=normalised(images)).last_hidden_state.mean((2, 3))
    torch.testing.assert_close(backbone(images), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_clip_features_are_the_projected_ones(tmp_path):
    vision = {**SMALL, "image_size": 28, "patch_size": 7, "projection_dim": 12}
    config = CLIPConfig(text_config={**SMALL, "vocab_size": 20}, vision_config=vision, projection_dim=12)
    model = CLIPModel(config).eval()
    backbone = find_backbone(saved(model, tmp_path, {"image_processor_type": "CLIPImageProcessor", **PROCESSOR}))
    images = images_of(28)
    vectors = model.vision_model(pixel_values=normalised(images)).pooler_output
    torch.testing.assert_close(backbone(images), model.visual_projection(vectors), rtol=1e-5, atol=1e-5)
    assert backbone.dim == 12


@torch.no_grad()
def test_text_features_are_the_mean_over_tokens(bert):
    backbone = find_backbone(f"hf:{bert}")
    assert (backbone.kind, backbone.dim, backbone.size) == ("texts", 16, 0)
    model = BertModel.from_pretrained(bert).eval()
    found = backbone(TEXTS)
    for text, row in zip(TEXTS, found, strict=True):
        ids = [2, *(WORDS.index(word) for word in text.split()[:18]), 3]  # 20 positions
        expected = model(input_ids=torch.tensor([ids])).last_hidden_state.mean(1)[0]
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)
    assert backbone(TEXTS[::-1]).flip(0).equal(found)
    assert torch.cat([backbone([text]) for text in TEXTS]).equal(found)
    assert find_backbone(f"hf:{bert}").identity == backbone.identity


@torch.no_grad()
def test_text_features_are_the_first_token_where_the_model_says_so(bert):
    mean = find_backbone(f"hf:{bert}")
    (bert / "1_Pooling").mkdir()
    (bert / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    backbone = find_backbone(f"hf:{bert}")
    ids = torch.tensor([[2, *(WORDS.index(word) for word in TEXTS[0].split()), 3]])
    expected = BertModel.from_pretrained(bert).eval()(input_ids=ids).last_hidden_state[:, 0]
    torch.testing.assert_close(backbone(TEXTS[:1]), expected, rtol=1e-4, atol=1e-5)
    assert backbone.identity != mean.identity


def test_changed_tokenizer_changes_the_identity(bert):
    before = find_backbone(f"hf:{bert}").identity
    path = bert / "tokenizer.json"
    path.write_text(path.read_text().replace('"Whitespace"', '"WhitespaceSplit"'))
    assert find_backbone(f"hf:{bert}").identity != before


def test_missing_models_and_weights_are_explained(tmp_path, monkeypatch, bert):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    with pytest.raises(InputError, match=r"hf:some/model is not on this machine.*; run hf download some/model$"):
        find_backbone("hf:some/model")
    with pytest.raises(InputError, match="is not on this machine"):
        find_backbone("hf:not a name")
    with pytest.raises(InputError, match="has no --size"):
        find_backbone(f"hf:{bert}", size=64)
    with pytest.raises(InputError, match="has weights of its own; omit --weights"):
        find_backbone(f"hf:{bert}", weights="x.pth")
    weights = {
        name: tensor for name, tensor in BertModel.from_pretrained(bert).state_dict().items() if "key" not in name
    }
    save_file(weights, bert / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"lacks weights of hf:.*, such as encoder\.layer\.0\.attention"):
        find_backbone(f"hf:{bert}")
    (bert / "config.json").write_text("{")
    with pytest.raises(InputError, match="cannot load hf:"):
        find_backbone(f"hf:{bert}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"transformers cannot be imported.*pip install 'labelsieve\[huggingface\]'"):
        find_backbone(f"hf:{bert}")


class TimmLike(nn.Module):
    """A network with the interface of timm's: settings, and a classifier that can be removed."""

    def __init__(self, hub_id="timm/some"):
        super().__init__()
        self.pretrained_cfg = {"input_size": (3, 24, 24), "mean": (0.5,) * 3, "std": (0.25,) * 3, "hf_hub_id": hub_id}
        self.conv, self.fc = nn.Conv2d(3, 5, 3), nn.Linear(5, 10)

    def reset_classifier(self, num_classes):
        assert num_classes == 0
        self.fc = nn.Identity()

    def forward(self, x):
        return self.fc(self.conv(x).mean((2, 3)))


@torch.no_grad()
def test_timm_networks_load_from_files_and_from_the_local_cache(tmp_path, monkeypatch):
    model = TimmLike()

    def create_model(name, pretrained):
        assert not pretrained
        if name not in ("some", "unpublished"):
            raise RuntimeError(f"Unknown model ({name})")
        return TimmLike() if name == "some" else TimmLike(hub_id=None)

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    backbone = find_backbone("timm:some", weights=tmp_path / "model.safetensors")
    images = images_of(24)
    expected = model.conv((images.float() / 255 - 0.5) / 0.25).mean((2, 3))
    torch.testing.assert_close(backbone(images), expected, rtol=1e-4, atol=1e-5)
    assert (backbone.dim, backbone.size) == (5, 24)
    assert restore_backbone(backbone.about(), backbone.weights())(images).equal(backbone(images))
    asked = []

    def snapshot_download(repository, local_files_only):
        asked.append((repository, local_files_only))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert find_backbone("timm:some").identity == backbone.identity and asked == [("timm/some", True)]
    with pytest.raises(InputError, match=r"^timm:other is not a network of timm: Unknown model \(other\)$"):
        find_backbone("timm:other")
    with pytest.raises(InputError, match="timm:unpublished has no weights on the hub; pass --weights FILE"):
        find_backbone("timm:unpublished")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match=r"timm cannot be imported: .*pip install 'timm'"):
        find_backbone("timm:some")
