"""Pickle files are read as data, and never executed."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelsieve.data.cifar import read_cifar
from labelsieve.data.pickles import load_plain
from labelsieve.errors import InputError
from tests.data.builders import Runs, touch
from tests.data.test_cifar import RNG, ROWS, python2, refusal, ten_python, write_folder


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "called"),
    [(os.system, "posix.system"), (eval, "eval"), (np.load, "numpy"), (np.fromfile, "fromfile"), (os.unlink, "unlink")],
)
def test_pickle_that_calls_a_function_is_an_error_and_calls_nothing(tmp_path, protocol, function, called):
    canary = tmp_path / "canary"
    order = f"__import__('pathlib').Path({str(canary)!r}).touch()" if function is eval else touch(canary)
    record = {"data": ROWS[:1], "labels": Runs(function, (order,))}
    folder = write_folder(tmp_path / "mine", {**ten_python(), "data_batch_1": pickle.dumps(record, protocol)})
    message = refusal(read_cifar, folder)
    assert "data_batch_1 tries to run " in message and called in message and "not the published file" in message
    assert not canary.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"(S'touch canary'\nios\nsystem\n.", "tries to run os.system"),
        (b"(cos\nsystem\nS'touch canary'\no.", "tries to run os.system"),
        (b"\x80\x02cnumpy\ndtype\n)\x81.", "truncated or damaged"),
        (b"\x80\x02\x82\x01.", "truncated or damaged"),
        (b"\x80\x02Pname\n.", "refers to an object outside the file"),
        (b"\x80\x04\x8c\x02o\n\x8c\x03a\x1bb\x93.", "tries to run o\\n.a\\x1bb"),
        (b"\x80\x02K\x01)R.", "truncated or damaged"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "calls numpy.ndarray with unknown arguments"),
        (b"\x80\x02}K\x01b.", "truncated or damaged"),
        (b"\x80\x02}}\x85K\x01s.", "truncated or damaged"),
        (b"\x80\x02K\x01K\x02a.", "truncated or damaged"),
        (
            b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-7\x86R.",
            "calls _codecs.encode with unknown arguments",
        ),
        (b"\x80\x02r\xff\xff\xff\xff.", "truncated or damaged"),
        (b"\x80\x02]r\xff\xff\xff\xff.", "truncated or damaged"),
        (b"\x80\x02h\x07.", "truncated or damaged"),
        (b"\x80\x02.", "truncated or damaged"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "truncated or damaged"),
        (pickle.dumps(np.array([{}]), 2), "an array of dtype O8"),
        (pickle.dumps(np.array({}), 2), "an array of dtype O8"),
        (pickle.dumps({"a": {1}}, 4), "a value of type set"),
        (pickle.dumps(np.dtype("u1"), 4), "a value of type dtype"),
        (pickle.dumps(np.ndarray, 4), "a value of type symbol"),
        (pickle.dumps(np.array(["text"]), 2), "an array of dtype U4"),
        (pickle.dumps(np.zeros(2, dtype=[("a", "i4")]), 2), "an array of dtype V4"),
        (pickle.dumps(np.zeros(2, dtype="M8[s]"), 2), "an array of dtype M8"),
        (python2(ROWS).replace(b"M\x18\x00", b"M\x19\x00", 1), "an array of shape (25, 3072) with 73,728 bytes"),
    ],
)
def test_pickles_of_other_objects_are_an_error(tmp_path, monkeypatch, content, reason):
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
def test_plain_values_equal_pickle_loads(value, protocol):
    content = pickle.dumps(value, protocol)
    assert load_plain(content, "x") == value == pickle.loads(content)


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i8", ">u2", "<f4", "?"])
@pytest.mark.parametrize("protocol", range(6))
def test_arrays_equal_pickle_loads(dtype, protocol):
    array = RNG.integers(0, 100, (3, 4)).astype(dtype)
    first, second, turned = load_plain(pickle.dumps([array, array, array.T], protocol), "x")
    assert first is second and first.dtype == array.dtype.newbyteorder("=")
    assert first.tolist() == array.tolist() and turned.tolist() == array.T.tolist()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_pickles_are_read_or_raise_input_error(data):
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
