"""Sets that stay on disk: quick decoding, the decoded cache, and batches that are decoded ahead."""

import errno
import gc
import io
import multiprocessing
import shutil
import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from labelsieve.data import cache as cache_module
from labelsieve.data import images as jpeg
from labelsieve.data.cache import identity, open_cache
from labelsieve.data.images import BadImage, Files, Frame, Pictures, decode, fast_decode, shrinkage
from labelsieve.data.load import in_memory
from labelsieve.data.sets import SLOTS, Labelled, Streamed, usable_cores
from labelsieve.errors import InputError, ResourceError

FRAME = Frame(12, 10, 3)
COUNT = 50
PIECE = cache_module.PIECE


def smooth(height: int, width: int, seed: int, channels: int = 3) -> np.ndarray:
    """A natural-like image: random, with most of its power in coarse structure that all channels share."""
    random = np.random.default_rng(seed)
    waves = np.fft.rfft2(
        random.normal(size=(height, width, 1)) + 0.3 * random.normal(size=(height, width, 3)), axes=(0, 1)
    )
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))[..., None]
    pixels = np.fft.irfft2(waves / (frequency + 2 / width) ** 1.5, (height, width), axes=(0, 1))
    scaled = np.clip(128 + 50 * (pixels - pixels.mean()) / pixels.std(), 0, 255).astype(np.uint8)
    return scaled if channels == 3 else scaled[..., 0]


def encoded(pixels: np.ndarray, kind: str = "JPEG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def pictures(tmp_path) -> Pictures:
    root = tmp_path / "images"
    root.mkdir()
    names = [f"{number}.{'png' if number % 7 == 0 else 'jpg'}" for number in range(COUNT)]
    for number, name in enumerate(names):
        kind = "PNG" if name.endswith("png") else "JPEG"
        (root / name).write_bytes(encoded(smooth(20 + number % 9, 18, number), kind))
    labels = torch.arange(COUNT) % 4
    return Pictures([str(root / name) for name in names], Files(root, names), labels, ("a", "b", "c", "d"))


def streamed(pictures: Pictures, **options) -> Streamed:
    return Streamed(pictures, FRAME, pictures.labels, pictures.classes, pictures.clean, **options)


def batches(data: Streamed, order: torch.Tensor, size: int) -> list[torch.Tensor]:
    results, first = [], 0
    for count in data.staged(order, size):
        results.append(data.inputs(order[first : first + count]).clone())
        first += count
    return results


def decoding_threads() -> int:
    return sum(thread.name.startswith("decode") for thread in threading.enumerate())


# jpeg


@pytest.fixture(params=["simplejpeg", "pillow"])
def decoder(request, monkeypatch):
    if request.param == "pillow":
        monkeypatch.setattr(jpeg, "simplejpeg", None)
    elif jpeg.simplejpeg is None:
        pytest.skip("simplejpeg is not installed")
    return request.param


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"subsampling": 0, "quality": 60}, {"icc_profile": b"x"}]
)
@pytest.mark.parametrize("frame", [Frame(64, 64, 3), Frame(30, 40, 1), Frame(200, 150, 3), Frame(17, 40, 3)])
def test_quick_decoding_is_near_the_plain_one(decoder, options, frame):
    for channels in (3, 1):
        content = encoded(smooth(167, 250, 1, channels), **options)
        quick, plain = fast_decode(content, frame), decode(content, frame)
        assert quick.shape == plain.shape and quick.dtype == np.uint8
        assert np.abs(quick.astype(int) - plain).mean() < 3
        assert np.abs(quick.astype(int) - quick.mean()).mean() > 10  # and there is something to see


def test_large_images_are_decoded_at_a_smaller_size(decoder, monkeypatch):
    sizes = []
    monkeypatch.setattr(jpeg, "resize", lambda pixels, *_: sizes.append(pixels.shape) or pixels)
    for height, width, by in ((320, 400, 8), (319, 400, 4), (81, 90, 2), (79, 200, 1)):
        fast_decode(encoded(smooth(height, width, 2)), Frame(40, 45, 3))
        assert shrinkage(height, width, Frame(40, 45, 3)) == by
    assert sizes == [(40, 50, 3), (80, 100, 3), (41, 45, 3), (79, 200, 3)]


def test_turned_transparent_and_odd_images_are_left_to_the_plain_decoder(decoder):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(smooth(60, 90, 3), exif=exif)
    cmyk = io.BytesIO()
    Image.fromarray(smooth(60, 90, 4)).convert("CMYK").save(cmyk, "JPEG")
    for content in (turned, cmyk.getvalue(), encoded(smooth(60, 90, 5), "PNG"), encoded(smooth(60, 90, 5, 1), "WEBP")):
        np.testing.assert_array_equal(fast_decode(content, Frame(20, 30, 3)), decode(content, Frame(20, 30, 3)))
    exif[0x0112] = 1
    upright = encoded(smooth(60, 90, 3), exif=exif)
    assert np.abs(fast_decode(upright, Frame(20, 30, 3)).astype(int) - decode(upright, Frame(20, 30, 3))).mean() < 3


def test_images_that_cannot_be_decoded_say_why(decoder, monkeypatch):
    content = encoded(smooth(60, 90, 6))
    with pytest.raises(BadImage, match="cannot be decoded"):
        fast_decode(content[: len(content) // 2], FRAME)
    with pytest.raises(BadImage, match="empty"):
        fast_decode(b"", FRAME)
    with pytest.raises(BadImage, match="no image"):
        fast_decode(b"\xff\xd8 not at all", FRAME)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)
    with pytest.raises(BadImage, match="too many pixels"):
        fast_decode(content, FRAME)


# streamed


def test_batches_are_the_decoded_images_for_any_number_of_workers(pictures):
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    expected = streamed(pictures, workers=0)
    results = batches(expected, order, 18)
    assert [len(batch) for batch in results] == [18, 18, 14]
    for workers in (1, 3):
        found = batches(streamed(pictures, workers=workers), order, 18)
        assert all(torch.equal(a, b) for a, b in zip(found, results, strict=True))
    plain = in_memory(pictures, FRAME)[0].inputs(order)  # decoded the slow way
    assert (torch.cat(results) - plain).abs().mean() < 0.05
    images = np.stack([fast_decode(pictures.read(i), FRAME) for i in order.tolist()])
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).double().flatten(1)
    by_hand = (pixels - pixels.mean(1, keepdim=True)) / pixels.std(1, correction=0, keepdim=True)
    assert torch.allclose(torch.cat(results).flatten(1).double(), by_hand, atol=1e-5)


def test_channels_can_be_normalised_instead(pictures):
    data = streamed(pictures, workers=1, normalise="imagenet")
    resident = Labelled(torch.stack([image_of(pictures, i) for i in range(3)]), pictures.labels[:3], pictures.classes)
    next(data.staged(torch.arange(3), 3))
    seen = data.inputs(torch.arange(3))
    red = (resident.images[:, 0].float() / 255 - 0.485) / 0.229
    assert torch.allclose(seen[:, 0], red, atol=1e-5)


def image_of(pictures, index):
    return torch.from_numpy(fast_decode(pictures.bytes_of(index), FRAME).copy()).permute(2, 0, 1)


def test_the_place_of_a_batch_never_moves(pictures):
    data, places = streamed(pictures, workers=2), set()
    for size in (16, 30, 16):
        for _ in data.staged(torch.arange(COUNT), size):
            places.add((size, data._stage.images.data_ptr()))
    assert len(places) == 2


def test_data_keeps_the_meaning_of_resident_data(pictures):
    data = streamed(pictures, workers=1)
    assert len(data) == COUNT and data.num_classes == 4 and data.device.type == "cpu" and data.clean is None
    other = data.relabelled((data.labels + 1) % 4)
    assert torch.equal(other.clean, data.labels) and other.labels[0] == 1
    assert torch.equal(other.relabelled(data.labels).clean, data.labels)
    assert data.shape == (3, 12, 10) and data.names == pictures.names
    digests = [b"".join(bytes(part) for part in kind.contents()) for kind in (data, streamed(pictures), other)]
    assert digests[0] == digests[1] != digests[2]
    mask = torch.zeros(COUNT, dtype=torch.bool)
    mask[[3, 8, 21]] = True
    whole = torch.cat(batches(data, torch.arange(COUNT), 10))
    for index in (torch.tensor([21, 3, 8]), mask):
        part = other.at(index).to(torch.device("cpu"))
        assert torch.equal(part.labels, other.labels[index]) and torch.equal(part.clean, data.labels[index])
        assert torch.equal(torch.cat(batches(part, torch.arange(3), 2)), whole[index])
        assert torch.equal(batches(part.at(torch.tensor([2])), torch.tensor([0]), 2)[0], whole[index][2:])


def test_misuse_is_told(pictures):
    data = streamed(pictures, workers=1)
    with pytest.raises(RuntimeError, match="0 samples in place, not 3"):
        data.inputs(torch.arange(3))
    with pytest.raises(IndexError, match="outside 0 to 49"):
        next(data.staged(torch.tensor([COUNT]), 2))
    assert list(data.staged(torch.tensor([], dtype=torch.int64), 2)) == []
    first = data.staged(torch.arange(COUNT), 10)
    next(first)
    with pytest.raises(RuntimeError, match="10 samples in place, not 3"):
        data.inputs(torch.arange(3))
    next(data.staged(torch.arange(COUNT), 10))
    with pytest.raises(RuntimeError, match="called again"):
        next(first)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_first_bad_image_of_the_order_is_named(pictures, workers):
    for number in (33, 41):
        path = Path(pictures.names[number])
        path.write_bytes(path.read_bytes()[:200])
    Path(pictures.names[9]).unlink()
    data, counts = streamed(pictures, workers=workers), []
    for order, name in ((torch.arange(10, COUNT), "33.jpg"), (torch.arange(COUNT).flip(0), "41.jpg")):
        with pytest.raises(InputError, match=rf"{name}: it cannot be decoded .*labelsieve check.*--skip-bad"):
            counts += list(data.staged(order, 8))
    with pytest.raises(InputError, match=r"9.jpg: it cannot be read \(No such file"):
        list(data.staged(torch.tensor([9]), 8))
    assert decoding_threads() == 0


def test_workers_stay_a_few_batches_ahead_and_end_with_the_iterator(pictures):
    began = []

    def read(index: int) -> bytes:
        began.append(index)
        return pictures.read(index)

    data = streamed(replace(pictures, read=read), workers=2)
    batches = data.staged(torch.arange(COUNT), 5)
    next(batches)
    deadline = time.monotonic() + 5
    while len(began) < 5 * SLOTS and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert sorted(began) == list(range(5 * SLOTS)) and decoding_threads() == 2
    start = time.monotonic()
    batches.close()
    assert decoding_threads() == 0 and time.monotonic() - start < 2
    for _ in data.staged(torch.arange(COUNT), 5):
        break  # and when it is just dropped
    gc.collect()
    assert decoding_threads() == 0


def test_any_error_of_a_worker_reaches_the_caller(pictures):
    def read(index: int) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(streamed(replace(pictures, read=read), workers=2).staged(torch.arange(4), 2))
    assert decoding_threads() == 0


def test_memory_does_not_grow_over_epochs(pictures, tmp_path):
    for cache in (None, open_cache(tmp_path, pictures, FRAME)):
        data = streamed(pictures, workers=2, cache=cache)
        used = []
        tracemalloc.start()
        for epochs in (2, 8):
            for _ in range(epochs):
                batches(data, torch.randperm(COUNT), 8)
            gc.collect()
            used.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(data._stages[8].slots) == SLOTS and len(data._stages) == 1
        assert used[1] - used[0] < 50_000  # bytes; one epoch's images are 18,000, its files some 60,000


# cache


def test_cached_batches_equal_decoded_ones(pictures, tmp_path):
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(3))
    done = []
    cache = open_cache(tmp_path / "new" / "folder", pictures, FRAME, workers=2, tell=done.append)
    assert done == [COUNT] and len(cache) == COUNT
    plain, cached = streamed(pictures, workers=0), streamed(pictures, workers=2, cache=cache)
    for size in (7, 64):
        assert torch.equal(torch.cat(batches(plain, order, size)), torch.cat(batches(cached, order, size)))
    some = torch.tensor([40, 2, 2, 7])
    part, whole = cached.at(some).at(torch.tensor([3, 0])), batches(plain, some[[3, 0]], 2)[0]
    assert torch.equal(batches(part, torch.arange(2), 2)[0], whole) and len(part.cache) == 2
    np.testing.assert_array_equal(np.load(cache.path), cache.pixels)  # NumPy reads it as well
    assert sorted(path.suffix for path in cache.path.parent.iterdir()) == [".lock", ".npy"]


def test_the_cache_is_built_in_chunks_of_any_number(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "CHUNK", 20)
    monkeypatch.setattr(cache_module, "PIECE", 3)
    done = []
    cache = open_cache(tmp_path, pictures, FRAME, workers=3, tell=done.append)
    assert done == [20, 40, 50]
    expected = np.stack([fast_decode(pictures.read(i), FRAME) for i in range(COUNT)])
    np.testing.assert_array_equal(cache.pixels, expected)


def test_it_is_built_once_and_again_when_the_images_change(pictures, tmp_path, monkeypatch):
    built = []
    build = cache_module._build
    monkeypatch.setattr(cache_module, "_build", lambda *given: built.append(given[0]) or build(*given))
    first = open_cache(tmp_path, pictures, FRAME)
    relabelled = replace(pictures, labels=pictures.labels.flip(0))
    assert open_cache(tmp_path, relabelled, FRAME).path == first.path and len(built) == 1
    assert open_cache(tmp_path, pictures, replace(FRAME, height=9)).path != first.path
    assert open_cache(tmp_path, pictures.at(range(COUNT)[::-1]), FRAME).path != first.path
    Path(pictures.names[7]).write_bytes(encoded(smooth(30, 30, 99), "PNG"))
    assert open_cache(tmp_path, pictures, FRAME).path != first.path and len(built) == 4
    content = {index: pictures.read(index) for index in range(COUNT)}
    table = replace(pictures, read=content.__getitem__)
    before = identity(table, FRAME)
    assert identity(table, FRAME) == before
    content[5] += b"."
    assert identity(table, FRAME) != before

    class Stamped:
        def __call__(self, index: int) -> bytes:
            return pictures.read(index)

        def stamp(self, index: int) -> str:
            return stamps[index]

    stamps = ["old"] * COUNT
    before = identity(replace(pictures, read=Stamped()).at(range(9)), FRAME)
    stamps[8] = "new"
    assert identity(replace(pictures, read=Stamped()).at(range(9)), FRAME) != before


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + b"9" + b[41:], lambda b: b + b"0"]
)
def test_a_damaged_cache_is_noticed_and_built_again(pictures, tmp_path, damage):
    cache = open_cache(tmp_path, pictures, FRAME)
    good = cache.path.read_bytes()
    cache.path.unlink()  # the mapped file itself stays whole
    cache.path.write_bytes(damage(good))
    assert cache.path.read_bytes() != good
    np.testing.assert_array_equal(open_cache(tmp_path, pictures, FRAME).pixels, cache.pixels)
    assert cache.path.read_bytes() == good


def test_a_full_disk_is_one_line_and_leaves_nothing(pictures, tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_module.os, "fsync", full)
    with pytest.raises(ResourceError, match=r"the disk is full, .*npy was not written"):
        open_cache(tmp_path / "a", pictures, FRAME)
    free = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: free)
    with pytest.raises(ResourceError, match=r"too full .* needs 0.0 GB and 0.0 GB are free"):
        open_cache(tmp_path / "a", pictures, FRAME)
    assert [path.suffix for path in (tmp_path / "a").iterdir()] == [".lock"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot (write|read) .*file"):
        open_cache(tmp_path / "file", pictures, FRAME)


def test_a_bad_image_stops_the_building_and_is_named(pictures, tmp_path):
    Path(pictures.names[3]).write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"3.jpg: it is no image .*--skip-bad"):
        open_cache(tmp_path / "cache", pictures, FRAME, workers=2)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def open_and_tell(folder: Path, pictures: Pictures, start, results) -> None:
    """In a process or thread of its own: whether this one built the cache, and what is in it."""
    told: list[int] = []
    start.wait()
    cache = open_cache(folder, pictures, FRAME, tell=lambda done: (told.append(done), time.sleep(0.3)))
    results.put((bool(told), int(cache.pixels.astype(np.int64).sum())))


def test_two_processes_that_start_together_build_it_once(pictures, tmp_path):
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=open_and_tell, args=(tmp_path, pictures, start, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(built for built, _ in found) == [False, True]
    assert len({total for _, total in found}) == 1 and found[0][1] > 0


def test_two_threads_that_start_together_build_it_once(pictures, tmp_path):
    import queue

    start, results = threading.Barrier(2), queue.Queue()
    threads = [threading.Thread(target=open_and_tell, args=(tmp_path, pictures, start, results)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results.get()[0] for _ in threads) == [False, True]


def test_some_cores_can_be_used():
    assert usable_cores() >= 1
