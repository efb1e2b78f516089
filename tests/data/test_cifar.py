"""CIFAR-10, CIFAR-100 and the labels of CIFAR-N."""

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

from labelsieve.data import cifar
from labelsieve.data.cifar import contents_digest, is_cifar, read_cifar, read_cifar_n
from labelsieve.errors import InputError
from tests.data.builders import Runs, animals, touch

RNG = np.random.default_rng(0)


TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


HUNDRED = tuple(f"fine {number}" for number in range(100))


PER_BATCH = 4


ROWS = RNG.integers(0, 256, (6 * PER_BATCH, 3072), dtype=np.uint8)


LABELS = [int(label) for label in RNG.integers(0, 10, 6 * PER_BATCH)]


FINE = [int(label) for label in RNG.integers(20, 100, 6 * PER_BATCH)]


BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def python2(value):
    """Return a pickle of protocol 2 as written by Python 2: strings are bytes, arrays come from numpy.core."""

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


def refusal(read, *arguments):
    with pytest.raises(InputError) as caught:
        read(*arguments)
    message = str(caught.value)
    assert message.isprintable()
    return message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_and_archives_have_equal_contents(tmp_path, layout):
    files, classes, labels = LAYOUTS[layout]
    folder = write_folder(tmp_path / "inside" / layout, files())
    gz = write_archive(tmp_path / "a.tar.gz", published_members(layout))
    tar = write_archive(tmp_path / "wrong_suffix.zip", published_members(layout), "w")
    for path in (folder, folder.parent, gz, tar):
        assert is_cifar(path)
        assert_is_written_data(read_cifar(path)[:2], classes, labels)
        name = "CIFAR-100" if "100" in layout else "CIFAR-10"
        assert read_cifar(path).kind == f"not the published {name} (other contents)"


def test_python2_writes_valid_pickles():
    record = pickle.loads(ten_python()["data_batch_2"], encoding="bytes")
    assert record[b"labels"] == LABELS[part(1)] and (record[b"data"] == ROWS[part(1)]).all()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("encode", [str, str.encode])
def test_pickle_protocols_and_string_types_do_not_matter(tmp_path, protocol, encode):
    folder = write_folder(tmp_path / "mine", ten_python())
    for name in [*BATCHES, "batches.meta"]:
        record = pickle.loads((folder / name).read_bytes(), encoding="latin1")
        if "data" in record:
            record["data"] = np.asfortranarray(ROWS[part(BATCHES.index(name))])
        content = pickle.dumps({encode(key): value for key, value in record.items()}, protocol)
        (folder / name).write_bytes(content)
    assert_is_written_data(read_cifar(folder)[:2], TEN, LABELS)


def test_published_contents_are_recognised(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "cifar-10-batches-py", ten_python())
    train, test, *_ = read_cifar(folder)
    assert (
        contents_digest(train)
        == hashlib.sha256(ROWS[:20].tobytes() + np.array(LABELS[:20], "<i8").tobytes()).hexdigest()
    )
    monkeypatch.setitem(cifar.DIGESTS, "CIFAR-10", (contents_digest(train), contents_digest(test)))
    assert read_cifar(folder).kind == "the published CIFAR-10"
    other = dict(ten_python(), test_batch=python2({"labels": [0, 1], "data": ROWS[:2]}))
    assert read_cifar(write_folder(folder, other)).kind == "not the published CIFAR-10 (other contents)"


def test_other_data_is_not_cifar(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "images" / split / "cat").mkdir(parents=True)
    write_folder(tmp_path / "animals", {"data_batch_1.bin": animals(3), "test_batch.bin": animals(2)})
    write_archive(tmp_path / "images.tar.gz", [plain_member("cat/1.png", b"png")])
    write_folder(tmp_path, {"text.txt": b"hello", "empty": b"", "cut.tar.gz": b"\x1f\x8b\x08"})
    for name in ("images", "animals", "images.tar.gz", "text.txt", "empty", "cut.tar.gz", "gone"):
        assert not is_cifar(tmp_path / name), name
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"<html>")
    assert is_cifar(tmp_path / "cifar-10-python.tar.gz")
    assert "is not CIFAR" in refusal(read_cifar, tmp_path / "images")
    assert "No such file" in refusal(read_cifar, tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    assert not is_cifar(tmp_path / "pipe") and "neither a file nor a folder" in refusal(read_cifar, tmp_path / "pipe")


def test_folder_with_two_datasets_is_an_error(tmp_path):
    write_folder(tmp_path / "cifar-10-batches-py", ten_python())
    write_folder(tmp_path / "cifar-100-python", hundred_python())
    message = refusal(read_cifar, tmp_path)
    assert "several datasets (cifar-10-batches-py, cifar-100-python)" in message


@pytest.mark.parametrize(
    ("layout", "name", "content", "reason"),
    [
        ("cifar-10-batches-py", "data_batch_3", ten_python()["data_batch_3"][:-400], "truncated or damaged"),
        ("cifar-10-batches-py", "data_batch_3", b"", "truncated or damaged"),
        ("cifar-10-batches-py", "data_batch_3", b"<html>not found</html>", "truncated or damaged"),
        (
            "cifar-10-batches-py",
            "data_batch_3",
            b"version https://git-lfs.github.com/spec/v1\n",
            "truncated or damaged",
        ),
        ("cifar-10-batches-py", "data_batch_3", python2([1, 2]), "contains no dict"),
        ("cifar-10-batches-py", "data_batch_3", python2({"labels": [0]}), "no 'data' of shape (n, 3072) uint8"),
        ("cifar-10-batches-py", "data_batch_3", python2({"data": ROWS[:, :9]}), "no 'data' of shape (n, 3072) uint8"),
        ("cifar-10-batches-py", "data_batch_3", python2({"data": ROWS[:2]}), "no list 'labels' of 2 integers"),
        (
            "cifar-10-batches-py",
            "data_batch_3",
            python2({"data": ROWS[:2], "labels": [1]}),
            "no list 'labels' of 2 integers",
        ),
        (
            "cifar-10-batches-py",
            "data_batch_3",
            python2({"data": ROWS[:0], "labels": []}),
            "no list 'labels' of 0 integers",
        ),
        (
            "cifar-10-batches-py",
            "data_batch_3",
            python2({"data": ROWS[:2], "labels": [1, 10]}),
            "label 10 at position 1",
        ),
        ("cifar-10-batches-py", "data_batch_3", python2({"data": ROWS[:1], "labels": ["cat"]}), "no list 'labels'"),
        ("cifar-10-batches-py", "batches.meta", python2({"label_names": 3}), "no list of class names 'label_names'"),
        ("cifar-10-batches-py", "batches.meta", python2({"label_names": [b"\xff", b"a"]}), "no list of class names"),
        ("cifar-10-batches-py", "batches.meta", python2({"label_names": ["a\x1b[31m", "b"]}), "no list of class names"),
        ("cifar-100-python", "test", hundred_python()["test"][:50], "truncated or damaged"),
        ("cifar-100-python", "meta", python2({"label_names": ["a"]}), "no list of class names 'fine_label_names'"),
        (
            "cifar-10-batches-bin",
            "data_batch_2.bin",
            ten_binary()["data_batch_2.bin"][:-1],
            "12,291 bytes are not a multiple",
        ),
        ("cifar-10-batches-bin", "test_batch.bin", b"", "is truncated: 0 bytes"),
        ("cifar-10-batches-bin", "test_batch.bin", bytes([200]) + bytes(3072), "label 200 at position 0"),
        ("cifar-10-batches-bin", "batches.meta.txt", b"\n\n", "no list of class names"),
        ("cifar-100-binary", "train.bin", bytes(3073), "record size 3,074"),
    ],
)
def test_error_names_a_damaged_file(tmp_path, layout, name, content, reason):
    files = {**LAYOUTS[layout][0](), name: content}
    folder = write_folder(tmp_path / layout, files)
    message = refusal(read_cifar, folder)
    assert str(folder / name) in message and reason in message
    archive = write_archive(tmp_path / "a.tar.gz", published_members(layout, files))
    message = refusal(read_cifar, archive)
    assert f"{archive}: {name}" in message and reason in message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_error_names_a_missing_file(tmp_path, layout):
    files = LAYOUTS[layout][0]()
    for name in set(files) & set(cifar.KNOWN_FILES):
        rest = {other: content for other, content in files.items() if other != name}
        archive = write_archive(tmp_path / f"{name}.tar", published_members(layout, rest), "w")
        assert f"has no {name}, " in refusal(read_cifar, archive)
        folder = write_folder(tmp_path / name / layout, rest)
        if is_cifar(folder):
            assert f"has no {name}, " in refusal(read_cifar, folder)
        else:
            assert len(rest) < 5  # CIFAR-100 has a single other file of samples


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
def test_other_members_are_ignored_and_nothing_is_written(tmp_path, odd):
    home = tmp_path / "home"
    home.mkdir()
    members = published_members()
    archive = write_archive(home / "a.tar.gz", [*ODD_MEMBERS[odd], *members, *ODD_MEMBERS[odd]])
    before = sorted(tmp_path.rglob("*"))
    assert_is_written_data(read_cifar(archive)[:2], TEN, LABELS)
    alone = write_archive(home / "a.tar.gz", ODD_MEMBERS[odd])
    assert "contains no files of CIFAR" in refusal(read_cifar, alone)
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
        (sparse_of_a_terabyte, "too many or too large members"),
        (member_of_a_terabyte, "too many or too large members"),
        (bomb, "expands to over 3,000,000 bytes"),
        (header_bomb, "expands to over 3,000,000 bytes"),
        (many_members, "too many or too large members"),
        (twice, "contains test_batch twice"),
        (lambda path: cut(path, 0.01), "truncated, damaged"),
        (lambda path: cut(path, 0.5), "truncated, damaged"),
        (lambda path: cut(path, 0.9999), "truncated, damaged"),
        (flipped, "truncated, damaged"),
        (encrypted_zip, "not a .tar.gz archive"),
        (lambda path: path.write_bytes(b""), "not a .tar.gz archive"),
        (lambda path: path.write_bytes(b"<html>moved</html>"), "not a .tar.gz archive"),
        (lambda path: path.write_bytes(gzip.compress(b"text")), "not a .tar.gz archive"),
        (lambda path: path.write_bytes(gzip.compress(b"\xff" * 5000)), "not a .tar.gz archive"),
    ],
)
def test_unusable_archives_are_an_error(tmp_path, monkeypatch, write, reason):
    if reason.startswith("expands"):
        monkeypatch.setattr(cifar, "MAX_ARCHIVE", 3_000_000)
    path = tmp_path / "cifar-10-python.tar.gz"
    write(path)
    message = refusal(read_cifar, path)
    assert str(path) in message and reason in message
    assert list(tmp_path.iterdir()) == [path]


HUMAN = {
    "clean_label": np.arange(8) % 10,
    "aggre_label": np.arange(8) % 9,
    "worse_label": np.arange(8) % 4,
    "random_label1": np.arange(8) % 5,
    "random_label2": np.arange(8) % 6,
    "random_label3": np.arange(8) % 7,
}


OLD_TORCH = 0x1950A86A20F9469CFC6C  # first number of a file that PyTorch saved before version 1.6
HUMAN_100 = {
    "clean_label": np.arange(92, 100),
    "noisy_label": np.arange(91, 99),
    "noisy_coarse_label": np.arange(8),
}


def save_pt(path, value):
    torch.save(value, path)


def save_old_pt(path, value):
    torch.save(value, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("save", [save_pt, save_old_pt])
def test_cifar_n_labels_are_read_by_name(tmp_path, save):
    path = tmp_path / "CIFAR-10_human"
    save(path, HUMAN)
    modulus = {"clean": 10, "aggregate": 9, "worst": 4, "random1": 5, "random2": 6, "random3": 7}
    for kind, number in modulus.items():
        labels = read_cifar_n(path, kind)
        assert labels.dtype == torch.int64 and labels.tolist() == [i % number for i in range(8)]
    assert "has no labels 'noisy' (label sets: aggregate, random1, random2, random3, worst, clean)" in refusal(
        read_cifar_n, path, "noisy"
    )
    save(path, HUMAN_100)
    assert read_cifar_n(path, "noisy").tolist() == list(range(91, 99))
    assert "label sets: noisy, clean" in refusal(read_cifar_n, path, "worst")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({**HUMAN, "worse_label": np.arange(8) + 3}, "label 10 at position 7"),
        ({**HUMAN, "worse_label": np.arange(8) - 1}, "label -1 at position 0"),
        ({**HUMAN, "worse_label": np.arange(8) / 2}, "not the published file"),
        ({**HUMAN, "worse_label": np.zeros((2, 2), int)}, "must be integers of shape (n), got int64"),
        ({**HUMAN, "worse_label": np.zeros(0, int)}, "not the published file"),
        ({**HUMAN, "worse_label": torch.zeros(3)}, "is not an array of labels"),
        ({**HUMAN, "worse_label": [1, 2]}, "is not an array of labels"),
        ({"weight": torch.zeros(2)}, "not a file of CIFAR-N, keys: weight"),
        ({}, "not a file of CIFAR-N, keys: "),
        ([1, 2], "contains no dict"),
    ],
)
@pytest.mark.parametrize("save", [save_pt, save_old_pt])
def test_invalid_cifar_n_labels_are_an_error(tmp_path, save, value, reason):
    path = tmp_path / "CIFAR-10_human.pt"
    save(path, value)
    message = refusal(read_cifar_n, path, "worst")
    assert str(path) in message and reason in message


@pytest.mark.parametrize("save", [save_pt, save_old_pt])
def test_cifar_n_files_are_not_executed(tmp_path, save):
    path, canary = tmp_path / "CIFAR-10_human.pt", tmp_path / "canary"
    save(path, {**HUMAN, "worse_label": Runs(os.system, (touch(canary),))})
    message = refusal(read_cifar_n, path, "clean")
    assert "not the published file; download it again" in message and not canary.exists()


def test_cifar_n_labels_in_another_order_are_an_error(tmp_path):
    path = tmp_path / "CIFAR-10_human_ordered.npy"
    np.save(path, HUMAN, allow_pickle=True)
    assert refusal(read_cifar_n, path, "worst") == (
        f"{path} is in the order of TensorFlow Datasets, not of CIFAR's files; "
        "pass CIFAR-10_human.pt or CIFAR-100_human.pt"
    )


@pytest.mark.parametrize("core", ["core", "_core"])
def test_cifar_n_arrays_of_any_numpy_are_read(tmp_path, core):
    """NumPy 2 renamed the module that its arrays name."""
    path = tmp_path / "CIFAR-10_human.pt"
    save_old_pt(path, HUMAN)
    written, wanted = (f"numpy.{name}.multiarray\n".encode() for name in ("_core", core))
    assert path.read_bytes().count(written) == 1
    path.write_bytes(path.read_bytes().replace(written, wanted))
    assert read_cifar_n(path, "worst").tolist() == [0, 1, 2, 3] * 2


@pytest.mark.parametrize("save", [save_pt, save_old_pt])
@pytest.mark.parametrize("share", [0, 0.05, 0.5, 0.9])
def test_truncated_cifar_n_files_are_an_error(tmp_path, save, share):
    path = tmp_path / "CIFAR-10_human.pt"
    save(path, HUMAN)
    content = path.read_bytes()
    end = len(pickle.dumps(HUMAN)) if save is save_old_pt else len(content)  # the old format ends in other notes
    path.write_bytes(content[: int(end * share)])
    message = refusal(read_cifar_n, path, "worst")
    assert str(path) in message


def test_unusable_cifar_n_files_are_an_error(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../data.pkl", bytes(2_000_000))
    assert "truncated, damaged or not the published file" in refusal(read_cifar_n, path, "worst")
    monkeypatch.setattr("labelsieve.data.cifar.MAX_CIFAR_N", 1_000_000)
    assert "expands to more than" in refusal(read_cifar_n, path, "worst")
    path.write_bytes(bytes(1_000_001))
    assert "larger than any file" in refusal(read_cifar_n, path, "worst")
    assert "is not a file" in refusal(read_cifar_n, tmp_path, "worst")
    assert "No such file" in refusal(read_cifar_n, tmp_path / "gone.pt", "worst")
    for content in (b"PK", b"hello world", pickle.dumps(OLD_TORCH), pickle.dumps(HUMAN, 5)):
        path.write_bytes(content)
        assert "damaged" in refusal(read_cifar_n, path, "worst")


REAL = Path(os.environ.get("LABELSIEVE_DATA", "no such folder"))


ENDS = {  # digests of the bytes of the first and the last training and test image
    "cifar-10-batches-py": ("e052de7deb775f78", "11aa7f707e504e57", "73eefb0106f2b7a2", "3f1313e424fe403a"),
    "cifar-100-python": ("d48e87e6d75805dc", "13bd2421c719f08f", "7dbe551ec3e5850b", "f4e99d314612b89b"),
}


@pytest.mark.parametrize(
    ("layout", "name", "per_class"),
    [("cifar-10-batches-py", "CIFAR-10", 5000), ("cifar-100-python", "CIFAR-100", 500)],
)
def test_published_cifar(layout, name, per_class):
    if not (REAL / layout).is_dir():
        pytest.skip(f"LABELSIEVE_DATA names no folder with {layout}")
    assert is_cifar(REAL / layout)
    train, test, _, _, kind, _ = read_cifar(REAL / layout)
    assert kind == f"the published {name}"
    assert len(train) == 50_000 and len(test) == 10_000
    classes = 50_000 // per_class
    assert train.labels.bincount().tolist() == [per_class] * classes and len(train.classes) == classes
    assert test.labels.bincount().tolist() == [per_class // 5] * classes
    ends = [data.images[i].numpy().tobytes() for data in (train, test) for i in (0, -1)]
    assert tuple(hashlib.sha256(image).hexdigest()[:16] for image in ends) == ENDS[layout]


@pytest.mark.parametrize("save", [save_pt, save_old_pt])
def test_published_cifar_n(tmp_path, save):
    """Read the published arrays, saved in the format of the published files."""
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
