"""Embedding: each sample once, the same bits on every path, and nothing lost when it is killed."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from labelsieve.data import Labelled, ReadOptions, images
from labelsieve.data.images import Frame, fast_decode
from labelsieve.data.load import find
from labelsieve.errors import DamagedFile, InputError
from labelsieve.features import embed as module
from labelsieve.features.backbones import Backbone, find_backbone
from labelsieve.features.embed import Cache, embed_split, encode_samples, load_embedded
from tests.data.builders import encoded

SIZE = 32


@pytest.fixture(scope="module")
def lite0():
    return find_backbone("lite0", size=SIZE)


class Counted:
    """A backbone that counts the samples that it is given."""

    def __init__(self, backbone):
        self.backbone, self.samples = backbone, 0

    def __getattr__(self, name):
        return getattr(self.backbone, name)

    def __call__(self, samples):
        self.samples += len(samples)
        return self.backbone(samples)


@pytest.fixture
def counted(lite0):
    return Counted(lite0)


def photograph(seed, side=60, kind="JPEG"):
    """Return an encoded image with smooth random content."""
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels).resize((side + 7, side), Image.Resampling.BICUBIC), kind)


@pytest.fixture
def photos(tmp_path):
    """Write 22 files of two classes, two of them equal, and a test set."""
    root = tmp_path / "photos"
    for number in range(22):
        path = root / "train" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph(min(number, 20)))
    for number in range(4):
        path = root / "test" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph(100 + number, kind="PNG"))
    age(root)
    return root


def age(root):
    """Let all files be old enough that their time stamps can be relied on."""
    for path in root.rglob("*.*"):
        os.utime(path, (time.time() - 100,) * 2)


@pytest.fixture
def settled(monkeypatch):
    """Rely on time stamps at once; the time of the last change of a file cannot be set."""
    monkeypatch.setattr(module, "SETTLED", -1)


def test_features_are_those_of_the_decoded_files(photos, lite0, tmp_path):
    sets = load_embedded(str(photos), ReadOptions(), lite0, cache=tmp_path / "cache")
    assert sets.train.shape == (1280,) and len(sets.train) == 22 and len(sets.test) == 4
    assert sets.train.classes == ("cat", "dog") and sets.train.columns is None and sets.train.clean is None
    for split in (sets.train, sets.test):
        assert split.names == split.original.names and split.original.labels.equal(split.labels)
        for row, name in zip(split.images, split.names, strict=True):
            pixels = fast_decode((photos / name).read_bytes(), Frame(SIZE, SIZE, 3))
            expected = lite0(torch.tensor(pixels).permute(2, 0, 1)[None]).half().float()[0]
            assert row.equal(expected), name
    part = sets.train.at(torch.tensor([3, 5]))
    assert part.original.names == part.names and part.images.equal(sets.train.images[[3, 5]])


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("threads", [1, 3])
def test_bits_do_not_depend_on_workers_and_threads(photos, lite0, tmp_path, workers, threads):
    alone = load_embedded(str(photos), ReadOptions(), lite0, workers=1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        sets = load_embedded(str(photos), ReadOptions(), lite0, cache=tmp_path / "cache", workers=workers)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert sets.train.images.equal(alone.train.images) and sets.test.images.equal(alone.test.images)


def test_only_new_content_is_encoded(photos, counted, tmp_path):
    def load():
        counted.samples = 0
        return load_embedded(str(photos), ReadOptions(), counted, cache=tmp_path / "cache")

    first = load()
    assert counted.samples == 25  # 26 files, two of them equal
    assert load().train.images.equal(first.train.images) and counted.samples == 0
    (photos / "train/cat/0.jpg").rename(photos / "train/dog/0.jpg")  # a changed label
    assert load().train.labels.tolist().count(1) == 12 and counted.samples == 0
    (photos / "train/cat/new.jpg").write_bytes(photograph(50))
    (photos / "train/dog/1.jpg").write_bytes(photograph(51))
    before, after = (dict(zip(sets.train.names, sets.train.images, strict=True)) for sets in (first, load()))
    assert counted.samples == 2 and not after["train/dog/1.jpg"].equal(before["train/dog/1.jpg"])
    assert after["train/dog/0.jpg"].equal(before["train/cat/0.jpg"])


def test_unchanged_files_are_not_read_again(photos, lite0, tmp_path, settled, monkeypatch):
    read = images.FileReader.__call__
    opened = []

    def count(reader, index):
        opened.append(reader.paths[index])
        return read(reader, index)

    monkeypatch.setattr(images.FileReader, "__call__", count)
    first = load_embedded(str(photos), ReadOptions(), lite0, cache=tmp_path / "cache")
    assert len(opened) == 26
    opened.clear()
    again = load_embedded(str(photos), ReadOptions(), lite0, cache=tmp_path / "cache")
    assert not opened and again.train.images.equal(first.train.images)
    content = photograph(60)
    path = photos / "train/cat/2.jpg"
    size = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(size.st_atime_ns, size.st_mtime_ns))  # the time of the change still differs
    changed = load_embedded(str(photos), ReadOptions(), lite0, cache=tmp_path / "cache")
    assert opened == ["train/cat/2.jpg"]
    assert (changed.train.images != first.train.images).any(1).sum() == 1


@pytest.mark.parametrize("part", ["keys.npy", "rows.npy", "sha256"])
@pytest.mark.parametrize("store", ["features", "digests of files"])
def test_damaged_features_are_computed_again_with_a_line(photos, counted, tmp_path, settled, store, part):
    """Bits of the values themselves: shapes stay right, and without a check the features would differ in silence."""
    first = load_embedded(str(photos), ReadOptions(), counted, cache=tmp_path / "cache")
    folders = list((tmp_path / "cache" / "features").iterdir())
    (folder,) = [folder for folder in folders if (folder.name == "files") == (store == "digests of files")]
    chunk = max(folder.glob("*.rows.npy"), key=lambda path: path.stat().st_size).name.partition(".")[0]  # training set
    path = folder / f"{chunk}.{part}"
    content = bytearray(path.read_bytes())
    content[-9] ^= 0x40
    path.write_bytes(content)
    counted.samples = 0
    with pytest.warns(
        DamagedFile, match=f"{folder.name}/{chunk}.rows.npy is damaged; its rows are computed again"
    ) as said:
        again = load_embedded(str(photos), ReadOptions(), counted, cache=tmp_path / "cache")
    assert len(said) == 1 and counted.samples == (21 if store == "features" else 0)
    assert again.train.images.equal(first.train.images) and again.test.images.equal(first.test.images)
    load_embedded(str(photos), ReadOptions(), counted, cache=tmp_path / "cache")  # mended: no further warning
    assert counted.samples == (21 if store == "features" else 0)


def test_files_that_may_still_change_are_read_again(photos, lite0, tmp_path):
    load_embedded(str(photos), ReadOptions(), lite0, cache=tmp_path / "cache")
    assert not (tmp_path / "cache" / "features" / "files").exists()


def test_files_that_cannot_be_used_are_reported(photos, counted, tmp_path):
    bad = {"train/cat/broken.jpg": b"\xff\xd8 broken", "train/dog/broken too.jpg": b"\xff\xd8 broken"}
    for name, content in {**bad, "train/dog/empty.png": b""}.items():
        (photos / name).write_bytes(content)
    with pytest.raises(InputError, match=r"3 samples of .* cannot be used, first: train/cat/broken\.jpg: .*--skip-bad"):
        load_embedded(str(photos), ReadOptions(), counted, cache=tmp_path / "cache")
    assert counted.samples == 25
    seen = []
    options = ReadOptions(skip_bad=True)
    sets = load_embedded(str(photos), options, counted, cache=tmp_path / "cache", on_unusable=seen.extend)
    assert [entry.name for entry in seen] == [*bad, "train/dog/empty.png"] and counted.samples == 25
    assert len(sets.train) == len(sets.train.original) == 22 and seen[2].reason == "the file is empty"
    assert not any("broken" in name for name in sets.train.names)


def test_no_usable_sample_at_all(tmp_path, lite0):
    for name in ("a/1.jpg", "b/2.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"no image")
    with pytest.raises(InputError, match=r"no sample of .* \(train\) can be used, first: a/1\.jpg: not an image"):
        load_embedded(str(tmp_path), ReadOptions(skip_bad=True), lite0)


def test_values_that_half_precision_cannot_hold_are_reported(photos, lite0, tmp_path):
    def encode(batch):
        return batch.float().mean((2, 3)) * torch.where(batch.float().mean() > 128, 1e9, 1.0)

    wild = Backbone("wild", "images", 3, SIZE, "0" * 16, torch.device("cpu"), encode, 1)
    split, bad = embed_split(find(str(photos), ReadOptions()).train, wild, Cache(wild, tmp_path / "cache"))
    assert 0 < len(bad) < 22 and len(split) + len(bad) == 22 and split.images.isfinite().all()
    assert bad[0].reason == "its features are not finite in half precision"


def test_arrays_are_scaled_and_encoded(lite0, tmp_path):
    gray = torch.randint(0, 256, (6, 1, 9, 9), dtype=torch.uint8)
    gray[5] = gray[0]
    split = Labelled(gray, torch.arange(6) % 2, ["a", "b"], clean=torch.zeros(6, dtype=torch.int64))
    embedded, bad = embed_split(split, lite0, Cache(lite0, tmp_path))
    assert not bad and embedded.images.equal(lite0(gray).half().float()) and embedded.original is split
    assert embedded.names is None and embedded.clean is split.clean


def test_texts_are_encoded_once(tmp_path):
    texts = ["lost card", "lost card", "ok", "new card", "Ü" * 500]
    (tmp_path / "texts.csv").write_text("text,label\n" + "\n".join(f'"{text}",{k % 2}' for k, text in enumerate(texts)))
    counted = Counted(find_backbone("wordllama"))
    sets = load_embedded(str(tmp_path / "texts.csv"), ReadOptions(), counted, cache=tmp_path / "cache")
    assert sets.train.images.equal(counted.backbone(texts).half().float()) and counted.samples == 4
    assert list(sets.train.original.texts) == texts


def test_backbones_that_do_not_fit_the_data(photos, lite0, tmp_path):
    np.savez(tmp_path / "x.npz", features=np.zeros((4, 2), np.float32), labels=np.arange(4) % 2)
    with pytest.raises(InputError, match=r"x\.npz contains numbers, which need no backbone"):
        load_embedded(str(tmp_path / "x.npz"), ReadOptions(), lite0)
    with pytest.raises(InputError, match="contains images, but the backbone wordllama encodes texts"):
        load_embedded(str(photos), ReadOptions(), find_backbone("wordllama"))


def test_progress_is_reported_over_all_splits(photos, lite0, tmp_path):
    steps = []
    load_embedded(str(photos), ReadOptions(), lite0, cache=tmp_path, watch=lambda *step: steps.append(step))
    assert steps == sorted(steps) and steps[-1] == (26, 26) and {total for _, total in steps} == {26}


def test_an_error_keeps_what_is_finished(photos, lite0, tmp_path):
    split = find(str(photos), ReadOptions()).train
    cache = Cache(lite0, tmp_path)

    def fail(done, total):
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_split(split, lite0, cache, workers=1, report=fail)
    stored = Cache(lite0, tmp_path).features
    known = [
        key for key in encode_samples(split, lite0, lambda key: True, lambda keys, rows: None).keys if key in stored
    ]
    assert len(known) >= 12


SCRIPT = """
import os, signal, sys
from labelsieve.data import ReadOptions
from labelsieve.features import store
from labelsieve.features.backbones import find_backbone
from labelsieve.features.embed import load_embedded
store.FLUSH_BYTES = 3 * 2560

def start(cache, steps):
    child = os.fork()  # torch is imported, but has no threads yet
    if child:
        return child
    seen = []

    def watch(done, total):
        seen.append(done)
        if len(seen) == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    load_embedded(sys.argv[1], ReadOptions(), find_backbone("lite0", size=32), cache=cache, workers=2, watch=watch)
    os._exit(0)

def code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

killed = [code(start(sys.argv[2], steps)) for steps in (4, 3, 9)]
together = [start(sys.argv[3], 0) for _ in range(2)]
sys.exit(killed != [-signal.SIGKILL] * 3 or [code(child) for child in together] != [0, 0])
"""


def test_killed_and_concurrent_processes(photos, lite0, tmp_path):
    killed, shared = tmp_path / "killed", tmp_path / "shared"
    assert subprocess.run([sys.executable, "-c", SCRIPT, photos, killed, shared]).returncode == 0
    whole = load_embedded(str(photos), ReadOptions(), lite0, cache=tmp_path / "other")
    for cache, left in ((killed, range(1, 25)), (shared, range(1))):
        counted = Counted(lite0)
        resumed = load_embedded(str(photos), ReadOptions(), counted, cache=cache)
        assert counted.samples in left
        assert resumed.train.images.equal(whole.train.images) and resumed.test.images.equal(whole.test.images)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 30}, {"optimize": True}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_both_jpeg_decoders_give_the_same_pixels(subsampling, options, mode, monkeypatch):
    """Features do not depend on whether simplejpeg is installed."""
    pixels = np.random.default_rng(3).integers(0, 256, (9, 13, 3), dtype=np.uint8)
    for width, height in ((301, 203), (640, 512), (97, 131)):
        image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC).convert(mode)
        content = encoded(image, "JPEG", subsampling=subsampling, **options)
        for size in (24, 64, 160, 224):
            frame = Frame(size, size, 3)
            assert images.simplejpeg is not None
            one = fast_decode(content, frame)
            with monkeypatch.context() as patch:
                patch.setattr(images, "simplejpeg", None)
                assert (fast_decode(content, frame) == one).all(), (width, height, size)
