"""CIFAR, CIFAR-N and the binary ANIMAL-10N, in the layouts in which they are published."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelsieve.data import cifar
from labelsieve.data.cifar import OLD_TORCH, digest, is_cifar, read_cifar_n, read_described
from labelsieve.data.pickles import load_plain
from labelsieve.data.published import is_animal10n_binary, read_animal10n_binary
from labelsieve.errors import InputError

RNG = np.random.default_rng(0)
TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
HUNDRED = tuple(f"fine {number}" for number in range(100))
PER_BATCH = 4
ROWS = RNG.integers(0, 256, (6 * PER_BATCH, 3072), dtype=np.uint8)
LABELS = [int(label) for label in RNG.integers(0, 10, 6 * PER_BATCH)]
FINE = [int(label) for label in RNG.integers(20, 100, 6 * PER_BATCH)]
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def python2(value):
    """A pickle of protocol 2 as Python 2 wrote it: strings are bytes, arrays come from numpy.core."""

    def write(value):
        if isinstance(value, dict):
            return b"}(" + b"".join(write(key) + write(item) for key, item in value.items()) + b"u"
        if isinstance(value, list):
            return b"](" + b"".join(map(write, value)) + b"e"
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            short = len(value) < 256
            return (b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))) + value
        if isinstance(value, int):
            return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)
        assert value.dtype == np.uint8
        begun = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = b"".join(b"M" + struct.pack("<H", size) for size in value.shape) + b"\x86"
        return begun + b"(K\x01" + shape + dtype + b"\x89" + write(value.tobytes()) + b"tb"

    return b"\x80\x02" + write(value) + b"."


def part(index):
    return slice(index * PER_BATCH, (index + 1) * PER_BATCH)


def ten_python():
    files = {
        name: python2(
            {
                "batch_label": f"training batch {index + 1} of 5",
                "labels": LABELS[part(index)],
                "data": ROWS[part(index)],
                "filenames": ["some_s_000001.png"] * PER_BATCH,
            }
        )
        for index, name in enumerate(BATCHES)
    }
    meta = {"num_cases_per_batch": 10000, "label_names": list(TEN), "num_vis": 3072}
    return {**files, "batches.meta": python2(meta), "readme.html": b"<p>"}


def hundred_python():
    def split(rows):
        coarse = [label // 5 for label in FINE[rows]]
        return python2({"data": ROWS[rows], "fine_labels": FINE[rows], "coarse_labels": coarse, "filenames": []})

    meta = python2({"fine_label_names": list(HUNDRED), "coarse_label_names": ["coarse"] * 20})
    return {"file.txt~": b"", "train": split(slice(0, 20)), "test": split(slice(20, 24)), "meta": meta}


def ten_binary():
    def batch(index):
        return b"".join(bytes([LABELS[i]]) + ROWS[i].tobytes() for i in range(24)[part(index)])

    files = {f"{name}.bin": batch(index) for index, name in enumerate(BATCHES)}
    return {**files, "batches.meta.txt": "\n".join([*TEN, "", ""]).encode()}


def hundred_binary():
    def split(rows):
        return b"".join(bytes([FINE[i] // 5, FINE[i]]) + ROWS[i].tobytes() for i in range(24)[rows])

    names = {"fine_label_names.txt": "\n".join(HUNDRED).encode(), "coarse_label_names.txt": b"coarse\n" * 20}
    return {"train.bin": split(slice(0, 20)), "test.bin": split(slice(20, 24)), **names}


LAYOUTS = {
    "cifar-10-batches-py": (ten_python, TEN, LABELS),
    "cifar-100-python": (hundred_python, HUNDRED, FINE),
    "cifar-10-batches-bin": (ten_binary, TEN, LABELS),
    "cifar-100-binary": (hundred_binary, HUNDRED, FINE),
}


def write_folder(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def plain_member(name, content=b""):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    return member, content


def write_archive(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))
    return path


def published_members(folder="cifar-10-batches-py", files=None):
    top = tarfile.TarInfo(folder)
    top.type = tarfile.DIRTYPE
    files = LAYOUTS[folder][0]() if files is None else files
    return [(top, b""), *(plain_member(f"{folder}/{name}", content) for name, content in files.items())]


def assert_is_written_data(sets, classes, labels):
    for data, rows in zip(sets, (slice(0, 20), slice(20, 24)), strict=True):
        assert data.images.dtype == torch.uint8 and data.images.shape[1:] == (3, 32, 32)
        assert data.images.reshape(-1, 3072).tolist() == ROWS[rows].tolist()
        assert data.labels.dtype == torch.int64 and data.labels.tolist() == labels[rows]
        assert tuple(data.classes) == classes


def read_cifar(path):
    """Training and test set."""
    return read_described(path)[1:]


def refusal(read, *arguments):
    with pytest.raises(InputError) as caught:
        read(*arguments)
    message = str(caught.value)
    assert message.isprintable()
    return message


# CIFAR, whole


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_folders_and_archives_are_the_same_data(tmp_path, layout):
    files, classes, labels = LAYOUTS[layout]
    folder = write_folder(tmp_path / "inside" / layout, files())
    gz = write_archive(tmp_path / "a.tar.gz", published_members(layout))
    tar = write_archive(tmp_path / "wrong_suffix.zip", published_members(layout), "w")
    for path in (folder, folder.parent, gz, tar):
        assert is_cifar(path)
        assert_is_written_data(read_cifar(path), classes, labels)
        name = "CIFAR-100" if "100" in layout else "CIFAR-10"
        assert read_described(path).words == f"not the published {name} (other contents)"


def test_the_pickles_of_these_tests_are_pickles():
    record = pickle.loads(ten_python()["data_batch_2"], encoding="bytes")
    assert record[b"labels"] == LABELS[part(1)] and (record[b"data"] == ROWS[part(1)]).all()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("encode", [str, str.encode])
def test_pickles_written_anew_are_the_same_data(tmp_path, protocol, encode):
    folder = write_folder(tmp_path / "mine", ten_python())
    for name in [*BATCHES, "batches.meta"]:
        record = pickle.loads((folder / name).read_bytes(), encoding="latin1")
        if "data" in record:
            record["data"] = np.asfortranarray(ROWS[part(BATCHES.index(name))])
        content = pickle.dumps({encode(key): value for key, value in record.items()}, protocol)
        (folder / name).write_bytes(content)
    assert_is_written_data(read_cifar(folder), TEN, LABELS)


def test_known_contents_are_called_published(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "cifar-10-batches-py", ten_python())
    train, test = read_cifar(folder)
    assert digest(train) == hashlib.sha256(ROWS[:20].tobytes() + np.array(LABELS[:20], "<i8").tobytes()).hexdigest()
    monkeypatch.setitem(cifar.DIGESTS, "CIFAR-10", (digest(train), digest(test)))
    assert read_described(folder).words == "the published CIFAR-10"
    other = dict(ten_python(), test_batch=python2({"labels": [0, 1], "data": ROWS[:2]}))
    assert read_described(write_folder(folder, other)).words == "not the published CIFAR-10 (other contents)"


def test_what_is_not_cifar_is_told_apart(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "images" / split / "cat").mkdir(parents=True)
    write_folder(tmp_path / "animals", {"data_batch_1.bin": animals(3), "test_batch.bin": animals(2)})
    write_archive(tmp_path / "images.tar.gz", [plain_member("cat/1.png", b"png")])
    write_folder(tmp_path, {"text.txt": b"hello", "empty": b"", "cut.tar.gz": b"\x1f\x8b\x08"})
    for name in ("images", "animals", "images.tar.gz", "text.txt", "empty", "cut.tar.gz", "gone"):
        assert not is_cifar(tmp_path / name), name
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"<html>")
    assert is_cifar(tmp_path / "cifar-10-python.tar.gz")
    assert "no CIFAR folder" in refusal(read_cifar, tmp_path / "images")
    assert "No such file" in refusal(read_cifar, tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    assert not is_cifar(tmp_path / "pipe") and "neither a file nor a folder" in refusal(read_cifar, tmp_path / "pipe")


def test_a_folder_with_two_sets_is_refused_by_their_names(tmp_path):
    write_folder(tmp_path / "cifar-10-batches-py", ten_python())
    write_folder(tmp_path / "cifar-100-python", hundred_python())
    message = refusal(read_cifar, tmp_path)
    assert "several datasets (cifar-10-batches-py, cifar-100-python)" in message


# CIFAR, not whole


@pytest.mark.parametrize(
    ("layout", "name", "content", "reason"),
    [
        ("cifar-10-batches-py", "data_batch_3", ten_python()["data_batch_3"][:-400], "cut off or damaged"),
        ("cifar-10-batches-py", "data_batch_3", b"", "cut off or damaged"),
        ("cifar-10-batches-py", "data_batch_3", b"<html>not found</html>", "cut off or damaged"),
        ("cifar-10-batches-py", "data_batch_3", b"version https://git-lfs.github.com/spec/v1\n", "cut off or damaged"),
        ("cifar-10-batches-py", "data_batch_3", python2([1, 2]), "holds no dict"),
        ("cifar-10-batches-py", "data_batch_3", python2({"labels": [0]}), "no 'data' of rows of 3,072 bytes"),
        ("cifar-10-batches-py", "data_batch_3", python2({"data": ROWS[:, :9]}), "no 'data' of rows of 3,072 bytes"),
        ("cifar-10-batches-py", "data_batch_3", python2({"data": ROWS[:2]}), "no list of whole numbers 'labels'"),
        ("cifar-10-batches-py", "data_batch_3", python2({"data": ROWS[:2], "labels": [1]}), "2 images but 1 labels"),
        ("cifar-10-batches-py", "data_batch_3", python2({"data": ROWS[:0], "labels": []}), "0 images but 0 labels"),
        (
            "cifar-10-batches-py",
            "data_batch_3",
            python2({"data": ROWS[:2], "labels": [1, 10]}),
            "label 10 at position 1",
        ),
        ("cifar-10-batches-py", "data_batch_3", python2({"data": ROWS[:1], "labels": ["cat"]}), "no list of whole"),
        ("cifar-10-batches-py", "batches.meta", python2({"label_names": 3}), "no list of names 'label_names'"),
        ("cifar-10-batches-py", "batches.meta", python2({"label_names": [b"\xff", b"a"]}), "name that is no text"),
        ("cifar-10-batches-py", "batches.meta", python2({"label_names": ["a\x1b[31m", "b"]}), "no names of classes"),
        ("cifar-100-python", "test", hundred_python()["test"][:50], "cut off or damaged"),
        ("cifar-100-python", "meta", python2({"label_names": ["a"]}), "no list of names 'fine_label_names'"),
        (
            "cifar-10-batches-bin",
            "data_batch_2.bin",
            ten_binary()["data_batch_2.bin"][:-1],
            "12,291 bytes are no whole",
        ),
        ("cifar-10-batches-bin", "test_batch.bin", b"", "is cut off: its 0 bytes"),
        ("cifar-10-batches-bin", "test_batch.bin", bytes([200]) + bytes(3072), "label 200 at position 0"),
        ("cifar-10-batches-bin", "batches.meta.txt", b"\n\n", "no names of classes"),
        ("cifar-100-binary", "train.bin", bytes(3073), "records of 3,074"),
    ],
)
def test_a_file_that_does_not_parse_is_named(tmp_path, layout, name, content, reason):
    files = {**LAYOUTS[layout][0](), name: content}
    folder = write_folder(tmp_path / layout, files)
    message = refusal(read_cifar, folder)
    assert str(folder / name) in message and reason in message
    known = name in cifar.PUBLISHED_MD5
    assert (f"its md5 sum is not the published {name}'s" in message) == known
    archive = write_archive(tmp_path / "a.tar.gz", published_members(layout, files))
    message = refusal(read_cifar, archive)
    assert f"{archive}: {name}" in message and reason in message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_is_missing_is_named(tmp_path, layout):
    files = LAYOUTS[layout][0]()
    for name in set(files) & set(cifar.WANTED):
        rest = {other: content for other, content in files.items() if other != name}
        archive = write_archive(tmp_path / f"{name}.tar", published_members(layout, rest), "w")
        assert f"has no {name} " in refusal(read_cifar, archive)
        folder = write_folder(tmp_path / name / layout, rest)
        if is_cifar(folder):
            assert f"has no {name} " in refusal(read_cifar, folder)
        else:
            assert len(rest) < 5  # CIFAR-100 has a single other file of samples


# Archives


def link(name, target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def special(name, kind):
    member = tarfile.TarInfo(name)
    member.type = kind
    return member, b""


def setuid(name):
    member, content = plain_member(name, b"x")
    member.mode = 0o6777
    return member, content


CANARY = python2({"labels": [0], "data": ROWS[:1]})
ODD_MEMBERS = {
    "dots": [plain_member("../data_batch_1", CANARY)],
    "dots inside": [plain_member("cifar-10-batches-py/../../data_batch_1", CANARY)],
    "absolute": [plain_member("/tmp/data_batch_1", CANARY)],
    "drive": [plain_member("C:\\data_batch_1", CANARY)],
    "link out": [link("out/data_batch_1", "/etc/passwd")],
    "link, then through it": [link("out", ".."), plain_member("out/escaped", CANARY)],
    "hard link": [link("data_batch_1", "cifar-10-batches-py/data_batch_2", tarfile.LNKTYPE)],
    "device": [special("data_batch_1", tarfile.CHRTYPE)],
    "pipe": [special("data_batch_1", tarfile.FIFOTYPE)],
    "chain of links": [link("d" * 200 + "/" * i + "l", "../" * 900 + "x") for i in range(1, 20)],
    "archive inside": [plain_member("inner.tar.gz", gzip.compress(b"x"))],
    "case twin": [plain_member("cifar-10-batches-py/DATA_BATCH_1", CANARY)],
    "long name": [plain_member("n" * 300, b"x")],
    "escape codes": [plain_member("\x1b[31mdata_batch_1\x1b[0m", CANARY)],
    "apple": [plain_member("cifar-10-batches-py/._data_batch_1", b"x")],
    "setuid": [setuid("run_me")],
}


@pytest.mark.parametrize("odd", ODD_MEMBERS)
def test_odd_members_are_passed_over_and_nothing_is_written(tmp_path, odd):
    home = tmp_path / "home"
    home.mkdir()
    members = published_members()
    archive = write_archive(home / "a.tar.gz", [*ODD_MEMBERS[odd], *members, *ODD_MEMBERS[odd]])
    before = sorted(tmp_path.rglob("*"))
    assert_is_written_data(read_cifar(archive), TEN, LABELS)
    alone = write_archive(home / "a.tar.gz", ODD_MEMBERS[odd])
    assert "has no files of CIFAR" in refusal(read_cifar, alone)
    assert sorted(tmp_path.rglob("*")) == before


def sparse_of_a_terabyte(path):
    member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    block[156:157] = tarfile.GNUTYPE_SPARSE
    block[483:495] = tarfile.itn(10**12, 12, tarfile.GNU_FORMAT)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    path.write_bytes(bytes(block) + bytes(1024))


def member_of_a_terabyte(path):
    member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    member.size = 10**12
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))


def bomb(path):
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(4):
            member = tarfile.TarInfo(f"zeros{number}")
            member.size = 1 << 20
            file.write(member.tobuf())
            file.write(bytes(member.size))


def header_bomb(path):
    member = tarfile.TarInfo("name")
    member.type, member.size = tarfile.XHDTYPE, 8 << 20
    path.write_bytes(gzip.compress(member.tobuf() + bytes(member.size)))


def many_members(path):
    header = tarfile.TarInfo("empty").tobuf()
    path.write_bytes(gzip.compress(header * 10_001 + bytes(1024), 1))


def twice(path):
    write_archive(path, [*published_members(), plain_member("other/test_batch", CANARY)])


def cut(path, share):
    content = write_archive(path, published_members()).read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def flipped(path):
    plain = write_archive(path, published_members(), "w").read_bytes()
    content = bytearray(gzip.compress(plain + bytes(3 << 20)))  # zeros beyond what is read for the members
    content[-6] ^= 1  # of the checksum at the end
    path.write_bytes(content)


def encrypted_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cifar-10-batches-py/data_batch_1", b"x")
    content = bytearray(path.read_bytes())
    content[6] |= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (sparse_of_a_terabyte, "a member larger than any file of CIFAR"),
        (member_of_a_terabyte, "a member larger than any file of CIFAR"),
        (bomb, "unpacks to over 3,000,000 bytes"),
        (header_bomb, "unpacks to over 3,000,000 bytes"),
        (many_members, "over 10,000 members"),
        (twice, "has test_batch twice"),
        (lambda path: cut(path, 0.01), "cut off, damaged"),
        (lambda path: cut(path, 0.5), "cut off, damaged"),
        (lambda path: cut(path, 0.9999), "cut off, damaged"),
        (flipped, "cut off, damaged"),
        (encrypted_zip, "no .tar.gz archive"),
        (lambda path: path.write_bytes(b""), "no .tar.gz archive"),
        (lambda path: path.write_bytes(b"<html>moved</html>"), "no .tar.gz archive"),
        (lambda path: path.write_bytes(gzip.compress(b"text")), "no .tar.gz archive"),
        (lambda path: path.write_bytes(gzip.compress(b"\xff" * 5000)), "no .tar.gz archive"),
    ],
)
def test_archives_that_cannot_be_used_are_refused(tmp_path, monkeypatch, write, reason):
    if reason.startswith("unpacks"):
        monkeypatch.setattr(cifar, "LARGEST_ARCHIVE", 3_000_000)
    path = tmp_path / "cifar-10-python.tar.gz"
    write(path)
    message = refusal(read_cifar, path)
    assert str(path) in message and reason in message
    assert "its md5 sum is none of the published archives'" in message
    assert list(tmp_path.iterdir()) == [path]


# Pickles


class Runs:
    """Pickled, it is an order to run something."""

    def __init__(self, *order):
        self.order = order

    def __reduce__(self):
        return self.order


def touch(path):
    return f"touch {path}"


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "called"),
    [(os.system, "posix.system"), (eval, "eval"), (np.load, "numpy"), (np.fromfile, "fromfile"), (os.unlink, "unlink")],
)
def test_a_pickle_that_runs_something_is_refused_and_runs_nothing(tmp_path, protocol, function, called):
    canary = tmp_path / "canary"
    order = f"__import__('pathlib').Path({str(canary)!r}).touch()" if function is eval else touch(canary)
    record = {"data": ROWS[:1], "labels": Runs(function, (order,))}
    folder = write_folder(tmp_path / "mine", {**ten_python(), "data_batch_1": pickle.dumps(record, protocol)})
    message = refusal(read_cifar, folder)
    assert "data_batch_1 wants to run " in message and called in message and "not the published file" in message
    assert not canary.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"(S'touch canary'\nios\nsystem\n.", "wants to run os.system"),
        (b"(cos\nsystem\nS'touch canary'\no.", "wants to run os.system"),
        (b"\x80\x02cnumpy\ndtype\n)\x81.", "has the instruction NEWOBJ"),
        (b"\x80\x02\x82\x01.", "has the instruction EXT1"),
        (b"\x80\x02Pname\n.", "has the instruction PERSID"),
        (b"\x80\x04\x8c\x02o\n\x8c\x03a\x1bb\x93.", "wants to run o?.a?b"),
        (b"\x80\x02K\x01)R.", "wants to run something that is no function"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "calls what numpy.ndarray in an unknown way"),
        (b"\x80\x02}K\x01b.", "a state to something that is no array"),
        (b"\x80\x02}}\x85K\x01s.", "keys that are no names"),
        (b"\x80\x02K\x01K\x02a.", "no list"),
        (
            b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-7\x86R.",
            "turns text into bytes in an unknown way",
        ),
        (b"\x80\x02r\xff\xff\xff\xff.", "cut off or damaged"),
        (b"\x80\x02h\x07.", "cut off or damaged"),
        (b"\x80\x02.", "cut off or damaged"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "cut off or damaged"),
        (pickle.dumps(np.array([{}]), 2), "an array of dtype O8"),
        (pickle.dumps(np.array(["text"]), 2), "an array of dtype U4"),
        (pickle.dumps(np.zeros(2, dtype=[("a", "i4")]), 2), "an array of dtype V4"),
        (pickle.dumps(np.zeros(2, dtype="M8[s]"), 2), "an array of dtype M8"),
        (python2(ROWS).replace(b"M\x18\x00", b"M\x19\x00", 1), "an array of shape (25, 3072) but 73,728 bytes"),
    ],
)
def test_pickles_that_are_not_plain_are_refused(tmp_path, monkeypatch, content, reason):
    monkeypatch.chdir(tmp_path)
    message = refusal(load_plain, content, "some_file")
    assert message.startswith("some_file ") and reason in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value",
    [
        {
            "a": [1, -2, 2**40, 2.5, None, True, False],
            b"b": (),
            3: (1,),
            "d": ((1, 2), (1, 2, 3), (1, 2, 3, 4)),
            "é": "ü",
        },
        [],
        {},
        b"\x00\xff" * 300,
        "long " * 100,
        -(2**70),
    ],
)
def test_plain_values_are_what_the_standard_reader_gives(value, protocol):
    content = pickle.dumps(value, protocol)
    assert load_plain(content, "x") == value == pickle.loads(content)


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i8", ">u2", "<f4", "?"])
@pytest.mark.parametrize("protocol", range(6))
def test_arrays_are_what_the_standard_reader_gives(dtype, protocol):
    array = RNG.integers(0, 100, (3, 4)).astype(dtype)
    first, second, turned = load_plain(pickle.dumps([array, array, array.T], protocol), "x")
    assert first is second and first.dtype == array.dtype
    assert first.tolist() == array.tolist() and turned.tolist() == array.T.tolist()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_pickles_are_read_or_refused_but_never_crash(data):
    content = bytearray(data.draw(st.sampled_from(FUZZED)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        load_plain(content, "fuzzed")
    except InputError as error:
        assert str(error).isprintable()


FUZZED = [
    python2({"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "names": ["a"]}),
    *(
        pickle.dumps({"data": np.arange(6), "labels": [1, (2, None)], "names": ["a"]}, protocol)
        for protocol in range(6)
    ),
]


# CIFAR-N

HUMAN = {
    "clean_label": np.arange(8) % 10,
    "aggre_label": np.arange(8) % 9,
    "worse_label": np.arange(8) % 4,
    "random_label1": np.arange(8) % 5,
    "random_label2": np.arange(8) % 6,
    "random_label3": np.arange(8) % 7,
}
HUMAN_100 = {
    "clean_label": np.arange(92, 100),
    "noisy_label": np.arange(91, 99),
    "noisy_coarse_label": np.arange(8),
}


def save_pt(path, value):
    torch.save(value, path)


def save_old_pt(path, value):
    torch.save(value, path, _use_new_zipfile_serialization=False)


def save_npy(path, value):
    with path.open("wb") as file:
        np.save(file, value, allow_pickle=True)


@pytest.mark.parametrize("save", [save_pt, save_old_pt, save_npy])
def test_human_labels_are_read_by_their_names(tmp_path, save):
    path = tmp_path / "CIFAR-10_human"
    save(path, HUMAN)
    modulus = {"clean": 10, "aggregate": 9, "worst": 4, "random1": 5, "random2": 6, "random3": 7}
    for kind, number in modulus.items():
        labels = read_cifar_n(path, kind)
        assert labels.dtype == torch.int64 and labels.tolist() == [i % number for i in range(8)]
    assert "has no labels 'noisy'; it has: aggregate, random1, random2, random3, worst, clean" in refusal(
        read_cifar_n, path, "noisy"
    )
    save(path, HUMAN_100)
    assert read_cifar_n(path, "noisy").tolist() == list(range(91, 99))
    assert "it has: noisy, clean" in refusal(read_cifar_n, path, "worst")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({**HUMAN, "worse_label": np.arange(8) + 3}, "label 10 at position 7"),
        ({**HUMAN, "worse_label": np.arange(8) - 1}, "label -1 at position 0"),
        ({**HUMAN, "worse_label": np.arange(8) / 2}, "whole numbers, got float64"),
        ({**HUMAN, "worse_label": np.zeros((2, 2), int)}, "whole numbers, got int64"),
        ({**HUMAN, "worse_label": np.zeros(0, int)}, "no array of labels"),
        ({**HUMAN, "worse_label": [1, 2]}, "no array of labels"),
        ({"weight": np.zeros(2)}, "no labels of CIFAR-N (it has: weight)"),
        ({}, "no labels of CIFAR-N (it has: nothing)"),
        ([1, 2], "no dict of labels"),
    ],
)
@pytest.mark.parametrize("save", [save_pt, save_npy])
def test_human_labels_that_cannot_be_used_are_refused(tmp_path, save, value, reason):
    if save is save_npy and isinstance(value, list):
        reason = "holds a single array"
    path = tmp_path / "CIFAR-10_human.pt"
    save(path, value)
    message = refusal(read_cifar_n, path, "worst")
    assert str(path) in message and reason in message


@pytest.mark.parametrize("save", [save_pt, save_old_pt, save_npy])
def test_human_labels_never_run_anything(tmp_path, save):
    path, canary = tmp_path / "CIFAR-10_human.pt", tmp_path / "canary"
    save(path, {**HUMAN, "worse_label": Runs(os.system, (touch(canary),))})
    message = refusal(read_cifar_n, path, "clean")
    assert "wants to run posix.system" in message and not canary.exists()


def test_human_labels_saved_as_tensors_are_refused(tmp_path):
    torch.save({"worse_label": torch.zeros(3)}, tmp_path / "a.pt")
    assert "a.pt wants to run torch" in refusal(read_cifar_n, tmp_path / "a.pt", "worst")


@pytest.mark.parametrize("save", [save_pt, save_old_pt, save_npy])
@pytest.mark.parametrize("share", [0, 0.05, 0.5, 0.9])
def test_human_labels_that_are_cut_off_are_refused(tmp_path, save, share):
    path = tmp_path / "CIFAR-10_human.pt"
    save(path, HUMAN)
    content = path.read_bytes()
    end = len(pickle.dumps(HUMAN)) if save is save_old_pt else len(content)  # the old format ends in other notes
    path.write_bytes(content[: int(end * share)])
    message = refusal(read_cifar_n, path, "worst")
    assert str(path) in message


def test_odd_files_of_human_labels_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../data.pkl", bytes(2_000_000))
    assert "cut off or damaged" in refusal(read_cifar_n, path, "worst")
    monkeypatch.setattr("labelsieve.data.cifar.LARGEST_FILE", 1_000_000)
    assert "unpacks to more than" in refusal(read_cifar_n, path, "worst")
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    assert "encrypted" in refusal(read_cifar_n, path, "worst")
    path.write_bytes(bytes(1_000_001))
    assert "larger than any file" in refusal(read_cifar_n, path, "worst")
    assert "is no file" in refusal(read_cifar_n, tmp_path, "worst")
    assert "No such file" in refusal(read_cifar_n, tmp_path / "gone.pt", "worst")
    path.write_bytes(pickle.dumps(OLD_TORCH))
    assert "cut off" in refusal(read_cifar_n, path, "worst")
    np.save(tmp_path / "plain.npy", np.arange(3))
    assert "holds a single array" in refusal(read_cifar_n, tmp_path / "plain.npy", "worst")


# ANIMAL-10N


def animals(count, first=0):
    """Records whose label is their number modulo ten and whose channels are 10, 20 and 30 plus their number."""
    records = []
    for number in range(first, first + count):
        channels = b"".join(bytes([tens + number % 200]) * 4096 for tens in (10, 20, 30))
        records.append(struct.pack(">II", 100_000 + number, number % 10) + channels)
    return b"".join(records)


def test_binary_animals_are_read_in_the_order_of_their_batches(tmp_path):
    files = {
        "data_batch_10.bin": animals(2, first=5),
        "data_batch_2.bin": animals(2, first=3),
        "data_batch_1.bin": animals(3),
        "test_batch.bin": animals(12),
    }
    folder = write_folder(tmp_path / "animals", files)
    assert is_animal10n_binary(folder) and not is_cifar(folder)
    train, test = read_animal10n_binary(folder)
    assert train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6] and test.labels.tolist() == [*range(10), 0, 1]
    assert train.images.shape == (7, 3, 64, 64) and train.images.dtype == torch.uint8
    assert train.images[4, :, 63, 0].tolist() == [14, 24, 34]
    assert train.classes[3] == "coyote" and test.classes[9] == "guinea pig" and len(set(train.classes)) == 10


def test_pixels_of_binary_animals_lie_row_by_row(tmp_path):
    pixels = RNG.integers(0, 256, (3, 64, 64), dtype=np.uint8)
    record = struct.pack(">II", 7, 8) + pixels.tobytes()
    folder = write_folder(tmp_path, {"data_batch_1.bin": record, "test_batch.bin": record})
    train, _ = read_animal10n_binary(folder)
    assert train.images[0].tolist() == pixels.tolist() and train.labels.tolist() == [8]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (
            "data_batch_2.bin",
            animals(3)[:-1],
            "is cut off in record 2: its 36,887 bytes are no whole number of records",
        ),
        ("data_batch_2.bin", b"", "is empty"),
        ("test_batch.bin", struct.pack("<II", 1, 1) + bytes(12288), "label 16777216 at position 0"),
        ("test_batch.bin", struct.pack(">II", 1, 10) + bytes(12288), "label 10 at position 0"),
    ],
)
def test_binary_animals_that_cannot_be_used_are_named(tmp_path, name, content, reason):
    files = {"data_batch_1.bin": animals(2), "data_batch_2.bin": animals(2), "test_batch.bin": animals(2)}
    folder = write_folder(tmp_path, {**files, name: content})
    assert is_animal10n_binary(folder)
    message = refusal(read_animal10n_binary, folder)
    assert str(folder / name) in message and reason in message


def test_binary_animals_need_both_splits(tmp_path):
    assert not is_animal10n_binary(tmp_path / "gone") and not is_animal10n_binary(tmp_path)
    assert "has no data_batch_1.bin" in refusal(read_animal10n_binary, tmp_path)
    write_folder(tmp_path, {"data_batch_1.bin": animals(1)})
    assert "has no test_batch.bin" in refusal(read_animal10n_binary, tmp_path)
    cifar_folder = write_folder(tmp_path / "cifar-10-batches-bin", ten_binary())
    assert not is_animal10n_binary(cifar_folder)


# The real files, where they are at hand

REAL = Path(os.environ.get("LABELSIEVE_DATA", "no such folder"))
ENDS = {  # digests of the bytes of the first and the last training and test image
    "cifar-10-batches-py": ("e052de7deb775f78", "11aa7f707e504e57", "73eefb0106f2b7a2", "3f1313e424fe403a"),
    "cifar-100-python": ("d48e87e6d75805dc", "13bd2421c719f08f", "7dbe551ec3e5850b", "f4e99d314612b89b"),
}


@pytest.mark.parametrize(
    ("layout", "name", "per_class"),
    [("cifar-10-batches-py", "CIFAR-10", 5000), ("cifar-100-python", "CIFAR-100", 500)],
)
def test_the_real_sets(layout, name, per_class):
    if not (REAL / layout).is_dir():
        pytest.skip(f"LABELSIEVE_DATA names no folder with {layout}")
    assert is_cifar(REAL / layout)
    words, train, test = read_described(REAL / layout)
    assert words == f"the published {name}"
    assert len(train) == 50_000 and len(test) == 10_000
    classes = 50_000 // per_class
    assert train.labels.bincount().tolist() == [per_class] * classes and len(train.classes) == classes
    assert test.labels.bincount().tolist() == [per_class // 5] * classes
    ends = [data.images[i].numpy().tobytes() for data in (train, test) for i in (0, -1)]
    assert tuple(hashlib.sha256(image).hexdigest()[:16] for image in ends) == ENDS[layout]


@pytest.mark.parametrize("save", [save_pt, save_old_pt, save_npy])
def test_the_real_human_labels(tmp_path, save):
    """Their arrays, saved here as the published files are."""
    if not (REAL / "cifar10n_labels.npz").is_file():
        pytest.skip("LABELSIEVE_DATA names no folder with cifar10n_labels.npz")
    with np.load(REAL / "cifar10n_labels.npz") as file:
        arrays = {key: file[f"cifar10_{key}"].astype(np.int64) for key in HUMAN}
    save(tmp_path / "human", arrays)
    kinds = ("clean", "aggregate", "random1", "random2", "random3", "worst")
    labels = {kind: read_cifar_n(tmp_path / "human", kind) for kind in kinds}
    wrong = [round((labels[kind] != labels["clean"]).double().mean().item() * 100, 2) for kind in kinds]
    assert wrong[:2] == [0, 9.01] and wrong[5] == 40.21
    assert [round(rate, 1) for rate in wrong[2:5]] == [17.2, 18.1, 17.6]
    if (REAL / "cifar-10-batches-py").is_dir():
        assert torch.equal(labels["clean"], read_cifar(REAL / "cifar-10-batches-py")[0].labels)
