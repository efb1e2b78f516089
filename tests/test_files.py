"""Seals: what they list, what they refuse, and which files are read without one."""

import os
import shutil
import subprocess
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.errors import InputError
from labelsieve.files import (
    faults,
    parse_json,
    read_seal,
    read_verified,
    refuse_links,
    verified,
    write_atomically,
    write_seal,
    write_sealed,
    writing,
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "one.bin").write_bytes(b"one")
    (tmp_path / "thumbs").mkdir()
    (tmp_path / "thumbs" / "7.webp").write_bytes(b"image")
    write_seal(tmp_path / "done", ["one.bin", "thumbs/7.webp"])
    return tmp_path


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_seal_is_readable_by_sha256sum(folder):
    assert subprocess.run(["sha256sum", "--check", "--status", "done"], cwd=folder).returncode == 0
    (folder / "one.bin").write_bytes(b"two")
    assert subprocess.run(["sha256sum", "--check", "--status", "done"], cwd=folder).returncode == 1


def test_damaged_and_missing_files_are_refused(folder):
    assert read_verified(folder / "one.bin") == b"one" and read_verified(folder / "thumbs" / "7.webp") == b"image"
    (folder / "one.bin").write_bytes(b"onf")
    (folder / "thumbs" / "7.webp").unlink()
    with pytest.raises(InputError, match=r"one\.bin is damaged \(its SHA-256 is in .*done\)"):
        read_verified(folder / "one.bin")
    with pytest.raises(InputError, match=r"7\.webp is missing"):
        verified(folder / "thumbs" / "7.webp")
    assert faults(folder / "done") == {
        folder / "one.bin": "is damaged",
        folder / "thumbs" / "7.webp": "is missing",
    }


def test_files_without_a_seal_are_read(folder):
    (folder / "other.bin").write_bytes(b"other")
    assert read_verified(folder / "other.bin") == b"other"
    (folder / "done").write_bytes(b"")  # as older versions wrote it
    (folder / "one.bin").write_bytes(b"changed")
    assert read_verified(folder / "one.bin") == b"changed" and not faults(folder / "done")


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_every_bit_of_a_seal_counts(tmp_path_factory, place, bit):
    folder = tmp_path_factory.getbasetemp() / "bits"
    folder.mkdir(exist_ok=True)
    (folder / "one.bin").write_bytes(b"one")
    write_seal(folder / "done", ["one.bin"])
    content = bytearray((folder / "done").read_bytes())
    content[place % len(content)] ^= 1 << bit
    (folder / "done").write_bytes(content)
    with pytest.raises(InputError, match="done is damaged"):
        read_seal(folder / "done")
    assert faults(folder / "done") == {folder / "done": "is damaged"}


def test_a_file_with_its_own_seal(tmp_path):
    write_sealed(tmp_path / "corrected.npy", b"labels")
    assert read_verified(tmp_path / "corrected.npy") == b"labels"
    (tmp_path / "corrected.npy").write_bytes(b"labelt")
    with pytest.raises(InputError, match="is damaged"):
        read_verified(tmp_path / "corrected.npy")


def test_links_out_of_a_folder_are_refused(tmp_path):
    run = tmp_path / "run"
    (run / "audit").mkdir(parents=True)
    (run / "one").touch()
    (run / "audit" / "inside").symlink_to("../one")
    (tmp_path / "link").symlink_to(run)
    (run / "audit" / "loop").symlink_to("loop")
    refuse_links(tmp_path / "link")  # the folder itself may be a link
    (run / "audit" / "outside").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="outside is a link that leads out of"):
        refuse_links(run)


def test_deep_nesting_is_a_value_error():
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)


def read_in_background(pipe):
    """Make a named pipe, and return a function that waits for what is written to it."""
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    return lambda: reader.join() or found[0]


def test_a_file_that_the_user_named_may_be_a_link_or_a_pipe(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("target.csv", "link.csv", "pipe"))
    link.symlink_to(target)
    with writing(link) as file:
        file.write(b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
    received = read_in_background(pipe)
    with writing(pipe) as file:
        file.write(b"table")
    assert received() == b"table" and pipe.is_fifo()
    write_atomically(link, b"in a run folder")  # replaces the link
    assert not link.is_symlink() and target.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["x" * 250, "図" * 83])
def test_temporary_files_of_long_names_have_shorter_ones(tmp_path, name):
    write_atomically(tmp_path / name, b"x")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_replaced_file_keeps_its_mode(tmp_path, mode):
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    file.chmod(mode)
    link.symlink_to(file)
    with writing(link) as opened:
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {mode}  # also while it is written
        opened.write(b"x")
    assert file.stat().st_mode & 0o777 == mode and file.read_bytes() == b"x"


def test_failed_writes_name_the_file(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file/new.csv", "x" * 300, "missing/new.csv", "loop", "loop/new.csv"):
        path = tmp_path / name
        with pytest.raises(InputError, match=f"^cannot write .*{path.name}: "), writing(path) as file:
            file.write(b"x")
