""".npz and .npy files."""

import io
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.data import load_data
from labelsieve.data.arrays import load_npy, load_npz, npz_keys, read_npz
from labelsieve.errors import InputError
from tests.conftest import blobs

RNG = np.random.default_rng(0)


IMAGES = RNG.integers(0, 256, (12, 5, 4), dtype=np.uint8)


LABELS = np.arange(12) % 3


FEATURES = RNG.normal(size=(12, 2))


def npz(folder, **arrays):
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def images(folder, **arrays):
    return npz(folder, **{"images": IMAGES, "labels": LABELS, **arrays})


def features(folder, **arrays):
    return npz(folder, **{"features": FEATURES, "labels": LABELS, **arrays})


def npy_bytes(array, **options):
    content = io.BytesIO()
    np.lib.format.write_array(content, array, **options)
    return content.getvalue()


def headed(shape="(12,)", descr="'<i8'", data=b"", more="", version=b"\x01\x00"):
    """Return a .npy file with the given header."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}{more}}}".encode()
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text))
    return b"\x93NUMPY" + version + length + text + data


def zipped(folder, *members, compression=zipfile.ZIP_STORED):
    path = folder / "mine.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def refused(read, path, reason):
    with pytest.raises(InputError, match=reason) as caught:
        read(path)
    assert path.name in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array(["ant", "bee", "cow"])[LABELS], ("ant", "bee", "cow")),
        (np.array([b"ant", b"bee", b"cow"])[LABELS], ("ant", "bee", "cow")),
        (np.array(["9", "10", "11"])[LABELS], ("9", "10", "11")),
        (np.eye(3)[LABELS], ("0", "1", "2")),
        (np.eye(4, dtype=bool)[LABELS], ("0", "1", "2", "3")),
        (np.eye(3, dtype=np.uint8)[LABELS], ("0", "1", "2")),
        (LABELS.astype(np.float32), ("0", "1", "2")),
        (LABELS.astype(">u2"), ("0", "1", "2")),
        (np.asfortranarray(np.eye(3)[LABELS]), ("0", "1", "2")),
    ],
)
def test_labels_of_any_kind(tmp_path, labels, classes):
    train, *_ = read_npz(images(tmp_path, labels=labels))
    assert train.labels.tolist() == LABELS.tolist() and tuple(train.classes) == classes


def test_booleans(tmp_path):
    train, *_ = read_npz(images(tmp_path, labels=LABELS == 2))
    assert train.labels.tolist() == (LABELS == 2).tolist() and tuple(train.classes) == ("false", "true")


def test_words_with_test_clean_labels_and_classes(tmp_path):
    words = np.array(["ant", "bee", "cow", "dog"])
    clean = words[(LABELS + 1) % 3]
    path = images(tmp_path, labels=words[LABELS], clean_labels=clean, test_images=IMAGES[:2], test_labels=words[[2, 0]])
    train, test, *_ = read_npz(path)
    assert train.clean.tolist() == ((LABELS + 1) % 3).tolist() and test.labels.tolist() == [2, 0] and test.clean is None
    named = images(tmp_path, labels=words[LABELS], clean_labels=clean, classes=words[::-1])
    train, *_ = read_npz(named)
    assert train.labels.tolist() == (3 - LABELS).tolist() and tuple(train.classes) == ("dog", "cow", "bee", "ant")


def test_clean_labels_may_have_more_classes(tmp_path):
    train, *_ = read_npz(images(tmp_path, clean_labels=LABELS + 1))
    assert tuple(train.classes) == ("0", "1", "2", "3") and train.clean.tolist() == (LABELS + 1).tolist()


def test_extra_arrays_are_ignored(tmp_path):
    path = images(tmp_path, notes=np.array([{}], dtype=object))
    assert len(read_npz(path)[0]) == 12 and npz_keys(path) == ("images", "labels", "notes")
    members = [
        ("images.npy", npy_bytes(IMAGES)),
        ("labels.npy", npy_bytes(LABELS)),
        ("../x.npy", b""),
        ("note.txt", b""),
    ]
    assert len(read_npz(zipped(tmp_path, *members))[0]) == 12
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.npz"]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_of_the_format(tmp_path, version):
    (tmp_path / "mine.npy").write_bytes(npy_bytes(IMAGES, version=version))
    assert np.array_equal(load_npy(tmp_path / "mine.npy"), IMAGES)


def test_compressed_npz(tmp_path):
    np.savez_compressed(tmp_path / "mine.npz", images=IMAGES * 0, labels=LABELS)
    assert not read_npz(tmp_path / "mine.npz")[0].images.any()


def test_features(tmp_path):
    path = features(
        tmp_path,
        features=np.asfortranarray(FEATURES.astype(">f8")),
        test_features=FEATURES[:2].astype(np.float16),
        test_labels=LABELS[:2],
        clean_labels=LABELS[::-1],
        columns=np.array(["size", "age"]),
    )
    train, test, valid, bad = read_npz(path)[:4]
    assert torch.equal(train.images, torch.from_numpy(FEATURES.astype(np.float32))) and train.columns == ("size", "age")
    assert train.labels.tolist() == LABELS.tolist() and train.clean.tolist() == LABELS[::-1].tolist()
    assert test.images.shape == (2, 2) and test.names[1] == "mine.npz:test_features[1]" and valid is None and not bad


def test_features_in_half_precision_with_names_and_all_splits(tmp_path):
    """What `labelsieve embed` writes."""
    rows = np.arange(12, dtype=np.float16).reshape(6, 2) / 4
    np.savez(
        tmp_path / "f.npz",
        features=rows[:3],
        labels=np.array([1, 0, 1]),
        names=np.array(["b/1.jpg", "a/2.jpg", "b/3.jpg"]),
        clean_labels=np.array([1, 1, 1]),
        test_features=rows[3:4],
        test_labels=np.array([0]),
        test_names=np.array(["a/4.jpg"]),
        valid_features=rows[4:],
        valid_labels=np.array([1, 0]),
        classes=np.array(["a", "b"]),
    )
    train, test, valid = load_data(str(tmp_path / "f.npz"))
    assert train.images.dtype == torch.float32 and np.array_equal(train.images.numpy(), rows[:3])
    assert train.names == ["b/1.jpg", "a/2.jpg", "b/3.jpg"] and train.classes == ("a", "b")
    assert train.clean.tolist() == [1, 1, 1] and test.names == ["a/4.jpg"] and test.labels.tolist() == [0]
    assert np.array_equal(valid.images.numpy(), rows[4:]) and valid.names[1] == "f.npz:valid_features[1]"


def test_rows_with_non_finite_values_are_unusable(tmp_path):
    values = FEATURES.copy()
    values[3, 1], values[5, 0], values[7, 0] = np.nan, -np.inf, 1e300
    train, _, _, bad = read_npz(features(tmp_path, features=values))[:4]
    assert [row.name for row in bad] == [f"mine.npz:features[{row}]" for row in (3, 5, 7)]
    assert bad[2].reason == "column '0' contains 1e+300, which is too large or not finite"
    assert "column '1' contains nan" in bad[0].reason and len(train) == 9 and train.labels[3] == LABELS[4]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"labels": LABELS[:, None]}, r"labels.ravel\(\)"),
        ({"labels": np.full((12, 3), 1 / 3)}, r"labels\[0\] is not one-hot.*argmax"),
        ({"labels": np.vstack([np.eye(3)[LABELS[:11]], [[0, 1, 1]]])}, r"labels\[11\] is not one-hot"),
        ({"labels": np.eye(3)[LABELS] * 2}, r"labels\[0\] is not one-hot"),
        ({"labels": LABELS + 0.5}, "integers, got float64 0.5 at 0"),
        ({"labels": np.where(LABELS, LABELS, np.nan)}, "integers, got float64 nan at 0"),
        ({"labels": LABELS.astype(complex)}, "strings or integers of shape .n., got complex128"),
        ({"labels": LABELS.astype("datetime64[D]")}, "strings or integers of shape .n., got datetime64"),
        ({"labels": np.zeros(12, dtype=[("a", int)])}, "strings or integers of shape .n., got"),
        ({"labels": np.zeros(12, dtype="V4")}, "strings or integers of shape .n., got"),
        ({"labels": np.array(3)}, "strings or integers of shape .n., got int64 ()"),
        ({"labels": LABELS * 0}, "only the class 0"),
        ({"labels": LABELS + 10**12}, "number the classes from 0"),
        ({"labels": np.array(["a", "A", "b"])[LABELS]}, "'a' and 'A' look like one class"),
        ({"labels": np.array(["a", "NA", "b"])[LABELS]}, r"labels\[1\] is missing .'NA'."),
        (
            {"labels": np.array(["a", "b"])[LABELS % 2], "classes": np.array(["a", "c"])},
            r"labels\[1\] 'b' is not a class",
        ),
        ({"classes": np.array(["a", "a", "b"])}, "classes must be different names"),
        ({"classes": np.array([["a", "b", "c"]])}, "classes must be different names"),
        ({"classes": np.array(["a", "b"])}, "label 2 at position 2 .* out of range"),
        ({"clean_labels": LABELS[:5]}, "12 images but 5 clean_labels"),
        ({"test_images": IMAGES}, "has no array 'test_labels'"),
        ({"test_images": IMAGES, "test_labels": LABELS[:3]}, "12 test_images but 3 test_labels"),
        ({"test_images": IMAGES, "test_labels": LABELS + 1}, "label 3 at position 2 .* out of range"),
        ({"images": IMAGES / 255}, r"must be uint8.*images \* 255"),
        ({"images": IMAGES > 3}, "must be uint8"),
        ({"images": np.zeros((12, 3, 32, 32), np.uint8)}, "32 channels; if they are channels first"),
        ({"images": np.array(3, np.uint8)}, "must be uint8"),
    ],
)
def test_invalid_images_and_labels_are_an_error(tmp_path, arrays, reason):
    refused(read_npz, images(tmp_path, **arrays), reason)


def test_unknown_test_label_is_an_error(tmp_path):
    words = {"labels": np.array(["a", "b"])[LABELS % 2], "test_images": IMAGES[:1], "test_labels": np.array(["c"])}
    refused(read_npz, images(tmp_path, **words), "the test label 'c' is not among the training labels")


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"features": FEATURES[:5]}, "5 features but 12 labels"),
        ({"features": FEATURES[:, :0]}, r"the shape .n, columns., got .12, 0."),
        ({"features": FEATURES[:0], "labels": LABELS[:0]}, "no samples"),
        ({"features": FEATURES[:, 0]}, "the shape"),
        ({"features": FEATURES + 1j}, "real numbers .* got complex128"),
        ({"features": FEATURES.astype(str)}, "real numbers"),
        ({"features": np.zeros((12, 2), dtype="datetime64[D]")}, "real numbers"),
        ({"features": np.zeros((12, 2), dtype=[("a", int)])}, "real numbers"),
        ({"features": FEATURES.astype(object)}, "Python objects"),
        ({"features": FEATURES * np.nan}, r"none of the 12 rows can be used"),
        ({"columns": np.array(["a"])}, "2 columns but columns is"),
        ({"names": np.array(["a", "b"])}, r"12 features but names is .2,.; one each is needed"),
        ({"valid_features": FEATURES}, "no array 'valid_labels'"),
        ({"test_features": FEATURES[:, :1], "test_labels": LABELS}, r"of shape .n, 2., got float64 .12, 1."),
    ],
)
def test_invalid_features_are_an_error(tmp_path, arrays, reason):
    refused(read_npz, features(tmp_path, **arrays), reason)


def test_a_missing_array_is_named(tmp_path):
    refused(read_npz, npz(tmp_path, features=FEATURES), r"has no array 'labels' .arrays: features.")
    refused(read_npz, npz(tmp_path, labels=LABELS), r"has no array 'images' .arrays: labels.")


HUGE = headed("(1000000000000, 4)")  # 29 TiB


DAMAGED = [
    (HUGE, "of 32,000,000,000,"),
    (headed("(-1, 3)"), "damaged header"),
    (headed("(True,)"), "damaged header"),
    (headed("'x'"), "damaged header"),
    (headed("(12,)", "'nonsense'"), "damaged header"),
    (headed("(12,)", "'|O'", pickle.dumps([1])), "Python objects"),
    (headed("(12,)", "[('a', '|O')]"), "Python objects"),
    (headed("(1000000000000,)", "'<U0'"), "damaged header"),
    (headed("(" * 200 + ")" * 200), "damaged header"),
    (headed("__import__('os')"), "damaged header"),
    (headed("(("), "damaged header"),
    (headed(more=" " * 20_000), "damaged header"),
    (headed(more=" " * 100_000, version=b"\x02\x00"), "damaged header"),
    (headed(version=b"\x09\x00"), "unknown format"),
    (pickle.dumps(LABELS), "pickles are not loaded"),
    (npy_bytes(LABELS)[:-1], "of 224 bytes"),
    (npy_bytes(LABELS)[:9], "damaged header"),
    (b"", "not a plain array"),
]


@pytest.mark.parametrize(("content", "reason"), DAMAGED)
def test_damaged_arrays_are_an_error_before_memory_is_allocated(tmp_path, content, reason):
    (tmp_path / "mine.npy").write_bytes(content)
    tracemalloc.start()
    try:
        refused(load_npy, tmp_path / "mine.npy", reason)
        refused(read_npz, zipped(tmp_path, ("images.npy", npy_bytes(IMAGES)), ("labels.npy", content)), reason)
        assert tracemalloc.get_traced_memory()[1] < 2e7
    finally:
        tracemalloc.stop()


def test_pickles_are_not_loaded(tmp_path):
    canary = tmp_path / "canary"
    payload = b"cbuiltins\nopen\n(S'%s'\nS'w'\ntR." % str(canary).encode()
    for content in (payload, headed("(1,)", "'|O'", payload)):
        (tmp_path / "mine.npy").write_bytes(content)
        refused(load_npy, tmp_path / "mine.npy", "not a plain array")
        refused(load_npz, zipped(tmp_path, ("images.npy", content)), "not a plain array")
    (tmp_path / "mine.npz").write_bytes(payload)
    refused(load_npz, tmp_path / "mine.npz", "cannot read")
    assert not canary.exists()


def test_a_zip_bomb_is_not_expanded(tmp_path, monkeypatch):
    monkeypatch.setattr("labelsieve.data.arrays.LARGE_FILE", 2**20)
    content = headed("(8388608,)", data=bytes(2**26))  # 64 MiB of zeros, 1028:1
    path = zipped(tmp_path, ("labels.npy", content), compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1e5
    tracemalloc.start()
    try:
        refused(load_npz, path, "would expand from .* over 200-fold")
        assert tracemalloc.get_traced_memory()[1] < 2e7
    finally:
        tracemalloc.stop()
    monkeypatch.undo()
    assert len(load_npz(path)["labels"]) == 2**23  # under 1 GiB an array of zeros is nothing special


def test_false_member_size_is_an_error(tmp_path):
    path = zipped(tmp_path, ("labels.npy", HUGE))
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02") + 24
    content[place : place + 4] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(content)
    refused(load_npz, path, "would expand from")


def test_bad_checksums_and_truncation_are_an_error(tmp_path):
    path = images(tmp_path)
    whole = path.read_bytes()
    place = whole.index(IMAGES.tobytes())
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    refused(read_npz, path, "cannot read .*CRC")
    for cut in (1, 30, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        refused(read_npz, path, "cannot read")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_the_same_name(tmp_path):
    members = [("images.npy", npy_bytes(IMAGES)), ("labels.npy", npy_bytes(LABELS)), ("labels.npy", npy_bytes(LABELS))]
    refused(read_npz, zipped(tmp_path, *members), "two arrays of the same name")


def test_encrypted_or_unknown_compression_is_an_error(tmp_path):
    path = images(tmp_path)
    content = bytearray(path.read_bytes())
    for sign, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(sign) + flags] |= 1
    path.write_bytes(content)
    refused(read_npz, path, "is encrypted, or")
    path = zipped(tmp_path, ("images.npy", npy_bytes(IMAGES)), compression=zipfile.ZIP_LZMA)
    refused(read_npz, path, "compressed in a way")


def test_npy_is_not_npz_and_the_reverse(tmp_path):
    (tmp_path / "mine.npz").write_bytes(npy_bytes(IMAGES))
    refused(read_npz, tmp_path / "mine.npz", "contains a single array")
    (tmp_path / "mine.npy").write_bytes(images(tmp_path).read_bytes())
    refused(load_npy, tmp_path / "mine.npy", "contains several arrays")
    refused(read_npz, tmp_path, "cannot read")


@given(st.integers(0, 1500), st.binary(min_size=1, max_size=8))
def test_changed_bytes_are_read_or_raise_input_error(tmp_path_factory, place, bytes_there):
    path = images(tmp_path_factory.mktemp("any"))
    content = path.read_bytes()
    path.write_bytes(content[:place] + bytes_there + content[place + len(bytes_there) :])
    try:
        read_npz(path)
    except InputError as error:
        assert "\n" not in str(error)


def test_npz_with_and_without_a_test_set(tmp_path):
    train, test, _ = load_data(write(tmp_path / "a.npz"))
    assert train.images.shape == (12, 1, 5, 4) and test is None and list(train.classes) == ["0", "1", "2"]
    assert torch.equal(train.images[3, 0], torch.from_numpy(IMAGES[3]))
    colour = RNG.integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    arrays = {"images": np.repeat(IMAGES[..., None], 3, 3), "test_images": colour, "test_labels": np.array([3, 0])}
    train, test, _ = load_data(write(tmp_path / "b.npz", **arrays, classes=np.array(["a", "b", "c", "d"])))
    assert test.images.shape == (2, 3, 5, 4) and list(test.classes) == ["a", "b", "c", "d"]
    assert torch.equal(test.images[1, 2], torch.from_numpy(colour[1, :, :, 2]))


def test_memory_and_byte_order_do_not_matter(tmp_path):
    plain, _, _ = load_data(write(tmp_path / "a.npz"))
    odd, _, _ = load_data(write(tmp_path / "b.npz", images=np.asfortranarray(IMAGES), labels=LABELS.astype(">i4")))
    assert torch.equal(plain.images, odd.images) and torch.equal(plain.labels, odd.labels)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"images": IMAGES[:5]}, "5 images but 12 labels"),
        ({"images": IMAGES.astype(np.float32)}, "must be uint8.* got float32"),
        ({"images": IMAGES[0]}, "must be uint8, 0 to 255, of shape"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "no samples"),
        ({"labels": LABELS - 1}, "label -1 at position 0 .* out of range: there are 2 classes"),
        ({"labels": LABELS, "classes": np.array(["a", "b"])}, "label 2 at position 2 .* 2 classes, 0 to 1"),
        ({"labels": LABELS / 2}, "integers, got float64 0.5 at 1"),
        ({"labels": np.eye(12) / 2}, r"labels\[0\] is not one-hot"),
        ({"labels": np.array(["a"] * 12)}, "only the class 'a'"),
        ({"images": np.array([{}] * 12)}, "array 'images' is not a plain array, it contains Python objects"),
    ],
)
def test_error_names_the_file_of_invalid_arrays(tmp_path, arrays, reason):
    path = write(tmp_path / "mine.npz", **arrays)
    with pytest.raises(InputError, match=reason) as caught:
        load_data(path)
    assert "mine.npz" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut short"])
def test_error_names_a_file_that_cannot_be_read(tmp_path, content):
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read .*mine\.npz"):
        load_data(str(path))


def test_error_lists_the_arrays_of_a_file(tmp_path):
    np.savez(tmp_path / "mine.npz", x=IMAGES)
    with pytest.raises(InputError, match=r"has no array 'images' \(arrays: x\)"):
        load_data(str(tmp_path / "mine.npz"))


def test_arrays_may_have_names_as_labels(tmp_path):
    data = blobs(60, 0)
    names = np.array(["red", "green", "blue", "black"])[data.labels.numpy()]
    np.savez(tmp_path / "named.npz", images=data.images[:, 0].numpy(), labels=names)
    train = load_data(str(tmp_path / "named.npz")).train
    assert train.classes == ("black", "blue", "green", "red") and train.classes[int(train.labels[0])] == "red"


def write(path, **arrays):
    np.savez(path, **{"images": IMAGES, "labels": LABELS, **arrays})
    return str(path)
