"""Labelled sets in memory, and sets streamed from disk."""

import gc
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from labelsieve.data.cache import open_cache
from labelsieve.data.images import fast_decode
from labelsieve.data.load import decode_all
from labelsieve.data.sets import SLOTS, Labelled, Texts, standardise
from labelsieve.errors import InputError
from labelsieve.files import usable_cores
from tests.conftest import LONG_WAIT
from tests.data.builders import COUNT, FRAME, batches, decoding_threads, streamed

RNG = np.random.default_rng(0)


IMAGES = RNG.integers(0, 256, (12, 5, 4), dtype=np.uint8)


def test_standardised_images_have_zero_mean_and_unit_deviation():
    images = torch.from_numpy(IMAGES)[:, None]
    x = standardise(images)
    assert torch.allclose(x.mean((1, 2, 3)), torch.zeros(12), atol=1e-6)
    assert torch.allclose(x.std((1, 2, 3), correction=0), torch.ones(12), atol=1e-6)
    assert (standardise(torch.full((1, 3, 4, 4), 9, dtype=torch.uint8)) == 0).all()
    nearly_flat = torch.zeros(1, 1, 20, 20, dtype=torch.uint8)
    nearly_flat[0, 0, 0, 0] = 1  # deviation 0.04994 is under 1/sqrt(400): divided by 0.05 instead
    assert standardise(nearly_flat).max().item() == pytest.approx((1 - 1 / 400) / 0.05)


def test_batches_do_not_depend_on_the_number_of_workers(pictures):
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    expected = streamed(pictures, workers=0)
    results = batches(expected, order, 18)
    assert [len(batch) for batch in results] == [18, 18, 14]
    for workers in (1, 3):
        found = batches(streamed(pictures, workers=workers), order, 18)
        assert all(torch.equal(a, b) for a, b in zip(found, results, strict=True))
    plain = decode_all(pictures, FRAME)[0].inputs(order)  # decoded the slow way
    assert (torch.cat(results) - plain).abs().mean() < 0.05
    images = np.stack([fast_decode(pictures.read(i), FRAME) for i in order.tolist()])
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).double().flatten(1)
    by_hand = (pixels - pixels.mean(1, keepdim=True)) / pixels.std(1, correction=0, keepdim=True)
    assert torch.allclose(torch.cat(results).flatten(1).double(), by_hand, atol=1e-5)


def test_imagenet_normalisation(pictures):
    data = streamed(pictures, workers=1, normalise="imagenet")
    resident = Labelled(torch.stack([image_of(pictures, i) for i in range(3)]), pictures.labels[:3], pictures.classes)
    next(data.staged(torch.arange(3), 3))
    seen = data.inputs(torch.arange(3))
    red = (resident.images[:, 0].float() / 255 - 0.485) / 0.229
    assert torch.allclose(seen[:, 0], red, atol=1e-5)


def image_of(pictures, index):
    return torch.from_numpy(fast_decode(pictures.bytes_of(index), FRAME).copy()).permute(2, 0, 1)


def test_batch_buffer_keeps_its_address(pictures):
    data, places = streamed(pictures, workers=2), set()
    for size in (16, 30, 16):
        for _ in data.staged(torch.arange(COUNT), size):
            places.add((size, data._buffer.images.data_ptr()))
    assert len(places) == 2


def test_streamed_set_behaves_like_labelled(pictures):
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


def test_subset_of_features_keeps_the_samples_that_they_were_computed_from():
    words = ["zero", "one", "two", "three"]
    clean = torch.tensor([1, 0, 1, 0])
    texts = Texts([f"t.csv:{k}" for k in range(4)], words, torch.tensor([0, 1, 0, 1]), ("a", "b"), clean)
    features = torch.arange(8.0).reshape(4, 2)
    data = Labelled(features, texts.labels, texts.classes, clean, texts.names, original=texts)
    part = data.at(torch.tensor([3, 1])).to(torch.device("cpu")).relabelled(torch.tensor([0, 0]))
    assert isinstance(part.original, Texts)
    assert part.original.texts == ["three", "one"]
    assert part.original.names == part.names == ["t.csv:3", "t.csv:1"]
    assert part.original.labels.tolist() == [1, 1] and part.labels.tolist() == [0, 0]
    assert part.original.clean is not None and part.original.clean.tolist() == [0, 0]
    masked = data.at(torch.tensor([False, True, True, False]))
    assert isinstance(masked.original, Texts)
    assert masked.original.texts == ["one", "two"] and masked.names == ["t.csv:1", "t.csv:2"]
    assert masked.images.tolist() == [[2, 3], [4, 5]]


def test_misuse_raises(pictures):
    data = streamed(pictures, workers=1)
    with pytest.raises(RuntimeError, match="0 samples are staged, not 3"):
        data.inputs(torch.arange(3))
    with pytest.raises(IndexError, match="outside 0 to 49"):
        next(data.staged(torch.tensor([COUNT]), 2))
    assert list(data.staged(torch.tensor([], dtype=torch.int64), 2)) == []
    first = data.staged(torch.arange(COUNT), 10)
    next(first)
    with pytest.raises(RuntimeError, match="10 samples are staged, not 3"):
        data.inputs(torch.arange(3))
    next(data.staged(torch.arange(COUNT), 10))
    with pytest.raises(RuntimeError, match="called again"):
        next(first)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_error_names_the_first_bad_image_of_the_order(pictures, workers):
    for number in (33, 41):
        path = Path(pictures.names[number])
        path.write_bytes(path.read_bytes()[:200])
    Path(pictures.names[9]).unlink()
    data, counts = streamed(pictures, workers=workers), []
    for order, name in ((torch.arange(10, COUNT), "33.jpg"), (torch.arange(COUNT).flip(0), "41.jpg")):
        with pytest.raises(InputError, match=rf"{name}: cannot be decoded .*labelsieve check.*--skip-bad"):
            counts += list(data.staged(order, 8))
    with pytest.raises(InputError, match=r"9.jpg: cannot be read \(No such file"):
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
    deadline = time.monotonic() + LONG_WAIT
    while len(began) < 5 * SLOTS and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert sorted(began) == list(range(5 * SLOTS))
    assert decoding_threads() in (1, 2)  # the second one starts only if the first is busy
    batches.close()
    assert decoding_threads() == 0
    for _ in data.staged(torch.arange(COUNT), 5):
        break  # and when it is just dropped
    gc.collect()
    assert decoding_threads() == 0


def test_errors_of_workers_reach_the_caller(pictures):
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
        assert len(data._buffers[8].slots) == SLOTS and len(data._buffers) == 1
        assert used[1] - used[0] < 50_000  # bytes; one epoch's images are 18,000, its files some 60,000


def test_usable_cores():
    assert usable_cores() >= 1
