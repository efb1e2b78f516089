"""Embedding on Ray: the same bits as on one machine, and explained failures."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelsieve.data import ReadOptions
from labelsieve.data.load import find
from labelsieve.errors import InputError
from labelsieve.features.backbones import BackboneSpec, find_backbone
from labelsieve.features.embed import Cache, load_embedded, unknown_samples
from labelsieve.runs.execute import versions
from labelsieve.sweep import embed as module
from labelsieve.sweep.embed import Shard, embed_on_ray, embed_shard

SPEC = BackboneSpec("lite0", 32)


@pytest.fixture
def photos(tmp_path):
    """Write 30 images of two classes, one of which cannot be decoded."""
    random = np.random.default_rng(0)
    for number in range(30):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    (tmp_path / "photos/cat/broken.png").write_bytes(b"broken")
    return str(tmp_path / "photos")


def test_ray_computes_the_same_bits(photos, place, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHARD", 8)
    reading, said, steps = ReadOptions(skip_bad=True), [], []
    there, here = tmp_path / "there", tmp_path / "here"
    seen = {"watch": lambda *step: steps.append(step), "say": said.append}
    embed_on_ray(photos, reading, SPEC, on="ray", cache=there, **seen)
    assert said[0].startswith("on Ray: ") and steps[-1] == (31, 31) and len(steps) == 4
    backbone = find_backbone("lite0", size=32)
    stored = Cache(backbone, there).features
    far = load_embedded(photos, reading, backbone, cache=there)
    assert len(stored._index.keys) == len(Cache(backbone, there).features._index.keys) == 30  # nothing was left to do
    near = load_embedded(photos, reading, backbone, cache=here)
    assert far.train.images.equal(near.train.images) and len(far.train) == 30


def test_failed_parts_are_named(photos, tmp_path, monkeypatch):
    def fail(function, arguments, *others):
        return dict.fromkeys(list(arguments)[1:], "out of order")

    monkeypatch.setattr(module, "SHARD", 8)
    monkeypatch.setattr(module, "run_tasks", fail)
    with pytest.raises(InputError, match=r"^3 of 4 parts of .*photos failed, first: out of order$"):
        embed_on_ray(photos, ReadOptions(), SPEC, on="ray", cache=tmp_path)


def shard_of(source, **changes):
    split = find(source, ReadOptions()).train
    return Shard(source, ReadOptions(), "train", (0, 5, 1), tuple(split.names[k] for k in (0, 5, 1)))._replace(
        **changes
    )


def test_a_worker_encodes_its_samples(photos):
    backbone = find_backbone("lite0", size=32)
    here = (str(Path.cwd()), versions())
    keys, rows = embed_shard(shard_of(photos), SPEC, backbone.identity, *here)
    whole = load_embedded(photos, ReadOptions(skip_bad=True), backbone)
    assert len(keys) == 3 and rows.dtype == np.float16
    assert (rows.astype(np.float32) == whole.train.images[[0, 5, 1]].numpy()).all()
    other = shard_of(photos, names=("other",) * 3)
    assert "a worker finds other samples in" in embed_shard(other, SPEC, backbone.identity, *here)
    assert "a worker finds other samples in" in embed_shard(
        shard_of(photos, places=(99,)), SPEC, backbone.identity, *here
    )
    assert "a worker has another backbone lite0" in embed_shard(shard_of(photos), SPEC, "0" * 16, *here)
    assert "a worker has torch" in embed_shard(
        shard_of(photos), SPEC, backbone.identity, here[0], {**here[1], "torch": "0"}
    )


def test_only_unknown_samples_are_sent(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("labelsieve.features.embed.SETTLED", -1)
    backbone = find_backbone("lite0", size=32)
    reading = ReadOptions(skip_bad=True)
    split = find(photos, reading).train
    assert unknown_samples(split, Cache(backbone, tmp_path / "cache")) == list(range(31))
    load_embedded(photos, reading, backbone, cache=tmp_path / "cache")
    broken = list(split.names).index("cat/broken.png")
    assert unknown_samples(split, Cache(backbone, tmp_path / "cache")) == [broken]


def test_texts_are_known_by_their_content(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\none,a\ntwo,b\n")
    wordllama = find_backbone("wordllama")
    source = str(tmp_path / "t.csv")
    load_embedded(source, ReadOptions(), wordllama, cache=tmp_path / "cache")
    (tmp_path / "t.csv").write_text("text,label\none,a\nthree,b\ntwo,b\n")
    assert unknown_samples(find(source, ReadOptions()).train, Cache(wordllama, tmp_path / "cache")) == [1]
