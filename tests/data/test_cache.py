"""The cache of decoded images."""

import errno
import multiprocessing
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from labelsieve.data import cache as cache_module
from labelsieve.data.cache import cache_key, open_cache
from labelsieve.data.images import Pictures, fast_decode
from labelsieve.errors import InputError, ResourceError
from tests.conftest import LONG_WAIT
from tests.data.builders import COUNT, FRAME, batches, jpeg_bytes, smooth, streamed


def test_cached_batches_equal_decoded_ones(pictures, tmp_path):
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(3))
    cache = open_cache(tmp_path / "new" / "folder", pictures, FRAME, workers=2)
    assert len(cache) == COUNT
    plain, cached = streamed(pictures, workers=0), streamed(pictures, workers=2, cache=cache)
    for size in (7, 64):
        assert torch.equal(torch.cat(batches(plain, order, size)), torch.cat(batches(cached, order, size)))
    some = torch.tensor([40, 2, 2, 7])
    part, whole = cached.at(some).at(torch.tensor([3, 0])), batches(plain, some[[3, 0]], 2)[0]
    assert torch.equal(batches(part, torch.arange(2), 2)[0], whole) and len(part.cache) == 2
    np.testing.assert_array_equal(np.load(cache.path), cache.pixels)  # NumPy reads it as well
    assert sorted(path.suffix for path in cache.path.parent.iterdir()) == [".lock", ".npy"]


def test_chunk_sizes_do_not_change_the_cache(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "WRITE_CHUNK", 20)
    monkeypatch.setattr(cache_module, "DECODE_CHUNK", 3)
    cache = open_cache(tmp_path, pictures, FRAME, workers=3)
    expected = np.stack([fast_decode(pictures.read(i), FRAME) for i in range(COUNT)])
    np.testing.assert_array_equal(cache.pixels, expected)


def test_cache_is_rebuilt_when_images_change(pictures, tmp_path, monkeypatch):
    built = []
    build = cache_module._build
    monkeypatch.setattr(cache_module, "_build", lambda *given: built.append(given[0]) or build(*given))
    first = open_cache(tmp_path, pictures, FRAME)
    relabelled = replace(pictures, labels=pictures.labels.flip(0))
    assert open_cache(tmp_path, relabelled, FRAME).path == first.path and len(built) == 1
    assert open_cache(tmp_path, pictures, replace(FRAME, height=9)).path != first.path
    assert open_cache(tmp_path, pictures.at(range(COUNT)[::-1]), FRAME).path != first.path
    Path(pictures.names[7]).write_bytes(jpeg_bytes(smooth(30, 30, 99), "PNG"))
    assert open_cache(tmp_path, pictures, FRAME).path != first.path and len(built) == 4
    content = {index: pictures.read(index) for index in range(COUNT)}
    table = replace(pictures, read=content.__getitem__)
    before = cache_key(table, FRAME)
    assert cache_key(table, FRAME) == before
    content[5] += b"."
    assert cache_key(table, FRAME) != before

    class Stamped:
        def __call__(self, index: int) -> bytes:
            return pictures.read(index)

        def stamp(self, index: int) -> str:
            return stamps[index]

    stamps = ["old"] * COUNT
    before = cache_key(replace(pictures, read=Stamped()).at(range(9)), FRAME)
    stamps[8] = "new"
    assert cache_key(replace(pictures, read=Stamped()).at(range(9)), FRAME) != before


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + b"9" + b[41:], lambda b: b[:12] + b"(" + b[13:]]
)
def test_damaged_cache_is_rebuilt(pictures, tmp_path, damage):
    cache = open_cache(tmp_path, pictures, FRAME)
    good = cache.path.read_bytes()
    cache.path.unlink()  # the mapped file itself stays whole
    cache.path.write_bytes(damage(good))
    assert cache.path.read_bytes() != good
    np.testing.assert_array_equal(open_cache(tmp_path, pictures, FRAME).pixels, cache.pixels)
    assert cache.path.read_bytes() == good


def test_full_disk_raises_and_leaves_no_file(pictures, tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_module.os, "fsync", full)
    with pytest.raises(ResourceError, match=r"the disk is full, .*npy was not written"):
        open_cache(tmp_path / "a", pictures, FRAME)
    free = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: free)
    with pytest.raises(ResourceError, match=r"not enough disk space .* 0.0 GB needed, 0.0 GB free"):
        open_cache(tmp_path / "a", pictures, FRAME)
    assert [path.suffix for path in (tmp_path / "a").iterdir()] == [".lock"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot (write|read) .*file"):
        open_cache(tmp_path / "file", pictures, FRAME)


def test_bad_image_stops_the_build(pictures, tmp_path):
    Path(pictures.names[3]).write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"3.jpg: not an image .*--skip-bad"):
        open_cache(tmp_path / "cache", pictures, FRAME, workers=2)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def open_and_report(folder: Path, pictures: Pictures, start, results) -> None:
    """Open the cache in a process or thread; report whether this one built it, and the sum of its pixels."""
    reads: list[int] = []

    def read(index: int) -> bytes:
        reads.append(index)
        time.sleep(0.01)
        return pictures.read(index)

    start.wait()
    cache = open_cache(folder, replace(pictures, read=read), FRAME)
    built = len(reads) > COUNT  # all images are read once for the digest
    results.put((built, int(cache.pixels.astype(np.int64).sum())))


def test_two_processes_build_the_cache_once(pictures, tmp_path):
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=open_and_report, args=(tmp_path, pictures, start, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=LONG_WAIT) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(built for built, _ in found) == [False, True]
    assert len({total for _, total in found}) == 1 and found[0][1] > 0


def test_two_threads_build_the_cache_once(pictures, tmp_path):
    import queue

    start, results = threading.Barrier(2), queue.Queue()
    threads = [threading.Thread(target=open_and_report, args=(tmp_path, pictures, start, results)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results.get()[0] for _ in threads) == [False, True]
