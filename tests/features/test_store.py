"""The store: what was added is found, by many processes at once, after kills, merges and damage."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelsieve import files
from labelsieve.errors import DamagedFile, InputError, ResourceError
from labelsieve.features import store as module
from labelsieve.features.store import Store, cache_folder

WIDTH = 3


def key(number):
    return number.to_bytes(16, "little")  # many zeros at the end, where NumPy's strings end


def row(number):
    return np.full(WIDTH, number, np.float16)


def fill(store, numbers):
    store.add([key(number) for number in numbers], np.stack([row(number) for number in numbers]))
    store.flush()


def found(store, numbers):
    return store.rows([key(number) for number in numbers])[:, 0].tolist()


def chunks(folder):
    return sorted(folder.glob("*.keys.npy"))


NUMBERS = st.lists(st.integers(0, 600), min_size=1, max_size=5)


@given(steps=st.lists(st.tuples(NUMBERS, st.sampled_from(["", "flush", "compact"]))))
def test_a_store_behaves_as_a_dictionary(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("store")
    store, known = Store(folder, WIDTH), set()
    for numbers, action in steps:
        store.add([key(number) for number in numbers], np.stack([row(number) for number in numbers]))
        known |= set(numbers)
        if action:
            getattr(store, action)()
        assert all(key(number) in store for number in known) and key(601) not in store
    wanted = [*sorted(known), *sorted(known, reverse=True)]
    for reader in (store, Store(folder, WIDTH)):
        assert found(reader, wanted) == wanted
        assert reader.rows([key(number) for number in wanted], np.float32).dtype == np.float32
        assert all(reader.get(key(number))[0] == number for number in known) and reader.get(key(601)) is None
        with pytest.raises(KeyError):
            reader.rows([key(601)])


def test_rows_are_half_precision_and_mapped(tmp_path):
    store = Store(tmp_path, WIDTH)
    store.add([key(1)], np.array([[0.1, 1 / 3, 65000.0]], np.float32))
    half = store.rows([key(1)])
    assert half.dtype == np.float16 and half.tolist() == [[np.float16(0.1), np.float16(1 / 3), np.float16(65000)]]
    (chunk,) = store._index.chunks.values()
    assert isinstance(chunk.rows.base, np.memmap)


def test_rows_are_written_when_they_are_many_or_old(tmp_path, monkeypatch):
    now = 0.0
    store = Store(tmp_path, WIDTH, clock=lambda: now)
    store.add([key(1)], row(1)[None])
    assert not chunks(tmp_path) and key(1) in store
    now = 10.0
    store.add([key(2)], row(2)[None])
    assert len(chunks(tmp_path)) == 1
    monkeypatch.setattr(module, "FLUSH_BYTES", 4 * 2 * WIDTH)
    for number in range(3, 9):
        store.add([key(number)], row(number)[None])
    assert len(chunks(tmp_path)) == 2 and found(Store(tmp_path, WIDTH), [1, 6]) == [1, 6]
    assert key(7) not in Store(tmp_path, WIDTH)


def test_many_small_chunks_are_merged_and_large_ones_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SMALL_CHUNK", 2 * WIDTH * 20)
    store, other = Store(tmp_path, WIDTH), Store(tmp_path, WIDTH)
    fill(store, range(100, 130))
    (large,) = chunks(tmp_path)
    for number in range(9):
        fill(store, [number, 50])
    other.refresh()
    reader = Store(tmp_path, WIDTH)
    store.compact()
    assert len(chunks(tmp_path)) == 2 and large in chunks(tmp_path)
    keys = np.concatenate([np.load(path) for path in chunks(tmp_path)])
    assert len(keys) == len(np.unique(keys)) == 40
    for each in (store, other, reader):
        assert found(each, [50, *range(9), 129]) == [50, *range(9), 129]
    assert {path.name.split(".", 1)[1] for path in tmp_path.glob("[!.]*.*")} == set(module.PARTS)


def test_a_long_run_merges_its_own_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MERGE_EVERY", 10)
    store = Store(tmp_path, WIDTH)
    for number in range(35):
        fill(store, [number])
    assert len(chunks(tmp_path)) <= 6 and found(Store(tmp_path, WIDTH), range(35)) == list(range(35))


def test_a_merge_waits_for_no_other_process(tmp_path):
    store = Store(tmp_path, WIDTH)
    for number in range(12):
        fill(store, [number])
    with module._try_lock(tmp_path / "lock") as locked:
        assert locked
        store.compact()
        assert len(chunks(tmp_path)) == 12
    store.compact()
    assert len(chunks(tmp_path)) == 1


def test_a_chunk_that_is_merged_while_the_list_is_read(tmp_path, monkeypatch):
    first = Store(tmp_path, WIDTH)
    for number in range(12):
        fill(first, [number])
    open_chunk, merged = Store._open, []

    def open_after_merge(store, name):
        if not merged:
            merged.append(name)
            first.compact()
        return open_chunk(store, name)

    monkeypatch.setattr(Store, "_open", open_after_merge)
    assert found(Store(tmp_path, WIDTH), range(12)) == list(range(12)) and merged


def name_of(chunk):
    return chunk.name.split(".")[0]


DAMAGED = r"rows\.npy is damaged; its rows are computed again"


@pytest.mark.parametrize("part", ["keys.npy", "rows.npy", "sha256"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "other", "missing", "first bit", "last bit"])
def test_a_damaged_chunk_is_deleted_with_a_line_and_counts_as_missing(tmp_path, part, damage):
    store = Store(tmp_path, WIDTH)
    fill(store, [1, 2])
    fill(store, [3, 4])
    damaged = name_of(chunks(tmp_path)[0])
    path = tmp_path / f"{damaged}.{part}"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        flips = {
            "first bit": bytes([content[0] ^ 1]) + content[1:],
            "last bit": content[:-1] + bytes([content[-1] ^ 1]),
        }
        path.write_bytes({"truncated": content[:-1], "empty": b"", "other": b"\x93NUMPY" + bytes(99), **flips}[damage])
    harmless = part == "sha256" and damage in ("missing", "empty")  # as a chunk of an older version
    with contextlib.nullcontext() if damage == "missing" or harmless else pytest.warns(DamagedFile, match=DAMAGED):
        again = Store(tmp_path, WIDTH)
        left = [number for number in (1, 2, 3, 4) if key(number) in again]
    assert left == [1, 2, 3, 4] if harmless else left in ([1, 2], [3, 4])
    assert found(again, left) == left
    if damage != "missing" and not harmless:
        assert not list(tmp_path.glob(f"{damaged}.*"))
    fill(again, [1, 2, 3, 4])
    assert found(again, [1, 2, 3, 4]) == [1, 2, 3, 4] == found(Store(tmp_path, WIDTH), [1, 2, 3, 4])


def flip_last_bit(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_only_chunks_that_are_used_are_checked_and_each_once(tmp_path, monkeypatch):
    fill(Store(tmp_path, WIDTH), [1])
    first = name_of(chunks(tmp_path)[0])
    fill(Store(tmp_path, WIDTH), [2])
    flip_last_bit(tmp_path / f"{first}.rows.npy")
    checked = []
    monkeypatch.setattr(module, "faults", lambda seal: checked.append(seal.stem) or files.faults(seal))
    store = Store(tmp_path, WIDTH)
    for _ in range(3):
        assert key(2) in store and found(store, [2]) == [2] and store.get(key(2))[0] == 2 and key(9) not in store
    assert len(checked) == 1 and checked != [first]
    with pytest.warns(DamagedFile, match=f"{first}.{DAMAGED}"):
        assert store.get(key(1)) is None


def test_a_damaged_chunk_is_not_merged(tmp_path):
    store = Store(tmp_path, WIDTH)
    for number in range(12):
        fill(store, [number])
    flip_last_bit(tmp_path / f"{name_of(chunks(tmp_path)[5])}.rows.npy")
    with pytest.warns(DamagedFile, match=DAMAGED):
        store.compact()
    assert len(chunks(tmp_path)) == 1 and len(list(tmp_path.glob("*.sha256"))) == 1
    again = Store(tmp_path, WIDTH)
    left = [number for number in range(12) if key(number) in again]
    assert len(left) == 11 and found(again, left) == left


@pytest.mark.parametrize("change", ["merged", "deleted"])
def test_a_chunk_that_another_process_takes_away_before_it_is_checked(tmp_path, change):
    writer = Store(tmp_path, WIDTH)
    for number in range(12):
        fill(writer, [number])
    reader = Store(tmp_path, WIDTH)
    if change == "merged":
        writer.compact()
    else:  # a damaged one
        module._delete_chunk(tmp_path, name_of(chunks(tmp_path)[0]))
    left = [number for number in range(12) if key(number) in reader]
    assert len(left) == (12 if change == "merged" else 11) and found(reader, left) == left


def test_threads_may_look_for_keys_while_rows_are_added_and_chunks_are_damaged(tmp_path):
    """What a thread has found stays there, although chunks are found damaged at the same time."""
    store = Store(tmp_path, WIDTH)
    for number in range(0, 300, 5):
        fill(store, range(number, number + 5))
    for chunk in chunks(tmp_path)[::4]:
        flip_last_bit(tmp_path / f"{name_of(chunk)}.rows.npy")
    reader = Store(tmp_path, WIDTH)
    with warnings.catch_warnings(record=True) as said, ThreadPoolExecutor(4) as pool:
        warnings.simplefilter("always")
        known = pool.map(lambda number: key(number) in reader, [*range(300), *range(300)])
        for number in range(1000, 1500):
            reader.add([key(number)], row(number)[None])
            if number % 10 == 0:
                reader.flush()
        known = list(known)
    left = [number for number in range(300) if known[number]]
    assert len(said) == 15 and len(left) == 300 - 75 and known[:300] == known[300:]
    assert found(reader, [*left, *range(1000, 1500)]) == [*left, *range(1000, 1500)]


def test_what_killed_processes_left_is_removed_later(tmp_path):
    store = Store(tmp_path, WIDTH)
    fill(store, [1])
    left = [tmp_path / ".0123.rows.npy.tmp", tmp_path / "0123.rows.npy", tmp_path / "0123.sha256"]
    for path in left:
        path.write_bytes(b"x")
    store.compact()
    assert all(path.exists() for path in left)  # another process may be writing them now
    for path in [*left, *tmp_path.glob("*.npy"), *tmp_path.glob("*.sha256")]:
        os.utime(path, (time.time() - 4000,) * 2)
    store.compact()
    assert not any(path.exists() for path in left) and found(Store(tmp_path, WIDTH), [1]) == [1]


WRITER = """
import sys
import numpy as np
from pathlib import Path
from labelsieve.features import store as module
module.FLUSH_BYTES, module.MERGE_EVERY = 100, 5
store = module.Store(Path(sys.argv[1]), 3)
for number in range(int(sys.argv[2]), 100000, int(sys.argv[3])):
    store.add([number.to_bytes(16, "little")], np.full((1, 3), number % 2000, np.float16))
    print(number, flush=True)
"""


def test_processes_write_merge_and_are_killed_at_once(tmp_path):
    """Every number that a process has reported long ago is found, whole, after all of them were killed."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, str(k), "3"], stdout=subprocess.PIPE, text=True) for k in range(3)]
    reported = []
    for number, writer in enumerate(writers):
        lines = [int(writer.stdout.readline()) for _ in range(100 + 40 * number)]
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        reported += lines[:-20]  # 100 bytes are 17 rows
    store = Store(tmp_path, 3)
    assert store.rows([key(number) for number in reported])[:, 2].tolist() == [number % 2000 for number in reported]
    store.compact()
    again = Store(tmp_path, 3)
    assert again.rows([key(number) for number in reported])[:, 0].tolist() == [number % 2000 for number in reported]


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file is a file, not a folder; name another --cache"):
        Store(tmp_path / "file" / "x", WIDTH)
    store = Store(tmp_path, WIDTH)

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(ResourceError, match="the disk is full"):
        fill(store, [1])
    monkeypatch.undo()
    assert not list(tmp_path.glob(".*.tmp"))
    store.flush()
    assert found(Store(tmp_path, WIDTH), [1]) == [1]  # still in memory, and written by the next attempt


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LABELSIEVE_CACHE", "/some/where")
    assert str(cache_folder("mine")) == "mine" and str(cache_folder()) == "/some/where"
    monkeypatch.delenv("LABELSIEVE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "labelsieve"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(cache_folder()) == "/home/someone/.cache/labelsieve"
